//! Backs up one volume: decides what to read, runs the pipeline, commits.
//!
//! Order of things, which the commit protocol rests on (`docs/architecture.md`): look for a parent,
//! take a lease, confirm the parent, read the condemned lists, list the dedup segments, move the
//! data, put the segment, check the packs of others that were reused, create the manifest, give the
//! lease back. The stages of moving the data are files of this folder.

mod attach;
mod audit;
mod forecast;
mod ladder;
mod options;
pub(crate) mod parent;
mod prepare;
pub(crate) mod resume;
mod same;
mod stdin;
mod summary;

pub use attach::{AttachmentSource, check_attachments};
pub use audit::{AuditAmount, Audited};
pub use forecast::{
    Forecast, LookedAt, ReadForecast, RequestForecast, Spread, TimeForecast, forecast,
};
pub use ladder::read_given;
pub use options::BackupOptions;
pub use parent::ParentChoice;
pub use summary::{AttachmentSummary, BackupOutcome, BackupSummary, Waits};

use crate::ingest::LEASE_SECONDS;
use crate::ingest::attach::AttachmentInput;
use crate::ingest::pass::{Input, PassDone};
use crate::ingest::read_throttle::ReadThrottle;
use crate::ingest::rounds::{self, How, Left, Rounds};
use crate::run::quota::Meter;
use crate::run::{Cancel, Phase, Progress, RunContext};
use chunkstore::{
    BackupId, Error, LeaseOptions, Manifest, Repository, Result, VolumeMap, Writer, WriterOptions,
    format::{BackupStats, Checkpoint},
};
use mover_changes::{BackupPlan, ListOrigin};
use parent::Known;
use prepare::{Prepared, prepare};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What is looked at of a volume that a list calls empty.
const HEAD_BYTES: u64 = 1 << 20;

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
    let run = RunContext { rt, cancel, progress };
    progress.set_phase(Phase::Planning);
    let (mut prepared, known) = prepare(run, repo, options)?;
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
    let writer = run.wait_to_begin(match resume_by {
        Some(by) => Writer::begin_or_resume(repo, wanted, by),
        None => Writer::begin(repo, wanted),
    })?;
    let how = How {
        compression: options.compression,
        scratch: options.scratch.as_deref(),
        checkpoint_bytes: options.checkpoint_bytes,
        limit_read: options.limit_read,
    };
    let rounds = Rounds {
        run,
        repo,
        writer,
        geometry: prepared.geometry,
        bounds: prepared.bounds.clone(),
        how,
        meter,
        resume_by,
        resumed: None,
        moved: false,
        warnings: std::mem::take(&mut prepared.warnings),
    };
    let mut job = Job { options, prepared, known, begun, audited: None, last_stats: None };
    let (mut summary, warnings) = rounds.under_lease(|rounds| job.complete(rounds))?;
    summary.warnings.extend(warnings);
    summary.retention = repo.store().retain_policy().map(|policy| policy.retention);
    Ok(summary)
}

/// One backup, as the commit loop knows it.
struct Job<'a> {
    options: &'a BackupOptions,
    prepared: Prepared,
    known: Known,
    begun: Instant,
    /// What the audit found; `None` before it.
    audited: Option<Audited>,
    /// Of the pass that was committed, or is about to be.
    last_stats: Option<BackupStats>,
}

impl Job<'_> {
    fn complete(&mut self, rounds: &mut Rounds<'_>) -> Result<BackupSummary> {
        if let Some(there) = parent::already_done(self.options, &rounds.writer) {
            let otherwise = attach::check_there(&self.prepared.attached, &there)?;
            rounds.run.wait(rounds.writer.lock_committed(&there))?;
            let warnings = rounds.warnings.iter().cloned().chain(otherwise).collect();
            return Ok(BackupSummary::already_done(there, warnings, self.begun.elapsed()));
        }
        let committed = rounds.commit(self)?;
        Ok(self.summary(rounds, committed))
    }

    /// The plan on top of the parent, whatever the audit says.
    fn unaudited_plan(&self, rounds: &Rounds<'_>) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let (p, parent) = (&self.prepared, rounds.writer.parent());
        p.check_parent(self.options, parent.is_some())?;
        p.plan(rounds.run, rounds.repo, parent, rounds.writer.damaged())
    }
}

impl rounds::StoringJob for Job<'_> {
    /// The plan, once the list has stood the audit; otherwise that of the whole volume.
    fn plan(&mut self, rounds: &mut Rounds<'_>) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let (plan, lost) = self.unaudited_plan(rounds)?;
        if self.audited.is_some() || self.prepared.changes.is_none() {
            return Ok((plan, lost));
        }
        let origin = self.prepared.changes.as_ref().map(|list| list.origin);
        let audit = audit::Audit {
            run: rounds.run,
            repo: rounds.repo,
            source: &self.prepared.source,
            geometry: self.prepared.geometry,
            turns: ReadThrottle::new(self.options.limit_read),
            says_zero: origin != Some(ListOrigin::FileSystem),
        };
        let parent = rounds.writer.parent().filter(|_| plan.inherit);
        let parent = parent.map(|m| VolumeMap::of(rounds.repo, m)).transpose()?;
        let seed = u64::from_le_bytes(chunkstore::random_bytes());
        let holes = self.prepared.holes()?;
        let audited = audit.run(&plan, holes.as_ref(), parent, self.options.audit, seed)?;
        self.audited = Some(audited);
        let Some(offset) = audited.false_at else { return Ok((plan, lost)) };
        // what a run that believed the list has left must not be built upon
        rounds.run.wait(rounds.writer.forget_checkpoint())?;
        if let Some(kind) = self.options.changes.require {
            return Err(audit::refused(&self.prepared.source, kind, offset));
        }
        self.prepared.degraded.push(audit::verdict(&audited, offset));
        self.prepared.changes = None;
        // nor may a run that believes it build upon what this one leaves
        rounds.resume_by = None;
        self.unaudited_plan(rounds)
    }

    fn input(&self) -> Input<'_> {
        Input::Device { source: &self.prepared.source, engine: self.options.engine }
    }

    fn attachments(&self) -> Vec<AttachmentInput<'_>> {
        self.prepared.attached.iter().map(|attached| attached.input()).collect()
    }

    fn goes_on(&mut self, rounds: &mut Rounds<'_>, from: &Checkpoint) -> Result<()> {
        let began = rounds.run.wait(async { Ok(rounds.writer.began(from).await) })?;
        let late = resume::overtaken(&self.known, &rounds.writer, began);
        let late = late.filter(|w| !rounds.warnings.contains(w));
        rounds.warnings.extend(late);
        Ok(())
    }

    fn manifest(
        &mut self,
        rounds: &Rounds<'_>,
        plan: &BackupPlan,
        done: &PassDone,
    ) -> Result<Manifest> {
        self.prepared.note_writes();
        self.prepared.attached.iter().try_for_each(attach::Attached::refuse_written)?;
        let manifest = self.manifest_of(&rounds.writer, plan, done);
        same::check_content(self.options, &manifest, &self.known)?;
        self.last_stats = Some(manifest.stats);
        Ok(manifest)
    }

    fn ended(&self, rounds: &Rounds<'_>, e: Error, left: Left) -> Error {
        let meter = rounds.meter.as_deref();
        resume::explain(e, rounds.writer.backup_id(), left.kept, left.bound, meter)
    }

    fn collected(&self) -> (String, &'static str) {
        let context = format!("commit the backup of {}", self.prepared.volume);
        (context, "run it again when the garbage collection has ended")
    }
}
