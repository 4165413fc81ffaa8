//! Where the bytes of a file are.

use super::node::Inode;
use super::{Ext4Files, Refusal};
use crate::ext4::journal::MAGIC;
use crate::files::{Piece, Place};
use crate::{crc32c, le16, le32};
use std::ops::Range;

const EXTENT_MAGIC: u16 = 0xf30a;
const ENTRY: usize = 12;
/// Levels of a tree of extents, as the kernel has them.
const DEPTH_MAX: u16 = 5;
/// A longer extent is reserved and was never written; what is beyond this is its length.
const WRITTEN_MAX: u16 = 1 << 15;
const DIRECT: usize = 12;
/// Stretches of one file: 40 bytes each.
const PIECES_MAX: usize = 4 << 20;

/// Collects the blocks of a file, in its order.
struct Blocks<'a> {
    files: &'a Ext4Files<'a>,
    inode: &'a Inode,
    /// Blocks that the file has by its size. What is mapped behind them is never read.
    end: u64,
    /// The first block of the file that nothing was said of.
    at: u64,
    pieces: Vec<Piece>,
    /// Blocks of its tree; a tree that is sound has fewer than its file system has blocks.
    nodes: u64,
}

impl Ext4Files<'_> {
    /// The stretches of an inode's content.
    pub(super) fn pieces(&self, inode: &Inode) -> Result<Vec<Piece>, Refusal> {
        inode.readable()?;
        if inode.size_bytes == 0 {
            return Ok(Vec::new());
        }
        if inode.is_inline() {
            let bytes = self.inline(inode)?;
            if bytes.len() as u64 != inode.size_bytes {
                let why = format!("its {} bytes are not those within it", inode.size_bytes);
                return Err(inode.wrong(&why));
            }
            return Ok(vec![Piece { range: 0..inode.size_bytes, place: Place::Inline(bytes) }]);
        }
        let block_bytes = self.fs.superblock.block_bytes;
        let end = inode.size_bytes.div_ceil(block_bytes);
        let mut blocks = Blocks { files: self, inode, end, at: 0, pieces: Vec::new(), nodes: 0 };
        if inode.has_extents() {
            blocks.extents(inode.blocks(), None)?;
        } else {
            blocks.lists()?;
        }
        blocks.hole(end)?;
        let mut pieces = blocks.pieces;
        if let Some(last) = pieces.last_mut() {
            last.range.end = inode.size_bytes;
        }
        Ok(pieces)
    }
}

impl Blocks<'_> {
    fn push(&mut self, blocks: Range<u64>, place: Place) -> Result<(), Refusal> {
        let bytes = self.files.fs.superblock.block_bytes;
        let range = blocks.start * bytes..blocks.end * bytes;
        match (self.pieces.last_mut(), &place) {
            (Some(Piece { range: last, place: Place::Volume(at) }), Place::Volume(next))
                if *at + (last.end - last.start) == *next =>
            {
                last.end = range.end;
            }
            (Some(Piece { range: last, place: Place::Hole }), Place::Hole) => last.end = range.end,
            _ => self.pieces.push(Piece { range, place }),
        }
        match self.pieces.len() <= PIECES_MAX {
            true => Ok(()),
            false => Err(self.inode.wrong("it is in too many pieces")),
        }
    }

    fn hole(&mut self, until: u64) -> Result<(), Refusal> {
        let until = until.min(self.end);
        if self.at < until {
            self.push(self.at..until, Place::Hole)?;
            self.at = until;
        }
        Ok(())
    }

    /// Blocks of the file from `first` on are those of the volume from `start` on.
    fn add(&mut self, first: u64, start: u64, len: u64, written: bool) -> Result<(), Refusal> {
        let superblock = &self.files.fs.superblock;
        if first < self.at && self.at < self.end
            || start.checked_add(len).is_none_or(|end| end > superblock.blocks)
        {
            return Err(self.inode.wrong("its blocks are not in order"));
        }
        self.hole(first)?;
        let len = len.min(self.end.saturating_sub(first));
        if !written {
            return self.hole(first + len);
        }
        let (bytes, newer) = (superblock.block_bytes, &self.files.fs.newer);
        if newer.is_empty() {
            self.push_some(first, start, len)?;
        } else {
            // with `data=journal` the journal has blocks of files
            for number in 0..len {
                let (at, block) = (first + number, start + number);
                let place = match newer.get(&block) {
                    None => Place::Volume(block * bytes),
                    Some(copy) if copy.escaped => {
                        Place::Patched(copy.at * bytes, MAGIC.to_be_bytes())
                    }
                    Some(copy) => Place::Volume(copy.at * bytes),
                };
                self.push(at..at + 1, place)?;
            }
        }
        self.at = self.at.max(first + len);
        Ok(())
    }

    fn push_some(&mut self, first: u64, start: u64, len: u64) -> Result<(), Refusal> {
        if len == 0 {
            return Ok(());
        }
        let bytes = self.files.fs.superblock.block_bytes;
        self.push(first..first + len, Place::Volume(start * bytes))
    }

    fn node(&mut self, block: u64) -> Result<std::rc::Rc<[u8]>, Refusal> {
        self.nodes += 1;
        if self.nodes > self.files.fs.superblock.blocks {
            return Err(self.inode.wrong("its blocks are said without end"));
        }
        self.files.block(block)
    }

    /// A node of a tree of extents; `depth` is what its parent says of it.
    fn extents(&mut self, node: &[u8], depth: Option<u16>) -> Result<(), Refusal> {
        let (entries, most, levels) =
            (usize::from(le16(node, 2)), usize::from(le16(node, 4)), le16(node, 6));
        let fits = le16(node, 0) == EXTENT_MAGIC
            && entries <= most
            && (most + 1) * ENTRY <= node.len()
            && levels <= DEPTH_MAX
            && depth.is_none_or(|depth| depth == levels);
        if !fits {
            return Err(self.inode.wrong("its extents make no sense"));
        }
        if let (Some(seed), Some(_)) = (self.inode.seed, depth) {
            let tail = (most + 1) * ENTRY;
            if tail + 4 > node.len() || crc32c(seed, &node[..tail]) != le32(node, tail) {
                return Err(self.inode.wrong("the checksum of its extents does not fit"));
            }
        }
        let entries = node[ENTRY..].chunks_exact(ENTRY).take(entries);
        let child = |entry: &[u8]| u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
        if levels > 0 {
            self.files.expect_blocks(entries.clone().map(child));
        }
        for entry in entries {
            let first = u64::from(le32(entry, 0));
            if levels == 0 {
                let len = le16(entry, 4);
                let written = len <= WRITTEN_MAX;
                let len = if written { len } else { len - WRITTEN_MAX };
                let start = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
                self.add(first, start, len.into(), written)?;
            } else {
                let node = self.node(child(entry))?;
                self.extents(&node, Some(levels - 1))?;
            }
        }
        Ok(())
    }

    /// Twelve blocks, then a block of blocks, a block of those, and one of those.
    fn lists(&mut self) -> Result<(), Refusal> {
        let root = self.inode.blocks().to_vec();
        let mut at = 0;
        for slot in root.chunks_exact(4).take(DIRECT) {
            self.listed(&mut at, le32(slot, 0), 0)?;
        }
        for (slot, level) in root[4 * DIRECT..].chunks_exact(4).zip(1..) {
            self.listed(&mut at, le32(slot, 0), level)?;
        }
        Ok(())
    }

    fn listed(&mut self, at: &mut u64, block: u32, level: u32) -> Result<(), Refusal> {
        if *at >= self.end {
            return Ok(());
        }
        let block = u64::from(block);
        if block == 0 {
            *at += (self.files.fs.superblock.block_bytes / 4).pow(level);
        } else if level == 0 {
            self.add(*at, block, 1, true)?;
            *at += 1;
        } else {
            let node = self.node(block)?;
            let slots = node.chunks_exact(4).map(|slot| le32(slot, 0));
            if level > 1 {
                let below = slots.clone().filter(|block| *block != 0).map(u64::from);
                self.files.expect_blocks(below);
            }
            for slot in slots {
                self.listed(at, slot, level - 1)?;
            }
        }
        Ok(())
    }
}
