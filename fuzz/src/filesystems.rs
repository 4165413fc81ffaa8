//! File systems: whatever is on a volume, the map of what is used is in order and within it, or there is none.

use crate::lists::check_set;
use mover::filesystem::{Limits, ReadAt, used_space};
use std::collections::HashMap;
use std::io;

const VOLUME_BYTES: u64 = 64 << 20;
/// An input is a row of blocks, each behind its number; all others are zero.
const BLOCK: usize = 1024;
const LIMITS: Limits = Limits { granule_bytes: 4096, ranges_max: 10_000 };

struct Sparse<'a> {
    blocks: HashMap<u64, &'a [u8]>,
    /// Checksums are made to fit, or hardly any change of an input would get past them.
    seal: bool,
}

impl ReadAt for Sparse<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        assert!(buffer.len() as u64 + offset <= VOLUME_BYTES, "a read behind the end");
        buffer.fill(0);
        let mut at = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut rest = &mut buffer[..];
        while !rest.is_empty() {
            let inside = at % BLOCK;
            let (piece, behind) = rest.split_at_mut(rest.len().min(BLOCK - inside));
            let block = self.blocks.get(&((at / BLOCK) as u64));
            if let Some(bytes) = block.and_then(|bytes| bytes.get(inside..)) {
                let len = bytes.len().min(piece.len());
                piece[..len].copy_from_slice(&bytes[..len]);
            }
            at += piece.len();
            rest = behind;
        }
        if self.seal {
            seal(buffer);
        }
        Ok(())
    }
}

/// Sums up a block that is read alone: of XFS by its magic, anything else of that size as of btrfs.
fn seal(block: &mut [u8]) {
    let at = match block.first_chunk() {
        Some(b"XFSB") => 224,
        Some(b"XAGF") => 216,
        Some(b"XAGI") => 312,
        Some(b"XAFL") => 32,
        Some(b"AB3B") => 52,
        Some(_) if (4096..=64 << 10).contains(&block.len()) && block.len().is_power_of_two() => {
            let sum = crc32c(&block[32..]);
            block[..4].copy_from_slice(&sum.to_le_bytes());
            return;
        }
        _ => return,
    };
    if let Some(place) = block.get_mut(at..at + 4) {
        place.fill(0);
        let sum = crc32c(block);
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    };
    !bytes.iter().fold(!0, step)
}

/// Reads the map of a volume of 64 MiB, as it is and with checksums that fit.
pub fn filesystem(data: &[u8]) {
    let blocks = data.chunks(2 + BLOCK).filter_map(|record| {
        let (number, bytes) = record.split_first_chunk()?;
        Some((u64::from(u16::from_le_bytes(*number)), bytes))
    });
    let mut volume = Sparse { blocks: blocks.collect(), seal: false };
    for seal in [false, true] {
        volume.seal = seal;
        let Ok(found) = used_space(&volume, VOLUME_BYTES, LIMITS) else { continue };
        check_set(&found.used, VOLUME_BYTES);
        // superblock and descriptors at the least
        assert!(found.used.covers(&(0..4096)), "{found:?}");
    }
}
