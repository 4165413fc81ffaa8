//! A list while it is received: checked range by range, in bounded memory.
//!
//! [`Collector`] holds a bounded number of ranges, and makes the list coarser when there are more.
//! A coarser list names more bytes than the server did, so more is read than need be, and nothing is
//! lost.

use super::ListRequest;
use crate::volume::Movement;
use crate::{BlockContext, ChangeKind, ChangedBlocks, ListOrigin};
use chunkstore::{Error, ErrorKind, Result, Setting};
use mover_extents::Extents;
use mover_extents::ExtentsBuilder;
use std::ops::Range;
use std::sync::Arc;

/// Contexts of blocks that are kept, in bytes of their text.
const CONTEXT_BYTES_MAX: usize = 1 << 20;

/// A list while it is received.
#[derive(Debug)]
pub(crate) struct Collector {
    kind: ChangeKind,
    volume_bytes: u64,
    ranges_max: usize,
    granule_bytes: u64,
    /// Pieces that the list was rounded to, once there was need.
    coarse_bytes: Option<u64>,
    /// A range that starts behind the device's end.
    beyond: Option<Range<u64>>,
    data: ExtentsBuilder,
    zero: ExtentsBuilder,
    contexts: Vec<BlockContext>,
    context_bytes: usize,
    contexts_left_out: u64,
    /// What a list named that was asked for anew before it was complete.
    before: Option<Before>,
    movement: Option<Arc<dyn Movement>>,
}

/// What the beginnings of a list named that was never complete.
#[derive(Debug, Default)]
struct Before {
    data: ExtentsBuilder,
    zero: ExtentsBuilder,
    /// Of its coarseness; 1 if it is exact.
    granule_bytes: u64,
}

impl Collector {
    pub(crate) fn new(request: &ListRequest<'_>) -> Self {
        let granule_bytes = request.granule_bytes.max(1).next_power_of_two();
        Self {
            kind: request.kind,
            volume_bytes: request.volume_bytes,
            ranges_max: request.ranges_max.max(2),
            granule_bytes,
            coarse_bytes: None,
            beyond: None,
            data: ExtentsBuilder::default(),
            zero: ExtentsBuilder::default(),
            contexts: Vec::new(),
            context_bytes: 0,
            contexts_left_out: 0,
            before: None,
            movement: request.movement.cloned(),
        }
    }

    pub(crate) fn kind(&self) -> ChangeKind {
        self.kind
    }

    /// Counts what comes.
    pub(crate) fn movement(&self) -> Option<Arc<dyn Movement>> {
        self.movement.clone()
    }

    /// A piece of the list has come.
    pub(crate) fn moved(&self) {
        self.movement.iter().for_each(|movement| movement.moved());
    }

    /// The list is asked for anew, from its start. What it named so far stays named, and has to be
    /// named again.
    pub(crate) fn restart(&mut self) {
        let mut before = self.before.take().unwrap_or_default();
        before.granule_bytes = before.granule_bytes.max(self.piece_bytes());
        for (kept, now) in [(&mut before.data, &mut self.data), (&mut before.zero, &mut self.zero)]
        {
            now.ranges().iter().for_each(|range| kept.push(range.clone()));
            *now = ExtentsBuilder::default();
            kept.compact();
        }
        // half of the room is for what comes now
        let mut piece_bytes = before.granule_bytes.max(self.granule_bytes);
        while before.data.held() + before.zero.held() > self.ranges_max / 2 {
            before.granule_bytes = piece_bytes;
            before.zero.round_in(piece_bytes, &mut before.data);
            before.data.round_out(piece_bytes);
            piece_bytes = piece_bytes.saturating_mul(2).min(1 << 62);
        }
        self.before = Some(before);
        (self.contexts, self.context_bytes, self.contexts_left_out) = (Vec::new(), 0, 0);
    }

    /// Bytes that are named so far.
    pub(crate) fn named_bytes(&mut self) -> u64 {
        let ranges = self.data.ranges().iter().chain(self.zero.ranges());
        ranges.map(|range| range.end - range.start).sum()
    }

    /// Adds a range. One that starts behind the device's end is an error at the end; one that only
    /// ends there is cut.
    pub(crate) fn add(&mut self, range: Range<u64>, zero: bool) {
        if range.start >= self.volume_bytes {
            self.beyond.get_or_insert(range);
            return;
        }
        let builder = if zero { &mut self.zero } else { &mut self.data };
        builder.push(range.start..range.end.min(self.volume_bytes));
        if self.held() > self.room() {
            self.make_room();
        }
    }

    /// The first part of `range` that no data range names. In a list that became coarser, what lies
    /// in a piece with something named counts as named.
    pub(crate) fn unnamed(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let end = range.end.min(self.volume_bytes);
        let ranges = self.data.ranges();
        let mut start = range.start;
        for named in &ranges[ranges.partition_point(|r| r.end <= start)..] {
            if named.start > start {
                break;
            }
            start = named.end;
        }
        let next = ranges.get(ranges.partition_point(|r| r.start <= start));
        let end = end.min(next.map_or(end, |r| r.start));
        Some(start..end).filter(|part| !part.is_empty())
    }

    /// The first part of `range` that a data range names. In a list that became coarser, only whole
    /// pieces tell.
    pub(crate) fn named(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let piece = self.piece_bytes();
        let start = range.start.checked_next_multiple_of(piece)?;
        let end = range.end & !(piece - 1);
        let ranges = self.data.ranges();
        let found = ranges.get(ranges.partition_point(|r| r.end <= start))?;
        Some(start.max(found.start)..end.min(found.end)).filter(|part| !part.is_empty())
    }

    /// Whether it names more than it was told.
    pub(crate) fn is_coarse(&self) -> bool {
        self.coarse_bytes.is_some()
    }

    /// Size of the pieces that count as named when any of their bytes is.
    fn piece_bytes(&self) -> u64 {
        self.coarse_bytes.unwrap_or(1)
    }

    /// Keeps what the server said about a block.
    pub(crate) fn add_context(&mut self, range: Range<u64>, zero: bool, context: String) {
        let range = range.start..range.end.min(self.volume_bytes);
        if range.is_empty() || self.context_bytes + context.len() > CONTEXT_BYTES_MAX {
            self.contexts_left_out += 1;
            return;
        }
        self.context_bytes += context.len();
        self.contexts.push(BlockContext { range, zero, context });
    }

    fn held(&self) -> usize {
        self.data.held() + self.zero.held()
    }

    /// Ranges that may be held.
    fn room(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |b| b.data.held() + b.zero.held());
        (self.ranges_max - before.min(self.ranges_max / 2)).max(2)
    }

    /// Merges, and rounds to pieces until a quarter of the room is free, so that rounds are few
    /// however long the list is: first to pieces as they are already, since what came in meanwhile
    /// may merge by that; larger ones only where it does not.
    fn make_room(&mut self) {
        self.data.compact();
        self.zero.compact();
        let enough = self.room() / 4 * 3;
        let mut piece_bytes = self.coarse_bytes.unwrap_or(self.granule_bytes);
        while self.held() > enough.max(1) {
            self.zero.round_in(piece_bytes, &mut self.data);
            self.data.round_out(piece_bytes);
            self.coarse_bytes = Some(piece_bytes);
            piece_bytes = piece_bytes.saturating_mul(2).min(1 << 62);
        }
    }

    /// What the beginnings of the list named must be named by it as well, and counts.
    fn join_before(&mut self, name: &str) -> Result<()> {
        let Some(mut before) = self.before.take() else { return Ok(()) };
        let granule_bytes = before.granule_bytes.max(self.piece_bytes());
        let named = |data: &mut ExtentsBuilder, zero: &mut ExtentsBuilder| {
            let mut all = ExtentsBuilder::default();
            data.ranges().iter().chain(zero.ranges()).for_each(|range| all.push(range.clone()));
            all.round_out(granule_bytes);
            all.finish()
        };
        let was = named(&mut before.data, &mut before.zero);
        let is = named(&mut self.data, &mut self.zero);
        if let Some(lost) = was.subtract(&is).iter().next() {
            let what = format!(
                "asked for anew, it leaves out bytes {} to {}, which it named before",
                lost.start, lost.end
            );
            return Err(refused(ErrorKind::Corrupt, name, what)
                .hint("the tracker contradicts itself: tell whoever maintains its server"));
        }
        // also what was zero: where pieces hide that it is not named again, reading it is right
        let hidden = if granule_bytes > 1 { before.zero.ranges() } else { &[] };
        for range in before.data.ranges().iter().chain(hidden) {
            self.data.push(range.clone());
        }
        if granule_bytes > 1 {
            self.coarse_bytes = Some(granule_bytes);
        }
        Ok(())
    }

    /// The list. `capacity_bytes` is the size that the server stated: a device may be larger than
    /// its snapshot (what lies behind is read), never smaller; the last range may end behind the
    /// capacity.
    pub(crate) fn finish(
        mut self,
        name: &str,
        origin: ListOrigin,
        capacity_bytes: Option<u64>,
    ) -> Result<ChangedBlocks> {
        let device = self.volume_bytes;
        let capacity = capacity_bytes.unwrap_or(device);
        let mut notes = Vec::new();
        if capacity > device {
            let what =
                format!("it is of a volume of {capacity} bytes, but the device has {device}");
            return Err(refused(ErrorKind::Corrupt, name, what)
                .hint("name the snapshot that the device was made from"));
        }
        if let Some(beyond) = self.beyond {
            let what = format!("it names byte {} of a volume of {device} bytes", beyond.start);
            return Err(refused(ErrorKind::Corrupt, name, what)
                .hint("name the snapshot that the device was made from"));
        }
        self.join_before(name)?;
        if let Some(bytes) = self.coarse_bytes {
            let memory = Setting("memory");
            notes.push(format!(
                "{name} names more ranges than memory allows for: pieces of {} KiB are read whole where it names any of \
                 them; a larger {memory} reads less",
                bytes.div_ceil(1024)
            ));
        }
        if self.contexts_left_out > 0 {
            let (count, max) = (self.contexts_left_out, CONTEXT_BYTES_MAX >> 20);
            notes.push(format!("{name} has contexts of more than {max} MiB: {count} are left out"));
        }
        let mut data = self.data.finish();
        let mut zero = self.zero.finish();
        data.clamp(capacity);
        zero.clamp(capacity);
        if capacity < device {
            let behind = device - capacity;
            notes.push(format!(
                "{name} is of a volume of {capacity} bytes; the {behind} bytes that the device has behind that are read as well"
            ));
            data = data.union(&Extents::of(capacity..device));
        }
        // reading is always right, so data wins
        if !zero.is_disjoint(&data) {
            zero = zero.subtract(&data);
        }
        if self.kind == ChangeKind::Allocated && data.is_empty() {
            notes.push(format!("{name} names no allocated block: the whole volume counts as zero"));
        }
        let (kind, contexts) = (self.kind, self.contexts);
        let volume_bytes = Some(device);
        Ok(ChangedBlocks { kind, origin, volume_bytes, data, zero, contexts, notes })
    }
}

pub(super) fn refused(kind: ErrorKind, name: &str, what: impl Into<String>) -> Error {
    Error::new(kind, getting(name), what)
}

pub(super) fn getting(name: &str) -> String {
    format!("get the changed-block list from {name}")
}

#[cfg(test)]
mod tests;
