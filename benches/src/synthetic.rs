//! A volume that is the same on every machine, and the same volume some time later with the list of
//! what changed.
//!
//! Pieces of 1 MiB: of each eight, two are holes, one repeats an earlier piece, the rest are
//! [`mixed`] data. In the later image one 64 KiB block in twenty has its first 4 KiB
//! rewritten, one piece of data became a hole, and one hole became data. The list names whole 64
//! KiB blocks, as trackers of changed blocks do.

use crate::mixed;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PIECE_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 64 << 10;
const REWRITTEN_BYTES: usize = 4 << 10;
const CHANGED_ONE_IN: u64 = 20;
/// A piece that becomes a hole, and a hole that becomes data.
const DISCARDED_PIECE: u64 = 1;
const FILLED_PIECE: u64 = 3;
/// Least size: one turn of pieces.
pub const SIZE_BYTES_MIN: u64 = 8 << 20;

/// Files of a synthetic volume.
#[derive(Debug, Clone)]
pub struct Images {
    /// The volume.
    pub base: PathBuf,
    /// The volume later.
    pub next: PathBuf,
    /// What changed in between, as `mover diff` writes it.
    pub list: PathBuf,
}

/// Writes the three files into `dir`; `size_bytes` is rounded down to whole MiB. Ends early, with
/// `Interrupted`, when `stop` says so.
pub fn make(dir: &Path, size_bytes: u64, stop: &dyn Fn() -> bool) -> io::Result<Images> {
    if size_bytes < SIZE_BYTES_MIN {
        let why = format!("a synthetic volume has at least {SIZE_BYTES_MIN} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let pieces = size_bytes / PIECE_BYTES as u64;
    let images = Images {
        base: dir.join("volume.img"),
        next: dir.join("volume-later.img"),
        list: dir.join("changed.json"),
    };
    let (base, next) = (File::create(&images.base)?, File::create(&images.next)?);
    let size_bytes = pieces * PIECE_BYTES as u64;
    base.set_len(size_bytes)?;
    next.set_len(size_bytes)?;
    let mut changed: Vec<Range<u64>> = Vec::new();
    for number in 0..pieces {
        if stop() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let at = number * PIECE_BYTES as u64;
        let old = piece(number);
        let (new, blocks) = later(number, old.as_deref());
        // a piece that is not written stays a hole
        old.map_or(Ok(()), |bytes| base.write_all_at(&bytes, at))?;
        new.map_or(Ok(()), |bytes| next.write_all_at(&bytes, at))?;
        for block in blocks {
            let range = at + block.start..at + block.end;
            match changed.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => changed.push(range),
            }
        }
    }
    std::fs::write(&images.list, delta_list(size_bytes, &changed))?;
    Ok(images)
}

/// Bytes of one piece; none for a hole.
fn piece(number: u64) -> Option<Vec<u8>> {
    match number % 8 {
        3 | 6 => None,
        7 => Some(mixed(PIECE_BYTES, number - 2)),
        _ => Some(mixed(PIECE_BYTES, number)),
    }
}

/// The piece later, and which of its bytes may differ.
fn later(number: u64, old: Option<&[u8]>) -> (Option<Vec<u8>>, Vec<Range<u64>>) {
    let whole = 0..PIECE_BYTES as u64;
    if number == DISCARDED_PIECE {
        return (None, vec![whole]);
    }
    if number == FILLED_PIECE {
        return (Some(mixed(PIECE_BYTES, u64::MAX)), vec![whole]);
    }
    let Some(old) = old else { return (None, Vec::new()) };
    let mut new = old.to_vec();
    let mut changed = Vec::new();
    let blocks = (PIECE_BYTES / BLOCK_BYTES) as u64;
    for (block, bytes) in (number * blocks..).zip(new.chunks_exact_mut(BLOCK_BYTES)) {
        if block % CHANGED_ONE_IN == 0 {
            bytes[..REWRITTEN_BYTES].copy_from_slice(&mixed(REWRITTEN_BYTES, !block));
            let start = (block - number * blocks) * BLOCK_BYTES as u64;
            changed.push(start..start + BLOCK_BYTES as u64);
        }
    }
    (Some(new), changed)
}

/// A changed-block list in our own form.
pub fn delta_list(size_bytes: u64, changed: &[Range<u64>]) -> String {
    let extents: Vec<String> = changed
        .iter()
        .map(|r| format!("{{\"offset\": {}, \"len\": {}}}", r.start, r.end - r.start))
        .collect();
    let extents = extents.join(",\n");
    format!("{{\"volume_size\": {size_bytes}, \"kind\": \"delta\", \"extents\": [\n{extents}]}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover_changes::{ParseOptions, parse_changed_blocks};

    fn made(size: u64) -> (tempfile::TempDir, Images) {
        let dir = tempfile::tempdir().unwrap();
        let images = make(dir.path(), size, &|| false).unwrap();
        (dir, images)
    }

    #[test]
    fn the_list_names_all_that_differs() {
        let size = SIZE_BYTES_MIN + 4 * PIECE_BYTES as u64;
        let (_dir, images) = made(size);
        let (base, next) =
            (std::fs::read(&images.base).unwrap(), std::fs::read(&images.next).unwrap());
        assert!(base.len() as u64 == size && next.len() as u64 == size);
        let text = std::fs::read(&images.list).unwrap();
        let list = parse_changed_blocks(text.as_slice(), &ParseOptions::new("list", size)).unwrap();
        let ranges: Vec<Range<u64>> = list.data.iter().collect();
        let mut differing = 0;
        for (n, (a, b)) in base.chunks(BLOCK_BYTES).zip(next.chunks(BLOCK_BYTES)).enumerate() {
            let at = (n * BLOCK_BYTES) as u64;
            let listed = ranges.iter().any(|r| r.contains(&at));
            // every listed block does differ: an increment that reads them all stores them all
            assert_eq!(listed, a != b, "block {n}");
            differing += usize::from(a != b);
        }
        assert!(differing > 2 * PIECE_BYTES / BLOCK_BYTES && differing < 60, "{differing}");
    }

    #[test]
    fn it_is_the_same_each_time_and_has_holes_and_repetitions() {
        let (_a, one) = made(SIZE_BYTES_MIN);
        let (_b, two) = made(SIZE_BYTES_MIN + 100);
        let bytes = std::fs::read(&one.base).unwrap();
        assert!(bytes == std::fs::read(&two.base).unwrap(), "rounded down to whole MiB");
        assert!(bytes[3 * PIECE_BYTES..4 * PIECE_BYTES].iter().all(|b| *b == 0));
        assert!(bytes[5 * PIECE_BYTES..6 * PIECE_BYTES] == bytes[7 * PIECE_BYTES..]);
    }

    #[test]
    fn too_small_or_stopped_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let small = make(dir.path(), SIZE_BYTES_MIN - 1, &|| false).unwrap_err();
        assert_eq!(small.kind(), io::ErrorKind::InvalidInput);
        let stopped = make(dir.path(), SIZE_BYTES_MIN, &|| true).unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
    }
}
