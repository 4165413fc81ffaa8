//! Putting right what can be: stubs of packs that are gone, dedup segments, records of damage.
//!
//! A lost chunk or page may be stored a second time: a later backup stored it again, or two did at
//! once. Directories of all packs are looked through for the ids that references to lost packs
//! want; what is found is read and checked, and a new stub leads there. Packs that a collection has
//! condemned are not relied upon, nor damaged entries. A collection that condemns later waits for
//! the reader's lease of this check, and by then finds the stub.
//!
//! A segment that cannot be read is replaced by new ones, made from the directories of the packs
//! that no other segment names.
//!
//! Nothing but segments and stubs that cannot be read is deleted or written over, and records of
//! damage that is none any more.

use super::pack::{EntryChecker, Found, Wanted};
use super::unreadable::Reference;
use super::{Check, is_damage, twice};
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::PackFrame;
use crate::format::names::{segment_key, stub_key};
use crate::format::segment::{SegmentIndex, SegmentLayout, SegmentOpener, SegmentRecord};
use crate::format::stub::{OldPlace, Stub};
use crate::ids::{ChunkId, PackId, SegmentId};
use crate::limits::{SEGMENT_HEADER_BYTES, SEGMENT_TRAILER_BYTES};
use crate::pack::{EntryKind, PackKind};
use crate::repository::{ATTACHMENTS, DamagedSet, Repository};
use crate::salvage::{directories, places};
use crate::units::Location;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Tries to write a stub that others write too.
const STUB_TRIES: u32 = 8;
/// Directories read at a time.
const IN_FLIGHT: usize = 8;
/// Records of a new segment: 20 MiB in memory.
const RECORDS_MAX: usize = 1 << 18;
/// Bytes of a segment's blocks read at a time.
const STEP_BYTES: u64 = 4 << 20;

/// What was put right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Objects that were written again: `format`, its copy, the text for people, a feature that
    /// backups need.
    pub base: u64,
    /// Stubs that were made anew, and useless ones that were removed.
    pub stubs: u64,
    /// Lost chunks and pages that a stub leads to again.
    pub found_chunks: u64,
    /// Segments that were written in the place of damaged ones.
    pub segments: u64,
    /// Entries, or whole packs, that are recorded as damaged now and were not before.
    pub recorded: u64,
    /// Records of damage that were removed, as all that they name is whole.
    pub cleared: u64,
    /// Backups that were made whole of what is stored elsewhere.
    pub backups: u64,
    /// Attempts that were forgotten, as later ones of the same backups took their place.
    pub superseded: u64,
}

impl Check {
    /// Writes `format`, its copy and the text for people again where they are gone or changed, and
    /// the feature of attachments where it is gone.
    /// Refuses what a repair does altogether where a feature is unknown here.
    pub async fn repair_base(&self, repaired: &mut Repaired) -> Result<()> {
        self.repo.refuse_unknown_to_write("check and repair").await?;
        repaired.base += self.repo.repair_base().await?.len() as u64;
        if self.lacks_attachments {
            self.repo.add_feature(ATTACHMENTS.name, "check").await?;
            repaired.base += 1;
        }
        Ok(())
    }

    /// Looks for what is lost in all packs, and leads there by new stubs. If anything was found,
    /// the check has to be made [`again`](Self::again): more can be read now.
    pub async fn repair_stubs(&mut self, repaired: &mut Repaired) -> Result<bool> {
        let condemned = self.repo.condemned_packs().await?;
        let mut found_any = false;
        for group in self.groups(&self.lost.clone()) {
            let references = self.references(&group).await?;
            let lost = |r: &&Reference| self.damage.contains(&r.at);
            let lost: Vec<Reference> = references.iter().filter(lost).copied().collect();
            let found = self.search(&lost, &condemned).await?;
            let mut by_pack: BTreeMap<PackId, Vec<(OldPlace, Location)>> = BTreeMap::new();
            for (reference, to) in found {
                let old = (reference.at.entry, reference.at.index);
                by_pack.entry(reference.at.pack).or_default().push((old, to));
            }
            for (pack, places) in by_pack {
                found_any = true;
                repaired.stubs += 1;
                repaired.found_chunks += places.len() as u64;
                self.put_stub(pack, places).await?;
            }
        }
        self.remove_useless_stubs(repaired).await?;
        Ok(found_any)
    }

    /// A stub of what the old one says, if it can be read, and of this. What somebody else writes
    /// meanwhile is not lost: the first one is created, and what was written over another one is
    /// looked at.
    async fn put_stub(&self, pack: PackId, places: Vec<(OldPlace, Location)>) -> Result<()> {
        for _ in 0..STUB_TRIES {
            let mut all: BTreeMap<OldPlace, Location> = places.iter().copied().collect();
            let old = match twice(|| self.repo.read_stub(&pack)).await {
                Err(e) if is_damage(&e) => None,
                read => Some(read?),
            };
            if let Some(Some(old)) = &old {
                let kept = old.relocations().iter().filter(|(_, to)| !self.damage.contains(to));
                all.extend(kept.copied());
            }
            let stub = Stub::new(pack, all.into_iter().collect())?;
            let written = match old {
                Some(None) => self.repo.create_stub(&stub).await?,
                Some(Some(_)) | None => {
                    self.repo.put_stub(&stub).await?;
                    let there = self.repo.read_stub(&pack).await?;
                    there.is_some_and(|there| there.relocations() == stub.relocations())
                }
            };
            if written {
                return Ok(());
            }
        }
        let context = format!("write {}", stub_key(&pack));
        Err(Error::new(ErrorKind::Unavailable, context, "others write it again and again")
            .hint("run it again"))
    }

    /// Stubs that cannot be read, of packs that nothing refers to: they only keep collections from
    /// their work.
    async fn remove_useless_stubs(&self, repaired: &mut Repaired) -> Result<()> {
        for pack in self.inventory.broken_stubs.iter().filter(|pack| !self.refs.has(pack)) {
            self.repo.store().delete(&stub_key(pack)).await?;
            repaired.stubs += 1;
        }
        Ok(())
    }

    /// Looks for ids in the directories of all packs. What is found was read and is whole.
    async fn search(
        &self,
        lost: &[Reference],
        condemned: &HashSet<PackId>,
    ) -> Result<Vec<(Reference, Location)>> {
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        let mut wanted: HashMap<([u8; 32], bool), Option<Location>> =
            lost.iter().map(|r| ((r.id, r.is_page), None)).collect();
        let packs = self.packs_without(condemned).collect();
        directories(&self.repo, packs, has_none, |pack, frame| {
            let is_page = frame.header.kind == PackKind::Pages;
            for (id, at) in places(pack, &frame) {
                let Some(place) = wanted.get_mut(&(id, is_page)) else { continue };
                if place.is_none() && !self.damage.contains(&at) {
                    *place = Some(at);
                }
            }
            Ok(())
        })
        .await?;
        let at = |r: &Reference| *wanted.get(&(r.id, r.is_page))?;
        let candidates: Vec<(Reference, Location)> =
            lost.iter().filter_map(|r| Some((*r, at(r)?))).collect();
        self.confirmed(candidates).await
    }

    /// Those whose new place holds what it must.
    async fn confirmed(
        &self,
        candidates: Vec<(Reference, Location)>,
    ) -> Result<Vec<(Reference, Location)>> {
        let mut checker = EntryChecker::new(&self.repo)?;
        let mut good = Vec::new();
        for (reference, to) in candidates {
            let key = crate::format::names::pack_key(&to.pack);
            let range = u64::from(to.offset)..u64::from(to.offset) + u64::from(to.stored_len);
            let wanted = [Wanted { index: to.index, ..reference.wanted() }];
            let kind: EntryKind = reference.kind();
            let checked = match self.repo.store().get_range(&key, range).await {
                Ok(stored) => checker.check_some(kind, &to.pack, to.offset, &stored, &wanted),
                Err(e) => Err(e),
            };
            match checked {
                Ok(found) if found == [Found::Right] => good.push((reference, to)),
                Ok(_) => {}
                Err(e) if is_damage(&e) || e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(good)
    }

    /// Replaces segments that cannot be read.
    pub async fn repair_segments(&mut self, repaired: &mut Repaired) -> Result<()> {
        let broken = std::mem::take(&mut self.inventory.broken_segments);
        if broken.is_empty() {
            return Ok(());
        }
        let condemned = self.repo.condemned_packs().await?;
        let missing = |(pack, _): &(PackId, u64)| !self.inventory.in_segments.contains(pack);
        let packs: Vec<_> = self.packs_without(&condemned).filter(missing).collect();
        let mut records: Vec<SegmentRecord> = Vec::new();
        for some in packs.chunks(IN_FLIGHT) {
            directories(&self.repo, some.to_vec(), has_none, |pack, frame| {
                if frame.header.kind == PackKind::Chunks {
                    records.extend(self.records_of(pack, &frame));
                }
                Ok(())
            })
            .await?;
            if records.len() >= RECORDS_MAX {
                self.repo.put_segment(std::mem::take(&mut records)).await?;
                repaired.segments += 1;
            }
        }
        if !records.is_empty() {
            self.repo.put_segment(records).await?;
            repaired.segments += 1;
        }
        // only now: what they named is found again by then
        self.repo.store().delete_all(broken).await
    }

    /// Packs in the store that are not condemned, with their sizes.
    fn packs_without(&self, condemned: &HashSet<PackId>) -> impl Iterator<Item = (PackId, u64)> {
        let packs = self.inventory.packs.iter().map(|(pack, size)| (*pack, *size));
        packs.filter(|(pack, _)| !condemned.contains(pack))
    }

    fn records_of<'a>(
        &'a self,
        pack: &'a PackId,
        frame: &'a PackFrame,
    ) -> impl Iterator<Item = SegmentRecord> + 'a {
        places(pack, frame).filter_map(|(id, location)| {
            let id = ChunkId::from_bytes(id);
            (!self.damage.contains(&location)).then_some(SegmentRecord { id, location })
        })
    }

    /// What nobody is to build on. Of a pack with a bad frame that is all: only a segment knows what
    /// is in it.
    fn unusable(&self) -> DamagedSet {
        let mut all = self.damage.to_records();
        self.bad_frames.iter().for_each(|pack| all.insert(*pack, None));
        all
    }

    /// Records what is damaged, so that the next backups store it again. What is recorded already
    /// is left out.
    pub async fn record_damage(&mut self, repaired: &mut Repaired) -> Result<()> {
        let mut fresh = DamagedSet::default();
        for (pack, entry) in self.unusable().iter() {
            if !self.inventory.recorded.says(&pack, entry) {
                fresh.insert(pack, entry);
                repaired.recorded += 1;
            }
        }
        self.repo.put_damage(&fresh).await.map(drop)
    }

    /// Removes records of damage of which all is whole: somebody brought it back. `read`: packs of
    /// which every byte was read now. Whoever builds on such a pack from now on finds what he
    /// expects. Of what is gone a collection knows when nobody needs the record any more.
    pub async fn clear_records(
        &self,
        read: &HashSet<PackId>,
        repaired: &mut Repaired,
    ) -> Result<()> {
        let unusable = self.unusable();
        let whole = |(pack, _): &(PackId, Option<u32>)| {
            let there = read.contains(pack) && self.inventory.packs.contains_key(pack);
            there && !unusable.names(pack) && !self.unsteady.contains(pack)
        };
        // somebody else may have found more meanwhile
        let records = self.inventory.damage_records.iter();
        let cleared = records
            .filter(|record| self.recorded_before.contains(&record.key))
            .filter(|record| record.entries.iter().all(whole));
        let keys: Vec<String> = cleared.map(|record| record.key.clone()).collect();
        repaired.cleared += keys.len() as u64;
        self.repo.store().delete_all(keys).await
    }
}

/// Whether a pack has no readable directory, or is gone.
fn has_none(e: &Error) -> bool {
    is_damage(e) || e.kind() == ErrorKind::NotFound
}

/// Reads all of a segment: lengths, tags, order and hash. Gives the packs that it names; `None`: it
/// is gone.
pub(super) async fn read_segment(
    repo: &Arc<Repository>,
    id: &SegmentId,
    size_bytes: u64,
) -> Result<Option<Vec<PackId>>> {
    match read_blocks(repo, id, size_bytes).await {
        Ok(packs) => Ok(Some(packs)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

async fn read_blocks(
    repo: &Arc<Repository>,
    id: &SegmentId,
    size_bytes: u64,
) -> Result<Vec<PackId>> {
    let (store, key) = (repo.store(), segment_key(id));
    let opener = SegmentOpener::new(repo.keys(), repo.keys().encryption(), id);
    let what = opener.what();
    let too_short = || crate::format::corrupt(what, "it is too short");
    let trailer_at =
        size_bytes.checked_sub(u64::from(SEGMENT_TRAILER_BYTES)).ok_or_else(too_short)?;
    let head = store.get_range(&key, 0..u64::from(SEGMENT_HEADER_BYTES)).await?;
    let trailer = store.get_range(&key, trailer_at..size_bytes).await?;
    let header = match opener.check_header(&head, repo.id()) {
        // newer, and not damaged, only if the hash vouches for it
        Err(e) if e.kind() == ErrorKind::Unsupported => Err(e),
        header => Ok(header?),
    };
    let layout = SegmentLayout::decode(what, size_bytes, &trailer)?;
    let sealed_index = store.get_range(&key, layout.index()).await?;
    let plain_index = opener.open_index(&layout, &sealed_index)?;
    let index = SegmentIndex::decode(what, &layout, &plain_index)?;
    index.check_order(what)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head);
    let mut block = 0;
    while block < layout.blocks() {
        let start = layout.block(block).start;
        let mut end = block + 1;
        while end < layout.blocks() && layout.block(end).end - start <= STEP_BYTES {
            end += 1;
        }
        let bytes = store.get_range(&key, start..layout.block(end - 1).end).await?;
        hasher.update(&bytes);
        for number in block..end {
            let at = layout.block(number);
            let place = |n: u64| usize::try_from(n - start).unwrap_or(usize::MAX);
            let sealed = bytes.get(place(at.start)..place(at.end)).ok_or_else(too_short)?;
            let plain = opener.open_block(&layout, number, sealed)?;
            index.records(what, &plain)?;
        }
        block = end;
    }
    hasher.update(&sealed_index);
    let (hashed, hash) = trailer.split_at(trailer.len().saturating_sub(32));
    hasher.update(hashed);
    if hasher.finalize().as_bytes().as_slice() != hash {
        return Err(crate::format::corrupt(what, "its hash does not fit: it was damaged"));
    }
    header?;
    Ok(index.packs().collect())
}
