//! One open device or file: the main descriptor, perhaps with `O_DIRECT`, and a buffered one for what is not aligned.

use super::transfer::{Progress, Transfer, Via};
use crate::io::Direction;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Descriptors of one device or file, and how its transfers must be aligned. Shared by engines, never by two devices.
pub struct IoFile {
    path: PathBuf,
    main: File,
    /// Present exactly when `main` is opened with `O_DIRECT`.
    buffered: Option<File>,
    align: u32,
}

impl IoFile {
    /// Without `O_DIRECT`: nothing needs to be aligned.
    pub fn buffered(path: impl Into<PathBuf>, file: File) -> Self {
        Self { path: path.into(), main: file, buffered: None, align: 1 }
    }

    /// `main` has `O_DIRECT` and wants offsets, lengths and addresses in multiples of `align` (a power of two, at most a page);
    /// `buffered` is the same device without.
    pub fn direct(path: impl Into<PathBuf>, main: File, buffered: File, align: u32) -> Self {
        assert!(align.is_power_of_two() && align as usize <= rustix::param::page_size());
        Self { path: path.into(), main, buffered: Some(buffered), align }
    }

    /// As the user named it; for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.buffered.is_some()
    }

    /// What offsets, lengths and addresses should be multiples of; 1 without `O_DIRECT`.
    pub fn align(&self) -> u32 {
        self.align
    }

    /// The descriptor for one step of a transfer.
    pub(crate) fn via(&self, via: Via) -> &File {
        match (via, &self.buffered) {
            (Via::Buffered, Some(file)) => file,
            _ => &self.main,
        }
    }

    /// The descriptor that was opened first: without `O_DIRECT`, and with the claim on a block device that is written.
    pub(crate) fn unaligned(&self) -> &File {
        self.via(Via::Buffered)
    }

    /// Fills `buf` from `offset` on, on the caller's thread. An end of the file before that is `UnexpectedEof`. At most
    /// 1 GiB; memory that is not aligned goes through the page cache.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut t = Transfer::new(Direction::Read, offset, address(buf), buf.len())?;
        while let Some(step) = t.step(self.align) {
            let part = &mut buf[step.buffer()];
            if let Progress::Failed(e) = t.advance(self.via(step.via).read_at(part, step.offset)) {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Writes all of `buf`, at most 1 GiB, at `offset`, on the caller's thread.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut t = Transfer::new(Direction::Write, offset, address(buf), buf.len())?;
        while let Some(step) = t.step(self.align) {
            let part = &buf[step.buffer()];
            if let Progress::Failed(e) = t.advance(self.via(step.via).write_at(part, step.offset)) {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Makes everything written so far durable, through either descriptor.
    pub fn sync(&self) -> io::Result<()> {
        // Buffered first: its dirty pages are written by any sync of the file, but an error is reported once per descriptor.
        if let Some(file) = &self.buffered {
            file.sync_all()?;
        }
        self.main.sync_all()
    }
}

// Only the low bits matter, and a pointer is never longer than 64 bits here.
fn address(buf: &[u8]) -> u64 {
    buf.as_ptr().addr() as u64
}

impl fmt::Debug for IoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoFile")
            .field("path", &self.path)
            .field("direct", &self.is_direct())
            .field("align", &self.align)
            .finish_non_exhaustive()
    }
}
