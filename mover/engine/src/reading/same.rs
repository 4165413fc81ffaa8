//! Chunks that a target has already: one bit each, so its size is known before anything is read.

use chunkstore::ChunkNo;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_BITS: u64 = 64;

/// Which chunks of a range need neither be fetched nor written. Many threads add to it, and then it is
/// read: whoever does that has joined them.
#[derive(Debug)]
pub(crate) struct SameChunks {
    first: u64,
    bits: Vec<AtomicU64>,
}

impl SameChunks {
    /// Bytes that a set of so many chunks takes.
    pub(crate) fn bytes(chunks: u64) -> u64 {
        chunks.div_ceil(WORD_BITS) * (WORD_BITS / 8)
    }

    /// None of them.
    pub(crate) fn none(chunks: Range<u64>) -> Self {
        let words = (chunks.end - chunks.start).div_ceil(WORD_BITS);
        Self { first: chunks.start, bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Word and bit of a chunk; nothing for one outside.
    fn place(&self, chunk: ChunkNo) -> Option<(&AtomicU64, u64)> {
        let at = chunk.0.checked_sub(self.first)?;
        let word = self.bits.get(usize::try_from(at / WORD_BITS).ok()?)?;
        Some((word, 1 << (at % WORD_BITS)))
    }

    pub(crate) fn insert(&self, chunk: ChunkNo) {
        if let Some((word, bit)) = self.place(chunk) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn contains(&self, chunk: ChunkNo) -> bool {
        self.place(chunk).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// How many.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// The chunks of a range that are not in it, as runs.
    pub(crate) fn others(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end && self.contains(ChunkNo(at)) {
                at += 1;
            }
            let start = at;
            while at < range.end && !self.contains(ChunkNo(at)) {
                at += 1;
            }
            (start < at).then_some(start..at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_outside_is_not_in_it() {
        let set = SameChunks::none(100..165);
        for chunk in [0, 99, 100 + 128, u64::MAX] {
            set.insert(ChunkNo(chunk));
            assert!(!set.contains(ChunkNo(chunk)));
        }
        assert_eq!((set.count(), SameChunks::bytes(65)), (0, 16));
        assert!(set.others(100..165).eq(std::iter::once(100..165)));
    }

    proptest! {
        #[test]
        fn runs_are_those_that_are_not_in_it(first in 0..200_u64, bits in prop::collection::vec(any::<bool>(), 1..300)) {
            let end = first + bits.len() as u64;
            let set = SameChunks::none(first..end);
            for (chunk, _) in (first..).zip(&bits).filter(|(_, bit)| **bit) {
                set.insert(ChunkNo(chunk));
            }
            prop_assert_eq!(set.count(), bits.iter().filter(|bit| **bit).count() as u64);
            let mut there = vec![false; bits.len()];
            for run in set.others(first..end) {
                for chunk in run {
                    there[usize::try_from(chunk - first).unwrap()] = true;
                }
            }
            prop_assert!(there.iter().zip(&bits).all(|(other, bit)| other != bit));
        }
    }
}
