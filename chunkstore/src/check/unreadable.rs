//! Unreadable directories of packs: those that do not open, and those that do not list what backups
//! refer to. What refers to such packs is collected by another walk, and read by it.
//!
//! Memory: some [`REFS_MAX`] references of about 100 bytes at a time, or those of one pack; some 30
//! bytes for each page; and stubs that lead into such packs.

use super::pack::{EntryChecker, Found, Wanted};
use super::refs::place;
use super::{Check, is_damage};
use crate::error::{Error, Result};
use crate::fetch::{EntryAddr, Fetched, RangeRead, plan_reads, read_range};
use crate::format::repository::RepositoryParams;
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::limits::{PAGE_PLAIN_BYTES_MAX, STUB_HOPS_MAX};
use crate::map::{PageAt, Visited, Visitor, VolumeMap, reach};
use crate::pack::EntryKind;
use crate::units::{ChunkNo, ChunkRef, Location};
use futures::{StreamExt, stream};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// References that are collected at a time.
pub(super) const REFS_MAX: u64 = 1 << 18;
/// References that are held before those to one place are put together.
const FOUND_MAX: usize = 1 << 19;
const GAP_BYTES: u32 = 128 << 10;
const READ_BYTES_MAX: u32 = 2 << 20;
const READS_IN_FLIGHT: usize = 4;

/// A reference into one of the packs that are wanted, with what it must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reference {
    pub(super) at: Location,
    pub(super) id: [u8; 32],
    pub(super) is_page: bool,
    /// Bytes of the chunk where it is referred to.
    pub(super) len: u32,
}

/// What is wrong with what a reference leads to.
#[derive(Debug, Clone)]
pub(super) enum Wrong {
    /// The whole entry.
    Entry(Arc<Error>),
    /// What stands at the place is something else.
    Other,
    /// It has another length: this.
    Len(u32),
}

impl Reference {
    pub(super) fn kind(&self) -> EntryKind {
        if self.is_page { EntryKind::Page } else { EntryKind::Chunks }
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted { index: self.at.index, id: self.id, len: self.len }
    }

    /// Whether it leads to what a reader would go for at all.
    fn check(&self, params: &RepositoryParams) -> Result<()> {
        let addr = EntryAddr::from(&self.at);
        if self.is_page {
            return addr.check(PAGE_PLAIN_BYTES_MAX);
        }
        addr.check_chunk(self.at.index, params.chunk, params.entry_chunks)
    }
}

impl Check {
    /// Finds out which entries of packs with unreadable directories are bad.
    pub(super) async fn read_by_references(&mut self) -> Result<()> {
        let packs = std::mem::take(&mut self.unreadable_directories);
        for group in self.groups(&packs) {
            let references = self.references(&group).await?;
            let bad = self.unreadable(&references).await?;
            self.lose_references(&references, bad);
        }
        Ok(())
    }

    /// What `bad` of these references lead to is lost for them; and for all who refer to it, if
    /// none of them finds it right.
    pub(super) fn lose_references(
        &mut self,
        references: &[Reference],
        bad: Vec<(Reference, Wrong)>,
    ) {
        let all_bad: HashSet<Reference> = bad.iter().map(|(reference, _)| *reference).collect();
        let right = references.iter().filter(|reference| !all_bad.contains(reference));
        let (mut entries, mut places) = (HashSet::new(), HashSet::new());
        for Reference { at, .. } in right {
            entries.insert((at.pack, at.entry));
            places.insert(place(at));
        }
        for (Reference { at, id, is_page, .. }, why) in bad {
            if is_page {
                self.damage.pages.insert((at.pack, at.entry));
            }
            match why {
                Wrong::Entry(e) if !entries.contains(&(at.pack, at.entry)) => {
                    self.lose_entry(at.pack, at.entry, &e);
                }
                Wrong::Other if !places.contains(&place(&at)) => {
                    self.damage.places.insert(place(&at));
                }
                Wrong::Len(is) => drop(self.damage.lens.insert(place(&at), is)),
                Wrong::Entry(_) | Wrong::Other if is_page => {}
                Wrong::Entry(_) | Wrong::Other => drop(self.damage.add_wrong(&at, &id)),
            }
        }
    }

    /// Packs in groups whose references fit into memory.
    pub(super) fn groups(&self, packs: &BTreeSet<PackId>) -> Vec<HashSet<PackId>> {
        let (mut groups, mut group, mut chunks) = (Vec::new(), HashSet::new(), 0);
        for pack in packs {
            let more = self.refs.live_chunks(pack);
            if chunks + more > REFS_MAX && !group.is_empty() {
                groups.push(std::mem::take(&mut group));
                chunks = 0;
            }
            group.insert(*pack);
            chunks += more;
        }
        if !group.is_empty() {
            groups.push(group);
        }
        groups
    }

    /// Everything that leads into these packs, directly or through stubs: ascending, each place
    /// once.
    pub(super) async fn references(&self, packs: &HashSet<PackId>) -> Result<Vec<Reference>> {
        let via = self.stubs_into(packs).await?;
        let maps = self.maps()?;
        let (pages, found) = (Visited::default(), Vec::new());
        let found_max = FOUND_MAX;
        let mut collector = Collector { packs, maps: &maps, via, pages, found, found_max };
        reach(&self.repo, &maps, self.limits, &mut collector).await?;
        collector.compact();
        Ok(collector.found)
    }

    fn maps(&self) -> Result<Vec<VolumeMap>> {
        let mut maps = Vec::with_capacity(self.inventory.backups.len());
        for manifest in &self.inventory.backups {
            maps.extend(VolumeMap::all_of(&self.repo, manifest)?);
        }
        Ok(maps)
    }

    /// The stubs that lead into these packs, or to other stubs that do.
    async fn stubs_into(&self, packs: &HashSet<PackId>) -> Result<HashMap<PackId, Stub>> {
        let mut via: HashMap<PackId, Stub> = HashMap::new();
        for _ in 0..STUB_HOPS_MAX {
            let before = via.len();
            for pack in self.rewritten.iter().filter(|pack| !packs.contains(*pack)) {
                if via.contains_key(pack) {
                    continue;
                }
                let Some(stub) = self.repo.read_stub(pack).await? else { continue };
                let leads = |(_, to): &(_, Location)| {
                    packs.contains(&to.pack) || via.contains_key(&to.pack)
                };
                if stub.relocations().iter().any(leads) {
                    via.insert(*pack, stub);
                }
            }
            if via.len() == before {
                break;
            }
        }
        Ok(via)
    }

    /// Reads what references lead to; gives those that do not find it right, with why.
    pub(super) async fn unreadable(
        &self,
        references: &[Reference],
    ) -> Result<Vec<(Reference, Wrong)>> {
        let bad = self.look_at(references).await?;
        if bad.is_empty() {
            return Ok(bad);
        }
        // one bad answer is no damage: the entries are read once more
        let entries: HashSet<_> = bad.iter().map(|(r, _)| (r.at.pack, r.at.entry)).collect();
        let of_bad = |r: &&Reference| entries.contains(&(r.at.pack, r.at.entry));
        let again: Vec<Reference> = references.iter().filter(of_bad).copied().collect();
        self.look_at(&again).await
    }

    async fn look_at(&self, references: &[Reference]) -> Result<Vec<(Reference, Wrong)>> {
        let mut checker = EntryChecker::new(&self.repo)?;
        let mut bad = Vec::new();
        let mut possible = Vec::new();
        for reference in references {
            match reference.check(self.repo.params()) {
                Ok(()) => possible.push(*reference),
                Err(e) => bad.push((*reference, Wrong::Entry(Arc::new(e)))),
            }
        }
        let references = possible.as_slice();
        let addrs = references.iter().map(|reference| EntryAddr::from(&reference.at)).collect();
        let mut reads = plan_reads(addrs, GAP_BYTES, READ_BYTES_MAX);
        while !reads.is_empty() {
            let mut alone = Vec::new();
            let mut answers = stream::iter(std::mem::take(&mut reads))
                .map(|read| async move {
                    let fetched = read_range(&self.repo, &read).await;
                    (read, fetched)
                })
                .buffered(READS_IN_FLIGHT);
            while let Some((read, fetched)) = answers.next().await {
                match fetched {
                    Ok(Fetched::Data(data)) => {
                        for addr in &read.entries {
                            let stored = read.entry_bytes(&data, addr)?;
                            check_entry(&mut checker, addr, &stored, references, &mut bad)?;
                        }
                    }
                    // a collection was faster: it has moved what lives
                    Ok(Fetched::Gone) => {}
                    Err(e) if is_damage(&e) && read.entries.len() > 1 => {
                        alone.extend(one_by_one(&read));
                    }
                    Err(e) if is_damage(&e) => {
                        let e = Arc::new(e);
                        let of_entry = of_entry(references, &read.entries[0]).iter();
                        bad.extend(of_entry.map(|r| (*r, Wrong::Entry(Arc::clone(&e)))));
                    }
                    Err(e) => return Err(e),
                }
            }
            drop(answers);
            reads = alone;
        }
        Ok(bad)
    }
}

/// Those that name one entry.
fn of_entry<'r>(references: &'r [Reference], addr: &EntryAddr) -> &'r [Reference] {
    let key = |r: &Reference| (r.at.pack, r.at.entry, r.at.offset, r.at.stored_len);
    let wanted = (addr.pack, addr.entry, addr.offset, addr.stored_len);
    let from = references.partition_point(|r| key(r) < wanted);
    let to = references.partition_point(|r| key(r) <= wanted);
    &references[from..to]
}

fn check_entry(
    checker: &mut EntryChecker,
    addr: &EntryAddr,
    stored: &[u8],
    references: &[Reference],
    bad: &mut Vec<(Reference, Wrong)>,
) -> Result<()> {
    let of_entry = of_entry(references, addr);
    for is_page in [false, true] {
        let of_kind: Vec<_> = of_entry.iter().filter(|r| r.is_page == is_page).collect();
        let Some(first) = of_kind.first() else { continue };
        let wanted: Vec<_> = of_kind.iter().map(|r| r.wanted()).collect();
        match checker.check_some(first.kind(), &addr.pack, addr.offset, stored, &wanted) {
            Ok(found) => {
                for (reference, found) in of_kind.into_iter().zip(found) {
                    match found {
                        Found::Right => {}
                        Found::Other => bad.push((*reference, Wrong::Other)),
                        Found::Len(is) => bad.push((*reference, Wrong::Len(is))),
                    }
                }
            }
            Err(e) if is_damage(&e) => {
                let e = Arc::new(e);
                bad.extend(of_kind.into_iter().map(|r| (*r, Wrong::Entry(Arc::clone(&e)))));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn one_by_one(read: &RangeRead) -> impl Iterator<Item = RangeRead> + '_ {
    read.entries.iter().map(|addr| RangeRead {
        pack: addr.pack,
        start: addr.offset,
        len: addr.stored_len,
        entries: vec![*addr],
    })
}

struct Collector<'a> {
    packs: &'a HashSet<PackId>,
    maps: &'a [VolumeMap],
    via: HashMap<PackId, Stub>,
    /// Pages that were met.
    pages: Visited,
    found: Vec<Reference>,
    /// When those that name one place are put together: many may name it, and there are only so
    /// many places.
    found_max: usize,
}

impl Collector<'_> {
    fn compact(&mut self) {
        self.found.sort_unstable();
        self.found.dedup();
        self.found_max = FOUND_MAX.max(2 * self.found.len());
    }

    fn meet(&mut self, reference: Reference) {
        let mut at = reference.at;
        for _ in 0..=STUB_HOPS_MAX {
            if self.packs.contains(&at.pack) {
                self.found.push(Reference { at, ..reference });
                if self.found.len() >= self.found_max {
                    self.compact();
                }
                return;
            }
            let next = self.via.get(&at.pack).and_then(|stub| stub.find(at.entry, at.index));
            match next {
                Some(next) => at = *next,
                None => return,
            }
        }
    }
}

impl Visitor for Collector<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        if !self.pages.insert(at.key(self.maps)) {
            return Ok(false);
        }
        let id = *at.page.id.as_bytes();
        self.meet(Reference { at: at.page.location, id, is_page: true, len: 0 });
        Ok(true)
    }

    fn chunk(&mut self, leaf: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        let id = *chunk.id.as_bytes();
        let len = self.maps[leaf.map as usize].geometry().len(ChunkNo(number));
        self.meet(Reference { at: chunk.location, id, is_page: false, len });
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        if is_damage(&error) { Ok(()) } else { Err(error) }
    }
}
