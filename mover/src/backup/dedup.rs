//! The repository's dedup segments as the seal threads see them: opened on the first chunk that is new to the parent and to
//! this run, never before. A run that finds nothing new reads none.

use chunkstore::{
    ChunkId, ChunkRef, DamagedSet, DedupIndex, DedupOptions, Location, Lookup, PackId, Repository,
    Result, Scratch, SegmentInfo,
};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Opens the index when it is needed.
#[derive(Debug)]
pub(crate) struct Dedup {
    repo: Arc<Repository>,
    runtime: tokio::runtime::Handle,
    opening: Mutex<Option<Opening>>,
    index: OnceLock<DedupIndex>,
    excluded: HashSet<PackId>,
    damaged: DamagedSet,
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
        segments: Vec<SegmentInfo>,
        options: DedupOptions,
        scratch: Option<Box<dyn Scratch>>,
        excluded: HashSet<PackId>,
        damaged: DamagedSet,
    ) -> Self {
        Self {
            repo: Arc::clone(repo),
            runtime: runtime.clone(),
            opening: Mutex::new(Some(Opening { segments, options, scratch })),
            index: OnceLock::new(),
            excluded,
            damaged,
        }
    }

    /// Whether what is stored there is known to be damaged and must be stored again.
    pub(crate) fn damaged(&self, location: &Location) -> bool {
        self.damaged.contains(&location.pack, location.entry)
    }

    /// Where a chunk is stored, if a segment knows and may be trusted.
    pub(crate) fn lookup(&self, id: &ChunkId) -> Result<Option<ChunkRef>> {
        let Some(index) = self.index()? else { return Ok(None) };
        let usable = |l: &Location| !self.excluded.contains(&l.pack) && !self.damaged(l);
        loop {
            match index.lookup(id, usable) {
                Lookup::Absent => return Ok(None),
                Lookup::At(location) => return Ok(Some(ChunkRef { id: *id, location })),
                Lookup::Needs(block) => self.runtime.block_on(index.load(block)),
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
            let index = self.runtime.block_on(open);
            return Ok(Some(self.index.get_or_init(|| index)));
        }
        Ok(self.index.get())
    }
}
