//! Where the bytes of a file system are in a volume: all of it, a partition, or extents that a
//! logical volume has strewn over it. The one place that knows how an offset becomes ranges.

use super::ReadAt;
use std::io;
use std::ops::Range;

/// The bytes of a file system as ranges of the volume that it is on. Two are the same if each byte
/// is at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    bytes: u64,
    /// In order and without a gap.
    runs: Vec<Run>,
}

/// A stretch that lies in one piece, or goes round a number of pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    start: u64,
    bytes: u64,
    /// Where its pieces begin in the volume; one at the least.
    stripes: Vec<u64>,
    /// So much of each before the next one. Without a meaning where there is one.
    stripe_bytes: u64,
}

impl Run {
    /// Where a byte of it is, and how many follow there.
    fn place(&self, at: u64) -> (u64, u64) {
        let inside = at - self.start;
        match &self.stripes[..] {
            [only] => (only + inside, self.bytes - inside),
            stripes => {
                let (row, within) = (inside / self.stripe_bytes, inside % self.stripe_bytes);
                let count = stripes.len() as u64;
                let stripe = usize::try_from(row % count).unwrap_or(0);
                let depth = row / count * self.stripe_bytes + within;
                (stripes[stripe] + depth, self.stripe_bytes - within)
            }
        }
    }
}

impl Layout {
    /// In one piece.
    #[must_use]
    pub fn of(range: Range<u64>) -> Self {
        let mut layout = Self { bytes: 0, runs: Vec::new() };
        layout.add(range.end.saturating_sub(range.start), vec![range.start], 1);
        layout
    }

    pub(crate) fn empty() -> Self {
        Self { bytes: 0, runs: Vec::new() }
    }

    /// The next bytes go round these pieces. Whoever calls it has held all of them against the size
    /// of the volume, and the length is that of whole rows.
    pub(crate) fn add(&mut self, bytes: u64, stripes: Vec<u64>, stripe_bytes: u64) {
        if bytes > 0 && !stripes.is_empty() {
            self.runs.push(Run { start: self.bytes, bytes, stripes, stripe_bytes });
            self.bytes += bytes;
        }
    }

    /// The same within something that begins at this byte of the volume.
    #[must_use]
    pub fn behind(mut self, start: u64) -> Self {
        for stripe in self.runs.iter_mut().flat_map(|run| &mut run.stripes) {
            *stripe = stripe.saturating_add(start);
        }
        self
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where some of its bytes are in the volume, in their order. `None`: it has fewer.
    pub fn ranges(&self, of: Range<u64>) -> Option<impl Iterator<Item = Range<u64>> + '_> {
        if of.start > of.end || of.end > self.bytes {
            return None;
        }
        let mut at = of.start;
        Some(std::iter::from_fn(move || {
            if at >= of.end {
                return None;
            }
            let run = self.runs.partition_point(|run| run.start + run.bytes <= at);
            let (place, left) = self.runs.get(run)?.place(at);
            let len = left.min(of.end - at);
            at += len;
            Some(place..place + len)
        }))
    }
}

/// The bytes of a layout, as a volume.
#[derive(Clone, Copy)]
pub struct LaidOut<'a> {
    volume: &'a dyn ReadAt,
    layout: &'a Layout,
}

impl std::fmt::Debug for LaidOut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaidOut").field("layout", self.layout).finish_non_exhaustive()
    }
}

impl<'a> LaidOut<'a> {
    /// Of a volume.
    #[must_use]
    pub fn new(volume: &'a dyn ReadAt, layout: &'a Layout) -> Self {
        Self { volume, layout }
    }
}

impl ReadAt for LaidOut<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let ranges = offset
            .checked_add(buffer.len() as u64)
            .and_then(|end| self.layout.ranges(offset..end))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut rest = buffer;
        for range in ranges {
            let len = usize::try_from(range.end - range.start).unwrap_or(rest.len());
            let (part, behind) = rest.split_at_mut(len.min(rest.len()));
            self.volume.read_at(part, range.start)?;
            rest = behind;
        }
        Ok(())
    }

    fn expect(&self, ranges: &[Range<u64>]) {
        let end = self.layout.bytes;
        let clipped = ranges.iter().map(|range| range.start.min(end)..range.end.min(end));
        let moved = clipped.filter_map(|range| self.layout.ranges(range)).flatten();
        self.volume.expect(&moved.collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two linear pieces, then three that go round, and one more: byte for byte.
    fn layout() -> (Layout, Vec<u64>) {
        let mut layout = Layout::empty();
        layout.add(10, vec![100], 0);
        layout.add(0, vec![7], 0);
        layout.add(5, vec![20], 0);
        layout.add(24, vec![200, 40, 60], 4);
        layout.add(3, vec![0], 0);
        let rows = [200, 40, 60, 204, 44, 64];
        let striped = rows.into_iter().flat_map(|at| at..at + 4);
        (layout, (100..110).chain(20..25).chain(striped).chain(0..3).collect())
    }

    #[test]
    fn each_byte_is_where_it_is() {
        let (layout, wanted) = layout();
        let len = wanted.len() as u64;
        assert_eq!(layout.bytes(), len);
        let volume: Vec<u8> = (0..=255).collect();
        let volume = &&volume[..];
        for from in 0..=len {
            for to in from..=len {
                let found: Vec<u64> = layout.ranges(from..to).unwrap().flatten().collect();
                let small = |at: u64| usize::try_from(at).unwrap();
                assert_eq!(found, wanted[small(from)..small(to)], "{from}..{to}");
                let mut buffer = vec![0; small(to - from)];
                LaidOut::new(volume, &layout).read_at(&mut buffer, from).unwrap();
                assert!(buffer.iter().map(|byte| u64::from(*byte)).eq(found), "{from}..{to}");
            }
        }
        assert!(layout.ranges(0..len + 1).is_none());
        assert!(LaidOut::new(volume, &layout).read_at(&mut [0, 0], len - 1).is_err());
        assert!(LaidOut::new(volume, &layout).read_at(&mut [0, 0], u64::MAX).is_err());
    }

    #[test]
    fn it_may_lie_in_a_partition() {
        let (layout, wanted) = layout();
        let moved: Vec<u64> = layout.behind(1000).ranges(0..42).unwrap().flatten().collect();
        assert!(moved.into_iter().eq(wanted.into_iter().map(|at| at + 1000)));
        let part = Layout::of(5..9).behind(10);
        assert!(part.ranges(1..4).unwrap().eq(std::iter::once(16..19)));
    }
}
