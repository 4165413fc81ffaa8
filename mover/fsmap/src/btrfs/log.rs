//! Log trees: what was synced since the last commit, one tree for each subvolume.
//!
//! The next mount walks them, makes what they say part of the subvolumes, and frees them. Until
//! then neither their blocks nor new extents that files in them refer to are in the extent tree.

use super::{Btrfs, item, owner, root_of, unusable};
use crate::{Map, Refusal, le64};
use std::cell::Cell;

/// Of a file's extent that has a place of its own; what is shorter stands in the item.
const LEN: usize = 53;
const INLINE: u8 = 0;
/// Written, or reserved.
const PLACED: [u8; 2] = [1, 2];
/// Subvolumes that were synced since the last commit.
const LOGS_MAX: usize = 1 << 16;

impl Btrfs<'_> {
    /// Marks what log trees have and refer to; gives how many there are.
    pub(super) fn walk_logs(&self, map: &mut Map) -> Result<u64, Refusal> {
        let Some(root) = self.superblock.log_root() else { return Ok(0) };
        let mut logs = Vec::new();
        let mut blocks = Vec::new();
        self.walk_blocks(root, &mut |at| keep(&mut blocks, at), &mut |key, item| {
            if key.kind == item::ROOT && key.object == owner::LOGS {
                keep(&mut logs, root_of(owner::LOGS, item)?)?;
            }
            Ok(())
        })?;
        for at in blocks {
            self.mark(map, at, self.superblock.node_bytes)?;
        }
        let left = Cell::new(self.superblock.device_bytes / self.superblock.node_bytes);
        for log in &logs {
            self.walk_log(map, *log, &left)?;
        }
        Ok(logs.len() as u64)
    }

    /// `left`: blocks that all log trees together may have, as many as the device has room for.
    fn walk_log(
        &self,
        map: &mut Map,
        log: super::Pointer,
        left: &Cell<u64>,
    ) -> Result<(), Refusal> {
        // both hands write to it
        let map = std::cell::RefCell::new(map);
        let mark = |at, len| self.mark(&mut map.borrow_mut(), at, len);
        let mut block = |at| {
            let less = left.get().checked_sub(1);
            left.set(less.ok_or_else(|| unusable("its log trees are larger than the device"))?);
            mark(at, self.superblock.node_bytes)
        };
        self.walk_blocks(log, &mut block, &mut |key, item| {
            if key.kind != item::EXTENT_DATA {
                return Ok(());
            }
            let kind = item.get(20).copied();
            if kind == Some(INLINE) {
                return Ok(());
            }
            if !kind.is_some_and(|kind| PLACED.contains(&kind)) || item.len() < LEN {
                return Err(unusable("a log tree has an extent of an unknown kind"));
            }
            let (at, len) = (le64(item, 21), le64(item, 29));
            // a hole
            if at == 0 { Ok(()) } else { mark(at, len) }
        })
    }

    fn mark(&self, map: &mut Map, at: u64, len: u64) -> Result<(), Refusal> {
        for place in self.chunks.places(at, len)?.on_device() {
            map.add_anywhere(place..place + len)?;
        }
        Ok(())
    }
}

fn keep<T>(kept: &mut Vec<T>, one: T) -> Result<(), Refusal> {
    if kept.len() == LOGS_MAX {
        return Err(unusable("it has too many log trees"));
    }
    kept.push(one);
    Ok(())
}
