//! The blocks of a fork: a list within its inode, or a tree whose root is there.
//!
//! A record is 16 bytes: a bit for "reserved, never written", 54 of the file's block, 52 of the
//! volume's, 21 of the length. Records ascend. So a walk ends: a leaf that is read twice would lead
//! back.

use super::inode::{Fork, Inode, format};
use super::{Refusal, Seal, XfsFiles};
use crate::xfs::LEVELS_MAX;
use crate::xfs::log::Changing;
use crate::{be16, be32, be64};

const RECORD: usize = 16;
/// Of the root, before keys.
const ROOT_HEADER: usize = 4;
const MAGIC: [u32; 2] = [0x424d_4150, 0x424d_4133];
const HEADER: [usize; 2] = [24, 72];
const SEAL: Seal = Seal { crc: 64, uuid: 40, lsn: 32, place: 24, owner: 56 };
/// Of a file in blocks: more no kernel maps.
const BLOCKS_END: u64 = 1 << 54;

/// Blocks of a file, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Of the file.
    pub(super) first: u64,
    /// Of the volume, counted over all groups.
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) written: bool,
}

/// Hears of each.
pub(super) type Tell<'t> = &'t mut dyn FnMut(Extent) -> Result<(), Refusal>;

struct Walk<'w> {
    files: &'w XfsFiles<'w>,
    inode: &'w Inode,
    /// The first block of the file that nothing was said of.
    at: u64,
    count: u64,
    tell: Tell<'w>,
}

impl XfsFiles<'_> {
    /// All extents of a fork, in the order of the file.
    pub(super) fn each_extent(
        &self,
        inode: &Inode,
        fork: Fork,
        tell: Tell<'_>,
    ) -> Result<(), Refusal> {
        if fork == Fork::Data {
            self.check_finished(inode, Changing::Content)?;
        }
        let root = inode.fork(fork);
        let mut walk = Walk { files: self, inode, at: 0, count: 0, tell };
        match root.format {
            format::EXTENTS => {
                let len = usize::try_from(root.extents).ok().and_then(|n| n.checked_mul(RECORD));
                let records = len.and_then(|len| root.bytes.get(..len));
                walk.records(records.ok_or_else(|| walk.nonsense())?)?;
            }
            format::TREE => {
                let levels = u32::from(be16(root.bytes, 0));
                if root.bytes.len() < ROOT_HEADER || !(1..=LEVELS_MAX).contains(&levels) {
                    return Err(walk.nonsense());
                }
                let records = be16(root.bytes, 2);
                walk.children(&root.bytes[ROOT_HEADER..], records, levels - 1)?;
            }
            other => {
                return Err(
                    inode.wrong(&format!("its blocks are kept in a form of number {other}"))
                );
            }
        }
        match walk.count == root.extents {
            true => Ok(()),
            false => Err(walk.nonsense()),
        }
    }
}

impl Walk<'_> {
    fn nonsense(&self) -> Refusal {
        self.inode.wrong("its extents make no sense")
    }

    fn records(&mut self, records: &[u8]) -> Result<(), Refusal> {
        let superblock = &self.files.superblock;
        let group_bits = self.files.layout.group_bits;
        for record in records.chunks_exact(RECORD) {
            let (high, low) = (be64(record, 0), be64(record, 8));
            let first = (high & (u64::MAX >> 1)) >> 9;
            let block = (high & 0x1ff) << 43 | low >> 21;
            let len = low & 0x1f_ffff;
            let within = block & ((1 << group_bits) - 1);
            let start = superblock.linear(block >> group_bits, within, len);
            let end = first.checked_add(len).filter(|end| *end <= BLOCKS_END);
            let (Some(start), Some(end)) = (start, end) else { return Err(self.nonsense()) };
            if first < self.at || len == 0 {
                return Err(self.nonsense());
            }
            (self.at, self.count) = (end, self.count + 1);
            (self.tell)(Extent { first, start, len, written: high >> 63 == 0 })?;
        }
        Ok(())
    }

    /// Nodes of a level, of keys and, behind room for as many as there can be, places.
    fn children(&mut self, entries: &[u8], records: u16, level: u32) -> Result<(), Refusal> {
        let (most, records) = (entries.len() / RECORD, usize::from(records));
        if !(1..=most).contains(&records) {
            return Err(self.nonsense());
        }
        let superblock = &self.files.superblock;
        let group_bits = self.files.layout.group_bits;
        let mut places = Vec::with_capacity(records);
        for place in entries[8 * most..].chunks_exact(8).take(records) {
            let block = be64(place, 0);
            let within = block & ((1 << group_bits) - 1);
            let block = superblock.linear(block >> group_bits, within, 1);
            places.push(block.ok_or_else(|| self.nonsense())? * superblock.block_bytes);
        }
        self.files.expect_blocks(places.iter().copied(), superblock.block_len());
        places.into_iter().try_for_each(|place| self.node(place, level))
    }

    fn node(&mut self, at: u64, level: u32) -> Result<(), Refusal> {
        let superblock = &self.files.superblock;
        let parts = [(at, superblock.block_len())];
        let block = self.files.sealed(self.inode, &parts, &SEAL, "a block of its extents")?;
        let new = usize::from(superblock.has_checksums);
        let (found, records) = (u32::from(be16(&block, 4)), be16(&block, 6));
        if be32(&block, 0) != MAGIC[new] || found != level {
            return Err(self.nonsense());
        }
        let entries = &block[HEADER[new]..];
        if level > 0 {
            return self.children(entries, records, level - 1);
        }
        // an empty leaf would not ascend
        let records = Some(usize::from(records)).filter(|records| *records > 0);
        let records = records.and_then(|records| entries.get(..records * RECORD));
        self.records(records.ok_or_else(|| self.nonsense())?)
    }
}
