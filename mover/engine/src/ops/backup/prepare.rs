//! What is decided before a writer begins, by a backup and by a forecast of one alike: source,
//! list, parents, bounds, plan.
//!
//! Nothing here writes to the repository, and nothing needs a lease.

use super::attach::{self, Attached};
use super::parent::Known;
use super::{BackupOptions, ladder, same};
use crate::ingest::{Bounds, damage};
use crate::run::RunContext;
use crate::volume::device::{Source, SourceOptions};
use chunkstore::{
    Error, ErrorKind, Geometry, Manifest, Repository, Result, Setting, VolumeName,
    format::ChangeKind, map::ReadLimits, repository::DamagedSet,
};
use mover_changes::{BackupPlan, ChangeSource, ChangedBlocks, Changes, PlanInput, plan_backup};
use mover_extents::Extents;
use std::ops::Range;
use std::sync::Arc;

/// What is decided before a writer begins.
pub(super) struct Prepared {
    pub(super) source: Source,
    /// What names the disk or the file system on it.
    pub(super) identity: Option<String>,
    /// What tells whether it is written to meanwhile.
    pub(super) written: Option<String>,
    pub(super) volume: VolumeName,
    pub(super) geometry: Geometry,
    pub(super) changes: Option<ChangedBlocks>,
    pub(super) bounds: Bounds,
    pub(super) warnings: Vec<String>,
    /// Each step down from what was asked for, and why the source may not be of one time.
    pub(super) degraded: Vec<String>,
    /// What is stored besides the volume, ascending by name.
    pub(super) attached: Vec<Attached>,
}

pub(super) fn prepare(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    options: &BackupOptions,
) -> Result<(Prepared, Known)> {
    same::check_names(options)?;
    let attached = attach::open(&options.attachments, options.temporary.as_deref())?;
    if !attached.is_empty() {
        run.wait_to_begin(repo.refuse_without_attachments("back up with attachments into"))?;
    }
    let source = Source::open(&options.source, SourceOptions { direct: options.direct })?;
    source.io_file().set_cancel_flag(run.cancel.flag());
    let geometry = Geometry::new(source.size_bytes(), repo.params().chunk)
        .map_err(|e| e.within(format!("back up {}", options.source.display())))?;
    let written = source.written();
    let mut degraded = Vec::new();
    if let Some(why) = source.stale() {
        degraded.push(format!(
            "{} is read through a page cache that may be older than the device ({why}): the backup \
             may hold old data; read it with O_DIRECT ({direct_io} auto), or let the program have \
             CAP_SYS_ADMIN",
            options.source.display(),
            direct_io = Setting("direct-io")
        ));
    }
    if let Some(mount) = source.mounted_read_write()? {
        degraded.push(format!(
            "{} is mounted read-write at {}: the backup may be inconsistent; back up a snapshot instead",
            options.source.display(),
            mount.display()
        ));
    }
    let chunk = repo.params().chunk;
    let ladder = ladder::Ladder { run, repo, options, source: &source, chunk };
    let chosen = ladder.choose()?;
    let bounds = bounds(repo, options)?;
    let ladder::Choice { list: changes, volume, known, steps } = chosen;
    let identity = source.identity()?;
    degraded.extend(steps);
    let warnings = changes.as_ref().map_or_else(Vec::new, |list| list.notes.clone());
    let prepared = Prepared {
        source,
        identity,
        written,
        volume,
        geometry,
        changes,
        bounds,
        warnings,
        degraded,
        attached,
    };
    same::check_source(run, repo, options, &prepared, &known)?;
    Ok((prepared, known))
}

fn bounds(repo: &Repository, options: &BackupOptions) -> Result<Bounds> {
    let params = repo.params();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(cores);
    let mut bounds = Bounds::derive(
        options.memory,
        params.chunk,
        params.entry_chunks,
        params.page_fanout,
        threads,
        options.compression,
    )?;
    if let Some(rate) = repo.store().limits().upload {
        bounds.pace(rate);
    }
    tracing::info!("{}", bounds.line());
    Ok(bounds)
}

impl Prepared {
    /// Bytes that an image file has no blocks for. Asked for again in each round: asking is cheap,
    /// and the file may have been discarded from.
    pub(super) fn holes(&self) -> Result<Option<Extents>> {
        let data = self.source.data_ranges()?;
        let all = Extents::of(0..self.geometry.size_bytes());
        Ok(data.map(|data| all.subtract(&data.into_iter().collect())))
    }

    /// Says it if somebody has written to the source since it was opened: chunks that were read
    /// before and after then are of two times. Asked in each round.
    pub(super) fn note_writes(&mut self) {
        let Some(before) = &self.written else { return };
        if self.source.written().is_some_and(|now| now != *before) {
            self.written = None;
            self.degraded.push(format!(
                "{} was written to while it was read: the backup may hold what never was there at \
                 one time; back up a snapshot",
                self.source.path().display()
            ));
        }
    }

    /// What to do on top of this parent, and the chunks of it that cannot be inherited as they are
    /// damaged.
    pub(super) fn plan(
        &self,
        run: RunContext<'_>,
        repo: &Repository,
        parent: Option<&Manifest>,
        damaged: &DamagedSet,
    ) -> Result<(BackupPlan, Vec<Range<u64>>)> {
        let of = parent.map(|m| Geometry::new(m.size_bytes, self.geometry.chunk())).transpose()?;
        let plan = self.plan_on(of)?;
        if !plan.inherit {
            return Ok((plan, Vec::new()));
        }
        let limits = ReadLimits::within(self.bounds.map_read_bytes);
        let lost = damage::damaged_of_parent(run, repo, parent, damaged, limits)?;
        Ok((plan.read_again(self.geometry, &lost), lost))
    }

    /// What to do on top of a parent of this size in which nothing is damaged.
    pub(super) fn plan_on(&self, parent: Option<Geometry>) -> Result<BackupPlan> {
        let holes = self.holes()?;
        let changes = self.changes.as_ref().map_or(Changes::Whole, Changes::List);
        let input = PlanInput { geometry: self.geometry, parent, changes, holes: holes.as_ref() };
        plan_backup(&input)
    }

    /// That the parent of a delta is gone.
    pub(super) fn check_parent(&self, options: &BackupOptions, is_there: bool) -> Result<()> {
        let delta = self.changes.as_ref().is_some_and(|c| c.kind == ChangeKind::Delta);
        if is_there || !delta {
            return Ok(());
        }
        // a list that is asked for is asked for anew by the next run, which finds another way
        let given = options.changes.sources.iter().any(ChangeSource::is_given);
        let kind = if given { ErrorKind::NotFound } else { ErrorKind::Unavailable };
        Err(Error::new(
            kind,
            format!("use a delta list for {}", self.volume),
            "the backup that it builds on was forgotten meanwhile",
        )
        .hint(if given { "run the backup without a list" } else { "run it again" }))
    }
}
