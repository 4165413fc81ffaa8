//! What the log has newer, when all of it is read.

use super::inodes::{InodeChanges, Replayed};
use super::unusable;
use crate::Refusal;
use crate::xfs::SECTOR;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What is changed is told in pieces of this size.
pub(super) const GRAIN: usize = 128;
/// What is kept of a change, and of a grain, besides its bytes.
pub(super) const CHANGE_BYTES: usize = 64;
pub(super) const PIECE_BYTES: usize = 48;

/// What is changed of a block: from which byte on, and to what.
pub(super) type Parts = Vec<(usize, Vec<u8>)>;

/// What the log has newer.
#[derive(Debug, Default)]
pub(in crate::xfs) struct Changes {
    /// By the buffer's place and length in sectors: at a place that is used anew at once there may
    /// be two.
    blocks: BTreeMap<(u64, u16), BlockChange>,
    pub(super) inodes: InodeChanges,
    pub(super) unfinished: Unfinished,
    /// Transactions that will be replayed.
    pub(in crate::xfs) transactions: u64,
    pub(super) dirty: bool,
    /// The largest number that a change can have.
    pub(super) newest: u64,
}

/// All that transactions changed of a block, each byte as the last of them left it. One number is
/// enough: a block on the device that has a part of it has what that part became, or will be given
/// it again.
#[derive(Debug, Default)]
struct BlockChange {
    /// Number of the record where the last transaction begins.
    lsn: u64,
    grains: BTreeMap<usize, Vec<u8>>,
}

impl BlockChange {
    fn held(&self) -> isize {
        let grains: usize = self.grains.values().map(|grain| grain.len() + PIECE_BYTES).sum();
        (grains + CHANGE_BYTES).cast_signed()
    }
}

impl Changes {
    pub(super) fn clean(newest: u64) -> Self {
        Self { newest, ..Self::default() }
    }

    /// The file system was unmounted.
    pub(in crate::xfs) fn is_clean(&self) -> bool {
        !self.dirty
    }

    /// A block changes; gives how many more bytes are held then.
    pub(super) fn change(&mut self, buffer: (u64, u16), lsn: u64, parts: &Parts) -> isize {
        let mut more = 0;
        let block = self.blocks.entry(buffer).or_insert_with(|| {
            more = CHANGE_BYTES;
            BlockChange::default()
        });
        block.lsn = block.lsn.max(lsn);
        for (at, part) in parts {
            for (number, grain) in (at / GRAIN..).zip(part.chunks(GRAIN)) {
                if block.grains.insert(number, grain.to_vec()).is_none() {
                    more += grain.len() + PIECE_BYTES;
                }
            }
        }
        more.cast_signed()
    }

    /// A buffer is given up: nothing that was said of it before counts. Gives how many more bytes
    /// are held then: none, or less.
    pub(super) fn give_up(&mut self, buffer: (u64, u16), block_bytes: u64) -> isize {
        let gone = self.blocks.remove(&buffer).map_or(0, |block| block.held());
        self.inodes.give_up(buffer.0, buffer.1.into(), block_bytes) - gone
    }

    /// Puts upon a block what is newer than it is; tells whether anything was. `newest` is the
    /// number that the block itself carries; parts of it that have an entry of their own carry
    /// none. One that the log has not come to is refused, as the kernel does: a log of another
    /// time, or a block of one.
    pub(in crate::xfs) fn apply(
        &self,
        sector: u64,
        bytes: &mut [u8],
        newest: u64,
    ) -> Result<bool, Refusal> {
        if newest > self.newest && newest != u64::MAX {
            let (round, place) = (newest >> 32, newest & 0xffff_ffff);
            let why = format!(
                "metadata at byte {} has number {round}:{place}, which its log has not come to",
                sector * SECTOR
            );
            return Err(unusable(why));
        }
        let mut changed = false;
        let end = sector.saturating_add((bytes.len() as u64).div_ceil(SECTOR));
        let mut all: Vec<_> = self.blocks.range((sector, 0)..(end, 0)).collect();
        all.sort_by_key(|(_, change)| change.lsn);
        for ((place, _), change) in all {
            // what is on the device is from that record or a later one; numbers of it that cannot
            // be are of something else
            if *place == sector && newest >= change.lsn && newest != u64::MAX {
                continue;
            }
            let from = usize::try_from((place - sector) * SECTOR).unwrap_or(usize::MAX);
            for (number, grain) in &change.grains {
                let at = from + number * GRAIN;
                let place = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..grain.len()));
                let outside = || unusable("its log changes bytes behind a block's end");
                place.ok_or_else(outside)?.copy_from_slice(grain);
            }
            changed = true;
        }
        Ok(changed)
    }

    /// The same for an inode, by its place in bytes of the volume.
    pub(in crate::xfs) fn apply_inode(
        &self,
        place: u64,
        bytes: &mut [u8],
        uuid: [u8; 16],
    ) -> Result<Replayed, Refusal> {
        self.inodes.apply(place, bytes, uuid)
    }

    /// Whether the log has begun a change of a file's blocks or attributes and not ended it.
    pub(in crate::xfs) fn is_unfinished(&self, inode: u64, what: Changing) -> bool {
        self.unfinished.files.contains(&(inode, what))
    }

    /// All of the log is read.
    pub(super) fn finished(mut self, newest: u64) -> Self {
        self.newest = newest;
        self.unfinished.files = self.unfinished.open.drain().flat_map(|(_, about)| about).collect();
        self.dirty = true;
        self
    }
}

/// What an intent is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::xfs) enum Changing {
    Content,
    Attributes,
}

/// Intents that the log has, without their ends: only a mount finishes them.
///
/// Most finish what no file shows: blocks are freed, counted, told whose they are. Others move
/// blocks into a file, or set an attribute in many steps, and until that is done the file is
/// neither what it was nor what it will be.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// By their numbers.
    open: HashMap<u64, Vec<(u64, Changing)>>,
    files: HashSet<(u64, Changing)>,
}

impl Unfinished {
    /// Bytes that one holds.
    pub(super) fn held(about: &[(u64, Changing)]) -> isize {
        (CHANGE_BYTES + 32 * about.len()).cast_signed()
    }

    /// Gives how many more bytes are held then.
    pub(super) fn begin(&mut self, id: u64, about: Vec<(u64, Changing)>) -> isize {
        let more = Self::held(&about);
        more + self.open.insert(id, about).map_or(0, |old| -Self::held(&old))
    }

    /// Gives how many more bytes are held then: none, or less.
    pub(super) fn end(&mut self, id: u64) -> isize {
        self.open.remove(&id).map_or(0, |old| -Self::held(&old))
    }
}
