//! Inodes in the log: what transactions say of them, and chunks of them that are made.
//!
//! An item has all of an inode but its forks, in the byte order of the machine that wrote it, and
//! those forks that changed since the inode was last written to its place. So of two items of one
//! inode the later one counts, and of forks the last that there is. That fork may be of a file
//! before, whose inode this was: then the one that has it now has none, or one of another form.

use super::transactions::broken;
use super::unusable;
use crate::xfs::SECTOR;
use crate::{Refusal, be16, be32, be64, field, le16, le32, le64};
use std::collections::BTreeMap;

/// Bytes of an inode before its forks, since version 3.
const CORE_LEN: usize = 176;
/// Of a block of a tree of extents, before its keys, since version 5.
const TREE_HEADER: usize = 72;
/// What an item holds besides its bytes.
const CHANGE_BYTES: usize = 256;
const FRESH_BYTES: usize = 96;
/// More than a buffer of inodes has.
const BUFFER_BYTES_MAX: u64 = 64 << 10;
/// A buffer of inodes has this, or a block.
const BUFFER_BYTES_MIN: u64 = 8 << 10;
const INODE_BYTES_MIN: u64 = 256;
/// Form of the fork of a device, which is its numbers alone.
const OF_DEVICE: u8 = 0;

mod fields {
    pub(super) const DATA: u16 = 0x2;
    pub(super) const EXTENTS: u16 = 0x4;
    pub(super) const TREE: u16 = 0x8;
    pub(super) const DEVICE: u16 = 0x10;
    pub(super) const ATTRIBUTES: u16 = 0x40;
    pub(super) const ATTRIBUTE_EXTENTS: u16 = 0x80;
    pub(super) const ATTRIBUTE_TREE: u16 = 0x100;
    pub(super) const OWNERS: u16 = 0x200 | 0x400;
}

/// What is said of a fork.
#[derive(Debug)]
enum ForkChange {
    /// As it stands in an inode.
    Plain(Vec<u8>),
    /// The root of a tree, with the header of a block.
    Root(Vec<u8>),
}

impl ForkChange {
    fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) | Self::Root(bytes) => bytes.len(),
        }
    }

    /// Upon a fork of a form, of which an earlier item may have said something else: then it has
    /// become empty since, or the inode is another file's. `None` where there is no room.
    fn put(&self, fork: &mut [u8], form: u8) -> Option<()> {
        const TREE: u8 = 3;
        match self {
            Self::Plain(bytes) if form != TREE => {
                let len = bytes.len().min(fork.len());
                fork[..len].copy_from_slice(&bytes[..len]);
            }
            Self::Root(bytes) if form == TREE => {
                let records = usize::from(be16(bytes, 6));
                let from = bytes.len().checked_sub(TREE_HEADER)? / 16;
                let to = fork.len().checked_sub(4)? / 16;
                if records > from.min(to) {
                    return None;
                }
                // level and count, keys, and places behind room for as many keys as there can be
                fork[..4].copy_from_slice(&bytes[4..8]);
                let len = 8 * records;
                fork[4..4 + len].copy_from_slice(&bytes[TREE_HEADER..TREE_HEADER + len]);
                let (from, to) = (TREE_HEADER + 8 * from, 4 + 8 * to);
                fork[to..to + len].copy_from_slice(&bytes[from..from + len]);
            }
            _ => {}
        }
        Some(())
    }
}

/// What is said of an inode.
#[derive(Debug)]
pub(super) struct InodeChange {
    /// The buffer that it is in, and how long that is, in sectors.
    buffer: (u64, u32),
    lsn: u64,
    core: [u8; CORE_LEN],
    device: Option<u32>,
    data: Option<ForkChange>,
    attributes: Option<ForkChange>,
    /// Blocks of its trees may have been another inode's.
    any_owner: bool,
}

impl InodeChange {
    /// An item, with its place in bytes of the volume.
    pub(super) fn parse(pieces: &[Vec<u8>], lsn: u64) -> Result<(u64, Self), Refusal> {
        let (head, core) = (&pieces[0], pieces.get(1).ok_or_else(broken)?);
        // machines of 32 bits have no padding
        let at = match head.len() {
            56 => 40,
            52 => 36,
            _ => return Err(broken()),
        };
        let (said, device) = (le16(head, 4), le32(head, at - 16));
        let buffer = (le64(head, at), le32(head, at + 8));
        let within = u64::from(le32(head, at + 12));
        let place = buffer.0.checked_mul(SECTOR).and_then(|place| place.checked_add(within));
        let fits = within < BUFFER_BYTES_MAX && within.is_multiple_of(INODE_BYTES_MIN);
        let place = place.filter(|_| fits).ok_or_else(broken)?;
        if core.len() < CORE_LEN {
            return Err(unusable("its log has inodes in an old form"));
        }
        let mut forks = pieces[2..].iter();
        let mut fork = |plain: u16, root: u16| match said & (plain | root) {
            0 => Ok(None),
            both if both & root != 0 => {
                forks.next().map(|bytes| Some(ForkChange::Root(bytes.clone()))).ok_or_else(broken)
            }
            _ => {
                forks.next().map(|bytes| Some(ForkChange::Plain(bytes.clone()))).ok_or_else(broken)
            }
        };
        let change = Self {
            buffer,
            lsn,
            core: on_disk(core),
            device: (said & fields::DEVICE != 0).then_some(device),
            data: fork(fields::DATA | fields::EXTENTS, fields::TREE)?,
            attributes: fork(
                fields::ATTRIBUTES | fields::ATTRIBUTE_EXTENTS,
                fields::ATTRIBUTE_TREE,
            )?,
            any_owner: said & fields::OWNERS != 0,
        };
        Ok((place, change))
    }

    pub(super) fn held(&self) -> isize {
        let forks = [&self.data, &self.attributes].into_iter().flatten().map(ForkChange::len);
        (CHANGE_BYTES + forks.sum::<usize>()).cast_signed()
    }

    /// Puts it upon an inode; `None` where it has no room.
    fn put(&self, bytes: &mut [u8]) -> Option<()> {
        // of lists of inodes without names nothing is said here
        let (core, forks) = bytes.split_at_mut_checked(CORE_LEN)?;
        core.copy_from_slice(&self.core);
        let data_len = match usize::from(self.core[82]) {
            0 => forks.len(),
            eighths => 8 * eighths,
        };
        let (data, attributes) = forks.split_at_mut_checked(data_len)?;
        let put = |change: &Option<ForkChange>, fork, form| match change {
            Some(change) => change.put(fork, form),
            None => Some(()),
        };
        // a fork that is known may be of the file before, and numbers of the device before
        match (self.core[5], self.device) {
            (OF_DEVICE, None) => {}
            (OF_DEVICE, Some(device)) => {
                data.get_mut(..4)?.copy_from_slice(&device.to_be_bytes());
            }
            (form, _) => put(&self.data, data, form)?,
        }
        put(&self.attributes, attributes, self.core[83])
    }
}

/// Turns the fields of an inode to the byte order of the volume.
fn on_disk(core: &[u8]) -> [u8; CORE_LEN] {
    const LONG_TIMES: u64 = 8;
    const LONG_COUNTS: u64 = 0x10;
    let mut bytes: [u8; CORE_LEN] = field(core, 0);
    let mut turn = |at: usize, len: usize| bytes[at..at + len].reverse();
    for at in [0, 2, 6, 20, 22, 80, 88, 90] {
        turn(at, 2);
    }
    for at in [8, 12, 16, 72, 76, 84, 92, 96, 128] {
        turn(at, 4);
    }
    for at in [56, 64, 104, 112, 120, 152] {
        turn(at, 8);
    }
    let flags = le64(core, 120);
    for at in [32, 40, 48, 144] {
        if flags & LONG_TIMES != 0 {
            turn(at, 8);
        } else {
            turn(at, 4);
            turn(at + 4, 4);
        }
    }
    if flags & LONG_COUNTS != 0 {
        turn(24, 8);
    } else {
        turn(30, 2);
    }
    bytes
}

/// What became of an inode that was looked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::xfs) struct Replayed {
    /// The log has it newer, and its checksum is none.
    pub(in crate::xfs) changed: bool,
    /// Blocks of its trees may carry another inode's number.
    pub(in crate::xfs) any_owner: bool,
}

/// All inodes of which the log says anything, by their places in bytes of the volume.
#[derive(Debug, Default)]
pub(super) struct InodeChanges {
    changes: BTreeMap<u64, InodeChange>,
    /// Chunks that were made, by their first byte: where they end. What was there before is gone.
    fresh: BTreeMap<u64, u64>,
}

impl InodeChanges {
    /// An inode changes; gives how many more bytes are held then.
    pub(super) fn change(&mut self, place: u64, mut change: InodeChange) -> isize {
        let mut freed = 0;
        if let Some(old) = self.changes.remove(&place) {
            freed = old.held();
            change.data = change.data.or(old.data);
            change.attributes = change.attributes.or(old.attributes);
            change.device = change.device.or(old.device);
            change.any_owner |= old.any_owner;
            change.lsn = change.lsn.max(old.lsn);
        }
        let more = change.held() - freed;
        self.changes.insert(place, change);
        more
    }

    /// A chunk is made, of inodes that nobody uses; gives how many more bytes are held then.
    pub(super) fn make(&mut self, chunk: &std::ops::Range<u64>) -> isize {
        let mut more = 0;
        while let Some((place, _)) = self.changes.range(chunk.clone()).next() {
            let place = *place;
            more -= self.changes.remove(&place).map_or(0, |change| change.held());
        }
        match self.fresh.insert(chunk.start, chunk.end) {
            None => more + Self::fresh_held(),
            Some(_) => more,
        }
    }

    pub(super) fn fresh_held() -> isize {
        FRESH_BYTES.cast_signed()
    }

    /// A buffer is given up: nothing that was said of it before counts. One of another length at
    /// that place is another buffer, and one that is too short for inodes is of no chunk.
    pub(super) fn give_up(&mut self, sector: u64, sectors: u32, block_bytes: u64) -> isize {
        let Some(start) = sector.checked_mul(SECTOR) else { return 0 };
        let end = start.saturating_add(BUFFER_BYTES_MAX);
        let is_it = |change: &InodeChange| change.buffer == (sector, sectors);
        let gone = self.changes.range(start..end).filter(|(_, change)| is_it(change));
        let gone: Vec<u64> = gone.map(|(place, _)| *place).collect();
        let held =
            |place| self.changes.remove(&place).map_or(0, |change: InodeChange| change.held());
        let mut freed: isize = gone.into_iter().map(held).sum();
        let has_inodes = u64::from(sectors) * SECTOR >= BUFFER_BYTES_MIN.max(block_bytes);
        if let Some(chunk) = self.chunk(start).filter(|_| has_inodes) {
            self.fresh.remove(&chunk);
            freed += Self::fresh_held();
        }
        -freed
    }

    /// The first byte of a chunk that was made and has this one.
    fn chunk(&self, place: u64) -> Option<u64> {
        let (start, end) = self.fresh.range(..=place).next_back()?;
        (place < *end).then_some(*start)
    }

    /// Puts upon an inode what is newer than it is.
    pub(super) fn apply(
        &self,
        place: u64,
        bytes: &mut [u8],
        uuid: [u8; 16],
    ) -> Result<Replayed, Refusal> {
        const LSN: usize = 112;
        const UUID: usize = 160;
        let mut replayed = Replayed::default();
        let mut newest = if field(bytes, UUID) == uuid { be64(bytes, LSN) } else { 0 };
        if self.chunk(place).is_some() {
            bytes.fill(0);
            (replayed.changed, newest) = (true, 0);
        }
        if let Some(change) = self.changes.get(&place) {
            // one of the same record may have been written before all of it was
            if newest > change.lsn && newest != u64::MAX {
                return Ok(replayed);
            }
            let outside = || unusable(format!("its log has no sound inode for byte {place}"));
            change.put(bytes).ok_or_else(outside)?;
            replayed = Replayed { changed: true, any_owner: change.any_owner };
        }
        Ok(replayed)
    }
}

/// An item of a chunk that is made: group, its first block there, how many, their size, blocks.
/// Unlike other items it is in the byte order of the volume.
pub(super) struct Chunk {
    pub(super) group: u32,
    pub(super) block: u32,
    pub(super) blocks: u32,
}

impl Chunk {
    pub(super) fn parse(pieces: &[Vec<u8>]) -> Result<Self, Refusal> {
        match pieces {
            [one] if one.len() >= 28 => {
                Ok(Self { group: be32(one, 4), block: be32(one, 8), blocks: be32(one, 20) })
            }
            _ => Err(broken()),
        }
    }
}
