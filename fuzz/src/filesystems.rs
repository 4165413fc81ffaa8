//! File systems: whatever is on a volume, the map of what is used is in order and within it, or there is none.

use crate::lists::check_set;
use mover::filesystem::{Limits, ReadAt, used_space};
use std::collections::HashMap;
use std::io;

const VOLUME_BYTES: u64 = 16 << 20;
/// An input is a row of blocks, each behind its number; all others are zero.
const BLOCK: usize = 1024;
const LIMITS: Limits = Limits { granule_bytes: 4096, ranges_max: 10_000 };

struct Sparse<'a>(HashMap<u64, &'a [u8]>);

impl ReadAt for Sparse<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        assert!(buffer.len() as u64 + offset <= VOLUME_BYTES, "a read behind the end");
        buffer.fill(0);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, byte) in (from..).zip(buffer.iter_mut()) {
            let block = self.0.get(&((at / BLOCK) as u64));
            *byte = block.and_then(|bytes| bytes.get(at % BLOCK)).copied().unwrap_or(0);
        }
        Ok(())
    }
}

/// Reads the map of a volume of 16 MiB.
pub fn filesystem(data: &[u8]) {
    let blocks = data.chunks(2 + BLOCK).filter_map(|record| {
        let (number, bytes) = record.split_first_chunk()?;
        Some((u64::from(u16::from_le_bytes(*number)), bytes))
    });
    let Ok(found) = used_space(&Sparse(blocks.collect()), VOLUME_BYTES, LIMITS) else { return };
    check_set(&found.used, VOLUME_BYTES);
    // superblock and descriptors at the least
    assert!(found.used.covers(&(0..4096)), "{found:?}");
}
