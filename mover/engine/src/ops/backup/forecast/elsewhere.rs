//! What of a sample is stored already, of other volumes and of older backups: looked up in the
//! dedup segments as a run does it, within the same bounds, but without copies in the scratch
//! directory, of which a plan makes none.
//!
//! A pack that a collection is about to delete counts as there; a run looks at it before it
//! commits, and stores such chunks again.

use super::Asking;
use chunkstore::{
    ChunkId, Location, Result,
    dedup::{DedupIndex, DedupOptions, Lookup},
    repository::{DamagedSet, SegmentInfo},
};
use std::time::{Duration, Instant};

/// Blocks that are read for it: some ten MiB. What would need more counts as new, and as unknown.
const LOADS_MAX: u64 = 256;

/// The segments, opened on the first chunk that is new to the parent and to the sample.
pub(super) struct Elsewhere<'a> {
    asking: &'a Asking<'a>,
    damaged: &'a DamagedSet,
    options: DedupOptions,
    segments: Vec<SegmentInfo>,
    index: Option<DedupIndex>,
    loads: u64,
    /// Not all that was asked could be answered.
    pub(super) unknown: bool,
    /// For the store.
    pub(super) waited: Duration,
}

impl<'a> Elsewhere<'a> {
    pub(super) fn new(
        asking: &'a Asking<'a>,
        damaged: &'a DamagedSet,
        segments: Vec<SegmentInfo>,
        options: DedupOptions,
    ) -> Self {
        Self {
            asking,
            damaged,
            options,
            segments,
            index: None,
            loads: 0,
            unknown: false,
            waited: Duration::ZERO,
        }
    }

    /// Whether a run would find the chunk.
    pub(super) fn has(&mut self, id: &ChunkId) -> Result<bool> {
        let since = Instant::now();
        let found = self.look_up(id);
        self.waited += since.elapsed();
        found
    }

    fn look_up(&mut self, id: &ChunkId) -> Result<bool> {
        let (asking, damaged) = (self.asking, self.damaged);
        let index = match self.index.take() {
            Some(index) => index,
            None => {
                let segments = std::mem::take(&mut self.segments);
                let open = DedupIndex::open(asking.repo, segments, self.options, None);
                asking.wait(async { Ok(open.await) })?
            }
        };
        let index = self.index.insert(index);
        let sound = |l: &Location| !damaged.covers(l);
        loop {
            match index.lookup(id, sound) {
                Lookup::Absent => return Ok(false),
                Lookup::At(_) => return Ok(true),
                Lookup::Needs(_) if self.loads >= LOADS_MAX => {
                    self.unknown = true;
                    return Ok(false);
                }
                Lookup::Needs(block) => {
                    self.loads += 1;
                    asking.wait(async {
                        index.load(block).await;
                        Ok(())
                    })?;
                }
            }
        }
    }
}
