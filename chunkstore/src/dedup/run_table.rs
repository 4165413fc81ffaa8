//! The chunks that this run has met: who stores which, and where they are.
//!
//! For: seal threads, which ask before they compress, so that a chunk that occurs twice in a volume
//! is looked up and stored once. Owns the table and nothing else. Must not: do I/O, wait, or grow
//! beyond its bound.
//!
//! Mechanism: shards, each an open-addressing table of fixed-size slots under its own lock. The ids
//! are keyed hashes, so their own bytes are the hash. A shard doubles until its share of the bound
//! is reached; after that it forgets half of what it knows, whichever half, each time it is full.
//! What is forgotten may be stored twice, no more.
//!
//! Invariants: an id has at most one slot; a slot is not forgotten while its owner has not
//! published it, nor while somebody who was told [`DedupReservation::Taken`] without a location has not asked
//! for it with [`RunTable::settle`].
//!
//! It cannot deadlock: nothing waits, no method takes the locks of two shards, and the lock of the
//! pack list is innermost.

use crate::ids::{ChunkId, PackId};
use crate::units::Location;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Slots of a shard when its first chunk arrives.
const SHARD_SLOTS_MIN: usize = 16;

/// Answer to [`RunTable::claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupReservation {
    /// The caller finds or stores it, and says where with [`RunTable::publish`].
    Owner,
    /// Somebody has stored it (the location is known), or is about to: then [`RunTable::settle`]
    /// gives the location later.
    Taken(Option<Location>),
}

/// Figures for the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunTableStats {
    /// Chunks in the table.
    pub entries: u64,
    /// Bytes of its slots now.
    pub memory_bytes: u64,
    /// Chunks that were forgotten to make room.
    pub forgotten: u64,
    /// Chunks that found no room at all.
    pub unrecorded: u64,
}

/// Chunk id → location of everything this run has met, as far as its bound allows.
#[derive(Debug)]
pub struct RunTable {
    shards: Box<[Mutex<Table>]>,
    packs: Mutex<Packs>,
    shard_slots_max: usize,
    unrecorded: AtomicU64,
}

#[derive(Debug, Default)]
struct Packs {
    ids: Vec<PackId>,
    numbers: HashMap<PackId, u32>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    used: usize,
    /// Times that it was full; chooses which half is forgotten.
    rounds: u32,
    forgotten: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Empty,
    Claimed,
    Stored,
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
    /// Claims that were answered before the location was known, and are not settled. At its maximum
    /// it stays: such a slot is kept for good.
    unsettled: u8,
}

impl RunTable {
    /// A table of at most `memory_bytes`; it starts small.
    pub fn new(memory_bytes: u64) -> Self {
        // some shards are being rebuilt at any time, and take twice their share meanwhile
        let share = usize::try_from(memory_bytes).unwrap_or(usize::MAX) / (SHARDS + SHARDS / 8);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            packs: Mutex::default(),
            shard_slots_max: share / size_of::<Slot>(),
            unrecorded: AtomicU64::new(0),
        }
    }

    /// Who stores this chunk? Exactly one caller becomes the owner of an id, as long as the table
    /// remembers it.
    pub fn claim(&self, id: &ChunkId) -> DedupReservation {
        let (mut table, hash) = self.shard(id);
        if let Some(at) = table.find(hash, id) {
            let slot = &mut table.slots[at];
            if slot.state == State::Stored {
                let slot = *slot;
                drop(table);
                return DedupReservation::Taken(Some(self.location_of(&slot)));
            }
            slot.unsettled = slot.unsettled.saturating_add(1);
            return DedupReservation::Taken(None);
        }
        if table.make_room(self.shard_slots_max) {
            table.insert(
                hash,
                Slot { id: *id.as_bytes(), state: State::Claimed, ..Slot::default() },
            );
        } else {
            drop(table);
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
        }
        DedupReservation::Owner
    }

    /// The owner knows where it is, or will be. A chunk that found no room is ignored.
    pub fn publish(&self, id: &ChunkId, location: &Location) {
        let pack = self.pack_number(&location.pack);
        let (mut table, hash) = self.shard(id);
        let Some(at) = table.find(hash, id) else { return };
        let slot = &mut table.slots[at];
        if slot.state == State::Claimed {
            slot.pack = pack;
            slot.entry = location.entry;
            slot.offset = location.offset;
            slot.stored_len = location.stored_len;
            slot.index = location.index;
            slot.state = State::Stored;
        }
    }

    /// For each [`DedupReservation::Taken`] without a location, until it gives one, and then no more: where
    /// the chunk is, if its owner has published it.
    pub fn settle(&self, id: &ChunkId) -> Option<Location> {
        let (mut table, hash) = self.shard(id);
        let at = table.find(hash, id)?;
        let slot = &mut table.slots[at];
        if slot.state != State::Stored {
            return None;
        }
        if slot.unsettled != u8::MAX {
            slot.unsettled = slot.unsettled.saturating_sub(1);
        }
        let slot = *slot;
        drop(table);
        Some(self.location_of(&slot))
    }

    /// Figures for the summary.
    pub fn stats(&self) -> RunTableStats {
        let unrecorded = self.unrecorded.load(Ordering::Relaxed);
        let mut stats = RunTableStats { unrecorded, ..RunTableStats::default() };
        for shard in &self.shards {
            let table = lock(shard);
            stats.entries += table.used as u64;
            stats.memory_bytes += (table.slots.capacity() * size_of::<Slot>()) as u64;
            stats.forgotten += table.forgotten;
        }
        stats
    }

    /// Chunks that fit.
    pub fn capacity(&self) -> u64 {
        (load_max(self.shard_slots_max) * SHARDS) as u64
    }

    fn shard(&self, id: &ChunkId) -> (MutexGuard<'_, Table>, u64) {
        let bytes = id.as_bytes();
        (lock(&self.shards[usize::from(bytes[0]) % SHARDS]), hash_of(bytes))
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
            return true;
        }
        let before = self.used;
        let bit = self.rounds % 32;
        self.rounds = self.rounds.wrapping_add(1);
        self.rebuild(self.slots.len(), |slot| {
            // low bits of the hash: the high ones say where a slot stands
            let kept_half = hash_of(&slot.id) >> bit & 1 == 1;
            slot.state != State::Stored || slot.unsettled > 0 || kept_half
        });
        self.forgotten += (before - self.used) as u64;
        self.used < load_max(self.slots.len())
    }

    fn rebuild(&mut self, slots: usize, keep: impl Fn(&Slot) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); slots]);
        self.used = 0;
        for slot in old.into_iter().filter(|s| s.state != State::Empty && keep(s)) {
            self.insert(hash_of(&slot.id), slot);
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
}

fn hash_of(id: &[u8; 32]) -> u64 {
    let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h, ..] = *id;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// A poisoned lock is taken all the same: slots are plain data, changed in single steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
