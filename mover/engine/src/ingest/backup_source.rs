//! Stage *read* of a copy: fills the units of a backup's pipeline from a backup in another
//! repository.
//!
//! ```text
//!  units ─▶ plan ─▶ range reads ─▶ open, check ids ─▶ pieces ─▶ fill ─▶ slots
//!        (this thread)  (tokio)       (N threads)            (one thread)
//! ```
//!
//! The planner takes units as they come, looks up the chunks of the original that they lie on, and
//! hands on merged range reads; network and openers are those of a restore. A unit waits in
//! [`Wanted`], as the list of the chunks that it still misses; when the last has come, the filler
//! takes a slot and puts the unit together. The two repositories may cut the volume differently: a
//! unit may lie on many chunks of the original, and a chunk may serve several units.
//!
//! Memory: stored bytes and opened bytes travel with permits, as in a restore. The permits for what
//! is opened are taken for a batch of units, in order, before anything of it is read.
//!
//! Cannot deadlock: a batch that has its permits needs nothing but the network, openers that wait
//! for nobody, and slots, which the stages behind give back by themselves. Who wants to wait for a
//! batch ahead holds none of its memory. Every wait of these threads ends when the run is over.

use super::read::ReadStats;
use super::stop::Stop;
use super::unit::{Filled, Unit};
use super::wanted::{Complete, Wanted};
use crate::reading::fetch::{Fetch, FetchStats, Planned, instead, jobs_with_headers, take};
use crate::reading::get;
use crate::reading::limits::{Limits, READS_MAX, READS_START};
use crate::reading::open::{self, OpenContext, OpenedPiece, Outbox, Outcome};
use crate::reading::pipeline::GAP_BYTES;
use crate::reading::plan::{PlanScope, ReadShape, Want};
use crate::run::concurrency::Gate;
use crate::run::failure::Failure;
use crate::run::threads::spawn;
use crate::run::{Cancel, Progress};
use crate::volume::io::Arena;
use chunkstore::salvage::Salvage;
use chunkstore::{
    ChunkNo, ErrorKind, Geometry, MapReader, Repository, Result, VolumeMap, fetch::StubFollower,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore, mpsc};

/// How often a wait looks whether the run is over.
const LOOK_UP: Duration = Duration::from_millis(100);

/// The backup that is copied, and what reading it may take.
#[derive(Debug)]
pub(crate) struct SourceBackup {
    pub(crate) repo: Arc<Repository>,
    pub(crate) map: VolumeMap,
    /// All of its volume.
    pub(crate) scope: PlanScope,
    pub(crate) limits: Limits,
    /// What was found elsewhere in its repository.
    pub(crate) salvage: Arc<Salvage>,
    /// Bytes of packs that were read.
    pub(crate) fetched_bytes: AtomicU64,
    /// Range reads of packs.
    pub(crate) reads: AtomicU64,
}

pub(crate) struct BackupRead<'a> {
    pub(crate) origin: &'a SourceBackup,
    pub(crate) arena: &'a Arc<Arena>,
    /// The volume as the target cuts it.
    pub(crate) geometry: Geometry,
    pub(crate) runtime: &'a Handle,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
}

impl BackupRead<'_> {
    pub(crate) fn run(self, inbox: &Receiver<Unit>, outbox: &Sender<Filled>) -> Result<ReadStats> {
        let failure = Failure::default();
        let wanted = Wanted::new(self.origin.scope.geometry);
        // what is done is counted by the stages behind
        let uncounted = Progress::default();
        let outcome = Outcome::Restored;
        let (this, failure_ref, wanted_ref) = (&self, &failure, &wanted);
        let ctx = OpenContext {
            keys: self.origin.repo.keys(),
            scope: &self.origin.scope,
            failure: failure_ref,
            outcome: &outcome,
            progress: &uncounted,
        };
        let ctx = &ctx;
        let stats = std::thread::scope(|threads| {
            let (pieces_tx, pieces) = unbounded();
            let (entries, sealed) = unbounded();
            let (plans_tx, plans) = mpsc::channel(1);
            let opener = |_| {
                let (inbox, outbox) = (sealed.clone(), Outbox::Ordered(pieces_tx.clone()));
                spawn(threads, failure_ref, "open", move || open::run(ctx, &inbox, &outbox))
            };
            let openers: Vec<_> = (0..self.origin.limits.threads).filter_map(opener).collect();
            drop(sealed);
            let fill = move || this.fill(&pieces, outbox, wanted_ref, failure_ref);
            let filler = spawn(threads, failure_ref, "fill", fill);
            let fetch = move || this.fetch(entries, plans, failure_ref);
            let fetcher = spawn(threads, failure_ref, "fetch", fetch);
            let planned = self.plan(inbox, &plans_tx, &pieces_tx, wanted_ref, failure_ref);
            failure.note(planned);
            drop((plans_tx, pieces_tx));
            let fetched = failure.join("fetch", fetcher).unwrap_or_default();
            for opener in openers {
                failure.join("open", Some(opener));
            }
            let mut stats = failure.join("fill", filler).unwrap_or_default();
            stats.reads = get(&fetched.reads);
            self.origin.reads.fetch_add(stats.reads, Ordering::Relaxed);
            self.origin.fetched_bytes.fetch_add(get(&fetched.read_bytes), Ordering::Relaxed);
            stats
        });
        match failure.into_result() {
            // a bound is reached: the stages behind end at leisure
            Err(e) if e.kind() == ErrorKind::Cancelled && !self.stop.abort_now() => Ok(stats),
            done => done.map(|()| stats),
        }
    }

    /// Whether the run ends before its time, here or in another stage.
    fn over(&self, failure: &Failure) -> bool {
        if self.stop.stopping() {
            failure.set(Cancel::error());
        }
        failure.failed()
    }

    /// Waits for something; `None` if the run is over before.
    fn wait<T>(&self, failure: &Failure, what: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async {
            let over = async {
                while !self.over(failure) {
                    tokio::time::sleep(LOOK_UP).await;
                }
            };
            tokio::select! {
                biased;
                done = what => Some(done),
                () = over => None,
            }
        })
    }

    /// The next unit; `None` at the end, or when the run is over.
    fn next(&self, inbox: &Receiver<Unit>, failure: &Failure) -> Option<Unit> {
        while !self.over(failure) {
            match inbox.recv_timeout(LOOK_UP) {
                Ok(unit) => return Some(unit),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    fn plan(
        &self,
        inbox: &Receiver<Unit>,
        plans: &mpsc::Sender<Planned>,
        pieces: &Sender<OpenedPiece>,
        wanted: &Wanted,
        failure: &Failure,
    ) -> Result<()> {
        let SourceBackup { repo, map, limits, salvage, .. } = self.origin;
        let mut reader = MapReader::with_limits(Arc::clone(repo), map.clone(), limits.map_reads())?;
        reader.salvage_with(salvage);
        let memory = Arc::new(Semaphore::new(limits.ordered_bytes as usize));
        let mut held = None;
        loop {
            let Some(first) = held.take().or_else(|| self.next(inbox, failure)) else {
                return Ok(());
            };
            let (batch, ranges) = self.batch(first, inbox, &mut held);
            let Some(pages) = self.wait(failure, reader.load(&ranges)) else { return Ok(()) };
            let pages = pages?;
            let mut gathered = Gathered::default();
            let mut waiting = Vec::with_capacity(batch.len());
            for unit in batch {
                let bytes = unit_ranges(&unit, self.geometry);
                let mut missing = Vec::new();
                let mut zero = false;
                for range in &bytes {
                    let chunks = map.geometry().chunks_of(range.clone());
                    let mut stored = 0;
                    for (chunk, at) in pages.nonzero(chunks.clone())? {
                        stored += 1;
                        missing.push(chunk.0);
                        let at = instead(salvage, at);
                        let want = Want::new(chunk, at.id, &at.location);
                        self.origin.scope.check(&want)?;
                        gathered.push(want, map.geometry().len(chunk));
                    }
                    zero |= stored < chunks.end - chunks.start;
                }
                missing.dedup();
                waiting.push((unit, bytes, missing, zero));
            }
            // one unit on chunks that are larger than all of it may be longer than the memory there
            // is
            let bytes = gathered.bytes.min(u64::from(limits.ordered_bytes));
            let Some(permit) = self.wait(failure, take(&memory, bytes)) else { return Ok(()) };
            let permit = Arc::new(permit?);
            for (unit, bytes, missing, zero) in waiting {
                let start = self.geometry.offset(unit.first);
                let nothing = missing.is_empty();
                wanted.insert(start, Complete::new(unit, start, bytes, zero), missing);
                // the openers' side of the channel lives longer than this one
                if nothing && pieces.send(OpenedPiece::Zero(start..start + 1)).is_err() {
                    return Ok(());
                }
            }
            let shape = ReadShape { gap_bytes: GAP_BYTES, read_bytes_max: limits.read_bytes_max };
            let jobs = jobs_with_headers(gathered.wants, shape, salvage);
            let plan = Planned { jobs, ordered: Some(permit) };
            // the reader has ended: its error is the one to report
            if self.wait(failure, plans.send(plan)).is_none_or(|sent| sent.is_err()) {
                return Ok(());
            }
        }
    }

    /// The units that are planned together, and the chunks of the original that they lie on. A unit
    /// too many is held back.
    fn batch(
        &self,
        first: Unit,
        inbox: &Receiver<Unit>,
        held: &mut Option<Unit>,
    ) -> (Vec<Unit>, Vec<Range<u64>>) {
        let limits = &self.origin.limits;
        let map = &self.origin.map;
        let fanout = u64::from(map.fanout());
        let chunk_bytes = u64::from(map.geometry().chunk().bytes());
        let (mut units, mut ranges) = (Vec::new(), Vec::new());
        let (mut bytes, mut leaves) = (0, 0);
        let mut next = Some(first);
        while let Some(unit) = next.take() {
            let chunks: Vec<_> = unit_ranges(&unit, self.geometry)
                .into_iter()
                .map(|r| map.geometry().chunks_of(r))
                .collect();
            let count: u64 = chunks.iter().map(|r| r.end - r.start).sum();
            bytes += count * chunk_bytes;
            leaves += chunks.iter().map(|r| (r.end - r.start).div_ceil(fanout) + 1).sum::<u64>();
            let full = bytes > limits.batch_bytes_max() || leaves > limits.leaves_per_window as u64;
            if full && !units.is_empty() {
                *held = Some(unit);
                break;
            }
            units.push(unit);
            ranges.extend(chunks);
            next = inbox.try_recv().ok();
        }
        (units, ranges)
    }

    fn fetch(
        &self,
        entries: Sender<open::Sealed>,
        plans: mpsc::Receiver<Planned>,
        failure: &Failure,
    ) -> FetchStats {
        let SourceBackup { repo, scope, limits, salvage, .. } = self.origin;
        repo.store().keep_buffers(limits.kept_bytes);
        let fetch = Fetch {
            repo,
            scope,
            salvage,
            shape: ReadShape { gap_bytes: GAP_BYTES, read_bytes_max: limits.read_bytes_max },
            leaves_per_window: limits.leaves_per_window,
            stubs: Mutex::new(StubFollower::default()),
            memory: Arc::new(Semaphore::new(limits.fetch_bytes as usize)),
            gate: Gate::new(READS_START, READS_MAX),
            ordered: None,
            outbox: entries,
            outcome: Outcome::Restored,
            progress: self.progress,
            stats: FetchStats::default(),
        };
        // what is in flight is dropped when the run is over
        if let Some(read) = self.wait(failure, fetch.read(plans)) {
            failure.note(read);
        }
        fetch.stats
    }

    /// Runs until the inbox is closed.
    fn fill(
        &self,
        inbox: &Receiver<OpenedPiece>,
        outbox: &Sender<Filled>,
        wanted: &Wanted,
        failure: &Failure,
    ) -> ReadStats {
        let mut stats = ReadStats::default();
        let mut idle = Instant::now();
        for piece in inbox {
            stats.device_wait += idle.elapsed();
            if !self.over(failure) {
                for unit in wanted.arrived(piece) {
                    stats.read_bytes += u64::from(unit.unit.read_bytes);
                    let since = Instant::now();
                    let filled = self.filled(unit, failure);
                    stats.slot_wait += since.elapsed();
                    // nobody takes it: the run is over, and others say why
                    if filled.is_none_or(|filled| outbox.send(filled).is_err()) {
                        break;
                    }
                }
            }
            idle = Instant::now();
        }
        stats
    }

    /// Puts a unit together in a slot; `None` if the run is over.
    fn filled(&self, unit: Complete, failure: &Failure) -> Option<Filled> {
        while !self.over(failure) {
            if let Some(mut slot) = self.arena.take_timeout(LOOK_UP) {
                unit.write_to(&mut slot);
                return Some(Filled { unit: unit.unit, slot });
            }
        }
        None
    }
}

/// Chunks of the original that a batch needs, each once.
#[derive(Debug, Default)]
struct Gathered {
    wants: Vec<Want>,
    bytes: u64,
    next: u64,
}

impl Gathered {
    /// In ascending order; the last one may come again, for the unit behind.
    fn push(&mut self, want: Want, len: u32) {
        if want.place.chunk.0 >= self.next {
            self.next = want.place.chunk.0 + 1;
            self.bytes += u64::from(len);
            self.wants.push(want);
        }
    }
}

/// The wanted bytes of a unit, in the volume.
fn unit_ranges(unit: &Unit, geometry: Geometry) -> Vec<Range<u64>> {
    let offset =
        |at: u16| geometry.offset(ChunkNo(unit.first.0 + u64::from(at))).min(geometry.size_bytes());
    unit.wanted.iter().map(|r| offset(r.start)..offset(r.end)).collect()
}
