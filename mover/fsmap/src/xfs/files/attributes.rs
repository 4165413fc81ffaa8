//! Attributes: within the inode; in one block; in a tree of blocks by hash, whose leaves are in a
//! chain; and values that have blocks of their own.
//!
//! Access lists are attributes of root with names of their own, in another form than programs see:
//! `include/linux/posix_acl_xattr.h` of the kernel has that.

use super::extents::Extent;
use super::inode::{Fork, Inode, format};
use super::{REMOTE, REMOTE_HEADER, Refusal, Seal, XfsFiles};
use crate::files::Attribute;
use crate::{be16, be32};
use std::collections::HashSet;

const LEAF: [u16; 2] = [0xfbee, 0x3bee];
const NODE: [u16; 2] = [0xfebe, 0x3ebe];
const LEAF_HEADER: [usize; 2] = [32, 80];
const NODE_HEADER: [usize; 2] = [16, 64];
/// How many entries there are, of both: behind what all blocks of such trees begin with.
const COUNT: [usize; 2] = [12, 56];
const LEVEL: [usize; 2] = [14, 58];
const ENTRY: usize = 8;
const SEAL: Seal = Seal { crc: 12, uuid: 32, lsn: 24, place: 16, owner: 48 };
const REMOTE_MAGIC: u32 = 0x5841_524d;
/// No tree of attributes is higher.
const LEVELS_MAX: u16 = 5;
/// Of one value, as the kernel has it.
const VALUE_BYTES_MAX: u32 = 1 << 16;
/// Of all attributes of one file, which are in memory at once.
const BYTES_MAX: usize = 64 << 20;
/// Of the blocks of one file's attributes.
const EXTENTS_MAX: usize = 1 << 20;

mod flags {
    pub(super) const LOCAL: u8 = 1;
    pub(super) const ROOT: u8 = 2;
    pub(super) const SECURE: u8 = 4;
    /// A name of the file, for the kernel alone.
    pub(super) const PARENT: u8 = 8;
    /// Its value is not all there yet.
    pub(super) const INCOMPLETE: u8 = 0x80;
    pub(super) const KNOWN: u8 = LOCAL | ROOT | SECURE | PARENT | INCOMPLETE;
}

const ACCESS_LISTS: [(&[u8], &[u8]); 2] = [
    (b"SGI_ACL_FILE", b"system.posix_acl_access"),
    (b"SGI_ACL_DEFAULT", b"system.posix_acl_default"),
];

/// Those of one file, as they are read.
struct Collected<'a> {
    files: &'a XfsFiles<'a>,
    inode: &'a Inode,
    extents: Vec<Extent>,
    all: Vec<Attribute>,
    bytes: usize,
}

impl XfsFiles<'_> {
    pub(super) fn attributes_of(&self, inode: &Inode) -> Result<Vec<Attribute>, Refusal> {
        if !inode.has_attributes() {
            return Ok(Vec::new());
        }
        let (extents, all) = Default::default();
        let mut collected = Collected { files: self, inode, extents, all, bytes: 0 };
        if inode.fork(Fork::Attributes).format == format::LOCAL {
            collected.short(inode.fork(Fork::Attributes).bytes)?;
            return Ok(collected.all);
        }
        self.each_extent(inode, Fork::Attributes, &mut |extent| {
            if collected.extents.len() >= EXTENTS_MAX || !extent.written {
                return Err(nonsense(inode));
            }
            collected.extents.push(extent);
            Ok(())
        })?;
        if !collected.extents.is_empty() {
            collected.tree()?;
        }
        Ok(collected.all)
    }
}

fn nonsense(inode: &Inode) -> Refusal {
    inode.wrong("its attributes make no sense")
}

impl Collected<'_> {
    fn nonsense(&self) -> Refusal {
        nonsense(self.inode)
    }

    /// Within the inode: length of all, how many, entries.
    fn short(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let bytes = bytes.get(..be16(bytes, 0).into()).filter(|bytes| bytes.len() >= 4);
        let bytes = bytes.ok_or_else(|| self.nonsense())?;
        let mut rest = &bytes[4..];
        for _ in 0..bytes[2] {
            let (head, behind) = rest.split_at_checked(3).ok_or_else(|| self.nonsense())?;
            let name = behind.split_at_checked(head[0].into());
            let (name, behind) = name.ok_or_else(|| self.nonsense())?;
            let value = behind.split_at_checked(head[1].into());
            let (value, behind) = value.ok_or_else(|| self.nonsense())?;
            self.add(head[2], name, value.to_vec())?;
            rest = behind;
        }
        Ok(())
    }

    /// Down to the first leaf, and along the chain of them.
    fn tree(&mut self) -> Result<(), Refusal> {
        let new = usize::from(self.files.superblock.has_checksums);
        let (mut number, mut level) = (0, None);
        let mut block = self.block(number)?;
        while be16(&block, 8) == NODE[new] {
            let found = be16(&block, LEVEL[new]);
            let fits = (1..=LEVELS_MAX).contains(&found)
                && level.is_none_or(|level: u16| level == found + 1)
                && be16(&block, COUNT[new]) > 0;
            if !fits {
                return Err(self.nonsense());
            }
            level = Some(found);
            number = be32(&block, NODE_HEADER[new] + 4);
            block = self.block(number)?;
        }
        if level.is_some_and(|level| level != 1) {
            return Err(self.nonsense());
        }
        let mut been = HashSet::new();
        loop {
            if !been.insert(number) {
                return Err(self.nonsense());
            }
            self.leaf(&block)?;
            number = be32(&block, 0);
            if number == 0 {
                return Ok(());
            }
            block = self.block(number)?;
        }
    }

    /// The place of a block of attributes, in bytes of the volume.
    fn place(&self, number: u32) -> Result<u64, Refusal> {
        let number = u64::from(number);
        let after = self.extents.partition_point(|extent| extent.first <= number);
        let extent = after.checked_sub(1).map(|at| self.extents[at]);
        let extent = extent.filter(|extent| number - extent.first < extent.len);
        let extent = extent.ok_or_else(|| self.nonsense())?;
        Ok((extent.start + (number - extent.first)) * self.files.superblock.block_bytes)
    }

    fn block(&self, number: u32) -> Result<Vec<u8>, Refusal> {
        let parts = [(self.place(number)?, self.files.superblock.block_len())];
        self.files.sealed(self.inode, &parts, &SEAL, "a block of its attributes")
    }

    fn leaf(&mut self, block: &[u8]) -> Result<(), Refusal> {
        let new = usize::from(self.files.superblock.has_checksums);
        let count = usize::from(be16(block, COUNT[new]));
        let entries = block[LEAF_HEADER[new]..].get(..count * ENTRY);
        let entries = entries.filter(|_| be16(block, 8) == LEAF[new]);
        for entry in entries.ok_or_else(|| self.nonsense())?.chunks_exact(ENTRY) {
            let (at, flags) = (usize::from(be16(entry, 4)), entry[6]);
            let kept = block.get(at..).ok_or_else(|| self.nonsense())?;
            // a value within the block has two bytes of length, and one elsewhere a place and four
            let name_len_at = if flags & flags::LOCAL != 0 { 2 } else { 8 };
            let name = kept.get(name_len_at..).and_then(<[u8]>::split_first);
            let (name_len, behind) = name.ok_or_else(|| self.nonsense())?;
            let name = behind.split_at_checked((*name_len).into());
            let (name, behind) = name.ok_or_else(|| self.nonsense())?;
            if flags & (flags::PARENT | flags::INCOMPLETE) != 0 {
                continue;
            }
            let value = match flags & flags::LOCAL {
                0 => self.remote(be32(kept, 0), be32(kept, 4))?,
                _ => {
                    let value = behind.get(..be16(kept, 0).into());
                    value.ok_or_else(|| self.nonsense())?.to_vec()
                }
            };
            self.add(flags, name, value)?;
        }
        Ok(())
    }

    /// A value in blocks of its own, since version 5 with a header in each.
    fn remote(&self, mut number: u32, len: u32) -> Result<Vec<u8>, Refusal> {
        if len > VALUE_BYTES_MAX {
            return Err(self.nonsense());
        }
        let superblock = &self.files.superblock;
        let len = usize::try_from(len).unwrap_or(0);
        let mut value = Vec::with_capacity(len);
        while value.len() < len {
            let parts = [(self.place(number)?, superblock.block_len())];
            let block = self.files.sealed(self.inode, &parts, &REMOTE, "an attribute")?;
            let left = len - value.len();
            if superblock.has_checksums {
                let part = left.min(block.len() - REMOTE_HEADER);
                let fits = be32(&block, 0) == REMOTE_MAGIC
                    && be32(&block, 4) as usize == value.len()
                    && be32(&block, 8) as usize == part;
                if !fits {
                    return Err(self.nonsense());
                }
                value.extend_from_slice(&block[REMOTE_HEADER..REMOTE_HEADER + part]);
            } else {
                value.extend_from_slice(&block[..left.min(block.len())]);
            }
            number = number.checked_add(1).ok_or_else(|| self.nonsense())?;
        }
        Ok(value)
    }

    /// As programs see it.
    fn add(&mut self, flags: u8, name: &[u8], value: Vec<u8>) -> Result<(), Refusal> {
        if flags & (flags::PARENT | flags::INCOMPLETE) != 0 {
            return Ok(());
        }
        let class: &[u8] = match flags & (flags::ROOT | flags::SECURE) {
            0 => b"user.",
            flags::ROOT => b"trusted.",
            flags::SECURE => b"security.",
            _ => return Err(self.nonsense()),
        };
        if name.is_empty() || flags & !flags::KNOWN != 0 {
            return Err(self.nonsense());
        }
        let list = ACCESS_LISTS.iter().find(|(stored, _)| class == b"trusted." && *stored == name);
        let attribute = match list {
            None => Attribute { name: [class, name].concat(), value },
            Some((_, shown)) => {
                let why = "its access list makes no sense";
                let value = access_list(&value).ok_or_else(|| self.inode.wrong(why))?;
                Attribute { name: shown.to_vec(), value }
            }
        };
        self.bytes += attribute.name.len() + attribute.value.len() + size_of::<Attribute>();
        if self.bytes > BYTES_MAX {
            return Err(self.inode.wrong("its attributes are too many"));
        }
        self.all.push(attribute);
        Ok(())
    }
}

/// An access list: how many entries, and of each its tag, whom it is about, and rights.
fn access_list(stored: &[u8]) -> Option<Vec<u8>> {
    const SHOWN: u32 = 2;
    const STORED_ENTRY: usize = 12;
    const OF_SOMEBODY: [u32; 2] = [2, 8];
    let (count, entries) = stored.split_first_chunk()?;
    let count = usize::try_from(u32::from_be_bytes(*count)).ok()?;
    if entries.len() != count.checked_mul(STORED_ENTRY)? {
        return None;
    }
    let mut shown = SHOWN.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(STORED_ENTRY) {
        let (tag, id, rights) = (be32(entry, 0), be32(entry, 4), be16(entry, 8));
        shown.extend_from_slice(&u16::try_from(tag).ok()?.to_le_bytes());
        shown.extend_from_slice(&rights.to_le_bytes());
        let id = if OF_SOMEBODY.contains(&tag) { id } else { u32::MAX };
        shown.extend_from_slice(&id.to_le_bytes());
    }
    Some(shown)
}
