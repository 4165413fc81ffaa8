//! Reads and writes on the caller's thread, at any offset, of any length, into any memory: the way
//! to a volume's bytes for all but the engines.
//!
//! A disk, its partitions and what is built on them have a page cache each, and what one of them
//! holds may be older than what is on the medium. So a block device that is open with `O_DIRECT` is
//! only ever touched that way here: a read is rounded out to whole blocks, and a block that is
//! written in part is read, changed and written back. What is not aligned in memory goes through a
//! buffer that is.
//!
//! A file has one cache, whoever reads it and however; its odd ends go through that.
//!
//! Left for the cache is the end of a block device whose size is no multiple of its own blocks, and
//! a device that is open without `O_DIRECT`. For these the cache is emptied when the device is
//! opened, see `device/cache.rs`.

use super::arena::{Arena, Slot};
use super::file::IoFile;
use super::op::{Direction, Span};
use super::transfer::{Transfer, TransferProgress, Via};
use std::io;

/// Moved at a time where memory or offsets are not aligned.
const PIECE_BYTES: u64 = 1 << 20;

/// Whole blocks around a part of a request.
struct Piece {
    /// First byte of the first block, in the file.
    start: u64,
    /// Bytes of all blocks.
    len: usize,
    /// Bytes before the part within the first block.
    skip: usize,
    /// Bytes of the part.
    part: usize,
}

impl Piece {
    /// The blocks around the bytes from `at` on, at most to `end` and no more than one buffer has.
    fn around(at: u64, end: u64, align: u64) -> Self {
        let start = at / align * align;
        let stop = end.next_multiple_of(align).min(start + PIECE_BYTES);
        let len = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
        Self { start, len: len(stop - start), skip: len(at - start), part: len(stop.min(end) - at) }
    }
}

impl IoFile {
    /// Fills `buf` from `offset` on, on the caller's thread. An end of the file before that is
    /// `UnexpectedEof`. At most 1 GiB. The page cache is passed by wherever it is for engines.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let whole = span(Direction::Read, offset, buf, buf.len())?;
        if self.is_aligned(buf, offset) {
            return self.read_all(whole, buf, buf.len());
        }
        let mut block = self.block(buf.len())?;
        let (mut done, end) = (0, offset + buf.len() as u64);
        while done < buf.len() {
            let piece = Piece::around(offset + done as u64, end, u64::from(self.align()));
            self.read_blocks(&mut block[..piece.len], piece.start, piece.skip + piece.part)?;
            let from = &block[piece.skip..piece.skip + piece.part];
            buf[done..done + piece.part].copy_from_slice(from);
            done += piece.part;
        }
        Ok(())
    }

    /// Writes all of `buf`, at most 1 GiB, at `offset`, on the caller's thread. Nobody else may
    /// write to the same blocks meanwhile.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let whole = span(Direction::Write, offset, buf, buf.len())?;
        // a file must not become longer than its volume, and its cache is the only one
        if !self.is_block_device() || self.is_aligned(buf, offset) {
            return self.write_all(whole, buf);
        }
        let align = u64::from(self.align());
        let mut block = self.block(buf.len())?;
        let (mut done, end) = (0, offset + buf.len() as u64);
        while done < buf.len() {
            let at = offset + done as u64;
            let (piece, bytes) = (Piece::around(at, end, align), &buf[done..]);
            let Piece { start, len, skip, part } = piece;
            let rest = skip + part < len;
            let block = &mut block[..len];
            // what stays of the first and the last block
            if skip > 0 || rest {
                let read = self.read_blocks(block, start, len);
                if read.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
                    // the device ends within the last block: see above
                    let cached = span(Direction::Write, at, bytes, bytes.len())?;
                    return self.write_all(cached, bytes);
                }
                read?;
            }
            block[skip..skip + part].copy_from_slice(&bytes[..part]);
            let whole = span(Direction::Write, start, block, len)?;
            self.write_all(whole, block)?;
            done += part;
        }
        Ok(())
    }

    /// Whether all of a request goes through the main descriptor as it is.
    fn is_aligned(&self, buf: &[u8], offset: u64) -> bool {
        (offset | address(buf) | buf.len() as u64) & (u64::from(self.align()) - 1) == 0
    }

    /// Memory for the blocks around so many bytes.
    fn block(&self, len: usize) -> io::Result<Slot> {
        let most = len as u64 + 2 * u64::from(self.align());
        let bytes = usize::try_from(most.min(PIECE_BYTES)).unwrap_or(0);
        Ok(Arena::new(1, bytes).map_err(io::Error::other)?.take_wait())
    }

    /// Fills whole blocks, of which the first `needed` bytes must be there.
    fn read_blocks(&self, block: &mut [u8], start: u64, needed: usize) -> io::Result<()> {
        let whole = span(Direction::Read, start, block, block.len())?;
        match self.read_all(whole, block, needed) {
            // the device ends within the last block, which it does not give in this way
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let part = &mut block[..needed];
                let part_of = span(Direction::Read, start, part, needed)?;
                self.read_all(part_of, part, needed)
            }
            other => other,
        }
    }

    fn read_all(&self, span: Span, buf: &mut [u8], needed: usize) -> io::Result<()> {
        let mut t = Transfer::default();
        while t.done() < needed
            && let Some(step) = t.step(&span, self.align())
        {
            let part = &mut buf[step.buffer()];
            if let TransferProgress::Failed(e) = t.advance(&span, self.read_step(&step, part)) {
                return Err(e);
            }
        }
        Ok(())
    }

    fn write_all(&self, span: Span, buf: &[u8]) -> io::Result<()> {
        let mut t = Transfer::default();
        while let Some(step) = t.step(&span, self.align()) {
            let part = &buf[step.buffer()];
            if let TransferProgress::Failed(e) = t.advance(&span, self.write_step(&step, part)) {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Whether it is a block device, open with `O_DIRECT`.
    fn is_block_device(&self) -> bool {
        use rustix::fs::{FileType, fstat};
        let is_block = |file| {
            fstat(file).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice)
        };
        self.is_direct() && self.via(Via::Main).is_ok_and(is_block)
    }
}

/// The first `len` bytes of `buf`, to be moved to or from `offset`.
fn span(dir: Direction, offset: u64, buf: &[u8], len: usize) -> io::Result<Span> {
    let len = u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let span = Span { dir, offset, memory: address(buf), len };
    span.check()?;
    Ok(span)
}

// Only the low bits matter, and a pointer is never longer than 64 bits here.
fn address(buf: &[u8]) -> u64 {
    buf.as_ptr().addr() as u64
}
