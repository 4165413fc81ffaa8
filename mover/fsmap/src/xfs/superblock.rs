//! The superblock: what is refused at once, and sizes that are held against each other and against
//! the volume.

use super::{checksum_fits, unusable};
use crate::{ReadAt, Refusal, be16, be32, be64, field, read};
use std::ops::Range;

const MAGIC: &[u8; 4] = b"XFSB";
/// More than the fields below need.
const LEN: usize = 512;
const CRC: usize = 224;
const LSN: usize = 240;

mod version {
    pub(super) const NUMBER: u16 = 0xf;
    /// ATTR, NLINK, QUOTA, ALIGN, DALIGN, LOGV2, SECTOR, EXTFLG, DIRV2, BORG, MOREBITS; not SHARED.
    pub(super) const KNOWN: u16 = 0xfdf0;
    pub(super) const DIRECTORIES_2: u16 = 0x2000;
    pub(super) const MORE: u16 = 0x8000;
}

mod features2 {
    pub(super) const LAZY_COUNTERS: u32 = 0x2;
    pub(super) const KINDS: u32 = 0x200;
    /// And ATTR2, PROJID32, CRC.
    pub(super) const KNOWN: u32 = LAZY_COUNTERS | KINDS | 0x188;
}

/// FINOBT, RMAPBT, REFLINK, INOBTCOUNT.
const RO_COMPAT_KNOWN: u32 = 0xf;
mod incompat {
    pub(super) const KINDS: u32 = 0x1;
    pub(super) const META_UUID: u32 = 0x4;
    pub(super) const NEEDS_REPAIR: u32 = 0x10;
    /// And SPINODES, BIGTIME, NREXT64, EXCHRANGE, PARENT.
    pub(super) const KNOWN: u32 = KINDS | META_UUID | 0xea;
}
/// XATTRS: only says that there may be intents of one more kind.
const LOG_INCOMPAT_KNOWN: u32 = 1;

/// Where files are, and how their names are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// The directory that all others are below.
    pub(super) root: u64,
    pub(super) inode_len: usize,
    /// Of the number of an inode: which it is in its block.
    pub(super) inode_bits: u32,
    /// Of the number of a block: which it is in its group.
    pub(super) group_bits: u32,
    /// Blocks that a block of a directory is made of.
    pub(super) directory_blocks: u64,
    /// A name has the kind of its file beside it.
    pub(super) has_kinds: bool,
}

impl Layout {
    fn of(bytes: &[u8], has_checksums: bool) -> Option<Self> {
        let [block_bits, inode_bits, per_block_bits, group_bits] =
            [120, 122, 123, 124].map(|at: usize| u32::from(bytes[at]));
        let inode_len = usize::from(be16(bytes, 104));
        let directory_bits = u32::from(bytes[192]);
        let least = if has_checksums { 512 } else { 256 };
        let fits = (least..=2048).contains(&inode_len)
            && 1_usize.checked_shl(inode_bits) == Some(inode_len)
            && inode_bits.checked_add(per_block_bits) == Some(block_bits)
            && block_bits + directory_bits <= 16
            && (1..=32).contains(&group_bits)
            && be16(bytes, 100) & version::DIRECTORIES_2 != 0;
        let more = be16(bytes, 100) & version::MORE != 0;
        let has_kinds = match has_checksums {
            true => be32(bytes, 216) & incompat::KINDS != 0,
            false => more && be32(bytes, 200) & features2::KINDS != 0,
        };
        fits.then(|| Self {
            root: be64(bytes, 56),
            inode_len,
            inode_bits: per_block_bits,
            group_bits,
            directory_blocks: 1 << directory_bits,
            has_kinds,
        })
    }
}

#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) has_checksums: bool,
    pub(super) has_lazy_counters: bool,
    /// What blocks carry.
    pub(super) uuid: [u8; 16],
    /// What records of the log carry.
    pub(super) log_uuid: [u8; 16],
    pub(super) block_bytes: u64,
    pub(super) sector_bytes: u64,
    pub(super) groups: u32,
    pub(super) free_blocks: u64,
    group_blocks: u32,
    blocks: u64,
    log: Range<u64>,
    /// `None` where it makes no sense: a map needs none of it.
    layout: Option<Layout>,
    /// All that must not change in the log.
    fixed: Vec<u8>,
}

impl Superblock {
    pub(super) fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        if volume_bytes < LEN as u64 {
            return Err(Refusal::Unknown);
        }
        let bytes = read(volume, 0, LEN)?;
        if !bytes.starts_with(MAGIC) {
            return Err(Refusal::Unknown);
        }
        let nonsense = || unusable("the sizes in its superblock do not fit together");
        let sector_bytes = u64::from(be16(&bytes, 102));
        let power = sector_bytes.is_power_of_two() && (512..=32 << 10).contains(&sector_bytes);
        if !power || volume_bytes < 4 * sector_bytes {
            return Err(nonsense());
        }
        let has_checksums = check_features(&bytes)?;
        let sector = read(volume, 0, usize::try_from(sector_bytes).map_err(|_| nonsense())?)?;
        if has_checksums && !checksum_fits(&sector, CRC) {
            return Err(unusable("the checksum of its superblock does not fit"));
        }
        let own_uuid = has_checksums && be32(&bytes, 216) & incompat::META_UUID != 0;
        let log = log_blocks(&bytes).ok_or_else(nonsense)?;
        let superblock = Self {
            has_checksums,
            has_lazy_counters: has_checksums || be32(&bytes, 200) & features2::LAZY_COUNTERS != 0,
            uuid: field(&bytes, if own_uuid { 248 } else { 32 }),
            log_uuid: field(&bytes, 32),
            block_bytes: be32(&bytes, 4).into(),
            sector_bytes,
            groups: be32(&bytes, 88),
            free_blocks: be64(&bytes, 144),
            group_blocks: be32(&bytes, 84),
            blocks: be64(&bytes, 8),
            log,
            layout: Layout::of(&bytes, has_checksums),
            fixed: fixed(&bytes),
        };
        superblock.check(&bytes, volume_bytes)?;
        Ok(superblock)
    }

    fn check(&self, bytes: &[u8], volume_bytes: u64) -> Result<(), Refusal> {
        let nonsense = || unusable("the sizes in its superblock do not fit together");
        let Self { block_bytes, sector_bytes, blocks, .. } = *self;
        let (groups, group_blocks) = (u64::from(self.groups), u64::from(self.group_blocks));
        if blocks.checked_mul(block_bytes).is_none_or(|bytes| bytes > volume_bytes) {
            return Err(unusable(format!(
                "it has {blocks} blocks of {block_bytes} bytes, and the volume is smaller"
            )));
        }
        let log2 = |at: usize| 1_u64.checked_shl(bytes[at].into());
        let fits = block_bytes.is_power_of_two()
            && (512..=64 << 10).contains(&block_bytes)
            && sector_bytes <= block_bytes
            && log2(120) == Some(block_bytes)
            && groups > 0
            && group_blocks > u64::from(self.header_blocks())
            && group_blocks.checked_next_power_of_two() == log2(124)
            && groups == blocks.div_ceil(group_blocks)
            && self.group_len(self.groups - 1) > self.header_blocks()
            && !self.log.is_empty()
            && self.log.end <= blocks;
        if !fits {
            return Err(nonsense());
        }
        Ok(())
    }

    /// Of the superblock, as it is once the log is replayed.
    pub(super) fn check_same(&self, bytes: &[u8]) -> Result<(), Refusal> {
        if fixed(bytes) == self.fixed {
            return Ok(());
        }
        Err(unusable("its log gives it another size or other features"))
    }

    /// The number of the last change to it that is on the device.
    pub(super) fn newest(&self, bytes: &[u8]) -> u64 {
        if self.has_checksums { be64(bytes, LSN) } else { 0 }
    }

    /// For who reads files.
    pub(super) fn layout(&self) -> Result<Layout, Refusal> {
        let nonsense = || unusable("the sizes of its inodes or directories make no sense");
        self.layout.ok_or_else(nonsense)
    }

    /// The first of a row of blocks, counted over all groups, of which none is in another group.
    pub(super) fn linear(&self, group: u64, block: u64, len: u64) -> Option<u64> {
        let group = u32::try_from(group).ok().filter(|group| *group < self.groups)?;
        let end = block.checked_add(len)?;
        (end <= u64::from(self.group_len(group))).then(|| self.group_start(group) + block)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn block_len(&self) -> usize {
        // at most 64 KiB
        usize::try_from(self.block_bytes).unwrap_or(0)
    }

    pub(super) fn sector_len(&self) -> usize {
        usize::try_from(self.sector_bytes).unwrap_or(0)
    }

    /// Of a block of a tree within a group.
    pub(super) fn tree_header_len(&self) -> usize {
        if self.has_checksums { 56 } else { 16 }
    }

    /// The first block of a group.
    pub(super) fn group_start(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.group_blocks)
    }

    /// Blocks of a group; the last may have less than the others.
    pub(super) fn group_len(&self, group: u32) -> u32 {
        let rest = self.blocks.saturating_sub(self.group_start(group));
        u32::try_from(rest).map_or(self.group_blocks, |rest| rest.min(self.group_blocks))
    }

    /// Blocks of a group that its four headers take.
    pub(super) fn header_blocks(&self) -> u32 {
        // at most four of the smallest
        u32::try_from((4 * self.sector_bytes).div_ceil(self.block_bytes)).unwrap_or(4)
    }

    /// Blocks of the volume.
    pub(super) fn log_blocks(&self) -> Range<u64> {
        self.log.clone()
    }
}

/// The place of the log: a group's number stands above as many bits as a block of a group needs.
fn log_blocks(bytes: &[u8]) -> Option<Range<u64>> {
    let (place, bits) = (be64(bytes, 48), u32::from(bytes[124]));
    let group = place.checked_shr(bits)?;
    let block = place - group.checked_shl(bits)?;
    let start = group.checked_mul(be32(bytes, 84).into())?.checked_add(block)?;
    Some(start..start.checked_add(be32(bytes, 96).into())?)
}

/// Sizes, places and features: everything before the counters but names, and what stands behind
/// them that a map or a file depends on.
fn fixed(bytes: &[u8]) -> Vec<u8> {
    let parts = [0..32, 48..64, 80..100, 102..108, 120..125, 192..193, 208..220];
    parts.into_iter().flat_map(|part| bytes[part].iter().copied()).collect()
}

/// Whether it is of version 5, which has checksums.
fn check_features(bytes: &[u8]) -> Result<bool, Refusal> {
    if bytes[126] != 0 {
        return Err(unusable("its mkfs or its growing was not finished"));
    }
    if be64(bytes, 16) != 0 || be64(bytes, 24) != 0 {
        return Err(unusable("it has a real-time part"));
    }
    if be64(bytes, 48) == 0 {
        return Err(unusable("its log is on another device"));
    }
    let number = be16(bytes, 100);
    let more = if number & version::MORE == 0 { 0 } else { be32(bytes, 200) };
    let unknown = (number & !(version::KNOWN | version::NUMBER), more & !features2::KNOWN);
    if unknown != (0, 0) {
        let (features, more) = unknown;
        return Err(unusable(format!("unknown features: {features:#x} and {more:#x}")));
    }
    match number & version::NUMBER {
        4 => return Ok(false),
        5 => {}
        other => return Err(unusable(format!("it is of version {other}"))),
    }
    let [ro_compat, incompat, log] = [212, 216, 220].map(|at| be32(bytes, at));
    if incompat & incompat::NEEDS_REPAIR != 0 {
        return Err(unusable("it wants to be repaired: check it with xfs_repair"));
    }
    let unknown =
        (incompat & !incompat::KNOWN, ro_compat & !RO_COMPAT_KNOWN, log & !LOG_INCOMPAT_KNOWN);
    if unknown == (0, 0, 0) {
        return Ok(true);
    }
    let (incompat, ro_compat, log) = unknown;
    Err(unusable(format!(
        "unknown features: incompat {incompat:#x}, ro_compat {ro_compat:#x}, of the log {log:#x}"
    )))
}
