//! Attributes: behind what an inode says of itself, in a block, or in inodes of their own; and
//! content that is short enough to be one.
//!
//! Layout: `Documentation/filesystems/ext4/attributes.rst` of the kernel. Access lists are stored
//! shorter than programs see them: `include/linux/posix_acl_xattr.h` has their form.

use super::node::{BLOCKS_LEN, Inode, SHORT};
use super::{Ext4Files, Refusal};
use crate::files::{Attribute, FileId};
use crate::{crc32c, le16, le32};

const MAGIC: u32 = 0xea02_0000;
/// Before the entries of a block.
const BLOCK_HEADER: usize = 32;
const ENTRY: usize = 16;
/// Of one; as the kernel has it.
const VALUE_BYTES_MAX: u64 = 1 << 16;
/// Content that begins within the inode goes on here.
const CONTENT: (u8, &[u8]) = (7, b"data");
/// What names begin with, by their class.
const CLASSES: [(u8, &[u8]); 8] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
    (7, b"system."),
    (8, b"system.richacl"),
    (9, b"encryption."),
];
const ACCESS_LISTS: [u8; 2] = [2, 3];

/// One, as it is stored.
struct Stored {
    class: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Ext4Files<'_> {
    pub(super) fn attributes_of(&self, inode: &Inode) -> Result<Vec<Attribute>, Refusal> {
        let all = self
            .stored(inode)?
            .into_iter()
            .filter(|one| (one.class, &one.name[..]) != CONTENT && one.class != 9);
        all.map(|one| shown(inode, one)).collect()
    }

    /// Content within an inode: what has room where blocks are said, and what is behind it.
    pub(super) fn inline(&self, inode: &Inode) -> Result<Vec<u8>, Refusal> {
        let size = usize::try_from(inode.size_bytes).unwrap_or(usize::MAX);
        let mut bytes = inode.blocks()[..BLOCKS_LEN.min(size)].to_vec();
        if size > BLOCKS_LEN {
            let all = self.within(inode)?;
            let rest = all.into_iter().find(|one| (one.class, &one.name[..]) == CONTENT);
            bytes.extend(rest.map(|one| one.value).unwrap_or_default());
            bytes.truncate(size);
        }
        Ok(bytes)
    }

    fn stored(&self, inode: &Inode) -> Result<Vec<Stored>, Refusal> {
        let mut all = self.within(inode)?;
        let number = inode.attribute_block();
        if number != 0 {
            let block = self.block(number)?;
            if le32(&block, 0) != MAGIC || le32(&block, 8) != 1 {
                return Err(inode.wrong("its block of attributes is none"));
            }
            if let Some(seed) = self.fs.superblock.checksum_seed {
                let sum = crc32c(crc32c(seed, &number.to_le_bytes()), &block[..0x10]);
                let sum = crc32c(crc32c(sum, &[0; 4]), &block[0x14..]);
                if sum != le32(&block, 0x10) {
                    return Err(inode.wrong("the checksum of its attributes does not fit"));
                }
            }
            self.entries(inode, &block[BLOCK_HEADER..], &block, &mut all)?;
        }
        Ok(all)
    }

    /// Those within the inode.
    fn within(&self, inode: &Inode) -> Result<Vec<Stored>, Refusal> {
        let mut all = Vec::new();
        let room = inode.bytes.get(SHORT + inode.extra()..).unwrap_or(&[]);
        if inode.extra() > 0 && room.len() > 4 && le32(room, 0) == MAGIC {
            self.entries(inode, &room[4..], &room[4..], &mut all)?;
        }
        Ok(all)
    }

    /// Entries until one of nobody; values are found in `values`.
    fn entries(
        &self,
        inode: &Inode,
        mut rest: &[u8],
        values: &[u8],
        all: &mut Vec<Stored>,
    ) -> Result<(), Refusal> {
        let nonsense = || inode.wrong("its attributes make no sense");
        while rest.len() >= 4 && le32(rest, 0) != 0 {
            if rest.len() < ENTRY {
                return Err(nonsense());
            }
            let name_len = usize::from(rest[0]);
            let (class, at) = (rest[1], usize::from(le16(rest, 2)));
            let (in_inode, size) = (le32(rest, 4), u64::from(le32(rest, 8)));
            let name = rest.get(ENTRY..ENTRY + name_len).ok_or_else(nonsense)?.to_vec();
            if size > VALUE_BYTES_MAX {
                return Err(nonsense());
            }
            let value = match in_inode {
                0 => {
                    let end = at + usize::try_from(size).unwrap_or(usize::MAX);
                    values.get(at..end).ok_or_else(nonsense)?.to_vec()
                }
                number => {
                    let held = self.inode(FileId(number.into()))?;
                    // its bytes would be an attribute of an inode once more, without end
                    if held.is_inline() {
                        return Err(nonsense());
                    }
                    let value = self.whole(&held, VALUE_BYTES_MAX)?;
                    if value.len() as u64 != size {
                        return Err(nonsense());
                    }
                    value
                }
            };
            all.push(Stored { class, name, value });
            rest = rest.get((ENTRY + name_len).next_multiple_of(4)..).unwrap_or(&[]);
        }
        Ok(())
    }
}

/// As programs see it.
fn shown(inode: &Inode, one: Stored) -> Result<Attribute, Refusal> {
    let class = CLASSES.iter().find(|(class, _)| *class == one.class);
    let (_, prefix) = class
        .ok_or_else(|| inode.wrong(&format!("an attribute of unknown class {}", one.class)))?;
    let name = [*prefix, &one.name[..]].concat();
    let value = match ACCESS_LISTS.contains(&one.class) {
        true => {
            access_list(&one.value).ok_or_else(|| inode.wrong("its access list makes no sense"))?
        }
        false => one.value,
    };
    Ok(Attribute { name, value })
}

/// An access list: stored entries name somebody only where they are about one.
fn access_list(stored: &[u8]) -> Option<Vec<u8>> {
    const STORED: u32 = 1;
    const SHOWN: u32 = 2;
    const OF_SOMEBODY: [u16; 2] = [2, 8];
    if stored.len() < 4 || le32(stored, 0) != STORED {
        return None;
    }
    let mut shown = SHOWN.to_le_bytes().to_vec();
    let mut rest = &stored[4..];
    while !rest.is_empty() {
        let of_somebody = OF_SOMEBODY.contains(&le16(rest, 0));
        let (entry, behind) = rest.split_at_checked(if of_somebody { 8 } else { 4 })?;
        shown.extend_from_slice(&entry[..4]);
        shown.extend_from_slice(if of_somebody { &entry[4..] } else { &[0xff; 4] });
        rest = behind;
    }
    Some(shown)
}
