//! Backs up one volume: decides what to read, runs the pipeline, commits.
//!
//! Order of things, which the commit protocol rests on (`docs/architecture.md`): look for a parent,
//! take a lease, confirm the parent, read the condemned lists, list the dedup segments, move the
//! data, put the segment, check the packs of others that were reused, create the manifest, give the
//! lease back. The stages of moving the data are files of this folder.

mod audit;
mod forecast;
mod ladder;
pub(crate) mod parent;
mod prepare;
pub(crate) mod resume;
mod same;
mod stdin;
mod summary;

pub use audit::{AuditAmount, Audited};
pub use forecast::{
    Forecast, LookedAt, ReadForecast, RequestForecast, Spread, TimeForecast, forecast,
};
pub(crate) use ladder::read_given;
pub use parent::ParentChoice;
pub use summary::{BackupOutcome, BackupSummary, Waits};

use crate::device::DirectIo;
use crate::ingest::checkpoint::Pace;
use crate::ingest::damage::check_undamaged;
use crate::ingest::pass::{Input, Pass, PassDone};
use crate::ingest::resume::{ASKED_WITHIN, FINISH_WITHIN, Kept, bound_of};
use crate::ingest::stop::Stop;
use crate::ingest::turns::Turns;
use crate::ingest::{CompressionChoice, Resumed, dedup};
use crate::io::EngineChoice;
use crate::run::quota::{Meter, Quota};
use crate::run::{Cancel, MemoryBudget, Phase, Progress};
use crate::scratch::ScratchDir;
use chunkstore::{
    BackupId, BackupStats, Checkpoint, Commit, DedupOptions, Error, ErrorKind, LeaseOptions,
    PackId, Repository, Result, ResumeBy, Retention, SnapshotInfo, VolumeMap, VolumeName, Writer,
    WriterOptions, check_frontier,
};
use mover_changes::{BackupPlan, ChangeRequest, ListOrigin};
use parent::Known;
use prepare::{Prepared, prepare};
use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// How often a run may have to store again what a collector took away before it gives up.
pub(crate) const ROUNDS_MAX: u32 = 5;
/// A writer without a heartbeat for this long counts as dead to a collector.
pub(crate) const LEASE_SECONDS: u32 = 600;
/// What is looked at of a volume that a list calls empty.
const HEAD_BYTES: u64 = 1 << 20;

/// What a backup is asked to do.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    /// Block device or image file.
    pub source: PathBuf,
    /// Joins the backups of one volume; by default the filesystem's UUID or the file's name.
    pub volume: Option<VolumeName>,
    /// Random by default; given, it makes a run repeatable.
    pub backup_id: Option<BackupId>,
    /// Sources of changed-block lists; without one the whole source is read, holes of an image file
    /// apart.
    pub changes: ChangeRequest,
    /// Which backup to build on.
    pub parent: ParentChoice,
    /// The snapshot that the list starts from.
    pub base_snapshot: Option<String>,
    /// The snapshot that the source shows.
    pub snapshot: SnapshotInfo,
    /// The user says that another disk, or a snapshot made anew, has the name on purpose.
    pub volume_changed: bool,
    /// Codec of new chunks.
    pub compression: CompressionChoice,
    /// Kept in the manifest.
    pub labels: BTreeMap<String, String>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Which engine reads the device.
    pub engine: EngineChoice,
    /// Whether the page cache is bypassed.
    pub direct: DirectIo,
    /// Where copies of dedup segments are kept.
    pub scratch: Option<PathBuf>,
    /// Seal threads; by default one a core.
    pub threads: Option<usize>,
    /// What is read again at most after a kill; by default as little as checkpoints that cost next
    /// to nothing allow.
    pub checkpoint_bytes: Option<u64>,
    /// Bytes a second that are read from the source at most.
    pub limit_read: Option<NonZeroU64>,
    /// What the run may send before it stops, to be gone on with.
    pub quota: Quota,
    /// How much of what a list does not name is looked at.
    pub audit: AuditAmount,
    /// Program and version, for manifest and lease.
    pub tool: String,
    /// Name of this machine or pod, for the lease.
    pub host: String,
}

/// Backs up `options.source` and commits it.
///
/// Blocks until the backup is committed, has failed, or was cancelled; all threads have ended then.
pub fn backup(
    rt: &tokio::runtime::Handle,
    repo: &Arc<Repository>,
    options: &BackupOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<BackupSummary> {
    let begun = Instant::now();
    progress.set_phase(Phase::Planning);
    let (prepared, known) = prepare(rt, repo, options, cancel, progress)?;
    let pages = (repo.params().page_fanout, prepared.bounds.pack_bytes);
    let meter = Meter::new(options.quota, repo.store(), pages, prepared.bounds.slot_bytes)?;
    let backup_id = options.backup_id.clone().unwrap_or_else(BackupId::random);
    let lease = LeaseOptions {
        lease_seconds: LEASE_SECONDS,
        tool: options.tool.clone(),
        host: options.host.clone(),
    };
    let resume_by = resume::resume_by(options, &prepared, &known.parents);
    let (volume, after) = (prepared.volume.clone(), known.recent.newest_seen());
    let wanted = WriterOptions { volume, backup_id, parents: known.parents.clone(), after, lease };
    let mut writer = rt.block_on(async {
        match resume_by {
            Some(by) => Box::pin(Writer::begin_or_resume(repo, wanted, by)).await,
            None => Box::pin(Writer::begin(repo, wanted)).await,
        }
    })?;
    if let Some(done) = parent::already_done(options, &writer) {
        let locked = rt.block_on(unless_stopped(cancel, writer.lock_committed(&done)));
        let mut summary = BackupSummary::already_done(done, prepared.warnings, begun.elapsed());
        summary.warnings.extend(rt.block_on(writer.finish()));
        summary.retention = retention(repo);
        return locked.map(|()| summary);
    }
    let beat = rt.spawn(writer.heartbeat());
    let mut run = Run {
        rt,
        repo,
        options,
        prepared,
        known,
        resume_by,
        writer,
        progress,
        cancel,
        meter,
        begun,
        resumed: None,
        audited: None,
        last_stats: None,
    };
    let result = run.rounds();
    let finish = run.writer.finish();
    let warnings = if cancel.cancelled() {
        // a store that does not answer must not use up the time that is left; the lease runs out by
        // itself
        let finish = async { tokio::time::timeout(FINISH_WITHIN, finish).await };
        rt.block_on(finish).unwrap_or_default()
    } else {
        rt.block_on(finish)
    };
    beat.abort();
    let mut summary = result.inspect_err(|_| {
        warnings.iter().for_each(|w| tracing::warn!("{w}"));
    })?;
    summary.warnings.extend(warnings);
    summary.retention = retention(repo);
    Ok(summary)
}

fn retention(repo: &Repository) -> Option<Retention> {
    repo.store().retain_policy().map(|policy| policy.retention)
}

/// What may be dropped at any time and may take long.
async fn unless_stopped<T>(cancel: &Cancel, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        () = cancel.wait() => Err(Cancel::error()),
    }
}

struct Run<'a> {
    rt: &'a tokio::runtime::Handle,
    repo: &'a Arc<Repository>,
    options: &'a BackupOptions,
    prepared: Prepared,
    known: Known,
    resume_by: Option<ResumeBy>,
    writer: Writer,
    progress: &'a Arc<Progress>,
    cancel: &'a Arc<Cancel>,
    meter: Option<Arc<Meter>>,
    begun: Instant,
    /// Where the last pass began, if not at the start.
    resumed: Option<Resumed>,
    /// What the audit found; `None` before it.
    audited: Option<Audited>,
    /// Of the pass that was committed, or is about to be.
    last_stats: Option<BackupStats>,
}

impl Run<'_> {
    /// Moves the data and commits; again where a collector took away what the run referred to.
    fn rounds(&mut self) -> Result<BackupSummary> {
        let mut missing: HashSet<PackId> = HashSet::new();
        for _ in 0..ROUNDS_MAX {
            let (plan, lost) = self.audited_plan()?;
            let from = self.resume_point(&missing, &lost)?;
            let done = match self.pass(&plan, from.as_ref(), &missing) {
                Err(e) if e.kind() == ErrorKind::Fenced => {
                    let anew = unless_stopped(self.cancel, self.writer.begin_anew());
                    let reason = self.rt.block_on(anew)?;
                    self.again(reason);
                    continue;
                }
                done => done.map_err(|e| self.ended(e, &plan))?,
            };
            self.progress.set_phase(Phase::Finishing);
            self.prepared.note_writes();
            let manifest = self.manifest(&plan, &done);
            same::check_content(self.options, &manifest, &self.known)?;
            self.last_stats = Some(manifest.stats);
            let reused: Vec<PackId> = done.assembled.reused.iter().copied().collect();
            let own = done.own_packs.clone();
            let lock = unless_stopped(self.cancel, self.writer.lock(&manifest, &own, &reused));
            self.rt.block_on(lock)?;
            match self.rt.block_on(self.writer.commit(manifest, &own, &reused))? {
                Commit::Done(m) => return Ok(self.summary(*m, BackupOutcome::Committed, &done)),
                Commit::AlreadyDone(m) => {
                    return Ok(self.summary(*m, BackupOutcome::AlreadyCommitted, &done));
                }
                Commit::StoreAgain { missing: gone } => {
                    self.again(format!("{} reused packs were collected meanwhile", gone.len()));
                    missing.extend(gone);
                }
                Commit::Restart { reason } => self.again(reason),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("commit the backup of {}", self.prepared.volume),
            format!("after {ROUNDS_MAX} rounds, what it refers to is still being collected"),
        )
        .hint("run it again when the garbage collection has ended"))
    }

    fn again(&mut self, why: String) {
        tracing::info!("storing again: {why}");
        self.prepared.warnings.push(format!("stored again: {why}"));
    }

    /// Where the next pass may start: what the lease says, if it fits the volume.
    fn resume_point(
        &mut self,
        missing: &HashSet<PackId>,
        lost: &[Range<u64>],
    ) -> Result<Option<Checkpoint>> {
        if self.resume_by.is_none() {
            return Ok(None);
        }
        let from = self.rt.block_on(self.writer.resume_point(missing))?;
        let Some(from) = from else { return Ok(None) };
        let fanout = self.repo.params().page_fanout;
        let geometry = self.prepared.geometry;
        let fits = check_frontier(fanout, geometry, from.next_chunk, &from.frontier)
            .and_then(|()| check_undamaged(&from, lost, self.writer.damaged()));
        match fits {
            Ok(()) => {
                let began = self.rt.block_on(self.writer.began(&from));
                let late = resume::overtaken(&self.known, &self.writer, began);
                let late = late.filter(|w| !self.prepared.warnings.contains(w));
                self.prepared.warnings.extend(late);
                Ok(Some(from))
            }
            Err(e) => {
                self.prepared.warnings.push(format!("the checkpoint is of no use: {e}"));
                Ok(None)
            }
        }
    }

    /// Says what is left of a run that ended early, and what to do.
    fn ended(&self, e: Error, plan: &BackupPlan) -> Error {
        let kept = self.resume_by.map(|_| {
            // within the runtime: it has the timer
            let asked =
                async { tokio::time::timeout(ASKED_WITHIN, self.writer.checkpoint()).await };
            let checkpoint = self.rt.block_on(asked).ok().flatten();
            let done = checkpoint.map_or(Resumed { percent: 0, bytes: 0 }, |c| {
                let left = plan.behind(self.prepared.geometry, c.next_chunk);
                Resumed::of(plan.read_bytes, left.read_bytes)
            });
            let further = done.bytes > self.resumed.map_or(0, |before| before.bytes);
            Kept { percent: done.percent, further }
        });
        let bound = bound_of(&e, self.cancel, self.meter.as_deref());
        resume::explain(e, self.writer.backup_id(), kept, bound, self.meter.as_deref())
    }

    /// What to do, and the chunks of the parent that cannot be inherited as they are damaged.
    fn plan(&self) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let (p, parent) = (&self.prepared, self.writer.parent());
        p.check_parent(self.options, parent.is_some())?;
        p.plan(self.rt, self.repo, parent, self.writer.damaged())
    }

    /// The plan, once the list has stood the audit; otherwise that of the whole volume.
    fn audited_plan(&mut self) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let (plan, lost) = self.plan()?;
        if self.audited.is_some() || self.prepared.changes.is_none() {
            return Ok((plan, lost));
        }
        let origin = self.prepared.changes.as_ref().map(|list| list.origin);
        let audit = audit::Audit {
            rt: self.rt,
            repo: self.repo,
            source: &self.prepared.source,
            geometry: self.prepared.geometry,
            cancel: self.cancel,
            turns: Turns::new(self.options.limit_read),
            says_zero: origin != Some(ListOrigin::FileSystem),
        };
        let parent = self.writer.parent().filter(|_| plan.inherit);
        let parent = parent.map(|m| VolumeMap::of(self.repo, m)).transpose()?;
        let seed = u64::from_le_bytes(chunkstore::random_bytes());
        let holes = self.prepared.holes()?;
        let audited = audit.run(&plan, holes.as_ref(), parent, self.options.audit, seed)?;
        self.audited = Some(audited);
        let Some(offset) = audited.false_at else { return Ok((plan, lost)) };
        // what a run that believed the list has left must not be built upon
        self.rt.block_on(self.writer.forget_checkpoint())?;
        if let Some(kind) = self.options.changes.require {
            return Err(audit::refused(&self.prepared.source, kind, offset));
        }
        self.prepared.degraded.push(audit::verdict(&audited, offset));
        self.prepared.changes = None;
        // nor may a run that believes it build upon what this one leaves
        self.resume_by = None;
        self.plan()
    }

    fn pass(
        &mut self,
        plan: &BackupPlan,
        from: Option<&Checkpoint>,
        missing: &HashSet<PackId>,
    ) -> Result<PassDone> {
        let p = &self.prepared;
        let left = from.map(|c| plan.behind(p.geometry, c.next_chunk));
        let left = left.as_ref().unwrap_or(plan);
        self.resumed = from.map(|_| Resumed::of(plan.read_bytes, left.read_bytes));
        self.progress.total_bytes.set(plan.read_bytes);
        self.progress.done_bytes.set(plan.read_bytes - left.read_bytes);
        // what needs no reading is known now; a repeated pass starts anew
        self.progress.zero_bytes.set(plan.zero_bytes);
        self.progress.unchanged_bytes.set(plan.inherited_bytes);
        for counter in [&self.progress.reused_bytes, &self.progress.new_bytes] {
            counter.set(0);
        }
        self.progress.set_phase(Phase::Moving);
        let mut packs = self.writer.condemned().clone();
        packs.extend(missing);
        let scratch = ScratchDir::for_run(self.options.scratch.as_deref(), self.repo.id())?;
        let segments = self.rt.block_on(self.writer.list_segments())?;
        let options = DedupOptions {
            memory_bytes: p.bounds.dedup_bytes,
            worth_bytes: dedup::worth_bytes(plan.read_bytes),
        };
        let unusable = dedup::Unusable { packs, entries: self.writer.damaged().clone() };
        let stop = Arc::new(Stop::new(self.cancel, self.meter.clone()));
        let _watch = stop.fail_when(self.rt, self.writer.taken_for_dead());
        let dedup =
            dedup::Dedup::new(self.repo, self.rt, &stop, segments, options, scratch, unusable);
        let checkpointer =
            self.resume_by.map(|by| self.rt.block_on(self.writer.checkpoints(by.plan)));
        let sparing = || Pace::sparing(plan.read_bytes);
        let parent = self.writer.parent().map(|m| VolumeMap::of(self.repo, m)).transpose()?;
        Pass {
            repo: self.repo,
            runtime: self.rt,
            input: Input::Device { source: &p.source, engine: self.options.engine },
            geometry: p.geometry,
            plan: left,
            from,
            checkpointer,
            pace: self.options.checkpoint_bytes.map_or_else(sparing, Pace::of),
            parent,
            dedup: &dedup,
            bounds: &p.bounds,
            compression: self.options.compression,
            limit_read: self.options.limit_read,
            progress: self.progress,
            stop: &stop,
        }
        .run()
    }
}
