//! btrfs on one device: the extents of the extent tree, at every place where a chunk keeps them.
//!
//! Layout: `Documentation/filesystems/btrfs` and `include/uapi/linux/btrfs_tree.h` of the kernel.
//! The superblock names chunks of the chunk tree; the chunk tree says where on the device all
//! others are; the tree of roots leads to the extent tree, which lists whatever is allocated, its
//! own blocks too. Nothing that a commit refers to is overwritten before the next one, so a
//! snapshot of a mounted file system is as good as one of a file system that was unmounted. What
//! was synced since the last commit is in log trees that the next mount replays: no extent item
//! tells of their blocks, nor of the data that they refer to, so they are walked ([`log`]).
//!
//! The extents of a block group must add up to what its item says, and all groups to what the
//! superblock says.

mod checksum;
mod chunks;
mod log;
mod superblock;
mod tree;

use super::{Limits, Map, ReadAt, Refusal, UsedSpace, field, le64};
use chunks::Chunks;
use std::ops::Range;
use superblock::{OFFSETS, Superblock};
use tree::{Key, Pointer};

const KIND: &str = "btrfs";
/// The first MiB holds no chunk; boot loaders use it.
const RESERVED: Range<u64> = 0..1 << 20;
/// What is kept free around each copy of the superblock.
const STRIPE_BYTES: u64 = 64 << 10;

/// Numbers of trees.
mod owner {
    pub(super) const ROOTS: u64 = 1;
    pub(super) const EXTENTS: u64 = 2;
    pub(super) const CHUNKS: u64 = 3;
    pub(super) const BLOCK_GROUPS: u64 = 11;
    /// Of every log tree, and of the tree of their roots.
    pub(super) const LOGS: u64 = 6_u64.wrapping_neg();
}

/// Types of items.
mod item {
    pub(super) const EXTENT_DATA: u8 = 108;
    pub(super) const ROOT: u8 = 132;
    pub(super) const EXTENT: u8 = 168;
    pub(super) const METADATA: u8 = 169;
    pub(super) const BLOCK_GROUP: u8 = 192;
    pub(super) const DEVICE: u8 = 216;
    pub(super) const CHUNK: u8 = 228;
}

fn unusable(why: impl Into<String>) -> Refusal {
    Refusal::Unusable { kind: KIND, why: why.into() }
}

struct Btrfs<'a> {
    volume: &'a dyn ReadAt,
    superblock: Superblock,
    chunks: Chunks,
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    let superblock = Superblock::read(volume, volume_bytes)?;
    let chunks = Chunks::of_superblock(&superblock)?;
    let mut fs = Btrfs { volume, superblock, chunks };
    fs.chunks = fs.read_chunks()?;
    let mut map = Map::new(KIND, volume_bytes, limits);
    map.add_anywhere(RESERVED)?;
    for offset in OFFSETS {
        map.add_anywhere(offset..offset + STRIPE_BYTES)?;
    }
    map.add_anywhere(fs.superblock.device_bytes..u64::MAX)?;
    let allocated = fs.walk_extents(&mut map)?;
    let replayed = fs.walk_logs(&mut map)?;
    // no underflow: extents are within chunks, and chunks are apart and within the device
    let free_bytes = fs.superblock.device_bytes - allocated;
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, replayed, notes: Vec::new() })
}

impl Btrfs<'_> {
    /// All chunks, of which the superblock has but those that lead to them.
    fn read_chunks(&self) -> Result<Chunks, Refusal> {
        let mut chunks = Chunks::default();
        let mut devices = 0;
        self.walk(self.superblock.chunk_root(), &mut |key, item| match key.kind {
            item::CHUNK => chunks.add(&self.superblock, key.offset, item),
            item::DEVICE => {
                devices += 1;
                Ok(())
            }
            _ => Ok(()),
        })?;
        if devices != 1 {
            return Err(unusable(format!("it is spread over {devices} devices")));
        }
        chunks.check(&self.chunks)?;
        Ok(chunks)
    }

    /// Marks all extents; gives how many bytes of the device they are.
    fn walk_extents(&self, map: &mut Map) -> Result<u64, Refusal> {
        let (mut extents, mut groups) = (None, None);
        self.walk(self.superblock.root(), &mut |key, item| {
            match (key.kind, key.object) {
                (item::ROOT, owner::EXTENTS) => extents = Some(root_of(key.object, item)?),
                (item::ROOT, owner::BLOCK_GROUPS) => groups = Some(root_of(key.object, item)?),
                _ => {}
            }
            Ok(())
        })?;
        let extents = extents.ok_or_else(|| unusable("it has no extent tree"))?;
        let mut sums = Sums { found: self.chunks.counters(), ..Sums::default() };
        let apart = self.superblock.has_block_group_tree();
        self.walk(extents, &mut |key, item| match key.kind {
            item::EXTENT => self.extent(map, &mut sums, key.object, key.offset),
            item::METADATA => self.extent(map, &mut sums, key.object, self.superblock.node_bytes),
            item::BLOCK_GROUP if !apart => sums.group(&self.chunks, key, item),
            _ => Ok(()),
        })?;
        if apart {
            let groups = groups.ok_or_else(|| unusable("it has no tree of block groups"))?;
            self.walk(groups, &mut |key, item| match key.kind {
                item::BLOCK_GROUP => sums.group(&self.chunks, key, item),
                _ => Ok(()),
            })?;
        }
        sums.check(self.superblock.used_bytes)?;
        Ok(sums.on_device)
    }

    fn extent(&self, map: &mut Map, sums: &mut Sums, at: u64, len: u64) -> Result<(), Refusal> {
        let places = self.chunks.places(at, len)?;
        if at < sums.end {
            return Err(unusable(format!("the extent at {at} lies in the one before")));
        }
        sums.end = at + len; // no overflow: it is within a chunk
        sums.found[places.chunk].used += len;
        for place in places.on_device() {
            sums.on_device += len;
            map.add_anywhere(place..place + len)?;
        }
        Ok(())
    }
}

/// Where the root item of a tree leads.
fn root_of(owner: u64, item: &[u8]) -> Result<Pointer, Refusal> {
    const GENERATION: usize = 160;
    const AT: usize = 176;
    const LEVEL: usize = 238;
    if item.len() <= LEVEL {
        return Err(unusable(format!(
            "the root item of tree {} is too short",
            owner.cast_signed()
        )));
    }
    let (at, generation) = (le64(item, AT), le64(item, GENERATION));
    Ok(Pointer { at, generation, level: item[LEVEL], owner })
}

/// What was counted, and what was said.
#[derive(Default)]
struct Sums {
    found: Vec<Counter>,
    /// Where the last extent ends.
    end: u64,
    on_device: u64,
}

/// Of the block group of a chunk.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    used: u64,
    said: Option<u64>,
}

impl Sums {
    fn group(&mut self, chunks: &Chunks, key: Key, item: &[u8]) -> Result<(), Refusal> {
        let (used, flags) = (le64(item, 0), le64(item, 16));
        let chunk = chunks.whole(key.object, key.offset, flags);
        match chunk.and_then(|chunk| self.found.get_mut(chunk)) {
            Some(counter) if counter.said.is_none() && item.len() >= 24 => {
                counter.said = Some(used);
                Ok(())
            }
            _ => Err(unusable(format!("the block group at {} is no chunk", key.object))),
        }
    }

    fn check(&self, used_bytes: u64) -> Result<(), Refusal> {
        let mut all = 0_u64;
        for counter in &self.found {
            if counter.said != Some(counter.used) {
                return Err(unusable("the extents of a block group do not add up to what it says"));
            }
            all += counter.used;
        }
        if all == used_bytes {
            return Ok(());
        }
        Err(unusable(format!("it has extents of {all} bytes, and says that it has {used_bytes}")))
    }
}

/// A UUID.
fn uuid(bytes: &[u8], at: usize) -> [u8; 16] {
    field(bytes, at)
}
