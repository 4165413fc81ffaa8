//! One open volume: a device or file by its descriptors (the main one, perhaps with `O_DIRECT`, and
//! a buffered one for what is not aligned), or an export of an NBD server. What an engine does with
//! it is the same; io_uring needs descriptors.

use super::transfer::{TransferStep, Via};
use mover_nbd::Export;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fmt, io};

/// Descriptors of one device or file, and how its transfers must be aligned. Shared by engines,
/// never by two devices.
pub struct IoFile {
    path: PathBuf,
    behind: Behind,
    align: u32,
}

/// What a volume's bytes are reached through.
enum Behind {
    File {
        main: File,
        /// Present exactly when `main` is opened with `O_DIRECT`.
        buffered: Option<File>,
    },
    Nbd(Arc<Export>),
}

impl IoFile {
    /// Without `O_DIRECT`: nothing needs to be aligned.
    pub fn buffered(path: impl Into<PathBuf>, file: File) -> Self {
        Self { path: path.into(), behind: Behind::File { main: file, buffered: None }, align: 1 }
    }

    /// `main` has `O_DIRECT` and wants offsets, lengths and addresses in multiples of `align` (a
    /// power of two, at most a page); `buffered` is the same device without.
    pub fn direct(path: impl Into<PathBuf>, main: File, buffered: File, align: u32) -> Self {
        assert!(align.is_power_of_two() && align as usize <= rustix::param::page_size());
        let behind = Behind::File { main, buffered: Some(buffered) };
        Self { path: path.into(), behind, align }
    }

    /// An export takes any alignment: it reads and writes whole blocks by itself.
    pub(crate) fn nbd(path: impl Into<PathBuf>, export: Arc<Export>) -> Self {
        Self { path: path.into(), behind: Behind::Nbd(export), align: 1 }
    }

    /// The export, if it is one.
    pub(crate) fn export(&self) -> Option<&Arc<Export>> {
        match &self.behind {
            Behind::File { .. } => None,
            Behind::Nbd(export) => Some(export),
        }
    }

    /// From now on transfers that wait for a server end soon after `stop` is up. The kernel waits
    /// for a device however long it takes.
    pub fn set_cancel_flag(&self, stop: Arc<AtomicBool>) {
        if let Some(export) = self.export() {
            export.set_cancel_flag(stop);
        }
    }

    /// As the user named it; for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        matches!(self.behind, Behind::File { buffered: Some(_), .. })
    }

    /// What offsets, lengths and addresses should be multiples of; 1 without `O_DIRECT`.
    pub fn align(&self) -> u32 {
        self.align
    }

    /// The descriptor for one step of a transfer; an export has none.
    pub(crate) fn via(&self, via: Via) -> io::Result<&File> {
        match (via, &self.behind) {
            (Via::Buffered, Behind::File { buffered: Some(file), .. }) => Ok(file),
            (_, Behind::File { main, .. }) => Ok(main),
            (_, Behind::Nbd(_)) => {
                let what = "an NBD export is no file";
                Err(io::Error::new(io::ErrorKind::Unsupported, what))
            }
        }
    }

    /// The descriptor that was opened first: without `O_DIRECT`, and with the claim on a block
    /// device that is written.
    pub(crate) fn unaligned(&self) -> io::Result<&File> {
        self.via(Via::Buffered)
    }

    /// Reads one step of a transfer, or its front, on the caller's thread.
    pub(super) fn read_step(&self, step: &TransferStep, part: &mut [u8]) -> io::Result<usize> {
        match &self.behind {
            Behind::File { .. } => self.via(step.via)?.read_at(part, step.offset),
            Behind::Nbd(export) => export.read_at(part, step.offset),
        }
    }

    /// Writes one step of a transfer, or its front, on the caller's thread.
    pub(super) fn write_step(&self, step: &TransferStep, part: &[u8]) -> io::Result<usize> {
        match &self.behind {
            Behind::File { .. } => self.via(step.via)?.write_at(part, step.offset),
            Behind::Nbd(export) => export.write_at(part, step.offset),
        }
    }

    /// Makes everything written so far durable, through either descriptor.
    pub fn sync(&self) -> io::Result<()> {
        match &self.behind {
            Behind::File { main, buffered } => {
                // Buffered first: its dirty pages are written by any sync of the file, but an error
                // is reported once per descriptor.
                buffered.as_ref().map_or(Ok(()), File::sync_all)?;
                main.sync_all()
            }
            Behind::Nbd(export) => export.flush(),
        }
    }
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
