//! An inode.
//!
//! Layout: `Documentation/filesystems/ext4/inodes.rst` of the kernel.
#![allow(clippy::cast_possible_truncation)] // halves of checksums

use super::super::{Refusal, unusable};
use crate::files::{FileId, FileKind, FileNode, FileTime};
use crate::{crc32c, le16, le32};

mod flags {
    pub(super) const ENCRYPTED: u32 = 0x800;
    pub(super) const INDEX: u32 = 0x1000;
    pub(super) const HUGE: u32 = 0x4_0000;
    pub(super) const EXTENTS: u32 = 0x8_0000;
    pub(super) const INLINE: u32 = 0x1000_0000;
}

/// What every inode has; what is behind is as long as it says.
pub(super) const SHORT: usize = 128;
/// Where blocks are said, or short content.
const BLOCKS: usize = 0x28;
pub(super) const BLOCKS_LEN: usize = 60;
/// In which room is counted.
const SECTOR: u64 = 512;

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) number: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) size_bytes: u64,
    flags: u32,
    /// Of checksums of what belongs to it.
    pub(super) seed: Option<u32>,
}

impl Inode {
    pub(super) fn parse(number: u32, bytes: &[u8], seed: Option<u32>) -> Result<Self, Refusal> {
        let seed = seed.map(|seed| crc32c(crc32c(seed, &number.to_le_bytes()), &bytes[0x64..0x68]));
        let size = u64::from(le32(bytes, 0x6c)) << 32 | u64::from(le32(bytes, 4));
        let flags = le32(bytes, 0x20);
        let inode = Self { number, bytes: bytes.to_vec(), size_bytes: size, flags, seed };
        if le16(bytes, 0) == 0 || le16(bytes, 0x1a) == 0 {
            return Err(inode.wrong("nobody uses it"));
        }
        if i64::try_from(size).is_err() {
            return Err(inode.wrong(&format!("no file has {size} bytes")));
        }
        if inode.extra() > bytes.len() - SHORT || !inode.extra().is_multiple_of(4) {
            return Err(inode.wrong("it is longer than there is room for"));
        }
        inode.check()?;
        Ok(inode)
    }

    /// Bytes of what came later, behind the first 128.
    pub(super) fn extra(&self) -> usize {
        if self.bytes.len() > SHORT { usize::from(le16(&self.bytes, 0x80)) } else { 0 }
    }

    fn check(&self) -> Result<(), Refusal> {
        let Some(seed) = self.seed else { return Ok(()) };
        let mut bytes = self.bytes.clone();
        bytes[0x7c..0x7e].fill(0);
        let has_high = self.extra() >= 4;
        if has_high {
            bytes[0x82..0x84].fill(0);
        }
        let sum = crc32c(seed, &bytes);
        let kept = u32::from(le16(&self.bytes, 0x7c));
        let fits = match has_high {
            true => sum == kept | u32::from(le16(&self.bytes, 0x82)) << 16,
            false => sum as u16 == kept as u16,
        };
        if fits { Ok(()) } else { Err(self.wrong("its checksum does not fit")) }
    }

    pub(super) fn wrong(&self, why: &str) -> Refusal {
        unusable(format!("inode {}: {why}", self.number))
    }

    /// Its content and names are as they stand there.
    pub(super) fn readable(&self) -> Result<(), Refusal> {
        match self.flags & flags::ENCRYPTED {
            0 => Ok(()),
            _ => Err(self.wrong("it is encrypted by a key that only a kernel is given (fscrypt)")),
        }
    }

    pub(super) fn has_extents(&self) -> bool {
        self.flags & flags::EXTENTS != 0
    }

    /// The first block of a directory is that of its index.
    pub(super) fn has_index(&self) -> bool {
        self.flags & flags::INDEX != 0
    }

    pub(super) fn is_inline(&self) -> bool {
        self.flags & flags::INLINE != 0
    }

    pub(super) fn blocks(&self) -> &[u8] {
        &self.bytes[BLOCKS..BLOCKS + BLOCKS_LEN]
    }

    /// The path of a link that needs no block.
    pub(super) fn short_target(&self) -> Option<&[u8]> {
        let len = usize::try_from(self.size_bytes).ok().filter(|len| *len < BLOCKS_LEN)?;
        (!self.has_extents() && !self.is_inline()).then(|| &self.blocks()[..len])
    }

    /// A block with attributes, where there is one.
    pub(super) fn attribute_block(&self) -> u64 {
        u64::from(le16(&self.bytes, 0x76)) << 32 | u64::from(le32(&self.bytes, 0x68))
    }

    pub(super) fn kind(&self) -> Result<FileKind, Refusal> {
        let device = || {
            let (old, new) = (le32(self.blocks(), 0), le32(self.blocks(), 4));
            match old {
                0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
                old => (old >> 8 & 0xff, old & 0xff),
            }
        };
        Ok(match le16(&self.bytes, 0) & 0xf000 {
            0x1000 => FileKind::Fifo,
            0x2000 => {
                let (major, minor) = device();
                FileKind::Characters(major, minor)
            }
            0x4000 => FileKind::Directory,
            0x6000 => {
                let (major, minor) = device();
                FileKind::Blocks(major, minor)
            }
            0x8000 => FileKind::File,
            0xa000 => FileKind::Symlink,
            0xc000 => FileKind::Socket,
            other => return Err(self.wrong(&format!("there is no kind {other:#x}"))),
        })
    }

    /// Room that it takes: it counts sectors of 512 bytes, or blocks. Content within the inode is in
    /// none of them, and counts as the kernel has it: a file of no sectors is taken for a hole.
    fn stored_bytes(&self, block_bytes: u64) -> u64 {
        let count = u64::from(le16(&self.bytes, 0x74)) << 32 | u64::from(le32(&self.bytes, 0x1c));
        let unit = if self.flags & flags::HUGE == 0 { SECTOR } else { block_bytes };
        let within = if self.is_inline() { self.size_bytes.next_multiple_of(SECTOR) } else { 0 };
        count.saturating_mul(unit).saturating_add(within)
    }

    /// A time, of its seconds and what came later, if there is room for that.
    fn time(&self, seconds: usize, extra: usize) -> FileTime {
        let low = i64::from(le32(&self.bytes, seconds).cast_signed());
        let extra = match extra + 4 <= SHORT + self.extra() {
            true => le32(&self.bytes, extra),
            false => 0,
        };
        FileTime {
            seconds: low + (i64::from(extra & 3) << 32),
            nanoseconds: (extra >> 2).min(999_999_999),
        }
    }

    pub(super) fn node(&self, block_bytes: u64) -> Result<FileNode, Refusal> {
        let halves = |low, high| {
            u32::from(le16(&self.bytes, low)) | u32::from(le16(&self.bytes, high)) << 16
        };
        let has_created = 0x94 <= SHORT + self.extra();
        Ok(FileNode {
            id: FileId(self.number.into()),
            kind: self.kind()?,
            mode: u32::from(le16(&self.bytes, 0)) & 0o7777,
            uid: halves(2, 0x78),
            gid: halves(0x18, 0x7a),
            links: le16(&self.bytes, 0x1a).into(),
            size_bytes: self.size_bytes,
            stored_bytes: self.stored_bytes(block_bytes),
            accessed: self.time(8, 0x8c),
            modified: self.time(0x10, 0x88),
            changed: self.time(0xc, 0x84),
            created: has_created.then(|| self.time(0x90, 0x94)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a file of 100 bytes.
    fn stored(flags: u32, sectors: u32) -> u64 {
        let mut bytes = [0; 256];
        bytes[..2].copy_from_slice(&0x8000_u16.to_le_bytes());
        bytes[4..8].copy_from_slice(&100_u32.to_le_bytes());
        bytes[0x1a] = 1;
        bytes[0x1c..0x20].copy_from_slice(&sectors.to_le_bytes());
        bytes[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        Inode::parse(11, &bytes, None).unwrap().node(4096).unwrap().stored_bytes
    }

    #[test]
    fn content_within_the_inode_takes_room() {
        assert_eq!(stored(flags::INLINE, 0), 512);
        // a block of attributes beside it
        assert_eq!(stored(flags::INLINE, 8), 4096 + 512);
        assert_eq!(stored(flags::EXTENTS, 8), 4096);
        // all of it is a hole
        assert_eq!(stored(flags::EXTENTS, 0), 0);
    }
}
