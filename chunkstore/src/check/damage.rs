//! What was found damaged or lost: whole packs, entries, single places of entries, and references
//! that find something else there than others do.

use super::refs::{Place, place};
use crate::ids::PackId;
use crate::repository::DamagedSet;
use crate::units::{ChunkRef, Location};
use std::collections::{HashMap, HashSet};

/// Damage, as exact as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Damage {
    /// Whole packs and whole entries.
    pub(super) entries: DamagedSet,
    /// Entry number and index, where the rest of the entry is good or not known to be bad.
    pub(super) places: HashSet<Place>,
    /// Chunks of another length than some who refer to them expect, with the one that they have.
    pub(super) lens: HashMap<Place, u32>,
    /// References to chunks that are wrong, while others to the same place, or to its entry, are
    /// right.
    wrong: HashMap<Place, HashSet<WrongRef>>,
    /// Entries that some reference to a page cannot be followed to. Whether others can is found
    /// out by following them.
    pub(super) pages: HashSet<(PackId, u32)>,
}

/// What a wrong reference says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct WrongRef {
    id: [u8; 32],
    /// Offset and length; `None`: whatever it says, as a stub says otherwise.
    addr: Option<(u32, u32)>,
}

impl Damage {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.size() == 0
    }

    /// How much is known beside whole entries.
    pub(super) fn size(&self) -> usize {
        let wrong: usize = self.wrong.values().map(HashSet::len).sum();
        self.places.len() + self.lens.len() + wrong + self.pages.len()
    }

    /// Whether what stands there is bad for everybody.
    pub(super) fn contains(&self, at: &Location) -> bool {
        self.holds(&at.pack, at.entry, at.index)
    }

    pub(super) fn holds(&self, pack: &PackId, entry: u32, index: u16) -> bool {
        self.entries.contains(pack, entry)
            || (!self.places.is_empty() && self.places.contains(&(*pack, entry, index)))
    }

    /// Whether a reference to a chunk does not find the `len` bytes that it names.
    pub(super) fn loses(&self, chunk: &ChunkRef, len: u32) -> bool {
        let at = &chunk.location;
        if self.contains(at) {
            return true;
        }
        if self.lens.is_empty() && self.wrong.is_empty() {
            return false;
        }
        let place = place(at);
        let is_wrong = |wrong: &HashSet<WrongRef>| {
            let id = *chunk.id.as_bytes();
            [None, Some((at.offset, at.stored_len))]
                .iter()
                .any(|addr| wrong.contains(&WrongRef { id, addr: *addr }))
        };
        self.lens.get(&place).is_some_and(|is| *is != len)
            || self.wrong.get(&place).is_some_and(is_wrong)
    }

    /// Whether a chunk has another length than somebody who refers to it expects: no place that has
    /// its id will do.
    pub(super) fn has_another_len(&self, chunk: &ChunkRef) -> bool {
        self.lens.contains_key(&place(&chunk.location))
    }

    /// A reference is wrong. True: that is new.
    pub(super) fn add_wrong(&mut self, at: &Location, id: &[u8; 32]) -> bool {
        let wrong = WrongRef { id: *id, addr: Some((at.offset, at.stored_len)) };
        self.wrong.entry(place(at)).or_default().insert(wrong)
    }

    /// What is wrong at `to` is wrong for who is led there from `from`.
    pub(super) fn carry_back(&mut self, from: Place, to: &Location) {
        if self.contains(to) && !self.entries.contains(&from.0, from.1) {
            self.places.insert(from);
        }
        if let Some(is) = self.lens.get(&place(to)).copied() {
            self.lens.insert(from, is);
        }
        if let Some(there) = self.wrong.get(&place(to)) {
            let wrong: Vec<_> = there.iter().map(|w| WrongRef { addr: None, ..*w }).collect();
            self.wrong.entry(from).or_default().extend(wrong);
        }
    }

    /// Takes over what was found of packs that are `there`, but for what walking the maps finds
    /// anew.
    pub(super) fn inherit(&mut self, before: Self, there: impl Fn(&PackId) -> bool) {
        for (pack, entry) in before.entries.iter().filter(|(pack, _)| there(pack)) {
            self.entries.insert(pack, entry);
        }
        self.places.extend(before.places.into_iter().filter(|place| there(&place.0)));
        self.lens.extend(before.lens.into_iter().filter(|(place, _)| there(&place.0)));
        self.wrong.extend(before.wrong.into_iter().filter(|(place, _)| there(&place.0)));
    }

    /// As records say it, which know no less than an entry.
    pub(super) fn to_records(&self) -> DamagedSet {
        let mut all = self.entries.clone();
        let places = self.places.iter().chain(self.lens.keys()).chain(self.wrong.keys());
        let entries = places.map(|(pack, entry, _)| (pack, entry));
        let pages = self.pages.iter().map(|(pack, entry)| (pack, entry));
        for (pack, entry) in entries.chain(pages) {
            all.insert(*pack, Some(*entry));
        }
        all
    }
}
