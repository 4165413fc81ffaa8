//! Where the bytes of a file are, and the path of a link that has no room within its inode.

use super::inode::{Fork, Inode};
use super::{REMOTE, REMOTE_HEADER, Refusal, TARGET_BYTES_MAX, XfsFiles};
use crate::be32;
use crate::files::{Piece, Place};
use std::ops::Range;

/// Stretches of one file: 40 bytes each.
const PIECES_MAX: usize = 4 << 20;
const LINK_MAGIC: u32 = 0x5853_4c4d;

/// Collects the stretches of a file, in its order.
struct Pieces<'a> {
    inode: &'a Inode,
    block_bytes: u64,
    all: Vec<Piece>,
}

impl Pieces<'_> {
    fn push(&mut self, blocks: Range<u64>, place: Place) -> Result<(), Refusal> {
        if blocks.is_empty() {
            return Ok(());
        }
        let range = blocks.start * self.block_bytes..blocks.end * self.block_bytes;
        match (self.all.last_mut(), &place) {
            (Some(Piece { range: last, place: Place::Hole }), Place::Hole) => last.end = range.end,
            (Some(Piece { range: last, place: Place::Volume(at) }), Place::Volume(next))
                if *at + (last.end - last.start) == *next =>
            {
                last.end = range.end;
            }
            _ => self.all.push(Piece { range, place }),
        }
        match self.all.len() <= PIECES_MAX {
            true => Ok(()),
            false => Err(self.inode.wrong("it is in too many pieces")),
        }
    }
}

impl XfsFiles<'_> {
    /// Reserved blocks that were never written are holes.
    pub(super) fn pieces(&self, inode: &Inode) -> Result<Vec<Piece>, Refusal> {
        let block_bytes = self.superblock.block_bytes;
        let end = inode.size_bytes.div_ceil(block_bytes);
        let (mut at, mut pieces) = (0, Pieces { inode, block_bytes, all: Vec::new() });
        self.each_extent(inode, Fork::Data, &mut |extent| {
            // blocks behind the end are reserved, and never read
            let (first, behind) = (extent.first.min(end), (extent.first + extent.len).min(end));
            pieces.push(at..first, Place::Hole)?;
            at = behind;
            let place = match extent.written {
                true => Place::Volume(extent.start * block_bytes),
                false => Place::Hole,
            };
            pieces.push(first..behind, place)
        })?;
        pieces.push(at..end, Place::Hole)?;
        let mut pieces = pieces.all;
        if let Some(last) = pieces.last_mut() {
            last.range.end = inode.size_bytes;
        }
        Ok(pieces)
    }

    /// Each row of blocks has one header, since version 5.
    pub(super) fn remote_target(&self, inode: &Inode) -> Result<Vec<u8>, Refusal> {
        let bytes = self.superblock.block_bytes;
        let most = (TARGET_BYTES_MAX + REMOTE_HEADER as u64).div_ceil(bytes);
        let size = usize::try_from(inode.size_bytes).unwrap_or(0);
        let mut target = Vec::new();
        self.each_extent(inode, Fork::Data, &mut |extent| {
            if target.len() >= size {
                return Ok(());
            }
            if extent.len > most || !extent.written {
                return Err(inode.wrong("its path is in blocks that no path has"));
            }
            let len = usize::try_from(extent.len * bytes).unwrap_or(0);
            let block = self.sealed(inode, &[(extent.start * bytes, len)], &REMOTE, "its path")?;
            let part = match self.superblock.has_checksums {
                false => &block[..],
                true => {
                    let part = usize::try_from(be32(&block, 8)).unwrap_or(usize::MAX);
                    let fits =
                        be32(&block, 0) == LINK_MAGIC && be32(&block, 4) as usize == target.len();
                    let part = block[REMOTE_HEADER..].get(..part).filter(|_| fits);
                    part.ok_or_else(|| inode.wrong("its path makes no sense"))?
                }
            };
            target.extend_from_slice(&part[..part.len().min(size - target.len())]);
            Ok(())
        })?;
        match target.len() == size {
            true => Ok(target),
            false => Err(inode.wrong("its path is shorter than it says")),
        }
    }
}
