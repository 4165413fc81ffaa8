//! `serve`: which backups, at which sockets, for how long. A live restore serves at the same kinds
//! of sockets.
//!
//! | file | |
//! |---|---|
//! | `doors` | the sockets: made here, or given by a service manager |
//! | `tls` | certificates, and who sees which export |
//! | `beside` | the command that runs meanwhile, the file with our number, the service manager |

pub(super) mod beside;
pub(super) mod doors;
mod tls;

use super::super::args::ServeArgs;
use super::super::context::Context;
use super::super::metrics::Reads;
use super::super::output::Line;
use super::super::repository;
use super::super::summary::serve_text;
use super::disk_cache::{disk_cache, temporary_directory};
use super::restore::lease;
use super::trace::Record;
use beside::{Beside, PidFile, tell_manager};
use chunkstore::{Error, ErrorKind, Manifest, Repository, Result};
use doors::Doors;
use mover_engine::ops::serve::{OverlayPlace, ServeOptions, ServedBackup, serve as run_serve};
use mover_engine::run::Progress;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::Notify;

/// That clients are answered from now on.
#[derive(Serialize)]
struct Ready<'a> {
    uri: &'a str,
    exports: &'a [String],
}

pub(crate) fn serve(ctx: &Context, args: ServeArgs) -> Result<()> {
    if args.run.is_some() {
        // it is the command's
        ctx.output.reserve_stdout();
    }
    let doors = Doors::open(ctx, &args)?;
    let repository = repository::open(ctx)?;
    let mut backups = backups(ctx, &repository, &args)?;
    lay_over(ctx, &args, &mut backups)?;
    let record = record(&repository, &args, &mut backups)?;
    let exports: Vec<String> = backups.iter().filter_map(|b| b.names.first().cloned()).collect();
    let uri = doors.uri(if exports.len() == 1 { "" } else { &exports[0] });
    let tls = tls::tls(&args.tls, &backups)?;
    let resources = &ctx.settings.resources;
    let enough = Arc::new(Notify::new());
    let options = ServeOptions {
        lease: lease(&args.reading),
        memory: resources.memory,
        threads: resources.threads,
        disk_cache: disk_cache(ctx, &args.cache)?,
        tls,
        exit_when_idle: args.exit_when_idle,
        enough: Arc::clone(&enough),
    };
    let progress = Progress::new();
    ctx.telemetry.watch(&progress, Reads::Store, repository.store());
    let manager = ctx.settings.service.notify_socket.as_deref();
    let (mut pid_file, mut beside) = (None, None);
    let ready = || {
        pid_file = args.pid_file.as_deref().map(PidFile::make).transpose()?;
        if ctx.settings.output.json {
            let body = Ready { uri: &uri, exports: &exports };
            ctx.output.result_json(&Line::new("ready", &body))?;
        } else {
            ctx.output.notice(&format!("serving {} at {uri}", exports.join(", ")));
        }
        tell_manager(manager, "READY=1");
        beside = args.run.as_deref().map(|run| Beside::start(run, &uri, &enough)).transpose()?;
        Ok(())
    };
    let rt = ctx.runtime()?;
    let seen = (&progress, &ctx.cancel);
    let done = run_serve(rt, &repository, backups, doors.all(), &options, seen, ready);
    tell_manager(manager, "STOPPING=1");
    drop((pid_file, doors));
    let ran = beside.map_or(Ok(()), Beside::end);
    let (summary, closed) = done?;
    let recorded = record.map_or(Ok(()), Record::end);
    for warning in &summary.warnings {
        ctx.output.warn(warning);
    }
    ctx.output.summary(&serve_text(&summary), &summary)?;
    // what is lost is said before what was not recorded
    closed.and(recorded).and(ran)
}

/// Where it is recorded what clients read.
fn record(
    repository: &Repository,
    args: &ServeArgs,
    backups: &mut [ServedBackup],
) -> Result<Option<Record>> {
    if args.trace.record.as_ref().is_none_or(|path| path.as_os_str().is_empty()) {
        return Ok(None);
    }
    let [backup] = backups else {
        let what = format!("it is for one backup, and {} are served", backups.len());
        return Err(Error::new(ErrorKind::Usage, "use --record", what)
            .hint("serve each backup by a process of its own"));
    };
    let chunk_bytes = repository.params().chunk.bytes();
    let record = Record::begin(&args.trace, backup.manifest.size_bytes, chunk_bytes)?;
    backup.trace = record.as_ref().map(|record| Arc::clone(record.trace()));
    Ok(record)
}

/// Where clients write to.
fn lay_over(ctx: &Context, args: &ServeArgs, backups: &mut [ServedBackup]) -> Result<()> {
    let given = args.overlay.as_deref().filter(|path| !path.as_os_str().is_empty());
    let Some(path) = given else { return Ok(()) };
    let place = if path.as_os_str() == "temp" {
        OverlayPlace::Temporary(temporary_directory(ctx))
    } else if backups.len() == 1 {
        OverlayPlace::File(path.to_owned())
    } else {
        let context = format!("use --overlay {}", path.display());
        let what = format!("it is for one backup, and {} are served", backups.len());
        return Err(Error::new(ErrorKind::Usage, context, what)
            .hint("serve each backup by a process of its own, or use --overlay temp"));
    };
    backups.iter_mut().for_each(|backup| backup.overlay = Some(place.clone()));
    Ok(())
}

/// Each backup once, with all its names.
fn backups(ctx: &Context, repository: &Repository, args: &ServeArgs) -> Result<Vec<ServedBackup>> {
    let find = |spec: &String| ctx.block_on(repository.find_backup(spec));
    let mut served: Vec<ServedBackup> = Vec::new();
    for spec in &args.backups {
        let manifest = find(spec)?;
        let known = served.iter_mut().find(|one| one.manifest.name() == manifest.name());
        if let Some(known) = known {
            known.names.push(spec.clone());
            continue;
        }
        let full = format!("{}@{}", manifest.volume, manifest.backup_id);
        let since = Vec::new();
        served.push(ServedBackup {
            names: vec![full, spec.clone()],
            manifest,
            since,
            overlay: None,
            trace: None,
        });
    }
    let of_volume = |served: &[ServedBackup], m: &Manifest| {
        served.iter().filter(|one| one.manifest.volume == m.volume).count()
    };
    for at in 0..served.len() {
        let manifest = &served[at].manifest;
        let short = manifest.volume.to_string();
        let only = of_volume(&served, manifest) == 1;
        let alone = served.len() == 1;
        served[at].names.extend(only.then_some(short).into_iter().chain(alone.then(String::new)));
    }
    for spec in &args.changed_since {
        let base = find(spec)?;
        if of_volume(&served, &base) == 0 {
            let what = format!("no backup of volume {} is served", base.volume);
            return Err(Error::new(ErrorKind::Usage, format!("use --changed-since {spec}"), what)
                .hint("name a backup of a volume that is served"));
        }
        let same = |one: &&mut ServedBackup| one.manifest.volume == base.volume;
        for one in served.iter_mut().filter(same) {
            if one.since.iter().all(|known| known.name() != base.name()) {
                one.since.push(base.clone());
            }
        }
    }
    Ok(served)
}
