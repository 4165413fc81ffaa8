//! Making ranges of a target read as zeros, in the cheapest way that is sure.
//!
//! Discarding alone is no such way: a device may go on returning the old bytes.
//! `FALLOC_FL_PUNCH_HOLE` promises zeros, on files and (since Linux 4.9) on block devices, and
//! keeps thin volumes thin; `FALLOC_FL_ZERO_RANGE` promises zeros and lets the device write them;
//! else they are written. What promised is looked at once per target and way, since devices lie.
//!
//! Only whole blocks are deallocated; the edges of a range are written. Nothing outside the range
//! is touched.

use super::geometry::DeviceKind;
use super::target::Target;
use crate::volume::io::{Arena, Direction, Slot, transfer_error};
use chunkstore::{Error, ErrorKind, Result, is_zero};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// One call to the kernel zeroes no more than this, so that a signal is seen in time.
const PIECE_BYTES: u64 = 256 << 20;
/// Written at a time.
const WRITE_BYTES: usize = 1 << 20;
/// Files are deallocated in blocks of this size; it is what file systems use, or a multiple.
const FILE_BLOCK_BYTES: u64 = 4096;

/// How a range was zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZeroMethod {
    /// Deallocated; it takes no room in a thin volume.
    Punched,
    /// Zeroed by the device or file system.
    Zeroed,
    /// Written.
    Written,
}

const METHODS: [ZeroMethod; 3] = [ZeroMethod::Punched, ZeroMethod::Zeroed, ZeroMethod::Written];

/// What was learnt about a target's ways of zeroing.
#[derive(Debug, Default)]
pub(super) struct ZeroState {
    /// Position in `METHODS` of the first that is worth trying.
    first: AtomicU8,
    /// By position in `METHODS`: whether its result was looked at.
    proven: [AtomicBool; 2],
    /// One slot of zeros, made when it is needed. Nobody writes anything else into it.
    zeros: OnceLock<Arc<Arena>>,
}

impl Target {
    /// Makes a range read as zeros. The range must lie within the volume and share no 4096-byte
    /// block with a write in flight.
    pub fn deallocate_or_zero(&self, range: Range<u64>) -> Result<ZeroMethod> {
        self.zero_by(range, ZeroMethod::Punched)
    }

    /// As [`deallocate_or_zero`](Self::deallocate_or_zero), but the range keeps its room.
    pub fn zero_in_place(&self, range: Range<u64>) -> Result<ZeroMethod> {
        self.zero_by(range, ZeroMethod::Zeroed)
    }

    /// Whether a range may be made zero without its bytes being written, as far as it is known.
    pub fn can_deallocate(&self) -> bool {
        METHODS.get(usize::from(self.zero.first.load(Ordering::Relaxed)))
            != Some(&ZeroMethod::Written)
    }

    fn zero_by(&self, range: Range<u64>, first: ZeroMethod) -> Result<ZeroMethod> {
        if range.end > self.size_bytes() {
            let what = format!("zero {range:?} of {}", self.path().display());
            return Err(Error::new(ErrorKind::Bug, what, "it ends behind the volume"));
        }
        if range.is_empty() {
            return Ok(ZeroMethod::Punched);
        }
        let body = self.whole_blocks(&range);
        if body.is_empty() {
            self.write_zeros(range)?;
            return Ok(ZeroMethod::Written);
        }
        self.write_zeros(range.start..body.start)?;
        self.write_zeros(body.end..range.end)?;
        let mut worst = ZeroMethod::Punched;
        let mut at = body.start;
        while at < body.end {
            let end = body.end.min(at + PIECE_BYTES);
            worst = worst.max(self.zero_piece(at..end, first)?);
            at = end;
        }
        Ok(worst)
    }

    /// The part of a range that may be deallocated.
    fn whole_blocks(&self, range: &Range<u64>) -> Range<u64> {
        let block = match self.kind() {
            DeviceKind::Block | DeviceKind::Nbd => u64::from(self.logical_block_bytes()),
            DeviceKind::File => FILE_BLOCK_BYTES,
        };
        let start = range.start.next_multiple_of(block);
        // the last block of a file or export may be short
        let at_end = self.kind() != DeviceKind::Block && range.end >= self.device_bytes();
        let end = if at_end { range.end } else { range.end / block * block };
        start..end.max(start)
    }

    fn zero_piece(&self, piece: Range<u64>, wanted: ZeroMethod) -> Result<ZeroMethod> {
        let first = usize::from(self.zero.first.load(Ordering::Relaxed));
        let ways = METHODS.into_iter().enumerate().skip(first);
        for (n, method) in ways.filter(|(_, method)| *method >= wanted) {
            let flags = match method {
                ZeroMethod::Punched => FallocateFlags::PUNCH_HOLE,
                ZeroMethod::Zeroed => FallocateFlags::ZERO_RANGE,
                ZeroMethod::Written => {
                    self.write_zeros(piece)?;
                    return Ok(method);
                }
            };
            match self.allocate(flags, &piece) {
                Ok(()) if self.is_proven(n, &piece)? => return Ok(method),
                // it lied, or cannot do it: never again
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => {
                    // one that was passed by is not judged
                    let [now, next] = [n, n + 1].map(|n| u8::try_from(n).unwrap_or(u8::MAX));
                    let order = Ordering::Relaxed;
                    let _ = self.zero.first.compare_exchange(now, next, order, order);
                }
                // The device failed this time. The next way tells whether it is the device or the
                // way.
                Err(_) => {}
            }
        }
        Err(Error::new(ErrorKind::Bug, "zero a range of the target", "no way is left"))
    }

    fn allocate(
        &self,
        flags: FallocateFlags,
        piece: &Range<u64>,
    ) -> std::result::Result<(), Errno> {
        let (start, len) = (piece.start, piece.end - piece.start);
        if let Some(export) = self.io_file().export() {
            // there is one order, and the server deallocates where it can
            if flags != FallocateFlags::PUNCH_HOLE {
                return Err(Errno::OPNOTSUPP);
            }
            return match export.zero(piece.clone()) {
                Ok(()) => Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Unsupported => Err(Errno::OPNOTSUPP),
                Err(_) => Err(Errno::IO),
            };
        }
        rustix::io::retry_on_intr(|| {
            // The descriptor with the claim on the device: without it the kernel would want to
            // claim it for the call.
            let Ok(file) = self.io_file().unaligned() else { return Err(Errno::OPNOTSUPP) };
            rustix::fs::fallocate(file, flags | FallocateFlags::KEEP_SIZE, start, len)
        })
    }

    /// Whether a way of zeroing is known to work here; looks at this piece if it is the first.
    fn is_proven(&self, n: usize, piece: &Range<u64>) -> Result<bool> {
        let Some(proven) = self.zero.proven.get(n) else { return Ok(true) };
        if proven.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let block = rustix::param::page_size() as u64;
        let mut buf = Arena::new(1, rustix::param::page_size())?.take_wait();
        let middle = piece.start + (piece.end - piece.start) / 2 / block * block;
        for at in [piece.start, middle, piece.end.saturating_sub(block).max(piece.start)] {
            let part = usize::try_from((piece.end - at).min(block)).unwrap_or(0);
            let part = &mut buf[..part];
            part.fill(0xff);
            self.io_file().read_exact_at(part, at).map_err(|e| {
                let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
                transfer_error(Direction::Read, self.path(), at, len, e)
            })?;
            if !is_zero(part) {
                tracing::warn!(
                    device = %self.path().display(),
                    offset = at,
                    method = ?METHODS[n],
                    "the device claims to have zeroed a range and returns other bytes"
                );
                return Ok(false);
            }
        }
        proven.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn write_zeros(&self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let zeros = self.zeros()?;
        let mut at = range.start;
        while at < range.end {
            let rest = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let part = &zeros[..rest.min(zeros.len())];
            self.io_file().write_all_at(part, at).map_err(|e| {
                let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
                transfer_error(Direction::Write, self.path(), at, len, e)
            })?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn zeros(&self) -> Result<Slot> {
        let arena = match self.zero.zeros.get() {
            Some(arena) => arena,
            // two threads may both make one; one of them is dropped
            None => {
                let new = Arena::new(1, WRITE_BYTES)?;
                self.zero.zeros.get_or_init(|| new)
            }
        };
        Ok(arena.take_wait())
    }
}
