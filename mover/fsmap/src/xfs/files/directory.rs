//! Names. A short directory is within its inode. All others have blocks of names first, up to
//! 32 GiB; behind are hashes of names and lists of room, in one of four forms. Names do not need
//! these, and no block of them is read.

use super::extents::Extent;
use super::inode::{Fork, Inode, format};
use super::{Refusal, Seal, XfsFiles};
use crate::files::{FileId, FileKind, FileName};
use crate::xfs::log::Changing;
use crate::{be16, be32, be64};

/// Names stand before this byte of the directory.
const NAMES_END: u64 = 32 << 30;
/// Of names alone, as long as they have to be in memory at once.
const DIRECTORY_BYTES_MAX: u64 = 4 << 30;
/// A block of names and their hashes, where one is enough; and of names alone.
const ALONE: [u32; 2] = [0x5844_3242, 0x5844_4233];
const NAMES: [u32; 2] = [0x5844_3244, 0x5844_4433];
const HEADER: [usize; 2] = [16, 64];
const SEAL: Seal = Seal { crc: 4, uuid: 24, lsn: 16, place: 8, owner: 40 };
/// In place of an inode's number: nobody's room.
const NOBODY: u16 = 0xffff;
/// At the end of a block that is alone: how many hashes stand before it.
const TAIL: usize = 8;
const HASH: usize = 8;

impl XfsFiles<'_> {
    pub(super) fn directory(&self, inode: &Inode) -> Result<Vec<FileName>, Refusal> {
        if inode.kind()? != FileKind::Directory {
            return Err(inode.wrong("it is no directory"));
        }
        self.check_finished(inode, Changing::Content)?;
        if inode.fork(Fork::Data).format == format::LOCAL {
            let names = short(inode.local()?, self.layout.has_kinds);
            return names.ok_or_else(|| nonsense(inode));
        }
        let extents = self.extents_of_names(inode)?;
        let mut names = Vec::new();
        let (block_bytes, per) = (self.superblock.block_bytes, self.layout.directory_blocks);
        let len = |blocks: u64| usize::try_from(blocks * block_bytes).unwrap_or(0);
        // a block of a directory may be in parts
        let (mut parts, mut filled) = (Vec::new(), 0);
        for extent in extents {
            let mut done = 0;
            while done < extent.len {
                let within = (extent.first + done) % per;
                let count = (per - within).min(extent.len - done);
                if within != filled {
                    return Err(nonsense(inode));
                }
                parts.push(((extent.start + done) * block_bytes, len(count)));
                (done, filled) = (done + count, within + count);
                if filled == per {
                    let block = self.sealed(inode, &parts, &SEAL, "a block of names")?;
                    let found = self.entries(&block, &mut names);
                    found.ok_or_else(|| nonsense(inode))?;
                    (parts, filled) = (Vec::new(), 0);
                }
            }
        }
        if filled == 0 { Ok(names) } else { Err(nonsense(inode)) }
    }

    fn extents_of_names(&self, inode: &Inode) -> Result<Vec<Extent>, Refusal> {
        let block_bytes = self.superblock.block_bytes;
        let end = NAMES_END / block_bytes;
        let (mut extents, mut blocks) = (Vec::new(), 0);
        self.each_extent(inode, Fork::Data, &mut |mut extent| {
            if extent.first >= end {
                return Ok(());
            }
            extent.len = extent.len.min(end - extent.first);
            blocks += extent.len;
            if !extent.written {
                return Err(nonsense(inode));
            }
            if blocks > (DIRECTORY_BYTES_MAX / block_bytes).min(self.superblock.blocks()) {
                return Err(inode.wrong(&format!("a directory of {blocks} blocks is too long")));
            }
            extents.push(extent);
            Ok(())
        })?;
        let places = extents.iter().flat_map(|e| e.start..e.start + e.len);
        let places = places.map(|block| block * block_bytes);
        self.expect_blocks(places, self.superblock.block_len());
        Ok(extents)
    }

    /// Names of a block; `None` where they make no sense.
    fn entries(&self, block: &[u8], names: &mut Vec<FileName>) -> Option<()> {
        let new = usize::from(self.superblock.has_checksums);
        let magic = be32(block, 0);
        let end = if magic == ALONE[new] {
            let hashes = usize::try_from(be32(block, block.len() - TAIL)).ok()?;
            (block.len() - TAIL).checked_sub(hashes.checked_mul(HASH)?)?
        } else if magic == NAMES[new] {
            block.len()
        } else {
            return None;
        };
        let kind = usize::from(self.layout.has_kinds);
        let mut at = HEADER[new];
        while at < end {
            let entry = block.get(at..end).filter(|entry| entry.len() >= 8)?;
            if be16(entry, 0) == NOBODY {
                let len = usize::from(be16(entry, 2));
                if len == 0 || !len.is_multiple_of(8) || len > entry.len() {
                    return None;
                }
                at += len;
                continue;
            }
            let name_len = usize::from(*entry.get(8)?);
            // number, length, name, kind, and its own place
            let len = (8 + 1 + name_len + kind + 2).next_multiple_of(8);
            let name = entry.get(9..9 + name_len).filter(|name| !name.is_empty())?;
            if len > entry.len() || usize::from(be16(entry, len - 2)) != at {
                return None;
            }
            if !matches!(name, b"." | b"..") {
                names.push(FileName { name: name.to_vec(), id: FileId(be64(entry, 0)) });
            }
            at += len;
        }
        Some(())
    }
}

fn nonsense(inode: &Inode) -> Refusal {
    inode.wrong("its names make no sense")
}

/// Names within an inode: how many there are, whether numbers have 8 bytes, the parent, entries.
fn short(bytes: &[u8], has_kinds: bool) -> Option<Vec<FileName>> {
    let (count, wide) = (*bytes.first()?, *bytes.get(1)? != 0);
    let number_len = if wide { 8 } else { 4 };
    let mut rest = bytes.get(2 + number_len..)?;
    let mut names = Vec::with_capacity(count.into());
    for _ in 0..count {
        // length, and where it would be in a block
        let name_len = usize::from(*rest.first()?);
        let name = rest.get(3..3 + name_len).filter(|name| !name.is_empty())?;
        let number = 3 + name_len + usize::from(has_kinds);
        let number = rest.get(number..number + number_len)?;
        let id = if wide { be64(number, 0) } else { be32(number, 0).into() };
        names.push(FileName { name: name.to_vec(), id: FileId(id) });
        rest = &rest[3 + name_len + usize::from(has_kinds) + number_len..];
    }
    Some(names)
}
