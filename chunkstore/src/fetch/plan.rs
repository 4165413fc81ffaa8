//! Which byte ranges of which packs to read, decided without any I/O.

use crate::error::{Error, ErrorKind, Result};
use crate::format::location::is_possible;
use crate::ids::PackId;
use crate::limits::{ENTRY_HEADER_BYTES, PACK_BYTES_MAX, PACK_HEADER_BYTES, TAG_BYTES};
use crate::units::{ChunkSize, Location};
use bytes::Bytes;
use std::ops::Range;

/// Where a whole sealed entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryAddr {
    /// Pack that holds the entry.
    pub pack: PackId,
    /// Number of the entry in its pack.
    pub entry: u32,
    /// First byte of the entry in its pack.
    pub offset: u32,
    /// Bytes of the entry as stored.
    pub stored_len: u32,
}

impl From<&Location> for EntryAddr {
    fn from(l: &Location) -> Self {
        Self { pack: l.pack, entry: l.entry, offset: l.offset, stored_len: l.stored_len }
    }
}

impl EntryAddr {
    /// Refuses an address that no writer makes, before memory is taken for it. `plain_bytes_max` is
    /// the most plaintext that an entry of the expected kind holds; sealing adds a header and a tag
    /// and never makes it longer otherwise.
    pub fn check(&self, plain_bytes_max: u32) -> Result<()> {
        let frame = ENTRY_HEADER_BYTES + TAG_BYTES;
        let end = u64::from(self.offset) + u64::from(self.stored_len);
        let wrong = if self.stored_len <= frame {
            "it is too short to hold anything"
        } else if self.stored_len - frame > plain_bytes_max {
            "it is longer than any entry of its kind"
        } else if self.offset < PACK_HEADER_BYTES || end > u64::from(PACK_BYTES_MAX) {
            "it lies outside a pack"
        } else if !is_possible(self.entry, self.offset) {
            "no pack has so many entries before it"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "follow a reference to entry {} of pack {}, bytes {}..{end}",
                self.entry, self.pack, self.offset
            ),
            wrong,
        ))
    }

    /// The same for a reference to chunk `index` of an entry, in a repository of this chunk size
    /// with so many chunks in an entry at most. Whoever follows a reference to a chunk asks here.
    pub fn check_chunk(&self, index: u16, chunk: ChunkSize, entry_chunks: u16) -> Result<()> {
        self.check(chunk.bytes().saturating_mul(u32::from(entry_chunks)))?;
        if index < entry_chunks {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("follow a reference to entry {} of pack {}", self.entry, self.pack),
            format!("it names chunk {index} of the entry, but entries have at most {entry_chunks}"),
        ))
    }
}

/// One range read of one pack, and the entries that it brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRead {
    /// Pack to read from.
    pub pack: PackId,
    /// First byte.
    pub start: u32,
    /// Bytes.
    pub len: u32,
    /// What is wanted of it, ascending by offset, each once.
    pub entries: Vec<EntryAddr>,
}

impl RangeRead {
    /// Byte range in the pack.
    pub fn range(&self) -> Range<u64> {
        u64::from(self.start)..u64::from(self.start) + u64::from(self.len)
    }

    /// The stored bytes of one of the entries, out of what [`Self::range`] gave; nothing is copied.
    pub fn entry_bytes(&self, data: &Bytes, addr: &EntryAddr) -> Result<Bytes> {
        let place = || {
            let from = addr.offset.checked_sub(self.start)? as usize;
            let to = from.checked_add(addr.stored_len as usize)?;
            (addr.pack == self.pack && to <= data.len()).then(|| data.slice(from..to))
        };
        place().ok_or_else(|| {
            Error::new(
                ErrorKind::Bug,
                format!("take entry {} of pack {} from a read", addr.entry, addr.pack),
                format!("the read covers bytes {:?}", self.range()),
            )
        })
    }
}

/// Sorts and merges: entries of one pack with at most `gap_bytes` between them share a read of at
/// most `read_bytes_max` (a single longer entry gets a read of its own). Duplicates are dropped.
///
/// The result is ascending by pack and offset.
pub fn plan_reads(
    mut addrs: Vec<EntryAddr>,
    gap_bytes: u32,
    read_bytes_max: u32,
) -> Vec<RangeRead> {
    addrs.sort_unstable_by_key(|a| (a.pack, a.offset, a.stored_len, a.entry));
    addrs.dedup();
    let mut reads: Vec<RangeRead> = Vec::new();
    for addr in addrs {
        if let Some(last) = reads.last_mut() {
            let last_end = u64::from(last.start) + u64::from(last.len);
            let end = (u64::from(addr.offset) + u64::from(addr.stored_len)).max(last_end);
            // sorted by offset, so `end` is not below `start`
            let joined = u32::try_from(end - u64::from(last.start)).unwrap_or(u32::MAX);
            if last.pack == addr.pack
                && u64::from(addr.offset) <= last_end + u64::from(gap_bytes)
                && joined <= read_bytes_max.max(last.len)
            {
                last.len = joined;
                last.entries.push(addr);
                continue;
            }
        }
        reads.push(RangeRead {
            pack: addr.pack,
            start: addr.offset,
            len: addr.stored_len,
            entries: vec![addr],
        });
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addr(pack: u8, entry: u32, offset: u32, stored_len: u32) -> EntryAddr {
        EntryAddr { pack: PackId::from_bytes([pack; 32]), entry, offset, stored_len }
    }

    #[test]
    fn near_entries_share_a_read() {
        let reads = plan_reads(
            vec![
                addr(2, 0, 64, 10),
                addr(1, 2, 300, 50),
                addr(1, 0, 64, 100),
                addr(1, 0, 64, 100),
                addr(1, 1, 164, 36),
            ],
            100,
            1000,
        );
        assert_eq!(reads.len(), 2);
        assert_eq!((reads[0].start, reads[0].len, reads[0].entries.len()), (64, 286, 3));
        assert_eq!((reads[1].start, reads[1].len, reads[1].entries.len()), (64, 10, 1));
        let data = Bytes::from(vec![7; 286]);
        assert_eq!(reads[0].entry_bytes(&data, &addr(1, 2, 300, 50)).unwrap().len(), 50);
        assert!(reads[0].entry_bytes(&data, &addr(1, 3, 340, 50)).is_err());
        assert!(reads[0].entry_bytes(&data, &addr(1, 3, 10, 5)).is_err());
    }

    #[test]
    fn a_read_ends_at_its_limit() {
        let addrs: Vec<_> = (0..10).map(|i| addr(1, i, 64 + i * 100, 100)).collect();
        let reads = plan_reads(addrs, 0, 250);
        assert_eq!(reads.iter().map(|r| r.entries.len()).collect::<Vec<_>>(), [2; 5]);
        let long = plan_reads(vec![addr(1, 0, 64, 5000), addr(1, 1, 5064, 10)], 0, 250);
        assert_eq!(long.len(), 2);
    }

    #[test]
    fn addresses_at_the_end_of_the_number_range_do_not_overflow() {
        let reads = plan_reads(
            vec![addr(1, 0, u32::MAX - 1, u32::MAX), addr(1, 1, u32::MAX, u32::MAX)],
            u32::MAX,
            u32::MAX,
        );
        assert_eq!(reads.iter().map(|r| r.entries.len()).sum::<usize>(), 2);
        assert!(addr(1, 0, u32::MAX - 1, 100).check(1 << 20).is_err());
        assert!(addr(1, 0, 64, 24).check(1 << 20).is_err());
        assert!(addr(1, 0, 64, 25).check(1 << 20).is_ok());
        assert!(addr(1, 0, 64, (1 << 20) + 25).check(1 << 20).is_err());
        assert!(addr(1, 0, 63, 25).check(1 << 20).is_err());
        assert!(addr(1, 2, 64, 25).check(1 << 20).is_ok());
        assert!(addr(1, 3, 64, 25).check(1 << 20).is_err());
        let chunk = ChunkSize::new(4096).unwrap();
        assert!(addr(1, 0, 64, 4 * 4096 + 24).check_chunk(3, chunk, 4).is_ok());
        assert!(addr(1, 0, 64, 4 * 4096 + 25).check_chunk(3, chunk, 4).is_err());
        assert!(addr(1, 0, 64, 100).check_chunk(4, chunk, 4).is_err());
    }

    proptest! {
        #[test]
        fn every_entry_is_read_once_and_within_its_read(
            entries in prop::collection::vec((0u8..3, 0u32..5000, 1u32..400), 0..60),
            gap in 0u32..200,
            max in 1u32..3000,
        ) {
            let addrs: Vec<_> = (0u32..).zip(&entries)
                .map(|(i, &(p, o, l))| addr(p, i, 64 + o, l)).collect();
            let reads = plan_reads(addrs.clone(), gap, max);
            let mut seen: Vec<_> = reads.iter().flat_map(|r| r.entries.clone()).collect();
            seen.sort_unstable();
            let mut want = addrs;
            want.sort_unstable();
            prop_assert_eq!(seen, want);
            for r in &reads {
                prop_assert!(r.len <= max || r.entries.iter().any(|e| e.stored_len == r.len));
                for e in &r.entries {
                    prop_assert_eq!(e.pack, r.pack);
                    prop_assert!(e.offset >= r.start && e.offset + e.stored_len <= r.start + r.len);
                }
            }
            prop_assert!(reads.is_sorted_by_key(|r| (r.pack, r.start)));
        }
    }
}
