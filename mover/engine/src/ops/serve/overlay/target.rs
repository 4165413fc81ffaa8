//! What an overlay is made of besides the backup below: the file, and its journal.

use super::header::HEADER_BYTES;
use crate::live::{CowTarget, JournalFile, JournalLog};
use bytes::Bytes;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Zeros that are written at a time, where nothing quicker is to be had.
const ZEROS_BYTES: usize = 256 << 10;

/// The file that has what was written.
#[derive(Debug)]
pub(super) struct OverlayTarget {
    file: Arc<File>,
    /// Nothing of it outlives the process, so nothing is synced.
    is_temporary: bool,
    can_punch: bool,
}

impl OverlayTarget {
    pub(super) fn new(file: File, is_temporary: bool) -> Self {
        // behind the header, where there is nothing
        let can_punch = punch(&file, HEADER_BYTES - 4096..HEADER_BYTES).is_ok();
        Self { file: Arc::new(file), is_temporary, can_punch }
    }

    /// A call on a thread that may wait for the disk. It ends also if nobody waits for it.
    async fn blocking<R: Send + 'static>(
        &self,
        act: impl FnOnce(&File) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let file = Arc::clone(&self.file);
        let task = tokio::task::spawn_blocking(move || act(&file));
        task.await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }

    /// What the file has of a range: stretches side by side, and whether each is a hole. At most so
    /// many of them.
    pub(super) async fn holes(
        &self,
        range: Range<u64>,
        most: usize,
    ) -> io::Result<Vec<(Range<u64>, bool)>> {
        self.blocking(move |file| holes(file, &range, most)).await
    }
}

fn holes(file: &File, range: &Range<u64>, most: usize) -> io::Result<Vec<(Range<u64>, bool)>> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end && found.len() < most {
        let data = match seek(file, SeekFrom::Data(HEADER_BYTES + at)) {
            Ok(data) => data.saturating_sub(HEADER_BYTES).clamp(at, range.end),
            // nothing but a hole up to the end
            Err(Errno::NXIO) => range.end,
            Err(e) => return Err(e.into()),
        };
        if data > at {
            found.push((at..data, true));
        }
        if data < range.end {
            let hole = seek(file, SeekFrom::Hole(HEADER_BYTES + data))?;
            at = hole.saturating_sub(HEADER_BYTES).clamp(data + 1, range.end);
            found.push((data..at, false));
        } else {
            at = data;
        }
    }
    Ok(found)
}

/// Bytes of the file.
fn punch(file: &File, range: Range<u64>) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, range.start, range.end - range.start)
}

fn zero(file: &File, range: Range<u64>, hole: bool) -> io::Result<()> {
    let range = HEADER_BYTES + range.start..HEADER_BYTES + range.end;
    let done = if hole {
        punch(file, range.clone())
    } else {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, range.start, range.end - range.start)
    };
    match done {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
        Err(e) => return Err(e.into()),
    }
    let zeros = vec![0; ZEROS_BYTES];
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).unwrap_or(ZEROS_BYTES).min(ZEROS_BYTES);
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

impl CowTarget for OverlayTarget {
    /// The page cache reads what it needs.
    fn align(&self) -> u64 {
        1
    }

    fn can_trim(&self) -> bool {
        self.can_punch
    }

    async fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.blocking(move |file| {
            let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, HEADER_BYTES + range.start)?;
            Ok(bytes)
        })
        .await
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.blocking(move |file| file.write_all_at(&data, HEADER_BYTES + offset)).await
    }

    async fn zero(&self, range: Range<u64>, hole: bool) -> io::Result<()> {
        self.blocking(move |file| zero(file, range, hole)).await
    }

    async fn sync(&self) -> io::Result<()> {
        if self.is_temporary {
            return Ok(());
        }
        self.blocking(File::sync_data).await
    }
}

/// Where the overlay notes which chunks it has.
#[derive(Debug)]
pub(super) enum OverlayJournal {
    File(JournalFile),
    /// Of a temporary overlay nobody will ask.
    None,
}

impl JournalLog for OverlayJournal {
    async fn append(&self, at: u64, bytes: Vec<u8>) -> io::Result<()> {
        match self {
            Self::File(file) => file.append(at, bytes).await,
            Self::None => Ok(()),
        }
    }

    async fn sync(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.sync().await,
            Self::None => Ok(()),
        }
    }

    async fn replace(&self, bytes: Vec<u8>) -> io::Result<()> {
        match self {
            Self::File(file) => file.replace(bytes).await,
            Self::None => Ok(()),
        }
    }
}
