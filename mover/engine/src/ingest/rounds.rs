//! The commit loop of everything that stores a volume: plan, move the data, commit; and again where
//! a collector took away packs that the run refers to.
//!
//! One loop for backups and copies. A [`StoringJob`] says where they differ: the plan, the source of the
//! bytes, the manifest, the words of an early end. Every wait heeds a stop but two: the commit, and
//! the question to the own lease of a run that ends, which has a bound of its own. A stop that comes
//! before there is a plan says no share of what is kept: without a plan it is not known.

use super::attach::{AttachedDone, Attaching, AttachmentInput};
use super::bounds::Bounds;
use super::checkpoint::CheckpointSchedule;
use super::compression::CompressionChoice;
use super::damage::check_undamaged;
use super::dedup::{Dedup, Unusable, worth_bytes};
use super::pass::{Input, Pass, PassDone};
use super::resume::{ASKED_WITHIN, Kept, Resumed, bound_of};
use super::stop::Stop;
use crate::ingest::scratch::ScratchDir;
use crate::run::quota::{Bound, Meter};
use crate::run::{Phase, RunContext};
use chunkstore::{
    Commit, Error, ErrorKind, Geometry, Manifest, PackId, Repository, Result, VolumeMap, Writer,
    dedup::DedupOptions, format::Checkpoint, map::check_frontier, protocol::ResumeBy,
};
use mover_changes::BackupPlan;
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How often a run may have to store again what a collector took away before it gives up.
const ROUNDS_MAX: u32 = 5;

/// The part of storing that is another for a backup than for a copy.
pub(crate) trait StoringJob {
    /// The plan on top of the parent that is confirmed, and the chunks of that parent that cannot be
    /// inherited as they are damaged. It may take away [`Rounds::resume_by`].
    fn plan(&mut self, rounds: &mut Rounds<'_>) -> Result<(BackupPlan, Vec<Range<u64>>)>;

    /// The source of the bytes.
    fn input(&self) -> Input<'_>;

    /// What belongs to the backup besides its volume, ascending by name.
    fn attachments(&self) -> Vec<AttachmentInput<'_>>;

    /// The run goes on from a checkpoint that fits.
    fn goes_on(&mut self, _rounds: &mut Rounds<'_>, _from: &Checkpoint) -> Result<()> {
        Ok(())
    }

    /// The manifest of what a pass made, or the reason not to commit it.
    fn manifest(
        &mut self,
        rounds: &Rounds<'_>,
        plan: &BackupPlan,
        done: &PassDone,
    ) -> Result<Manifest>;

    /// The error of a run that ended early: with what is left for the next one, and the next step.
    fn ended(&self, rounds: &Rounds<'_>, e: Error, left: Left) -> Error;

    /// What could not be done after all rounds, and the next step.
    fn collected(&self) -> (String, &'static str);
}

/// The rest of a run that ended early.
pub(crate) struct Left {
    /// `None` if nobody can go on with this run.
    pub(crate) kept: Option<Kept>,
    /// The bound that ended it, if one did.
    pub(crate) bound: Option<Bound>,
}

/// A committed backup, and the last round that led to it.
pub(crate) struct Committed {
    pub(crate) manifest: Manifest,
    /// Whether this run committed it, and no other attempt.
    pub(crate) fresh: bool,
    pub(crate) plan: BackupPlan,
    pub(crate) done: PassDone,
}

/// What a user asked of the storing.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    pub(crate) compression: CompressionChoice,
    /// Where copies of dedup segments are kept.
    pub(crate) scratch: Option<&'a Path>,
    pub(crate) checkpoint_bytes: Option<u64>,
    pub(crate) limit_read: Option<NonZeroU64>,
}

/// A volume's storing under one writer's lease.
pub(crate) struct Rounds<'a> {
    pub(crate) run: RunContext<'a>,
    pub(crate) repo: &'a Arc<Repository>,
    pub(crate) writer: Writer,
    pub(crate) geometry: Geometry,
    pub(crate) bounds: Bounds,
    pub(crate) how: How<'a>,
    pub(crate) meter: Option<Arc<Meter>>,
    /// By what a later run finds this one; `None` if none may go on with it.
    pub(crate) resume_by: Option<ResumeBy>,
    /// Where the last pass began, if not at the start.
    pub(crate) resumed: Option<Resumed>,
    /// Whether a pass was begun: before, what is kept is an earlier run's.
    pub(crate) moved: bool,
    pub(crate) warnings: Vec<String>,
}

impl Rounds<'_> {
    /// Does `work` while the lease beats, then gives the lease back. The warnings of that are logged
    /// where the work failed.
    pub(crate) fn under_lease<T>(
        mut self,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, Vec<String>)> {
        let beat = self.run.rt.spawn(self.writer.heartbeat());
        let done = work(&mut self);
        let warnings = self.run.give_back(self.writer.finish());
        beat.abort();
        let done = done.inspect_err(|_| {
            warnings.iter().for_each(|w| tracing::warn!("{w}"));
        })?;
        Ok((done, warnings))
    }

    /// Moves the data and commits; again where a collector took away what the run referred to.
    pub(crate) fn commit(&mut self, job: &mut dyn StoringJob) -> Result<Committed> {
        let mut missing: HashSet<PackId> = HashSet::new();
        for _ in 0..ROUNDS_MAX {
            let (plan, lost) = job.plan(self)?;
            let from = self.resume_point(job, &missing, &lost);
            let from = from.map_err(|e| self.stopped(job, e, &plan))?;
            let stored = self.pass(job, &plan, from.as_ref(), &missing);
            let done = match stored.and_then(|done| self.attach(job, done, &missing)) {
                Err(e) if e.kind() == ErrorKind::Fenced => {
                    let reason = self.run.wait_to_begin(self.writer.begin_anew());
                    // the lease that knew how far it was is gone
                    let reason = reason.map_err(|e| self.stopped_with(job, e, Kept::NOTHING))?;
                    self.again(&reason);
                    continue;
                }
                done => done.map_err(|e| self.ended(job, e, &plan))?,
            };
            self.run.progress.set_phase(Phase::Finishing);
            let manifest = job.manifest(self, &plan, &done)?;
            let reused: Vec<PackId> = done.assembled.reused.iter().copied().collect();
            let lock = self.writer.lock(&manifest, &done.own_packs, &reused);
            self.run.wait(lock).map_err(|e| self.stopped(job, e, &plan))?;
            let commit = self.writer.commit(manifest, &done.own_packs, &reused);
            match self.run.rt.block_on(commit)? {
                Commit::Done(m) => {
                    return Ok(Committed { manifest: *m, fresh: true, plan, done });
                }
                Commit::AlreadyDone(m) => {
                    return Ok(Committed { manifest: *m, fresh: false, plan, done });
                }
                Commit::StoreAgain { missing: gone } => {
                    self.again(&format!("{} reused packs were collected meanwhile", gone.len()));
                    missing.extend(gone);
                }
                Commit::Restart { reason } => self.again(&reason),
            }
        }
        let (context, hint) = job.collected();
        let what = format!("after {ROUNDS_MAX} rounds, what it refers to is still being collected");
        Err(Error::new(ErrorKind::Unavailable, context, what).hint(hint))
    }

    fn again(&mut self, why: &str) {
        tracing::info!("storing again: {why}");
        self.warnings.push(format!("stored again: {why}"));
    }

    /// Where the next pass may start: what the lease says, if it fits the volume.
    fn resume_point(
        &mut self,
        job: &mut dyn StoringJob,
        missing: &HashSet<PackId>,
        lost: &[Range<u64>],
    ) -> Result<Option<Checkpoint>> {
        if self.resume_by.is_none() {
            return Ok(None);
        }
        let from = self.run.wait(self.writer.resume_point(missing))?;
        let Some(from) = from else { return Ok(None) };
        let fanout = self.repo.params().page_fanout;
        let fits = check_frontier(fanout, self.geometry, from.next_chunk, &from.frontier)
            .and_then(|()| check_undamaged(&from, lost, self.writer.damaged()));
        if let Err(e) = fits {
            self.warnings.push(format!("the checkpoint is of no use: {e}"));
            return Ok(None);
        }
        job.goes_on(self, &from)?;
        Ok(Some(from))
    }

    fn pass(
        &mut self,
        job: &dyn StoringJob,
        plan: &BackupPlan,
        from: Option<&Checkpoint>,
        missing: &HashSet<PackId>,
    ) -> Result<PassDone> {
        let left = from.map(|c| plan.remaining_from(self.geometry, c.next_chunk));
        let left = left.as_ref().unwrap_or(plan);
        self.resumed = from.map(|_| Resumed::of(plan.read_bytes, left.read_bytes));
        self.moved = true;
        self.show(plan, left, job.attachments().iter().map(|a| a.size_bytes).sum());
        let RunContext { rt, cancel, progress } = self.run;
        let mut packs = self.writer.condemned().clone();
        packs.extend(missing);
        let scratch = ScratchDir::for_run(self.how.scratch, self.repo.id())?;
        let segments = self.run.wait(self.writer.list_segments())?;
        let memory = DedupOptions {
            memory_bytes: self.bounds.dedup_bytes,
            worth_bytes: worth_bytes(plan.read_bytes),
        };
        let unusable = Unusable { packs, entries: self.writer.damaged().clone() };
        let stop = Arc::new(Stop::new(cancel, self.meter.clone()));
        let _watch = stop.fail_when(rt, self.writer.taken_for_dead());
        let dedup = Dedup::new(self.repo, rt, &stop, segments, memory, scratch, unusable);
        let checkpointer = match self.resume_by {
            Some(by) => Some(self.run.wait(async { Ok(self.writer.checkpoints(by.plan).await) })?),
            None => None,
        };
        let sparing = || CheckpointSchedule::sparing(plan.read_bytes);
        Pass {
            repo: self.repo,
            runtime: rt,
            input: job.input(),
            geometry: self.geometry,
            plan: left,
            from,
            checkpointer,
            schedule: self.how.checkpoint_bytes.map_or_else(sparing, CheckpointSchedule::of),
            parent: self.writer.parent().map(|m| VolumeMap::of(self.repo, m)).transpose()?,
            dedup: &dedup,
            bounds: &self.bounds,
            compression: self.how.compression,
            limit_read: self.how.limit_read,
            progress,
            stop: &stop,
        }
        .run()
    }

    /// Stores what is attached, after the volume.
    fn attach(
        &mut self,
        job: &dyn StoringJob,
        mut done: PassDone,
        missing: &HashSet<PackId>,
    ) -> Result<PassDone> {
        let inputs = job.attachments();
        if inputs.is_empty() {
            return Ok(done);
        }
        let attaching = Attaching {
            run: self.run,
            repo: self.repo,
            writer: &self.writer,
            bounds: &self.bounds,
            compression: self.how.compression,
            limit_read: self.how.limit_read,
            meter: self.meter.as_ref(),
            missing,
        };
        let AttachedDone { attachments, own_packs, reused, upload, pages } =
            attaching.all(&inputs, &mut self.warnings)?;
        done.attachments = attachments;
        done.own_packs.extend(own_packs);
        done.assembled.reused.extend(reused);
        done.upload.add(&upload);
        done.assembled.pages += pages;
        Ok(done)
    }

    /// Sets the counters to where a pass begins; a repeated one begins anew. `attached`: bytes that
    /// are stored besides.
    fn show(&self, plan: &BackupPlan, left: &BackupPlan, attached: u64) {
        let p = self.run.progress;
        p.total_bytes.set(plan.read_bytes + attached);
        p.done_bytes.set(plan.read_bytes - left.read_bytes);
        // what needs no reading is known now
        p.zero_bytes.set(plan.zero_bytes);
        p.unchanged_bytes.set(plan.inherited_bytes);
        for counter in [&p.reused_bytes, &p.new_bytes] {
            counter.set(0);
        }
        p.set_phase(Phase::Moving);
    }

    /// [`ended`](Self::ended), of a request beside the pass: only a stop ends a run early, a failure
    /// is a failure.
    fn stopped(&self, job: &dyn StoringJob, e: Error, plan: &BackupPlan) -> Error {
        if e.kind() == ErrorKind::Cancelled { self.ended(job, e, plan) } else { e }
    }

    /// [`stopped`](Self::stopped), where it is known what is left.
    fn stopped_with(&self, job: &dyn StoringJob, e: Error, kept: Kept) -> Error {
        if e.kind() != ErrorKind::Cancelled {
            return e;
        }
        let bound = bound_of(&e, self.run.cancel, self.meter.as_deref());
        job.ended(self, e, Left { kept: self.resume_by.map(|_| kept), bound })
    }

    /// Says what is left of a run that ended early, and what to do.
    fn ended(&self, job: &dyn StoringJob, e: Error, plan: &BackupPlan) -> Error {
        let kept = self.resume_by.map(|_| {
            // within the runtime: it has the timer
            let asked =
                async { tokio::time::timeout(ASKED_WITHIN, self.writer.checkpoint()).await };
            let checkpoint = self.run.rt.block_on(asked).ok().flatten();
            let done = checkpoint.map_or(Resumed { percent: 0, bytes: 0 }, |c| {
                let left = plan.remaining_from(self.geometry, c.next_chunk);
                Resumed::of(plan.read_bytes, left.read_bytes)
            });
            let before = self.resumed.map_or(0, |before| before.bytes);
            let further = self.moved && done.bytes > before;
            Kept { percent: done.percent, further }
        });
        let bound = bound_of(&e, self.run.cancel, self.meter.as_deref());
        job.ended(self, e, Left { kept, bound })
    }
}
