//! How a plan is cut: windows of map pages, and read units within them. Pure; the feed stage
//! executes it, a forecast counts it.

use chunkstore::{ChunkNo, ChunkSize, Geometry};
use mover_changes::BackupPlan;
use std::ops::Range;

/// A gap of unwanted chunks is read along if it is at most this much: one larger read beats two.
const GAP_BYTES_MAX: u32 = 64 << 10;

/// A piece of the plan, in chunk numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnitPiece {
    Read(Range<u64>),
    Zero(Range<u64>),
}

/// Cuts the plan's ranges into windows that touch at most `leaves` leaf pages each.
#[derive(Debug)]
pub(crate) struct Windows {
    pieces: std::iter::Peekable<std::vec::IntoIter<UnitPiece>>,
    fanout: u64,
    leaves: u64,
}

impl Windows {
    pub(crate) fn new(plan: &BackupPlan, fanout: u16, leaves: usize) -> Self {
        let read = plan.read.iter().cloned().map(UnitPiece::Read);
        let mut pieces: Vec<UnitPiece> =
            read.chain(plan.zero.iter().cloned().map(UnitPiece::Zero)).collect();
        pieces.sort_by_key(|p| p.range().start);
        Self {
            pieces: pieces.into_iter().peekable(),
            fanout: u64::from(fanout),
            leaves: leaves as u64,
        }
    }
}

impl UnitPiece {
    fn range(&self) -> &Range<u64> {
        match self {
            UnitPiece::Read(r) | UnitPiece::Zero(r) => r,
        }
    }
}

impl Iterator for Windows {
    type Item = Vec<UnitPiece>;

    fn next(&mut self) -> Option<Vec<UnitPiece>> {
        let mut window = Vec::new();
        let mut room = self.leaves;
        while room > 0 {
            let Some(piece) = self.pieces.peek_mut() else { break };
            match piece {
                // a zero range is one step however long it is; only its two edges need pages
                UnitPiece::Zero(_) => room = room.saturating_sub(2),
                UnitPiece::Read(r) => {
                    let first = r.start / self.fanout;
                    let leaves = r.end.div_ceil(self.fanout) - first;
                    if leaves > room {
                        let cut = (first + room) * self.fanout;
                        window.push(UnitPiece::Read(r.start..cut));
                        r.start = cut;
                        break;
                    }
                    room -= leaves;
                }
            }
            window.extend(self.pieces.next());
        }
        (!window.is_empty()).then_some(window)
    }
}

/// Cuts runs of chunks at the borders of groups; runs of one group that are near become one unit.
#[derive(Debug)]
pub(crate) struct UnitCutter {
    group: u64,
    gap_max: u64,
    pending: Vec<Range<u64>>,
}

impl UnitCutter {
    /// Units of so many chunks, aligned to as many.
    pub(crate) fn new(unit_chunks: u16, chunk: ChunkSize) -> Self {
        let gap_max = u64::from(GAP_BYTES_MAX / chunk.bytes());
        Self { group: u64::from(unit_chunks.max(1)), gap_max, pending: Vec::new() }
    }

    /// Takes the part of `range` that lies in its first group out of it. `Some`: the unit that is
    /// complete since it does not go on there.
    pub(crate) fn push(&mut self, range: &mut Range<u64>) -> Option<Vec<Range<u64>>> {
        let start = range.start;
        let end = ((start / self.group + 1) * self.group).min(range.end);
        let joins = self.pending.last().is_some_and(|last| {
            (last.end - 1) / self.group == start / self.group && start - last.end <= self.gap_max
        });
        let complete = if joins { None } else { self.take() };
        self.pending.push(start..end);
        range.start = end;
        complete
    }

    /// The unit that is pending: nothing is added to it any more.
    pub(crate) fn take(&mut self) -> Option<Vec<Range<u64>>> {
        let unit = std::mem::take(&mut self.pending);
        (!unit.is_empty()).then_some(unit)
    }
}

/// Bytes that a unit is read as: from its first chunk to its last.
pub(crate) fn read_bytes(geometry: Geometry, unit: &[Range<u64>]) -> u64 {
    let (Some(first), Some(last)) = (unit.first(), unit.last()) else { return 0 };
    let last = ChunkNo(last.end - 1);
    geometry.offset(last) + u64::from(geometry.len(last)) - geometry.offset(ChunkNo(first.start))
}

/// Groups that some ascending runs of chunks touch.
pub(crate) fn count_groups(read: &[Range<u64>], group: u64) -> u64 {
    let mut next = 0;
    let mut count = 0;
    for r in read {
        let (first, end) = ((r.start / group).max(next), r.end.div_ceil(group));
        count += end.saturating_sub(first);
        next = next.max(end);
    }
    count
}

/// Reads that a plan takes, and their bytes, gaps that are read along included.
pub(crate) fn count_reads(
    plan: &BackupPlan,
    geometry: Geometry,
    unit_chunks: u16,
    (fanout, leaves): (u16, usize),
) -> (u64, u64) {
    let mut cutter = UnitCutter::new(unit_chunks, geometry.chunk());
    let (mut reads, mut bytes) = (0, 0);
    let mut count = |unit: Option<Vec<Range<u64>>>| {
        if let Some(unit) = unit {
            reads += 1;
            bytes += read_bytes(geometry, &unit);
        }
    };
    for window in Windows::new(plan, fanout, leaves) {
        for piece in window {
            match piece {
                UnitPiece::Zero(_) => count(cutter.take()),
                UnitPiece::Read(mut range) => {
                    while !range.is_empty() {
                        count(cutter.push(&mut range));
                    }
                }
            }
        }
        count(cutter.take());
    }
    (reads, bytes)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, of one too
mod tests {
    use super::*;

    #[test]
    fn near_runs_of_one_group_are_one_read_and_far_ones_are_not() {
        let geometry = Geometry::new((100 << 16) - 5, ChunkSize::new(1 << 16).unwrap()).unwrap();
        let reads = |read: Vec<Range<u64>>| {
            let plan = BackupPlan { read, ..BackupPlan::default() };
            count_reads(&plan, geometry, 16, (128, 4))
        };
        let chunk = 1 << 16;
        assert_eq!(reads(vec![]), (0, 0));
        assert_eq!(reads(vec![0..16]), (1, 16 * chunk));
        assert_eq!(reads(vec![0..17]), (2, 17 * chunk));
        // one chunk between them is read along, two are not, and no unit crosses a group's border
        assert_eq!(reads(vec![1..2, 3..4]), (1, 3 * chunk));
        assert_eq!(reads(vec![1..2, 4..5]), (2, 2 * chunk));
        assert_eq!(reads(vec![15..16, 17..18]), (2, 2 * chunk));
        assert_eq!(reads(vec![99..100]), (1, chunk - 5));
        // a window ends a unit: eight leaves of two chunks
        let plan = BackupPlan { read: std::iter::once(0..16).collect(), ..BackupPlan::default() };
        assert_eq!(count_reads(&plan, geometry, 16, (2, 2)), (4, 16 * chunk));
    }

    #[test]
    fn groups_are_counted_once() {
        assert_eq!(count_groups(&[0..1, 3..5, 15..17, 31..64], 16), 4);
        assert_eq!(count_groups(&[], 16), 0);
        assert_eq!(count_groups(&[0..160], 16), 10);
    }
}
