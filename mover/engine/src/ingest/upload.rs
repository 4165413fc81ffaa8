//! Stage *upload*: packs on their way to the store, the dedup segments that name what arrived, and
//! the checkpoints.
//!
//! A segment names only packs that the store has confirmed, so it never leads another writer to a
//! pack that is not there; nor does a checkpoint.
//!
//! Each request is a task of the runtime that sends one message when it has ended. Only the owner's
//! thread looks at them, so nothing here is shared; and it is never blocked for longer than it
//! takes to hear of a request to stop.

use super::checkpoint::Checkpoints;
use super::stop::{STOP_POLL, Stop};
use crate::run::Progress;
use crate::run::concurrency::Controller;
use crate::run::quota::Meter;
use chunkstore::limits::CHECKPOINT_PACKS_MAX;
use chunkstore::{
    ChunkId, ChunkNo, Error, ErrorKind, Location, PackId, PackKind, Repository, Result,
    format::{FrontierPage, SegmentRecord},
    ids::SegmentId,
    pack::FinishedPack,
    protocol::Checkpointer,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packs under way at once, until it was measured how many the line takes.
const UPLOADS_START: usize = 4;
/// How long packs under way are waited for when a run has to stop, counted from the request.
const PACKS_WITHIN: Duration = Duration::from_secs(6);
/// By when the segment and the checkpoint have to be written then.
const ALL_WITHIN: Duration = Duration::from_secs(8);

/// How a request ended.
#[derive(Debug)]
enum Event {
    Pack(FinishedPack, Result<()>),
    Segment(Result<(SegmentId, u64)>),
    /// Reused packs were looked up for a cut.
    Confirmed(u64, Vec<PackId>, Result<bool>),
    /// The lease was written.
    Recorded(Result<bool>),
}

/// What uploads are bounded by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UploadBounds {
    /// Packs under way at once, at most.
    pub(crate) uploads: usize,
    /// Records in memory, those of a segment under way included.
    pub(crate) records: usize,
    /// Records that make a segment.
    pub(crate) segment_records: usize,
}

/// Owns the uploads of one pass.
#[derive(Debug)]
pub(crate) struct Uploads {
    repo: Arc<Repository>,
    runtime: tokio::runtime::Handle,
    stop: Arc<Stop>,
    progress: Arc<Progress>,
    bounds: UploadBounds,
    /// How many packs may be under way, `bounds.uploads` at most.
    concurrency: Controller,
    under_way: HashSet<PackId>,
    /// Other requests under way.
    tasks: usize,
    events_tx: Sender<Event>,
    events: Receiver<Event>,
    records: Vec<SegmentRecord>,
    /// Records of the segment under way.
    sent_records: usize,
    packs: Vec<PackId>,
    checkpoints: Checkpoints,
    checkpointer: Option<Checkpointer>,
    stats: UploadStats,
}

/// What was stored, and how long the run waited for the store.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct UploadStats {
    pub(crate) packs: u64,
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    pub(crate) checkpoints: u64,
    pub(crate) wait: Duration,
}

impl UploadStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.packs += other.packs;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.checkpoints += other.checkpoints;
        self.wait += other.wait;
    }
}

impl Uploads {
    pub(crate) fn new(
        repo: &Arc<Repository>,
        runtime: &tokio::runtime::Handle,
        stop: &Arc<Stop>,
        progress: &Arc<Progress>,
        bounds: UploadBounds,
        checkpoints: Checkpoints,
        checkpointer: Option<Checkpointer>,
    ) -> Self {
        // bounded by what is under way: each request sends one message
        let (events_tx, events) = unbounded();
        Self {
            repo: Arc::clone(repo),
            runtime: runtime.clone(),
            stop: Arc::clone(stop),
            progress: Arc::clone(progress),
            bounds,
            concurrency: Controller::new(UPLOADS_START, bounds.uploads, Instant::now()),
            under_way: HashSet::new(),
            tasks: 0,
            events_tx,
            events,
            records: Vec::new(),
            sent_records: 0,
            packs: Vec::new(),
            checkpoints,
            checkpointer,
            stats: UploadStats::default(),
        }
    }

    /// When and where checkpoints are made.
    pub(crate) fn checkpoints(&mut self) -> &mut Checkpoints {
        &mut self.checkpoints
    }

    /// Starts one upload; waits while as many as allowed are under way. A run that has to hurry
    /// waits for nothing: what is left then is little, and the sooner it is on its way the better.
    pub(crate) fn start(&mut self, pack: FinishedPack) -> Result<()> {
        self.poll()?;
        while !self.has_room() && !self.stop.abort_now() {
            if self.under_way.len() >= self.concurrency.allowed() {
                self.concurrency.waited();
            }
            self.wait_one()?;
        }
        if let Some(meter) = self.stop.meter() {
            let len = u64::from(pack.len);
            meter.uploaded(len, if pack.kind == PackKind::Chunks { len } else { 0 });
        }
        let repo = Arc::clone(&self.repo);
        self.under_way.insert(pack.pack);
        self.spawn(async move {
            let stored = repo.put_pack(&pack).await;
            Event::Pack(pack, stored)
        });
        Ok(())
    }

    /// Takes what has ended meanwhile.
    pub(crate) fn poll(&mut self) -> Result<()> {
        while let Ok(event) = self.events.try_recv() {
            self.ended(event)?;
        }
        Ok(())
    }

    /// Requests that are under way, or not begun yet.
    pub(crate) fn requests(&self) -> u64 {
        (self.under_way.len() + self.tasks) as u64
    }

    fn has_room(&self) -> bool {
        let records = self.records.len() + self.sent_records;
        self.under_way.len() < self.concurrency.allowed()
            && (self.sent_records == 0 || records < self.bounds.records)
    }

    /// Takes a cut of the map. `unfinished`: packs that are complete, or closed, but not under way.
    pub(crate) fn cut(
        &mut self,
        (next, frontier): (ChunkNo, Vec<FrontierPage>),
        unfinished: impl Iterator<Item = PackId>,
        reused: &HashSet<PackId>,
    ) -> Result<()> {
        let waiting = unfinished.chain(self.under_way.iter().copied()).collect();
        let (number, look_up) =
            self.checkpoints.cut(next, frontier, waiting, reused, Instant::now());
        if let Some(checkpointer) = self.checkpointer.clone().filter(|_| !look_up.is_empty()) {
            self.tasks += 1;
            self.spawn(async move {
                let there = checkpointer.confirm(look_up.clone()).await;
                Event::Confirmed(number, look_up, there)
            });
        }
        self.record();
        Ok(())
    }

    /// Whether the next checkpoint waits for a pack that is still being filled, and should not any
    /// longer.
    pub(crate) fn must_close(&mut self) -> bool {
        let filling = self.checkpoints.waits_for().any(|pack| !self.under_way.contains(pack));
        filling && self.checkpoints.must_close(Instant::now())
    }

    /// Waits while more than one interval would be lost, as long as it is the store that is waited
    /// for.
    pub(crate) fn hold(&mut self) -> Result<()> {
        self.poll()?;
        while self.checkpoints.must_wait()
            && !self.stop.stopping()
            && self.checkpoints.waits_for().all(|pack| self.under_way.contains(pack))
        {
            self.wait_one()?;
        }
        Ok(())
    }

    /// Waits for all uploads and writes the last segment.
    pub(crate) fn finish(&mut self) -> Result<UploadStats> {
        self.wait_all()?;
        self.flush_segment();
        self.wait_all()?;
        Ok(self.stats)
    }

    /// The run has to stop. What is under way gets some time (all the time that it needs if nobody
    /// hurries); then a segment names what arrived, so that the next run reuses it, and the lease
    /// says how far all of it reaches, so that the next run goes on from there.
    pub(crate) fn salvage(&mut self) {
        while !self.under_way.is_empty() || self.tasks > 0 {
            if !self.salvage_one(PACKS_WITHIN) {
                break;
            }
        }
        self.record();
        if self.sent_records == 0 {
            self.flush_segment();
        }
        while self.tasks > 0 && self.salvage_one(ALL_WITHIN) {}
    }

    /// Errors are no news here, the run has failed. False: no time is left.
    fn salvage_one(&mut self, within: Duration) -> bool {
        let event = loop {
            if self.stop.abort_now() {
                break self.events.recv_deadline(self.stop.since() + within);
            }
            match self.events.recv_timeout(STOP_POLL) {
                Err(RecvTimeoutError::Timeout) => {}
                event => break event,
            }
        };
        let Ok(event) = event else { return false };
        if let Err(e) = self.ended(event) {
            tracing::warn!("while stopping: {e}");
        }
        true
    }

    /// The packs that the store has confirmed.
    pub(crate) fn take_packs(&mut self) -> Vec<PackId> {
        std::mem::take(&mut self.packs)
    }

    fn wait_all(&mut self) -> Result<()> {
        while !self.under_way.is_empty() || self.tasks > 0 {
            if self.stop.abort_now() {
                return Err(Error::new(ErrorKind::Cancelled, "upload packs", "stopped"));
            }
            self.wait_one()?;
        }
        Ok(())
    }

    /// Waits until something has ended, or the run has to stop.
    fn wait_one(&mut self) -> Result<()> {
        let since = Instant::now();
        loop {
            // looks at the stop request now and then, since a store may take a minute to fail
            match self.events.recv_timeout(Duration::from_millis(200)) {
                Ok(event) => {
                    self.stats.wait += since.elapsed();
                    return self.ended(event);
                }
                Err(_) if self.stop.abort_now() => return Ok(()),
                Err(_) => {}
            }
        }
    }

    fn ended(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Pack(pack, stored) => {
                self.under_way.remove(&pack.pack);
                stored?;
                self.concurrency.ended(Instant::now(), u64::from(pack.len));
                self.count(&pack);
                if self.records.len() >= self.bounds.segment_records && self.sent_records == 0 {
                    self.flush_segment();
                }
            }
            Event::Segment(stored) => {
                self.tasks -= 1;
                self.sent_records = 0;
                let (_, bytes) = stored?;
                self.stats.segments += 1;
                self.stats.bytes += bytes;
            }
            Event::Confirmed(number, packs, there) => {
                self.tasks -= 1;
                let there = there.inspect_err(|e| tracing::warn!("no checkpoint: {e}")).ok();
                self.checkpoints.confirmed(number, packs, there);
            }
            Event::Recorded(written) => {
                self.tasks -= 1;
                let written = written.inspect_err(|e| tracing::warn!("no checkpoint: {e}")).ok();
                self.stats.checkpoints += u64::from(written == Some(true));
                self.checkpoints.recorded(written, Instant::now());
            }
        }
        self.record();
        Ok(())
    }

    /// Writes the checkpoint that is ready, if there is one.
    fn record(&mut self) {
        let Some(checkpointer) = self.checkpointer.clone() else { return };
        let Some(cut) = self.checkpoints.take_ready(Instant::now()) else { return };
        tracing::debug!("checkpoint at chunk {}", cut.next_chunk.0);
        let all = self.packs.iter().chain(self.checkpoints.reused());
        let packs: Vec<_> = all.take(CHECKPOINT_PACKS_MAX as usize).copied().collect();
        self.tasks += 1;
        self.spawn(async move {
            Event::Recorded(checkpointer.record(cut.next_chunk, cut.frontier, &packs).await)
        });
    }

    fn count(&mut self, pack: &FinishedPack) {
        self.stats.packs += 1;
        self.packs.push(pack.pack);
        self.checkpoints.stored(&pack.pack);
        self.stats.bytes += u64::from(pack.len);
        self.progress.uploaded_bytes.add(u64::from(pack.len));
        if pack.kind == PackKind::Chunks {
            self.stop.meter().inspect(|meter| meter.stored());
            self.records.extend(records(pack));
        }
    }

    fn flush_segment(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.records);
        let repo = Arc::clone(&self.repo);
        self.sent_records = records.len();
        if let Some(meter) = self.stop.meter() {
            let bytes = Meter::segment_bytes(records.len());
            meter.uploaded(bytes, bytes);
        }
        self.tasks += 1;
        self.spawn(async move { Event::Segment(repo.put_segment(records).await) });
    }

    fn spawn(&self, request: impl Future<Output = Event> + Send + 'static) {
        let events = self.events_tx.clone();
        self.runtime.spawn(async move {
            let event = request.await;
            // the receiver is gone only if the run has failed
            let _ = events.send(event);
        });
    }
}

/// The records of a pack's chunks.
fn records(pack: &FinishedPack) -> impl Iterator<Item = SegmentRecord> + '_ {
    (0u32..).zip(&pack.entries).flat_map(move |(number, entry)| {
        (0u16..).zip(&entry.ids).map(move |(index, id)| SegmentRecord {
            id: ChunkId::from_bytes(*id),
            location: Location {
                pack: pack.pack,
                entry: number,
                offset: entry.offset,
                stored_len: entry.stored_len,
                index,
            },
        })
    })
}
