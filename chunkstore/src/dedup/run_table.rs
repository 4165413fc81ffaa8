//! The chunks that this run stores itself: who stores which, and where they went.
//!
//! For: seal threads, which ask before they compress, so that a chunk that occurs twice in a volume is stored once. Owns
//! the table and nothing else. Must not: do I/O, or grow beyond its bound.
//!
//! Mechanism: shards, each an open-addressing table of fixed-size slots under its own lock. The ids are keyed hashes, so
//! their own bytes are the hash. A shard doubles until its share of the bound is reached; then slots whose record was
//! drained into a segment make room, and when there are none, new chunks go unrecorded: they are stored, perhaps twice.
//!
//! Invariants: an id has at most one slot; a slot with waiters is never removed, so whoever was told [`Claim::Taken`] gets
//! the location or learns that the owner gave up.
//!
//! It cannot deadlock: no method takes two locks of shards, the lock of the pack list is innermost, and [`RunTable::wait`]
//! waits for an owner, which never waits between [`RunTable::claim`] and [`RunTable::publish`]. An owner that fails calls
//! [`RunTable::abandon`]; a run that ends early calls [`RunTable::close`].

use crate::format::segment::SegmentRecord;
use crate::ids::{ChunkId, PackId};
use crate::units::Location;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Slots of a shard when its first chunk arrives.
const SHARD_SLOTS_MIN: usize = 16;

/// Answer to [`RunTable::claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The caller stores it and then calls [`RunTable::publish`], or [`RunTable::abandon`]. Until then it must wait for
    /// nothing that another thread does.
    Owner,
    /// Somebody stored it (the location is known), or is about to: then call [`RunTable::wait`] for it, exactly once.
    Taken(Option<Location>),
}

/// Figures for the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunTableStats {
    /// Chunks in the table.
    pub entries: u64,
    /// Bytes of its slots now.
    pub memory_bytes: u64,
    /// Chunks that were stored without being recorded because the table was full.
    pub unrecorded: u64,
}

/// Chunk id → location of everything this run has stored, as far as its bound allows.
#[derive(Debug)]
pub struct RunTable {
    shards: Box<[Shard]>,
    packs: Mutex<Packs>,
    shard_slots_max: usize,
    closed: AtomicBool,
    unrecorded: AtomicU64,
}

#[derive(Debug, Default)]
struct Packs {
    ids: Vec<PackId>,
    numbers: HashMap<PackId, u32>,
}

#[derive(Debug, Default)]
struct Shard {
    table: Mutex<Table>,
    /// A slot with waiters changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    used: usize,
    /// Used slots whose record was drained.
    drained: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Empty,
    Claimed,
    /// The owner gave up while others waited.
    Abandoned,
    Stored,
    Drained,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    id: [u8; 32],
    pack: u32,
    entry: u32,
    offset: u32,
    stored_len: u32,
    index: u16,
    state: State,
    /// Callers that were told `Taken` before the location was known. At its maximum it stays: that slot is kept for good.
    waiters: u8,
}

impl RunTable {
    /// A table of at most `memory_bytes`; it starts small.
    pub fn new(memory_bytes: u64) -> Self {
        let share = usize::try_from(memory_bytes).unwrap_or(usize::MAX) / SHARDS;
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            packs: Mutex::default(),
            shard_slots_max: share / size_of::<Slot>(),
            closed: AtomicBool::new(false),
            unrecorded: AtomicU64::new(0),
        }
    }

    /// Who stores this chunk? Exactly one caller becomes the owner of an id while the table has room for it.
    pub fn claim(&self, id: &ChunkId) -> Claim {
        let (shard, hash) = self.shard(id);
        let mut table = lock(&shard.table);
        if let Some(at) = table.find(hash, id) {
            let slot = &mut table.slots[at];
            return match slot.state {
                State::Stored | State::Drained => {
                    let slot = *slot;
                    drop(table);
                    Claim::Taken(Some(self.location_of(&slot)))
                }
                State::Abandoned => {
                    slot.state = State::Claimed;
                    Claim::Owner
                }
                State::Claimed | State::Empty => {
                    slot.waiters = slot.waiters.saturating_add(1);
                    Claim::Taken(None)
                }
            };
        }
        if !table.make_room(self.shard_slots_max) {
            drop(table);
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
            return Claim::Owner;
        }
        table.insert(hash, Slot { id: *id.as_bytes(), state: State::Claimed, ..Slot::default() });
        Claim::Owner
    }

    /// The owner has sealed it: this is where it will be. Unrecorded chunks are ignored.
    pub fn publish(&self, id: &ChunkId, location: &Location) {
        let pack = self.pack_number(&location.pack);
        let (shard, hash) = self.shard(id);
        let mut table = lock(&shard.table);
        let Some(at) = table.find(hash, id) else { return };
        let slot = &mut table.slots[at];
        if matches!(slot.state, State::Stored | State::Drained) {
            return;
        }
        slot.pack = pack;
        slot.entry = location.entry;
        slot.offset = location.offset;
        slot.stored_len = location.stored_len;
        slot.index = location.index;
        slot.state = State::Stored;
        if slot.waiters > 0 {
            shard.changed.notify_all();
        }
    }

    /// The owner could not store it; the next caller that claims it becomes its owner.
    pub fn abandon(&self, id: &ChunkId) {
        let (shard, hash) = self.shard(id);
        let mut table = lock(&shard.table);
        let Some(at) = table.find(hash, id) else { return };
        let slot = &mut table.slots[at];
        if slot.state != State::Claimed {
            return;
        }
        if slot.waiters > 0 {
            slot.state = State::Abandoned;
            shard.changed.notify_all();
        } else {
            table.remove(at);
        }
    }

    /// Waits for the owner of a chunk for which [`Claim::Taken`] came without a location; once for each such answer.
    /// `None`: the owner gave up, or the table was closed.
    pub fn wait(&self, id: &ChunkId) -> Option<Location> {
        let (shard, hash) = self.shard(id);
        let mut table = lock(&shard.table);
        loop {
            let at = table.find(hash, id)?;
            let slot = &mut table.slots[at];
            if slot.state == State::Claimed && !self.closed.load(Ordering::Acquire) {
                table = shard.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if slot.waiters != u8::MAX {
                slot.waiters = slot.waiters.saturating_sub(1);
            }
            let slot = *slot;
            return match slot.state {
                State::Stored | State::Drained => {
                    drop(table);
                    Some(self.location_of(&slot))
                }
                State::Abandoned if slot.waiters == 0 => {
                    table.remove(at);
                    None
                }
                State::Abandoned | State::Claimed | State::Empty => None,
            };
        }
    }

    /// Where a chunk of this run is, if that is known.
    pub fn location(&self, id: &ChunkId) -> Option<Location> {
        let (shard, hash) = self.shard(id);
        let table = lock(&shard.table);
        let slot = table.slots[table.find(hash, id)?];
        drop(table);
        matches!(slot.state, State::Stored | State::Drained).then(|| self.location_of(&slot))
    }

    /// Wakes everyone in [`Self::wait`]; from now on it does not wait. For a run that ends early.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for shard in &self.shards {
            let _held = lock(&shard.table);
            shard.changed.notify_all();
        }
    }

    /// At most `records_max` records of chunks whose pack is `uploaded`, ascending by id, for a segment. Each chunk is given out once;
    /// it stays known, but makes room when the table is full.
    pub fn drain(
        &self,
        records_max: usize,
        uploaded: impl Fn(&PackId) -> bool,
    ) -> Vec<SegmentRecord> {
        let ready: Vec<bool> = lock(&self.packs).ids.iter().map(uploaded).collect();
        let is_ready = |slot: &Slot| {
            slot.state == State::Stored && ready.get(slot.pack as usize).copied().unwrap_or(false)
        };
        let mut taken: Vec<SegmentRecord> = Vec::new();
        for shard in &self.shards {
            let mut table = lock(&shard.table);
            let packs = lock(&self.packs);
            let mut drained = 0;
            for slot in table.slots.iter_mut().filter(|s| is_ready(s)) {
                if taken.len() >= records_max {
                    break;
                }
                slot.state = State::Drained;
                drained += 1;
                taken.push(SegmentRecord {
                    id: ChunkId::from_bytes(slot.id),
                    location: packs.location(slot),
                });
            }
            table.drained += drained;
        }
        taken.sort_unstable_by_key(|r| r.id);
        taken
    }

    /// Figures for the summary, and to see when a drain is due.
    pub fn stats(&self) -> RunTableStats {
        let mut stats = RunTableStats {
            unrecorded: self.unrecorded.load(Ordering::Relaxed),
            ..RunTableStats::default()
        };
        for shard in &self.shards {
            let table = lock(&shard.table);
            stats.entries += table.used as u64;
            stats.memory_bytes += (table.slots.capacity() * size_of::<Slot>()) as u64;
        }
        stats
    }

    /// Chunks that fit.
    pub fn capacity(&self) -> u64 {
        (load_max(self.shard_slots_max) * SHARDS) as u64
    }

    fn shard(&self, id: &ChunkId) -> (&Shard, u64) {
        let bytes = id.as_bytes();
        let mut hash = [0; 8];
        hash.copy_from_slice(&bytes[8..16]);
        (&self.shards[usize::from(bytes[0]) % SHARDS], u64::from_le_bytes(hash))
    }

    fn pack_number(&self, pack: &PackId) -> u32 {
        let mut packs = lock(&self.packs);
        if let Some(&number) = packs.numbers.get(pack) {
            return number;
        }
        // a run of 2^32 packs would hold 2^57 bytes at least
        let number = u32::try_from(packs.ids.len()).unwrap_or(u32::MAX);
        packs.ids.push(*pack);
        packs.numbers.insert(*pack, number);
        number
    }

    fn location_of(&self, slot: &Slot) -> Location {
        lock(&self.packs).location(slot)
    }
}

impl Packs {
    fn location(&self, slot: &Slot) -> Location {
        Location {
            pack: self.ids[slot.pack as usize],
            entry: slot.entry,
            offset: slot.offset,
            stored_len: slot.stored_len,
            index: slot.index,
        }
    }
}

/// Slots of a table of `slots` that may be used; one always stays empty, which ends every probe.
fn load_max(slots: usize) -> usize {
    slots - slots.div_ceil(8)
}

impl Table {
    fn home(&self, hash: u64) -> usize {
        // the high half of the product spreads the hash over any number of slots
        let wide = u128::from(hash) * (self.slots.len() as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    fn find(&self, hash: u64, id: &ChunkId) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let slot = &self.slots[at];
            if slot.state == State::Empty {
                return None;
            }
            if slot.id == *id.as_bytes() {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// Makes sure that one more slot may be used; false if the bound forbids it.
    fn make_room(&mut self, slots_max: usize) -> bool {
        if self.used < load_max(self.slots.len()) {
            return true;
        }
        let larger = (self.slots.len() * 2).max(SHARD_SLOTS_MIN).min(slots_max);
        if larger > self.slots.len() && load_max(larger) > self.used {
            self.rebuild(larger, |_| true);
        } else if self.drained > 0 {
            self.rebuild(self.slots.len(), |s| s.state != State::Drained || s.waiters > 0);
        }
        self.used < load_max(self.slots.len())
    }

    fn rebuild(&mut self, slots: usize, keep: impl Fn(&Slot) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); slots]);
        self.used = 0;
        self.drained = 0;
        for slot in old.into_iter().filter(|s| s.state != State::Empty && keep(s)) {
            self.drained += usize::from(slot.state == State::Drained);
            self.insert(hash_of(&slot), slot);
        }
    }

    fn insert(&mut self, hash: u64, slot: Slot) {
        let mut at = self.home(hash);
        while self.slots[at].state != State::Empty {
            at = self.after(at);
        }
        self.slots[at] = slot;
        self.used += 1;
    }

    /// Closes the gap by moving later slots of the same probe back.
    fn remove(&mut self, at: usize) {
        let mut hole = at;
        self.slots[hole] = Slot::default();
        self.used -= 1;
        let mut next = self.after(hole);
        while self.slots[next].state != State::Empty {
            let home = self.home(hash_of(&self.slots[next]));
            // `next` may move if its home is not cyclically within (hole, next]
            let stays =
                if hole < next { hole < home && home <= next } else { hole < home || home <= next };
            if !stays {
                self.slots[hole] = std::mem::take(&mut self.slots[next]);
                hole = next;
            }
            next = self.after(next);
        }
    }
}

fn hash_of(slot: &Slot) -> u64 {
    let mut hash = [0; 8];
    hash.copy_from_slice(&slot.id[8..16]);
    u64::from_le_bytes(hash)
}

/// A poisoned lock is taken all the same: slots are plain data, changed in single steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
