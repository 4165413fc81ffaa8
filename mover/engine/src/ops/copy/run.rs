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

use super::list;
use super::memory::divide;
use super::options::CopyOptions;
use super::plan::{Base, Standing, standing};
use super::session::CopySession;
use super::summary::{CopyOutcome, CopySummary};
use crate::ingest::attach::AttachmentInput;
use crate::ingest::backup_source::SourceBackup;
use crate::ingest::bounds::ranges_max;
use crate::ingest::pass::{Input, PassDone};
use crate::ingest::resume::{Digest, at_bound};
use crate::ingest::rounds::{self, Committed, How, Left, Rounds};
use crate::ingest::{Bounds, damage};
use crate::reading::damage::Damage;
use crate::reading::limits::Limits;
use crate::reading::pipeline::Run;
use crate::reading::{OnDamage, get, map_reader, salvage, scope_of_map};
use crate::run::quota::Meter;
use crate::run::threads::cores;
use crate::run::{Cancel, Phase, Progress, RunContext};
use chrono::Utc;
use chunkstore::salvage::{Salvage, Salvaged};
use chunkstore::{
    Error, ErrorKind, Geometry, Manifest, Repository, Result, VolumeMap, Writer, WriterOptions,
    format::CopiedFrom, map::ReadLimits, protocol::ResumeBy, repository::NewestSeen,
};
use mover_changes::{BackupPlan, ChangedBlocks, Changes, PlanInput, plan_backup};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use tokio::runtime::Handle;

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
    let at = CopySession { run: RunContext { rt, cancel, progress }, from, to };
    let reader = at.read(backup, options)?;
    let done = at.with_base(base, options).and_then(|(base, base_reader)| {
        let done = run(at, backup, base, options, limits, bounds, begun);
        at.finish(base_reader);
        done
    });
    let done = done.map_err(|e| reader.explain(at.run, e));
    at.finish(Some(reader));
    done
}

/// One copy under the leases of its source.
fn run(
    at: CopySession<'_>,
    backup: &Manifest,
    base: Option<Base>,
    options: &CopyOptions,
    limits: Limits,
    bounds: Bounds,
    begun: Instant,
) -> Result<CopySummary> {
    if !backup.attachments.is_empty() {
        at.wait(at.to.refuse_without_attachments("copy a backup with attachments to"))?;
    }
    let origin = origin(at.from, VolumeMap::of(at.from, backup)?, limits);
    let attached = attached(at.from, backup, &origin)?;
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
        lease: CopySession::lease(options),
    };
    let pages = (at.to.params().page_fanout, bounds.pack_bytes);
    let meter = Meter::new(options.quota, at.to.store(), pages, bounds.slot_bytes)?;
    let writer = at.run.wait_to_begin(Writer::begin_or_resume(at.to, wanted, resume_by))?;
    let how = How {
        compression: options.compression,
        scratch: options.scratch.as_deref(),
        checkpoint_bytes: options.checkpoint_bytes,
        limit_read: None,
    };
    let rounds = Rounds {
        run: at.run,
        repo: at.to,
        writer,
        geometry,
        bounds,
        how,
        meter,
        resume_by: Some(resume_by),
        resumed: None,
        moved: false,
        warnings: Vec::new(),
    };
    let mut job = Job { at, backup, base, options, origin, attached, begun, list: None };
    let (mut summary, warnings) = rounds.under_lease(|rounds| job.complete(rounds))?;
    summary.warnings.extend(warnings);
    Ok(summary)
}

/// One copy, as the commit loop knows it.
struct Job<'a> {
    at: CopySession<'a>,
    backup: &'a Manifest,
    base: Option<Base>,
    options: &'a CopyOptions,
    origin: SourceBackup,
    /// Its attachments; one of no bytes has no map.
    attached: Vec<Option<SourceBackup>>,
    begun: Instant,
    /// What has to be gone through on top of which parent.
    list: Option<(bool, ChangedBlocks)>,
}

impl Job<'_> {
    fn complete(&mut self, rounds: &mut Rounds<'_>) -> Result<CopySummary> {
        if let Some(there) = rounds.writer.existing().cloned() {
            self.at.wait(rounds.writer.lock_committed(&there))?;
            return self.already(rounds, there);
        }
        let committed = match rounds.commit(self) {
            Err(e) if Damage::is(&e) && self.salvage()? => rounds.commit(self)?,
            done => done?,
        };
        let mut summary = self.summary(rounds, committed);
        let (salvaged, warnings) = salvage::outcome(&self.origin.salvage);
        summary.salvaged = salvaged;
        summary.warnings.extend(warnings);
        Ok(summary)
    }

    /// Looks for all that is damaged of the original elsewhere in its repository. True: the copy can
    /// be made.
    fn salvage(&self) -> Result<bool> {
        let uncounted = Progress::new();
        let context = RunContext { progress: &uncounted, ..self.at.run };
        let mut whole = true;
        for origin in self.origins() {
            let SourceBackup { repo, map, scope, limits, salvage, .. } = origin;
            let go_on = OnDamage::GoOn;
            let reader = map_reader(context, repo, map.clone(), limits, scope, salvage, go_on);
            let lost = reader.and_then(|reader| {
                salvage::loses_any(Run { context, repo, scope, limits, salvage }, reader)
            });
            whole &= match lost {
                Ok(lost) => !lost,
                Err(e) if Damage::is(&e) => false,
                Err(e) => return Err(e),
            };
        }
        Ok(whole && self.origin.salvage.salvaged() != Salvaged::default())
    }

    /// The volume and the attachments as they are read.
    fn origins(&self) -> impl Iterator<Item = &SourceBackup> {
        std::iter::once(&self.origin).chain(self.attached.iter().flatten())
    }

    /// Somebody committed under this name since the target was listed.
    fn already(&self, rounds: &Rounds<'_>, there: Manifest) -> Result<CopySummary> {
        let (from, to) = (*self.at.from.id(), *self.at.to.id());
        if !matches!(standing(from, self.backup, to, [&there]), Standing::There(_)) {
            return Err(taken(self.at.to, self.backup));
        }
        let nothing = BackupPlan::default();
        Ok(self.summary_of(rounds, there, CopyOutcome::AlreadyThere, &nothing))
    }

    fn summary(&self, rounds: &Rounds<'_>, committed: Committed) -> CopySummary {
        let Committed { manifest, fresh, plan, done } = committed;
        let outcome = if fresh { CopyOutcome::Copied } else { CopyOutcome::AlreadyThere };
        let mut summary = self.summary_of(rounds, manifest, outcome, &plan);
        summary.read_bytes = done.read.read_bytes;
        summary.zero_bytes += done.seal.zero_bytes;
        summary.unchanged_bytes += done.seal.unchanged_bytes;
        summary.reused_bytes = done.seal.reused_bytes;
        summary.new_bytes = done.seal.new_bytes;
        summary.stored_bytes = done.upload.bytes;
        summary.packs = done.upload.packs;
        summary.pages = done.assembled.pages;
        summary.compression = done.compression;
        summary
    }

    fn summary_of(
        &self,
        rounds: &Rounds<'_>,
        m: Manifest,
        outcome: CopyOutcome,
        plan: &BackupPlan,
    ) -> CopySummary {
        let with_base = self.list.as_ref().is_some_and(|(with_base, _)| *with_base);
        let base = self.base.as_ref().filter(|_| with_base);
        CopySummary {
            backup_id: m.backup_id.to_string(),
            volume: m.volume.to_string(),
            outcome,
            base: base.map(|b| b.copy.backup_id.to_string()),
            size_bytes: m.size_bytes,
            read_bytes: 0,
            fetched_bytes: self.origins().map(|origin| get(&origin.fetched_bytes)).sum(),
            reads: self.origins().map(|origin| get(&origin.reads)).sum(),
            zero_bytes: plan.zero_bytes,
            unchanged_bytes: plan.inherited_bytes,
            reused_bytes: 0,
            new_bytes: 0,
            stored_bytes: 0,
            packs: 0,
            pages: 0,
            elapsed_seconds: self.begun.elapsed().as_secs_f64(),
            compression: crate::ingest::CompressionUsed::default(),
            resumed: rounds.resumed,
            limits: self.origin.limits.lines(),
            bounds: rounds.bounds.clone(),
            source_requests: self.at.from.store().counts(),
            target_requests: self.at.to.store().counts(),
            salvaged: None,
            warnings: rounds.warnings.clone(),
            manifest: m,
        }
    }
}

impl rounds::StoringJob for Job<'_> {
    /// What has to be gone through, as far as the parent that was confirmed allows to leave out the
    /// rest; and the chunks of the parent that cannot be inherited as they are damaged.
    fn plan(&mut self, rounds: &mut Rounds<'_>) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let parent = rounds.writer.parent().cloned();
        let base = self.base.as_ref().filter(|b| parent.as_ref() == Some(&b.copy));
        let wanted = base.is_some();
        if self.list.as_ref().is_none_or(|(with_base, _)| *with_base != wanted) {
            let (from, salvage) = (self.at.from, &self.origin.salvage);
            let list = match base {
                Some(base) => self.at.wait(list::delta(from, &base.original, self.backup)),
                None => {
                    let most = ranges_max(self.options.memory);
                    self.at.wait(list::allocated(from, self.backup, most, salvage))
                }
            };
            self.list = Some((wanted, list?));
        }
        let Some((_, list)) = &self.list else {
            return Err(Error::new(ErrorKind::Bug, "plan a copy", "there is no list"));
        };
        let chunk = rounds.geometry.chunk();
        let parent = parent.map(|m| Geometry::new(m.size_bytes, chunk)).transpose()?;
        let (geometry, changes) = (rounds.geometry, Changes::List(list));
        let plan = plan_backup(&PlanInput { geometry, parent, changes, holes: None })?;
        if !plan.inherit {
            return Ok((plan, Vec::new()));
        }
        let limits = ReadLimits::within(rounds.bounds.map_read_bytes);
        let lost = damage::damaged_of_parent(
            self.at.run,
            self.at.to,
            rounds.writer.parent(),
            rounds.writer.damaged(),
            limits,
        )?;
        Ok((plan.read_again(geometry, &lost), lost))
    }

    fn input(&self) -> Input<'_> {
        Input::Backup(&self.origin)
    }

    fn attachments(&self) -> Vec<AttachmentInput<'_>> {
        let both = self.backup.attachments.iter().zip(&self.attached);
        both.map(|(attachment, origin)| AttachmentInput {
            name: &attachment.name,
            size_bytes: attachment.size_bytes,
            input: origin.as_ref().map(Input::Backup),
        })
        .collect()
    }

    fn manifest(
        &mut self,
        rounds: &Rounds<'_>,
        _plan: &BackupPlan,
        done: &PassDone,
    ) -> Result<Manifest> {
        let (original, from) = (self.backup, *self.at.from.id());
        let origin = original.copied_from.as_ref();
        Ok(Manifest {
            attempt: rounds.writer.attempt(),
            map: done.assembled.map,
            attachments: done.attachments.clone(),
            parent: rounds.writer.parent().map(Manifest::as_parent),
            copied_from: Some(CopiedFrom {
                repository_id: from,
                attempt: original.attempt,
                origin_repository_id: origin.map_or(from, |o| o.origin_repository_id),
                origin_attempt: origin.map_or(original.attempt, |o| o.origin_attempt),
                time: Utc::now(),
            }),
            ..original.clone()
        })
    }

    fn ended(&self, rounds: &Rounds<'_>, e: Error, left: Left) -> Error {
        let name = self.backup.name();
        let Left { kept: Some(kept), bound } = left else {
            return e.within(format!("copy backup {name}"));
        };
        let percent = kept.percent;
        if let Some(bound) = bound {
            let what = format!("{percent}% of backup {name} is copied");
            return at_bound(bound, rounds.meter.as_deref(), kept, &what);
        }
        if e.kind() == ErrorKind::Cancelled {
            let detail = format!("on request, {percent}% of backup {name} is copied");
            return Error::new(ErrorKind::Cancelled, "stopped", detail)
                .hint("run the same command again to go on from there");
        }
        e.within(format!("copy backup {name}, of which {percent}% is copied"))
    }

    fn collected(&self) -> (String, &'static str) {
        let context = format!("copy backup {}", self.backup.name());
        (context, "run it again when the garbage collection of the target has ended")
    }
}

/// Another backup has the name that the copy would have.
pub fn taken(to: &Repository, backup: &Manifest) -> Error {
    let context = format!("copy backup {} to {}", backup.name(), to.store().url());
    Error::new(ErrorKind::AlreadyExists, context, "there is another backup of that name")
        .hint("forget one of the two, or copy to another repository")
}

/// One map of the original.
fn origin(from: &Arc<Repository>, map: VolumeMap, limits: Limits) -> SourceBackup {
    SourceBackup {
        repo: Arc::clone(from),
        scope: scope_of_map(from, &map, &limits),
        map,
        limits,
        salvage: Arc::new(Salvage::new(from)),
        fetched_bytes: AtomicU64::new(0),
        reads: AtomicU64::new(0),
    }
}

/// The maps of its attachments. What is found elsewhere of one map is known to all.
fn attached(
    from: &Arc<Repository>,
    backup: &Manifest,
    volume: &SourceBackup,
) -> Result<Vec<Option<SourceBackup>>> {
    let of = |attachment| {
        let map = VolumeMap::of_attachment(from, backup, attachment)?;
        Ok(map.map(|map| SourceBackup {
            salvage: Arc::clone(&volume.salvage),
            ..origin(from, map, volume.limits.clone())
        }))
    };
    backup.attachments.iter().map(of).collect()
}

/// What the run makes: which backup, on top of which.
fn digest(
    from: &Repository,
    backup: &Manifest,
    base: Option<&Base>,
) -> chunkstore::ids::PlanDigest {
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
