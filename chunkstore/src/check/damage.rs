//! What was found damaged or lost: whole packs, entries, and single places of entries.

use crate::ids::PackId;
use crate::protocol::DamagedSet;
use crate::units::Location;
use std::collections::HashSet;

/// Damage, as exact as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Damage {
    /// Whole packs and whole entries.
    pub(super) entries: DamagedSet,
    /// Entry number and index, where the rest of the entry is good or not known to be bad.
    pub(super) places: HashSet<(PackId, u32, u16)>,
}

impl Damage {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.places.is_empty()
    }

    pub(super) fn contains(&self, at: &Location) -> bool {
        self.holds(&at.pack, at.entry, at.index)
    }

    pub(super) fn holds(&self, pack: &PackId, entry: u32, index: u16) -> bool {
        self.entries.contains(pack, entry)
            || (!self.places.is_empty() && self.places.contains(&(*pack, entry, index)))
    }

    /// As records say it, which know no less than an entry.
    pub(super) fn to_records(&self) -> DamagedSet {
        let mut all = self.entries.clone();
        for (pack, entry, _) in &self.places {
            all.insert(*pack, Some(*entry));
        }
        all
    }
}
