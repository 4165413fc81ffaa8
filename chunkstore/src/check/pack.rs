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
use crate::pack::{DirectoryEntry, EntryHeader, EntryKind, PACK_END_BYTES, PackHasher};
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
    /// Its directory is unreadable.
    Frame(Error),
    /// Its directory is readable, and that, or what the pack holds, is not right.
    Content(Content),
}

/// What is not right with the content of a pack.
#[derive(Debug, Default)]
struct Content {
    /// Its directory does not list what is referred to, or not as what is there.
    misfit: bool,
    /// Entries that are bad.
    entries: Vec<(u32, Error)>,
    /// Places of entries that are bad.
    places: Vec<(u32, u16)>,
    /// Chunks that have another length than somebody expects, with theirs.
    lens: Vec<(u32, u16, u32)>,
    /// Whether the bytes are not those that were stored.
    hash: bool,
}

impl Content {
    fn is_right(&self) -> bool {
        let Self { misfit, entries, places, lens, hash } = self;
        !misfit && !hash && entries.is_empty() && places.is_empty() && lens.is_empty()
    }

    /// What the directory says wrongly is no proof against what is referred to.
    fn leave_out(&mut self, referred: impl Fn(u32) -> bool) {
        self.entries.retain(|(entry, _)| !referred(*entry));
        self.places.retain(|(entry, _)| !referred(*entry));
        self.lens.clear();
    }
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
                if self.unreadable_directories.insert(pack) {
                    self.findings.add(FindingKind::Pack, pack_key(&pack), e.to_string());
                }
                self.bad_frames.insert(pack);
                if !live {
                    // nothing tells any more what is in it, so nobody must build on it
                    self.damage.entries.insert(pack, None);
                    self.unreadable_directories.remove(&pack);
                }
            }
            Trouble::Content(content) => self.absorb_content(pack, content),
        }
    }

    fn absorb_content(&mut self, pack: PackId, mut content: Content) {
        let key = pack_key(&pack);
        if content.misfit {
            if self.unreadable_directories.insert(pack) {
                let what = "its directory does not list what backups refer to";
                self.findings.add(FindingKind::Pack, key.clone(), what);
            }
            content.leave_out(|entry| self.refs.has_entry(&pack, entry));
        }
        let Content { entries, places, lens, hash, .. } = content;
        if entries.is_empty() && places.is_empty() && hash {
            let what = "its hash is not that of its content; all its entries are whole";
            self.findings.add(FindingKind::Pack, key.clone(), what);
        }
        for (entry, e) in entries {
            self.lose_entry(pack, entry, &e);
        }
        for (entry, index) in places {
            let what = format!("chunk {index} of entry {entry} does not have its id");
            self.findings.add(FindingKind::Pack, key.clone(), what);
            self.damage.places.insert((pack, entry, index));
        }
        for (entry, index, is) in lens {
            let what = format!(
                "chunk {index} of entry {entry} has {is} bytes, and a backup refers to it where its volume has {}",
                wanted(self.refs.expected(&(pack, entry, index)), is)
            );
            self.findings.add(FindingKind::Pack, key.clone(), what);
            self.damage.lens.insert((pack, entry, index), is);
        }
    }
}

/// The lengths that were expected in vain.
fn wanted(expected: &[u32], is: u32) -> String {
    let others = expected.iter().filter(|len| **len != is).map(u32::to_string);
    others.collect::<Vec<_>>().join(" or ")
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
        let mut content = Content::default();
        let kind = frame.header.kind.entries();
        content.misfit = !self.refs.fit(pack, kind, &frame.directory);
        if data {
            match self.check_data(pack, size_bytes, &frame, &mut content, read).await {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => return report(Trouble::Gone),
                Err(e) if is_damage(&e) => return report(Trouble::Frame(e)),
                Err(e) => return Err(e),
            }
        }
        if content.is_right() { Ok(None) } else { report(Trouble::Content(content)) }
    }

    async fn check_data(
        &mut self,
        pack: &PackId,
        size_bytes: u64,
        frame: &PackFrame,
        content: &mut Content,
        read: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let (repo, key) = (Arc::clone(&self.repo), pack_key(pack));
        let end = size_bytes.saturating_sub(PACK_END_BYTES as u64);
        let mut steps = stream::iter(steps(end))
            .map(|step| repo.store().get_range(&key, step))
            .buffered(STEPS_AHEAD);
        let mut hasher = PackHasher::new();
        let (mut held, mut held_at) = (Vec::new(), 0);
        let referred = self.refs.places(pack);
        let mut referred = referred.as_slice();
        let mut ahead = (0_u32..).zip(&frame.directory);
        let mut next = ahead.next();
        while let Some(bytes) = steps.next().await {
            let bytes = bytes?;
            read(bytes.len() as u64);
            hasher.update(&bytes);
            held.extend_from_slice(&bytes);
            while let Some((number, entry)) = next {
                let Some(stored) = cut(&held, held_at, entry) else { break };
                let (of_entry, rest) =
                    referred.split_at(referred.partition_point(|place| place.0 <= number));
                referred = rest;
                let kind = frame.header.kind.entries();
                match self.entries.check(kind, pack, entry, stored) {
                    Ok(checked) => self.take(pack, number, &checked, of_entry, content)?,
                    Err(e) if is_damage(&e) => content.entries.push((number, e)),
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
        content.hash = hasher.finish() != frame.trailer.hash;
        Ok(())
    }

    /// What came of an entry: by its directory, and by those who refer to it.
    fn take(
        &self,
        pack: &PackId,
        number: u32,
        checked: &Checked,
        referred: &[(u32, u16)],
        content: &mut Content,
    ) -> Result<()> {
        let Checked { header, bad } = checked;
        let Some(bad) = bad else {
            // whether it has what is referred to is to be seen there
            content.misfit = true;
            let what = "it does not have as many chunks as are listed";
            content.entries.push((number, corrupt(format!("pack {pack}"), what)));
            return Ok(());
        };
        content.places.extend(bad.iter().map(|index| (number, *index)));
        if header.kind != EntryKind::Chunks {
            return Ok(());
        }
        let chunk = self.repo.params().chunk;
        for (_, index) in referred {
            let expected = self.refs.expected(&(*pack, number, *index));
            if expected.iter().any(|len| header.expect(*index, chunk, *len).is_err()) {
                let is = header.chunk(*index, chunk)?.len();
                content.lens.push((number, *index, u32::try_from(is).unwrap_or(u32::MAX)));
            }
        }
        Ok(())
    }
}

/// Opens entries and checks what is in them.
#[derive(Debug)]
pub(super) struct EntryChecker {
    repo: Arc<Repository>,
    pub(super) opener: Opener,
    plain: Vec<u8>,
}

/// An entry that was opened, held against the directory of its pack.
struct Checked {
    header: EntryHeader,
    /// The indexes that do not have their ids; `None`: it has not as many as are listed.
    bad: Option<Vec<u16>>,
}

/// What a reference expects at a place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) index: u16,
    pub(super) id: [u8; 32],
    /// Of a chunk.
    pub(super) len: u32,
}

/// What a reference finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Right,
    /// Something else, or nothing.
    Other,
    /// A chunk of this length.
    Len(u32),
}

impl EntryChecker {
    pub(super) fn new(repo: &Arc<Repository>) -> Result<Self> {
        let opener = Opener::new(Arc::clone(repo.keys()))?;
        Ok(Self { repo: Arc::clone(repo), opener, plain: Vec::new() })
    }

    /// Checks a whole entry against all ids that its pack lists.
    fn check(
        &mut self,
        kind: EntryKind,
        pack: &PackId,
        listed: &DirectoryEntry,
        stored: &[u8],
    ) -> Result<Checked> {
        let header = self.opener.open_entry(kind, pack, listed.offset, stored, &mut self.plain)?;
        if usize::from(header.count) != listed.ids.len() {
            return Ok(Checked { header, bad: None });
        }
        let mut bad = Vec::new();
        for (index, id) in (0..header.count).zip(&listed.ids) {
            if !self.has(header, index, id)? {
                bad.push(index);
            }
        }
        Ok(Checked { header, bad: Some(bad) })
    }

    /// Checks some places of an entry against what references say; in their order.
    pub(super) fn check_some(
        &mut self,
        kind: EntryKind,
        pack: &PackId,
        offset: u32,
        stored: &[u8],
        wanted: &[Wanted],
    ) -> Result<Vec<Found>> {
        let header = self.opener.open_entry(kind, pack, offset, stored, &mut self.plain)?;
        let chunk = self.repo.params().chunk;
        let look = |Wanted { index, id, len }: &Wanted| {
            if *index >= header.count {
                return Ok(Found::Other);
            }
            if kind == EntryKind::Chunks && header.expect(*index, chunk, *len).is_err() {
                let is = header.chunk(*index, chunk)?.len();
                return Ok(Found::Len(u32::try_from(is).unwrap_or(u32::MAX)));
            }
            Ok(if self.has(header, *index, id)? { Found::Right } else { Found::Other })
        };
        wanted.iter().map(look).collect()
    }

    /// Whether what was opened last has this chunk, or is this page.
    fn has(&self, header: EntryHeader, index: u16, id: &[u8; 32]) -> Result<bool> {
        let (keys, params) = (self.repo.keys(), self.repo.params());
        if header.kind == EntryKind::Page {
            let page = Page::decode(&self.plain, params.page_fanout)?;
            return Ok(index == 0 && page.id(keys) == PageId::from_bytes(*id));
        }
        let range = header.chunk(index, params.chunk)?;
        Ok(keys.chunk_id(&self.plain[range]) == ChunkId::from_bytes(*id))
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
