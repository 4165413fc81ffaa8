//! Reads a device and compares it with a backup's map: every stored chunk by its id, every other
//! byte with zero.
//!
//! ```text
//!  map ─▶ units ─▶ engine (reads, one thread) ─▶ check (N threads)
//! ```
//!
//! The caller's thread walks the map. What differs is collected, not an error. Holes of an image
//! file read as zeros by definition and are not read where the backup says zero.
//!
//! Cannot deadlock: the reading thread waits for slots, which the checking threads free without
//! waiting for anyone; the map walk waits for room in a channel that the reading thread empties to
//! the end, also after a failure.

use super::limits::WRITES_IN_FLIGHT;
use super::pipeline::{self, Run};
use super::plan::PlanScope;
use super::ranges::RangeSet;
use super::same::SameChunks;
use crate::run::failure::Failure;
use crate::run::threads::spawn;
use crate::run::{Cancel, Progress};
use crate::volume::device::{DeviceKind, Source};
use crate::volume::io::{Arena, Engine, EngineChoice, Op, Slot};
use chunkstore::{
    ChunkId, ChunkNo, Error, ErrorKind, Keys, MapReader, Result, is_zero, map::MapWalk,
};
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Units planned ahead.
const UNITS_AHEAD: usize = 64;

/// Adjacent whole chunks that are read at once, and what they should be (`None`: zero).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompareUnit {
    pub(crate) first: ChunkNo,
    pub(crate) expected: Vec<Option<ChunkId>>,
}

/// Collects chunks into units of up to `chunks_max`.
#[derive(Debug)]
pub(crate) struct UnitBuilder {
    chunks_max: usize,
    unit: CompareUnit,
}

impl UnitBuilder {
    pub(crate) fn new(chunks_max: usize) -> Self {
        let unit = CompareUnit { first: ChunkNo(0), expected: Vec::new() };
        Self { chunks_max: chunks_max.max(1), unit }
    }

    /// The next chunk; chunks ascend. Gives the unit before it, if that ends here.
    pub(crate) fn push(&mut self, chunk: ChunkNo, id: Option<ChunkId>) -> Option<CompareUnit> {
        let next = self.unit.first.0 + self.unit.expected.len() as u64;
        let ends = chunk.0 != next || self.unit.expected.len() >= self.chunks_max;
        let done = if ends { self.take() } else { None };
        if self.unit.expected.is_empty() {
            self.unit.first = chunk;
        }
        self.unit.expected.push(id);
        done
    }

    pub(crate) fn take(&mut self) -> Option<CompareUnit> {
        let unit = std::mem::replace(
            &mut self.unit,
            CompareUnit { first: ChunkNo(0), expected: Vec::new() },
        );
        (!unit.expected.is_empty()).then_some(unit)
    }
}

/// What to compare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compare<'a> {
    pub(crate) rt: &'a Handle,
    pub(crate) keys: &'a Arc<Keys>,
    /// Chunks that are wanted in part are left out.
    pub(crate) scope: &'a PlanScope,
    pub(crate) source: &'a Source,
    /// Where chunks are noted that are equal.
    pub(crate) same: Option<&'a SameChunks>,
    pub(crate) threads: usize,
    pub(crate) leaves_per_window: usize,
    pub(crate) progress: &'a Progress,
    pub(crate) cancel: &'a Cancel,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) read_bytes: u64,
    /// Known to be zero without reading: holes of a file.
    pub(crate) hole_bytes: u64,
    pub(crate) differing: RangeSet,
    pub(crate) pages: u64,
}

/// Reads with `engine`, whose slots are those of `arena`.
pub(crate) fn compare(
    ctx: Compare<'_>,
    reader: MapReader,
    engine: Engine,
    arena: &Arc<Arena>,
) -> Result<Compared> {
    let failure = Failure::default();
    let differing = Mutex::new(RangeSet::default());
    let mut compared = std::thread::scope(|threads| {
        let (units, planned) = mpsc::channel(UNITS_AHEAD);
        let (filled, inbox) = unbounded();
        let (failure, differing) = (&failure, &differing);
        let read = move || read(engine, planned, &filled, arena, ctx, failure);
        let reads = spawn(threads, failure, "read", read);
        let checkers: Vec<_> = (0..ctx.threads.max(1))
            .filter_map(|_| {
                let inbox: Receiver<Filled> = inbox.clone();
                spawn(threads, failure, "check", move || check(&inbox, ctx, failure, differing))
            })
            .collect();
        drop(inbox);
        let walked = ctx.rt.block_on(async {
            tokio::select! {
                biased;
                () = failure.wait() => None,
                () = ctx.cancel.requested() => { failure.set(Cancel::error()); None }
                walked = walk(ctx, reader, units) => failure.note(walked),
            }
        });
        let mut compared = walked.unwrap_or_default();
        compared.read_bytes = failure.join("read", reads).unwrap_or_default();
        for checker in checkers {
            failure.join("check", Some(checker));
        }
        compared
    });
    failure.into_result()?;
    compared.differing = differing.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(compared)
}

/// From the map to units, ascending.
async fn walk(
    ctx: Compare<'_>,
    mut reader: MapReader,
    out: mpsc::Sender<CompareUnit>,
) -> Result<Compared> {
    let mut plan = UnitPlan {
        ctx,
        out,
        builder: UnitBuilder::new(chunks_per_slot(ctx)),
        compared: Compared::default(),
    };
    let chunks = whole_chunks(ctx.scope);
    let mut next = chunks.start;
    let mut walk = MapWalk::new(&mut reader, chunks.clone(), ctx.leaves_per_window);
    while let Some(window) = walk.next().await? {
        plan.compared.pages += window.pages.pages() as u64;
        for (chunk, at) in window.pages.nonzero(window.chunks.clone())? {
            plan.zeros(next..chunk.0).await?;
            plan.push(chunk, Some(at.id)).await;
            next = chunk.0 + 1;
        }
    }
    plan.zeros(next..chunks.end).await?;
    if let Some(last) = plan.builder.take() {
        plan.send(last).await;
    }
    Ok(plan.compared)
}

struct UnitPlan<'a> {
    ctx: Compare<'a>,
    out: mpsc::Sender<CompareUnit>,
    builder: UnitBuilder,
    compared: Compared,
}

impl UnitPlan<'_> {
    async fn push(&mut self, chunk: ChunkNo, id: Option<ChunkId>) {
        if let Some(unit) = self.builder.push(chunk, id) {
            self.send(unit).await;
        }
    }

    async fn send(&self, unit: CompareUnit) {
        // nobody takes it only after a failure, which is what is reported
        let _ = self.out.send(unit).await;
    }

    /// Chunks that must be zero: only those with data on the device are read.
    async fn zeros(&mut self, chunks: Range<u64>) -> Result<()> {
        let geometry = self.ctx.scope.geometry;
        let mut at = chunks.start;
        while at < chunks.end {
            let bytes = geometry.offset(ChunkNo(at))
                ..geometry.offset(ChunkNo(chunks.end)).min(geometry.size_bytes());
            let data = next_data(self.ctx.source, bytes.clone())?;
            let data = data.map_or(chunks.end..chunks.end, |d| geometry.chunks_of(d));
            let data = data.start.max(at)..data.end.min(chunks.end);
            let hole =
                geometry.offset(ChunkNo(data.start)).min(bytes.end).saturating_sub(bytes.start);
            self.compared.hole_bytes += hole;
            if let Some(same) = self.ctx.same {
                (at..data.start).for_each(|chunk| same.insert(ChunkNo(chunk)));
            }
            self.ctx.progress.done_bytes.add(hole);
            self.ctx.progress.zero_bytes.add(hole);
            for chunk in data.clone() {
                self.push(ChunkNo(chunk), None).await;
            }
            at = data.end.max(data.start);
        }
        Ok(())
    }
}

/// The chunks that are wanted wholly.
fn whole_chunks(scope: &PlanScope) -> Range<u64> {
    let mut chunks = scope.chunks();
    if !chunks.is_empty() && !scope.whole(ChunkNo(chunks.start)) {
        chunks.start += 1;
    }
    if !chunks.is_empty() && !scope.whole(ChunkNo(chunks.end - 1)) {
        chunks.end -= 1;
    }
    chunks
}

fn chunks_per_slot(ctx: Compare<'_>) -> usize {
    let chunk_bytes = ctx.scope.geometry.chunk().bytes();
    (super::limits::SLOT_BYTES / chunk_bytes).max(1) as usize
}

/// The first stretch of a range that may hold data. Always the range itself on what knows no holes.
fn next_data(source: &Source, range: Range<u64>) -> Result<Option<Range<u64>>> {
    if source.kind() != DeviceKind::File {
        return Ok(Some(range));
    }
    let failed = |e: std::io::Error| {
        let context = format!("look for holes in {}", source.path().display());
        Error::caused(ErrorKind::Device, context, e)
    };
    let file = source.io_file().unaligned().map_err(failed)?;
    let start = match rustix::fs::seek(file, SeekFrom::Data(range.start)) {
        Ok(start) if start < range.end => start.max(range.start),
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // the file system cannot tell
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(range)),
        Err(e) => return Err(failed(e.into())),
    };
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) if end > start => end.min(range.end),
        Ok(_) | Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => range.end,
        Err(e) => return Err(failed(e.into())),
    };
    Ok(Some(start..end))
}

#[derive(Debug)]
struct Filled {
    slot: Slot,
    unit: CompareUnit,
}

/// Feeds the engine until no unit is left; gives the bytes that were read.
fn read(
    mut engine: Engine,
    mut units: mpsc::Receiver<CompareUnit>,
    filled: &Sender<Filled>,
    arena: &Arc<Arena>,
    ctx: Compare<'_>,
    failure: &Failure,
) -> u64 {
    let geometry = ctx.scope.geometry;
    let mut in_flight: Vec<Option<CompareUnit>> = vec![None; arena.slots()];
    let (mut bytes, mut open) = (0, true);
    while open || engine.in_flight() > 0 {
        while open && engine.has_room() {
            // a slot first: it is home or with a checking thread, unless all are in flight
            let slot = if engine.in_flight() == 0 { Some(arena.take_wait()) } else { arena.take() };
            let Some(slot) = slot else { break };
            let unit = match engine.in_flight() {
                0 => units.blocking_recv().ok_or(mpsc::error::TryRecvError::Disconnected),
                _ => units.try_recv(),
            };
            match unit {
                // the walk is over long before all of it is read
                Ok(_) if failure.failed() || failure.note(ctx.cancel.check()).is_none() => {}
                Ok(unit) => {
                    let index = slot.index();
                    let len = unit.expected.len() as u64;
                    let last = ChunkNo(unit.first.0 + len.saturating_sub(1));
                    let offset = geometry.offset(unit.first);
                    let end = geometry.offset(last) + u64::from(geometry.len(last));
                    let len = u32::try_from(end - offset).unwrap_or(u32::MAX);
                    let submitted = engine.submit(Op::read(slot, offset, len, index as u64));
                    if failure.note(submitted.map_err(|r| r.error)).is_some() {
                        in_flight[index] = Some(unit);
                    }
                }
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => open = false,
            }
        }
        if engine.in_flight() == 0 {
            continue;
        }
        // an engine that is broken keeps its slots; nobody else waits for them
        let Some(done) = failure.note(engine.wait()) else { break };
        let len = u64::from(done.op.span.len);
        let Some(slot) = failure.note(done.into_slot(ctx.source.path())) else { continue };
        let Some(unit) = in_flight.get_mut(slot.index()).and_then(Option::take) else { continue };
        bytes += len;
        ctx.progress.read_bytes.add(len);
        // they are gone only if all of them panicked, which joining them reports
        let _ = filled.send(Filled { slot, unit });
    }
    drop(engine);
    while units.blocking_recv().is_some() {}
    bytes
}

/// Checks slots until there are no more.
fn check(
    inbox: &Receiver<Filled>,
    ctx: Compare<'_>,
    failure: &Failure,
    differing: &Mutex<RangeSet>,
) {
    let geometry = ctx.scope.geometry;
    let chunk_bytes = geometry.chunk().bytes() as usize;
    for Filled { slot, unit } in inbox {
        if failure.failed() {
            continue;
        }
        let parts = slot.chunks(chunk_bytes).zip(&unit.expected);
        for (chunk, (part, expected)) in (unit.first.0..).map(ChunkNo).zip(parts) {
            let len = geometry.len(chunk);
            let equal = match (part.get(..len as usize), expected) {
                // hashed even if it looks equal to nothing: an id is the only proof
                (Some(part), Some(id)) => ctx.keys.chunk_id(part) == *id,
                (Some(part), None) => is_zero(part),
                // what was not read is equal to nothing, and least of all to zero
                (None, _) => false,
            };
            if let Some(same) = ctx.same.filter(|_| equal) {
                same.insert(chunk);
            }
            if !equal {
                let start = geometry.offset(chunk);
                let mut differing = differing.lock().unwrap_or_else(PoisonError::into_inner);
                differing.insert(start..start + u64::from(len));
            }
            ctx.progress.done_bytes.add(u64::from(len));
        }
    }
}

/// Reads a device and compares it with a backup's map; what is equal is noted in `same`.
pub(crate) fn compare_device(
    run: &Run<'_>,
    engine: EngineChoice,
    source: &Source,
    reader: MapReader,
    same: Option<&SameChunks>,
) -> Result<Compared> {
    let arena = Arena::new(run.limits.slots, run.limits.slot_bytes as usize)?;
    let depth = run.limits.slots.min(WRITES_IN_FLIGHT);
    let engine = Engine::start(engine, &arena, source.io_file(), depth)?;
    let ctx = Compare {
        rt: run.context.rt,
        keys: run.repo.keys(),
        scope: run.scope,
        source,
        same,
        threads: run.limits.threads,
        leaves_per_window: run.limits.leaves_per_window,
        progress: run.context.progress,
        cancel: run.context.cancel,
    };
    let compared = compare(ctx, reader, engine, &arena)?;
    pipeline::check_home(&arena)?;
    Ok(compared)
}

/// That a device was not looked at itself.
pub(crate) fn may_be_old(path: &Path, why: &str) -> String {
    format!("what was compared of {} may be older than what is on it: {why}", path.display())
}

/// That a file is longer than the volume; `None` if it is not.
pub(crate) fn longer_file(path: &Path, is_bytes: u64, volume_bytes: u64) -> Option<String> {
    let more = is_bytes.checked_sub(volume_bytes).filter(|more| *more > 0)?;
    Some(format!("{} is longer than the volume: the {more} bytes behind it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::restore::testkit::{Kit, Shape};
    use crate::volume::device::SourceOptions;
    use chunkstore::{ChunkSize, Geometry};

    /// All is planned long before it is read: the thread that reads has to look by itself.
    #[test]
    fn a_stop_ends_reads_that_were_planned_before() {
        const UNITS: u64 = 8;
        static BYTES: [u8; 8 * 4096] = [0; 8 * 4096];
        let kit = Kit::new(Shape::default());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, BYTES).unwrap();
        let source = Source::open(&path, SourceOptions::default()).unwrap();
        let arena = Arena::new(4, 4096).unwrap();
        let engine = Engine::start(EngineChoice::Auto, &arena, source.io_file(), 2).unwrap();
        let size = ChunkSize::new(4096).unwrap();
        let scope = PlanScope {
            geometry: Geometry::new(UNITS * 4096, size).unwrap(),
            want: 0..UNITS * 4096,
            entry_chunks: 8,
            batch_bytes_max: 4096,
            same: None,
        };
        let (progress, cancel) = (Progress::new(), Cancel::new());
        let ctx = Compare {
            rt: kit.rt.handle(),
            keys: kit.repo.keys(),
            scope: &scope,
            source: &source,
            same: None,
            threads: 1,
            leaves_per_window: 1,
            progress: &progress,
            cancel: &cancel,
        };
        let (units, planned) = mpsc::channel(UNITS_AHEAD);
        for chunk in 0..UNITS {
            let unit = CompareUnit { first: ChunkNo(chunk), expected: vec![None] };
            units.blocking_send(unit).unwrap();
        }
        drop(units);
        cancel.request();
        let (filled, inbox) = unbounded();
        let failure = Failure::default();
        assert_eq!(read(engine, planned, &filled, &arena, ctx, &failure), 0);
        assert!(inbox.is_empty());
        assert_eq!(failure.into_result().unwrap_err().kind(), ErrorKind::Cancelled);
        pipeline::check_home(&arena).unwrap();
    }

    #[test]
    fn adjacent_chunks_share_a_unit() {
        let id = |n| Some(ChunkId::from_bytes([n; 32]));
        let mut builder = UnitBuilder::new(2);
        assert_eq!(builder.push(ChunkNo(4), id(1)), None);
        assert_eq!(builder.push(ChunkNo(5), None), None);
        let full = builder.push(ChunkNo(6), id(2)).unwrap();
        assert_eq!(full, CompareUnit { first: ChunkNo(4), expected: vec![id(1), None] });
        let before_gap = builder.push(ChunkNo(9), id(3)).unwrap();
        assert_eq!(before_gap, CompareUnit { first: ChunkNo(6), expected: vec![id(2)] });
        assert_eq!(builder.take().unwrap().first, ChunkNo(9));
        assert_eq!(builder.take(), None);
    }
}
