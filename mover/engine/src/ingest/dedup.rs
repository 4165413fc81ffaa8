//! The repository's dedup segments as the seal threads see them: opened on the first chunk that is
//! new to the parent and to this run, never before. A run that finds nothing new reads none.

use super::stop::Stop;
use chunkstore::{
    ChunkId, ChunkRef, Location, PackId, Repository, Result,
    dedup::{DedupIndex, DedupOptions, Lookup, Scratch},
    repository::{DamagedSet, SegmentInfo},
};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Reading the index may always cost this much: the segments of some days, as long as nobody has
/// merged them.
const WORTH_BYTES_MIN: u64 = 512 << 10;

/// What reading the index may cost a run: an eighth of what it reads from its source, all of which
/// the index might save it to store, and hardly ever does.
pub(crate) fn worth_bytes(source_bytes: u64) -> u64 {
    (source_bytes / 8).max(WORTH_BYTES_MIN)
}

/// Opens the index when it is needed.
#[derive(Debug)]
pub(crate) struct Dedup {
    repo: Arc<Repository>,
    runtime: tokio::runtime::Handle,
    stop: Arc<Stop>,
    opening: Mutex<Option<Opening>>,
    index: OnceLock<DedupIndex>,
    unusable: Unusable,
}

/// What is not relied upon, whatever a segment or the parent says.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) packs: HashSet<PackId>,
    pub(crate) entries: DamagedSet,
}

#[derive(Debug)]
struct Opening {
    segments: Vec<SegmentInfo>,
    options: DedupOptions,
    scratch: Option<Box<dyn Scratch>>,
}

impl Dedup {
    pub(crate) fn new(
        repo: &Arc<Repository>,
        runtime: &tokio::runtime::Handle,
        stop: &Arc<Stop>,
        segments: Vec<SegmentInfo>,
        options: DedupOptions,
        scratch: Option<Box<dyn Scratch>>,
        unusable: Unusable,
    ) -> Self {
        Self {
            repo: Arc::clone(repo),
            runtime: runtime.clone(),
            stop: Arc::clone(stop),
            opening: Mutex::new(Some(Opening { segments, options, scratch })),
            index: OnceLock::new(),
            unusable,
        }
    }

    /// All that is known to be damaged.
    pub(crate) fn damage(&self) -> &DamagedSet {
        &self.unusable.entries
    }

    /// Whether what is stored there is known to be damaged and must be stored again.
    pub(crate) fn damaged(&self, location: &Location) -> bool {
        self.unusable.entries.covers(location)
    }

    /// Where a chunk is stored, if a segment knows and may be trusted.
    pub(crate) fn lookup(&self, id: &ChunkId) -> Result<Option<ChunkRef>> {
        let Some(index) = self.index()? else { return Ok(None) };
        let usable = |l: &Location| !self.unusable.packs.contains(&l.pack) && !self.damaged(l);
        loop {
            match index.lookup(id, usable) {
                Lookup::Absent => return Ok(None),
                Lookup::At(location) => return Ok(Some(ChunkRef { id: *id, location })),
                Lookup::Needs(block) => self.stop.block_on(&self.runtime, index.load(block))?,
            }
        }
    }

    fn index(&self) -> Result<Option<&DedupIndex>> {
        if let Some(index) = self.index.get() {
            return Ok(Some(index));
        }
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(o) = opening.take() {
            let open = DedupIndex::open(&self.repo, o.segments, o.options, o.scratch);
            let index = self.stop.block_on(&self.runtime, open)?;
            return Ok(Some(self.index.get_or_init(|| index)));
        }
        Ok(self.index.get())
    }
}
