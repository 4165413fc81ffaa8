//! Clusters: pieces of one size that a file system counts its space in, told in order as used or
//! free.

use super::{Map, Refusal};
use mover_extents::Extents;
use std::ops::Range;

/// Puts what is used into a map: also all that lies before the first cluster and behind the last.
pub(super) struct Clusters<'m> {
    map: &'m mut Map,
    /// Where the first one begins, in bytes.
    start: u64,
    cluster_bytes: u64,
    /// Those that hold what tells of all others: they cannot be free.
    needed: Extents,
    next: u64,
    free_from: Option<u64>,
    /// In bytes.
    used_from: u64,
    free: u64,
}

impl<'m> Clusters<'m> {
    /// The first one begins at `start`. Those of `needed` cannot be free.
    pub(super) fn new(
        map: &'m mut Map,
        start: u64,
        cluster_bytes: u64,
        needed: impl IntoIterator<Item = Range<u64>>,
    ) -> Self {
        let needed = needed.into_iter().collect();
        let (next, free_from, used_from, free) = (0, None, 0, 0);
        Self { map, start, cluster_bytes, needed, next, free_from, used_from, free }
    }

    /// The next ones.
    pub(super) fn tell(&mut self, count: u64, free: bool) -> Result<(), Refusal> {
        match self.free_from {
            None if free && count > 0 => self.free_from = Some(self.next),
            Some(from) if !free && count > 0 => self.end_row(from)?,
            _ => {}
        }
        self.next += count;
        Ok(())
    }

    /// The next ones, each a bit from the lowest on, which is set where it is used. No more than
    /// `left`, of which they are taken.
    pub(super) fn tell_bits(&mut self, bytes: &[u8], left: &mut u64) -> Result<(), Refusal> {
        for byte in bytes {
            let bits = (*left).min(8);
            match byte {
                0 => self.tell(bits, true)?,
                0xff => self.tell(bits, false)?,
                _ => (0..bits).try_for_each(|bit| self.tell(1, byte >> bit & 1 == 0))?,
            }
            *left -= bits;
        }
        Ok(())
    }

    /// That was the last one; gives how many bytes are free.
    pub(super) fn finish(mut self) -> Result<u64, Refusal> {
        if let Some(from) = self.free_from {
            self.end_row(from)?;
        }
        self.map.add(self.used_from..u64::MAX)?;
        Ok(self.free * self.cluster_bytes)
    }

    fn end_row(&mut self, from: u64) -> Result<(), Refusal> {
        self.free_from = None;
        let needed = self.needed.as_slice();
        let before = needed.partition_point(|range| range.start < self.next);
        if needed[..before].last().is_some_and(|range| range.end > from) {
            let why = "clusters of its own tables count as free".to_owned();
            return Err(Refusal::Unusable { kind: self.map.kind, why });
        }
        // no overflow: callers have held clusters against the size of the volume
        let place = |number: u64| self.start + number * self.cluster_bytes;
        self.map.add(self.used_from..place(from))?;
        self.used_from = place(self.next);
        self.free += self.next - from;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    const LIMITS: Limits = Limits { granule_bytes: 512, ranges_max: 100 };

    fn told(needed: Range<u64>) -> Result<(Extents, u64), Refusal> {
        let mut map = Map::new("test", 100 << 10, LIMITS);
        let mut clusters = Clusters::new(&mut map, 10 << 10, 1 << 10, [needed]);
        let mut left = 21;
        clusters.tell_bits(&[0b0000_0110, 0xff], &mut left)?;
        clusters.tell_bits(&[0], &mut left)?;
        assert_eq!(left, 0);
        clusters.tell(0, false)?;
        clusters.tell(3, true)?;
        clusters.tell(1, false)?;
        clusters.tell(1, true)?;
        let free = clusters.finish()?;
        Ok((map.finish(), free))
    }

    #[test]
    fn what_is_not_told_to_be_free_is_used() {
        let (used, free) = told(1..3).expect("a map");
        // free: 0, 3..8, 16..24, 25
        let expected = [0..10, 11..13, 18..26, 34..35, 36..100];
        assert_eq!(used, expected.map(|kib| kib.start << 10..kib.end << 10).into_iter().collect());
        assert_eq!(free, 15 << 10);
    }

    #[test]
    fn what_is_needed_cannot_be_free() {
        for needed in [0..1, 2..4, 7..9, 15..17, 20..21, 23..24, 25..26] {
            let refusal = told(needed.clone()).expect_err("it counts as free").to_string();
            assert!(refusal.contains("its own tables"), "{needed:?}: {refusal}");
        }
        assert!(told(8..16).is_ok() && told(24..25).is_ok());
    }
}
