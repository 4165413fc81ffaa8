//! Live restore: a volume that is served, read and written, while it is written to its target.
//!
//! | file | |
//! |---|---|
//! | `opened` | target and journal, hold and lease |
//! | `fetch` | all that is absent, while clients are served or not |
//! | `journal` | which backup, target and hold, and how far |
//! | `source` | the backup; a store that is away is waited for |
//! | `served` | the volume as an export |
//! | `summary` | what it did |
//!
//! The volume is a copy-on-write one ([`live`](crate::live)) over the target itself. What clients
//! read is fetched first, then what the caller names, then the rest. Killed at any point and begun
//! again, the target is the backup plus what clients have written and flushed.
//!
//! **Between runs** a hold keeps the backup from being forgotten and its data from being collected
//! ([`Hold`](chunkstore::Hold)); its id is in the journal, which is there before it. In a run there
//! is a lease as well. Both end when all is on the target. From then on nothing of the repository
//! is needed; the run goes on serving until it is told to end.
//!
//! **A store that is away is not damage.** What needs it waits; all else goes on. Damaged bytes fail
//! for whoever reads them, until somebody has written the whole chunk.
//!
//! Cannot deadlock: this thread waits for the server, the fetching and the request to stop; they
//! wait for the target and the store.

mod fetch;
mod journal;
mod opened;
mod served;
mod source;
mod summary;

pub use journal::LiveJournal;
pub use summary::LiveSummary;

use crate::live::{CowVolume, DeviceTarget, FLUSHED_EVERY, JournalFile};
use crate::ops::below::ViewSource;
use crate::ops::trace::ReadTrace;
use crate::reading::view::{BackupView, ViewLimits, ViewNeeds, ViewPool, ViewUse};
use crate::run::threads::cores;
use crate::run::{Cancel, MemoryBudget, Phase, Progress, RunContext};
use crate::sizes::show_bytes;
use crate::volume::device::{DirectIo, Target};
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Repository, Result};
use mover_nbd::BASE_ALLOCATION;
use mover_nbd::server::{Access, Door, ExportTerms, NbdServer, ServedExport, ServerMemory};
use opened::{Held, Opened};
use served::LiveExport;
use source::PatientSource;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

/// How often the figures for whoever looks at them are brought up to date.
const FIGURES_EVERY: Duration = Duration::from_millis(500);

type LiveVolume = CowVolume<PatientSource, DeviceTarget, JournalFile>;

/// What to restore to, and how.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// A block device or a file, which is made if it is missing.
    pub target: PathBuf,
    /// Where the journal is, or is to be made.
    pub journal: PathBuf,
    /// Overwrite what is recognised on a target that has no journal yet.
    pub force: bool,
    /// The target is that of the journal, although nothing says so.
    pub same_target: bool,
    /// The volume is as large as the target; zeros are behind the end of the backup's.
    pub whole_target: bool,
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
    /// Files that the target must not share bytes with.
    pub source_paths_to_refuse: Vec<PathBuf>,
    /// The lease, and who has the hold. Without it nothing is written to the repository, and nobody
    /// may forget the backup meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Opener threads; by default one a core.
    pub threads: Option<usize>,
    /// How long a read waits for a store that is away; without it, as long as it takes.
    pub store_timeout: Option<Duration>,
    /// Bytes to fetch before the rest, in this order.
    pub first: Vec<Range<u64>>,
    /// Records what clients read.
    pub trace: Option<Arc<ReadTrace>>,
    /// Clients are served no longer when this is notified; what is absent is fetched all the same.
    pub enough: Arc<Notify>,
}

/// Restores a backup to a target while clients that come to the doors read and write it. `below` is
/// the backup; a journal of which all is done needs none. `ready` is called once clients are
/// answered, if there are doors.
///
/// Ends when all is on the target and nobody is, or is to be, served any more; at a request to stop,
/// which is an error unless all is there; and with an error of the target.
pub fn live_restore(
    rt: &Handle,
    repo: &Arc<Repository>,
    (below, journal): (Option<&Manifest>, Option<LiveJournal>),
    doors: &[Door],
    options: &LiveOptions,
    (progress, cancel): (&Arc<Progress>, &Arc<Cancel>),
    ready: impl FnOnce() -> Result<()>,
) -> Result<LiveSummary> {
    let begun = Instant::now();
    progress.set_phase(Phase::Planning);
    let run = RunContext { rt, cancel, progress };
    let threads = options.threads.unwrap_or_else(cores);
    // the target is one
    let needs = ViewNeeds { maps: 1, use_of: ViewUse::Live, threads, disk_cache: false };
    let limits = ViewLimits::plan(options.memory, repo.params(), needs)?;
    let resumed = journal.is_some();
    let pool = ViewPool::start(rt, repo, limits.clone(), None)?;
    let opened = Opened::open(repo, below, journal, options)?;
    let mut held = Held::default();
    let wanted = below.filter(|_| !opened.journal.is_complete());
    let opening = wanted.map(|manifest| BackupView::begin(&pool, manifest)).transpose();
    let prepared = opening.and_then(|opening| {
        held.take(run, repo, &opened.journal, below, options)?;
        let view = opening.map(|opening| run.wait(opening.opened()));
        view.transpose().map_err(|e| held.explain(run, e))
    });
    let view = match prepared {
        Ok(prepared) => prepared,
        Err(e) => {
            // nothing was written yet
            let left = if resumed { Vec::new() } else { opened.remove() };
            for what in left.into_iter().chain(held.end(run, repo, !resumed)) {
                tracing::warn!("{what}");
            }
            return Err(e);
        }
    };
    let restore = Restore::start(run, options, (limits, pool, view), opened);
    let mut summary = restore.summary(resumed);
    let ended = restore.go(repo, doors, ready, &mut held, &mut summary.warnings);
    progress.set_phase(Phase::Finishing);
    if let Some(server) = restore.server.get() {
        // else somebody is told that a write failed, and it is only that the volume is closed
        rt.block_on(server.gone());
    }
    let closed = rt.block_on(restore.cow.close());
    restore.end(&mut summary);
    let warnings = held.end(run, repo, summary.complete);
    let done = ended.and_then(|()| closed.map_err(|e| restore.not_closed(e)));
    let done = done.and_then(|()| restore.check_whole(&summary));
    if let Err(e) = done {
        warnings.iter().for_each(|what| tracing::warn!("{what}"));
        return Err(held.explain(run, e));
    }
    summary.warnings.extend(warnings);
    summary.elapsed_seconds = begun.elapsed().as_secs_f64();
    summary.requests = repo.store().counts();
    Ok(summary)
}

/// A live restore under way.
struct Restore<'a> {
    run: RunContext<'a>,
    options: &'a LiveOptions,
    limits: ViewLimits,
    pool: ViewPool,
    view: Option<Arc<BackupView>>,
    target: Arc<Target>,
    cow: Arc<LiveVolume>,
    /// As a person reads it.
    backup: String,
    names: (String, String),
    first_damage: OnceLock<String>,
    landed_bytes: AtomicU64,
    server: OnceLock<Arc<NbdServer<LiveExport>>>,
    is_served: watch::Sender<bool>,
}

/// Why a wait ended.
enum Step {
    /// All is on the target, but for what is damaged.
    Fetched(io::Result<()>),
    Enough,
    Stop,
}

type Serving<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl<'a> Restore<'a> {
    fn start(
        run: RunContext<'a>,
        options: &'a LiveOptions,
        (limits, pool, view): (ViewLimits, ViewPool, Option<Arc<BackupView>>),
        opened: Opened,
    ) -> Self {
        let Opened { target, journal } = opened;
        // what waits there to be written must not come after what is written now
        if let Some(why) = target.empty_caches_above() {
            tracing::warn!("what is above {} may hold old bytes: {why}", target.path().display());
        }
        let source = PatientSource {
            view: view.clone().map(ViewSource),
            timeout: options.store_timeout,
            cancel: Arc::clone(run.cancel),
            progress: Arc::clone(run.progress),
            waiting: AtomicU64::new(0),
        };
        let onto = DeviceTarget::new(Arc::clone(&target));
        let name = journal.backup();
        let names = (name.volume.to_string(), name.backup_id.to_string());
        let cow = CowVolume::new(run.rt, source, onto, journal.into_parts());
        Self {
            run,
            options,
            limits,
            pool,
            view,
            target,
            cow,
            backup: format!("{}@{}", names.0, names.1),
            names,
            first_damage: OnceLock::new(),
            landed_bytes: AtomicU64::new(0),
            server: OnceLock::new(),
            is_served: watch::Sender::new(false),
        }
    }

    fn summary(&self, resumed: bool) -> LiveSummary {
        let (volume, backup_id) = self.names.clone();
        LiveSummary {
            backup_id,
            volume,
            volume_bytes: self.cow.size_bytes(),
            target: self.target.path().display().to_string(),
            target_bytes: self.target.device_bytes(),
            journal: self.options.journal.display().to_string(),
            resumed,
            ..LiveSummary::default()
        }
    }

    /// Serves and fetches, until both have ended.
    fn go(
        &self,
        repo: &Arc<Repository>,
        doors: &[Door],
        ready: impl FnOnce() -> Result<()>,
        held: &mut Held,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let Self { run, cow, .. } = self;
        run.progress.total_bytes.set(cow.size_bytes());
        run.progress.set_phase(Phase::Moving);
        self.publish();
        let server =
            (!doors.is_empty()).then(|| Arc::clone(self.server.get_or_init(|| self.server())));
        let mut serving: Option<Serving<'_>> =
            server.as_ref().map(|server| -> Serving<'_> { Box::pin(server.run(doors)) });
        if serving.is_some() {
            run.progress.exports.set(1);
            ready()?;
        }
        self.is_served.send_replace(serving.is_some());
        // dropped with what it flushes for
        let mut flushing = JoinSet::new();
        if let Some(server) = &server {
            let (cow, served) = (Arc::clone(cow), Arc::clone(server.counts()));
            let changes = move || served.changes.load(Ordering::Relaxed);
            flushing.spawn_on(cow.keep_flushed(FLUSHED_EVERY, changes), run.rt);
        }
        let mut fetching = (!self.is_whole()).then(|| Box::pin(self.fetch()));
        while fetching.is_some() || serving.is_some() {
            let step = run.rt.block_on(self.step(&mut serving, &mut fetching));
            match step {
                Step::Fetched(done) => {
                    fetching = None;
                    done.map_err(|e| self.failed(e))?;
                    if self.is_whole() {
                        // nobody needs the backup any more
                        warnings.extend(held.end(*run, repo, true));
                        tracing::info!(
                            "all of {} is on {}",
                            self.backup,
                            self.target.path().display()
                        );
                    }
                }
                Step::Enough => {
                    serving = None;
                    self.is_served.send_replace(false);
                }
                Step::Stop => return Ok(()),
            }
        }
        Ok(())
    }

    async fn step(
        &self,
        serving: &mut Option<Serving<'_>>,
        fetching: &mut Option<Pin<Box<impl Future<Output = io::Result<()>>>>>,
    ) -> Step {
        let is_served = serving.is_some();
        let served = async {
            match serving {
                Some(serving) => serving.await,
                None => std::future::pending().await,
            }
        };
        let fetched = async {
            match fetching {
                Some(fetching) => fetching.await,
                None => std::future::pending().await,
            }
        };
        let figures = async {
            let mut every = tokio::time::interval(FIGURES_EVERY);
            loop {
                every.tick().await;
                self.publish();
                // once nothing can be written any more, clients are better off without it
                if let Some(why) = self.cow.failure() {
                    break io::Error::other(why.to_owned());
                }
            }
        };
        tokio::select! {
            biased;
            () = self.run.cancel.requested() => Step::Stop,
            () = self.options.enough.notified(), if is_served => Step::Enough,
            fetched = fetched => Step::Fetched(fetched),
            () = served => Step::Enough,
            failed = figures => Step::Fetched(Err(failed)),
        }
    }

    fn is_whole(&self) -> bool {
        let figures = self.cow.figures();
        figures.durable == figures.chunks
    }

    fn server(&self) -> Arc<NbdServer<LiveExport>> {
        let (volume, _) = &self.names;
        let chunk_bytes = self.cow.chunk_bytes();
        let terms = ExportTerms {
            names: vec![self.backup.clone(), volume.clone(), String::new()],
            description: format!("live restore of {}", self.backup),
            size_bytes: self.cow.size_bytes(),
            access: Access::Writable,
            preferred_bytes: u32::try_from(chunk_bytes).unwrap_or(u32::MAX),
            contexts: vec![BASE_ALLOCATION.to_owned()],
        };
        let merges = usize::try_from(self.limits.merge_bytes() / chunk_bytes).unwrap_or(usize::MAX);
        let volume = LiveExport {
            cow: Arc::clone(&self.cow),
            view: self.view.clone(),
            trace: self.options.trace.clone(),
            merges: Arc::new(Semaphore::new(merges.clamp(1, Semaphore::MAX_PERMITS))),
        };
        let memory = ServerMemory {
            answer_bytes: self.limits.reply_bytes(),
            payload_bytes: self.limits.payload_bytes(),
        };
        Arc::new(NbdServer::new(vec![ServedExport { terms, volume }], memory, None))
    }

    /// For the metrics and the screen.
    fn publish(&self) {
        let progress = self.run.progress;
        let read = self.pool.counts();
        progress.done_bytes.set(self.done_bytes());
        progress.read_bytes.set(read.read_bytes);
        progress.cache_hits.set(read.hits);
        progress.cache_misses.set(read.misses);
        progress.written_bytes.set(self.landed_bytes.load(Ordering::Relaxed));
        let Some(server) = self.server.get() else { return };
        let served = server.counts();
        progress.clients.set(served.connected.load(Ordering::Relaxed) as u64);
        progress.served_bytes.set(served.sent_bytes.load(Ordering::Relaxed));
        progress.served_reads.set(served.reads.load(Ordering::Relaxed));
        progress.served_micros.set(served.read_micros.load(Ordering::Relaxed));
        progress.served_errors.set(served.errors.load(Ordering::Relaxed));
        progress.served_changes.set(served.changes.load(Ordering::Relaxed));
        progress.served_written_bytes.set(served.written_bytes.load(Ordering::Relaxed));
        progress.served_flushes.set(served.flushes.load(Ordering::Relaxed));
    }

    fn done_bytes(&self) -> u64 {
        let done = self.cow.figures().done.saturating_mul(self.cow.chunk_bytes());
        done.min(self.cow.size_bytes())
    }

    fn end(&self, summary: &mut LiveSummary) {
        self.publish();
        summary.complete = self.is_whole();
        summary.done_bytes = self.done_bytes();
        summary.landed_bytes = self.landed_bytes.load(Ordering::Relaxed);
        if let Some(server) = self.server.get() {
            summary.add_served(server.counts());
        }
        summary.add_read(&self.pool, &self.limits);
        if let Some(first) = self.first_damage.get() {
            let all = self.cow.stretches(0..self.cow.size_bytes()).into_iter();
            let absent: Vec<Range<u64>> =
                all.filter(|(_, done)| !done).map(|(range, _)| range).collect();
            summary.add_damage(&absent, first);
        }
    }

    /// Whoever stops a restore before its end is told so.
    fn check_whole(&self, summary: &LiveSummary) -> Result<()> {
        if summary.complete || summary.damaged.is_some() {
            return Ok(());
        }
        let (done, all) = (show_bytes(summary.done_bytes), show_bytes(summary.volume_bytes));
        Err(Error::new(
            ErrorKind::Cancelled,
            self.context(),
            format!("it was stopped; {done} of {all} are there"),
        )
        .hint("run the same command again: it goes on, and what clients have flushed stays"))
    }

    fn not_closed(&self, e: io::Error) -> Error {
        let context = format!("{}: make what clients wrote durable", self.context());
        Error::caused(kind_of(&e), context, e).hint("what they had not flushed may be lost")
    }

    fn failed(&self, e: io::Error) -> Error {
        Error::caused(kind_of(&e), self.context(), e)
            .hint("see what the kernel says of the target, then run the same command again")
    }

    fn context(&self) -> String {
        format!("restore {} to {} while it is served", self.backup, self.target.path().display())
    }
}

fn kind_of(e: &io::Error) -> ErrorKind {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    }
}
