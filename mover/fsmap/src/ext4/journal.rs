//! The journal (JBD2): which blocks have newer copies in it that the next mount will write to where
//! they belong.
//!
//! From its start on, transaction after transaction as long as the numbers go up by one: descriptor
//! blocks that say where the blocks behind them belong, revocations (what an older transaction says
//! of a block must not be replayed), and a commit block at the end. What has no commit block was
//! never finished and does not count. Checksums are verified where there are any. Fast commits and
//! commits that are not flushed in order are refused: what they mean is only known to the code that
//! replays them.

use super::inode::FileBlocks;
use super::{Ext4, Newer, Refusal, crc32c, joined, unusable};
use crate::be32;
use std::collections::HashMap;

pub(super) const MAGIC: u32 = 0xc03b_3998;

const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCKS: [u32; 2] = [3, 4];
const REVOKE: u32 = 5;
/// Magic, type and number of the transaction.
const HEADER: usize = 12;
const CHECKSUM: usize = 4;
const UUID: usize = 16;

/// A compatible feature, the others are not.
const OLD_CHECKSUMS: u32 = 1;
const HAS_REVOKE: u32 = 1;
const BIT64: u32 = 2;
const CSUM_V2: u32 = 8;
const CSUM_V3: u32 = 0x10;

const ESCAPED: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST: u32 = 8;

/// Copies that are remembered, at most.
const NEWER_MAX: usize = 4 << 20;

/// Reads it: newer copies by where they belong, and how many transactions there are to replay.
pub(super) fn read(fs: &Ext4<'_>) -> Result<(HashMap<u64, Newer>, u64), Refusal> {
    let mut scan = match Log::open(fs)? {
        Some(log) => Scan { log, ..Scan::default() },
        None => return Ok((HashMap::new(), 0)),
    };
    scan.run(fs)?;
    let Scan { written, revoked, transactions, .. } = scan;
    let mut newer = HashMap::new();
    for Written { block, transaction, copy, .. } in written {
        // numbers wrap around
        let withdrawn = revoked.get(&block).is_some_and(|by| !after(transaction, *by));
        if !withdrawn {
            newer.insert(block, copy);
        }
    }
    Ok((newer, transactions))
}

/// Whether one transaction comes after another.
fn after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

/// What its superblock says.
#[derive(Debug, Default)]
struct Log {
    blocks: FileBlocks,
    first: u64,
    end: u64,
    start: u64,
    sequence: u32,
    wide: bool,
    version: Checksums,
    seed: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Checksums {
    #[default]
    None,
    V2,
    V3,
}

impl Log {
    /// `None`: there is nothing to replay.
    fn open(fs: &Ext4<'_>) -> Result<Option<Self>, Refusal> {
        if fs.superblock.journal_inode == 0 {
            return Err(unusable("its journal is on another device, and wants to be replayed"));
        }
        let blocks = FileBlocks::of(fs, fs.superblock.journal_inode)?;
        let bytes = fs.block_as_it_is(blocks.block(0)?)?;
        let (kind, incompat) = (be32(&bytes, 4), be32(&bytes, 0x28));
        let fits = be32(&bytes, 0) == MAGIC
            && SUPERBLOCKS.contains(&kind)
            && u64::from(be32(&bytes, 0xc)) == fs.superblock.block_bytes;
        let [end, first, sequence, start] = [0x10, 0x14, 0x18, 0x1c].map(|at| be32(&bytes, at));
        if !fits || !(1..end).contains(&first) || (start != 0 && !(first..end).contains(&start)) {
            return Err(unusable("its journal has no sound superblock"));
        }
        let features = if kind == SUPERBLOCKS[0] { 0 } else { incompat };
        if features & !(HAS_REVOKE | BIT64 | CSUM_V2 | CSUM_V3) != 0 {
            return Err(unusable(format!(
                "its journal has features that are not understood: {features:#x}"
            )));
        }
        // checksums of whole transactions, which nothing has made for ten years
        if kind != SUPERBLOCKS[0] && be32(&bytes, 0x24) & OLD_CHECKSUMS != 0 {
            return Err(unusable("its journal has checksums of the first kind"));
        }
        if be32(&bytes, 0x20) != 0 {
            return Err(unusable("its journal has recorded an error: check it with e2fsck"));
        }
        let version = match (features & CSUM_V2, features & CSUM_V3) {
            (_, 1..) => Checksums::V3,
            (1.., _) => Checksums::V2,
            _ => Checksums::None,
        };
        Ok((start != 0).then(|| Self {
            blocks,
            first: first.into(),
            end: end.into(),
            start: start.into(),
            sequence,
            wide: features & BIT64 != 0,
            version,
            seed: crc32c(!0, &bytes[0x30..0x40]),
        }))
    }

    fn next(&self, at: u64) -> u64 {
        if at + 1 == self.end { self.first } else { at + 1 }
    }

    /// Bytes of a tag, as it stands in a descriptor block.
    fn tag_len(&self) -> usize {
        let short = match self.version {
            Checksums::V3 => return 16,
            Checksums::V2 => 10,
            Checksums::None => 8,
        };
        if self.wide { short + 4 } else { short }
    }

    /// Of a descriptor or revocation block: what comes before its checksum, which is at its end.
    fn body<'b>(&self, block: &'b [u8]) -> Result<&'b [u8], Refusal> {
        if self.version == Checksums::None {
            return Ok(block);
        }
        let (body, sum) = block.split_at(block.len() - CHECKSUM);
        if crc32c(crc32c(self.seed, body), &[0; CHECKSUM]) == be32(sum, 0) {
            Ok(body)
        } else {
            Err(bad_checksum())
        }
    }

    fn check_commit(&self, block: &[u8]) -> Result<(), Refusal> {
        const AT: usize = 16;
        let (before, rest) = block.split_at(AT);
        let sum = crc32c(crc32c(self.seed, before), &[0; CHECKSUM]);
        let sum = crc32c(sum, &rest[CHECKSUM..]);
        let fits = self.version == Checksums::None || sum == be32(rest, 0);
        if fits { Ok(()) } else { Err(bad_checksum()) }
    }

    /// Only once the commit block is there: in a transaction that is just being written, copies may
    /// be missing.
    fn check_copies(&self, fs: &Ext4<'_>, written: &[Written]) -> Result<(), Refusal> {
        if self.version == Checksums::None {
            return Ok(());
        }
        for one in written {
            let seed = crc32c(self.seed, &one.transaction.to_be_bytes());
            let sum = crc32c(seed, &fs.block_as_it_is(one.copy.at)?);
            let kept = if self.version == Checksums::V2 { sum & 0xffff } else { sum };
            if kept != one.checksum {
                return Err(bad_checksum());
            }
        }
        Ok(())
    }
}

fn bad_checksum() -> Refusal {
    unusable("a checksum in its journal does not fit")
}

/// Where a block belongs.
struct Tag {
    block: u64,
    flags: u32,
    checksum: u32,
}

struct Written {
    block: u64,
    transaction: u32,
    copy: Newer,
    checksum: u32,
}

#[derive(Default)]
struct Scan {
    log: Log,
    written: Vec<Written>,
    /// The last transaction that withdrew a block.
    revoked: HashMap<u64, u32>,
    transactions: u64,
}

impl Scan {
    fn run(&mut self, fs: &Ext4<'_>) -> Result<(), Refusal> {
        let mut at = self.log.start;
        let mut sequence = self.log.sequence;
        let (mut written, mut revoked) = (Vec::new(), Vec::new());
        let mut left = self.log.end - self.log.first;
        loop {
            if left == 0 {
                return Ok(());
            }
            let block = fs.block_as_it_is(self.log.blocks.block(at)?)?;
            if be32(&block, 0) != MAGIC || be32(&block, 8) != sequence {
                return Ok(());
            }
            (at, left) = (self.log.next(at), left - 1);
            match be32(&block, 4) {
                DESCRIPTOR => {
                    for tag in tags(&self.log, &block)? {
                        if left == 0 {
                            return Ok(());
                        }
                        written.push(self.copy(at, sequence, &tag)?);
                        (at, left) = (self.log.next(at), left - 1);
                    }
                }
                REVOKE => revoked.extend(revocations(&self.log, &block)?),
                COMMIT => {
                    self.log.check_commit(&block)?;
                    self.log.check_copies(fs, &written)?;
                    self.written.append(&mut written);
                    self.revoked.extend(revoked.drain(..).map(|block| (block, sequence)));
                    self.transactions += 1;
                    sequence = sequence.wrapping_add(1);
                }
                _ => return Ok(()),
            }
            let held = self.written.len() + self.revoked.len() + written.len() + revoked.len();
            if held > NEWER_MAX {
                return Err(unusable("its journal is too long"));
            }
        }
    }

    fn copy(&self, at: u64, sequence: u32, tag: &Tag) -> Result<Written, Refusal> {
        let at = self.log.blocks.block(at)?;
        let copy = Newer { at, escaped: tag.flags & ESCAPED != 0 };
        let Tag { block, checksum, .. } = *tag;
        Ok(Written { block, transaction: sequence, copy, checksum })
    }
}

fn tags(log: &Log, block: &[u8]) -> Result<Vec<Tag>, Refusal> {
    let mut rest = &log.body(block)?[HEADER..];
    let len = log.tag_len();
    let mut tags = Vec::new();
    while let Some((tag, behind)) = rest.split_at_checked(len) {
        let low = be32(tag, 0);
        let (flags, high, checksum) = match log.version {
            Checksums::V3 => (be32(tag, 4), if log.wide { be32(tag, 8) } else { 0 }, be32(tag, 12)),
            _ => {
                let second = be32(tag, 4);
                (second & 0xffff, if log.wide { be32(tag, 8) } else { 0 }, second >> 16)
            }
        };
        tags.push(Tag { block: joined(low, high), flags, checksum });
        if flags & LAST != 0 {
            return Ok(tags);
        }
        rest = if flags & SAME_UUID != 0 { behind } else { behind.get(UUID..).unwrap_or(&[]) };
    }
    Ok(tags)
}

fn revocations(log: &Log, block: &[u8]) -> Result<Vec<u64>, Refusal> {
    let body = log.body(block)?;
    // header and entries
    let used = be32(block, HEADER) as usize;
    let entries = body
        .get(HEADER + 4..used)
        .ok_or_else(|| unusable("its journal withdraws more than there is room for"))?;
    let number = |entry: &[u8]| match entry.len() {
        8 => joined(be32(entry, 4), be32(entry, 0)),
        _ => be32(entry, 0).into(),
    };
    Ok(entries.chunks_exact(if log.wide { 8 } else { 4 }).map(number).collect())
}
