//! Proving that a backup can be restored, or that a device holds what a backup says.
//!
//! Without a device, everything that a restore would read is read and checked: every page and every
//! chunk against its id. What is damaged or missing is collected, so that one run names all of it.
//! With a device, the device is read and compared with the map's ids; no chunk is fetched. Either
//! way nothing is written, and no dedup segment is read.

mod options;

pub use options::VerifyOptions;

use crate::reading::compare::{Compared, compare_device, longer_file, may_be_old};
use crate::reading::damage::Damage;
use crate::reading::limits::{LimitLine, Limits, OutputKind};
use crate::reading::pipeline::{self, Destination, ReadingFigures, Run};
use crate::reading::{
    OnDamage, Reading, SalvagedParts, find, map_reader, salvage, scope_of, scope_of_map,
};
use crate::run::threads::cores;
use crate::run::{Cancel, Phase, Progress, RunContext};
use crate::volume::device::{DeviceKind, Source, SourceOptions};
use chunkstore::salvage::Salvage;
use chunkstore::{
    Error, ErrorKind, Manifest, MapReader, Repository, Result, Setting, VolumeMap,
    format::{ChangeKind, SourceInfo},
    store::RequestCounts,
};
use mover_changes::ListOrigin;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;

/// Result of a verification that found nothing wrong.
#[derive(Debug, Clone, Serialize)]
pub struct VerifySummary {
    /// Backup that was verified.
    pub backup_id: String,
    /// Its volume.
    pub volume: String,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// The device that it was compared with.
    pub device: Option<String>,
    /// Size of the device; what lies behind the volume was not looked at.
    pub device_bytes: Option<u64>,
    /// Of the backup: bytes of its attachments that were checked, besides the volume.
    pub attachment_bytes: u64,
    /// Bytes of chunks that were checked.
    pub checked_bytes: u64,
    /// Chunks of the backup's data that were checked, repeated ones once for each place.
    pub chunks: u64,
    /// Bytes that the map says are zero.
    pub zero_bytes: u64,
    /// Of the device: bytes that were read.
    pub read_bytes: u64,
    /// Of an image: bytes in holes, which read as zeros by definition.
    pub hole_bytes: u64,
    /// Of the backup: bytes of packs that were read, map pages apart.
    pub fetched_bytes: u64,
    /// Of the backup: range reads of packs, map pages apart.
    pub reads: u64,
    /// Map pages that were checked.
    pub pages: u64,
    /// What was damaged and found elsewhere in the repository; nothing was lost by it.
    pub salvaged: Option<SalvagedParts>,
    /// All of it.
    pub elapsed_seconds: f64,
    /// Requests to the store so far.
    pub requests: RequestCounts,
    /// What memory was divided into.
    pub limits: Vec<LimitLine>,
    /// What did not go as it should, without harm.
    pub warnings: Vec<String>,
}

/// Verifies a backup. The calling thread drives it and must not be one of the runtime's.
///
/// Damage and differences are errors of kind `Corrupt` or `Missing` that name the byte ranges of
/// the volume.
pub fn verify(
    rt: &Handle,
    repo: &Arc<Repository>,
    options: VerifyOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<VerifySummary> {
    let begun = Instant::now();
    let context = RunContext { rt, cancel, progress };
    progress.set_phase(Phase::Planning);
    let manifest = find(context, repo, &options.backup)?;
    let source =
        options.device.as_deref().map(|path| open(path, &options, &manifest)).transpose()?;
    source.iter().for_each(|source| source.io_file().set_cancel_flag(cancel.flag()));
    let output = if source.is_some() { OutputKind::Slots } else { OutputKind::Nowhere };
    let threads = options.threads.unwrap_or_else(cores);
    let limits = Limits::plan(options.memory, repo.params(), output, threads)?;
    let scope = scope_of(repo, &manifest, None, &limits)?;
    let reading = Reading::begin(context, repo, &manifest, options.lease.clone())?;
    let attached = match &source {
        Some(_) => 0,
        None => manifest.attachments.iter().map(|attachment| attachment.size_bytes).sum(),
    };
    progress.total_bytes.set(manifest.size_bytes + attached);
    progress.set_phase(Phase::Verifying);
    let salvage = Arc::new(Salvage::new(repo));
    let run = Run { context, repo, scope: &scope, limits: &limits, salvage: &salvage };
    let verified = match &source {
        Some(source) => against(&run, &manifest, source, &options),
        None => data(&run, &manifest),
    };
    let verified = verified.map_err(|e| reading.explain(context, e));
    let warnings = reading.finish(context);
    let mut summary = verified?;
    let (salvaged, found) = salvage::outcome(&salvage);
    summary.salvaged = salvaged;
    summary.warnings.extend(found.into_iter().chain(warnings));
    summary.elapsed_seconds = begun.elapsed().as_secs_f64();
    summary.requests = repo.store().counts();
    Ok(summary)
}

fn reader_of(run: &Run<'_>, manifest: &Manifest, damage: OnDamage) -> Result<MapReader> {
    let Run { context, repo, scope, limits, salvage } = *run;
    let map = VolumeMap::of(repo, manifest)?;
    map_reader(context, repo, map, limits, scope, salvage, damage)
}

/// Reads and checks everything that a restore would.
fn data(run: &Run<'_>, manifest: &Manifest) -> Result<VerifySummary> {
    let reader = reader_of(run, manifest, OnDamage::GoOn)?;
    let damage = Arc::new(Damage::default());
    let figures = pipeline::run(*run, reader, Destination::Check(Arc::clone(&damage)));
    let found = damage.to_result(&manifest.backup_id);
    let figures = match (figures, found) {
        (Ok(figures), Ok(())) => figures,
        // what was damaged says more than that the run was stopped
        (_, Err(damaged)) => return Err(damaged),
        (Err(e), Ok(())) => return Err(e),
    };
    let mut summary = VerifySummary::new(manifest, run.limits);
    summary.add(&figures);
    for attachment in &manifest.attachments {
        let Some(map) = VolumeMap::of_attachment(run.repo, manifest, attachment)? else { continue };
        let damaged = |e: Error| {
            e.within(format!("verify attachment {}", attachment.name))
                .hint("the volume itself is whole, and can be restored")
        };
        summary.add(&attached(run, map).map_err(damaged)?);
        summary.attachment_bytes += attachment.size_bytes;
    }
    Ok(summary)
}

/// Reads and checks all of an attachment.
fn attached(run: &Run<'_>, map: VolumeMap) -> Result<ReadingFigures> {
    let Run { context, repo, limits, salvage, .. } = *run;
    let scope = scope_of_map(repo, &map, limits);
    let reader = map_reader(context, repo, map, limits, &scope, salvage, OnDamage::GoOn)?;
    let damage = Arc::new(Damage::default());
    let run = Run { scope: &scope, ..*run };
    let figures = pipeline::run(run, reader, Destination::Check(Arc::clone(&damage)));
    damage.take_first().map_or(figures, Err)
}

/// Compares a device with the map.
fn against(
    run: &Run<'_>,
    manifest: &Manifest,
    source: &Source,
    options: &VerifyOptions,
) -> Result<VerifySummary> {
    let reader = reader_of(run, manifest, OnDamage::Stop)?;
    let compared = compare_device(run, options.engine, source, reader, None)?;
    if !compared.differing.is_empty() {
        let what = compared.differing.describe();
        return Err(differs(manifest, source, what).hint(why_it_may(manifest)));
    }
    let Compared { read_bytes, hole_bytes, pages, .. } = compared;
    let mut summary = VerifySummary::new(manifest, run.limits);
    summary.device = Some(source.path().display().to_string());
    summary.device_bytes = Some(source.size_bytes());
    summary.checked_bytes = read_bytes + hole_bytes;
    summary.zero_bytes = run.context.progress.zero_bytes.get();
    summary.read_bytes = read_bytes;
    summary.hole_bytes = hole_bytes;
    summary.pages = pages;
    summary.warnings.extend(source.stale().map(|why| may_be_old(source.path(), why)));
    if source.kind() == DeviceKind::File {
        let (path, is_bytes) = (source.path(), source.size_bytes());
        let longer = longer_file(path, is_bytes, manifest.size_bytes);
        summary.warnings.extend(longer.map(|longer| format!("{longer} were not compared")));
    }
    Ok(summary)
}

fn open(path: &Path, options: &VerifyOptions, manifest: &Manifest) -> Result<Source> {
    let options = SourceOptions { direct: options.direct };
    let source = Source::open_for(path, options, Some(manifest.size_bytes))?;
    if source.size_bytes() < manifest.size_bytes {
        let what =
            format!("it has {} bytes, the volume has {}", source.size_bytes(), manifest.size_bytes);
        return Err(differs(manifest, &source, what).hint("choose a device or image of that size"));
    }
    Ok(source)
}

fn differs(manifest: &Manifest, source: &Source, what: String) -> Error {
    let (backup, device) = (&manifest.backup_id, source.path().display());
    let context = format!("compare {device} with backup {backup} of volume {}", manifest.volume);
    Error::new(ErrorKind::Corrupt, context, format!("they differ: {what}"))
}

/// Why the content of a device may be other than the backup's without harm.
fn why_it_may(manifest: &Manifest) -> String {
    let mut why = "a device that was written to since that backup differs rightly".to_owned();
    let SourceInfo { kind, origin, .. } = &manifest.source;
    if *kind == ChangeKind::Allocated && origin == ListOrigin::FileSystem.as_str() {
        why += &format!(
            "; so does its own source: the backup was made with {allocated_from} filesystem, \
                and has zeros where the file system has free space",
            allocated_from = Setting("allocated-from")
        );
    }
    why
}

impl VerifySummary {
    fn add(&mut self, ReadingFigures { fetch, open, .. }: &ReadingFigures) {
        let get = crate::reading::get;
        self.checked_bytes += open.plain_bytes;
        self.chunks += open.chunks;
        self.zero_bytes += get(&fetch.zero_bytes);
        self.fetched_bytes += get(&fetch.read_bytes);
        self.reads += get(&fetch.reads);
        self.pages += get(&fetch.pages);
    }

    fn new(manifest: &Manifest, limits: &Limits) -> Self {
        Self {
            backup_id: manifest.backup_id.to_string(),
            volume: manifest.volume.to_string(),
            volume_bytes: manifest.size_bytes,
            device: None,
            device_bytes: None,
            attachment_bytes: 0,
            checked_bytes: 0,
            chunks: 0,
            zero_bytes: 0,
            read_bytes: 0,
            hole_bytes: 0,
            fetched_bytes: 0,
            reads: 0,
            pages: 0,
            salvaged: None,
            elapsed_seconds: 0.0,
            requests: RequestCounts::default(),
            limits: limits.lines(),
            warnings: Vec::new(),
        }
    }
}
