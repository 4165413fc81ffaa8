//! What a directory says: its blocks one after the other. Those of an index look like entries that
//! nobody uses, so that whoever does not know the index sees all names.
//!
//! Layout: `Documentation/filesystems/ext4/directory.rst` of the kernel.

use super::node::Inode;
use super::{Ext4Files, Refusal};
use crate::files::{FileId, FileKind, FileName, Place};
use crate::{crc32c, le16, le32};

/// Inode, length, length of the name, kind.
const HEADER: usize = 8;
/// At the end of a block with checksums: an entry of nobody, of this kind.
const TAIL: usize = 12;
const TAIL_KIND: u8 = 0xde;
/// The inode of the parent, before the entries of a directory that is within its inode.
const PARENT: usize = 4;
/// Of names alone: 32 MiB hold 100,000 of the longest.
const DIRECTORY_BYTES_MAX: u64 = 4 << 30;

impl Ext4Files<'_> {
    pub(super) fn directory(&self, inode: &Inode) -> Result<Vec<FileName>, Refusal> {
        if inode.kind()? != FileKind::Directory {
            return Err(inode.wrong("it is no directory"));
        }
        inode.readable()?;
        let mut names = Vec::new();
        if inode.is_inline() {
            let bytes = self.inline(inode)?;
            let within = super::node::BLOCKS_LEN.min(bytes.len());
            // entries do not cross from the inode into its attribute
            entries(inode, bytes.get(PARENT..within).unwrap_or(&[]), &mut names)?;
            entries(inode, &bytes[within..], &mut names)?;
            return Ok(names);
        }
        if inode.size_bytes > DIRECTORY_BYTES_MAX {
            return Err(
                inode.wrong(&format!("a directory of {} bytes is too long", inode.size_bytes))
            );
        }
        let bytes = self.fs.superblock.block_bytes;
        let pieces = self.pieces(inode)?;
        let blocks = |piece: &crate::files::Piece| match piece.place {
            Place::Volume(at) => {
                at / bytes..(at + (piece.range.end - piece.range.start)).div_ceil(bytes)
            }
            _ => 0..0,
        };
        self.expect_blocks(pieces.iter().flat_map(blocks));
        let mut block = vec![0; self.fs.superblock.block_len()];
        for at in (0..inode.size_bytes).step_by(block.len()) {
            crate::files::read_content(self.fs.volume, &pieces, at, &mut block)?;
            if !(at == 0 && inode.has_index()) {
                check(inode, &block)?;
            }
            entries(inode, &block, &mut names)?;
        }
        Ok(names)
    }
}

/// The checksum of a block with entries. Blocks of an index have one elsewhere, and no names; what
/// looks like one at their end was there before they became that.
fn check(inode: &Inode, block: &[u8]) -> Result<(), Refusal> {
    let Some(seed) = inode.seed else { return Ok(()) };
    if le32(block, 0) == 0 && usize::from(le16(block, 4)) == block.len() {
        return Ok(());
    }
    let (body, tail) = block.split_at(block.len() - TAIL);
    let is_tail = le32(tail, 0) == 0 && le16(tail, 4) == TAIL as u16 && tail[6] == 0;
    if is_tail && tail[7] == TAIL_KIND && crc32c(seed, body) != le32(tail, 8) {
        return Err(inode.wrong("the checksum of a block of names does not fit"));
    }
    Ok(())
}

fn entries(inode: &Inode, block: &[u8], names: &mut Vec<FileName>) -> Result<(), Refusal> {
    let mut rest = block;
    while rest.len() >= HEADER {
        let (number, len) = (le32(rest, 0), le16(rest, 4));
        // of a block of 64 KiB the length does not fit
        let len = match len {
            0 | u16::MAX => rest.len(),
            len => usize::from(len),
        };
        let name_len = usize::from(rest[6]);
        if len < HEADER + name_len || len > rest.len() || !len.is_multiple_of(4) {
            return Err(inode.wrong("its names make no sense"));
        }
        let name = &rest[HEADER..HEADER + name_len];
        if number != 0 && !matches!(name, b"." | b"..") {
            names.push(FileName { name: name.to_vec(), id: FileId(number.into()) });
        }
        rest = &rest[len..];
    }
    Ok(())
}
