//! `mount`: which backups, where.

use super::super::args::MountArgs;
use super::super::context::Context;
use super::super::metrics::Reads;
use super::super::output::Line;
use super::super::repository;
use super::super::summary::mount_text;
use super::disk_cache::disk_cache;
use super::restore::lease;
use super::serve::beside::{PidFile, tell_manager};
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ops::mount::{MountOptions, MountReady, mount as run_mount};
use mover_engine::run::Progress;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;

/// That files are there from now on.
#[derive(Serialize)]
struct Ready<'a> {
    directory: &'a Path,
    /// The file system whose files are below `files/`, of the one backup that was named.
    filesystem: Option<&'a str>,
    /// Why there is no `files/`.
    no_files: Option<&'a str>,
}

pub(crate) fn mount(ctx: &Context, args: &MountArgs) -> Result<()> {
    let (backup, directory) = places(&args.places)?;
    let repository = repository::open(ctx)?;
    let backup = backup.map(|spec| ctx.block_on(repository.find_backup(spec))).transpose()?;
    let shown = backup.as_ref().map_or_else(
        || "all backups".to_owned(),
        |manifest| format!("{}@{}", manifest.volume, manifest.backup_id),
    );
    let resources = &ctx.settings.resources;
    let options = MountOptions {
        directory: directory.to_owned(),
        backup,
        lease: lease(&args.reading),
        memory: resources.memory,
        threads: resources.threads,
        disk_cache: disk_cache(ctx, &args.cache)?,
        location: args.location.location(),
        allow_other: args.allow_other,
        enough: Arc::new(Notify::new()),
    };
    let progress = Progress::new();
    ctx.telemetry.watch(&progress, Reads::Store, repository.store());
    let manager = ctx.settings.service.notify_socket.as_deref();
    let mut pid_file = None;
    let ready = |is: &MountReady| {
        pid_file = args.pid_file.as_deref().map(PidFile::make).transpose()?;
        tell(ctx, &shown, is)?;
        tell_manager(manager, "READY=1");
        Ok(())
    };
    let rt = ctx.runtime()?;
    let done = run_mount(rt, &repository, &options, (&progress, &ctx.cancel), ready);
    tell_manager(manager, "STOPPING=1");
    drop(pid_file);
    let summary = done?;
    for warning in &summary.warnings {
        ctx.output.warn(warning);
    }
    ctx.output.summary(&mount_text(&summary), &summary)
}

/// The backup, if one is named, and the directory.
fn places(places: &[PathBuf]) -> Result<(Option<&str>, &Path)> {
    match places {
        [directory] => Ok((None, directory)),
        [backup, directory] => match backup.to_str() {
            Some(backup) => Ok((Some(backup), directory)),
            None => Err(usage(&format!("{} is no name of a backup", backup.display()))),
        },
        _ => Err(usage("there is more than a backup and a directory")),
    }
}

fn usage(what: &str) -> Error {
    Error::new(ErrorKind::Usage, "mount", what).hint("mover mount [BACKUP] DIRECTORY")
}

fn tell(ctx: &Context, shown: &str, is: &MountReady) -> Result<()> {
    let directory = is.directory.display();
    if is.cleared {
        ctx.output
            .warn(&format!("{directory}: a mount that had lost its process was cleared away"));
    }
    if let Some(why) = &is.no_files {
        ctx.output.warn(&format!("{shown} has no files/ here, volume.img alone: {why}"));
    }
    if ctx.settings.output.json {
        let MountReady { directory, filesystem, no_files, .. } = is;
        let body = Ready { directory, filesystem: *filesystem, no_files: no_files.as_deref() };
        return ctx.output.result_json(&Line::new("ready", &body));
    }
    ctx.output.notice(&format!("mounted {shown} on {directory}; umount or Ctrl-C ends it"));
    Ok(())
}
