//! The repository's dedup segments, within a memory budget: chunk id → location.
//!
//! For: seal threads, when neither the parent nor this run knows a chunk. Nothing is read before
//! [`DedupIndex::open`]; callers open the index when the first chunk needs it. Nothing depends on
//! it: a segment that cannot be read, trusted or held is left out, counted and, where something is
//! wrong, warned of; then a chunk may be stored twice.
//!
//! A segment is used as a plain copy in a scratch directory (mapped, no memory of ours), or through
//! its index section in memory (3% of it) with blocks read by range as they are needed. Small
//! segments are copied to scratch at once, others when so much of them was read by range that
//! copying would have been cheaper. So a run that asks for little reads little, however large the
//! repository is, and one that asks for much reads each segment once.
//!
//! The budget: a quarter for bytes on their way, at most half for index sections, the rest for
//! opened blocks.
//!
//! It cannot deadlock: [`DedupIndex::lookup`] never waits, and no lock is held across a request.

use super::blocks::{Blocks, NeededBlock};
use super::opening::{Opened, Opening};
use super::scratch::{Scratch, copy, copy_cost};
use super::segment::{Segment, SegmentLookup};
use crate::error::Error;
use crate::format::names::segment_key;
use crate::ids::ChunkId;
use crate::repository::Repository;
use crate::repository::SegmentInfo;
use crate::units::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks read by range in one run. Beyond, looking further costs more than storing a chunk twice.
const BLOCK_READS_MAX: u64 = 8192;
/// Least memory for opened blocks: some for each thread that asks.
const BLOCK_BYTES_MIN: u64 = 512 << 10;
/// A segment is copied when this part of it was read by range.
const COPY_SHARE: u64 = 4;

/// Bounds of the index.
#[derive(Debug, Clone, Copy)]
pub struct DedupOptions {
    /// Most memory, mapped copies apart.
    pub memory_bytes: u64,
    /// Most bytes that may be read to open it, which is what finding a chunk in it could save; a
    /// request counts as some KiB. Copies in scratch cost nothing.
    pub worth_bytes: u64,
}

/// What is in use, and what it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DedupStats {
    /// Segments that lookups go to.
    pub segments: u64,
    /// Of them, those with a copy in scratch.
    pub copies: u64,
    /// Segments left out for want of memory, because they are not worth it, or because the store
    /// does not answer.
    pub left_out: u64,
    /// Segments left out because they could not be trusted.
    pub damaged: u64,
    /// Records in the segments in use.
    pub records: u64,
    /// Memory in use, mapped copies apart.
    pub memory_bytes: u64,
    /// Blocks read by range.
    pub block_reads: u64,
    /// Lookups that went no further because too many blocks were read.
    pub given_up: u64,
}

/// Answer of [`DedupIndex::lookup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// No segment in use knows it.
    Absent,
    /// It is stored there.
    At(Location),
    /// A block must be loaded first: [`DedupIndex::load`], then ask again.
    Needs(NeededBlock),
}

/// See the module.
#[derive(Debug)]
pub struct DedupIndex {
    repo: Arc<Repository>,
    scratch: Option<Box<dyn Scratch>>,
    segments: Vec<Segment>,
    blocks: Blocks,
    /// Bytes that may be on their way at a time.
    transfer_bytes: u64,
    /// A copy is being made, or cannot be made any more.
    copying: AtomicBool,
    left_out: u64,
    damaged: AtomicU64,
    block_reads: AtomicU64,
    given_up: AtomicU64,
}

impl DedupIndex {
    /// Reads what lookups need: copies in scratch, else trailers and index sections.
    pub async fn open(
        repo: &Arc<Repository>,
        segments: Vec<SegmentInfo>,
        options: DedupOptions,
        scratch: Option<Box<dyn Scratch>>,
    ) -> Self {
        let memory = options.memory_bytes;
        let transfer_bytes = memory / 4;
        let (room, worth) = (memory / 2, options.worth_bytes);
        let opening = Opening::new(repo, scratch.as_deref(), transfer_bytes, room, worth);
        let Opened { segments, index_bytes, left_out, damaged } = opening.run(segments).await;
        let block_bytes = memory.saturating_sub(transfer_bytes).saturating_sub(index_bytes);
        Self {
            repo: Arc::clone(repo),
            scratch,
            segments,
            blocks: Blocks::new(block_bytes.max(BLOCK_BYTES_MIN)),
            transfer_bytes,
            copying: AtomicBool::new(false),
            left_out,
            damaged: AtomicU64::new(damaged),
            block_reads: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    /// What is in use.
    pub fn stats(&self) -> DedupStats {
        let mut stats = DedupStats {
            left_out: self.left_out,
            damaged: self.damaged.load(Ordering::Relaxed),
            memory_bytes: self.blocks.bytes(),
            block_reads: self.block_reads.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
            ..DedupStats::default()
        };
        for segment in self.segments.iter().filter(|s| !s.is_off()) {
            stats.segments += 1;
            stats.copies += u64::from(segment.has_copy());
            stats.records += segment.layout.records;
            stats.memory_bytes += segment.memory_bytes();
        }
        stats
    }

    /// Where a chunk is stored, at a place that is `usable`. Never waits; may be called from any
    /// thread.
    pub fn lookup(&self, id: &ChunkId, usable: impl Fn(&Location) -> bool) -> Lookup {
        for (number, segment) in self.segments.iter().enumerate() {
            let needed = |block| NeededBlock { segment: number, block };
            match segment.find(id, |block| self.blocks.get(needed(block))) {
                Ok(SegmentLookup::At(location)) if usable(&location) => {
                    return Lookup::At(location);
                }
                Ok(SegmentLookup::At(_) | SegmentLookup::Absent) => {}
                Ok(SegmentLookup::Needs(block)) => {
                    if self.block_reads.load(Ordering::Relaxed) < BLOCK_READS_MAX {
                        return Lookup::Needs(needed(block));
                    }
                    self.given_up.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => self.turn_off(segment, &e),
            }
        }
        Lookup::Absent
    }

    /// Reads a block, or copies its segment. If that fails, its segment is left out from now on.
    pub async fn load(&self, needed: NeededBlock) {
        let Some(segment) = self.segments.get(needed.segment) else { return };
        if segment.is_off() || (self.copy_is_due(segment) && self.copy(segment).await) {
            return;
        }
        let range = segment.layout.block(needed.block);
        segment.range_bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
        self.block_reads.fetch_add(1, Ordering::Relaxed);
        let read = self.repo.store().get_range(&segment_key(&segment.id), range).await;
        match read.and_then(|stored| segment.open_block(needed.block, &stored)) {
            Ok(block) => self.blocks.put(needed, block),
            Err(e) => self.turn_off(segment, &e),
        }
    }

    fn turn_off(&self, segment: &Segment, e: &Error) {
        if !segment.turn_off() {
            return;
        }
        tracing::warn!("dedup segment {} is not used any more: {e}", segment.id);
        self.damaged.fetch_add(1, Ordering::Relaxed);
        if let Some(scratch) = self.scratch.as_ref().filter(|_| segment.has_copy()) {
            // the next run gets it from the store again
            scratch.remove(&segment.id);
        }
    }

    fn step_bytes(&self) -> u64 {
        (self.transfer_bytes / 3).min(4 << 20)
    }

    fn copy_is_due(&self, segment: &Segment) -> bool {
        let size = segment.layout.index().end;
        self.scratch.is_some()
            && !segment.has_copy()
            && segment.range_bytes.load(Ordering::Relaxed) >= size / COPY_SHARE
            && copy_cost(&segment.layout, self.step_bytes()) <= self.transfer_bytes
    }

    /// True if lookups in this segment need no block any more.
    async fn copy(&self, segment: &Segment) -> bool {
        let Some(scratch) = &self.scratch else { return false };
        if self.copying.swap(true, Ordering::Acquire) {
            return false;
        }
        let step = self.step_bytes();
        let copied = copy(&self.repo, &segment.id, &segment.layout, scratch.as_ref(), step).await;
        match copied.and_then(|bytes| segment.use_copy(&self.repo, bytes)) {
            Ok(()) => {
                self.copying.store(false, Ordering::Release);
                true
            }
            Err(e) => {
                // a full scratch disk, as a rule: no copies for the rest of the run
                tracing::warn!("dedup segment {} is not copied to scratch: {e}", segment.id);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
