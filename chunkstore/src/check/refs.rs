//! Everything that is referred to, and whether the directories of packs list it so.
//!
//! Mechanism: two bits for each stored chunk ([`LiveSet`]), some more in which the references to it
//! are counted, and for each pack one sum of hashes over all references. A hash covers all that a
//! reference says: entry, index, offset, length, id, and whether it names a chunk or a page. Whoever
//! has a pack's directory adds the same up over the places that are marked, each as often as it was
//! met, and the sums are equal exactly if all references say what is listed. So no reference has to
//! be kept. The counts are exact: counts that go round would let as many equal references that are
//! wrong cancel each other out. Sums are of 128 bits; 2^k equal wrong references leave 128 - k of
//! them to tell. The hash has a key of this run, so that nobody can store references that add up.
//! What is reached through a forwarding stub has no id there, and has a sum of its own; its id is
//! compared in `stubs`.
//!
//! All chunks are expected to be of the chunk size, but for the last one of a volume: those few are
//! kept, with the lengths that are expected of them.
//!
//! Memory: two bits a chunk, with as many more as the count of its pack's most referred to chunk
//! has (three for up to 8 references beside the first, five for 32); and about 400 bytes a pack.

use crate::error::Result;
use crate::ids::{PackId, random_bytes};
use crate::map::{LivePack, LiveSet};
use crate::pack::{DirectoryEntry, EntryKind};
use crate::units::Location;
use std::collections::HashMap;

/// A chunk of an entry, or a page.
pub(super) type Place = (PackId, u32, u16);

pub(super) fn place(at: &Location) -> Place {
    (at.pack, at.entry, at.index)
}

#[derive(Debug)]
pub(super) struct Refs {
    /// The length of chunks of which nothing else is known.
    full: [u32; 1],
    named: LiveSet,
    moved: LiveSet,
    /// Reached through a stub, and named too.
    both: u64,
    sums: HashMap<PackId, Sums>,
    /// Of the hashes.
    key: [u8; 32],
    /// Lengths that are expected of chunks where not all who refer to it expect a full one.
    lens: HashMap<Place, Vec<u32>>,
}

/// Sums of hashes, modulo 2^128.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    named: u128,
    moved: u128,
}

impl Refs {
    pub(super) fn new(entry_chunks: u16, chunk_bytes: u32) -> Self {
        let set = || LiveSet::counting(entry_chunks);
        let (sums, lens) = (HashMap::new(), HashMap::new());
        let (full, key) = ([chunk_bytes], random_bytes());
        Self { full, named: set(), moved: set(), both: 0, sums, key, lens }
    }

    /// A chunk of `len` bytes that a page refers to.
    pub(super) fn name_chunk(&mut self, at: &Location, id: &[u8; 32], len: u32) -> Result<()> {
        let fresh = self.name(at, id, EntryKind::Chunks)?;
        self.expect(place(at), len, fresh);
        Ok(())
    }

    /// A page that a page or a manifest refers to.
    pub(super) fn name_page(&mut self, at: &Location, id: &[u8; 32]) -> Result<()> {
        self.name(at, id, EntryKind::Page).map(|_| ())
    }

    fn name(&mut self, at: &Location, id: &[u8; 32], kind: EntryKind) -> Result<bool> {
        let fresh = self.named.insert(at)?;
        let sum = &mut self.sums.entry(at.pack).or_default().named;
        *sum = sum.wrapping_add(digest(&self.key, at, Some((id, kind))));
        Ok(fresh)
    }

    /// Where a stub says that something is which is referred to at `from`. True: nothing led there
    /// before.
    pub(super) fn reach_through_stub(&mut self, from: Place, to: &Location) -> Result<bool> {
        let named = self.named.contains(&to.pack, to.entry, to.index);
        let moved = self.moved.insert(to)?;
        self.both += u64::from(named && moved);
        let sum = &mut self.sums.entry(to.pack).or_default().moved;
        *sum = sum.wrapping_add(digest(&self.key, to, None));
        let fresh = moved && !named;
        let mut first = fresh;
        for len in self.expected(&from).to_vec() {
            self.expect(place(to), len, first);
            first = false;
        }
        Ok(fresh)
    }

    /// Notes a length that is expected. `fresh`: nobody expected any before.
    fn expect(&mut self, at: Place, len: u32, fresh: bool) {
        let full = [len] == self.full;
        if full && (fresh || self.lens.is_empty()) {
            return;
        }
        match self.lens.get_mut(&at) {
            Some(lens) if lens.contains(&len) => {}
            Some(lens) => lens.push(len),
            None if full => {}
            None if fresh => drop(self.lens.insert(at, vec![len])),
            None => drop(self.lens.insert(at, vec![self.full[0], len])),
        }
    }

    /// The lengths that a chunk must have for those who refer to it: one, if all are right.
    pub(super) fn expected(&self, at: &Place) -> &[u32] {
        self.lens.get(at).map_or(&self.full, Vec::as_slice)
    }

    pub(super) fn contains(&self, pack: &PackId, entry: u32, index: u16) -> bool {
        self.named.contains(pack, entry, index) || self.moved.contains(pack, entry, index)
    }

    /// Whether anything of an entry is referred to.
    pub(super) fn has_entry(&self, pack: &PackId, entry: u32) -> bool {
        let of = |set: &LiveSet| set.pack(pack).is_some_and(|p| p.has_entry(entry));
        of(&self.named) || of(&self.moved)
    }

    /// All packs of which something is referred to.
    pub(super) fn packs(&self) -> impl Iterator<Item = &PackId> {
        self.sums.keys()
    }

    /// All packs that stubs lead to from something that is referred to.
    pub(super) fn packs_behind_stubs(&self) -> impl Iterator<Item = &PackId> {
        self.moved.packs().map(|(pack, _)| pack)
    }

    pub(super) fn has(&self, pack: &PackId) -> bool {
        self.sums.contains_key(pack)
    }

    /// Chunks and pages of a pack that are referred to; what is both named and reached through a
    /// stub counts twice.
    pub(super) fn live_chunks(&self, pack: &PackId) -> u64 {
        let of = |set: &LiveSet| set.pack(pack).map_or(0, |p| u64::from(p.live_chunks()));
        of(&self.named) + of(&self.moved)
    }

    /// Entry numbers and indexes in a pack that are referred to, ascending, each once.
    pub(super) fn places(&self, pack: &PackId) -> Vec<(u32, u16)> {
        let mut places = Vec::new();
        for set in [&self.named, &self.moved] {
            places.extend(set.pack(pack).map(LivePack::iter).into_iter().flatten());
        }
        if self.moved.pack(pack).is_some() {
            places.sort_unstable();
            places.dedup();
        }
        places
    }

    /// Whether a pack's directory, of a pack with such entries, lists everything that is referred to
    /// as the references say.
    pub(super) fn fit(&self, pack: &PackId, kind: EntryKind, directory: &[DirectoryEntry]) -> bool {
        let sums = self.sums.get(pack).copied().unwrap_or_default();
        let listed = |set: &LiveSet, kind| self.listed(set.pack(pack), pack, directory, kind);
        listed(&self.named, Some(kind)) == Some(sums.named)
            && listed(&self.moved, None) == Some(sums.moved)
    }

    pub(super) fn chunks(&self) -> u64 {
        self.named.live_chunks() + self.moved.live_chunks() - self.both
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let sums = self.sums.capacity() * (size_of::<(PackId, Sums)>() + 1);
        self.named.memory_bytes() + self.moved.memory_bytes() + sums as u64
    }
    /// The sum over the marked places as the directory has them; `None` if one is not in it.
    fn listed(
        &self,
        marked: Option<&LivePack>,
        pack: &PackId,
        directory: &[DirectoryEntry],
        kind: Option<EntryKind>,
    ) -> Option<u128> {
        let mut sum: u128 = 0;
        for (entry, index, times) in marked.into_iter().flat_map(LivePack::iter_counted) {
            let listed = directory.get(entry as usize)?;
            let id = listed.ids.get(usize::from(index))?;
            let DirectoryEntry { offset, stored_len, .. } = *listed;
            let at = Location { pack: *pack, entry, offset, stored_len, index };
            let digest = digest(&self.key, &at, kind.map(|kind| (id, kind)));
            sum = sum.wrapping_add(digest.wrapping_mul(u128::from(times)));
        }
        Some(sum)
    }
}

fn digest(key: &[u8; 32], at: &Location, what: Option<(&[u8; 32], EntryKind)>) -> u128 {
    let mut bytes = [0; 47];
    bytes[..4].copy_from_slice(&at.entry.to_le_bytes());
    bytes[4..6].copy_from_slice(&at.index.to_le_bytes());
    bytes[6..10].copy_from_slice(&at.offset.to_le_bytes());
    bytes[10..14].copy_from_slice(&at.stored_len.to_le_bytes());
    if let Some((id, kind)) = what {
        bytes[14..46].copy_from_slice(id);
        bytes[46] = kind.byte();
    }
    let hash = blake3::keyed_hash(key, &bytes);
    hash.as_bytes().first_chunk().map_or(0, |half| u128::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACK: PackId = PackId::from_bytes([3; 32]);
    const OTHER: PackId = PackId::from_bytes([4; 32]);
    const FULL: u32 = 4096;

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
        let mut refs = Refs::new(16, FULL);
        // in any order, and one of them twice
        for (entry, index, id) in [(2, 1, 21), (0, 0, 0), (0, 3, 3), (2, 1, 21)] {
            refs.name_chunk(&at(entry, index), &[id; 32], FULL).unwrap();
        }
        refs
    }

    fn fit(refs: &Refs, directory: &[DirectoryEntry]) -> bool {
        refs.fit(&PACK, EntryKind::Chunks, directory)
    }

    #[test]
    fn references_fit_a_directory_that_lists_them() {
        let mut refs = refs();
        assert!(fit(&refs, &directory()));
        assert!(refs.reach_through_stub((OTHER, 0, 0), &at(1, 2)).unwrap());
        assert!(!refs.reach_through_stub((OTHER, 0, 1), &at(0, 3)).unwrap(), "it is named");
        assert!(fit(&refs, &directory()));
        assert_eq!(refs.places(&PACK), [(0, 0), (0, 3), (1, 2), (2, 1)]);
        assert_eq!(refs.chunks(), 4);
        assert!(refs.has_entry(&PACK, 1) && !refs.has_entry(&PACK, 3));
        assert!(refs.contains(&PACK, 1, 2) && !refs.contains(&PACK, 1, 1));
    }

    #[test]
    fn each_difference_is_seen() {
        let fits = |change: &dyn Fn(&mut Vec<DirectoryEntry>)| {
            let mut directory = directory();
            change(&mut directory);
            fit(&refs(), &directory)
        };
        assert!(fits(&|d| d[1].ids.clear()), "what nobody refers to may be anything");
        assert!(!fits(&|d| d[0].ids[3] = [9; 32]));
        assert!(!fits(&|d| d[2].offset += 1));
        assert!(!fits(&|d| d[2].stored_len += 1));
        assert!(!fits(&|d| d[2].ids.truncate(1)));
        assert!(!fits(&|d| d.truncate(2)));
        assert!(!fits(&|d| d.swap(0, 2)));
    }

    /// Whatever a second reference to a place says otherwise, in whichever order they come.
    #[test]
    fn references_that_contradict_each_other_are_seen() {
        let right = at(2, 1);
        let wrong: [(Location, u8, EntryKind); 4] = [
            (right, 9, EntryKind::Chunks),
            (right, 21, EntryKind::Page),
            (Location { offset: right.offset + 1, ..right }, 21, EntryKind::Chunks),
            (Location { stored_len: 99, ..right }, 21, EntryKind::Chunks),
        ];
        for (at, id, kind) in wrong {
            for times in (1..18).chain([24, 32, 255, 256, 512, 4096, 1 << 16]) {
                for first in [true, false] {
                    let mut refs = if first { Refs::new(16, FULL) } else { refs() };
                    (0..times).for_each(|_| assert!(refs.name(&at, &[id; 32], kind).is_ok()));
                    assert!(!fit(&refs, &directory()), "{at:?} {id} {kind:?}, {times} times alone");
                    refs.name(&right, &[21; 32], EntryKind::Chunks).unwrap();
                    assert!(!fit(&refs, &directory()), "{at:?} {id} {kind:?}, {times} times");
                }
            }
        }
        let mut refs = refs();
        (0..300).for_each(|_| refs.name_chunk(&right, &[21; 32], FULL).unwrap());
        assert!(fit(&refs, &directory()), "many may say the same");
        let wrong = Location { stored_len: 99, ..at(0, 3) };
        refs.reach_through_stub((OTHER, 0, 1), &wrong).unwrap();
        assert!(!fit(&refs, &directory()), "a stub says otherwise");
    }

    #[test]
    fn lengths_are_kept_where_they_are_not_those_of_all_chunks() {
        let mut refs = refs();
        let lens = |refs: &Refs, at: &Location| refs.expected(&place(at)).to_vec();
        assert_eq!(lens(&refs, &at(0, 0)), [FULL]);
        refs.name_chunk(&at(1, 0), &[10; 32], 7).unwrap();
        refs.name_chunk(&at(1, 0), &[10; 32], 7).unwrap();
        assert_eq!(lens(&refs, &at(1, 0)), [7]);
        refs.name_chunk(&at(1, 0), &[10; 32], FULL).unwrap();
        assert_eq!(lens(&refs, &at(1, 0)), [7, FULL]);
        refs.name_chunk(&at(0, 0), &[0; 32], 8).unwrap();
        assert_eq!(lens(&refs, &at(0, 0)), [FULL, 8], "it was full for the first");
        refs.reach_through_stub(place(&at(0, 0)), &at(1, 3)).unwrap();
        refs.reach_through_stub(place(&at(0, 3)), &at(1, 2)).unwrap();
        assert_eq!(lens(&refs, &at(1, 3)), [FULL, 8]);
        assert_eq!(lens(&refs, &at(1, 2)), [FULL]);
        refs.reach_through_stub(place(&at(1, 0)), &at(1, 2)).unwrap();
        assert_eq!(lens(&refs, &at(1, 2)), [FULL, 7]);
    }
}
