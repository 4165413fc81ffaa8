//! `backup`.

use super::super::args::BackupArgs;
use super::super::context::{Context, host, tool};
use super::super::metrics::Reads;
use super::super::repository;
use super::super::settings::{Resources, parse_compression, parse_labels};
use super::super::sizes::{parse_rate, parse_size};
use super::super::sources;
use super::super::summary::backup_text;
use super::super::watch::Watch;
use crate::backup::{AuditAmount, BackupOptions, ParentChoice, backup as run};
use crate::control::Progress;
use crate::nbd::{NbdUri, is_nbd};
use chunkstore::{BackupId, Error, ErrorKind, Result, SnapshotInfo, VolumeName};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

pub(crate) fn backup(ctx: &Context, args: BackupArgs) -> Result<()> {
    let fail_on_degraded = args.fail_on_degraded;
    let options = options(ctx, args)?;
    // before a repository is made for it
    if is_nbd(&options.source) {
        NbdUri::of_path(&options.source)?;
    } else if let Err(e) = std::fs::metadata(&options.source) {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Device,
        };
        return Err(Error::new(kind, format!("open {}", options.source.display()), "").caused_by(e));
    }
    let repository = repository::open_or_make(ctx)?;
    let progress = Progress::new();
    if let Some(volume) = &options.volume {
        ctx.telemetry.set_volume(volume.as_str());
    }
    let watch = Watch::start(ctx, &progress, Reads::Device, repository.store());
    let done = run(ctx.runtime()?, &repository, &options, &progress, &ctx.cancel);
    drop(watch);
    let summary = done?;
    for warning in summary.warnings.iter().chain(&summary.degraded) {
        ctx.output.warn(warning);
    }
    ctx.output.summary(&backup_text(&summary), &summary)?;
    match summary.degraded.first() {
        Some(why) if fail_on_degraded => {
            let what = format!("back up {}", summary.volume);
            Err(Error::new(ErrorKind::Degraded, what, format!("committed, but {why}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn checkpoint_bytes(text: Option<String>) -> Result<Option<u64>> {
    match text.map(|t| parse_size(&t)).transpose()? {
        Some(0) => {
            Err(Error::new(ErrorKind::Usage, "use --checkpoint-interval", "0 bytes is no interval")
                .hint("give a size, such as 1GiB"))
        }
        bytes => Ok(bytes),
    }
}

/// The default place is a cache of the user's; a container without a writable root has none.
pub(super) fn scratch(resources: &Resources) -> Option<PathBuf> {
    let dir = resources.scratch.clone()?;
    if resources.scratch_is_default
        && let Err(e) = DirBuilder::new().recursive(true).mode(0o700).create(&dir)
        && matches!(e.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
    {
        tracing::info!("no scratch directory {}: {e}", dir.display());
        return None;
    }
    Some(dir)
}

fn options(ctx: &Context, args: BackupArgs) -> Result<BackupOptions> {
    let some = |text: Option<String>| text.filter(|t| !t.is_empty());
    let snapshot = SnapshotInfo {
        id: some(args.snapshot.snapshot),
        base_id: some(args.changes.base_snapshot.clone()),
        csi_driver: some(args.snapshot.csi_driver),
        volume_handle: some(args.snapshot.volume_handle),
        snapshot_handle: some(args.snapshot.snapshot_handle),
        change_id: some(args.snapshot.change_id),
    };
    let resources = &ctx.settings.resources;
    Ok(BackupOptions {
        volume: some(args.volume).map(VolumeName::new).transpose()?,
        backup_id: some(args.backup_id).map(BackupId::new).transpose()?,
        changes: sources::request(&args.changes, &snapshot, Some(&args.source))?,
        source: args.source,
        parent: match args.parent.as_str() {
            "" | "auto" => ParentChoice::Auto,
            "none" => ParentChoice::None,
            _ => ParentChoice::Id(args.parent),
        },
        base_snapshot: some(args.changes.base_snapshot.clone()),
        snapshot,
        compression: parse_compression(&args.compression)?,
        labels: parse_labels(&args.label)?,
        memory: resources.memory,
        engine: resources.engine,
        direct: resources.direct,
        scratch: scratch(resources),
        threads: resources.threads,
        checkpoint_bytes: checkpoint_bytes(args.checkpoint_interval)?,
        limit_read: parse_rate("--limit-read", args.limits.limit_read.as_deref())?,
        audit: some(args.audit).map_or(Ok(AuditAmount::default()), |text| text.parse())?,
        tool: tool(),
        host: host(),
    })
}
