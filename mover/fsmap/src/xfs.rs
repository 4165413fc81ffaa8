//! XFS: the free extents of each allocation group, as they are once the log is replayed.
//!
//! Layout: "XFS Algorithms & Data Structures" and `fs/xfs/libxfs/xfs_format.h` of the kernel. Each
//! group has a tree of its free extents by block number; used is whatever is not in it: the log,
//! the blocks of trees, and those that a group keeps ready for its trees as well. A log that does
//! not end with an unmount record wants replaying: what its transactions changed of groups' headers
//! and of trees is put upon what is on the device ([`log`]). What else is in it, intents too, only
//! ever takes free blocks anew or gives used ones back, and neither needs to know what was in a
//! free block.
//!
//! Free blocks, the longest extent and, after an unmount, the sum of all must be what headers and
//! superblock say.

mod files;
mod log;
mod superblock;

use super::{Limits, Map, ReadAt, Refusal, UsedSpace, be16, be32, be64, crc32c, field, le32, read};
pub(super) use files::files;
use log::{Changes, Wanted};
use superblock::Superblock;

const KIND: &str = "xfs";
/// What places in the log and in block headers count in.
const SECTOR: u64 = 512;
const AGF_MAGIC: &[u8; 4] = b"XAGF";
const AGI_MAGIC: &[u8; 4] = b"XAGI";
const AGFL_MAGIC: &[u8; 4] = b"XAFL";
/// Of a tree of free extents by block number: of version 4, and of version 5.
const TREE_MAGIC: [&[u8; 4]; 2] = [b"ABTB", b"AB3B"];
/// No tree of a group can be higher.
const LEVELS_MAX: u32 = 16;

fn unusable(why: impl Into<String>) -> Refusal {
    Refusal::Unusable { kind: KIND, why: why.into() }
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    let superblock = Superblock::read(volume, volume_bytes)?;
    let changes = log::read_log(volume, &superblock, Wanted::Map)?;
    check_replayed_superblock(volume, &superblock, &changes)?;
    let fs = Xfs { volume, superblock, changes };
    let mut map = Map::new(KIND, volume_bytes, limits);
    let mut free = Free { map: &mut map, used_from: 0, blocks: 0 };
    let mut counted = 0_u64;
    for group in 0..fs.superblock.groups {
        counted += fs.walk_group(group, &mut free)?;
    }
    let (used_from, blocks) = (free.used_from, free.blocks);
    map.add(used_from..u64::MAX)?;
    // counters of the superblock are only kept up to date where the log says nothing else
    if fs.changes.is_clean() && fs.superblock.has_lazy_counters {
        let said = fs.superblock.free_blocks;
        if counted != said {
            let why = format!("its groups have {counted} blocks to give, and it says {said}");
            return Err(unusable(why));
        }
    }
    let free_bytes = blocks * fs.superblock.block_bytes;
    let replayed = fs.changes.transactions;
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, replayed, notes: Vec::new() })
}

/// Free extents, one after the other; what is between them is used.
struct Free<'m> {
    map: &'m mut Map,
    used_from: u64,
    blocks: u64,
}

struct Xfs<'a> {
    volume: &'a dyn ReadAt,
    superblock: Superblock,
    changes: Changes,
}

/// What a block of some kind keeps where.
struct Form {
    uuid: usize,
    lsn: usize,
    crc: usize,
}

const AGF: Form = Form { uuid: 64, lsn: 208, crc: 216 };
const AGI: Form = Form { uuid: 296, lsn: 320, crc: 312 };
const AGFL: Form = Form { uuid: 8, lsn: 24, crc: 32 };
const TREE: Form = Form { uuid: 32, lsn: 24, crc: 52 };

/// The header of a group.
struct Group {
    number: u32,
    /// Its blocks.
    len: u32,
    root: u32,
    levels: u32,
    free: u32,
    longest: u32,
}

/// The log may have a newer superblock: of one that was grown, say.
fn check_replayed_superblock(
    volume: &dyn ReadAt,
    superblock: &Superblock,
    changes: &Changes,
) -> Result<(), Refusal> {
    let mut bytes = read(volume, 0, superblock.sector_len())?;
    let newest = superblock.newest(&bytes);
    if !changes.apply(0, &mut bytes, newest)? {
        return Ok(());
    }
    superblock.check_same(&bytes)
}

impl Xfs<'_> {
    /// A block as it is once the log is replayed, that carries what it must.
    fn block(&self, at: u64, len: usize, form: &Form, what: &str) -> Result<Vec<u8>, Refusal> {
        let mut bytes = read(self.volume, at, len)?;
        let own = |bytes: &[u8]| field(bytes, form.uuid) == self.superblock.uuid;
        // a block that something else was in has no number that means anything: then all changes
        // count
        let has_lsn = self.superblock.has_checksums && own(&bytes);
        let newest = if has_lsn { be64(&bytes, form.lsn) } else { 0 };
        let changed = self.changes.apply(at / SECTOR, &mut bytes, newest)?;
        if !self.superblock.has_checksums {
            return Ok(bytes);
        }
        if !own(&bytes) {
            return Err(unusable(format!("{what} is of another file system")));
        }
        // what is replayed gets its checksum when it is written
        if !changed && !checksum_fits(&bytes, form.crc) {
            return Err(unusable(format!("the checksum of {what} does not fit")));
        }
        Ok(bytes)
    }

    /// Tells which blocks of a group are free; gives how many the superblock counts as free of it.
    fn walk_group(&self, number: u32, free: &mut Free<'_>) -> Result<u64, Refusal> {
        let superblock = &self.superblock;
        let header = superblock.group_start(number) * superblock.block_bytes;
        let sector = superblock.sector_bytes;
        let what = |part: &str| format!("the {part} of group {number}");
        let len = superblock.sector_len();
        let agf = self.block(header + sector, len, &AGF, &what("AGF"))?;
        let group = Group {
            number,
            len: superblock.group_len(number),
            root: be32(&agf, 16),
            levels: be32(&agf, 28),
            free: be32(&agf, 52),
            longest: be32(&agf, 56),
        };
        let fits = agf.starts_with(AGF_MAGIC)
            && be32(&agf, 4) == 1
            && be32(&agf, 8) == number
            && be32(&agf, 12) == group.len
            && group.free <= group.len
            && (1..=LEVELS_MAX).contains(&group.levels);
        if !fits {
            return Err(unusable(format!("the AGF of group {number} does not fit together")));
        }
        if self.changes.is_clean() {
            let agi = self.block(header + 2 * sector, len, &AGI, &what("AGI"))?;
            let own = agi.starts_with(AGI_MAGIC)
                && be32(&agi, 8) == number
                && be32(&agi, 12) == group.len;
            let agfl = self.block(header + 3 * sector, len, &AGFL, &what("AGFL"))?;
            let listed = !superblock.has_checksums
                || (agfl.starts_with(AGFL_MAGIC) && be32(&agfl, 4) == number);
            if !own || !listed {
                let why = format!("the AGI or the AGFL of group {number} does not fit together");
                return Err(unusable(why));
            }
        }
        self.walk_tree(&group, free)?;
        // blocks that are kept ready, and those of the trees, count as free there
        Ok(u64::from(group.free) + u64::from(be32(&agf, 48)) + u64::from(be32(&agf, 60)))
    }

    /// A walk ends: each leaf has an extent behind all before, so none is read twice, and above
    /// each there are at most as many blocks as the tree has levels.
    fn walk_tree(&self, group: &Group, free: &mut Free<'_>) -> Result<(), Refusal> {
        let number = group.number;
        let header = self.superblock.tree_header_len();
        let mut ahead = vec![(group.root, group.levels - 1)];
        let mut sums = Sums::default();
        while let Some((block, level)) = ahead.pop() {
            let bytes = self.tree_block(group, block, level)?;
            let records = usize::from(be16(&bytes, 6));
            let room = bytes.len() - header;
            let most = room / if level == 0 { 8 } else { 12 };
            if records > most || (records == 0 && group.levels > 1) {
                let why = format!("block {block} of group {number} has {records} records");
                return Err(unusable(why));
            }
            if level > 0 {
                let links = header + 8 * most;
                let link = |at: usize| (be32(&bytes, links + 4 * at), level - 1);
                ahead.extend((0..records).rev().map(link));
                continue;
            }
            for at in (header..).step_by(8).take(records) {
                let (start, len) = (be32(&bytes, at), be32(&bytes, at + 4));
                sums.add(start, len, group, &self.superblock)?;
                self.give(group, start, len, free)?;
            }
        }
        if (sums.free, sums.longest) == (u64::from(group.free), group.longest) {
            return Ok(());
        }
        let why = format!("group {number} does not have as many free blocks as its header says");
        Err(unusable(why))
    }

    fn tree_block(&self, group: &Group, block: u32, level: u32) -> Result<Vec<u8>, Refusal> {
        let superblock = &self.superblock;
        let (number, len) = (group.number, superblock.block_len());
        if block >= group.len {
            return Err(unusable(format!("group {number} refers to its block {block}")));
        }
        let at = (superblock.group_start(number) + u64::from(block)) * superblock.block_bytes;
        let bytes = self.block(at, len, &TREE, "a block of free extents")?;
        let new = superblock.has_checksums;
        let own = !new || (be64(&bytes, 16) == at / SECTOR && be32(&bytes, 48) == number);
        let fits = bytes.starts_with(TREE_MAGIC[usize::from(new)])
            && u32::from(be16(&bytes, 4)) == level
            && own;
        if fits {
            return Ok(bytes);
        }
        Err(unusable(format!("block {block} of group {number} is not one of free extents")))
    }

    fn give(
        &self,
        group: &Group,
        start: u32,
        len: u32,
        free: &mut Free<'_>,
    ) -> Result<(), Refusal> {
        let superblock = &self.superblock;
        let first = superblock.group_start(group.number) + u64::from(start);
        let end = first + u64::from(len);
        let log = superblock.log_blocks();
        if first < log.end && log.start < end {
            return Err(unusable("blocks of its log are in a list of free extents"));
        }
        let bytes = superblock.block_bytes;
        free.map.add(free.used_from..first * bytes)?;
        free.used_from = end * bytes;
        free.blocks += u64::from(len);
        Ok(())
    }
}

#[derive(Default)]
struct Sums {
    end: u32,
    free: u64,
    longest: u32,
}

impl Sums {
    fn add(
        &mut self,
        start: u32,
        len: u32,
        group: &Group,
        superblock: &Superblock,
    ) -> Result<(), Refusal> {
        let least = self.end.max(superblock.header_blocks());
        let end = start.checked_add(len).filter(|end| *end <= group.len);
        match end {
            Some(end) if start >= least && len > 0 => {
                self.end = end;
                self.free += u64::from(len);
                self.longest = self.longest.max(len);
                Ok(())
            }
            _ => {
                let number = group.number;
                Err(unusable(format!("free extents of group {number} overlap or lead outside")))
            }
        }
    }
}

/// Of a block whose checksum stands in it.
fn checksum_fits(bytes: &[u8], at: usize) -> bool {
    let (Some(before), Some(behind)) = (bytes.get(..at), bytes.get(at + 4..)) else {
        return false;
    };
    let sum = crc32c(crc32c(crc32c(!0, before), &[0; 4]), behind);
    !sum == le32(bytes, at)
}
