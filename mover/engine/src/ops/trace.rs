//! Which chunks of a volume clients read, in the order in which each was asked for first: what to
//! fetch before the rest the next time.
//!
//! Bounded: a bit for each chunk, of volumes with very many for some of them together; and so many
//! ranges. What comes behind that is not recorded.

use crate::live::ChunkBits;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bits: 2 MiB.
const PLACES_MAX: u64 = 1 << 24;
/// 16 bytes each.
const RANGES_MAX: usize = 1 << 18;

/// A trace that is recorded.
#[derive(Debug)]
pub struct ReadTrace {
    size_bytes: u64,
    chunk_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    read: ChunkBits,
    /// Of chunks.
    ranges: Vec<Range<u64>>,
}

impl ReadTrace {
    /// Of a volume. A chunk has at least one byte.
    pub fn new(size_bytes: u64, chunk_bytes: u32) -> Self {
        let chunk_bytes = u64::from(chunk_bytes.max(1));
        let together = size_bytes.div_ceil(chunk_bytes).div_ceil(PLACES_MAX).max(1);
        let chunk_bytes = chunk_bytes.saturating_mul(together);
        let read = ChunkBits::none(size_bytes.div_ceil(chunk_bytes));
        let state = Mutex::new(State { read, ranges: Vec::new() });
        Self { size_bytes, chunk_bytes, state }
    }

    /// Notes a read.
    pub(crate) fn note(&self, read: &Range<u64>) {
        let end = read.end.min(self.size_bytes).div_ceil(self.chunk_bytes);
        let mut at = read.start / self.chunk_bytes;
        let State { read, ranges } =
            &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(start) = (at < end).then(|| read.next(at, end, false)).flatten() {
            at = read.next(start, end, true).unwrap_or(end);
            let is_full = ranges.len() >= RANGES_MAX;
            match ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = at,
                None if is_full => return,
                None => ranges.push(start..at),
            }
            read.insert(start..at);
        }
    }

    /// Bytes of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Ranges of bytes, in the order in which they were read first.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let byte = |chunk: u64| chunk.saturating_mul(self.chunk_bytes).min(self.size_bytes);
        state.ranges.iter().map(|range| byte(range.start)..byte(range.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_named_once_where_it_was_read_first() {
        let trace = ReadTrace::new(1050, 100);
        for read in [700..701, 0..250, 250..260, 150..410, 1040..1050, 990..2000, 5..5, 0..1050] {
            trace.note(&read);
        }
        let found = trace.ranges();
        assert_eq!(found, [700..800, 0..500, 1000..1050, 900..1000, 500..700, 800..900]);
    }

    #[test]
    fn it_has_bounds() {
        let trace = ReadTrace::new(1 << 40, 4096);
        assert!(trace.state.lock().unwrap().read.chunks() <= PLACES_MAX);
        let each = trace.chunk_bytes;
        assert!(each.is_multiple_of(4096));
        for n in 0..RANGES_MAX as u64 + 1000 {
            trace.note(&(n * 2 * each..n * 2 * each + 1));
        }
        assert_eq!(trace.ranges().len(), RANGES_MAX);
        // the last place may be shorter, and is all there is
        let large = ReadTrace::new(u64::MAX, 4096);
        assert!(large.state.lock().unwrap().read.chunks() <= PLACES_MAX);
        large.note(&(u64::MAX - 1..u64::MAX));
        assert_eq!(large.ranges().last().unwrap().end, u64::MAX);
    }
}
