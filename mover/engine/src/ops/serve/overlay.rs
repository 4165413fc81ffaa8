//! Writes of clients, beside a backup that stays as it is: a copy-on-write volume
//! ([`live`](crate::live)) whose target is a sparse file, and that fetches nothing unasked.
//!
//! | file | |
//! |---|---|
//! | `header` | pure: the first bytes of the file |
//! | `file` | opened, made, or refused |
//! | `target` | the file, the backup and the journal as parts of the volume |
//!
//! Owns the file and its journal for as long as it serves. Their content is plain text: what
//! clients wrote, and the chunks of the backup around it.
//!
//! Cannot deadlock: a change waits for memory before it begins, and then for the volume alone.
//!
//! Must not: write to the repository; replace a file.

mod file;
mod header;
mod target;

use crate::live::{ChunkBits, CowTarget, CowVolume, FLUSHED_EVERY, Replayed};
use crate::ops::below::{BelowIdentity, ViewSource};
use crate::reading::view::BackupView;
use bytes::Bytes;
use chunkstore::{Error, ErrorKind, Manifest, RepositoryId, Result, random_bytes};
use file::OverlayTerms;
use mover_nbd::server::{Counts, Holes};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use target::{OverlayJournal, OverlayTarget};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Stretches of one answer about blocks.
pub(super) const STRETCHES_MAX: usize = 4096;
/// Steps to one such answer.
const STEPS_MAX: usize = 64;
/// Chunks of one step.
const STEP_CHUNKS: u64 = 4096;

/// Where what clients write is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayPlace {
    /// In this file and its journal, which are made where they are missing, and stay.
    File(PathBuf),
    /// In a file without a name in this directory; it goes with the process.
    Temporary(PathBuf),
}

/// A backup that clients write to.
#[derive(Debug)]
pub(super) struct Overlay {
    cow: Arc<CowVolume<ViewSource, OverlayTarget, OverlayJournal>>,
    /// For chunks that are read because a part of them is written.
    merges: Semaphore,
    /// For messages.
    place: PathBuf,
}

/// Where the bytes of a range are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Nobody has written there: as the backup has it.
    Backup,
    /// In the overlay, as data.
    Data,
    /// In the overlay, as zeros without room.
    Hole,
}

impl Overlay {
    /// Opens or makes what `place` says. `merge_bytes` bounds the memory of changes under way.
    pub(super) fn open(
        rt: &Handle,
        place: &OverlayPlace,
        (repository, manifest, view): (&RepositoryId, &Manifest, &Arc<BackupView>),
        merge_bytes: u64,
    ) -> Result<Arc<Self>> {
        let (size_bytes, chunk_bytes) = (view.size_bytes(), view.chunk_bytes());
        let identity = BelowIdentity::of(repository, manifest, chunk_bytes);
        let terms = OverlayTerms { identity, size_bytes, chunk_bytes };
        let (OverlayPlace::File(path) | OverlayPlace::Temporary(path)) = place;
        let (target, journal) = match place {
            OverlayPlace::File(_) => {
                let opened = file::open_or_make(path, &terms)?;
                let done = opened.read.done.ones();
                let chunks = opened.read.done.chunks();
                let how = if opened.is_old { "goes on with" } else { "has made" };
                tracing::info!("{how} overlay {}, {done} of {chunks} chunks", path.display());
                let journal = OverlayJournal::File(opened.journal);
                (OverlayTarget::new(opened.file, false), (journal, opened.read))
            }
            OverlayPlace::Temporary(_) => {
                let file = file::make_temporary(path, &terms)?;
                (OverlayTarget::new(file, true), (OverlayJournal::None, nothing(&terms)))
            }
        };
        let permits = usize::try_from(merge_bytes / u64::from(chunk_bytes)).unwrap_or(usize::MAX);
        Ok(Arc::new(Self {
            cow: CowVolume::new(rt, ViewSource(Arc::clone(view)), target, journal),
            merges: Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)),
            place: path.clone(),
        }))
    }

    /// Bytes that are read from the overlay, and not from the backup.
    pub(super) fn overlaid_bytes(&self) -> u64 {
        self.cow.figures().done.saturating_mul(self.cow.chunk_bytes()).min(self.cow.size_bytes())
    }

    /// Memory for a change that has to read the backup; others need none.
    async fn memory(&self, range: &Range<u64>) -> io::Result<Option<SemaphorePermit<'_>>> {
        if !self.cow.needs_source(range) {
            return Ok(None);
        }
        self.merges.acquire().await.map(Some).map_err(io::Error::other)
    }

    pub(super) fn expect(&self, range: &Range<u64>) {
        self.cow.expect(range);
    }

    pub(super) async fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<Vec<Range<usize>>> {
        Box::pin(self.cow.read(offset, buf)).await
    }

    pub(super) async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let _memory = self.memory(&(offset..end)).await?;
        Box::pin(self.cow.write(offset, data)).await
    }

    pub(super) async fn zero(&self, range: Range<u64>, holes: Holes) -> io::Result<()> {
        let _memory = self.memory(&range).await?;
        Box::pin(self.cow.zero(range, holes == Holes::Allowed)).await
    }

    /// A hole is made in no time. Whether room is had in no time is not known.
    pub(super) fn is_zero_fast(&self, holes: Holes) -> bool {
        holes == Holes::Allowed && self.cow.target().can_trim()
    }

    pub(super) async fn trim(&self, range: Range<u64>) -> io::Result<()> {
        Box::pin(self.cow.trim(range)).await
    }

    pub(super) async fn flush(&self) -> io::Result<()> {
        self.cow.flush().await
    }

    /// Flushes every so often what clients write; see [`CowVolume::keep_flushed`].
    pub(super) async fn keep_flushed(self: Arc<Self>, served: Arc<Counts>) {
        let changes = || served.changes.load(Ordering::Relaxed);
        Arc::clone(&self.cow).keep_flushed(FLUSHED_EVERY, changes).await;
    }

    /// Where the bytes of a range are, from its start on, maybe not up to its end.
    pub(super) async fn layers(&self, range: Range<u64>) -> io::Result<Vec<(Range<u64>, Layer)>> {
        let mut found: Vec<(Range<u64>, Layer)> = Vec::new();
        let push = |found: &mut Vec<(Range<u64>, Layer)>, range: Range<u64>, layer| match found
            .last_mut()
        {
            Some((last, of)) if *of == layer && last.end == range.start => {
                last.end = range.end;
            }
            _ => found.push((range, layer)),
        };
        let mut at = range.start;
        for _ in 0..STEPS_MAX {
            let step = self.cow.chunk_bytes().saturating_mul(STEP_CHUNKS);
            let part = at..at.saturating_add(step).min(range.end);
            for (part, written) in self.cow.stretches(part.clone()) {
                if !written {
                    at = part.end;
                    push(&mut found, part, Layer::Backup);
                    continue;
                }
                let end = part.end;
                for (part, hole) in self.cow.target().holes(part, STRETCHES_MAX).await? {
                    at = part.end;
                    push(&mut found, part, if hole { Layer::Hole } else { Layer::Data });
                }
                if at < end {
                    return Ok(found);
                }
            }
            if at >= range.end || found.len() >= STRETCHES_MAX {
                break;
            }
        }
        Ok(found)
    }

    /// Waits for changes under way, and makes everything durable. Clients are gone by now.
    pub(super) async fn close(&self) -> Result<()> {
        self.cow.close().await.map_err(|e| not_closed(&self.place, e))
    }
}

fn not_closed(place: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    };
    let place = place.display();
    let context = format!("keep what clients wrote to overlay {place} since their last flush");
    Error::caused(kind, context, e).hint("it may be lost; what they flushed stays")
}

/// An overlay with nothing written.
fn nothing(terms: &OverlayTerms) -> Replayed {
    let terms = terms.journal(random_bytes());
    let done = ChunkBits::none(terms.chunks());
    Replayed { done, terms, number: 0, base_bytes: 0, end: 0, torn_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_flush_that_fails_is_an_error_that_names_the_file() {
        for (of, kind) in [
            (io::ErrorKind::StorageFull, ErrorKind::NoSpace),
            (io::ErrorKind::QuotaExceeded, ErrorKind::NoSpace),
            (io::ErrorKind::Other, ErrorKind::Device),
        ] {
            let e = not_closed(Path::new("/srv/db.overlay"), of.into());
            assert_eq!(e.kind(), kind);
            let told = format!("{e} {:?}", e.hint_text());
            assert!(told.contains("/srv/db.overlay") && told.contains("may be lost"), "{told}");
        }
    }
}
