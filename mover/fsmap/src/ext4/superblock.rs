//! The superblock: sizes, features, and where things are that follow from them alone.
#![allow(clippy::cast_possible_truncation)] // sizes within a block of 64 KiB, numbers of groups, halves of checksums

use super::unusable;
use super::{ReadAt, Refusal, crc32c, joined, le16, le32};
use std::ops::Range;

/// Where it is, in bytes, and how long.
const OFFSET: u64 = 1024;
const LEN: usize = 1024;
const MAGIC: u16 = 0xef53;

mod incompat {
    pub(super) const RECOVER: u32 = 0x4;
    pub(super) const META_BG: u32 = 0x10;
    pub(super) const BIT64: u32 = 0x80;
    pub(super) const CSUM_SEED: u32 = 0x2000;
    /// FILETYPE, EXTENTS, MMP, FLEX_BG, EA_INODE, DIRDATA, LARGEDIR, INLINE_DATA, ENCRYPT,
    /// CASEFOLD: nothing of them touches bitmaps, or where they are.
    pub(super) const KNOWN: u32 = RECOVER | META_BG | BIT64 | CSUM_SEED | 0x3_d742;
}

mod ro_compat {
    pub(super) const SPARSE_SUPER: u32 = 0x1;
    pub(super) const GDT_CSUM: u32 = 0x10;
    pub(super) const BIGALLOC: u32 = 0x200;
    pub(super) const METADATA_CSUM: u32 = 0x400;
    /// LARGE_FILE, BTREE_DIR, HUGE_FILE, DIR_NLINK, EXTRA_ISIZE, QUOTA, READONLY, PROJECT, VERITY,
    /// ORPHAN_PRESENT.
    pub(super) const KNOWN: u32 = SPARSE_SUPER | GDT_CSUM | BIGALLOC | METADATA_CSUM | 0x1_b16e;
}

mod compat {
    pub(super) const HAS_JOURNAL: u32 = 0x4;
    pub(super) const SPARSE_SUPER2: u32 = 0x200;
}

const STATE_CLEAN: u16 = 1;
const STATE_ERRORS: u16 = 2;

/// See the module. Sizes are held against each other and against the volume.
#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) block_bytes: u64,
    pub(super) blocks: u64,
    pub(super) first_block: u64,
    pub(super) cluster_blocks: u64,
    pub(super) clusters_per_group: u32,
    blocks_per_group: u64,
    pub(super) groups: u32,
    pub(super) inodes_per_group: u32,
    pub(super) inode_len: usize,
    pub(super) inode_table_blocks: u64,
    pub(super) descriptor_len: usize,
    /// Of descriptors and bitmaps, if they have checksums.
    pub(super) checksum_seed: Option<u32>,
    /// Groups may have no bitmap on the device.
    pub(super) may_leave_bitmaps_out: bool,
    pub(super) journal_inode: u32,
    reserved_descriptor_blocks: u64,
    /// The first block of descriptors that is not behind the superblock.
    first_meta_block: u64,
    backups: Backups,
    replay: bool,
}

/// Which groups have a copy of superblock and descriptors.
#[derive(Debug)]
enum Backups {
    All,
    Powers,
    Two([u32; 2]),
}

impl Superblock {
    pub(super) fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        if volume_bytes < OFFSET + LEN as u64 {
            return Err(Refusal::Unknown);
        }
        Self::parse(&super::read(volume, OFFSET, LEN)?, volume_bytes)
    }

    fn parse(bytes: &[u8], volume_bytes: u64) -> Result<Self, Refusal> {
        let [compat, incompat, ro_compat] = [0x5c, 0x60, 0x64].map(|at| le32(bytes, at));
        // an external journal has the same magic
        if le16(bytes, 0x38) != MAGIC || incompat & 0x8 != 0 {
            return Err(Refusal::Unknown);
        }
        check_features(incompat, ro_compat)?;
        let with_checksums = ro_compat & ro_compat::METADATA_CSUM != 0;
        if with_checksums && crc32c(!0, &bytes[..0x3fc]) != le32(bytes, 0x3fc) {
            return Err(unusable("the checksum of its superblock does not fit"));
        }
        let replay = incompat & incompat::RECOVER != 0;
        check_state(le16(bytes, 0x3a), compat & compat::HAS_JOURNAL != 0, replay)?;
        let seed = if incompat & incompat::CSUM_SEED != 0 {
            le32(bytes, 0x270)
        } else {
            crc32c(!0, &bytes[0x68..0x78])
        };
        let sizes = Sizes::parse(bytes, incompat, ro_compat, volume_bytes)?;
        let meta_bg = incompat & incompat::META_BG != 0;
        let backups = match (compat & compat::SPARSE_SUPER2, ro_compat & ro_compat::SPARSE_SUPER) {
            (0, 0) => Backups::All,
            (0, _) => Backups::Powers,
            _ => Backups::Two([le32(bytes, 0x24c), le32(bytes, 0x250)]),
        };
        Ok(Self {
            block_bytes: sizes.block_bytes,
            blocks: sizes.blocks,
            first_block: sizes.first_block,
            cluster_blocks: sizes.cluster_blocks,
            clusters_per_group: sizes.clusters_per_group,
            blocks_per_group: sizes.blocks_per_group,
            groups: sizes.groups,
            inodes_per_group: sizes.inodes_per_group,
            inode_len: sizes.inode_len,
            inode_table_blocks: sizes.inode_table_blocks,
            descriptor_len: sizes.descriptor_len,
            checksum_seed: with_checksums.then_some(seed),
            may_leave_bitmaps_out: with_checksums || ro_compat & ro_compat::GDT_CSUM != 0,
            journal_inode: le32(bytes, 0xe0),
            reserved_descriptor_blocks: u64::from(le16(bytes, 0xce)),
            first_meta_block: if meta_bg { le32(bytes, 0x104).into() } else { u64::MAX },
            backups,
            replay,
        })
    }

    /// The same file system, of the superblock that the journal has; `block` is the one that holds
    /// it.
    pub(super) fn replayed(&self, block: &[u8], volume_bytes: u64) -> Result<Self, Refusal> {
        let start = (OFFSET % self.block_bytes) as usize;
        let new = Self::parse(block.get(start..start + LEN).unwrap_or_default(), volume_bytes)?;
        // it was grown, say: where things are is not looked up twice
        if (new.block_bytes, new.blocks, new.groups) != (self.block_bytes, self.blocks, self.groups)
        {
            return Err(unusable("its journal gives it another size"));
        }
        Ok(new)
    }

    /// Whether its journal holds what the next mount will write to where it belongs.
    pub(super) fn wants_replay(&self) -> bool {
        self.replay
    }

    /// The block that holds the superblock.
    pub(super) fn own_block(&self) -> u64 {
        OFFSET / self.block_bytes
    }

    pub(super) fn block_len(&self) -> usize {
        // at most 64 KiB
        self.block_bytes as usize
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        self.block_bytes * self.cluster_blocks
    }

    /// Blocks of a group.
    pub(super) fn group_blocks(&self, group: u32) -> Range<u64> {
        let start = self.first_block + u64::from(group) * self.blocks_per_group;
        start..(start + self.blocks_per_group).min(self.blocks)
    }

    /// Where a group's descriptor is: which block, and from which byte of it on.
    pub(super) fn descriptor(&self, group: u32) -> (u64, usize) {
        let in_block = self.descriptors_in_block();
        let block = u64::from(group) / in_block;
        let offset = (u64::from(group) % in_block) as usize * self.descriptor_len;
        if block < self.first_meta_block {
            return (self.own_block().max(self.first_block) + 1 + block, offset);
        }
        // the boot block, where it is a block of its own and belongs to the first group
        let boot = u64::from(block == 0 && self.own_block() > self.first_block);
        let first = (block * in_block) as u32; // the number of a group
        let own = u64::from(self.has_superblock(first));
        (self.group_blocks(first).start + boot + own, offset)
    }

    fn descriptors_in_block(&self) -> u64 {
        self.block_bytes / self.descriptor_len as u64
    }

    /// Blocks at the start of a group that hold a superblock and descriptors, or are kept for more
    /// of these.
    pub(super) fn base(&self, group: u32) -> Range<u64> {
        let all = u64::from(self.groups).div_ceil(self.descriptors_in_block());
        let own = self.has_superblock(group);
        let in_group = u64::from(group) % self.descriptors_in_block();
        let last = self.descriptors_in_block() - 1;
        let of_meta = u64::from(group) / self.descriptors_in_block() >= self.first_meta_block;
        let descriptors = if of_meta {
            u64::from(in_group < 2 || in_group == last)
        } else if own {
            // kept ones are only behind those that are not spread over the groups
            all.min(self.first_meta_block) + self.reserved_descriptor_blocks
        } else {
            0
        };
        let blocks = self.group_blocks(group);
        // the boot block, where it is a block of its own and belongs to the first group
        let boot = u64::from(group == 0 && self.own_block() > self.first_block);
        blocks.start..(blocks.start + boot + u64::from(own) + descriptors).min(blocks.end)
    }

    fn has_superblock(&self, group: u32) -> bool {
        let power = |base: u32| {
            let mut n = base;
            while n < group {
                n = n.saturating_mul(base);
            }
            n == group
        };
        group == 0
            || match self.backups {
                Backups::All => true,
                Backups::Powers => group == 1 || power(3) || power(5) || power(7),
                Backups::Two(two) => two.contains(&group),
            }
    }
}

fn check_features(incompat: u32, ro_compat: u32) -> Result<(), Refusal> {
    let unknown = (incompat & !incompat::KNOWN, ro_compat & !ro_compat::KNOWN);
    if unknown == (0, 0) {
        return Ok(());
    }
    let (incompat, ro_compat) = unknown;
    Err(unusable(format!("unknown features: incompat {incompat:#x}, ro_compat {ro_compat:#x}")))
}

fn check_state(state: u16, has_journal: bool, replay: bool) -> Result<(), Refusal> {
    if state & STATE_ERRORS != 0 {
        return Err(unusable("it has recorded errors: check it with e2fsck"));
    }
    if replay && !has_journal {
        return Err(unusable("it wants a journal replayed that it does not have"));
    }
    // with a journal that wants replaying it counts as clean
    if state & STATE_CLEAN == 0 {
        return Err(unusable("it was not unmounted, and no journal says what is missing"));
    }
    Ok(())
}

struct Sizes {
    block_bytes: u64,
    blocks: u64,
    first_block: u64,
    cluster_blocks: u64,
    clusters_per_group: u32,
    blocks_per_group: u64,
    groups: u32,
    inodes_per_group: u32,
    inode_len: usize,
    inode_table_blocks: u64,
    descriptor_len: usize,
}

impl Sizes {
    fn parse(
        bytes: &[u8],
        incompat: u32,
        ro_compat: u32,
        volume_bytes: u64,
    ) -> Result<Self, Refusal> {
        let nonsense = || unusable("the sizes in its superblock do not fit together");
        let (block_log, cluster_log) = (le32(bytes, 0x18), le32(bytes, 0x1c));
        if block_log > 6 || !(block_log..=block_log + 16).contains(&cluster_log) {
            return Err(nonsense());
        }
        let block_bytes = 1024_u64 << block_log;
        let wide = incompat & incompat::BIT64 != 0;
        let blocks = joined(le32(bytes, 4), if wide { le32(bytes, 0x150) } else { 0 });
        let first_block = u64::from(le32(bytes, 0x14));
        if blocks.checked_mul(block_bytes).is_none_or(|bytes| bytes > volume_bytes) {
            return Err(unusable(format!(
                "it has {blocks} blocks of {block_bytes} bytes, and the volume is smaller"
            )));
        }
        let bigalloc = ro_compat & ro_compat::BIGALLOC != 0;
        let cluster_blocks = if bigalloc { 1 << (cluster_log - block_log) } else { 1 };
        let clusters_per_group = le32(bytes, if bigalloc { 0x24 } else { 0x20 });
        let blocks_per_group = u64::from(le32(bytes, 0x20));
        let (inodes_per_group, revision) = (le32(bytes, 0x28), le32(bytes, 0x4c));
        let inode_len = if revision == 0 { 128 } else { usize::from(le16(bytes, 0x58)) };
        let descriptor_len = if wide { usize::from(le16(bytes, 0xfe)) } else { 32 };
        let powers = inode_len.is_power_of_two() && descriptor_len.is_power_of_two();
        let fits = first_block < blocks.min(2)
            && clusters_per_group > 0
            && clusters_per_group.is_multiple_of(8)
            && u64::from(clusters_per_group) <= 8 * block_bytes
            && blocks_per_group == u64::from(clusters_per_group) * cluster_blocks
            && inodes_per_group > 0
            && u64::from(inodes_per_group) <= 8 * block_bytes
            && powers
            && (128..=block_bytes as usize).contains(&inode_len)
            && (if wide { 64 } else { 32 }..=1024).contains(&descriptor_len);
        if !fits {
            return Err(nonsense());
        }
        let groups = (blocks - first_block).div_ceil(blocks_per_group);
        let groups = u32::try_from(groups).map_err(|_| nonsense())?;
        let inode_table_blocks =
            (u64::from(inodes_per_group) * inode_len as u64).div_ceil(block_bytes);
        Ok(Self {
            block_bytes,
            blocks,
            first_block,
            cluster_blocks,
            clusters_per_group,
            blocks_per_group,
            groups,
            inodes_per_group,
            inode_len,
            inode_table_blocks,
            descriptor_len,
        })
    }
}
