//! ext2, ext3 and ext4: the block bitmaps of the block groups, as they are once the journal is
//! replayed.
//!
//! Layout: `Documentation/filesystems/ext4` of the kernel. A snapshot of a mounted file system
//! always has a journal that wants replaying; its committed transactions hold newer copies of
//! bitmaps and descriptors, and those count ([`journal`]). Used is every block that a bitmap names
//! and, whatever bitmaps say, each copy of superblock and descriptors, all bitmaps and all inode
//! tables. Each bitmap must have as many free blocks as its descriptor says, and checksums must fit
//! where there are any.
#![allow(clippy::cast_possible_truncation)] // sizes within a block of 64 KiB, numbers of groups, halves of checksums

mod files;
mod inode;
mod journal;
mod superblock;

use super::{Limits, Map, ReadAt, Refusal, UsedSpace, crc32c, joined, le16, le32, read};
pub(super) use files::files;
use std::collections::HashMap;
use std::ops::Range;
use superblock::Superblock;

const KIND: &str = "ext4";
/// The group's bitmap was never written: nothing but metadata is used of it.
const BLOCK_UNINIT: u16 = 2;

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
    let mut fs = Ext4 { volume, superblock, newer: HashMap::new() };
    let mut replayed = 0;
    if fs.superblock.wants_replay() {
        (fs.newer, replayed) = journal::read(&fs)?;
        let bytes = fs.block(fs.superblock.own_block())?;
        fs.superblock = fs.superblock.replayed(&bytes, volume_bytes)?;
    }
    let mut map = Map::new(KIND, volume_bytes, limits);
    let free_clusters = fs.walk(&mut map)?;
    let free_bytes = free_clusters.saturating_mul(fs.superblock.cluster_bytes());
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, replayed, notes: Vec::new() })
}

/// A newer copy of a block, in the journal.
#[derive(Debug, Clone, Copy)]
struct Newer {
    /// Block of the volume.
    at: u64,
    /// The block begins with the journal's magic, which is blanked in the copy.
    escaped: bool,
}

struct Ext4<'a> {
    volume: &'a dyn ReadAt,
    superblock: Superblock,
    newer: HashMap<u64, Newer>,
}

/// A group descriptor.
struct Group {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    free_clusters: u32,
    flags: u16,
    bitmap_checksum: u32,
}

impl Ext4<'_> {
    /// A block, as it is once the journal is replayed.
    fn block(&self, number: u64) -> Result<Vec<u8>, Refusal> {
        let Some(newer) = self.newer.get(&number) else { return self.block_as_it_is(number) };
        let mut bytes = self.block_as_it_is(newer.at)?;
        if newer.escaped {
            bytes[..4].copy_from_slice(&journal::MAGIC.to_be_bytes());
        }
        Ok(bytes)
    }

    fn block_as_it_is(&self, number: u64) -> Result<Vec<u8>, Refusal> {
        let superblock = &self.superblock;
        if number >= superblock.blocks {
            let last = superblock.blocks - 1;
            return Err(unusable(format!("it refers to block {number}, and its last is {last}")));
        }
        // no overflow: the superblock was held against the size of the volume
        read(self.volume, number * superblock.block_bytes, superblock.block_len())
    }

    /// Marks what is used; gives how many clusters are free.
    fn walk(&self, map: &mut Map) -> Result<u64, Refusal> {
        let superblock = &self.superblock;
        let bytes = superblock.block_bytes;
        // the boot block of file systems with small blocks, and what lies behind the end
        map.add_anywhere(0..superblock.first_block * bytes)?;
        map.add_anywhere(superblock.blocks * bytes..u64::MAX)?;
        let mut free = 0;
        let mut descriptors = (u64::MAX, Vec::new());
        for number in 0..superblock.groups {
            let (at, offset) = superblock.descriptor(number);
            if descriptors.0 != at {
                descriptors = (at, self.block(at)?);
            }
            let end = offset + superblock.descriptor_len;
            let group = self.group(number, &descriptors.1[offset..end])?;
            for blocks in group.metadata(superblock).into_iter().chain([superblock.base(number)]) {
                map.add_anywhere(blocks.start * bytes..blocks.end * bytes)?;
            }
            self.walk_group(number, &group, map)?;
            free += u64::from(group.free_clusters);
        }
        Ok(free)
    }

    fn group(&self, number: u32, bytes: &[u8]) -> Result<Group, Refusal> {
        let superblock = &self.superblock;
        if let Some(seed) = superblock.checksum_seed {
            let mut sum = crc32c(crc32c(seed, &number.to_le_bytes()), &bytes[..0x1e]);
            sum = crc32c(crc32c(sum, &[0, 0]), &bytes[0x20..]);
            if sum as u16 != le16(bytes, 0x1e) {
                let why = format!("the checksum of the descriptor of group {number} does not fit");
                return Err(unusable(why));
            }
        }
        // the upper halves stand behind the 32 bytes of the short form, if there are any
        let long = bytes.get(32..).filter(|upper| upper.len() >= 32).unwrap_or(&[]);
        let place = |low: usize| joined(le32(bytes, low), le32(long, low));
        let halves = |low, high| u32::from(le16(bytes, low)) | u32::from(le16(long, high)) << 16;
        let group = Group {
            block_bitmap: place(0),
            inode_bitmap: place(4),
            inode_table: place(8),
            free_clusters: halves(0xc, 0xc),
            flags: le16(bytes, 0x12),
            bitmap_checksum: halves(0x18, 0x18),
        };
        let outside = |blocks: &Range<u64>| {
            blocks.start < superblock.first_block || blocks.end > superblock.blocks
        };
        if group.metadata(superblock).iter().any(outside) {
            let why = format!("the descriptor of group {number} leads outside of it");
            return Err(unusable(why));
        }
        Ok(group)
    }

    fn walk_group(&self, number: u32, group: &Group, map: &mut Map) -> Result<(), Refusal> {
        let superblock = &self.superblock;
        let (blocks, bytes) = (superblock.group_blocks(number), superblock.block_bytes);
        let clusters = (blocks.end - blocks.start).div_ceil(superblock.cluster_blocks);
        if group.flags & BLOCK_UNINIT != 0 && superblock.may_leave_bitmaps_out {
            if u64::from(group.free_clusters) > clusters {
                return Err(miscounted(number));
            }
            // what is used of it is metadata, which is marked anyway; if it is not all free but for
            // that, all of it counts as used
            let own = superblock.base(number);
            let inside =
                group.metadata(superblock).into_iter().chain([own]).map(|part| {
                    part.end.min(blocks.end).saturating_sub(part.start.max(blocks.start))
                });
            let expected: u64 = inside.sum::<u64>().div_ceil(superblock.cluster_blocks);
            if clusters - u64::from(group.free_clusters) != expected {
                map.add(blocks.start * bytes..blocks.end * bytes)?;
            }
            return Ok(());
        }
        let bitmap = self.block(group.block_bitmap)?;
        self.check_bitmap(number, group, &bitmap)?;
        let mut free = 0;
        let mut cluster = 0;
        while cluster < clusters {
            let used = bit(&bitmap, cluster);
            let start = cluster;
            while cluster < clusters && bit(&bitmap, cluster) == used {
                cluster += 1;
            }
            if used {
                let at =
                    |cluster: u64| (blocks.start + cluster * superblock.cluster_blocks) * bytes;
                map.add(at(start)..at(cluster))?;
            } else {
                free += cluster - start;
            }
        }
        if free == u64::from(group.free_clusters) { Ok(()) } else { Err(miscounted(number)) }
    }

    fn check_bitmap(&self, number: u32, group: &Group, bitmap: &[u8]) -> Result<(), Refusal> {
        let superblock = &self.superblock;
        let Some(seed) = superblock.checksum_seed else { return Ok(()) };
        let sum = crc32c(seed, &bitmap[..superblock.clusters_per_group as usize / 8]);
        // the short form of descriptors has room for half of it
        let kept = if superblock.descriptor_len >= 64 { sum } else { sum & 0xffff };
        if kept == group.bitmap_checksum {
            return Ok(());
        }
        Err(unusable(format!("the checksum of the block bitmap of group {number} does not fit")))
    }
}

impl Group {
    /// Blocks of its bitmaps and its inode table, wherever they are.
    fn metadata(&self, superblock: &Superblock) -> [Range<u64>; 3] {
        let range = |start: u64, blocks: u64| start..start.saturating_add(blocks);
        [
            range(self.block_bitmap, 1),
            range(self.inode_bitmap, 1),
            range(self.inode_table, superblock.inode_table_blocks),
        ]
    }
}

fn miscounted(number: u32) -> Refusal {
    let why = format!("group {number} does not have as many free blocks as its descriptor says");
    unusable(why)
}

fn bit(bitmap: &[u8], number: u64) -> bool {
    let byte = usize::try_from(number / 8).ok().and_then(|at| bitmap.get(at));
    byte.is_none_or(|byte| byte >> (number % 8) & 1 == 1)
}
