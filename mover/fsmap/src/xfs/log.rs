//! The log: what the next mount will write to where it belongs.
//!
//! A ring of blocks of 512 bytes. Each begins with the number of the round that it was written in,
//! so the head is where the round before goes on; what stood there is kept in the header of the
//! record. The last record says where the tail is. When it is an unmount record, there is nothing
//! to replay. Else all records from tail to head are read, and remembered is what their committed
//! transactions changed of the blocks that a map depends on, or of blocks and inodes that files do.
//!
//! | file | |
//! |---|---|
//! | `transactions` | records into transactions, and these into items |
//! | `inodes` | items of inodes, and of chunks of them that are made |
//! | `changes` | the result: blocks, inodes, and files of which a change is half done |
//!
//! Records are written side by side, so before the head of a crash there may be holes, and torn
//! ones: as the kernel does, the first of them is where the log ends. Only within what can be under
//! way at once: anything else is refused.

mod changes;
mod inodes;
mod transactions;

use super::superblock::Superblock;
use super::unusable;
use crate::{ReadAt, Refusal, be32, be64, crc32c, field, le32, read};
pub(super) use changes::{Changes, Changing};
pub(super) use inodes::Replayed;
use transactions::Transactions;
pub(super) use transactions::Wanted;

const BLOCK: u64 = 512;
const BLOCK_LEN: usize = 512;
const MAGIC: u32 = 0xfeed_babe;
/// Blocks that can be under way at once: 8 records of 256 KiB.
const WINDOW: u64 = (2 << 20) / BLOCK;
const RECORD_BYTES_MAX: u32 = 256 << 10;
/// Of a record's data, for which one block of headers has room.
const PER_HEADER: u32 = 32 << 10;
/// Records that can be under way at once, and so be torn (XLOG_MAX_ICLOGS).
const UNDER_WAY_MAX: usize = 8;
/// Records that may be torn, and a few more.
const TORN_MAX: usize = 16;
const LITTLE_ENDIAN: u32 = 1;
const UNMOUNT: u8 = 0x20;

/// Reads it.
pub(super) fn read_log(
    volume: &dyn ReadAt,
    superblock: &Superblock,
    wanted: Wanted,
) -> Result<Changes, Refusal> {
    let blocks = superblock.log_blocks();
    let log = Log {
        volume,
        start: blocks.start * superblock.block_bytes,
        blocks: (blocks.end - blocks.start) * superblock.block_bytes / BLOCK,
        uuid: superblock.log_uuid,
        has_checksums: superblock.has_checksums,
    };
    let mut head = log.find_head()?;
    for _ in 0..TORN_MAX {
        let last = log.last_record(&mut head)?;
        if last.is_unmount(&log)? {
            return Ok(Changes::clean(head.newest(log.blocks)));
        }
        if !superblock.has_checksums {
            return Err(unusable("it was not unmounted, and its log has no checksums"));
        }
        let mut transactions = Transactions::new(superblock, wanted);
        match log.read_records(&last, &head, &mut transactions)? {
            None => return Ok(transactions.finish(head.newest(log.blocks))),
            Some(torn)
                if head.distance(torn, log.blocks) <= WINDOW
                    && log.records_from(torn, &head)? <= UNDER_WAY_MAX =>
            {
                head.at = torn;
            }
            Some(_) => return Err(unusable("a checksum in its log does not fit")),
        }
    }
    Err(unusable("the end of its log is not found"))
}

struct Log<'a> {
    volume: &'a dyn ReadAt,
    /// In bytes of the volume.
    start: u64,
    blocks: u64,
    uuid: [u8; 16],
    has_checksums: bool,
}

/// The first block that was not written in the newest round.
#[derive(Debug, Clone, Copy)]
struct Head {
    at: u64,
    /// Of the blocks before it.
    cycle: u32,
    /// Where the first round of the two that are there ends.
    turn: u64,
}

impl Head {
    /// The round that a block is of: what is behind the turn is older.
    fn cycle_of(&self, block: u64) -> u32 {
        if block < self.turn { self.cycle } else { self.cycle - 1 }
    }

    /// Number of the last block before it, which no record's is above.
    fn newest(&self, blocks: u64) -> u64 {
        let last = (self.at + blocks - 1) % blocks;
        u64::from(self.cycle_of(last)) << 32 | last
    }

    /// Blocks from one before it to it.
    fn distance(&self, from: u64, blocks: u64) -> u64 {
        (self.at + blocks - from) % blocks
    }
}

/// A record: where it is, and its header.
struct Record {
    at: u64,
    header: Vec<u8>,
    header_blocks: u64,
    data_len: usize,
}

impl Record {
    fn data_blocks(&self) -> u64 {
        (self.data_len as u64).div_ceil(BLOCK)
    }

    fn blocks(&self) -> u64 {
        self.header_blocks + self.data_blocks()
    }

    /// An unmount record has nothing else in it.
    fn is_unmount(&self, log: &Log<'_>) -> Result<bool, Refusal> {
        if be32(&self.header, 40) != 1 || self.data_len < 12 {
            return Ok(false);
        }
        let place = (self.at + self.header_blocks) % log.blocks;
        let data = log.read(place, 1)?;
        // length of a number and client stand before the flags
        Ok(data[9] & UNMOUNT != 0)
    }
}

impl Log<'_> {
    /// Blocks from one on, over the end of the ring.
    fn read(&self, at: u64, blocks: u64) -> Result<Vec<u8>, Refusal> {
        let first = blocks.min(self.blocks - at);
        let len = |blocks: u64| usize::try_from(blocks * BLOCK).unwrap_or(0);
        let mut bytes = read(self.volume, self.start + at * BLOCK, len(first))?;
        if first < blocks {
            bytes.extend(read(self.volume, self.start, len(blocks - first))?);
        }
        Ok(bytes)
    }

    fn cycle(&self, at: u64) -> Result<u32, Refusal> {
        Ok(cycle(&self.read(at, 1)?))
    }

    fn find_head(&self) -> Result<Head, Refusal> {
        if self.blocks < 16 {
            return Err(unusable("its log is too short"));
        }
        let (first, last) = (self.cycle(0)?, self.cycle(self.blocks - 1)?);
        if first == 0 || (first != last && first - 1 != last) {
            return Err(unusable("its log has no beginning"));
        }
        let mut turn = self.blocks;
        if first != last {
            // of one side the first block is, of the other the last
            let mut new = 0;
            turn = self.blocks - 1;
            while turn - new > 1 {
                let middle = u64::midpoint(new, turn);
                match self.cycle(middle)? {
                    cycle if cycle == first => new = middle,
                    cycle if cycle == last => turn = middle,
                    _ => return Err(unusable("its log has blocks of no round")),
                }
            }
        }
        let head = Head { at: turn % self.blocks, cycle: first, turn };
        self.find_hole(head)
    }

    /// Goes back to the first block that was not yet written, where others behind it were.
    fn find_hole(&self, head: Head) -> Result<Head, Refusal> {
        const STEP: u64 = 256;
        let window = WINDOW.min(self.blocks);
        let mut back = window;
        while back > 0 {
            let from = (head.turn + self.blocks - back) % self.blocks;
            let count = back.min(STEP);
            let bytes = self.read(from, count)?;
            for (number, block) in (0..).zip(bytes.chunks_exact(BLOCK_LEN)) {
                let at = (from + number) % self.blocks;
                let expected = head.cycle_of(at);
                match cycle(block) {
                    cycle if cycle == expected => {}
                    cycle if expected.checked_sub(1) == Some(cycle) && at < head.turn => {
                        return Ok(Head { at, turn: at, ..head });
                    }
                    // the end of the round before has a hole
                    cycle if expected.checked_sub(1) == Some(cycle) => {
                        return Ok(Head { at, cycle: head.cycle - 1, turn: at });
                    }
                    _ => return Err(unusable("its log has blocks of no round")),
                }
            }
            back -= count;
        }
        Ok(head)
    }

    /// Records that begin from a block on to the head.
    fn records_from(&self, start: u64, head: &Head) -> Result<usize, Refusal> {
        let mut count = 0;
        for number in 0..head.distance(start, self.blocks) {
            let block = self.read((start + number) % self.blocks, 1)?;
            count += usize::from(be32(&block, 0) == MAGIC);
        }
        Ok(count)
    }

    /// The last record that is whole; where the last that was begun is not, the log ends before it.
    fn last_record(&self, head: &mut Head) -> Result<Record, Refusal> {
        let window = WINDOW.min(self.blocks);
        for back in 1..=window {
            let at = (head.at + self.blocks - back) % self.blocks;
            let block = self.read(at, 1)?;
            if be32(&block, 0) != MAGIC {
                continue;
            }
            let record = self.record(at, block)?;
            match record.blocks() {
                blocks if blocks == back => return Ok(record),
                blocks if blocks > back => {
                    head.at = at;
                    return self.last_whole(*head);
                }
                _ => break,
            }
        }
        Err(unusable("the last record of its log is not found"))
    }

    /// Before one that was not written to its end.
    fn last_whole(&self, head: Head) -> Result<Record, Refusal> {
        for back in 1..=WINDOW.min(self.blocks) {
            let at = (head.at + self.blocks - back) % self.blocks;
            let block = self.read(at, 1)?;
            if be32(&block, 0) == MAGIC {
                let record = self.record(at, block)?;
                if record.blocks() == back {
                    return Ok(record);
                }
                break;
            }
        }
        Err(unusable("the last record of its log is not found"))
    }

    fn record(&self, at: u64, header: Vec<u8>) -> Result<Record, Refusal> {
        let [version, len, size] = [8, 12, 320].map(|place| be32(&header, place));
        let fits = be32(&header, 0) == MAGIC
            && (1..=2).contains(&version)
            && (1..=RECORD_BYTES_MAX).contains(&len)
            && size <= RECORD_BYTES_MAX
            && be64(&header, 16) & 0xffff_ffff == at
            && field(&header, 304) == self.uuid;
        if !fits {
            return Err(unusable(format!("the record at {at} of its log does not fit together")));
        }
        if be32(&header, 300) != LITTLE_ENDIAN {
            return Err(unusable("its log was written by a machine of another byte order"));
        }
        let headers = if version == 2 { size.div_ceil(PER_HEADER).max(1) } else { 1 };
        // at most 256 KiB
        let (header_blocks, data_len) = (u64::from(headers), len as usize);
        let record = Record { at, header, header_blocks, data_len };
        if record.blocks() <= self.blocks {
            Ok(record)
        } else {
            Err(unusable("its log is too short"))
        }
    }

    /// All records from the tail that the last one names up to the head; gives the first that is
    /// torn.
    fn read_records(
        &self,
        last: &Record,
        head: &Head,
        transactions: &mut Transactions<'_>,
    ) -> Result<Option<u64>, Refusal> {
        let tail = be64(&last.header, 24);
        let mut at = tail & 0xffff_ffff;
        let lost = |at: u64| unusable(format!("the record at {at} of its log is not found"));
        if at >= self.blocks || tail >> 32 != u64::from(head.cycle_of(at)) {
            return Err(lost(at));
        }
        // a tail that is the head is that of a log that is full
        let mut left = match head.distance(at, self.blocks) {
            0 => self.blocks,
            distance => distance,
        };
        while left > 0 {
            let block = self.read(at, 1)?;
            if be32(&block, 0) != MAGIC || be32(&block, 4) != head.cycle_of(at) {
                return Err(lost(at));
            }
            let record = self.record(at, block)?;
            if record.blocks() > left {
                return Err(lost(at));
            }
            let bytes = self.read(at, record.blocks())?;
            let headers = usize::try_from(record.header_blocks).unwrap_or(0) * BLOCK_LEN;
            let (headers, data) = bytes.split_at(headers);
            if self.has_checksums && !checksum_fits(&record, headers, data) {
                return Ok(Some(at));
            }
            let lsn = be64(&record.header, 16);
            transactions.record(lsn, be32(headers, 40), &unpacked(&record, headers, data))?;
            left -= record.blocks();
            at = (at + record.blocks()) % self.blocks;
        }
        Ok(None)
    }
}

/// The round that a block was written in.
fn cycle(block: &[u8]) -> u32 {
    be32(block, if be32(block, 0) == MAGIC { 4 } else { 0 })
}

/// As it was made: without the numbers of rounds that stand over the first bytes of each block.
fn unpacked(record: &Record, headers: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    for (number, block) in bytes.chunks_exact_mut(BLOCK_LEN).enumerate() {
        let kept = match number / 64 {
            0 => 44 + 4 * number,
            header => header * BLOCK_LEN + 4 + 4 * (number % 64),
        };
        if let Some(kept) = headers.get(kept..kept + 4) {
            block[..4].copy_from_slice(kept);
        }
    }
    bytes.truncate(record.data_len);
    bytes
}

/// Of header, further headers as far as there is data for them, and data. The header has 4 bytes
/// more on machines of 64 bits.
fn checksum_fits(record: &Record, headers: &[u8], data: &[u8]) -> bool {
    const CRC: usize = 32;
    const FURTHER: usize = 260;
    let kept = le32(headers, CRC);
    let further = record.data_len.div_ceil(PER_HEADER as usize).min(headers.len() / BLOCK_LEN);
    [328, 324].into_iter().any(|len| {
        let mut sum = crc32c(crc32c(crc32c(!0, &headers[..CRC]), &[0; 4]), &headers[CRC + 4..len]);
        for block in headers.chunks_exact(BLOCK_LEN).take(further).skip(1) {
            sum = crc32c(sum, &block[..FURTHER]);
        }
        !crc32c(sum, &data[..record.data_len]) == kept
    })
}
