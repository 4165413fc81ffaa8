//! The network stage: walks the map in windows, plans each, reads ranges of packs, and hands stored
//! entries to the openers.
//!
//! Two tasks on one async driver. The *planner* walks the map and cuts it into batches; it holds
//! one window and is at most one batch ahead. The *reader* has many range reads in flight. Memory
//! for stored bytes is a permit that a read takes before it starts and that travels with its
//! entries; they go to the openers through a channel without a bound of its own, since the permits
//! bound it.
//!
//! Cannot deadlock: a read holds no permit while it waits for one (a read whose pack is gone gives
//! its own back before the chunks are looked for elsewhere); openers free permits without waiting
//! for the network. Permits of an output in order are taken for a whole batch, in order, before any
//! of its reads; what is ahead of the batch that is next never holds more than what is left of
//! them. A failure elsewhere drops this stage as a whole.

use super::limits::READS_MAX;
use super::open::{OpenedPiece, Outcome, Sealed};
use super::plan::{
    Batch, EntryWork, Placement, PlanScope, Planner, ReadJob, ReadShape, Want, plan_jobs,
};
use crate::run::Progress;
use crate::run::concurrency::Gate;
use chunkstore::format::names::pack_key;
use chunkstore::limits::STUB_HOPS_MAX;
use chunkstore::salvage::Salvage;
use chunkstore::{
    ChunkRef, Error, ErrorKind, MapReader, PackKind, Repository, Result,
    fetch::{EntryAddr, Fetched, RangeRead, StubFollower, read_range},
    map::MapWalk,
};
use crossbeam_channel::Sender;
use futures::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};

/// Where zero ranges go.
#[derive(Debug)]
pub(crate) enum ZeroBox {
    /// To the thread that makes them zero on the target.
    Target(mpsc::Sender<Vec<Range<u64>>>),
    /// Into the output in order.
    Ordered(Sender<OpenedPiece>),
    /// They are zero already, or nobody cares: they are only counted.
    Counted,
}

/// What the stage did.
#[derive(Debug, Default)]
pub(crate) struct FetchStats {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) moved_entries: AtomicU64,
    pub(crate) zero_bytes: AtomicU64,
    /// Of stored chunks of which nothing was to be done.
    pub(crate) same_bytes: AtomicU64,
    pub(crate) pages: AtomicU64,
}

impl FetchStats {
    pub(crate) fn add(&self, other: &Self) {
        let Self { reads, read_bytes, moved_entries, zero_bytes, same_bytes, pages } = other;
        for (mine, more) in [
            (&self.reads, reads),
            (&self.read_bytes, read_bytes),
            (&self.moved_entries, moved_entries),
            (&self.zero_bytes, zero_bytes),
            (&self.same_bytes, same_bytes),
            (&self.pages, pages),
        ] {
            mine.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// What the stage knows and owns.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    pub(crate) repo: &'a Repository,
    pub(crate) scope: &'a PlanScope,
    pub(crate) shape: ReadShape,
    pub(crate) leaves_per_window: usize,
    /// What was found elsewhere, and the headers of packs.
    pub(crate) salvage: &'a Salvage,
    /// Stubs that were found. Waited for only by reads whose pack is gone, one look-up at a time.
    pub(crate) stubs: Mutex<StubFollower>,
    /// Bytes of stored entries.
    pub(crate) memory: Arc<Semaphore>,
    /// Reads at once.
    pub(crate) gate: Gate,
    /// Bytes of plaintext, where the output must be in order.
    pub(crate) ordered: Option<Arc<Semaphore>>,
    pub(crate) outbox: Sender<Sealed>,
    pub(crate) outcome: Outcome,
    pub(crate) progress: &'a Progress,
    pub(crate) stats: FetchStats,
}

/// Reads to be made, and the permit for what they open to.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) jobs: Vec<ReadJob>,
    pub(crate) ordered: Option<Arc<OwnedSemaphorePermit>>,
}

impl Fetch<'_> {
    /// Runs to the end of the map.
    pub(crate) async fn run(&self, reader: MapReader, zero: ZeroBox) -> Result<()> {
        let (planned, plans) = mpsc::channel(1);
        let reads = self.read(plans);
        let plan = self.plan(reader, zero, planned);
        futures::future::try_join(plan, reads).await.map(|_| ())
    }

    async fn plan(
        &self,
        mut reader: MapReader,
        zero: ZeroBox,
        out: mpsc::Sender<Planned>,
    ) -> Result<()> {
        let mut planner = Planner::new(self.scope.clone());
        let mut walk = MapWalk::new(&mut reader, self.scope.chunks(), self.leaves_per_window);
        loop {
            // room first: so there are never more than two windows and their plans
            let Ok(room) = out.reserve().await else { return Ok(()) };
            let window = walk.next().await?;
            if let Some(damage) = self.outcome.damage() {
                damage.note_pages(walk.take_lost(), self.scope);
            }
            let Some(window) = window else { break };
            self.stats.pages.fetch_add(window.pages.pages() as u64, Ordering::Relaxed);
            drop(room);
            for (chunk, at) in window.pages.nonzero(window.chunks.clone())? {
                let at = instead(self.salvage, at);
                match planner.push(chunk, &at) {
                    Ok(Some(full)) => self.hand_on(full, &zero, &out).await?,
                    Ok(None) => {}
                    // it leads nowhere: what is not planned is zero
                    Err(e) => {
                        let place = Placement { index: at.location.index, chunk, id: at.id };
                        let Some(damage) = self.outcome.damage() else { return Err(e) };
                        damage.note(e, self.scope, [(EntryAddr::from(&at.location), &place)])?;
                    }
                }
            }
            drop(window);
            self.hand_on(planner.take(), &zero, &out).await?;
        }
        self.stats.same_bytes.fetch_add(planner.same_bytes, Ordering::Relaxed);
        self.hand_on(planner.finish(), &zero, &out).await
    }

    async fn hand_on(
        &self,
        batch: Batch,
        zero: &ZeroBox,
        out: &mpsc::Sender<Planned>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let stopped =
            || Error::new(ErrorKind::Bug, "hand on zero ranges", "the write stage has ended");
        let bytes = batch.zero.iter().map(|z| z.end - z.start).sum();
        self.stats.zero_bytes.fetch_add(bytes, Ordering::Relaxed);
        match zero {
            _ if batch.zero.is_empty() => {}
            ZeroBox::Target(target) => target.send(batch.zero).await.map_err(|_| stopped())?,
            ZeroBox::Ordered(pieces) => {
                for range in batch.zero {
                    pieces.send(OpenedPiece::Zero(range)).map_err(|_| stopped())?;
                }
            }
            ZeroBox::Counted => {
                self.progress.zero_bytes.add(bytes);
                self.progress.done_bytes.add(bytes);
            }
        }
        let ordered = match &self.ordered {
            Some(memory) => Some(Arc::new(take(memory, batch.data_bytes).await?)),
            None => None,
        };
        let jobs = self.jobs(batch.wants);
        // if the reader has failed, its error is the one to report
        let _ = out.send(Planned { jobs, ordered }).await;
        Ok(())
    }

    /// Reads of chunks at known places.
    pub(crate) fn jobs(&self, wants: Vec<Want>) -> Vec<ReadJob> {
        jobs_with_headers(wants, self.shape, self.salvage)
    }

    /// Makes the reads of plans as they come.
    pub(crate) async fn read(&self, plans: mpsc::Receiver<Planned>) -> Result<()> {
        stream::unfold(plans, |mut plans| async { plans.recv().await.map(|p| (p, plans)) })
            .flat_map(|Planned { jobs, ordered }| {
                stream::iter(jobs.into_iter().map(move |job| (job, ordered.clone())))
            })
            .map(|(job, ordered)| self.fetch(job, ordered))
            .buffer_unordered(READS_MAX)
            .try_collect()
            .await
    }

    /// One range read; where the pack is gone, the reads that take its place.
    async fn fetch(&self, job: ReadJob, ordered: Option<Arc<OwnedSemaphorePermit>>) -> Result<()> {
        let mut left = vec![(job, 0)];
        while let Some((job, hops)) = left.pop() {
            let memory = Arc::new(take(&self.memory, u64::from(job.read.len)).await?);
            let place = self.gate.enter().await;
            match read_range(self.repo, &job.read).await {
                Ok(Fetched::Data(data)) => {
                    self.gate.ended(place, data.len() as u64);
                    self.stats.reads.fetch_add(1, Ordering::Relaxed);
                    self.stats.read_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                    self.progress.read_bytes.add(data.len() as u64);
                    let headers = self.salvage.headers();
                    headers.look(self.repo, PackKind::Chunks, &job.read, &data).await?;
                    for work in job.entries {
                        let stored = job.read.entry_bytes(&data, &work.addr)?;
                        let (memory, ordered) = (Arc::clone(&memory), ordered.clone());
                        self.send(Sealed { stored, work, memory, ordered })?;
                    }
                }
                Ok(Fetched::Gone) => {
                    drop((place, memory));
                    let moved = self.look_elsewhere(job, hops).await?;
                    left.extend(moved.into_iter().map(|job| (job, hops + 1)));
                }
                Err(e) if self.outcome.is_damage(&e) && job.entries.len() > 1 => {
                    drop(memory);
                    left.extend(one_by_one(job).map(|job| (job, hops)));
                }
                Err(e) => self.damaged(e, &job.entries)?,
            }
        }
        Ok(())
    }

    fn send(&self, sealed: Sealed) -> Result<()> {
        let stopped = |_| Error::new(ErrorKind::Bug, "hand on entries", "the open stage has ended");
        self.outbox.send(sealed).map_err(stopped)
    }

    /// Follows forwarding stubs. What no stub knows is missing.
    async fn look_elsewhere(&self, job: ReadJob, hops: u32) -> Result<Vec<ReadJob>> {
        let mut wants = Vec::new();
        for work in job.entries {
            let found = if hops < STUB_HOPS_MAX {
                let mut stubs = self.stubs.lock().await;
                stubs.resolve(self.repo, &job.read.pack, &work.wanted()).await
            } else {
                let context = format!("follow {} since it was rewritten", pack_key(&job.read.pack));
                Err(Error::new(ErrorKind::Corrupt, context, "the stubs do not come to an end"))
            };
            let relocated = found.and_then(|locations| {
                let wants: Vec<Want> = work
                    .places
                    .iter()
                    .zip(&locations)
                    .map(|(p, at)| Want::new(p.chunk, p.id, at))
                    .collect();
                wants.iter().try_for_each(|w| self.scope.check(w)).map(|()| wants)
            });
            match relocated {
                Ok(relocated) => {
                    self.stats.moved_entries.fetch_add(1, Ordering::Relaxed);
                    wants.extend(relocated);
                }
                Err(e) => self.damaged(e, std::slice::from_ref(&work))?,
            }
        }
        Ok(self.jobs(wants))
    }

    /// Names what cannot be restored; an error unless damage is only collected.
    fn damaged(&self, e: Error, works: &[EntryWork]) -> Result<()> {
        let Some(first) = works.iter().flat_map(|w| &w.places).min_by_key(|p| p.chunk) else {
            return Err(e);
        };
        let e = e.within(format!("read {}", self.scope.name(first.chunk)));
        self.outcome.settle(e, self.scope, works.iter().flat_map(EntryWork::damaged))
    }
}

/// A chunk at the place where it was found, if it was looked for.
pub(crate) fn instead(salvage: &Salvage, at: ChunkRef) -> ChunkRef {
    salvage.place(&at.id).map_or(at, |location| ChunkRef { location, ..at })
}

/// Merged reads. Those that begin close behind the header of a pack bring it with them.
pub(crate) fn jobs_with_headers(
    wants: Vec<Want>,
    shape: ReadShape,
    salvage: &Salvage,
) -> Vec<ReadJob> {
    let mut jobs = plan_jobs(wants, shape);
    let reads = jobs.iter_mut().map(|job| &mut job.read);
    salvage.headers().reach(reads, shape.gap_bytes, shape.read_bytes_max);
    jobs
}

/// Each entry of a read that failed as a read of its own, so that what is whole is not counted as
/// damaged.
fn one_by_one(job: ReadJob) -> impl Iterator<Item = ReadJob> {
    job.entries.into_iter().map(|work| {
        let EntryAddr { pack, offset, stored_len, .. } = work.addr;
        let read = RangeRead { pack, start: offset, len: stored_len, entries: vec![work.addr] };
        ReadJob { read, entries: vec![work] }
    })
}

/// Permits for `bytes`. The limits are such that no request exceeds what there is.
pub(crate) async fn take(memory: &Arc<Semaphore>, bytes: u64) -> Result<OwnedSemaphorePermit> {
    let bug =
        |why: String| Error::new(ErrorKind::Bug, format!("take memory for {bytes} bytes"), why);
    let permits = u32::try_from(bytes).map_err(|e| bug(e.to_string()))?;
    Arc::clone(memory).acquire_many_owned(permits).await.map_err(|e| bug(e.to_string()))
}
