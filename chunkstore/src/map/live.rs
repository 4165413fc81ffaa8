//! Which stored chunks and pages something refers to, at two bits for each stored chunk.
//!
//! For: a mark over a whole repository (garbage collection, check). It is filled from references
//! alone: no pack, no directory is read for it.
//!
//! Mechanism: a pack is a row of slots, entry after entry, as many for an entry as the highest
//! index seen in it needs (an entry that nobody refers to has one). One bit of a slot says whether
//! the chunk is live, the other whether the entry ends there. An entry never has more slots than
//! chunks, so two bits a stored chunk are the most; a pack adds about 150 bytes. References come
//! mostly in the order of storing: then the entry is found from where the last one was, and new
//! slots go to the end. In any other order it is a scan over words, and a shift of what lies
//! behind. Who has to know how many references there are lets them be counted: exactly, in as many
//! more bits of each slot of a pack as the references to the most referred to of its chunks need.
//! A pack that nothing refers to twice needs none.

use crate::error::{Error, ErrorKind, Result};
use crate::format::location::is_possible;
use crate::format::names::pack_key;
use crate::ids::PackId;
use crate::units::Location;
use std::collections::HashMap;

/// Live chunks and pages, by pack.
#[derive(Debug)]
pub struct LiveSet {
    entry_chunks: u16,
    /// Whether the references to a chunk are counted.
    counting: bool,
    numbers: HashMap<PackId, u32>,
    packs: Vec<LivePack>,
    /// References mostly name the pack that the one before named.
    last: Option<(PackId, u32)>,
}

/// What is live of one pack.
#[derive(Debug, Default)]
pub struct LivePack {
    live: Bits,
    ends: Bits,
    /// How many references there are to a chunk beside the first, the lowest bits first: as many
    /// rows as the highest count needs.
    more: Vec<Bits>,
    /// Number and first slot of the entry that was looked for last.
    cursor: (u32, u32),
    entries: u32,
    live_chunks: u32,
    entry_bytes: u64,
}

impl LiveSet {
    /// Of a repository whose entries have at most so many chunks.
    pub fn new(entry_chunks: u16) -> Self {
        let (numbers, packs) = (HashMap::new(), Vec::new());
        Self { entry_chunks, counting: false, numbers, packs, last: None }
    }

    /// The same, which also counts the references to each chunk.
    pub(crate) fn counting(entry_chunks: u16) -> Self {
        Self { counting: true, ..Self::new(entry_chunks) }
    }

    /// Marks a chunk, or a page (index 0). True: it was not marked before. Refuses places that no
    /// pack can have.
    pub fn insert(&mut self, at: &Location) -> Result<bool> {
        check_place(at, self.entry_chunks)?;
        let number = match self.last {
            Some((pack, number)) if pack == at.pack => number,
            _ => {
                let next = u32::try_from(self.packs.len()).unwrap_or(u32::MAX);
                let number = *self.numbers.entry(at.pack).or_insert(next);
                if number == next {
                    self.packs.push(LivePack::default());
                }
                self.last = Some((at.pack, number));
                number
            }
        };
        let pack = &mut self.packs[number as usize];
        let (fresh, slot) = pack.insert(at.entry, u32::from(at.index), at.stored_len);
        if self.counting && !fresh {
            pack.count(slot);
        }
        Ok(fresh)
    }

    /// Whether this chunk was marked.
    pub fn contains(&self, pack: &PackId, entry: u32, index: u16) -> bool {
        self.pack(pack).is_some_and(|p| p.contains(entry, u32::from(index)))
    }

    /// What is live of a pack; `None` if nothing is.
    pub fn pack(&self, pack: &PackId) -> Option<&LivePack> {
        self.numbers.get(pack).map(|number| &self.packs[*number as usize])
    }

    /// All packs of which something is live, in no certain order.
    pub fn packs(&self) -> impl Iterator<Item = (&PackId, &LivePack)> {
        self.numbers.iter().map(|(pack, number)| (pack, &self.packs[*number as usize]))
    }

    /// Live chunks and pages of all packs.
    pub fn live_chunks(&self) -> u64 {
        self.packs.iter().map(|p| u64::from(p.live_chunks)).sum()
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        let words = |p: &LivePack| p.rows().map(Bits::capacity).sum::<usize>();
        let words: usize = self.packs.iter().map(words).sum();
        let rows: usize = self.packs.iter().map(|p| p.more.capacity()).sum();
        let tables = rows * size_of::<Bits>()
            + self.packs.capacity() * size_of::<LivePack>()
            + self.numbers.capacity() * (size_of::<(PackId, u32)>() + 1);
        (words * 8 + tables) as u64
    }
}

impl LivePack {
    /// Live chunks, or pages.
    pub fn live_chunks(&self) -> u32 {
        self.live_chunks
    }

    /// Stored bytes of the entries of which something is live.
    pub fn entry_bytes(&self) -> u64 {
        self.entry_bytes
    }

    /// Stored bytes of what is live, if the chunks of an entry are of equal length. What lies
    /// behind the last live chunk of an entry counts with it, so this is rather too much than too
    /// little.
    pub fn live_bytes(&self) -> u64 {
        let (mut slots, mut at) = (0, 0);
        for _ in 0..self.entries {
            let end = self.ends.next_one(at);
            if self.live.any(at, end + 1) {
                slots += u64::from(end + 1 - at);
            }
            at = end + 1;
        }
        let share = u128::from(self.entry_bytes) * u128::from(self.live_chunks);
        u64::try_from(share / u128::from(slots.max(1))).unwrap_or(u64::MAX)
    }

    /// Entry numbers and indexes of what is live, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u16)> + '_ {
        self.iter_counted().map(|(entry, index, _)| (entry, index))
    }

    /// The same, with how often each was referred to, if that was to be counted; else once.
    pub(crate) fn iter_counted(&self) -> impl Iterator<Item = (u32, u16, u64)> + '_ {
        let (mut entry, mut start) = (0, 0);
        (0..self.live.len()).filter_map(move |slot| {
            let (number, index) = (entry, slot - start);
            if self.ends.get(slot) {
                (entry, start) = (entry + 1, slot + 1);
            }
            let more = (0..).zip(&self.more).map(|(bit, row)| u64::from(row.get(slot)) << bit);
            // an index is less than ENTRY_CHUNKS_MAX: `insert`
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            self.live.get(slot).then(|| (number, index, 1 + more.sum::<u64>()))
        })
    }

    fn rows(&self) -> impl Iterator<Item = &Bits> {
        [&self.live, &self.ends].into_iter().chain(&self.more)
    }

    /// Whether anything of an entry is live.
    pub fn has_entry(&self, entry: u32) -> bool {
        let at = self.find(entry);
        at.is_some_and(|at| self.live.any(at, self.ends.next_one(at) + 1))
    }

    fn contains(&self, entry: u32, index: u32) -> bool {
        let at = self.find(entry);
        at.is_some_and(|at| index <= self.ends.next_one(at) - at && self.live.get(at + index))
    }

    /// First slot of an entry; `None` of one behind all that were seen.
    fn find(&self, entry: u32) -> Option<u32> {
        if entry >= self.entries {
            return None;
        }
        let (mut number, mut at) = if entry >= self.cursor.0 { self.cursor } else { (0, 0) };
        while number < entry {
            at = self.ends.next_one(at) + 1;
            number += 1;
        }
        Some(at)
    }

    /// Whether it is new, and its slot.
    fn insert(&mut self, entry: u32, index: u32, stored_len: u32) -> (bool, u32) {
        while self.entries <= entry {
            self.live.push(false);
            self.ends.push(true);
            self.more.iter_mut().for_each(|row| row.push(false));
            self.entries += 1;
        }
        let at = self.seek(entry);
        let end = self.ends.next_one(at);
        if !self.live.any(at, end + 1) {
            self.entry_bytes += u64::from(stored_len);
        }
        if index > end - at {
            let more = index - (end - at);
            self.live.insert_zeros(end + 1, more);
            self.ends.insert_zeros(end + 1, more);
            self.more.iter_mut().for_each(|row| row.insert_zeros(end + 1, more));
            self.ends.set(end, false);
            self.ends.set(end + more, true);
        }
        let fresh = !self.live.get(at + index);
        self.live.set(at + index, true);
        self.live_chunks += u32::from(fresh);
        (fresh, at + index)
    }

    /// One reference more to what is live at `slot`.
    fn count(&mut self, slot: u32) {
        for row in &mut self.more {
            let carry = row.get(slot);
            row.set(slot, !carry);
            if !carry {
                return;
            }
        }
        let mut row = Bits::default();
        row.grow(self.live.len());
        row.set(slot, true);
        self.more.push(row);
    }

    /// First slot of an entry that exists.
    fn seek(&mut self, entry: u32) -> u32 {
        let (mut number, mut at) = if entry >= self.cursor.0 { self.cursor } else { (0, 0) };
        while number < entry {
            at = self.ends.next_one(at) + 1;
            number += 1;
        }
        self.cursor = (number, at);
        at
    }
}

/// Refuses a place that no pack can have: an entry takes some bytes, and so do those before it.
pub(crate) fn check_place(at: &Location, entry_chunks: u16) -> Result<()> {
    let (entry, offset, index) = (at.entry, at.offset, at.index);
    if is_possible(entry, offset) && index < entry_chunks {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!("follow a reference to {}", pack_key(&at.pack)),
        format!("no pack of this repository has chunk {index} of entry {entry} at {offset}"),
    ))
}

/// A row of bits. At most `PACK_CHUNKS_MAX` of them, so 32-bit numbers do.
#[derive(Debug, Default)]
struct Bits {
    words: Vec<u64>,
    len: u32,
}

impl Bits {
    fn len(&self) -> u32 {
        self.len
    }

    fn capacity(&self) -> usize {
        self.words.capacity()
    }

    fn get(&self, at: u32) -> bool {
        self.words[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: u32, bit: bool) {
        let word = &mut self.words[(at / 64) as usize];
        *word = *word & !(1 << (at % 64)) | u64::from(bit) << (at % 64);
    }

    fn push(&mut self, bit: bool) {
        self.grow(1);
        self.set(self.len - 1, bit);
    }

    /// Zeros at the end. An eighth more room each time: doubling would double the memory of a mark.
    fn grow(&mut self, bits: u32) {
        self.len += bits;
        let words = self.len.div_ceil(64) as usize;
        if words > self.words.capacity() {
            let more = (words - self.words.len()).max(self.words.len() / 8);
            self.words.reserve_exact(more);
        }
        self.words.resize(words, 0);
    }

    /// The next one from `at` on; there is one.
    fn next_one(&self, at: u32) -> u32 {
        let mut word = (at / 64) as usize;
        let mut bits = self.words[word] & (u64::MAX << (at % 64));
        while bits == 0 {
            word += 1;
            bits = self.words[word];
        }
        u32::try_from(word * 64).unwrap_or(u32::MAX) + bits.trailing_zeros()
    }

    fn any(&self, from: u32, to: u32) -> bool {
        (from..to).any(|at| self.get(at))
    }

    /// Shifts what begins at `at` up by `count`.
    fn insert_zeros(&mut self, at: u32, count: u32) {
        let old = self.len;
        self.grow(count);
        let (words, bits) = ((count / 64) as usize, count % 64);
        let first = (at / 64) as usize;
        let keep = (1u64 << (at % 64)) - 1;
        if at < old {
            let kept = self.words[first] & keep;
            self.words[first] &= !keep;
            for to in (first + words..self.words.len()).rev() {
                let from = to - words;
                let low =
                    if bits > 0 && from > first { self.words[from - 1] >> (64 - bits) } else { 0 };
                self.words[to] = self.words[from] << bits | low;
            }
            self.words[first..first + words].fill(0);
            self.words[first] |= kept;
        }
    }
}

#[cfg(test)]
mod tests;
