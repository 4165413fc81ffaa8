//! Units on their way: what each still misses, and what has come for it.
//!
//! Pure but for one short lock. A unit is known by its first byte; units never overlap, and each is
//! inserted before anything of it is read. A chunk that lies across two units serves both. A chunk
//! that comes twice, since it lies across two batches, is nothing new the second time.

use super::unit::Unit;
use crate::reading::open::OpenedPiece;
use chunkstore::Geometry;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedSemaphorePermit;

/// Opened bytes of the original. The permit stands for their memory.
#[derive(Debug)]
struct Held {
    offset: u64,
    bytes: Vec<u8>,
    _memory: Option<Arc<OwnedSemaphorePermit>>,
}

/// A unit with all that it is made of.
#[derive(Debug)]
pub(super) struct Complete {
    pub(super) unit: Unit,
    start: u64,
    /// The wanted bytes, in the volume.
    bytes: Vec<Range<u64>>,
    /// Some of them are zero.
    zero: bool,
    pieces: Vec<Arc<Held>>,
}

impl Complete {
    pub(super) fn new(unit: Unit, start: u64, bytes: Vec<Range<u64>>, zero: bool) -> Self {
        Self { unit, start, bytes, zero, pieces: Vec::new() }
    }

    /// Writes every wanted byte. What lies between is left as it is: nobody looks at it.
    pub(super) fn write_to(&self, slot: &mut [u8]) {
        let at = |offset: u64| usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        for want in &self.bytes {
            if self.zero {
                slot[at(want.start)..at(want.end)].fill(0);
            }
            for piece in &self.pieces {
                let end = piece.offset + piece.bytes.len() as u64;
                let both = want.start.max(piece.offset)..want.end.min(end);
                if !both.is_empty() {
                    let skip = usize::try_from(both.start - piece.offset).unwrap_or(usize::MAX);
                    let to = &mut slot[at(both.start)..at(both.end)];
                    to.copy_from_slice(&piece.bytes[skip..skip + to.len()]);
                }
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The volume as the original is cut.
    geometry: Geometry,
    /// By their first byte, with the chunks of the original that they miss, ascending.
    units: Mutex<BTreeMap<u64, (Complete, Vec<u64>)>>,
}

impl Wanted {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self { geometry, units: Mutex::default() }
    }

    /// A unit that misses these chunks of the original. One that misses none is asked for by a
    /// `OpenedPiece::Zero` at its start.
    pub(super) fn insert(&self, start: u64, unit: Complete, missing: Vec<u64>) {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        units.insert(start, (unit, missing));
    }

    /// Takes what has come; gives the units that are complete with it.
    pub(super) fn arrived(&self, piece: OpenedPiece) -> Vec<Complete> {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        let (offset, bytes, memory) = match piece {
            OpenedPiece::Zero(range) => {
                return units.remove(&range.start).map(|(unit, _)| unit).into_iter().collect();
            }
            OpenedPiece::Data { offset, bytes, memory } => (offset, bytes, memory),
        };
        let end = offset + bytes.len() as u64;
        let chunks = self.geometry.chunks_of(offset..end);
        let held = Arc::new(Held { offset, bytes, _memory: memory });
        let first = units.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        let mut complete = Vec::new();
        for (start, (unit, missing)) in units.range_mut(first..end) {
            let before = missing.len();
            missing.retain(|chunk| !chunks.contains(chunk));
            if missing.len() < before {
                unit.pieces.push(Arc::clone(&held));
                if missing.is_empty() {
                    complete.push(*start);
                }
            }
        }
        complete.iter().filter_map(|start| units.remove(start)).map(|(unit, _)| unit).collect()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range is meant
mod tests {
    use super::*;
    use chunkstore::{ChunkNo, ChunkSize};

    const SIZE: u64 = 10 * 4096 + 100;

    fn unit(seq: u64, first: u64, chunks: u16) -> Unit {
        let wanted = vec![0..chunks];
        Unit { seq, first: ChunkNo(first), wanted, read_bytes: 0, base: None }
    }

    fn data(offset: u64, bytes: &[u8]) -> OpenedPiece {
        OpenedPiece::Data { offset, bytes: bytes.to_vec(), memory: None }
    }

    fn wanted(chunk: u32) -> Wanted {
        Wanted::new(Geometry::new(SIZE, ChunkSize::new(chunk).unwrap()).unwrap())
    }

    #[test]
    fn a_chunk_across_two_units_serves_both_and_only_once() {
        let wanted = wanted(8192);
        for (seq, start) in [(0, 0), (1, 4096)] {
            let ranges = vec![start..start + 4096];
            wanted.insert(start, Complete::new(unit(seq, seq, 1), start, ranges, false), vec![0]);
        }
        let volume: Vec<u8> = (0..8192).map(|i| u8::try_from(i / 64).unwrap()).collect();
        let complete = wanted.arrived(data(0, &volume));
        assert_eq!(complete.iter().map(|c| c.unit.seq).collect::<Vec<_>>(), [0, 1]);
        let mut slot = vec![9; 4096];
        complete[1].write_to(&mut slot);
        assert_eq!(slot, volume[4096..]);
        assert!(wanted.arrived(data(0, &volume)).is_empty());
    }

    #[test]
    fn a_unit_waits_for_its_last_chunk_and_has_zeros_elsewhere() {
        let wanted = wanted(4096);
        let ranges = vec![0..4096, 8192..16384];
        wanted.insert(0, Complete::new(unit(0, 0, 4), 0, ranges, true), vec![0, 3]);
        assert!(wanted.arrived(data(3 * 4096, &[3; 4096])).is_empty());
        let complete = wanted.arrived(data(0, &[1; 4096]));
        let mut slot = vec![9; 16384];
        complete[0].write_to(&mut slot);
        let parts = [(0, 1), (1, 9), (2, 0), (3, 3)];
        for (chunk, byte) in parts {
            assert!(slot[chunk * 4096..][..4096].iter().all(|b| *b == byte), "{chunk}");
        }
        assert!(wanted.units.lock().unwrap().is_empty());
    }

    #[test]
    fn what_is_all_zero_is_complete_at_once() {
        let wanted = wanted(4096);
        let last = 10 * 4096;
        let zero = Complete::new(unit(5, 10, 1), last, vec![last..SIZE], true);
        wanted.insert(last, zero, Vec::new());
        let complete = wanted.arrived(OpenedPiece::Zero(last..last + 1));
        let mut slot = vec![9; 200];
        complete[0].write_to(&mut slot);
        assert_eq!((slot[99], slot[100]), (0, 9));
    }
}
