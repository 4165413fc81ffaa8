//! What a directory says: its blocks one after the other. Those of an index look like entries that
//! nobody uses, so that whoever does not know the index sees all names.
//!
//! Layout: `Documentation/filesystems/ext4/directory.rst` of the kernel.

use super::node::Inode;
use super::{Ext4Files, Refusal};
use crate::files::{FileId, FileKind, FileName, Piece, Place};
use crate::{crc32c, le16, le32};

/// Inode, length, length of the name, kind.
const HEADER: usize = 8;
/// At the end of a block with checksums: an entry of nobody, of this kind.
const TAIL: usize = 12;
const TAIL_KIND: u8 = 0xde;
/// Of the index: its entries, what is behind them, what is said of it, and `.` before that.
const INDEX_ENTRY: usize = 8;
const INDEX_TAIL: usize = 8;
const INFO: usize = 8;
const DOT: usize = 12;
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
        without_holes(inode, &pieces)?;
        let blocks = |piece: &Piece| match piece.place {
            Place::Volume(at) => {
                at / bytes..(at + (piece.range.end - piece.range.start)).div_ceil(bytes)
            }
            _ => 0..0,
        };
        self.expect_blocks(pieces.iter().flat_map(blocks));
        let mut block = vec![0; self.fs.superblock.block_len()];
        for at in (0..inode.size_bytes).step_by(block.len()) {
            crate::files::read_content(self.fs.volume, &pieces, at, &mut block)?;
            check(inode, at == 0, &block)?;
            entries(inode, &block, &mut names)?;
        }
        Ok(names)
    }
}

/// Each block of a directory has names, or is of its index.
fn without_holes(inode: &Inode, pieces: &[Piece]) -> Result<(), Refusal> {
    match pieces.iter().any(|piece| piece.place == Place::Hole) {
        true => Err(inode.wrong("a block of its names is missing")),
        false => Ok(()),
    }
}

/// The checksum of a block: with checksums, each has one. Those of the index have it behind the room
/// for their entries, and no names.
fn check(inode: &Inode, first: bool, block: &[u8]) -> Result<(), Refusal> {
    let Some(seed) = inode.seed else { return Ok(()) };
    if let Some(from) = index(block, first).filter(|_| inode.has_index()) {
        let (room, used) = (usize::from(le16(block, from)), usize::from(le16(block, from + 2)));
        let (end, tail) = (from + used * INDEX_ENTRY, from + room * INDEX_ENTRY);
        let sum = |tail: &[u8]| {
            let sum = crc32c(crc32c(seed, &block[..end]), &tail[..4]);
            crc32c(sum, &[0; 4])
        };
        return match block.get(tail..tail + INDEX_TAIL).filter(|_| used <= room) {
            Some(tail) if sum(tail) == le32(tail, 4) => Ok(()),
            _ => Err(inode.wrong("the checksum of a block of its index does not fit")),
        };
    }
    let (body, tail) = block.split_at(block.len() - TAIL);
    let is_tail = le32(tail, 0) == 0 && usize::from(le16(tail, 4)) == TAIL && tail[6] == 0;
    match is_tail && tail[7] == TAIL_KIND && crc32c(seed, body) == le32(tail, 8) {
        true => Ok(()),
        false => Err(inode.wrong("the checksum of a block of names does not fit")),
    }
}

/// Where entries of the index begin, in a block that has some: behind an entry of nobody that takes
/// all of it; in the first one behind `.`, `..`, which takes the rest, and what is said of the index.
fn index(block: &[u8], first: bool) -> Option<usize> {
    if le32(block, 0) == 0 && entry_len(block, 0) == block.len() && block[6] == 0 {
        return Some(HEADER);
    }
    let is_root = first
        && entry_len(block, 0) == DOT
        && entry_len(block, DOT) == block.len() - DOT
        && le32(block, 2 * DOT) == 0
        && usize::from(block[2 * DOT + 5]) == INFO;
    is_root.then_some(2 * DOT + INFO)
}

/// How long an entry is, by its own word; of one that fills a block of 64 KiB that does not fit.
fn entry_len(block: &[u8], at: usize) -> usize {
    match le16(block, at + 4) {
        0 | u16::MAX if block.len() > u16::MAX.into() => block.len(),
        len => len.into(),
    }
}

fn entries(inode: &Inode, block: &[u8], names: &mut Vec<FileName>) -> Result<(), Refusal> {
    let mut rest = block;
    while rest.len() >= HEADER {
        let (number, len) = (le32(rest, 0), entry_len(block, block.len() - rest.len()));
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

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u32 = 77;
    const LEN: usize = 1024;

    fn directory(seed: Option<u32>, flags: u32) -> Inode {
        let mut bytes = [0; 256];
        (bytes[1], bytes[0x1a]) = (0x40, 2);
        bytes[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        let mut inode = Inode::parse(12, &bytes, None).unwrap();
        inode.seed = seed;
        inode
    }

    fn put(block: &mut [u8], at: usize, number: u32, len: u16, name: &[u8]) {
        block[at..at + 4].copy_from_slice(&number.to_le_bytes());
        block[at + 4..at + 6].copy_from_slice(&len.to_le_bytes());
        block[at + 6] = name.len().try_into().unwrap();
        block[at + HEADER..at + HEADER + name.len()].copy_from_slice(name);
    }

    /// A block with one name, and its checksum.
    fn leaf() -> Vec<u8> {
        let mut block = vec![0; LEN];
        put(&mut block, 0, 13, (LEN - TAIL).try_into().unwrap(), b"name");
        put(&mut block, LEN - TAIL, 0, TAIL.try_into().unwrap(), b"");
        block[LEN - TAIL + 7] = TAIL_KIND;
        let sum = crc32c(SEED, &block[..LEN - TAIL]);
        block[LEN - 4..].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// A block of the index, with room for three entries, and one of them used.
    fn node() -> Vec<u8> {
        let mut block = vec![0; LEN];
        put(&mut block, 0, 0, LEN.try_into().unwrap(), b"");
        (block[8], block[10], block[12]) = (3, 1, 9);
        let sum = crc32c(crc32c(crc32c(SEED, &block[..16]), &[0; 4]), &[0; 4]);
        block[8 + 24 + 4..8 + 24 + 8].copy_from_slice(&sum.to_le_bytes());
        block
    }

    fn read(inode: &Inode, block: &[u8]) -> Option<usize> {
        let mut names = Vec::new();
        check(inode, false, block).and_then(|()| entries(inode, block, &mut names)).ok()?;
        Some(names.len())
    }

    #[test]
    fn a_block_without_its_checksum_is_none_of_a_directory() {
        let (plain, with_index) = (directory(Some(SEED), 0), directory(Some(SEED), 0x1000));
        for inode in [&plain, &with_index] {
            assert_eq!(read(inode, &leaf()), Some(1));
            assert_eq!(read(inode, &[0; LEN]), None, "zeros");
            let mut torn = leaf();
            torn[LEN - TAIL..].fill(0);
            assert_eq!(read(inode, &torn), None, "no tail");
            let mut other = leaf();
            other[HEADER] = b'x';
            assert_eq!(read(inode, &other), None, "another name");
        }
        assert_eq!((read(&with_index, &node()), read(&plain, &node())), (Some(0), None));
        let mut other = node();
        other[12] = 10;
        assert_eq!(read(&with_index, &other), None, "another entry of the index");
        other[8..10].fill(0xff);
        assert_eq!(read(&with_index, &other), None, "more room than there is");
    }

    #[test]
    fn an_entry_of_no_length_is_none_but_in_the_longest_blocks() {
        let inode = directory(None, 0);
        assert_eq!(read(&inode, &[0; LEN]), None);
        assert_eq!(read(&inode, &vec![0; 1 << 16]), Some(0));
        let mut block = vec![0; 1 << 16];
        put(&mut block, 0, 13, 12, b"name");
        assert_eq!(read(&inode, &block), None, "it is longer than the rest");
    }

    #[test]
    fn a_directory_has_no_holes() {
        let inode = directory(None, 0);
        let pieces = |place| {
            [Piece { range: 0..4096, place: Place::Volume(0) }, Piece { range: 4096..8192, place }]
        };
        assert!(without_holes(&inode, &pieces(Place::Volume(8192))).is_ok());
        assert!(without_holes(&inode, &pieces(Place::Hole)).is_err());
    }
}
