//! Where the blocks of one file are: the journal's. By extents, or by the block lists of ext2 and
//! ext3.

use super::{Ext4, Refusal, le16, le32, unusable};
use std::ops::Range;

const EXTENTS_FLAG: u32 = 0x8_0000;
const EXTENT_MAGIC: u16 = 0xf30a;
/// Levels of an extent tree, as the kernel has them.
const DEPTH_MAX: u16 = 5;
/// An extent longer than this is reserved and never written; what is beyond is its length.
const WRITTEN_MAX: u16 = 1 << 15;
const DIRECT: usize = 12;
/// Far more than a journal of some GiB needs, though no two of its blocks were neighbours.
const NODES_MAX: u32 = 1 << 15;
const PIECES_MAX: usize = 1 << 20;

/// The blocks of a file, in its own order.
#[derive(Debug, Default)]
pub(super) struct FileBlocks {
    /// Ascending in the file: its block, and the volume's blocks from there on.
    pieces: Vec<(u64, Range<u64>)>,
    /// Blocks that are mapped; no file has more than the file system.
    mapped: u64,
    /// Blocks of its tree that were read.
    nodes: u32,
}

impl FileBlocks {
    /// Of an inode of the first group.
    pub(super) fn of(fs: &Ext4<'_>, inode: u32) -> Result<Self, Refusal> {
        let superblock = &fs.superblock;
        if !(1..=superblock.inodes_per_group).contains(&inode) {
            return Err(unusable(format!("its journal is inode {inode}")));
        }
        let (at, offset) = superblock.descriptor(0);
        let descriptors = fs.block(at)?;
        let group = fs.group(0, &descriptors[offset..offset + superblock.descriptor_len])?;
        let byte = (inode as usize - 1) * superblock.inode_len;
        let block = group.inode_table + (byte / superblock.block_len()) as u64;
        let table = fs.block(block)?;
        let from = byte % superblock.block_len();
        let inode = &table[from..from + superblock.inode_len];
        if le16(inode, 0) & 0xf000 != 0x8000 {
            return Err(unusable("the inode of its journal is not that of a file"));
        }
        let root = &inode[0x28..0x28 + 60];
        let mut file = Self::default();
        if le32(inode, 0x20) & EXTENTS_FLAG != 0 {
            file.extents(fs, root, None)?;
        } else {
            file.lists(fs, root)?;
        }
        Ok(file)
    }

    /// The volume's block that holds a block of the file.
    pub(super) fn block(&self, number: u64) -> Result<u64, Refusal> {
        let after = self.pieces.partition_point(|(start, _)| *start <= number);
        let piece = after.checked_sub(1).map(|at| &self.pieces[at]);
        piece
            .map(|(start, blocks)| (blocks.start + (number - start), blocks))
            .filter(|(at, blocks)| blocks.contains(at))
            .map(|(at, _)| at)
            .ok_or_else(|| unusable(format!("its journal has no block {number}")))
    }

    fn add(&mut self, fs: &Ext4<'_>, at: u64, blocks: Range<u64>) -> Result<(), Refusal> {
        let behind = self.pieces.last().map_or(0, |(start, last)| start + (last.end - last.start));
        self.mapped += blocks.end.saturating_sub(blocks.start);
        if self.pieces.len() >= PIECES_MAX {
            return Err(unusable("its journal is in too many pieces"));
        }
        if at < behind || blocks.end > fs.superblock.blocks || self.mapped > fs.superblock.blocks {
            return Err(unusable("the blocks of its journal are not in order"));
        }
        match self.pieces.last_mut() {
            Some((_, last)) if at == behind && last.end == blocks.start => last.end = blocks.end,
            _ => self.pieces.push((at, blocks)),
        }
        Ok(())
    }

    fn node(&mut self, fs: &Ext4<'_>, block: u64) -> Result<Vec<u8>, Refusal> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(unusable("the blocks of its journal are spread without end"));
        }
        fs.block(block)
    }

    /// A node of an extent tree; `depth` is what its parent says of it.
    fn extents(&mut self, fs: &Ext4<'_>, node: &[u8], depth: Option<u16>) -> Result<(), Refusal> {
        let (entries, levels) = (usize::from(le16(node, 2)), le16(node, 6));
        let fits = le16(node, 0) == EXTENT_MAGIC
            && entries < node.len() / 12
            && levels <= DEPTH_MAX
            && depth.is_none_or(|depth| depth == levels);
        if !fits {
            return Err(unusable("the extents of its journal make no sense"));
        }
        for entry in node[12..].chunks_exact(12).take(entries) {
            let at = u64::from(le32(entry, 0));
            if levels == 0 {
                let len = le16(entry, 4);
                let len = if len > WRITTEN_MAX { len - WRITTEN_MAX } else { len };
                let start = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
                self.add(fs, at, start..start + u64::from(len))?;
            } else {
                let child = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
                let node = self.node(fs, child)?;
                self.extents(fs, &node, Some(levels - 1))?;
            }
        }
        Ok(())
    }

    /// Twelve blocks, then a block of blocks, a block of those, and one of those.
    fn lists(&mut self, fs: &Ext4<'_>, root: &[u8]) -> Result<(), Refusal> {
        let mut at = 0;
        for slot in root.chunks_exact(4).take(DIRECT) {
            self.listed(fs, &mut at, le32(slot, 0), 0)?;
        }
        for (slot, level) in root[4 * DIRECT..].chunks_exact(4).zip(1..) {
            self.listed(fs, &mut at, le32(slot, 0), level)?;
        }
        Ok(())
    }

    fn listed(
        &mut self,
        fs: &Ext4<'_>,
        at: &mut u64,
        block: u32,
        level: u32,
    ) -> Result<(), Refusal> {
        let block = u64::from(block);
        if block == 0 {
            *at += (fs.superblock.block_bytes / 4).pow(level);
        } else if level == 0 {
            self.add(fs, *at, block..block + 1)?;
            *at += 1;
        } else {
            for slot in self.node(fs, block)?.chunks_exact(4) {
                self.listed(fs, at, le32(slot, 0), level - 1)?;
            }
        }
        Ok(())
    }
}
