//! Stage *seal*: N threads that decide what becomes of each chunk and seal the new ones.
//!
//! Work on a chunk in this order: is it zero; its id; has the parent this id here; who of this run
//! stores it (one owner, so nothing is compressed twice); do the dedup segments know it; compress
//! and seal. A thread holds one slot and gives it back before it hands on its result, so a full
//! outbox never keeps the device waiting for slots for ever.

use super::compression::{CompressionController, Spent};
use super::dedup::Dedup;
use super::stop::Stop;
use super::unit::{ChunkOutcome, Filled, SealedUnit, Step, Work};
use crate::run::Progress;
use crate::run::quota::{Bound, Meter};
use chunkstore::{
    ChunkId, ChunkNo, ChunkRef, Geometry, Keys, PackAllocator, Result, Sealer,
    dedup::{DedupReservation, RunTable},
    is_zero,
};
use crossbeam_channel::{Receiver, Sender};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the volume by what became of them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SealStats {
    pub(crate) zero_bytes: u64,
    pub(crate) unchanged_bytes: u64,
    pub(crate) reused_bytes: u64,
    pub(crate) new_bytes: u64,
    pub(crate) stored_bytes: u64,
    /// Waiting for the device.
    pub(crate) idle: Duration,
    /// Waiting to hand results on.
    pub(crate) blocked: Duration,
}

impl SealStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.zero_bytes += other.zero_bytes;
        self.unchanged_bytes += other.unchanged_bytes;
        self.reused_bytes += other.reused_bytes;
        self.new_bytes += other.new_bytes;
        self.stored_bytes += other.stored_bytes;
        self.idle += other.idle;
        self.blocked += other.blocked;
    }
}

#[derive(Clone, Copy)]
pub(crate) struct SealStage<'a> {
    pub(crate) keys: &'a Arc<Keys>,
    pub(crate) geometry: Geometry,
    pub(crate) allocator: &'a PackAllocator,
    pub(crate) table: &'a RunTable,
    pub(crate) level: &'a CompressionController,
    pub(crate) dedup: &'a Dedup,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
}

impl SealStage<'_> {
    pub(crate) fn run(
        self,
        mut sealer: Sealer,
        inbox: &Receiver<Filled>,
        outbox: &Sender<Step>,
    ) -> Result<SealStats> {
        let mut total = SealStats::default();
        let mut since = Instant::now();
        let mut lap = || std::mem::replace(&mut since, Instant::now()).elapsed();
        loop {
            let Ok(filled) = inbox.recv() else { return Ok(total) };
            let mut spent = Spent { idle: lap(), ..Spent::default() };
            if self.stop.stopping() {
                return Ok(total);
            }
            let mut stats = SealStats::default();
            let compression = self.level.compression();
            sealer.set_compression(compression)?;
            let step = match self.unit(&mut sealer, filled, &mut stats)? {
                Ok(step) => step,
                Err(bound) => {
                    self.stop.limit_reached(bound);
                    return Ok(total);
                }
            };
            self.show(&stats);
            spent.busy = lap();
            if outbox.send(step).is_err() {
                return Ok(total);
            }
            spent.blocked = lap();
            (stats.idle, stats.blocked) = (spent.idle, spent.blocked);
            total.add(&stats);
            self.level.sealed(compression, stats.new_bytes, spent);
        }
    }

    /// A bound where the unit does not fit into what the run may still send: nothing came of it
    /// then.
    fn unit(
        &self,
        sealer: &mut Sealer,
        filled: Filled,
        stats: &mut SealStats,
    ) -> Result<Result<Step, Bound>> {
        let Filled { unit, slot } = filled;
        if let Some(Err(bound)) = self.stop.meter().map(Meter::begin_unit) {
            return Ok(Err(bound));
        }
        let chunk_bytes = self.geometry.chunk().bytes() as usize;
        let mut chunks = Vec::with_capacity(unit.wanted.iter().map(ExactSizeIterator::len).sum());
        let mut new: Vec<Range<usize>> = Vec::new();
        let mut new_ids: Vec<ChunkId> = Vec::new();
        for at in unit.wanted.iter().cloned().flatten() {
            let chunk = ChunkNo(unit.first.0 + u64::from(at));
            let start = usize::from(at) * chunk_bytes;
            let bytes = &slot[start..start + self.geometry.len(chunk) as usize];
            let base = unit.base.as_deref();
            let outcome = match self.known(chunk, bytes, base, stats)? {
                Decision::Is(outcome) => outcome,
                Decision::Store(id) => {
                    stats.new_bytes += bytes.len() as u64;
                    // a unit has at most ENTRY_CHUNKS_MAX chunks
                    let index = u16::try_from(new.len()).unwrap_or(u16::MAX);
                    new.push(start..start + bytes.len());
                    new_ids.push(id);
                    ChunkOutcome::New(id, index)
                }
            };
            chunks.push((chunk, outcome));
        }
        let entry = if new.is_empty() {
            None
        } else {
            let (plain, count) = (new.iter().map(|r| r.len() as u64).sum(), new.len() as u64);
            let reserved = match self.stop.meter().map(|m| m.reserve(plain, count)).transpose() {
                Ok(reserved) => reserved,
                Err(bound) => return Ok(Err(bound)),
            };
            let entry = sealer.seal_chunks(self.allocator, &slot, &new, &new_ids)?;
            stats.stored_bytes += entry.bytes.len() as u64;
            if let (Some(meter), Some(reserved)) = (self.stop.meter(), reserved) {
                meter.sealed(reserved, entry.bytes.len() as u64, count);
            }
            Some(entry)
        };
        let work = Work::Unit(SealedUnit { chunks, entry });
        Ok(Ok(Step { seq: unit.seq, base: unit.base, work }))
    }

    /// What can be said of a chunk without storing it.
    fn known(
        &self,
        chunk: ChunkNo,
        bytes: &[u8],
        base: Option<&chunkstore::map::PageSet>,
        stats: &mut SealStats,
    ) -> Result<Decision> {
        let len = bytes.len() as u64;
        if is_zero(bytes) {
            stats.zero_bytes += len;
            return Ok(Decision::Is(ChunkOutcome::Zero));
        }
        let id = self.keys.chunk_id(bytes);
        let parent = base.map(|b| b.chunk(chunk)).transpose()?.flatten();
        if let Some(parent) = parent
            && parent.id == id
            && !self.dedup.damaged(&parent.location)
        {
            stats.unchanged_bytes += len;
            return Ok(Decision::Is(ChunkOutcome::Unchanged(parent)));
        }
        match self.table.claim(&id) {
            DedupReservation::Taken(known) => {
                stats.reused_bytes += len;
                Ok(Decision::Is(match known {
                    Some(location) => ChunkOutcome::Own(ChunkRef { id, location }),
                    None => ChunkOutcome::Claimed(id),
                }))
            }
            DedupReservation::Owner => match self.dedup.lookup(&id)? {
                Some(stored) => {
                    stats.reused_bytes += len;
                    Ok(Decision::Is(ChunkOutcome::Reused(stored)))
                }
                None => Ok(Decision::Store(id)),
            },
        }
    }

    fn show(&self, stats: &SealStats) {
        let p = self.progress;
        p.zero_bytes.add(stats.zero_bytes);
        p.unchanged_bytes.add(stats.unchanged_bytes);
        p.reused_bytes.add(stats.reused_bytes);
        p.new_bytes.add(stats.new_bytes);
        p.stored_bytes.add(stats.stored_bytes);
        p.done_bytes
            .add(stats.zero_bytes + stats.unchanged_bytes + stats.reused_bytes + stats.new_bytes);
    }
}

enum Decision {
    Is(ChunkOutcome),
    Store(ChunkId),
}
