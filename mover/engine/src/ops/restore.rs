//! Writing a volume back: onto a block device, into an image file, or to an output in order.
//!
//! A restore reads the manifest, the pages of the map and the entries of its chunks; never a dedup
//! segment. The target is opened, and checked, after the backup's root page was read: what is wrong
//! until then leaves it as it was. Only the wanted bytes are touched, and a target larger than the
//! volume keeps what lies behind it.
//!
//! Invariants: no byte is written whose chunk was not checked against its id; every wanted byte is
//! written, deallocated or zeroed exactly once, unless the target was created by this run and reads
//! zero there, or was compared first and has the chunk; at the end all buffers are home.

mod options;
mod ours;
pub(crate) mod summary;

#[cfg(test)]
pub(crate) mod testkit;
#[cfg(test)]
mod tests;

pub use options::{LEASE_SECONDS, RestoreOptions, RestoreTarget};
pub use summary::{RestoreSummary, VerifiedTarget};

use crate::live::JournalFile;
use crate::reading::compare::{Compared, compare_device, may_be_old};
use crate::reading::damage::Damage;
use crate::reading::limits::{Limits, OutputKind, WRITES_IN_FLIGHT};
use crate::reading::pipeline::{self, Destination, Run};
use crate::reading::plan::PlanScope;
use crate::reading::same::SameChunks;
use crate::reading::stdout::Stdout;
use crate::reading::write::{Edge, write_edges};
use crate::reading::{
    OnDamage, Reading, SkippedDamage, SkippedRange, find, map_reader, salvage, scope_of,
};
use crate::run::threads::cores;
use crate::run::{Cancel, Phase, Progress, RunContext};
use crate::volume::device::{Source, Target, TargetOptions};
use crate::volume::io::{Arena, Engine};
use chunkstore::salvage::Salvage;
use chunkstore::{
    Advice, ChunkNo, Error, ErrorKind, Manifest, MapReader, Repository, Result, Setting, VolumeMap,
};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;

/// Restores a backup. The calling thread drives it and must not be one of the runtime's.
pub fn restore(
    rt: &Handle,
    repo: &Arc<Repository>,
    options: RestoreOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<RestoreSummary> {
    progress.set_phase(Phase::Planning);
    let found = find(RunContext { rt, cancel, progress }, repo, &options.backup)?;
    restore_found(rt, repo, found, options, progress, cancel)
}

/// As [`restore`], of a backup that was looked up already: `options.backup` is not looked at. That
/// it was not forgotten meanwhile is confirmed under the lease.
pub fn restore_found(
    rt: &Handle,
    repo: &Arc<Repository>,
    found: Manifest,
    options: RestoreOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<RestoreSummary> {
    let run = RunContext { rt, cancel, progress };
    match &options.target {
        RestoreTarget::Path(path) => restore_to(run, repo, &options, found, To::Path(path)),
        RestoreTarget::Stdout => {
            let mut out = Stdout::open("restore", Arc::clone(cancel))?;
            let to = To::Output(&mut out);
            let mut summary = restore_to(run, repo, &options, found, to)?;
            summary.flushed = out.is_durable().then_some(true);
            Ok(summary)
        }
    }
}

pub(crate) enum To<'a> {
    Path(&'a Path),
    Output(&'a mut (dyn Write + Send)),
}

pub(crate) fn restore_to(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    options: &RestoreOptions,
    manifest: Manifest,
    to: To<'_>,
) -> Result<RestoreSummary> {
    let begun = Instant::now();
    run.progress.set_phase(Phase::Planning);
    let output = match to {
        To::Path(_) => OutputKind::Slots,
        To::Output(_) => OutputKind::Ordered,
    };
    let threads = options.threads.unwrap_or_else(cores);
    if options.skip_damaged && options.verify {
        let what = "what is not there cannot be compared";
        return Err(Error::new(
            ErrorKind::Usage,
            format!(
                "use {skip_damaged} with {verify}",
                skip_damaged = Setting("skip-damaged"),
                verify = Setting("verify")
            ),
            what,
        )
        .hint(format!(
            "leave {verify} out; every chunk that is written was checked",
            verify = Setting("verify")
        )));
    }
    if options.differential && matches!(to, To::Output(_)) {
        let context = format!("use {} with standard output", Setting("differential"));
        let what = "there is nothing to compare with";
        return Err(Error::new(ErrorKind::Usage, context, what));
    }
    if options.differential && options.skip_damaged {
        let (differential, skip) = (Setting("differential"), Setting("skip-damaged"));
        let what = "what cannot be read cannot be compared either";
        return Err(Error::new(ErrorKind::Usage, format!("use {differential} with {skip}"), what)
            .hint(format!("with {differential} alone, what is damaged in the repository and whole on the target is not needed")));
    }
    let chunks = manifest.geometry(repo.params())?.chunks();
    let same_bytes = if options.differential { SameChunks::bytes(chunks) } else { 0 };
    let limits = Limits::plan_beside(same_bytes, options.memory, repo.params(), output, threads)?;
    let scope = scope_of(repo, &manifest, options.range.clone(), &limits)?;
    let reading = Reading::begin(run, repo, &manifest, options.lease.clone())?;
    let verified_too = options.verify && matches!(to, To::Path(_));
    run.progress.total_bytes.set(scope.want.end - scope.want.start);
    run.progress.parts.set(1 + u64::from(verified_too) + u64::from(options.differential));
    let salvage = Arc::new(Salvage::new(repo));
    let job =
        Job { run, repo, options, manifest: &manifest, scope, limits, salvage: salvage.clone() };
    let restored = match to {
        To::Path(path) => job.map_reader().and_then(|reader| job.onto(path, reader)),
        To::Output(out) => job.out(out),
    };
    let restored = restored.map_err(|e| reading.explain(run, e));
    let warnings = reading.finish(run);
    let mut summary = restored?;
    let (salvaged, found) = salvage::outcome(&salvage);
    summary.salvaged = salvaged;
    summary.warnings.extend(found.into_iter().chain(warnings));
    summary.elapsed_seconds = begun.elapsed().as_secs_f64();
    summary.requests = repo.store().counts();
    Ok(summary)
}

/// One restore, once it is known what is to be done.
struct Job<'a> {
    run: RunContext<'a>,
    repo: &'a Arc<Repository>,
    options: &'a RestoreOptions,
    manifest: &'a Manifest,
    scope: PlanScope,
    limits: Limits,
    salvage: Arc<Salvage>,
}

impl Job<'_> {
    fn map_reader(&self) -> Result<MapReader> {
        let damage = if self.options.skip_damaged { OnDamage::GoOn } else { OnDamage::Stop };
        self.map_reader_for(damage)
    }

    fn map_reader_for(&self, damage: OnDamage) -> Result<MapReader> {
        let Self { limits, scope, salvage, .. } = self;
        let map = VolumeMap::of(self.repo, self.manifest)?;
        map_reader(self.run, self.repo, map, limits, scope, salvage, damage)
    }

    /// Where damage is collected, if the run is to go on after it.
    fn skip(&self) -> Option<Arc<Damage>> {
        self.options.skip_damaged.then(Arc::default)
    }

    fn run(&self) -> Run<'_> {
        let Self { scope, limits, salvage, .. } = self;
        Run { context: self.run, repo: self.repo, scope, limits, salvage }
    }

    fn out(&self, out: &mut (dyn Write + Send)) -> Result<RestoreSummary> {
        self.run.progress.set_phase(Phase::Moving);
        let skip = self.skip();
        let reader = |damage| self.map_reader_for(damage);
        let figures = salvage::out_in_order(self.run(), reader, out, skip.as_ref())?;
        let mut summary = RestoreSummary::new(self.manifest, &self.scope, &self.limits, &figures);
        summary.damaged = self.skipped(skip.as_deref())?;
        // what was planned and not written was planned again
        let damaged = summary.damaged.as_ref().map_or(0, |damaged| damaged.bytes);
        summary.zero_bytes = figures.streamed.zero_bytes.saturating_sub(damaged);
        Ok(summary)
    }

    fn onto(&self, path: &Path, reader: MapReader) -> Result<RestoreSummary> {
        self.run.cancel.check()?;
        let options = TargetOptions {
            size_bytes: self.scope.geometry.size_bytes(),
            force: self.options.force,
            direct: self.options.direct,
            must_exist: false,
            source_paths: self.options.source_paths_to_refuse.clone(),
        };
        let looking = &|there: &Source| {
            let (keys, reader) = (self.repo.keys(), self.map_reader()?);
            ours::first_of_others(self.run, there, reader, keys)
        };
        let target = Target::open_if(path, &options, looking)?;
        target.io_file().set_cancel_flag(self.run.cancel.flag());
        let (same, warning) = match self.options.differential {
            true => self.compare_first(&target)?,
            false => (None, None),
        };
        if let Some(journal) = &self.options.journal_to_remove {
            JournalFile::remove(journal)?;
        }
        let scope = PlanScope { same, ..self.scope.clone() };
        let job =
            Job { scope, salvage: Arc::clone(&self.salvage), limits: self.limits.clone(), ..*self };
        let mut summary = job.fill(&target, reader).map_err(|e| self.incomplete(&target, e))?;
        summary.warnings.extend(warning);
        Ok(summary)
    }

    /// The chunks that the target has, which nothing has to be done to. Until it returns, the target
    /// is as it was.
    fn compare_first(&self, target: &Target) -> Result<(Option<Arc<SameChunks>>, Option<String>)> {
        let want = &self.scope.want;
        self.run.progress.set_phase(Phase::Comparing);
        if target.created() {
            self.run.progress.begin_part(Phase::Moving, want.end - want.start);
            return Ok((None, None));
        }
        // what waits there to be written would come after what is read now
        target.empty_caches_above();
        let source = target.reopen(self.options.direct)?;
        if let Some(why) = source.stale() {
            // equal is then only what once was there
            let path = target.path().display();
            let warning = format!("{path} could not be compared, so all of it is written: {why}");
            self.run.progress.begin_part(Phase::Moving, want.end - want.start);
            return Ok((None, Some(warning)));
        }
        let same = Arc::new(SameChunks::none(self.scope.chunks()));
        let reader = self.map_reader()?;
        let compared =
            compare_device(&self.run(), self.options.engine, &source, reader, Some(&same))?;
        let there = want.end - want.start - compared.differing.bytes() - self.edge_bytes();
        self.run.progress.unchanged_bytes.add(there);
        self.run.progress.begin_part(Phase::Moving, want.end - want.start - there);
        Ok((Some(same), None))
    }

    /// Wanted bytes of chunks that are wanted in part: those are not compared.
    fn edge_bytes(&self) -> u64 {
        let chunks = self.scope.chunks();
        let first = chunks.start;
        let last = chunks.end.saturating_sub(1);
        let ends = [Some(first), (last != first).then_some(last)];
        let in_part = ends.into_iter().flatten().map(ChunkNo).filter(|at| !self.scope.whole(*at));
        in_part.map(|at| self.scope.clip(at)).map(|clip| clip.end - clip.start).sum()
    }

    /// Writes, flushes, reads back. From here on the target changes.
    fn fill(&self, target: &Target, reader: MapReader) -> Result<RestoreSummary> {
        let arena = Arena::new(self.limits.slots, self.limits.slot_bytes as usize)?;
        let engine = Engine::start(
            self.options.engine,
            &arena,
            target.io_file(),
            self.limits.slots.min(WRITES_IN_FLIGHT),
        )?;
        let (name, notes) = (engine.name(), engine.notes().to_vec());
        // what waits there to be written must not come after what is written now
        let held_before = target.empty_caches_above();
        self.run.progress.set_phase(Phase::Moving);
        let skip = self.skip();
        let to = Destination::Target {
            target,
            engine: Box::new(engine),
            arena: Arc::clone(&arena),
            reads_zero: target.created(),
            skip: skip.clone(),
        };
        let figures = pipeline::run(self.run(), reader, to)?;
        pipeline::check_home(&arena)?;
        drop(arena);
        self.run.progress.set_phase(Phase::Finishing);
        let damaged = self.skipped(skip.as_deref())?;
        if let Some(damaged) = damaged.as_ref().filter(|_| !target.created()) {
            for SkippedRange { offset, len } in &damaged.ranges {
                self.run.cancel.check()?;
                target.deallocate_or_zero(*offset..offset + len)?;
            }
        }
        let edges = &figures.written.edges;
        write_edges(target, edges, self.run.progress)?;
        target.flush()?;
        let held = target.empty_caches_above().or(held_before);
        let mut summary = RestoreSummary::new(self.manifest, &self.scope, &self.limits, &figures);
        if self.options.differential {
            summary.set_same(&figures);
        }
        summary.set_target(target, name, notes);
        summary.warnings.extend(held.map(|why| old_above(target.path(), &why)));
        summary.damaged = damaged;
        if self.options.verify {
            let (verified, warning) = self.read_back(target, edges)?;
            summary.verified = Some(verified);
            summary.warnings.extend(warning);
        }
        Ok(summary)
    }

    fn skipped(&self, damage: Option<&Damage>) -> Result<Option<SkippedDamage>> {
        damage.map_or(Ok(None), |damage| damage.skipped(&self.manifest.backup_id))
    }

    /// Compares what the flushed target returns with the backup.
    fn read_back(
        &self,
        target: &Target,
        edges: &[Edge],
    ) -> Result<(VerifiedTarget, Option<String>)> {
        let want = &self.scope.want;
        self.run.progress.begin_part(Phase::Verifying, want.end - want.start);
        let source = target.reopen(self.options.direct)?;
        let reader = self.map_reader()?;
        let mut compared = compare_device(&self.run(), self.options.engine, &source, reader, None)?;
        for edge in edges {
            compare_edge(&source, edge, &mut compared, self.run.progress)?;
        }
        if compared.differing.is_empty() {
            let verified = VerifiedTarget {
                read_bytes: compared.read_bytes,
                hole_bytes: compared.hole_bytes,
                direct: source.direct(),
            };
            return Ok((verified, source.stale().map(|why| may_be_old(source.path(), why))));
        }
        let what = compared.differing.describe();
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("read {} back", target.path().display()),
            format!("{what} came back other than they were written and flushed"),
        )
        .hint(
            "the device cannot be trusted, or another process wrote to it: see who has it open \
             (lsof), look into the kernel's log and at its health",
        ))
    }

    /// The error of a restore that had begun to write.
    fn incomplete(&self, target: &Target, e: Error) -> Error {
        let backup = &self.manifest.backup_id;
        let place = target.path().display();
        let written = self.run.progress.written_bytes.get() + self.run.progress.zero_bytes.get();
        let detail =
            format!("{place} is incomplete now, do not use it ({written} bytes were written)");
        let again = format!(
            "run the same command again with {force}, and with {differential} to write only what is not there yet; nothing needs to be cleaned up first",
            force = Setting("force"),
            differential = Setting("differential")
        );
        let kind = e.kind();
        let (e, next) = match kind {
            ErrorKind::Corrupt | ErrorKind::Missing => (
                e.without_hint(),
                format!(
                    "with {} {} it writes all that is left; an older or newer backup may be whole, and {}",
                    Setting("force"),
                    Setting("skip-damaged"),
                    Advice::FindWhole.words()
                ),
            ),
            ErrorKind::Cancelled => (e.without_hint(), again),
            _ => (e, again),
        };
        Error::new(kind, format!("restore backup {backup} onto {place}"), detail)
            .caused_by(e)
            .hint(next)
    }
}

/// That a device above the target may show what was there before.
fn old_above(path: &Path, why: &str) -> String {
    format!(
        "{} was written, but what is above it may still show what was there before: {why}; let \
         those who have that open close it before it is used",
        path.display()
    )
}

/// Bytes of an edge as they come back.
fn compare_edge(
    source: &Source,
    edge: &Edge,
    compared: &mut Compared,
    progress: &Progress,
) -> Result<()> {
    let len = edge.bytes.len();
    let mut bytes = vec![0; len];
    source.read_exact_at(&mut bytes, edge.offset)?;
    compared.read_bytes += len as u64;
    progress.done_bytes.add(len as u64);
    if bytes != edge.bytes {
        compared.differing.insert(edge.offset..edge.offset + len as u64);
    }
    Ok(())
}
