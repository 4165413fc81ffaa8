//! Chunks: where on the device the addresses are that everything else is told by.
//!
//! Of one device there are chunks with one copy (SINGLE) and with two (DUP). Chunks may not
//! overlap, neither by address nor on the device: so what is allocated is never more than the
//! device is large.

use super::superblock::Superblock;
use super::tree::Key;
use super::{Counter, item, unusable, uuid};
use crate::{Refusal, le16, le64};

/// DATA, SYSTEM, METADATA.
const CONTENTS: u64 = 7;
const SYSTEM: u64 = 2;
const DUP: u64 = 1 << 5;

/// What stands before the first stripe, and a stripe.
const HEAD: usize = 48;
const STRIPE: usize = 32;
/// A chunk has 1 GiB, or a tenth of a smaller device: 40 bytes each.
const CHUNKS_MAX: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    at: u64,
    len: u64,
    flags: u64,
    first: u64,
    /// The same as the first where there is but one.
    second: u64,
}

/// See the module; ascending by address.
#[derive(Debug, Default)]
pub(super) struct Chunks(Vec<Chunk>);

/// Where an extent is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Number of its chunk.
    pub(super) chunk: usize,
    first: u64,
    second: u64,
}

impl Places {
    /// Its copies, in bytes of the device.
    pub(super) fn on_device(self) -> impl Iterator<Item = u64> {
        let second = Some(self.second).filter(|second| *second != self.first);
        std::iter::once(self.first).chain(second)
    }
}

impl Chunks {
    /// Those that the superblock has, which lead to all others.
    pub(super) fn of_superblock(superblock: &Superblock) -> Result<Self, Refusal> {
        let cut = || unusable("the chunks in its superblock are cut off");
        let mut chunks = Self::default();
        let mut rest = superblock.system_chunks.as_slice();
        while !rest.is_empty() {
            let (key, behind) = rest.split_at_checked(Key::LEN).ok_or_else(cut)?;
            let key = Key::parse(key, 0);
            if key.kind != item::CHUNK {
                return Err(unusable("its superblock has something else among its chunks"));
            }
            let len = HEAD + STRIPE * usize::from(le16(behind, 44));
            let (chunk, behind) = behind.split_at_checked(len).ok_or_else(cut)?;
            chunks.add(superblock, key.offset, chunk)?;
            rest = behind;
        }
        if chunks.0.iter().any(|chunk| chunk.flags & SYSTEM == 0) {
            return Err(unusable("its superblock has chunks that are not of the chunk tree"));
        }
        chunks.0.sort_unstable_by_key(|chunk| chunk.at);
        chunks.check_apart()?;
        Ok(chunks)
    }

    /// Adds one; in ascending order, those of a superblock apart.
    pub(super) fn add(
        &mut self,
        superblock: &Superblock,
        at: u64,
        item: &[u8],
    ) -> Result<(), Refusal> {
        if self.0.len() == CHUNKS_MAX {
            return Err(unusable("it has too many chunks"));
        }
        let (len, flags) = (le64(item, 0), le64(item, 24));
        let copies = match flags & !CONTENTS {
            0 => 1,
            DUP => 2,
            _ => return Err(unusable(format!("a chunk has an unknown profile: {flags:#x}"))),
        };
        let fits = item.len() == HEAD + STRIPE * copies
            && usize::from(le16(item, 44)) == copies
            && len > 0
            && len.is_multiple_of(superblock.sector_bytes)
            && at.checked_add(len).is_some();
        if !fits {
            return Err(unusable(format!("the chunk at {at} does not fit together")));
        }
        let place = |stripe: usize| {
            let from = HEAD + STRIPE * stripe;
            let own = le64(item, from) == superblock.device
                && uuid(item, from + 16) == superblock.device_uuid;
            let place = le64(item, from + 8);
            let end = place.checked_add(len).filter(|end| *end <= superblock.device_bytes);
            match (own, end) {
                (true, Some(_)) => Ok(place),
                (false, _) => Err(unusable(format!("the chunk at {at} is on another device"))),
                _ => Err(unusable(format!("the chunk at {at} leads outside of the device"))),
            }
        };
        let (first, second) = (place(0)?, place(copies - 1)?);
        self.0.push(Chunk { at, len, flags, first, second });
        Ok(())
    }

    /// Whether they are apart, and have those of the superblock among them.
    pub(super) fn check(&self, system: &Self) -> Result<(), Refusal> {
        self.check_apart()?;
        let mut own = self.0.iter().filter(|chunk| chunk.flags & SYSTEM != 0);
        if !system.0.iter().all(|one| own.any(|other| one == other)) {
            return Err(unusable("its superblock has other chunks than its chunk tree"));
        }
        Ok(())
    }

    fn check_apart(&self) -> Result<(), Refusal> {
        let overlap = || unusable("its chunks overlap");
        // no overflow: ends were looked at when they were added
        if self.0.windows(2).any(|pair| pair[0].at + pair[0].len > pair[1].at) {
            return Err(overlap());
        }
        let mut places: Vec<(u64, u64)> = Vec::with_capacity(2 * self.0.len());
        for chunk in &self.0 {
            places.push((chunk.first, chunk.len));
            if chunk.flags & DUP != 0 {
                places.push((chunk.second, chunk.len));
            }
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(overlap());
        }
        Ok(())
    }

    /// Where something is that must be within one chunk.
    pub(super) fn places(&self, at: u64, len: u64) -> Result<Places, Refusal> {
        let after = self.0.partition_point(|chunk| chunk.at <= at);
        let found = after.checked_sub(1).and_then(|number| {
            let chunk = &self.0[number];
            let from = at - chunk.at;
            let inside = from < chunk.len && len <= chunk.len - from;
            let places =
                Places { chunk: number, first: chunk.first + from, second: chunk.second + from };
            (inside && len > 0).then_some(places)
        });
        found.ok_or_else(|| unusable(format!("{len} bytes at {at} are in no chunk")))
    }

    /// The number of the chunk that is this and nothing else.
    pub(super) fn whole(&self, at: u64, len: u64, flags: u64) -> Option<usize> {
        let number = self.0.binary_search_by_key(&at, |chunk| chunk.at).ok()?;
        let chunk = &self.0[number];
        (chunk.len == len && chunk.flags == flags).then_some(number)
    }

    /// One for each.
    pub(super) fn counters(&self) -> Vec<Counter> {
        vec![Counter::default(); self.0.len()]
    }
}
