//! Packs that do not say rightly what is in them: what refers to them is collected by another walk,
//! and read by it.
//!
//! Memory: some [`REFS_MAX`] references of about 100 bytes at a time, or those of one pack; two
//! bits for each page; and stubs that lead into such packs.

use super::pack::EntryChecker;
use super::{Check, is_damage};
use crate::error::{Error, Result};
use crate::fetch::{EntryAddr, Fetched, RangeRead, plan_reads, read_range};
use crate::format::moved::Moved;
use crate::ids::PackId;
use crate::limits::{ENTRY_PLAIN_BYTES_MAX, MOVED_HOPS_MAX};
use crate::map::{LiveSet, PageAt, Visitor, VolumeMap, reach};
use crate::pack::EntryKind;
use crate::units::{ChunkRef, Location};
use futures::{StreamExt, stream};
use std::collections::{BTreeSet, HashMap, HashSet};

/// References that are collected at a time.
pub(super) const REFS_MAX: u64 = 1 << 18;
/// References that are held before those to one place are put together.
const FOUND_MAX: usize = 1 << 19;
const GAP_BYTES: u32 = 128 << 10;
const READ_BYTES_MAX: u32 = 2 << 20;
const READS_IN_FLIGHT: usize = 4;

/// A reference into one of the packs that are wanted, with what it must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    pub(super) at: Location,
    pub(super) id: [u8; 32],
    pub(super) is_page: bool,
}

impl Reference {
    pub(super) fn kind(&self) -> EntryKind {
        if self.is_page { EntryKind::Page } else { EntryKind::Chunks }
    }
}

impl Check {
    /// Finds out which entries of suspect packs are bad.
    pub(super) async fn read_suspects(&mut self) -> Result<()> {
        let suspects = std::mem::take(&mut self.suspects);
        for group in self.groups(&suspects) {
            let references = self.references(&group).await?;
            for bad in self.unreadable(&references).await? {
                let Reference { at, .. } = bad.0;
                match bad.1 {
                    Some(e) => self.lose_entry(at.pack, at.entry, &e),
                    None => drop(self.damage.places.insert((at.pack, at.entry, at.index))),
                }
            }
        }
        Ok(())
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
        let pages = LiveSet::new(self.repo.params().entry_chunks);
        let found = Vec::new();
        let mut collector = Collector { packs, via, pages, found, found_max: FOUND_MAX };
        reach(&self.repo, &maps, self.limits, &mut collector).await?;
        collector.compact();
        Ok(collector.found)
    }

    pub(super) fn maps(&self) -> Result<Vec<VolumeMap>> {
        self.inventory.backups.iter().map(|m| VolumeMap::of(&self.repo, m)).collect()
    }

    /// The stubs that lead into these packs, or to other stubs that do.
    async fn stubs_into(&self, packs: &HashSet<PackId>) -> Result<HashMap<PackId, Moved>> {
        let mut via: HashMap<PackId, Moved> = HashMap::new();
        for _ in 0..MOVED_HOPS_MAX {
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

    /// Reads what references lead to; gives those that find it damaged, with why if it is the whole
    /// entry.
    pub(super) async fn unreadable(
        &self,
        references: &[Reference],
    ) -> Result<Vec<(Reference, Option<Error>)>> {
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

    async fn look_at(&self, references: &[Reference]) -> Result<Vec<(Reference, Option<Error>)>> {
        let mut checker = EntryChecker::new(&self.repo)?;
        let mut bad = Vec::new();
        let mut addrs = Vec::new();
        for reference in references {
            let addr = EntryAddr::from(&reference.at);
            match addr.check(ENTRY_PLAIN_BYTES_MAX) {
                Ok(()) => addrs.push(addr),
                Err(e) => bad.push((*reference, Some(e))),
            }
        }
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
                        let of_entry = of_entry(references, &read.entries[0]);
                        bad.extend(of_entry.first().map(|reference| (*reference, Some(e))));
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
    bad: &mut Vec<(Reference, Option<Error>)>,
) -> Result<()> {
    let of_entry = of_entry(references, addr);
    let Some(first) = of_entry.first() else { return Ok(()) };
    let wanted: Vec<_> = of_entry.iter().map(|r| (r.at.index, r.id)).collect();
    match checker.check_some(first.kind(), &addr.pack, addr.offset, stored, &wanted) {
        Ok(indexes) => {
            let hit = of_entry.iter().filter(|r| indexes.contains(&r.at.index));
            bad.extend(hit.map(|r| (*r, None)));
        }
        Err(e) if is_damage(&e) => bad.push((*first, Some(e))),
        Err(e) => return Err(e),
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
    via: HashMap<PackId, Moved>,
    /// Pages that were met.
    pages: LiveSet,
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

    fn meet(&mut self, at: &Location, id: &[u8; 32], is_page: bool) {
        let mut at = *at;
        for _ in 0..MOVED_HOPS_MAX {
            if self.packs.contains(&at.pack) {
                self.found.push(Reference { at, id: *id, is_page });
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
        // what no pack can have was found by the mark
        let Ok(true) = self.pages.insert(&at.page.location) else { return Ok(false) };
        self.meet(&at.page.location, at.page.id.as_bytes(), true);
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.meet(&chunk.location, chunk.id.as_bytes(), false);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        if is_damage(&error) { Ok(()) } else { Err(error) }
    }
}
