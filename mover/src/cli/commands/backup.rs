//! `backup`.

use super::super::args::{BackupArgs, KindArg};
use super::super::context::{Context, host, tool};
use super::super::progress::ProgressView;
use super::super::repository;
use super::super::settings::{parse_compression, parse_labels};
use super::super::sizes::{parse_rate, parse_size};
use super::super::summary::backup_text;
use crate::backup::{BackupOptions, ChangedBlocksInput, ParentChoice, backup as run};
use crate::control::Progress;
use chunkstore::{BackupId, ChangeKind, Error, ErrorKind, Result, SnapshotInfo, VolumeName};

pub(crate) fn backup(ctx: &Context, args: BackupArgs) -> Result<()> {
    let fail_on_degraded = args.fail_on_degraded;
    let options = options(ctx, args)?;
    // before a repository is made for it
    if let Err(e) = std::fs::metadata(&options.source) {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Device,
        };
        return Err(Error::new(kind, format!("open {}", options.source.display()), "").caused_by(e));
    }
    let repository = repository::open_or_make(ctx)?;
    let progress = Progress::new();
    let view = ProgressView::start(&ctx.output, &progress);
    let done = run(ctx.runtime()?, &repository, &options, &progress, &ctx.cancel);
    drop(view);
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

fn checkpoint_bytes(text: Option<String>) -> Result<Option<u64>> {
    match text.map(|t| parse_size(&t)).transpose()? {
        Some(0) => {
            Err(Error::new(ErrorKind::Usage, "use --checkpoint-interval", "0 bytes is no interval")
                .hint("give a size, such as 1GiB"))
        }
        bytes => Ok(bytes),
    }
}

fn options(ctx: &Context, args: BackupArgs) -> Result<BackupOptions> {
    let some = |text: Option<String>| text.filter(|t| !t.is_empty());
    let list = args.changes.changed_blocks.filter(|p| !p.as_os_str().is_empty());
    if list.is_none() {
        for (flag, given) in [
            ("--changed-blocks-kind", args.changes.changed_blocks_kind.is_some()),
            ("--base-snapshot", args.changes.base_snapshot.as_ref().is_some_and(|s| !s.is_empty())),
        ] {
            if given {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!("use {flag}"),
                    "there is no list of changed blocks",
                )
                .hint("give one with --changed-blocks"));
            }
        }
    }
    let resources = &ctx.settings.resources;
    Ok(BackupOptions {
        source: args.source,
        volume: some(args.volume).map(VolumeName::new).transpose()?,
        backup_id: some(args.backup_id).map(BackupId::new).transpose()?,
        changed_blocks: list.map(|path| match path.to_str() {
            Some("-") => ChangedBlocksInput::Stdin,
            _ => ChangedBlocksInput::Path(path),
        }),
        kind: args.changes.changed_blocks_kind.map(|kind| match kind {
            KindArg::Delta => ChangeKind::Delta,
            KindArg::Allocated => ChangeKind::Allocated,
        }),
        parent: match args.parent.as_str() {
            "" | "auto" => ParentChoice::Auto,
            "none" => ParentChoice::None,
            _ => ParentChoice::Id(args.parent),
        },
        base_snapshot: some(args.changes.base_snapshot.clone()),
        snapshot: SnapshotInfo {
            id: some(args.snapshot.snapshot),
            base_id: some(args.changes.base_snapshot),
            csi_driver: some(args.snapshot.csi_driver),
            volume_handle: some(args.snapshot.volume_handle),
            snapshot_handle: some(args.snapshot.snapshot_handle),
            change_id: some(args.snapshot.change_id),
        },
        compression: parse_compression(&args.compression)?,
        labels: parse_labels(&args.label)?,
        memory: resources.memory,
        engine: resources.engine,
        direct: resources.direct,
        scratch: resources.scratch.clone(),
        threads: resources.threads,
        checkpoint_bytes: checkpoint_bytes(args.checkpoint_interval)?,
        limit_read: parse_rate("--limit-read", args.limits.limit_read.as_deref())?,
        tool: tool(),
        host: host(),
    })
}
