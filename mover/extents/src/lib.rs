//! Sets of ranges: ascending, merged, not empty.
//!
//! The one form in which changed blocks, holes and plans are held. 16 bytes a range, whatever the
//! list looked like: ranges that touch or overlap are one. The operations sweep over two sets at
//! once and copy nothing but their result. The same type serves byte ranges and chunk ranges; which
//! one it is stands where it is used.

#![forbid(unsafe_code)]

use std::ops::Range;

/// A volume cut into chunks of equal size, of which the last one may be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Of the volume.
    pub volume_bytes: u64,
    /// Of a chunk; not 0.
    pub chunk_bytes: u64,
}

impl Grid {
    /// Number of chunks.
    fn chunks(self) -> u64 {
        self.volume_bytes.div_ceil(self.chunk_bytes)
    }

    /// Chunks that a byte range touches, even partly. Bytes behind the volume's end are ignored.
    fn touched(self, bytes: &Range<u64>) -> Range<u64> {
        let (start, end) = (bytes.start.min(self.volume_bytes), bytes.end.min(self.volume_bytes));
        if start >= end {
            return 0..0;
        }
        start / self.chunk_bytes..end.div_ceil(self.chunk_bytes)
    }

    /// Chunks that a byte range covers wholly.
    fn covered(self, bytes: &Range<u64>) -> Range<u64> {
        let to_the_end = bytes.end >= self.volume_bytes;
        let end = if to_the_end { self.chunks() } else { bytes.end / self.chunk_bytes };
        bytes.start.div_ceil(self.chunk_bytes)..end
    }
}

/// An ascending set of ranges that do not touch each other.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Extents(Vec<Range<u64>>);

impl Extents {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// One range, or the empty set if it is empty.
    pub fn of(range: Range<u64>) -> Self {
        if range.is_empty() { Self::new() } else { Self(vec![range]) }
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> Ranges<'_> {
        self.0.iter().cloned()
    }

    /// The ranges, ascending.
    pub fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    /// The ranges, ascending, as a plain list.
    pub fn into_vec(self) -> Vec<Range<u64>> {
        self.0
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sum of the lengths.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// End of the last range; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |r| r.end)
    }

    /// Whether all of `range` is in it.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let behind = self.0.partition_point(|r| r.start <= range.start);
        range.is_empty() || behind.checked_sub(1).is_some_and(|i| self.0[i].end >= range.end)
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(sweep(self.iter(), other.iter(), |a, b| a || b).collect())
    }

    /// What is in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self(sweep(self.iter(), other.iter(), |a, b| a && b).collect())
    }

    /// What is in `self` and not in `other`.
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        Self(sweep(self.iter(), other.iter(), |a, b| a && !b).collect())
    }

    /// Whether they have nothing in common.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        sweep(self.iter(), other.iter(), |a, b| a && b).next().is_none()
    }

    /// Cuts off what lies at or behind `end`; tells whether anything did.
    pub fn clamp(&mut self, end: u64) -> bool {
        let before = self.end();
        let keep = self.0.partition_point(|r| r.start < end);
        self.0.truncate(keep);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(end);
        }
        before > end
    }

    /// Chunks that it touches, even partly. Bytes behind the volume's end are ignored.
    pub fn to_chunks(&self, grid: impl Into<Grid>) -> Vec<Range<u64>> {
        touched_chunks(self.iter(), grid).collect()
    }

    /// Chunks that it covers wholly; the last chunk of the volume counts when all the bytes that it
    /// has are covered.
    pub fn to_full_chunks(&self, grid: impl Into<Grid>) -> Vec<Range<u64>> {
        full_chunks(self.iter(), grid).collect()
    }
}

impl std::fmt::Debug for Extents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 16;
        f.debug_list().entries(self.0.iter().take(SHOWN)).finish()?;
        match self.0.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

/// From ranges in any order; they may overlap, and empty ones are dropped.
impl FromIterator<Range<u64>> for Extents {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut builder = ExtentsBuilder::default();
        ranges.into_iter().for_each(|r| builder.push(r));
        builder.finish()
    }
}

impl<'a> IntoIterator for &'a Extents {
    type Item = Range<u64>;
    type IntoIter = Ranges<'a>;

    fn into_iter(self) -> Ranges<'a> {
        self.iter()
    }
}

/// The ranges of a set, ascending.
pub type Ranges<'a> = std::iter::Cloned<std::slice::Iter<'a, Range<u64>>>;

/// Collects ranges in any order. Neighbours that touch are merged at once, so a sorted list never
/// takes more than its result.
#[derive(Debug, Default)]
pub struct ExtentsBuilder {
    ranges: Vec<Range<u64>>,
    unsorted: bool,
}

impl ExtentsBuilder {
    /// Adds a range; an empty one adds nothing.
    pub fn push(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some(last) = self.ranges.last_mut() {
            if (last.start..=last.end).contains(&range.start) {
                last.end = last.end.max(range.end);
                return;
            }
            self.unsorted |= range.start < last.start;
        }
        self.ranges.push(range);
    }

    /// Ranges held now: the exact number when they came in order, else an upper bound until
    /// [`Self::compact`].
    pub fn held(&self) -> usize {
        self.ranges.len()
    }

    /// Whether [`Self::compact`] could make it smaller.
    pub fn is_unsorted(&self) -> bool {
        self.unsorted
    }

    /// The ranges now, ascending and merged.
    pub fn ranges(&mut self) -> &[Range<u64>] {
        self.compact();
        &self.ranges
    }

    /// Sorts and merges in place.
    pub fn compact(&mut self) {
        if !self.unsorted {
            return;
        }
        self.ranges.sort_unstable_by_key(|r| r.start);
        self.ranges.dedup_by(|next, kept| {
            let merged = next.start <= kept.end;
            if merged {
                kept.end = kept.end.max(next.end);
            }
            merged
        });
        self.unsorted = false;
    }

    /// Rounds every range outward to whole pieces of `granule_bytes` (a power of two) and merges
    /// what then touches.
    pub fn round_out(&mut self, granule_bytes: u64) {
        self.compact();
        let mask = granule_bytes - 1;
        for range in &mut self.ranges {
            let end = range.end.checked_next_multiple_of(granule_bytes).unwrap_or(u64::MAX);
            *range = range.start & !mask..end;
        }
        self.unsorted = true;
        self.compact();
        self.ranges.shrink_to_fit();
    }

    /// Keeps what covers whole pieces of `granule_bytes` (a power of two); the edges go to `edges`.
    pub fn round_in(&mut self, granule_bytes: u64, edges: &mut Self) {
        self.compact();
        let mask = granule_bytes - 1;
        let mut kept = Vec::new();
        for range in self.ranges.drain(..) {
            let start = range.start.checked_next_multiple_of(granule_bytes).unwrap_or(u64::MAX);
            let end = range.end & !mask;
            if start < end {
                edges.push(range.start..start);
                edges.push(end..range.end);
                kept.push(start..end);
            } else {
                edges.push(range);
            }
        }
        self.ranges = kept;
    }

    /// The set.
    pub fn finish(mut self) -> Extents {
        self.compact();
        Extents(self.ranges)
    }
}

/// Walks two ascending sequences of ranges at once and yields, ascending and merged, the places for
/// which `keep(in the first, in the second)` holds. `keep(false, false)` must not hold. Ranges of
/// one sequence may touch, not overlap.
pub fn sweep<A, B, K>(first: A, second: B, keep: K) -> Sweep<A, B, K>
where
    A: Iterator<Item = Range<u64>>,
    B: Iterator<Item = Range<u64>>,
    K: Fn(bool, bool) -> bool,
{
    let mut sweep = Sweep { first, second, keep, a: None, b: None, pending: None };
    sweep.a = sweep.first.next();
    sweep.b = sweep.second.next();
    sweep
}

/// See [`sweep`].
#[derive(Clone)]
pub struct Sweep<A, B, K> {
    first: A,
    second: B,
    keep: K,
    /// What is left of the current range of each; the part behind the sweep is cut off.
    a: Option<Range<u64>>,
    b: Option<Range<u64>>,
    /// Result that the next piece may still extend.
    pending: Option<Range<u64>>,
}

impl<A, B, K> std::fmt::Debug for Sweep<A, B, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweep").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl<A, B, K> Iterator for Sweep<A, B, K>
where
    A: Iterator<Item = Range<u64>>,
    B: Iterator<Item = Range<u64>>,
    K: Fn(bool, bool) -> bool,
{
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        loop {
            let starts = [&self.a, &self.b].map(|r| r.as_ref().map_or(u64::MAX, |r| r.start));
            let start = starts[0].min(starts[1]);
            if self.a.is_none() && self.b.is_none() {
                return self.pending.take();
            }
            let (in_a, in_b) = (starts[0] == start, starts[1] == start);
            let (in_a, in_b) = (in_a && self.a.is_some(), in_b && self.b.is_some());
            // the piece ends where either sequence changes
            let bound = |r: &Option<Range<u64>>, inside| {
                r.as_ref().map_or(u64::MAX, |r| if inside { r.end } else { r.start })
            };
            let end = bound(&self.a, in_a).min(bound(&self.b, in_b));
            if in_a {
                advance(&mut self.a, end, &mut self.first);
            }
            if in_b {
                advance(&mut self.b, end, &mut self.second);
            }
            if !(self.keep)(in_a, in_b) {
                continue;
            }
            match &mut self.pending {
                Some(pending) if pending.end == start => pending.end = end,
                pending => {
                    if let Some(done) = pending.replace(start..end) {
                        return Some(done);
                    }
                }
            }
        }
    }
}

/// Cuts `current` off up to `end` and goes on to the next range when nothing is left of it.
fn advance(
    current: &mut Option<Range<u64>>,
    end: u64,
    rest: &mut impl Iterator<Item = Range<u64>>,
) {
    match current {
        Some(range) if range.end > end => range.start = end,
        _ => *current = rest.next(),
    }
}

/// Chunks that ascending byte ranges touch, ascending and merged.
pub fn touched_chunks<I>(bytes: I, grid: impl Into<Grid>) -> impl Iterator<Item = Range<u64>>
where
    I: Iterator<Item = Range<u64>>,
{
    let grid = grid.into();
    let chunks = bytes.map(move |r| grid.touched(&r)).filter(|r| !r.is_empty());
    Merged { chunks, pending: None }
}

/// Chunks that ascending, merged byte ranges cover wholly, ascending.
pub fn full_chunks<I>(bytes: I, grid: impl Into<Grid>) -> impl Iterator<Item = Range<u64>>
where
    I: Iterator<Item = Range<u64>>,
{
    let grid = grid.into();
    bytes.map(move |r| grid.covered(&r)).filter(|r| !r.is_empty())
}

/// Merges ascending ranges that touch or share elements.
struct Merged<I> {
    chunks: I,
    pending: Option<Range<u64>>,
}

impl<I: Iterator<Item = Range<u64>>> Iterator for Merged<I> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        for next in self.chunks.by_ref() {
            match &mut self.pending {
                Some(pending) if next.start <= pending.end => {
                    pending.end = pending.end.max(next.end)
                }
                pending => {
                    if let Some(done) = pending.replace(next) {
                        return Some(done);
                    }
                }
            }
        }
        self.pending.take()
    }
}

#[cfg(test)]
mod tests;
