//! One pack: its directory against what refers to it, and its bytes against hash, tags and ids.
//!
//! Without reading data that is two requests a pack. With data the whole pack is read once, in
//! order, two reads ahead; the hash of the trailer, the tag of each entry and the id of each chunk
//! and page are checked on the way.

use super::refs::Refs;
use super::{Check, FindingKind, is_damage};
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{PackFrame, read_frame};
use crate::format::corrupt;
use crate::format::names::pack_key;
use crate::format::page::Page;
use crate::ids::{ChunkId, PackId, PageId};
use crate::pack::{DirectoryEntry, EntryKind, PACK_END_BYTES, PackHasher};
use crate::repository::Repository;
use crate::seal::Opener;
use futures::{StreamExt, stream};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of one read.
const STEP_BYTES: u64 = 2 << 20;
/// Reads that are ahead.
const STEPS_AHEAD: usize = 2;

/// Checks packs one after another; for one thread.
#[derive(Debug)]
pub struct PackChecker<'a> {
    repo: Arc<Repository>,
    refs: &'a Refs,
    entries: EntryChecker,
}

/// What is wrong with a pack.
#[derive(Debug)]
pub struct PackReport {
    pack: PackId,
    trouble: Trouble,
}

#[derive(Debug)]
enum Trouble {
    /// It is gone since packs were listed.
    Gone,
    /// It was bad when it was looked at first, and not the second time.
    Once,
    /// It does not say, or not rightly, what is in it.
    Frame(Error),
    /// Entries, or places of entries, that are bad; and whether the rest of the bytes is not as it
    /// was stored.
    Data { entries: Vec<(u32, Error)>, places: Vec<(u32, u16)>, hash: bool },
}

impl Check {
    /// A checker for each of `count` threads.
    pub fn checkers(&self, count: usize) -> Result<Vec<PackChecker<'_>>> {
        let checker = |_| {
            let entries = EntryChecker::new(&self.repo)?;
            Ok(PackChecker { repo: Arc::clone(&self.repo), refs: &self.refs, entries })
        };
        (0..count).map(checker).collect()
    }

    pub(super) fn absorb_one(&mut self, report: PackReport) {
        let PackReport { pack, trouble } = report;
        let live = self.refs.has(&pack);
        match trouble {
            Trouble::Gone => {
                self.inventory.packs.remove(&pack);
                if live {
                    self.gone.insert(pack);
                }
            }
            Trouble::Once => {
                self.findings.note(format!(
                    "{} was damaged or missing when it was read first, and whole when it was read again: look at the store",
                    pack_key(&pack)
                ));
                self.unsteady.insert(pack);
            }
            Trouble::Frame(e) => {
                self.findings.see(&e);
                if self.suspects.insert(pack) {
                    self.findings.add(FindingKind::Pack, pack_key(&pack), e.to_string());
                }
                self.bad_frames.insert(pack);
                if !live {
                    // nothing tells any more what is in it, so nobody must build on it
                    self.damage.entries.insert(pack, None);
                    self.suspects.remove(&pack);
                }
            }
            Trouble::Data { entries, places, hash } => {
                if entries.is_empty() && places.is_empty() && hash {
                    let what = "its hash is not that of its content; all its entries are whole";
                    self.findings.add(FindingKind::Pack, pack_key(&pack), what);
                }
                for (entry, e) in entries {
                    self.lose_entry(pack, entry, &e);
                }
                for (entry, index) in places {
                    let what = format!("chunk {index} of entry {entry} does not have its id");
                    self.findings.add(FindingKind::Pack, pack_key(&pack), what);
                    self.damage.places.insert((pack, entry, index));
                }
            }
        }
    }
}

impl PackChecker<'_> {
    /// Checks a pack of `size_bytes`; with `data` all of it is read. `read` is told how many bytes
    /// came. `None`: nothing is wrong. Errors are the store's.
    pub async fn check(
        &mut self,
        pack: &PackId,
        size_bytes: u64,
        data: bool,
        read: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<PackReport>> {
        if self.look(pack, size_bytes, data, read).await?.is_none() {
            return Ok(None);
        }
        // one bad answer is no damage: what is reported as such was seen twice
        let again = self.look(pack, size_bytes, data, &|_| {}).await?;
        Ok(Some(again.unwrap_or(PackReport { pack: *pack, trouble: Trouble::Once })))
    }

    async fn look(
        &mut self,
        pack: &PackId,
        size_bytes: u64,
        data: bool,
        read: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<PackReport>> {
        let report = |trouble| Ok(Some(PackReport { pack: *pack, trouble }));
        let frame = match read_frame(&self.repo, &mut self.entries.opener, pack, size_bytes).await {
            Ok(frame) => frame,
            Err(e) if e.kind() == ErrorKind::NotFound => return report(Trouble::Gone),
            Err(e) if is_damage(&e) => return report(Trouble::Frame(e)),
            Err(e) => return Err(e),
        };
        if !self.refs.fit(pack, &frame.directory) {
            let what = "its directory does not list what backups refer to";
            return report(Trouble::Frame(corrupt(format!("pack {pack}"), what)));
        }
        if !data {
            return Ok(None);
        }
        match self.check_data(pack, size_bytes, &frame, read).await {
            Ok(None) => Ok(None),
            Ok(Some(trouble)) => report(trouble),
            Err(e) if e.kind() == ErrorKind::NotFound => report(Trouble::Gone),
            Err(e) if is_damage(&e) => report(Trouble::Frame(e)),
            Err(e) => Err(e),
        }
    }

    async fn check_data(
        &mut self,
        pack: &PackId,
        size_bytes: u64,
        frame: &PackFrame,
        read: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<Trouble>> {
        let (repo, key) = (Arc::clone(&self.repo), pack_key(pack));
        let end = size_bytes.saturating_sub(PACK_END_BYTES as u64);
        let mut steps = stream::iter(steps(end))
            .map(|step| repo.store().get_range(&key, step))
            .buffered(STEPS_AHEAD);
        let mut hasher = PackHasher::new();
        let (mut held, mut held_at) = (Vec::new(), 0);
        let mut ahead = (0_u32..).zip(&frame.directory);
        let mut next = ahead.next();
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        while let Some(bytes) = steps.next().await {
            let bytes = bytes?;
            read(bytes.len() as u64);
            hasher.update(&bytes);
            held.extend_from_slice(&bytes);
            while let Some((number, entry)) = next {
                let Some(stored) = cut(&held, held_at, entry) else { break };
                let kind = frame.header.kind.entries();
                match self.entries.check(kind, pack, entry.offset, stored, &entry.ids) {
                    Ok(bad) => places.extend(bad.into_iter().map(|index| (number, index))),
                    Err(e) if is_damage(&e) => entries.push((number, e)),
                    Err(e) => return Err(e),
                }
                next = ahead.next();
            }
            // what the next entry does not need goes
            let needed = next.map_or(u64::MAX, |(_, entry)| u64::from(entry.offset));
            let used = usize::try_from(needed - held_at.min(needed)).unwrap_or(usize::MAX);
            let used = used.min(held.len());
            held.drain(..used);
            held_at += used as u64;
        }
        let hash = hasher.finish() != frame.trailer.hash;
        let clean = entries.is_empty() && places.is_empty() && !hash;
        Ok((!clean).then_some(Trouble::Data { entries, places, hash }))
    }
}

/// Opens entries and checks what is in them.
#[derive(Debug)]
pub(super) struct EntryChecker {
    repo: Arc<Repository>,
    pub(super) opener: Opener,
    plain: Vec<u8>,
}

impl EntryChecker {
    pub(super) fn new(repo: &Arc<Repository>) -> Result<Self> {
        let opener = Opener::new(Arc::clone(repo.keys()))?;
        Ok(Self { repo: Arc::clone(repo), opener, plain: Vec::new() })
    }

    /// Checks a whole entry against all ids that it must have. Gives the indexes of those that it
    /// does not.
    pub(super) fn check(
        &mut self,
        kind: EntryKind,
        pack: &PackId,
        offset: u32,
        stored: &[u8],
        ids: &[[u8; 32]],
    ) -> Result<Vec<u16>> {
        let header = self.opener.open_entry(kind, pack, offset, stored, &mut self.plain)?;
        if usize::from(header.count) != ids.len() {
            let what = format!("it has {} chunks, {} are listed", header.count, ids.len());
            return Err(corrupt(format!("pack {pack}"), what));
        }
        let wanted = (0..header.count).zip(ids);
        self.check_opened(kind, header, wanted)
    }

    /// Checks some places of an entry against the ids that references say.
    pub(super) fn check_some(
        &mut self,
        kind: EntryKind,
        pack: &PackId,
        offset: u32,
        stored: &[u8],
        wanted: &[(u16, [u8; 32])],
    ) -> Result<Vec<u16>> {
        let header = self.opener.open_entry(kind, pack, offset, stored, &mut self.plain)?;
        self.check_opened(kind, header, wanted.iter().map(|(index, id)| (*index, id)))
    }

    fn check_opened<'i>(
        &self,
        kind: EntryKind,
        header: crate::pack::EntryHeader,
        wanted: impl Iterator<Item = (u16, &'i [u8; 32])>,
    ) -> Result<Vec<u16>> {
        let (keys, params) = (self.repo.keys(), self.repo.params());
        let mut bad = Vec::new();
        for (index, id) in wanted {
            let good = if kind == EntryKind::Page {
                let page = Page::decode(&self.plain, params.page_fanout)?;
                index == 0 && page.id(keys) == PageId::from_bytes(*id)
            } else {
                let range = header.chunk(index, params.chunk)?;
                keys.chunk_id(&self.plain[range]) == ChunkId::from_bytes(*id)
            };
            if !good {
                bad.push(index);
            }
        }
        Ok(bad)
    }
}

/// An entry, if all of it is in `held`, which begins at `held_at` of the pack.
fn cut<'a>(held: &'a [u8], held_at: u64, entry: &DirectoryEntry) -> Option<&'a [u8]> {
    let from = usize::try_from(u64::from(entry.offset).checked_sub(held_at)?).ok()?;
    held.get(from..from.checked_add(entry.stored_len as usize)?)
}

fn steps(end: u64) -> impl Iterator<Item = Range<u64>> {
    let step = usize::try_from(STEP_BYTES).unwrap_or(usize::MAX);
    (0..end).step_by(step).map(move |at| at..(at + STEP_BYTES).min(end))
}
