//! File systems: whatever is on a volume, the map of what is used is in order and within it, or
//! there is none; files end, and all of each is somewhere; logical volumes lie within it.

use crate::lists::check_set;
use mover_fsmap::files::{FileKind, open, read_content};
use mover_fsmap::{Limits, ReadAt, logical_volumes, used_space};
use std::collections::{HashMap, HashSet};
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
            self.seal_area(buffer, offset)?;
        }
        Ok(())
    }
}

impl Sparse<'_> {
    /// The header of a metadata area of LVM, which has the checksum of the text behind it.
    fn seal_area(&self, header: &mut [u8], offset: u64) -> io::Result<()> {
        if header.len() != 512 || header[4..20] != *b" LVM2 x[5A%r0N*>" {
            return Ok(());
        }
        let number =
            |at: usize| header[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        let (at, len) = (number(40), number(48));
        let end = offset.checked_add(at).and_then(|at| at.checked_add(len));
        if len < 1 << 20 && end.is_some_and(|end| end <= VOLUME_BYTES) {
            let mut text = vec![0; usize::try_from(len).unwrap_or(0)];
            self.read_at(&mut text, offset + at)?;
            header[56..60].copy_from_slice(&crc_of_lvm(&text).to_le_bytes());
        }
        let sum = crc_of_lvm(&header[4..]);
        header[..4].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }
}

/// Sums up a block that is read alone: of XFS, NTFS and LVM by its magic, anything else of that
/// size as of btrfs.
fn seal(block: &mut [u8]) {
    if block.len() == 512 && block.starts_with(b"LABELONE") {
        let sum = crc_of_lvm(&block[20..]);
        block[16..20].copy_from_slice(&sum.to_le_bytes());
        return;
    }
    let at = match block.first_chunk() {
        Some(b"FILE" | b"RSTR") if block.len() >= 512 => {
            // each sector ends with the number of the write
            let from = usize::from(u16::from_le_bytes([block[4], block[5]]));
            if let Some(number) = block.get(from..from + 2).map(<[u8]>::to_vec) {
                block
                    .chunks_exact_mut(512)
                    .for_each(|sector| sector[510..].copy_from_slice(&number));
            }
            return;
        }
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

fn crc_of_lvm(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
    };
    bytes.iter().fold(0xf597_a6cf, step)
}

impl<'a> Sparse<'a> {
    fn new(data: &'a [u8]) -> Self {
        let blocks = data.chunks(2 + BLOCK).filter_map(|record| {
            let (number, bytes) = record.split_first_chunk()?;
            Some((u64::from(u16::from_le_bytes(*number)), bytes))
        });
        Self { blocks: blocks.collect(), seal: false }
    }
}

/// Reads the map of a volume of 64 MiB, as it is and with checksums that fit.
pub fn filesystem(data: &[u8]) {
    let mut volume = Sparse::new(data);
    for seal in [false, true] {
        volume.seal = seal;
        let Ok(found) = used_space(&volume, VOLUME_BYTES, LIMITS) else { continue };
        check_set(&found.used, VOLUME_BYTES);
        // superblock and descriptors at the least
        assert!(found.used.covers(&(0..4096)), "{found:?}");
    }
}

/// Reads files of such a volume, and where its logical volumes are.
pub fn files(data: &[u8]) {
    let mut volume = Sparse::new(data);
    for seal in [false, true] {
        volume.seal = seal;
        walk(&volume);
        let volumes = logical_volumes(&volume, VOLUME_BYTES).unwrap_or_default();
        for layout in volumes.into_iter().filter_map(|one| one.layout.ok()) {
            let end = layout.bytes();
            let ranges = layout.ranges(0..end.min(1 << 20)).into_iter().flatten();
            let last = layout.ranges(end.saturating_sub(1 << 20)..end).into_iter().flatten();
            let inside = ranges.chain(last).all(|range| range.end <= VOLUME_BYTES);
            assert!(inside, "it leads outside");
            assert!(layout.ranges(end..end + 1).is_none());
        }
    }
}

fn walk(volume: &Sparse<'_>) {
    const FILES_MAX: usize = 500;
    let Ok(files) = open(volume, VOLUME_BYTES) else { return };
    let (mut left, mut been) = (vec![files.root()], HashSet::new());
    let (mut count, mut buffer) = (0, vec![0; 4096]);
    while let Some(directory) = left.pop() {
        let Ok(names) = files.names(directory) else { continue };
        let ids: Vec<_> = names.iter().map(|entry| entry.id).take(FILES_MAX).collect();
        files.expect(&ids);
        for id in ids {
            count += 1;
            if count > FILES_MAX {
                return;
            }
            let Ok(node) = files.node(id) else { continue };
            let _ = files.attributes(id);
            match node.kind {
                FileKind::Directory if been.insert(id) => left.push(id),
                FileKind::Symlink => drop(files.target(id)),
                FileKind::File => {
                    let Ok(pieces) = files.content(id) else { continue };
                    let ends = pieces.last().map_or(0, |piece| piece.range.end);
                    assert_eq!(ends, node.size_bytes, "all of it is somewhere");
                    assert!(pieces.windows(2).all(|two| two[0].range.end == two[1].range.start));
                    for at in [0, node.size_bytes / 2] {
                        let _ = read_content(volume, &pieces, at, &mut buffer);
                    }
                }
                _ => {}
            }
        }
    }
}
