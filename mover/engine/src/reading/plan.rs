//! Pure planning of a restore: from the chunks that a map lists to zero ranges, entries and range
//! reads.
//!
//! [`Planner`] takes the stored chunks of a map in ascending order and cuts them into [`Batch`]es;
//! what lies between them is zero. [`plan_jobs`] turns the chunks of a batch into [`ReadJob`]s: one
//! merged range read each, with the entries in it and, for each entry, which of its chunks go
//! where. A chunk that is referred to several times within a batch is in one job only, with several
//! places. Nothing here does I/O.
//!
//! Invariants: batches follow each other without gaps, from the start of the wanted bytes to their
//! end; every chunk and every zero range lies, clipped, within the wanted bytes.

use super::same::SameChunks;
use chunkstore::{
    ChunkId, ChunkNo, ChunkRef, Error, ErrorKind, Geometry, Location, Result,
    fetch::{EntryAddr, RangeRead, plan_reads},
};
use std::ops::Range;
use std::sync::Arc;

/// One chunk of an entry and where its bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) index: u16,
    pub(crate) chunk: ChunkNo,
    pub(crate) id: ChunkId,
}

/// A chunk that is wanted, and the entry that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) addr: EntryAddr,
    pub(crate) place: Placement,
}

impl Want {
    pub(crate) fn new(chunk: ChunkNo, id: ChunkId, at: &Location) -> Self {
        Self { addr: at.into(), place: Placement { index: at.index, chunk, id } }
    }

    fn key(&self) -> (EntryKey, ChunkNo) {
        (entry_key(&self.addr), self.place.chunk)
    }
}

type EntryKey = ([u8; 32], u32, u32, u32);

/// Order in which range reads name entries: by place. Two references that disagree about an entry
/// name two entries.
fn entry_key(addr: &EntryAddr) -> EntryKey {
    (*addr.pack.as_bytes(), addr.offset, addr.entry, addr.stored_len)
}

/// One entry to open, and the places of its chunks, ascending by chunk number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryWork {
    pub(crate) addr: EntryAddr,
    pub(crate) places: Vec<Placement>,
}

impl EntryWork {
    /// The chunks of this entry that are wanted, with its place: for when it is damaged.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (EntryAddr, &Placement)> + Clone {
        self.places.iter().map(|p| (self.addr, p))
    }

    /// The chunks of this entry that are wanted, as wants again: for when the pack is gone.
    pub(crate) fn wanted(&self) -> Vec<(u32, u16)> {
        self.places.iter().map(|p| (self.addr.entry, p.index)).collect()
    }
}

/// One range read with the entries that it brings.
#[derive(Debug)]
pub(crate) struct ReadJob {
    pub(crate) read: RangeRead,
    pub(crate) entries: Vec<EntryWork>,
}

/// How range reads are merged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadShape {
    /// Bytes that are read for nothing rather than paying for another request.
    pub(crate) gap_bytes: u32,
    /// Longest merged read; one entry may be longer.
    pub(crate) read_bytes_max: u32,
}

/// Sorted by pack, near ones merged, each entry once.
pub(crate) fn plan_jobs(mut wants: Vec<Want>, shape: ReadShape) -> Vec<ReadJob> {
    wants.sort_unstable_by_key(Want::key);
    let mut addrs: Vec<EntryAddr> = wants.iter().map(|w| w.addr).collect();
    addrs.dedup();
    let work = |addr: EntryAddr| {
        let key = entry_key(&addr);
        let from = wants.partition_point(|w| entry_key(&w.addr) < key);
        let of_entry = wants[from..].iter().take_while(|w| w.addr == addr);
        EntryWork { addr, places: of_entry.map(|w| w.place).collect() }
    };
    let with_entries = |read: RangeRead| {
        let entries = read.entries.iter().map(|a| work(*a)).collect();
        ReadJob { read, entries }
    };
    let reads = plan_reads(addrs, shape.gap_bytes, shape.read_bytes_max);
    reads.into_iter().map(with_entries).collect()
}

/// Cuts places, ascending by chunk number, into runs of adjacent chunks: each becomes one write.
pub(crate) fn runs(places: &[Placement], chunks_max: usize) -> impl Iterator<Item = &[Placement]> {
    places
        .chunk_by(|a, b| a.chunk.0.checked_add(1) == Some(b.chunk.0))
        .flat_map(move |run| run.chunks(chunks_max.max(1)))
}

/// A stretch of the volume whose work is planned as one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Stored chunks, in any order.
    pub(crate) wants: Vec<Want>,
    /// Byte ranges that are zero, ascending, merged.
    pub(crate) zero: Vec<Range<u64>>,
    /// Bytes of all `wants`, clipped to what is wanted.
    pub(crate) data_bytes: u64,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.wants.is_empty() && self.zero.is_empty()
    }
}

/// What a planner is for.
#[derive(Debug, Clone)]
pub(crate) struct PlanScope {
    pub(crate) geometry: Geometry,
    /// Bytes of the volume that are wanted; within the volume, not empty.
    pub(crate) want: Range<u64>,
    /// Most chunks in an entry of this repository.
    pub(crate) entry_chunks: u16,
    /// A batch is cut before its data would exceed this; at least one chunk is always in it.
    pub(crate) batch_bytes_max: u64,
    /// Whole chunks of which nothing is to be done.
    pub(crate) same: Option<Arc<SameChunks>>,
}

impl PlanScope {
    /// The wanted bytes of a chunk.
    pub(crate) fn clip(&self, chunk: ChunkNo) -> Range<u64> {
        let start = self.geometry.offset(chunk);
        let end = start + u64::from(self.geometry.len(chunk));
        let start = start.max(self.want.start);
        start..end.min(self.want.end).max(start)
    }

    /// Whether all bytes of a chunk are wanted.
    pub(crate) fn whole(&self, chunk: ChunkNo) -> bool {
        let clip = self.clip(chunk);
        clip.end - clip.start == u64::from(self.geometry.len(chunk))
    }

    /// Chunks that are wanted, even partly.
    pub(crate) fn chunks(&self) -> Range<u64> {
        self.geometry.chunks_of(self.want.clone())
    }

    fn is_same(&self, chunk: ChunkNo) -> bool {
        self.same.as_ref().is_some_and(|same| same.contains(chunk))
    }

    /// For messages.
    pub(crate) fn name(&self, chunk: ChunkNo) -> String {
        name(&self.geometry, chunk)
    }

    /// A page is authentic but may be wrong all the same; what it says decides how much memory is
    /// asked for.
    pub(crate) fn check(&self, want: &Want) -> Result<()> {
        want.addr
            .check_chunk(want.place.index, self.geometry.chunk(), self.entry_chunks)
            .map_err(|e| e.within(format!("read the map entry of {}", self.name(want.place.chunk))))
    }
}

/// Most parts that one zero range is cut into by chunks of which nothing is to be done.
const ZERO_RUNS_MAX: usize = 16_384;

/// A chunk, for messages.
pub(crate) fn name(geometry: &Geometry, chunk: ChunkNo) -> String {
    format!("chunk {} (volume offset {})", chunk.0, geometry.offset(chunk))
}

/// Cuts an ascending stream of stored chunks into batches.
#[derive(Debug)]
pub(crate) struct Planner {
    scope: PlanScope,
    /// First wanted byte that no batch covers yet.
    cursor: u64,
    batch: Batch,
    /// Bytes of stored chunks of which nothing is to be done.
    pub(crate) same_bytes: u64,
}

impl Planner {
    pub(crate) fn new(scope: PlanScope) -> Self {
        let cursor = scope.want.start;
        Self { scope, cursor, batch: Batch::default(), same_bytes: 0 }
    }

    /// The next stored chunk. Gives the batch before it, if that is full.
    pub(crate) fn push(&mut self, chunk: ChunkNo, at: &ChunkRef) -> Result<Option<Batch>> {
        let clip = self.scope.clip(chunk);
        if clip.is_empty() {
            return Ok(None);
        }
        if clip.start < self.cursor {
            let context = format!("plan chunk {}", chunk.0);
            return Err(Error::new(ErrorKind::Bug, context, "chunks do not ascend"));
        }
        if self.scope.is_same(chunk) {
            self.zero_until(clip.start);
            self.cursor = clip.end;
            self.same_bytes += clip.end - clip.start;
            return Ok(None);
        }
        let want = Want::new(chunk, at.id, &at.location);
        self.scope.check(&want)?;
        let len = clip.end - clip.start;
        let is_full = self.batch.data_bytes + len > self.scope.batch_bytes_max;
        let full = (is_full && !self.batch.wants.is_empty()).then(|| self.take());
        self.zero_until(clip.start);
        self.cursor = clip.end;
        self.batch.data_bytes += len;
        self.batch.wants.push(want);
        Ok(full)
    }

    /// What is planned so far; what is zero behind it is left for the next.
    pub(crate) fn take(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// The last batch: all that is wanted and no chunk was named for is zero.
    pub(crate) fn finish(mut self) -> Batch {
        self.zero_until(self.scope.want.end);
        self.batch
    }

    fn zero_until(&mut self, end: u64) {
        if self.cursor >= end {
            return;
        }
        let zero = self.cursor..end;
        self.cursor = end;
        let Some(same) = &self.scope.same else { return self.batch.zero.push(zero) };
        let geometry = &self.scope.geometry;
        for (number, chunks) in same.others(geometry.chunks_of(zero.clone())).enumerate() {
            let start = geometry.offset(ChunkNo(chunks.start)).max(zero.start);
            if number + 1 == ZERO_RUNS_MAX {
                // what is zero there already becomes zero once more
                return self.batch.zero.push(start..zero.end);
            }
            let end = geometry.offset(ChunkNo(chunks.end)).min(zero.end);
            self.batch.zero.push(start..end);
        }
    }
}

#[cfg(test)]
mod tests;
