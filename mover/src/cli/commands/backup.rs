//! `backup`.

use super::super::args::{BackupArgs, QuotaArgs};
use super::super::context::{Context, host, tool};
use super::super::metrics::Reads;
use super::super::repository;
use super::super::retain::retain_policy;
use super::super::settings::{Resources, parse_attachments, parse_compression, parse_labels};
use super::super::sources;
use super::super::summary::backup_text;
use super::super::table::Page;
use super::super::watch::Watch;
use super::disk_cache::temporary_directory;
use chrono::Utc;
use chunkstore::{
    BackupId, Error, ErrorKind, Result, Store, VolumeName, format::SnapshotInfo,
    store::RequestCounts,
};
use mover_engine::ops::backup::{
    AuditAmount, BackupOptions, ParentChoice, backup as run, check_attachments,
};
use mover_engine::run::Progress;
use mover_engine::run::quota::Quota;
use mover_engine::sizes::{parse_rate, parse_size, parse_time, show_bytes};
use mover_engine::volume::device::check_address;
use mover_nbd::is_nbd;
use serde::Serialize;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) fn backup(ctx: &Context, args: BackupArgs) -> Result<()> {
    let fail_on_degraded = args.fail_on_degraded;
    let after = deadline(&args.storing.quota)?;
    let (plans, price) = (args.plan.plan, args.plan.price.price_file.clone());
    let retain = retain_policy(&args.storing.retain, Utc::now())?;
    let options = options(ctx, args)?;
    // before a repository is made for it
    if is_nbd(&options.source) {
        check_address(&options.source)?;
    } else if let Err(e) = std::fs::metadata(&options.source) {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Device,
        };
        return Err(Error::caused(kind, format!("open {}", options.source.display()), e));
    }
    check_attachments(&options.attachments)?;
    if let Some(volume) = &options.volume {
        ctx.telemetry.set_volume(volume.as_str());
    }
    let deadline = ctx.supervisor.deadline(after);
    let temporary = (!options.attachments.is_empty()).then(|| temporary_directory(ctx));
    let options = BackupOptions { temporary, ..options };
    if plans {
        return super::plan::plan(ctx, &options, price.as_deref());
    }
    let scratch = scratch(&ctx.settings.resources);
    let options = BackupOptions { scratch, ..options };
    let repository = repository::open_or_make(ctx, retain)?;
    let progress = Progress::new();
    let watch = Watch::start(ctx, &progress, Reads::Device, repository.store());
    let begun = Instant::now();
    let done = run(ctx.runtime()?, &repository, &options, &progress, &ctx.cancel);
    drop((watch, deadline));
    if let Err(e) = &done
        && (e.kind() == ErrorKind::Limit
            || (e.kind() == ErrorKind::Cancelled && ctx.cancel.bound().is_some()))
    {
        let stopped = Stopped::of(&options, &progress, repository.store(), begun.elapsed());
        ctx.output.summary(&stopped.text(), &stopped)?;
    }
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

/// What a run did that has kept to a bound.
#[derive(Debug, Serialize)]
struct Stopped {
    outcome: &'static str,
    volume: Option<String>,
    elapsed_seconds: f64,
    read_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    /// All bytes that were sent, leases and what was sent again included.
    uploaded_bytes: u64,
    requests: RequestCounts,
}

impl Stopped {
    fn of(options: &BackupOptions, progress: &Progress, store: &Store, elapsed: Duration) -> Self {
        Self {
            outcome: "stopped",
            volume: options.volume.as_ref().map(ToString::to_string),
            elapsed_seconds: elapsed.as_secs_f64(),
            read_bytes: progress.read_bytes.get(),
            new_bytes: progress.new_bytes.get(),
            stored_bytes: progress.stored_bytes.get(),
            uploaded_bytes: store.sent().total(),
            requests: store.counts(),
        }
    }

    fn text(&self) -> String {
        let mut page = Page::default();
        page.line("outcome", "stopped at a bound, not committed");
        page.line("read", &show_bytes(self.read_bytes));
        page.line("new", &show_bytes(self.new_bytes));
        page.line("uploaded", &show_bytes(self.uploaded_bytes));
        page.line("requests", &self.requests.total().to_string());
        page.0
    }
}

/// When the run has to end.
pub(super) fn deadline(args: &QuotaArgs) -> Result<Option<Duration>> {
    let Some(text) = args.deadline.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match parse_time("--deadline", text)? {
        Duration::ZERO => {
            Err(Error::new(ErrorKind::Usage, "use --deadline", "in no time nothing can be done")
                .hint("give a time, such as 2h, or leave it out"))
        }
        after => Ok(Some(after)),
    }
}

/// What the run may send.
pub(super) fn quota(args: &QuotaArgs) -> Result<Quota> {
    let upload = args.max_upload.as_deref().filter(|text| !text.is_empty());
    let upload = upload.map(|t| parse_size(t).map_err(|e| e.within("use --max-upload")));
    Ok(Quota { upload_bytes: upload.transpose()?, requests: args.max_requests })
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

/// `latest` names the newest backup of a volume wherever one is named.
fn backup_id(text: String) -> Result<BackupId> {
    if text == "latest" {
        let what = "use --backup-id latest";
        return Err(Error::new(ErrorKind::Usage, what, "this word means the newest backup"));
    }
    BackupId::new(text)
}

fn options(ctx: &Context, args: BackupArgs) -> Result<BackupOptions> {
    let non_empty = |text: Option<String>| text.filter(|t| !t.is_empty());
    let snapshot = SnapshotInfo {
        id: non_empty(args.snapshot.snapshot),
        base_id: non_empty(args.changes.base_snapshot.clone()),
        csi_driver: non_empty(args.snapshot.csi_driver),
        volume_handle: non_empty(args.snapshot.volume_handle),
        snapshot_handle: non_empty(args.snapshot.snapshot_handle),
        change_id: non_empty(args.snapshot.change_id),
    };
    let resources = &ctx.settings.resources;
    Ok(BackupOptions {
        volume: non_empty(args.volume).map(VolumeName::new).transpose()?,
        backup_id: non_empty(args.backup_id).map(backup_id).transpose()?,
        changes: sources::request(&args.changes, &snapshot, Some(&args.source))?,
        source: args.source,
        parent: match args.parent.as_str() {
            "" | "auto" => ParentChoice::Auto,
            "none" => ParentChoice::None,
            _ => ParentChoice::Id(args.parent),
        },
        base_snapshot: non_empty(args.changes.base_snapshot.clone()),
        snapshot,
        volume_changed: args.volume_changed,
        compression: parse_compression(&args.storing.compression)?,
        labels: parse_labels(&args.label)?,
        attachments: parse_attachments(&args.attach, &args.attach_digest)?,
        memory: resources.memory,
        engine: resources.engine,
        direct: resources.direct,
        // made when it is known that something is to be written
        scratch: None,
        temporary: None,
        threads: resources.threads,
        checkpoint_bytes: checkpoint_bytes(args.storing.checkpoint_interval)?,
        quota: quota(&args.storing.quota)?,
        limit_read: parse_rate("--limit-read", args.limits.limit_read.as_deref())?,
        audit: non_empty(args.audit).map_or(Ok(AuditAmount::default()), |text| text.parse())?,
        tool: tool(),
        host: host(),
    })
}
