//! Trees: blocks of keys, in order.
//!
//! A walk ends: each leaf but an empty root has a key that is larger than all before, so none is
//! read twice, and above each there are at most as many blocks as a tree has levels.

use super::checksum::ROOM;
use super::{Btrfs, unusable, uuid};
use crate::{Refusal, le32, le64, read};

const HEADER: usize = 101;
const ITEM: usize = Key::LEN + 8;
const LINK: usize = Key::LEN + 16;
const LEVELS_MAX: u8 = 8;

/// In the order of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) object: u64,
    pub(super) kind: u8,
    pub(super) offset: u64,
}

impl Key {
    pub(super) const LEN: usize = 17;

    pub(super) fn parse(bytes: &[u8], at: usize) -> Self {
        let kind = bytes.get(at + 8).copied().unwrap_or(0);
        Self { object: le64(bytes, at), kind, offset: le64(bytes, at + 9) }
    }
}

/// What leads to a block, and what the block must say of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    pub(super) at: u64,
    pub(super) generation: u64,
    pub(super) level: u8,
    pub(super) owner: u64,
}

/// Takes items, one after the other.
type Each<'e> = dyn FnMut(Key, &[u8]) -> Result<(), Refusal> + 'e;

impl Btrfs<'_> {
    /// Hands all items of a tree to `each`, in order.
    pub(super) fn walk(&self, root: Pointer, each: &mut Each<'_>) -> Result<(), Refusal> {
        self.walk_blocks(root, &mut |_| Ok(()), each)
    }

    /// The same, and all its blocks to `block`.
    pub(super) fn walk_blocks(
        &self,
        root: Pointer,
        block: &mut dyn FnMut(u64) -> Result<(), Refusal>,
        each: &mut Each<'_>,
    ) -> Result<(), Refusal> {
        if root.level >= LEVELS_MAX {
            return Err(unusable(format!("a tree has {} levels", root.level)));
        }
        // at most the entries of one block for each level
        let mut ahead = vec![root];
        let mut last: Option<Key> = None;
        while let Some(pointer) = ahead.pop() {
            let bytes = self.tree_block(pointer)?;
            block(pointer.at)?;
            let entries = entries(&bytes, pointer)?;
            if entries == 0 && (pointer.level > 0 || !ahead.is_empty() || last.is_some()) {
                return Err(unusable(format!("the tree block at {} is empty", pointer.at)));
            }
            if pointer.level > 0 {
                ahead.extend((0..entries).rev().map(|number| link(&bytes, pointer, number)));
                continue;
            }
            for number in 0..entries {
                let at = HEADER + ITEM * number;
                let key = Key::parse(&bytes, at);
                if last.is_some_and(|last| last >= key) {
                    return Err(unusable(format!("keys in {} are not in order", pointer.at)));
                }
                last = Some(key);
                let from = HEADER + le32(&bytes, at + Key::LEN) as usize;
                let len = le32(&bytes, at + Key::LEN + 4) as usize;
                let item = bytes.get(from..).and_then(|rest| rest.get(..len));
                let outside = || unusable(format!("an item in {} leads outside", pointer.at));
                each(key, item.ok_or_else(outside)?)?;
            }
        }
        Ok(())
    }

    /// A block that is what led to it; of two copies, one will do.
    fn tree_block(&self, pointer: Pointer) -> Result<Vec<u8>, Refusal> {
        let superblock = &self.superblock;
        let mut why = "has a checksum that does not fit";
        for place in self.chunks.places(pointer.at, superblock.node_bytes)?.on_device() {
            let bytes = read(self.volume, place, superblock.node_len())?;
            if !superblock.checksum.fits(&bytes) {
                continue;
            }
            let own = uuid(&bytes, ROOM) == superblock.metadata_uuid
                && le64(&bytes, 48) == pointer.at
                && le64(&bytes, 80) == pointer.generation
                && le64(&bytes, 88) == pointer.owner
                && bytes[100] == pointer.level;
            if own {
                return Ok(bytes);
            }
            why = "is not the one that was referred to";
        }
        Err(unusable(format!("the tree block at {} {why}", pointer.at)))
    }
}

fn entries(bytes: &[u8], pointer: Pointer) -> Result<usize, Refusal> {
    let entries = le32(bytes, 96) as usize;
    let size = if pointer.level == 0 { ITEM } else { LINK };
    if entries <= (bytes.len() - HEADER) / size {
        return Ok(entries);
    }
    Err(unusable(format!("the tree block at {} says that it has {entries} entries", pointer.at)))
}

fn link(bytes: &[u8], above: Pointer, number: usize) -> Pointer {
    let at = HEADER + LINK * number + Key::LEN;
    Pointer {
        at: le64(bytes, at),
        generation: le64(bytes, at + 8),
        level: above.level - 1,
        owner: above.owner,
    }
}
