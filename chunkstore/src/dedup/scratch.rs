//! Where plain copies of segments are kept beside a run. The copies are made here; files and
//! mappings are the caller's.

use crate::error::Result;
use crate::format::names::segment_key;
use crate::format::segment::{PlainSegment, SegmentLayout};
use crate::ids::SegmentId;
use crate::repository::Repository;
use std::fmt;
use std::sync::Arc;

/// Bytes of a scratch copy.
pub type ScratchBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Keeps plain copies of segments beside a run: a directory of mapped files. Never trusted.
pub trait Scratch: fmt::Debug + Send + Sync {
    /// The copy, if there is one.
    fn open(&self, segment: &SegmentId) -> Option<ScratchBytes>;
    /// Begins a copy; nothing of it is found before it is finished.
    fn create(&self, segment: &SegmentId) -> Result<Box<dyn ScratchWriter>>;
    /// Forgets a copy that turned out to be damaged.
    fn remove(&self, segment: &SegmentId);
    /// Forgets all copies but those that are still listed.
    fn retain(&self, listed: &dyn Fn(&SegmentId) -> bool);
}

/// A copy being made. Dropped without being finished, it leaves nothing behind.
pub trait ScratchWriter: Send {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Keeps the copy and opens it.
    fn finish(self: Box<Self>) -> Result<ScratchBytes>;
}

/// Memory that [`copy`] takes for a moment: what is fetched, opened and sealed again.
pub(super) fn copy_cost(layout: &SegmentLayout, step_bytes: u64) -> u64 {
    let index = layout.index();
    (index.end - index.start).max(step_bytes).saturating_mul(3)
}

/// Copies a segment from the store, about `step_bytes` at a time.
pub(super) async fn copy(
    repo: &Repository,
    id: &SegmentId,
    layout: &SegmentLayout,
    scratch: &dyn Scratch,
    step_bytes: u64,
) -> Result<ScratchBytes> {
    let mut plain = PlainSegment::new(repo.keys(), repo.id(), id, layout);
    let mut writer = scratch.create(id)?;
    let key = segment_key(id);
    while let Some(range) = plain.wanted(step_bytes) {
        let bytes = repo.store().get_range(&key, range).await?;
        writer.append(&plain.convert(&bytes)?)?;
    }
    writer.append(&plain.finish()?)?;
    writer.finish()
}
