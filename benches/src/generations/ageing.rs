//! A copy of a volume that changes as volumes do, the same way for the same seed.

use crate::failed;
use crate::stop::Stop;
use benches::synthetic;
use chunkstore::{Error, ErrorKind, Result, is_zero};
use mover_engine::volume::device::{DirectIo, Source, SourceOptions};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PIECE_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 16 << 10;
/// Bytes of a page that change, in runs of so many.
const RUNS: u64 = 4;
const RUN_BYTES: usize = 64;
/// Other data of the same kind is taken from so far off the grid that no chunk of it was seen
/// before.
const SHIFT_BYTES: u64 = 1234;

/// The copy and where its data is.
#[derive(Debug)]
pub(super) struct Ageing {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    /// Pieces with data when it was copied, ascending.
    pieces: Vec<u64>,
    state: u64,
}

/// What has changed since the last time.
#[derive(Debug)]
pub(super) struct Aged {
    /// A changed-block list, as `mover diff` writes it.
    pub(super) list: String,
}

impl Ageing {
    /// Copies the data of `device` into a file with holes.
    pub(super) fn of_copy(device: &Path, path: &Path, seed: u64, stop: &Stop) -> Result<Self> {
        let source = Source::open(device, SourceOptions { direct: DirectIo::Never })?;
        let what = || format!("copy {} to {}", device.display(), path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|e| failed(what(), e))?;
        let size_bytes = source.size_bytes();
        file.set_len(size_bytes).map_err(|e| failed(what(), e))?;
        let mut piece = vec![0; usize::try_from(PIECE_BYTES).unwrap_or(0)];
        let mut pieces = Vec::new();
        for number in 0..size_bytes / PIECE_BYTES {
            stop.check()?;
            let at = number * PIECE_BYTES;
            source.read_exact_at(&mut piece, at)?;
            if !is_zero(&piece) {
                file.write_all_at(&piece, at).map_err(|e| failed(what(), e))?;
                pieces.push(number);
            }
        }
        // the rest after the last whole piece stays zero: the copy is what is measured
        if pieces.len() < 2 {
            return Err(Error::new(ErrorKind::Usage, what(), "there are less than 2 MiB of data"));
        }
        Ok(Self { path: path.to_owned(), file, size_bytes, pieces, state: seed })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Changes `pages` pages a little and overwrites `pieces` pieces.
    pub(super) fn age(&mut self, pages: u32, pieces: u32) -> Result<Aged> {
        let mut changed = Vec::new();
        let what = |e| failed(format!("change {}", self.path.display()), e);
        let file = self.file.try_clone().map_err(what)?;
        let mut page = vec![0; usize::try_from(PAGE_BYTES).unwrap_or(0)];
        for _ in 0..pages {
            let at = self.random_piece() * PIECE_BYTES
                + self.below(PIECE_BYTES / PAGE_BYTES) * PAGE_BYTES;
            file.read_exact_at(&mut page, at).map_err(|e| failed("read a page", e))?;
            for _ in 0..RUNS {
                let start = usize::try_from(self.below(PAGE_BYTES)).unwrap_or(0);
                let end = (start + RUN_BYTES).min(page.len());
                for byte in &mut page[start..end] {
                    *byte = u8::try_from(self.below(256)).unwrap_or(0);
                }
            }
            file.write_all_at(&page, at).map_err(|e| failed("change a page", e))?;
            changed.push(at..at + PAGE_BYTES);
        }
        let mut piece = vec![0; usize::try_from(PIECE_BYTES).unwrap_or(0)];
        for _ in 0..pieces {
            let from = self.random_piece() * PIECE_BYTES;
            let from = (from + SHIFT_BYTES).min(self.size_bytes - PIECE_BYTES);
            let to = self.random_piece() * PIECE_BYTES;
            file.read_exact_at(&mut piece, from).map_err(|e| failed("read a piece", e))?;
            file.write_all_at(&piece, to).map_err(|e| failed("overwrite a piece", e))?;
            changed.push(to..to + PIECE_BYTES);
        }
        Ok(Aged { list: list(self.size_bytes, changed) })
    }

    fn random_piece(&mut self) -> u64 {
        let n = self.below(self.pieces.len() as u64);
        usize::try_from(n).ok().and_then(|n| self.pieces.get(n)).copied().unwrap_or(0)
    }

    /// splitmix64; the remainder's bias is far below what matters here.
    fn below(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end.max(1)
    }
}

/// Ascending and merged.
fn list(size_bytes: u64, mut changed: Vec<Range<u64>>) -> String {
    changed.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in changed {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    synthetic::delta_list(size_bytes, &merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_exactly_what_changed_and_the_seed_decides() {
        let dir = tempfile::tempdir().unwrap();
        let images = synthetic::make(dir.path(), 24 << 20, &|| false).unwrap();
        let copies = [dir.path().join("one"), dir.path().join("two")];
        let aged: Vec<String> = copies
            .iter()
            .map(|path| {
                let mut volume = Ageing::of_copy(&images.base, path, 7, &Stop::default()).unwrap();
                volume.age(20, 2).unwrap().list
            })
            .collect();
        assert_eq!(aged[0], aged[1]);
        let (before, after) =
            (std::fs::read(&images.base).unwrap(), std::fs::read(&copies[0]).unwrap());
        assert!(after == std::fs::read(&copies[1]).unwrap());
        let parse = mover_changes::ParseOptions::new("list", 24 << 20);
        let list = mover_changes::parse_changed_blocks(aged[0].as_bytes(), &parse).unwrap();
        let listed: Vec<Range<u64>> = list.data.iter().collect();
        for at in (0..24u64 << 20).step_by(16 << 10) {
            let page = usize::try_from(at).unwrap()..usize::try_from(at + PAGE_BYTES).unwrap();
            let named = listed.iter().any(|r| r.contains(&at));
            assert_eq!(named, before[page.clone()] != after[page], "page at {at}");
        }
    }
}
