//! Puts sealed entries together to packs, in whatever order they come.
//!
//! Entries are never copied: a finished pack is a list of `Bytes`. What came in offset order is
//! hashed at once, so finishing a pack costs only its directory.

use super::hash::{PACK_HASH_BYTES, PackHasher};
use super::layout::{DirectoryEntry, EntryHeader, PackHeader, PackTrailer, encode_directory};
use super::{ClosedPack, Codec, EntryKind, PackKind, seal_entry};
use crate::error::Result;
use crate::format::bug;
use crate::format::names::pack_key;
use crate::ids::{PackId, RepositoryId};
use crate::keys::Keys;
use crate::limits::{PACK_HEADER_BYTES, PACK_TRAILER_BYTES};
use crate::seal::SealedEntry;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// A pack that is complete and ready to be stored.
#[derive(Debug, Clone)]
pub struct FinishedPack {
    /// Its id.
    pub pack: PackId,
    /// What it holds.
    pub kind: PackKind,
    /// All its bytes, in order.
    pub parts: Vec<Bytes>,
    /// Length of all parts.
    pub len: u32,
    /// What its directory says.
    pub entries: Vec<DirectoryEntry>,
}

impl FinishedPack {
    /// Where it is stored.
    pub fn object_key(&self) -> String {
        pack_key(&self.pack)
    }
}

/// Collects the entries of packs of one kind. Has a single owner.
pub struct PackBuilder {
    keys: Arc<Keys>,
    repository_id: RepositoryId,
    kind: PackKind,
    building: HashMap<PackId, Building>,
    finished: VecDeque<FinishedPack>,
    held_bytes: usize,
}

/// A pack whose entries are still coming.
struct Building {
    hasher: PackHasher,
    /// End of what was hashed.
    end: u32,
    parts: Vec<Bytes>,
    entries: Vec<DirectoryEntry>,
    /// Entries that came before one that stands in front of them, by offset.
    early: BTreeMap<u32, SealedEntry>,
    closed: Option<ClosedPack>,
}

impl fmt::Debug for PackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackBuilder")
            .field("kind", &self.kind)
            .field("building", &self.building.len())
            .field("finished", &self.finished.len())
            .field("held_bytes", &self.held_bytes)
            .finish_non_exhaustive()
    }
}

impl PackBuilder {
    /// For packs of `kind` in this repository.
    pub fn new(keys: Arc<Keys>, repository_id: RepositoryId, kind: PackKind) -> Self {
        Self {
            keys,
            repository_id,
            kind,
            building: HashMap::new(),
            finished: VecDeque::new(),
            held_bytes: 0,
        }
    }

    /// Takes a sealed entry; if it closes its pack, the pack is closed.
    pub fn add(&mut self, mut entry: SealedEntry) -> Result<()> {
        let pack = entry.place.pack;
        let closes = entry.closes.take();
        let (header, building) = self.building(pack);
        if entry.place.offset < building.end || building.early.contains_key(&entry.place.offset) {
            return Err(bug(format!("pack {pack}"), "one place was filled twice"));
        }
        let mut added = entry.bytes.len() + header;
        building.early.insert(entry.place.offset, entry);
        if let Some(closed) = closes {
            building.set_closed(closed)?;
        }
        added += self.advance(pack)?;
        self.held_bytes += added;
        Ok(())
    }

    /// Closes a pack: at the end of a run, with what [`super::PackAllocator::close`] gave.
    pub fn close(&mut self, closed: ClosedPack) -> Result<()> {
        let pack = closed.pack;
        let (header, building) = self.building(pack);
        building.set_closed(closed)?;
        let added = header + self.advance(pack)?;
        self.held_bytes += added;
        Ok(())
    }

    /// The next complete pack.
    pub fn take_finished(&mut self) -> Option<FinishedPack> {
        let pack = self.finished.pop_front()?;
        self.held_bytes -= pack.len as usize;
        Some(pack)
    }

    /// Bytes of all packs that were not taken yet.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Packs that wait for entries or for their end. At the end of a run: 0.
    pub fn unfinished(&self) -> usize {
        self.building.len()
    }

    /// Which ones they are.
    pub fn unfinished_packs(&self) -> impl Iterator<Item = PackId> {
        self.building.keys().copied()
    }

    /// The pack's state and the bytes that were added by making it.
    fn building(&mut self, pack: PackId) -> (usize, &mut Building) {
        let mut added = 0;
        let building = self.building.entry(pack).or_insert_with(|| {
            added = PACK_HEADER_BYTES as usize;
            let header = PackHeader {
                pack,
                kind: self.kind,
                encryption: self.keys.encryption(),
                repository_id: self.repository_id,
            };
            Building::new(&header)
        });
        (added, building)
    }

    /// Appends what is in order by now; finishes the pack if that was all. Gives the bytes that
    /// finishing added.
    fn advance(&mut self, pack: PackId) -> Result<usize> {
        let Some(building) = self.building.get_mut(&pack) else { return Ok(0) };
        building.append_ready()?;
        if !building.is_complete()? {
            return Ok(0);
        }
        let Some(building) = self.building.remove(&pack) else { return Ok(0) };
        let before = building.end;
        let finished = building.finish(&self.keys, pack, self.kind)?;
        let added = (finished.len - before) as usize;
        self.finished.push_back(finished);
        Ok(added)
    }
}

impl Building {
    fn new(header: &PackHeader) -> Self {
        let mut building = Self {
            hasher: PackHasher::new(),
            end: 0,
            parts: Vec::new(),
            entries: Vec::new(),
            early: BTreeMap::new(),
            closed: None,
        };
        building.append(Bytes::copy_from_slice(&header.encode()));
        building.end = PACK_HEADER_BYTES;
        building
    }

    fn append(&mut self, bytes: Bytes) {
        self.hasher.update(&bytes);
        self.parts.push(bytes);
    }

    fn set_closed(&mut self, closed: ClosedPack) -> Result<()> {
        if self.closed.is_some() {
            return Err(bug(format!("pack {}", closed.pack), "it was closed twice"));
        }
        self.closed = Some(closed);
        Ok(())
    }

    fn append_ready(&mut self) -> Result<()> {
        while let Some(SealedEntry { place, bytes, ids, .. }) = self.early.remove(&self.end) {
            let what = || format!("pack {}", place.pack);
            if place.entry as usize != self.entries.len() {
                return Err(bug(what(), "an entry has another number than its place"));
            }
            let len = u32::try_from(bytes.len()).ok();
            let end = len.and_then(|len| self.end.checked_add(len));
            let (Some(stored_len), Some(end)) = (len, end) else {
                return Err(bug(what(), "it is too long"));
            };
            self.append(bytes);
            self.entries.push(DirectoryEntry { offset: place.offset, stored_len, ids });
            self.end = end;
        }
        Ok(())
    }

    fn is_complete(&self) -> Result<bool> {
        let Some(closed) = &self.closed else { return Ok(false) };
        if self.end < closed.end {
            return Ok(false);
        }
        let fits = self.end == closed.end
            && self.entries.len() == closed.entries as usize
            && self.early.is_empty()
            && !self.entries.is_empty();
        if fits {
            return Ok(true);
        }
        Err(bug(format!("pack {}", closed.pack), "its entries are not those that were placed"))
    }

    fn finish(mut self, keys: &Keys, pack: PackId, kind: PackKind) -> Result<FinishedPack> {
        let (directory, mut end, len) = pack_end(keys, &pack, self.end, &self.entries)?;
        self.append(directory);
        self.hasher.update(&end);
        end.extend_from_slice(&self.hasher.pack_end());
        self.parts.push(end.into());
        Ok(FinishedPack { pack, kind, parts: self.parts, len, entries: self.entries })
    }
}

/// What follows the entries of a pack, which end at `end`: its directory as stored, its trailer but
/// for the hash, and the length of the whole pack.
pub(crate) fn pack_end(
    keys: &Keys,
    pack: &PackId,
    end: u32,
    entries: &[DirectoryEntry],
) -> Result<(Bytes, Vec<u8>, u32)> {
    let too_long = |_| bug(format!("pack {pack}"), "it is too long");
    let plain = encode_directory(entries)?;
    let header = EntryHeader {
        codec: Codec::Raw,
        kind: EntryKind::Directory,
        count: 0,
        plain_len: u32::try_from(plain.len()).map_err(too_long)?,
    };
    let directory = seal_entry(&keys.pack_key(pack), end, header, &plain)?;
    let directory_len = u32::try_from(directory.len()).map_err(too_long)?;
    let len = u64::from(end) + u64::from(directory_len) + u64::from(PACK_TRAILER_BYTES);
    let len = u32::try_from(len).map_err(too_long)?;
    let trailer = PackTrailer {
        directory_offset: end,
        directory_len,
        entries: u32::try_from(entries.len()).map_err(too_long)?,
        pack_len: len,
        hash: [0; PACK_HASH_BYTES],
    };
    Ok((directory, trailer.encode_hashed(), len))
}
