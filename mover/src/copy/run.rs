//! One copy, from its leases to its manifest.
//!
//! 1. Reader's leases on the original and on the original of what the copy builds on; each is
//!    confirmed after its lease is there.
//! 2. The writer's steps in the target, as for a backup: lease, parent, condemned lists, data,
//!    commit.
//! 3. All leases go. The source's may go at any time after the commit: the copy refers to nothing
//!    there.
//!
//! A run that is killed leaves its leases: the writer's with its checkpoint, which the next run
//! goes on from; the readers' run out. Nothing of an original changes, so the next run always makes
//! the same, and a checkpoint always fits it.

use super::ends::Ends;
use super::list;
use super::memory::divide;
use super::plan::{Base, Standing, standing};
use super::read::SourceBackup;
use super::summary::{CopyOutcome, CopySummary};
use crate::backup::ROUNDS_MAX;
use crate::ingest::bounds::ranges_max;
use crate::ingest::checkpoint::Pace;
use crate::ingest::pass::{Input, Pass, PassDone};
use crate::ingest::resume::{ASKED_WITHIN, Digest, at_bound, bound_of};
use crate::ingest::stop::Stop;
use crate::ingest::{Bounds, CompressionChoice, Resumed, damage, dedup};
use crate::restore::{limits::Limits, plan::PlanScope, summary::get};
use crate::run::quota::{Meter, Quota};
use crate::run::threads::cores;
use crate::run::{Cancel, MemoryBudget, Phase, Progress};
use crate::scratch::ScratchDir;
use chrono::Utc;
use chunkstore::{
    Checkpoint, Commit, CopiedFrom, DedupOptions, Error, ErrorKind, Geometry, Manifest, NewestSeen,
    PackId, ReadLimits, Repository, Result, ResumeBy, VolumeMap, Writer, WriterOptions,
    check_frontier,
};
use mover_changes::{BackupPlan, ChangedBlocks, Changes, PlanInput, plan_backup};
use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use tokio::runtime::Handle;

/// How copies are made.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Codec of new chunks.
    pub compression: CompressionChoice,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Where copies of the target's dedup segments are kept.
    pub scratch: Option<PathBuf>,
    /// Threads that open, and as many that seal; by default one a core.
    pub threads: Option<usize>,
    /// What is read again at most after a kill; by default as little as costs next to nothing.
    pub checkpoint_bytes: Option<u64>,
    /// What this copy may send before it stops, to be gone on with.
    pub quota: Quota,
    /// Take leases in the source. Without them nobody may forget there what is copied.
    pub source_lease: bool,
    /// Program and version, for the leases.
    pub tool: String,
    /// Name of this machine or pod, for the leases.
    pub host: String,
}

/// Copies `backup` of `from` to `to`, on top of `base` if there is one. Blocks until it is
/// committed, has failed, or was cancelled; all threads have ended then.
///
/// Errors: `Forgotten` if a backup of that name was forgotten in `to`, or this one in `from`;
/// `AlreadyExists` if there is another of that name.
pub fn copy(
    rt: &Handle,
    (from, to): (&Arc<Repository>, &Arc<Repository>),
    backup: &Manifest,
    base: Option<Base>,
    options: &CopyOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<CopySummary> {
    let begun = Instant::now();
    progress.set_phase(Phase::Planning);
    let threads = options.threads.unwrap_or_else(cores);
    let (memory, choice) = (options.memory, options.compression);
    let (limits, mut bounds) = divide(memory, from.params(), to.params(), threads, choice)?;
    if let Some(rate) = to.store().limits().upload {
        bounds.pace(rate);
    }
    tracing::info!("{}", bounds.line());
    let at = Ends { rt, from, to, cancel };
    let reader = at.read(backup, options)?;
    let done = at.with_base(base, options).and_then(|(base, base_reader)| {
        let done = Run::begin(at, backup, base, options, limits, bounds, begun, progress)
            .and_then(Run::complete);
        at.finish(base_reader);
        done
    });
    let done = done.map_err(|e| at.explain(&reader, e));
    at.finish(Some(reader));
    done
}

/// One copy under its leases.
struct Run<'a> {
    at: Ends<'a>,
    backup: &'a Manifest,
    base: Option<Base>,
    options: &'a CopyOptions,
    bounds: Bounds,
    meter: Option<Arc<Meter>>,
    origin: SourceBackup,
    /// The volume as the target cuts it.
    geometry: Geometry,
    resume_by: ResumeBy,
    writer: Writer,
    progress: &'a Arc<Progress>,
    begun: Instant,
    /// What has to be gone through on top of which parent.
    list: Option<(bool, ChangedBlocks)>,
    resumed: Option<Resumed>,
    warnings: Vec<String>,
}

impl<'a> Run<'a> {
    #[allow(clippy::too_many_arguments)] // each once, from one place
    fn begin(
        at: Ends<'a>,
        backup: &'a Manifest,
        base: Option<Base>,
        options: &'a CopyOptions,
        limits: Limits,
        bounds: Bounds,
        begun: Instant,
        progress: &'a Arc<Progress>,
    ) -> Result<Self> {
        let origin = origin(at.from, backup, limits)?;
        let geometry = Geometry::new(backup.size_bytes, at.to.params().chunk)?;
        let parents = match &base {
            Some(base) => vec![base.copy.clone()],
            // there may be chunks to compare with
            None => at.wait(at.to.latest_backup_of(&backup.volume))?.into_iter().collect(),
        };
        let plan = digest(at.from, backup, base.as_ref());
        let resume_by = ResumeBy { plan, any_id: false };
        let wanted = WriterOptions {
            volume: backup.volume.clone(),
            backup_id: backup.backup_id.clone(),
            parents,
            after: NewestSeen::default(), // it has the place of its original
            lease: Ends::lease(options),
        };
        let writer = at.wait(Writer::begin_or_resume(at.to, wanted, resume_by))?;
        let pages = (at.to.params().page_fanout, bounds.pack_bytes);
        let meter = Meter::new(options.quota, at.to.store(), pages, bounds.slot_bytes)?;
        Ok(Self {
            at,
            backup,
            base,
            options,
            bounds,
            meter,
            origin,
            geometry,
            resume_by,
            writer,
            progress,
            begun,
            list: None,
            resumed: None,
            warnings: Vec::new(),
        })
    }

    fn complete(mut self) -> Result<CopySummary> {
        let beat = self.at.rt.spawn(self.writer.heartbeat());
        let done = self.rounds();
        let warnings = self.at.give_back(self.writer.finish());
        beat.abort();
        let mut summary = done.inspect_err(|_| {
            warnings.iter().for_each(|w| tracing::warn!("{w}"));
        })?;
        summary.warnings.extend(warnings);
        Ok(summary)
    }

    /// Moves the data and commits; again where a collector took away what the run referred to.
    fn rounds(&mut self) -> Result<CopySummary> {
        if let Some(there) = self.writer.existing().cloned() {
            self.at.wait(self.writer.lock_committed(&there))?;
            return self.already(there);
        }
        let mut missing: HashSet<PackId> = HashSet::new();
        for _ in 0..ROUNDS_MAX {
            let (plan, lost) = self.plan()?;
            let from = self.resume_point(&missing, &lost)?;
            let done = match self.pass(&plan, from.as_ref(), &missing) {
                Err(e) if e.kind() == ErrorKind::Fenced => {
                    let reason = self.at.wait(self.writer.begin_anew())?;
                    self.again(reason);
                    continue;
                }
                done => done.map_err(|e| self.ended(e, &plan))?,
            };
            self.progress.set_phase(Phase::Finishing);
            let manifest = self.manifest(&done);
            let reused: Vec<PackId> = done.assembled.reused.iter().copied().collect();
            let own = &done.own_packs;
            self.at.wait(self.writer.lock(&manifest, own, &reused))?;
            match self.at.rt.block_on(self.writer.commit(manifest, own, &reused))? {
                Commit::Done(m) => return Ok(self.summary(*m, CopyOutcome::Copied, &plan, &done)),
                Commit::AlreadyDone(m) => {
                    return Ok(self.summary(*m, CopyOutcome::AlreadyThere, &plan, &done));
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
            format!("copy backup {}", self.backup.name()),
            format!("after {ROUNDS_MAX} rounds, what it refers to is still being collected"),
        )
        .hint("run it again when the garbage collection of the target has ended"))
    }

    /// Somebody committed under this name since the target was listed.
    fn already(&self, there: Manifest) -> Result<CopySummary> {
        let (from, to) = (*self.at.from.id(), *self.at.to.id());
        if !matches!(standing(from, self.backup, to, [&there]), Standing::There(_)) {
            return Err(taken(self.at.to, self.backup));
        }
        let nothing = BackupPlan::default();
        Ok(self.summary_of(there, CopyOutcome::AlreadyThere, &nothing))
    }

    fn again(&mut self, why: String) {
        tracing::info!("storing again: {why}");
        self.warnings.push(format!("stored again: {why}"));
    }

    /// What has to be gone through, as far as the parent that was confirmed allows to leave out the
    /// rest; and the chunks of the parent that cannot be inherited as they are damaged.
    fn plan(&mut self) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let parent = self.writer.parent().cloned();
        let base = self.base.as_ref().filter(|b| parent.as_ref() == Some(&b.copy));
        let wanted = base.is_some();
        if self.list.as_ref().is_none_or(|(with_base, _)| *with_base != wanted) {
            let from = self.at.from;
            let list = match base {
                Some(base) => self.at.wait(list::delta(from, &base.original, self.backup)),
                None => {
                    let most = ranges_max(self.options.memory);
                    self.at.wait(list::allocated(from, self.backup, most))
                }
            };
            self.list = Some((wanted, list?));
        }
        let Some((_, list)) = &self.list else {
            return Err(Error::new(ErrorKind::Bug, "plan a copy", "there is no list"));
        };
        let chunk = self.geometry.chunk();
        let parent = parent.map(|m| Geometry::new(m.size_bytes, chunk)).transpose()?;
        let (geometry, changes) = (self.geometry, Changes::List(list));
        let plan = plan_backup(&PlanInput { geometry, parent, changes, holes: None })?;
        if !plan.inherit {
            return Ok((plan, Vec::new()));
        }
        let limits = ReadLimits::within(self.bounds.map_read_bytes);
        let lost = damage::damaged_of_parent(
            self.at.rt,
            self.at.to,
            self.writer.parent(),
            self.writer.damaged(),
            limits,
        )?;
        Ok((plan.read_again(geometry, &lost), lost))
    }

    /// Where the next pass may start: what the lease says, if it fits the volume.
    fn resume_point(
        &mut self,
        missing: &HashSet<PackId>,
        lost: &[Range<u64>],
    ) -> Result<Option<Checkpoint>> {
        let from = self.at.wait(self.writer.resume_point(missing))?;
        let Some(from) = from else { return Ok(None) };
        let fanout = self.at.to.params().page_fanout;
        let fits = check_frontier(fanout, self.geometry, from.next_chunk, &from.frontier)
            .and_then(|()| damage::check_undamaged(&from, lost, self.writer.damaged()));
        match fits {
            Ok(()) => Ok(Some(from)),
            Err(e) => {
                self.warnings.push(format!("the checkpoint is of no use: {e}"));
                Ok(None)
            }
        }
    }

    fn pass(
        &mut self,
        plan: &BackupPlan,
        from: Option<&Checkpoint>,
        missing: &HashSet<PackId>,
    ) -> Result<PassDone> {
        let left = from.map(|c| plan.behind(self.geometry, c.next_chunk));
        let left = left.as_ref().unwrap_or(plan);
        self.resumed = from.map(|_| Resumed::of(plan.read_bytes, left.read_bytes));
        let p = self.progress;
        p.total_bytes.set(plan.read_bytes);
        p.done_bytes.set(plan.read_bytes - left.read_bytes);
        p.zero_bytes.set(plan.zero_bytes);
        p.unchanged_bytes.set(plan.inherited_bytes);
        for counter in [&p.reused_bytes, &p.new_bytes] {
            counter.set(0);
        }
        p.set_phase(Phase::Moving);
        let to = self.at.to;
        let mut packs = self.writer.condemned().clone();
        packs.extend(missing);
        let scratch = ScratchDir::for_run(self.options.scratch.as_deref(), to.id())?;
        let segments = self.at.wait(self.writer.list_segments())?;
        let memory = DedupOptions {
            memory_bytes: self.bounds.dedup_bytes,
            worth_bytes: dedup::worth_bytes(plan.read_bytes),
        };
        let unusable = dedup::Unusable { packs, entries: self.writer.damaged().clone() };
        let stop = Arc::new(Stop::new(self.at.cancel, self.meter.clone()));
        let rt = self.at.rt;
        let _watch = stop.fail_when(rt, self.writer.taken_for_dead());
        let dedup = dedup::Dedup::new(to, rt, &stop, segments, memory, scratch, unusable);
        let checkpointer = rt.block_on(self.writer.checkpoints(self.resume_by.plan));
        let sparing = || Pace::sparing(plan.read_bytes);
        Pass {
            repo: to,
            runtime: rt,
            input: Input::Backup(&self.origin),
            geometry: self.geometry,
            plan: left,
            from,
            checkpointer: Some(checkpointer),
            pace: self.options.checkpoint_bytes.map_or_else(sparing, Pace::of),
            parent: self.writer.parent().map(|m| VolumeMap::of(to, m)).transpose()?,
            dedup: &dedup,
            bounds: &self.bounds,
            compression: self.options.compression,
            limit_read: None,
            progress: p,
            stop: &stop,
        }
        .run()
    }

    /// Says what is left of a run that ended early.
    fn ended(&self, e: Error, plan: &BackupPlan) -> Error {
        // within the runtime: it has the timer
        let asked = async { tokio::time::timeout(ASKED_WITHIN, self.writer.checkpoint()).await };
        let checkpoint = self.at.rt.block_on(asked).ok().flatten();
        let done = checkpoint.map_or(Resumed { percent: 0, bytes: 0 }, |c| {
            let left = plan.behind(self.geometry, c.next_chunk);
            Resumed::of(plan.read_bytes, left.read_bytes)
        });
        let kept = done.percent;
        let name = self.backup.name();
        if let Some(bound) = bound_of(&e, self.at.cancel, self.meter.as_deref()) {
            let meter = self.meter.as_deref();
            let further = done.bytes > self.resumed.map_or(0, |before| before.bytes);
            let what = format!("{kept}% of backup {name} is copied");
            return at_bound(bound, meter, further, what);
        }
        if e.kind() == ErrorKind::Cancelled {
            let detail = format!("on request, {kept}% of backup {name} is copied");
            return Error::new(ErrorKind::Cancelled, "stopped", detail)
                .hint("run the same command again to go on from there");
        }
        e.within(format!("copy backup {name}, of which {kept}% is copied"))
    }

    fn manifest(&self, done: &PassDone) -> Manifest {
        let (original, from) = (self.backup, *self.at.from.id());
        let origin = original.copied_from.as_ref();
        Manifest {
            attempt: self.writer.attempt(),
            map: done.assembled.map,
            parent: self.writer.parent().map(Manifest::as_parent),
            copied_from: Some(CopiedFrom {
                repository_id: from,
                attempt: original.attempt,
                origin_repository_id: origin.map_or(from, |o| o.origin_repository_id),
                origin_attempt: origin.map_or(original.attempt, |o| o.origin_attempt),
                time: Utc::now(),
            }),
            ..original.clone()
        }
    }

    fn summary(
        &self,
        m: Manifest,
        outcome: CopyOutcome,
        plan: &BackupPlan,
        done: &PassDone,
    ) -> CopySummary {
        let mut summary = self.summary_of(m, outcome, plan);
        summary.read_bytes = done.read.read_bytes;
        summary.zero_bytes += done.seal.zero_bytes;
        summary.unchanged_bytes += done.seal.unchanged_bytes;
        summary.reused_bytes = done.seal.reused_bytes;
        summary.new_bytes = done.seal.new_bytes;
        summary.stored_bytes = done.upload.bytes;
        summary.packs = done.upload.packs;
        summary.pages = done.assembled.pages;
        summary.compression.clone_from(&done.compression);
        summary
    }

    fn summary_of(&self, m: Manifest, outcome: CopyOutcome, plan: &BackupPlan) -> CopySummary {
        let with_base = self.list.as_ref().is_some_and(|(with_base, _)| *with_base);
        let base = self.base.as_ref().filter(|_| with_base);
        CopySummary {
            backup_id: m.backup_id.to_string(),
            volume: m.volume.to_string(),
            outcome,
            base: base.map(|b| b.copy.backup_id.to_string()),
            size_bytes: m.size_bytes,
            read_bytes: 0,
            fetched_bytes: get(&self.origin.fetched_bytes),
            reads: get(&self.origin.reads),
            zero_bytes: plan.zero_bytes,
            unchanged_bytes: plan.inherited_bytes,
            reused_bytes: 0,
            new_bytes: 0,
            stored_bytes: 0,
            packs: 0,
            pages: 0,
            elapsed_seconds: self.begun.elapsed().as_secs_f64(),
            compression: crate::ingest::CompressionUsed::default(),
            resumed: self.resumed,
            limits: self.origin.limits.lines(),
            bounds: self.bounds.clone(),
            source_requests: self.at.from.store().counts(),
            target_requests: self.at.to.store().counts(),
            warnings: self.warnings.clone(),
            manifest: m,
        }
    }
}

/// Another backup has the name that the copy would have.
pub(crate) fn taken(to: &Repository, backup: &Manifest) -> Error {
    let context = format!("copy backup {} to {}", backup.name(), to.store().url());
    Error::new(ErrorKind::AlreadyExists, context, "there is another backup of that name")
        .hint("forget one of the two, or copy to another repository")
}

fn origin(from: &Arc<Repository>, backup: &Manifest, limits: Limits) -> Result<SourceBackup> {
    let geometry = backup.geometry(from.params())?;
    Ok(SourceBackup {
        repo: Arc::clone(from),
        map: VolumeMap::of(from, backup)?,
        scope: PlanScope {
            geometry,
            want: 0..geometry.size_bytes(),
            entry_chunks: from.params().entry_chunks,
            batch_bytes_max: limits.batch_bytes_max(),
        },
        limits,
        fetched_bytes: AtomicU64::new(0),
        reads: AtomicU64::new(0),
    })
}

/// What the run makes: which backup, on top of which.
fn digest(from: &Repository, backup: &Manifest, base: Option<&Base>) -> chunkstore::PlanDigest {
    let mut hash = Digest::new("mover copy 1");
    hash.text(Some(&from.id().to_hex()));
    hash.text(Some(&backup.name().to_string()));
    hash.text(backup.map.root.map(|root| root.id.to_hex()).as_deref());
    hash.number(backup.size_bytes);
    for name in [base.map(|b| b.original.name()), base.map(|b| b.copy.name())] {
        hash.text(name.map(|n| n.to_string()).as_deref());
    }
    hash.finish()
}
