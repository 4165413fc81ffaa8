//! What the stages hand to each other.

use crate::volume::io::Slot;
use chunkstore::{ChunkId, ChunkNo, ChunkRef, map::PageSet, seal::SealedEntry};
use std::ops::Range;
use std::sync::Arc;

/// Chunks that are read together into one slot: at most one group of the entry size, aligned to it.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Order in which the map takes the results.
    pub(crate) seq: u64,
    /// First chunk that is read.
    pub(crate) first: ChunkNo,
    /// Which chunks of it are wanted, relative to `first`; ascending. What lies between is read and
    /// ignored.
    pub(crate) wanted: Vec<Range<u16>>,
    /// Bytes to read from the start of `first`.
    pub(crate) read_bytes: u32,
    /// The parent's pages of this window.
    pub(crate) base: Option<Arc<PageSet>>,
}

/// A unit with its bytes.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) unit: Unit,
    pub(crate) slot: Slot,
}

/// What became of one chunk.
#[derive(Debug)]
pub(crate) enum ChunkOutcome {
    /// All zero.
    Zero,
    /// The parent has it here.
    Unchanged(ChunkRef),
    /// A dedup segment names it; this unit claimed it for the run.
    Reused(ChunkRef),
    /// Chunk of this unit's new entry, by its index there.
    New(ChunkId, u16),
    /// This run has it already, at this place.
    Own(ChunkRef),
    /// Another unit of this run is storing it.
    Claimed(ChunkId),
}

/// Results of one unit.
#[derive(Debug)]
pub(crate) struct SealedUnit {
    pub(crate) chunks: Vec<(ChunkNo, ChunkOutcome)>,
    pub(crate) entry: Option<SealedEntry>,
}

/// One step of the map, in `seq` order.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) seq: u64,
    pub(crate) base: Option<Arc<PageSet>>,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Unit(SealedUnit),
    /// These chunks are zero, known without reading.
    Zero(Range<u64>),
    /// Nothing but the pages: the map's right edge needs them.
    Pages,
}
