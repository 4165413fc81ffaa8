//! `restore` and `verify`.

mod live;

use super::super::args::{ReadingArgs, RestoreArgs, VerifyArgs};
use super::super::context::{Context, host, tool};
use super::super::metrics::Reads;
use super::super::repository;
use super::super::settings::RepositoryPlace;
use super::super::summary::{restore_text, verify_text};
use super::super::watch::Watch;
use super::browse::find;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Result};
use mover_engine::ops::restore::{
    LEASE_SECONDS, RestoreOptions, RestoreSummary, RestoreTarget, restore_found,
};
use mover_engine::ops::verify::{VerifyOptions, verify as run_verify};
use mover_engine::reading::SkippedDamage;
use mover_engine::run::Progress;
use mover_engine::sizes::parse_range;
use mover_engine::volume::device::leads_into;
use mover_engine::volume::device::{Source, SourceOptions};
use mover_nbd::is_nbd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

pub(crate) fn restore(ctx: &Context, args: RestoreArgs) -> Result<()> {
    if args.live.live || args.live.abandon {
        return live::restore(ctx, args);
    }
    live::refuse_its_flags(&args.live)?;
    let Some(target) = args.target else {
        let what = "no target is named";
        return Err(Error::new(ErrorKind::Usage, "restore a backup", what)
            .hint("mover restore BACKUP TARGET"));
    };
    let target = if target.as_os_str() == "-" {
        if args.verify {
            return Err(Error::new(ErrorKind::Usage, "use --verify", "stdout cannot be read back"));
        }
        if ctx.settings.output.stdout_is_terminal {
            return Err(Error::new(ErrorKind::Usage, "restore to stdout", "it is a terminal")
                .hint("send it into a pipe or a file"));
        }
        ctx.output.reserve_stdout();
        RestoreTarget::Stdout
    } else {
        live::refuse_unfinished(&target, args.force)?;
        RestoreTarget::Path(target)
    };
    let range = args.range.filter(|r| !r.is_empty());
    let resources = &ctx.settings.resources;
    let range = range.as_deref().map(parse_range).transpose()?;
    let repository = repository::open(ctx)?;
    let manifest = find(ctx, &repository, &args.backup)?;
    let source_paths_to_refuse = protect(ctx, &target, &manifest, args.force)?;
    let given_up = match args.force {
        true => live::GivenUp::of(ctx, &target, &repository)?,
        false => None,
    };
    let options = RestoreOptions {
        source_paths_to_refuse,
        journal_to_remove: given_up.as_ref().map(|given_up| given_up.journal.clone()),
        // the very backup that was looked at: `latest` may be another one by now
        backup: format!("{}@{}", manifest.volume, manifest.backup_id),
        target,
        force: args.force,
        differential: args.differential,
        verify: args.verify,
        skip_damaged: args.skip_damaged,
        range,
        lease: lease(&args.reading),
        memory: resources.memory,
        engine: resources.engine,
        direct: resources.direct,
        threads: resources.threads,
    };
    let progress = Progress::new();
    ctx.telemetry.set_volume(manifest.volume.as_str());
    let watch = Watch::start(ctx, &progress, Reads::Store, repository.store());
    let done =
        restore_found(ctx.runtime()?, &repository, manifest, options, &progress, &ctx.cancel);
    drop(watch);
    if let Some(given_up) = given_up {
        given_up.release(ctx, &repository);
    }
    let summary = done?;
    for warning in &summary.warnings {
        ctx.output.warn(warning);
    }
    ctx.output.summary(&restore_text(&summary), &summary)?;
    not_all(&summary)
}

/// A restore that left something out did what it was asked for, and yet not what a restore is for.
fn not_all(summary: &RestoreSummary) -> Result<()> {
    let Some(damaged) = &summary.damaged else { return Ok(()) };
    let context = format!("restore backup {} to {}", summary.backup_id, summary.target);
    Err(left_out(context, damaged, "zero there"))
}

fn left_out(context: String, damaged: &SkippedDamage, is: &str) -> Error {
    let detail = format!(
        "{} bytes in {} ranges are damaged or missing, and {is}; the first: {}",
        damaged.bytes,
        damaged.ranges.len(),
        damaged.first
    );
    Error::new(ErrorKind::Corrupt, context, detail)
        .hint("the summary lists the ranges; all else is as it was backed up")
}

/// Refuses targets that would destroy what the restore itself, or the next one, depends on: the
/// repository whatever `--force` says, and without it what the backup was made of. Gives the files
/// that the target must not share bytes with.
fn protect(
    ctx: &Context,
    target: &RestoreTarget,
    manifest: &Manifest,
    force: bool,
) -> Result<Vec<PathBuf>> {
    let RestoreTarget::Path(target) = target else { return Ok(Vec::new()) };
    let refuse = |why: &str, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("write to {}", target.display()), why).hint(hint))
    };
    if let Some(repository) = repository::directory(ctx)?
        && !is_nbd(target)
    {
        let inside = leads_into(target, &repository).map_err(|e| {
            let context = format!("find out whether {} is in the repository", target.display());
            Error::caused(ErrorKind::Device, context, e)
        });
        if inside? {
            return refuse(
                "it is in the repository, or leads into it by a link, a mount or a loop device",
                "choose another target",
            );
        }
    }
    let mut own = own_files(ctx);
    let source = PathBuf::from(&manifest.source.path);
    if is_nbd(target) && !force && target == &source {
        return refuse(
            "it is the source of this backup",
            "choose another target, or use --force to write the backup over it",
        );
    }
    // what is blank at both ends is a new volume of the same name, as each pod sees its own
    if !force && !is_blank(ctx, target) {
        if same_place(target, &source) {
            return refuse(
                "it is the source of this backup",
                "choose another target, or use --force to write the backup over it",
            );
        }
        own.push(source);
    }
    own.retain(|path| path.exists());
    Ok(own)
}

/// The lease that keeps the backup from being collected meanwhile; `None` writes nothing.
pub(super) fn lease(args: &ReadingArgs) -> Option<LeaseOptions> {
    (!args.no_lease).then(|| LeaseOptions {
        lease_seconds: LEASE_SECONDS,
        tool: tool(),
        host: host(),
    })
}

/// Whether the first and the last megabyte are zero, as on a volume that nobody has used yet.
fn is_blank(ctx: &Context, path: &Path) -> bool {
    const LOOK_BYTES: u64 = 1 << 20;
    if is_nbd(path) {
        return false;
    }
    let direct = ctx.settings.resources.direct;
    let Ok(target) = Source::open(path, SourceOptions { direct }) else { return false };
    let size = target.size_bytes();
    let mut bytes = vec![0; usize::try_from(size.min(LOOK_BYTES)).unwrap_or(0)];
    [0, size - size.min(LOOK_BYTES)]
        .into_iter()
        .all(|from| target.read_exact_at(&mut bytes, from).is_ok() && chunkstore::is_zero(&bytes))
}

/// Whether two paths name one file or one device.
fn same_place(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (std::fs::metadata(a), std::fs::metadata(b)) else { return false };
    let both_devices = a.file_type().is_block_device() && b.file_type().is_block_device();
    (a.dev(), a.ino()) == (b.dev(), b.ino()) || (both_devices && a.rdev() == b.rdev())
}

/// The keys that open the repository.
fn own_files(ctx: &Context) -> Vec<PathBuf> {
    let keys = &ctx.settings.keys;
    let mut files: Vec<PathBuf> =
        keys.key_files.iter().chain(&keys.password_file).cloned().collect();
    if let RepositoryPlace::Embedded { key_file, .. } = &ctx.settings.place {
        files.push(key_file.clone());
    }
    files
}

pub(crate) fn verify(ctx: &Context, args: VerifyArgs) -> Result<()> {
    let resources = &ctx.settings.resources;
    let device = args.device.filter(|p| !p.as_os_str().is_empty());
    let reads = if device.is_some() { Reads::Device } else { Reads::Store };
    let repository = repository::open(ctx)?;
    let backup = match args.backup.before {
        Some(_) => {
            let found = find(ctx, &repository, &args.backup)?;
            format!("{}@id:{}", found.volume, found.backup_id)
        }
        None => args.backup.backup,
    };
    let options = VerifyOptions {
        backup,
        device,
        lease: lease(&args.reading),
        memory: resources.memory,
        engine: resources.engine,
        direct: resources.direct,
        threads: resources.threads,
    };
    let progress = Progress::new();
    let watch = Watch::start(ctx, &progress, reads, repository.store());
    let done = run_verify(ctx.runtime()?, &repository, options, &progress, &ctx.cancel);
    drop(watch);
    let summary = done?;
    for warning in &summary.warnings {
        ctx.output.warn(warning);
    }
    ctx.output.summary(&verify_text(&summary), &summary)
}
