//! One bit a chunk. Pure.

use std::ops::Range;

/// A set of chunk numbers below a bound, as a bitmap.
#[derive(Clone, PartialEq, Eq)]
pub struct ChunkBits {
    chunks: u64,
    words: Vec<u64>,
    ones: u64,
}

const WORD: u64 = 64;

impl ChunkBits {
    /// None of so many chunks.
    pub fn none(chunks: u64) -> Self {
        let words = usize::try_from(chunks.div_ceil(WORD)).unwrap_or(usize::MAX);
        Self { chunks, words: vec![0; words], ones: 0 }
    }

    /// From the form of [`to_bytes`](Self::to_bytes); nothing if it is not exactly that.
    pub fn from_bytes(chunks: u64, bytes: &[u8]) -> Option<Self> {
        if bytes.len() as u64 != Self::bytes_for(chunks) {
            return None;
        }
        let mut words = Vec::with_capacity(bytes.len().div_ceil(8));
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            words.push(u64::from_le_bytes(word));
        }
        let used = chunks % WORD;
        if used > 0 && words.last().is_some_and(|last| last >> used != 0) {
            return None;
        }
        let ones = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Some(Self { chunks, words, ones })
    }

    /// Bytes of the written form.
    pub fn bytes_for(chunks: u64) -> u64 {
        chunks.div_ceil(8)
    }

    /// Chunk 0 is the lowest bit of the first byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(usize::try_from(Self::bytes_for(self.chunks)).unwrap_or(usize::MAX));
        bytes
    }

    /// The bound.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// How many are in the set.
    pub fn ones(&self) -> u64 {
        self.ones
    }

    /// Whether a chunk is in the set.
    pub fn contains(&self, chunk: u64) -> bool {
        self.word(chunk / WORD) >> (chunk % WORD) & 1 == 1
    }

    /// Adds chunks.
    pub fn insert(&mut self, range: Range<u64>) {
        self.set(range, true);
    }

    /// Takes chunks out.
    pub fn remove(&mut self, range: Range<u64>) {
        self.set(range, false);
    }

    fn set(&mut self, range: Range<u64>, on: bool) {
        assert!(range.end <= self.chunks, "chunks {range:?} of {}", self.chunks);
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / WORD + 1) * WORD);
            let len = end - at;
            let mask = if len == WORD { u64::MAX } else { (1 << len) - 1 } << (at % WORD);
            if let Some(word) = self.words.get_mut(index(at / WORD)) {
                self.ones -= u64::from(word.count_ones());
                *word = if on { *word | mask } else { *word & !mask };
                self.ones += u64::from(word.count_ones());
            }
            at = end;
        }
    }

    /// The first chunk from `from` on, and before `end`, that is in the set, or that is not.
    pub fn next(&self, from: u64, end: u64, within: bool) -> Option<u64> {
        let end = end.min(self.chunks);
        let mut at = from;
        while at < end {
            let word = self.word(at / WORD);
            let wanted = (if within { word } else { !word }) >> (at % WORD);
            if wanted != 0 {
                let found = at + u64::from(wanted.trailing_zeros());
                return (found < end).then_some(found);
            }
            at = (at / WORD + 1) * WORD;
        }
        None
    }

    /// The stretches of a range, each all within the set or all without.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, bool)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let within = self.contains(at);
            let end = self.next(at, range.end, !within).unwrap_or(range.end);
            let run = at..end;
            at = end;
            Some((run, within))
        })
    }

    fn word(&self, at: u64) -> u64 {
        self.words.get(index(at)).copied().unwrap_or(0)
    }
}

impl std::fmt::Debug for ChunkBits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} chunks", self.ones, self.chunks)
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_plain_set(
            chunks in 1u64..300,
            ranges in prop::collection::vec((0u64..300, 0u64..200, any::<bool>()), 0..8),
        ) {
            let mut bits = ChunkBits::none(chunks);
            let mut plain = vec![false; usize::try_from(chunks).unwrap()];
            for (start, len, on) in ranges {
                let (start, end) = (start.min(chunks), (start + len).min(chunks));
                if on { bits.insert(start..end) } else { bits.remove(start..end) }
                plain[index(start)..index(end)].fill(on);
            }
            prop_assert_eq!(bits.ones(), plain.iter().filter(|on| **on).count() as u64);
            let runs: Vec<_> = bits.runs(0..chunks).collect();
            prop_assert!(runs.windows(2).all(|w| w[0].0.end == w[1].0.start && w[0].1 != w[1].1));
            prop_assert_eq!(runs.last().map(|(run, _)| run.end), Some(chunks));
            for (run, within) in runs {
                for chunk in run {
                    prop_assert_eq!(plain[index(chunk)], within);
                    prop_assert_eq!(bits.contains(chunk), within);
                }
            }
            let bytes = bits.to_bytes();
            prop_assert_eq!(ChunkBits::from_bytes(chunks, &bytes), Some(bits));
            prop_assert_eq!(ChunkBits::from_bytes(chunks + 8, &bytes), None);
        }
    }

    #[test]
    fn bits_behind_the_end_are_refused() {
        assert!(ChunkBits::from_bytes(9, &[0xff, 1]).is_some());
        assert!(ChunkBits::from_bytes(9, &[0xff, 2]).is_none());
    }
}
