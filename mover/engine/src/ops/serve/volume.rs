//! A backup as the content of an export: its bytes, and the state of its blocks by each context.

use super::overlay::{Layer, Overlay, STRETCHES_MAX};
use crate::ops::trace::ReadTrace;
use crate::reading::view::BackupView;
use bytes::Bytes;
use chunkstore::map::MapDelta;
use chunkstore::secrets::redact;
use chunkstore::{Error, ErrorKind, Manifest};
use mover_nbd::BASE_ALLOCATION;
use mover_nbd::server::{Holes, Volume};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Of `base:allocation`: nothing is stored, and it reads as zeros.
const HOLE_AND_ZERO: u32 = 3;
/// Of the contexts about changes.
const CHANGED: u32 = 1;
/// Of ours: it has changed, and reads as zeros now.
const BECAME_ZERO: u32 = 2;

/// Names of an export's contexts: what is stored, then two for each backup that it is compared
/// with, ours and the one that QEMU knows how to ask for.
pub(super) fn context_names(since: &[Manifest]) -> Vec<String> {
    let of = |base: &Manifest| {
        let id = &base.backup_id;
        [format!("mover:changed-since={id}"), format!("qemu:dirty-bitmap:{id}")]
    };
    std::iter::once(BASE_ALLOCATION.to_owned()).chain(since.iter().flat_map(of)).collect()
}

#[derive(Debug)]
pub(super) struct ServedVolume {
    view: Arc<BackupView>,
    deltas: Vec<MapDelta>,
    overlay: Option<Arc<Overlay>>,
    trace: Option<Arc<ReadTrace>>,
}

impl ServedVolume {
    pub(super) fn new(
        view: Arc<BackupView>,
        deltas: Vec<MapDelta>,
        overlay: Option<Arc<Overlay>>,
        trace: Option<Arc<ReadTrace>>,
    ) -> Self {
        Self { view, deltas, overlay, trace }
    }

    pub(super) fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.overlay.as_ref()
    }

    fn writable(&self) -> io::Result<&Overlay> {
        let read_only =
            || io::Error::new(io::ErrorKind::PermissionDenied, "the export is read-only");
        self.overlay.as_deref().ok_or_else(read_only)
    }

    /// The state of blocks of the backup.
    async fn states_below(&self, context: usize, range: Range<u64>) -> io::Result<States> {
        let Some(of_delta) = context.checked_sub(1) else {
            let extents = Box::pin(self.view.extents(range)).await.map_err(|e| told(&e))?;
            let state = |zero| if zero { HOLE_AND_ZERO } else { 0 };
            return Ok(extents.into_iter().map(|e| (e.range, state(e.zero))).collect());
        };
        // two contexts for each
        let Some(delta) = self.deltas.get(of_delta / 2) else { return Ok(Vec::new()) };
        let became_zero = if of_delta % 2 == 0 { CHANGED | BECAME_ZERO } else { CHANGED };
        Ok(changes(delta, &range, became_zero))
    }
}

/// Stretches, and what a context says of each.
type States = Vec<(Range<u64>, u32)>;

fn append(found: &mut States, range: Range<u64>, state: u32) {
    match found.last_mut() {
        _ if range.is_empty() => {}
        Some((last, of)) if *of == state && last.end == range.start => last.end = range.end,
        _ => found.push((range, state)),
    }
}

impl Volume for ServedVolume {
    fn expect(&self, range: &Range<u64>) {
        if let Some(trace) = &self.trace {
            trace.note(range);
        }
        match &self.overlay {
            Some(overlay) => overlay.expect(range),
            None => self.view.expect(range),
        }
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<Vec<Range<usize>>> {
        match &self.overlay {
            Some(overlay) => Box::pin(overlay.read(offset, buf)).await,
            None => Box::pin(self.view.read_expected(offset, buf)).await.map_err(|e| told(&e)),
        }
    }

    async fn states(&self, context: usize, range: Range<u64>) -> io::Result<States> {
        let Some(overlay) = &self.overlay else { return self.states_below(context, range).await };
        let mut found = States::new();
        for (part, layer) in Box::pin(overlay.layers(range)).await? {
            match (layer, context) {
                (Layer::Backup, _) => {
                    let mut at = part.start;
                    for (range, state) in self.states_below(context, part.clone()).await? {
                        at = range.end;
                        append(&mut found, range, state);
                    }
                    if at < part.end {
                        return Ok(found);
                    }
                }
                (Layer::Data, 0) => append(&mut found, part, 0),
                (Layer::Hole, 0) => append(&mut found, part, HOLE_AND_ZERO),
                // what was written may be anything
                (Layer::Data | Layer::Hole, _) => append(&mut found, part, CHANGED),
            }
            if found.len() >= STRETCHES_MAX {
                break;
            }
        }
        Ok(found)
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        Box::pin(self.writable()?.write(offset, data)).await
    }

    async fn zero(&self, range: Range<u64>, holes: Holes) -> io::Result<()> {
        Box::pin(self.writable()?.zero(range, holes)).await
    }

    fn is_zero_fast(&self, _: &Range<u64>, holes: Holes) -> bool {
        self.overlay.as_ref().is_some_and(|overlay| overlay.is_zero_fast(holes))
    }

    async fn trim(&self, range: Range<u64>) -> io::Result<()> {
        Box::pin(self.writable()?.trim(range)).await
    }

    async fn flush(&self) -> io::Result<()> {
        self.writable()?.flush().await
    }
}

/// An error as a client hears of it.
fn told(e: &Error) -> io::Error {
    let kind = match e.kind() {
        ErrorKind::Cancelled => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, redact(&e.to_string()).into_owned())
}

/// What has changed, from the start of a range on.
fn changes(delta: &MapDelta, asked: &Range<u64>, became_zero: u32) -> Vec<(Range<u64>, u32)> {
    let behind = |ranges: &[Range<u64>]| ranges.partition_point(|r| r.end <= asked.start);
    let (data, zero) = (delta.data.as_slice(), delta.zero.as_slice());
    let mut data = data[behind(data)..].iter().peekable();
    let mut zero = zero[behind(zero)..].iter().peekable();
    let mut found: Vec<(Range<u64>, u32)> = Vec::new();
    let mut push = |range: Range<u64>, state| {
        match found.last_mut() {
            _ if range.is_empty() => {}
            Some((last, of)) if *of == state && last.end == range.start => last.end = range.end,
            _ => found.push((range, state)),
        }
        found.len()
    };
    let mut at = asked.start;
    while at < asked.end {
        let data_first = match (data.peek(), zero.peek()) {
            (Some(d), Some(z)) => d.start < z.start,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let next = if data_first { data.next() } else { zero.next() };
        let state = if data_first { CHANGED } else { became_zero };
        let range = next.map_or(asked.end..asked.end, |r| {
            r.start.clamp(at, asked.end)..r.end.clamp(at, asked.end)
        });
        push(at..range.start, 0);
        at = range.end;
        if push(range, state) >= STRETCHES_MAX {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lie_side_by_side_within_what_is_asked_for() {
        let delta = MapDelta {
            data: [10..20, 30..40, 90..100].into_iter().collect(),
            zero: [20..25, 50..60].into_iter().collect(),
        };
        let all = [
            (0..10, 0),
            (10..20, 1),
            (20..25, 3),
            (25..30, 0),
            (30..40, 1),
            (40..50, 0),
            (50..60, 3),
            (60..90, 0),
            (90..100, 1),
        ];
        assert_eq!(changes(&delta, &(0..100), 3), all);
        assert_eq!(changes(&delta, &(15..22), 3), [(15..20, 1), (20..22, 3)]);
        assert_eq!(changes(&delta, &(15..28), 1), [(15..25, 1), (25..28, 0)]);
        assert_eq!(changes(&delta, &(60..61), 1), [(60..61, 0)]);
        assert_eq!(changes(&MapDelta::default(), &(5..9), 1), [(5..9, 0)]);
        // whatever is asked for, all of it is answered
        for start in 0..100 {
            for end in start + 1..=100 {
                let found = changes(&delta, &(start..end), 3);
                assert!(found.windows(2).all(|two| two[0].0.end == two[1].0.start));
                assert_eq!((found[0].0.start, found[found.len() - 1].0.end), (start, end));
            }
        }
    }
}
