//! Collects what is damaged or missing while a backup's data is checked or restored, so that one run
//! finds all of it. Damaged chunks wait until they were looked for elsewhere; those that are not
//! found count as lost.

use super::plan::{Placement, PlanScope};
use super::ranges::RangeSet;
use chunkstore::fetch::EntryAddr;
use chunkstore::map::LostPage;
use chunkstore::{BackupId, ChunkId, ChunkNo, Error, ErrorKind, Location, Result, Setting};
use serde::Serialize;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Damaged chunks that are looked for elsewhere, some 130 bytes each; more count as lost.
const WAITING_MAX: usize = 1 << 18;
/// Errors that are kept until it is known what is lost.
const ERRORS_MAX: usize = 256;

/// Byte ranges of the volume whose data is not there or not right, and the first error that said
/// so.
#[derive(Debug, Default)]
pub(crate) struct Damage(Mutex<DamagedPlace>);

#[derive(Debug, Default)]
struct DamagedPlace {
    ranges: RangeSet,
    first: Option<Error>,
    /// Chunks that may stand elsewhere.
    waiting: Vec<DamagedChunk>,
    errors: Vec<Option<Error>>,
}

/// A chunk that is not right where the map says.
#[derive(Debug)]
pub(crate) struct DamagedChunk {
    pub(crate) chunk: ChunkNo,
    pub(crate) id: ChunkId,
    pub(crate) at: Location,
    /// Which error said so, if it is kept.
    error: usize,
}

/// What a restore that skips damage could not restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedDamage {
    /// Bytes of all ranges.
    pub bytes: u64,
    /// Byte ranges of the volume, ascending. They are zero on the target.
    pub ranges: Vec<SkippedRange>,
    /// What was wrong with the first that was found.
    pub first: String,
}

/// A byte range of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SkippedRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Damage {
    /// Whether an error means that data is damaged, not that something else failed. Data of a newer
    /// version is whole: zeros must not take its place.
    pub(crate) fn is(error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
    }

    /// Takes what is damage; any other error ends the run.
    pub(crate) fn note<'a>(
        &self,
        error: Error,
        scope: &PlanScope,
        places: impl IntoIterator<Item = (EntryAddr, &'a Placement)>,
    ) -> Result<()> {
        if !Self::is(&error) {
            return Err(error);
        }
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = found.errors.len();
        let mut error = Some(error);
        for (EntryAddr { pack, entry, offset, stored_len }, p) in places {
            if found.waiting.len() >= WAITING_MAX {
                found.ranges.insert(scope.clip(p.chunk));
                found.first = found.first.take().or(error.take());
                continue;
            }
            let at = Location { pack, entry, offset, stored_len, index: p.index };
            let damaged = DamagedChunk { chunk: p.chunk, id: p.id, at, error: number };
            found.waiting.push(damaged);
        }
        if number < ERRORS_MAX {
            found.errors.push(error);
        }
        Ok(())
    }

    /// The damaged chunks that were not looked for yet.
    pub(crate) fn take_waiting(&self) -> Vec<DamagedChunk> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).waiting)
    }

    /// These chunks are lost.
    pub(crate) fn lose(&self, chunks: Vec<DamagedChunk>, scope: &PlanScope) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = &mut *found;
        for DamagedChunk { chunk, error, .. } in chunks {
            found.ranges.insert(scope.clip(chunk));
            if found.first.is_none() {
                found.first = found.errors.get_mut(error).and_then(Option::take);
            }
        }
        if found.first.is_none() && !found.ranges.is_empty() {
            let what = "data is damaged, and was not found elsewhere";
            found.first = Some(Error::new(ErrorKind::Corrupt, "read the backup", what));
        }
    }

    /// The same for a run that stops at damage; a run that does not takes none.
    pub(crate) fn take_first_if(&self, stops: bool) -> Option<Error> {
        if stops { self.take_first() } else { None }
    }

    /// The first error of what is lost.
    pub(crate) fn take_first(&self) -> Option<Error> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.ranges.is_empty() { None } else { found.first.take() }
    }

    /// Takes pages of the map that could not be read: all that they say is lost.
    pub(crate) fn note_pages(&self, pages: Vec<LostPage>, scope: &PlanScope) {
        for LostPage { chunks, error, .. } in pages {
            let start = scope.clip(ChunkNo(chunks.start)).start;
            let end = scope.clip(ChunkNo(chunks.end.saturating_sub(1))).end;
            self.insert(error, std::iter::once(start..end.max(start)));
        }
    }

    fn insert(&self, error: Option<Error>, ranges: impl Iterator<Item = Range<u64>>) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.for_each(|range| found.ranges.insert(range));
        if found.first.is_none() {
            found.first = error;
        }
    }

    /// One error for all that was found until now.
    pub(crate) fn to_result(&self, backup: &BackupId) -> Result<()> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = found.first.take() else { return Ok(()) };
        let detail = format!("{} of the volume cannot be restored", found.ranges.describe());
        let error = Error::new(first.kind(), format!("verify backup {backup}"), detail);
        Err(error.caused_by(first))
    }

    /// All that was found, for who has gone on without it. So many ranges that they were not kept
    /// are an error: nobody could tell what of the target is right.
    pub(crate) fn skipped(&self, backup: &BackupId) -> Result<Option<SkippedDamage>> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = &found.first else { return Ok(None) };
        let Some(ranges) = found.ranges.all() else {
            let context = format!("restore what is left of backup {backup}");
            let detail = format!("{} are damaged", found.ranges.describe());
            return Err(Error::new(ErrorKind::Corrupt, context, detail)
                .hint(format!("restore it in parts, with {range}", range = Setting("range"))));
        };
        let range = |r: Range<u64>| SkippedRange { offset: r.start, len: r.end - r.start };
        let ranges = ranges.into_iter().map(range).collect();
        Ok(Some(SkippedDamage { bytes: found.ranges.bytes(), ranges, first: first.to_string() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_lost_may_be_skipped() {
        let is = |kind| Damage::is(&Error::new(kind, "read a chunk", "it is not to be had"));
        assert!(is(ErrorKind::Corrupt) && is(ErrorKind::Missing));
        assert!(!is(ErrorKind::Unsupported), "zeros would stand where newer data is");
        assert!(!is(ErrorKind::Unavailable) && !is(ErrorKind::Bug));
    }
}
