//! Everything that is referred to, and whether the directories of packs list it so.
//!
//! Mechanism: two bits for each stored chunk ([`LiveSet`]), and for each pack one sum of hashes. A
//! hash covers all that a reference says: entry, index, offset, length, id. Whoever has a pack's
//! directory adds the same up over the places that are marked, and the sums are equal exactly if
//! each reference is listed as it was met. So no reference has to be kept. A place that several
//! references name counts with the first of them. What is reached through a forwarding stub has no
//! id there, and has a sum of its own.
//!
//! Memory: two bits a chunk, and about 350 bytes a pack.

use crate::error::Result;
use crate::ids::PackId;
use crate::map::{LivePack, LiveSet};
use crate::pack::DirectoryEntry;
use crate::units::Location;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Refs {
    named: LiveSet,
    moved: LiveSet,
    sums: HashMap<PackId, Sums>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    named: u128,
    moved: u128,
}

impl Refs {
    pub(super) fn new(entry_chunks: u16) -> Self {
        let (named, moved) = (LiveSet::new(entry_chunks), LiveSet::new(entry_chunks));
        Self { named, moved, sums: HashMap::new() }
    }

    /// What a page or a manifest refers to. True: it is met for the first time.
    pub(super) fn name(&mut self, at: &Location, id: &[u8; 32]) -> Result<bool> {
        let fresh = self.named.insert(at)?;
        if fresh {
            let sum = &mut self.sums.entry(at.pack).or_default().named;
            *sum = sum.wrapping_add(digest(at, Some(id)));
        }
        Ok(fresh)
    }

    /// Where a stub says that something is which is referred to. True: nothing led there before.
    pub(super) fn reach_through_stub(&mut self, at: &Location) -> Result<bool> {
        if self.named.contains(&at.pack, at.entry, at.index) {
            return Ok(false);
        }
        let fresh = self.moved.insert(at)?;
        if fresh {
            let sum = &mut self.sums.entry(at.pack).or_default().moved;
            *sum = sum.wrapping_add(digest(at, None));
        }
        Ok(fresh)
    }

    pub(super) fn contains(&self, pack: &PackId, entry: u32, index: u16) -> bool {
        self.named.contains(pack, entry, index) || self.moved.contains(pack, entry, index)
    }

    /// All packs of which something is referred to.
    pub(super) fn packs(&self) -> impl Iterator<Item = &PackId> {
        self.sums.keys()
    }

    pub(super) fn has(&self, pack: &PackId) -> bool {
        self.sums.contains_key(pack)
    }

    /// Chunks and pages of a pack that are referred to.
    pub(super) fn live_chunks(&self, pack: &PackId) -> u64 {
        let of = |set: &LiveSet| set.pack(pack).map_or(0, |p| u64::from(p.live_chunks()));
        of(&self.named) + of(&self.moved)
    }

    /// Entry numbers and indexes in a pack that are referred to, each once.
    pub(super) fn places(&self, pack: &PackId) -> impl Iterator<Item = (u32, u16)> {
        let of =
            |set: &'_ LiveSet| set.pack(pack).map(LivePack::iter).into_iter().flatten().collect();
        let (named, moved): (Vec<_>, Vec<_>) = (of(&self.named), of(&self.moved));
        named.into_iter().chain(moved)
    }

    /// Whether a pack's directory lists everything that is referred to as the references say.
    pub(super) fn fit(&self, pack: &PackId, directory: &[DirectoryEntry]) -> bool {
        let sums = self.sums.get(pack).copied().unwrap_or_default();
        sum(self.named.pack(pack), pack, directory, true) == Some(sums.named)
            && sum(self.moved.pack(pack), pack, directory, false) == Some(sums.moved)
    }

    pub(super) fn chunks(&self) -> u64 {
        self.named.live_chunks() + self.moved.live_chunks()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let sums = self.sums.capacity() * (size_of::<(PackId, Sums)>() + 1);
        self.named.memory_bytes() + self.moved.memory_bytes() + sums as u64
    }
}

/// Of the marked places as the directory has them; `None` if one is not in it.
fn sum(
    marked: Option<&LivePack>,
    pack: &PackId,
    directory: &[DirectoryEntry],
    with_id: bool,
) -> Option<u128> {
    let mut sum: u128 = 0;
    for (entry, index) in marked.into_iter().flat_map(LivePack::iter) {
        let listed = directory.get(entry as usize)?;
        let id = listed.ids.get(usize::from(index))?;
        let DirectoryEntry { offset, stored_len, .. } = *listed;
        let at = Location { pack: *pack, entry, offset, stored_len, index };
        sum = sum.wrapping_add(digest(&at, with_id.then_some(id)));
    }
    Some(sum)
}

fn digest(at: &Location, id: Option<&[u8; 32]>) -> u128 {
    let mut bytes = [0; 46];
    bytes[..4].copy_from_slice(&at.entry.to_le_bytes());
    bytes[4..6].copy_from_slice(&at.index.to_le_bytes());
    bytes[6..10].copy_from_slice(&at.offset.to_le_bytes());
    bytes[10..14].copy_from_slice(&at.stored_len.to_le_bytes());
    bytes[14..].copy_from_slice(id.unwrap_or(&[0; 32]));
    let hash = blake3::hash(&bytes);
    hash.as_bytes().first_chunk().map_or(0, |half| u128::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACK: PackId = PackId::from_bytes([3; 32]);

    fn at(entry: u32, index: u16) -> Location {
        Location { pack: PACK, entry, offset: 64 + entry * 100, stored_len: 100, index }
    }

    fn directory() -> Vec<DirectoryEntry> {
        let entry = |e: u8| {
            let ids = (0..4).map(|i| [e * 10 + i; 32]).collect();
            DirectoryEntry { offset: at(u32::from(e), 0).offset, stored_len: 100, ids }
        };
        (0..3).map(entry).collect()
    }

    fn refs() -> Refs {
        let mut refs = Refs::new(16);
        // in any order, and one of them twice
        for (entry, index, id) in [(2, 1, 21), (0, 0, 0), (0, 3, 3), (2, 1, 21)] {
            refs.name(&at(entry, index), &[id; 32]).unwrap();
        }
        refs
    }

    #[test]
    fn references_fit_a_directory_that_lists_them() {
        let mut refs = refs();
        assert!(refs.fit(&PACK, &directory()));
        assert!(refs.reach_through_stub(&at(1, 2)).unwrap());
        assert!(!refs.reach_through_stub(&at(0, 3)).unwrap(), "it is named");
        assert!(refs.fit(&PACK, &directory()));
        assert_eq!(refs.places(&PACK).collect::<Vec<_>>(), [(0, 0), (0, 3), (2, 1), (1, 2)]);
        assert_eq!((refs.chunks(), refs.live_chunks(&PACK)), (4, 4));
        assert!(refs.contains(&PACK, 1, 2) && !refs.contains(&PACK, 1, 1));
    }

    #[test]
    fn each_difference_is_seen() {
        let fits = |change: &dyn Fn(&mut Vec<DirectoryEntry>)| {
            let mut directory = directory();
            change(&mut directory);
            refs().fit(&PACK, &directory)
        };
        assert!(fits(&|d| d[1].ids.clear()), "what nobody refers to may be anything");
        assert!(!fits(&|d| d[0].ids[3] = [9; 32]));
        assert!(!fits(&|d| d[2].offset += 1));
        assert!(!fits(&|d| d[2].stored_len += 1));
        assert!(!fits(&|d| d[2].ids.truncate(1)));
        assert!(!fits(&|d| d.truncate(2)));
        assert!(!fits(&|d| d.swap(0, 2)));
    }
}
