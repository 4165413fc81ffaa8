//! `restore --live` and `restore --abandon`.
//!
//! Whatever BACKUP says, a journal that is there decides which backup it goes on with: `latest` may
//! be another one by now. That another one was named by its id is refused.

use super::super::super::args::{BackupArg, LiveArgs, RestoreArgs};
use super::super::super::context::{Context, host, tool};
use super::super::super::metrics::Reads;
use super::super::super::output::Line;
use super::super::super::repository;
use super::super::super::summary::live_text;
use super::super::super::watch::Watch;
use super::super::browse::find;
use super::super::serve::beside::{Beside, PidFile, tell_manager};
use super::super::serve::doors::{Doors, WantedDoors};
use super::super::trace::Record;
use super::{left_out, protect};
use chunkstore::format::names::AttemptName;
use chunkstore::{
    Advice, Error, ErrorKind, Hold, LeaseId, LeaseOptions, Manifest, Repository, Result,
};
use mover_changes::{ParseOptions, parse_in_order};
use mover_engine::ops::live_restore::{LiveJournal, LiveOptions, LiveSummary, live_restore};
use mover_engine::ops::restore::{LEASE_SECONDS, RestoreTarget};
use mover_engine::run::Progress;
use mover_engine::sizes::{counted, parse_time};
use mover_engine::volume::device::leads_into;
use mover_nbd::is_nbd;
use serde::Serialize;
use serde_json::json;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;

/// That clients are answered from now on.
#[derive(Serialize)]
struct Ready<'a> {
    uri: &'a str,
    exports: [&'a str; 1],
}

/// Flags that would do nothing without `--live`.
pub(super) fn refuse_its_flags(args: &LiveArgs) -> Result<()> {
    let given = [
        ("--journal", args.journal.is_some()),
        ("--whole-target", args.whole_target),
        ("--same-target", args.same_target),
        ("--store-timeout", args.store_timeout.is_some()),
        ("--fetch-first", args.fetch_first.is_some()),
        ("--record", args.trace.record.is_some()),
    ];
    let Some((flag, _)) = given.into_iter().find(|(_, is)| *is) else { return Ok(()) };
    Err(Error::new(ErrorKind::Usage, format!("use {flag}"), "it is for a live restore")
        .hint("add --live, or leave it out; its variable counts too"))
}

/// Refuses to write over a file that a live restore has a journal of, unless that is given up.
pub(super) fn refuse_unfinished(target: &Path, force: bool) -> Result<()> {
    if force || is_nbd(target) {
        return Ok(());
    }
    let journal = beside(target)?;
    if !journal.exists() {
        return Ok(());
    }
    let Some(journal) = LiveJournal::open(&journal)? else { return Ok(()) };
    let context = format!("write to {}", target.display());
    let what = format!("a live restore of {} to it has a journal", journal.backup());
    Err(Error::new(ErrorKind::Usage, context, what).hint(
        "with --live it goes on; --abandon gives it up; with --force what clients wrote is lost",
    ))
}

/// A live restore that is given up because something else is written to its target.
pub(super) struct GivenUp {
    pub(super) journal: PathBuf,
    /// None: it is of another repository.
    hold: Option<LeaseId>,
}

impl GivenUp {
    /// The one that has a journal beside a target. One that cannot be read stays: nothing goes on
    /// with it.
    pub(super) fn of(
        ctx: &Context,
        target: &RestoreTarget,
        repository: &Repository,
    ) -> Result<Option<Self>> {
        let RestoreTarget::Path(target) = target else { return Ok(None) };
        if is_nbd(target) {
            return Ok(None);
        }
        let path = beside(target)?;
        let journal = match LiveJournal::open(&path) {
            Ok(Some(journal)) => journal,
            Ok(None) => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                ctx.output.warn(&format!("{e}; it stays, and no live restore goes on with it"));
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let is_ours = journal.check_repository(&repository.params().repository_id).is_ok();
        Ok(Some(Self { journal: path, hold: is_ours.then(|| *journal.hold()) }))
    }

    /// Gives its hold back, if its journal was removed.
    pub(super) fn release(self, ctx: &Context, repository: &Repository) {
        if self.journal.exists() {
            return;
        }
        let Some(hold) = self.hold else {
            let what = "the live restore that was given up is of another repository, which may still hold its backup";
            return ctx.output.warn(what);
        };
        if let Err(e) = ctx.block_on(repository.release_hold(&hold)) {
            let next = Advice::EndHold.words();
            ctx.output.warn(&format!("hold {hold} stays, and keeps its backup: {e}; {next}"));
        }
    }
}

/// The file that symbolic links lead to, whether or not it is there yet. A device keeps the name
/// that it was given: what stands behind it may be another one tomorrow.
fn behind_links(target: &Path) -> PathBuf {
    /// As many as the kernel follows.
    const LINKS_MAX: usize = 40;
    if std::fs::metadata(target).is_ok_and(|meta| meta.file_type().is_block_device()) {
        return target.to_owned();
    }
    let mut path = target.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(next) = std::fs::read_link(&path) else { break };
        path = path.parent().map_or(next.clone(), |parent| parent.join(&next));
    }
    path
}

/// The journal of a file. It is beside the file itself, whichever link leads there; one beside the
/// link counts if it is the only one.
fn beside(target: &Path) -> Result<PathBuf> {
    let of = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(".journal");
        PathBuf::from(name)
    };
    let (named, real) = (of(target), of(&behind_links(target)));
    match (named != real && named.exists(), real.exists()) {
        (false, _) => Ok(real),
        (true, false) => Ok(named),
        (true, true) => {
            let what = format!("{} and {} are both there", named.display(), real.display());
            let context = format!("find the journal of {}", target.display());
            Err(Error::new(ErrorKind::Usage, context, what)
                .hint("name the one that is right with --journal, and move the other away"))
        }
    }
}

pub(super) fn restore(ctx: &Context, args: RestoreArgs) -> Result<()> {
    let target = args.target.as_deref().filter(|path| !path.as_os_str().is_empty());
    if args.live.abandon {
        return abandon(ctx, &args, target);
    }
    let target = checked(&args, target)?;
    let live = &args.live;
    let real = behind_links(target);
    let store_timeout = live.store_timeout.as_deref().filter(|text| !text.is_empty());
    let store_timeout = store_timeout.map(|t| parse_time("--store-timeout", t)).transpose()?;
    let journal_path = journal_path(live, target)?;
    let doors = Doors::wanted(
        ctx,
        &WantedDoors {
            socket: live.socket.as_deref(),
            listen: None,
            insecure: false,
            tls: false,
            run: live.run.is_some(),
        },
    )?;
    let repository = repository::open(ctx)?;
    keep_off(ctx, &journal_path, &real)?;
    let journal = LiveJournal::open(&journal_path)?;
    let below = match &journal {
        Some(journal) => going_on(ctx, &repository, &args.backup, journal)?,
        None => Some(find(ctx, &repository, &args.backup)?),
    };
    let refused = match &below {
        Some(manifest) => protect(ctx, &RestoreTarget::Path(real.clone()), manifest, args.force)?,
        None => Vec::new(),
    };
    let lease = LeaseOptions { lease_seconds: LEASE_SECONDS, tool: tool(), host: host() };
    let enough = Arc::new(Notify::new());
    let resources = &ctx.settings.resources;
    // where all is there, nothing is fetched any more
    let first = below.as_ref().map(|of| first(live.fetch_first.as_deref(), of.size_bytes));
    let first = first.transpose()?.unwrap_or_default();
    let chunk_bytes = repository.params().chunk.bytes();
    let size_bytes = below.as_ref().map(|of| of.size_bytes);
    let size_bytes = size_bytes.or(journal.as_ref().map(LiveJournal::size_bytes)).unwrap_or(0);
    let record = Record::begin_or_go_on(&live.trace, size_bytes, chunk_bytes)?;
    let options = LiveOptions {
        target: real,
        journal: journal_path,
        force: args.force,
        same_target: live.same_target,
        whole_target: live.whole_target,
        direct: resources.direct,
        source_paths_to_refuse: refused,
        lease: (!args.reading.no_lease).then_some(lease),
        memory: resources.memory,
        threads: resources.threads,
        store_timeout,
        first,
        trace: record.as_ref().map(|record| Arc::clone(record.trace())),
        enough: Arc::clone(&enough),
    };
    if live.run.is_some() {
        // it is the command's
        ctx.output.reserve_stdout();
    }
    let done = run(ctx, &repository, live, (below.as_ref(), journal), &doors, &options);
    // what was read is known also where it did not come to its end
    let recorded = record.map_or(Ok(()), Record::end);
    let summary = done?;
    recorded?;
    let Some(damaged) = &summary.damaged else { return Ok(()) };
    let context = format!("restore {}@{} to {}", summary.volume, summary.backup_id, summary.target);
    Err(left_out(context, damaged, "not there: reading them fails"))
}

/// The target, unless something else was asked for that does not go with it.
fn checked<'a>(args: &RestoreArgs, target: Option<&'a Path>) -> Result<&'a Path> {
    let refuse = |flag: &str, what: &str| {
        Err(Error::new(ErrorKind::Usage, format!("use {flag} with --live"), what)
            .hint("leave it out"))
    };
    if args.differential {
        return refuse("--differential", "its journal says which chunks are there");
    }
    if args.verify {
        return refuse("--verify", "clients change the target meanwhile");
    }
    if args.skip_damaged {
        return refuse("--skip-damaged", "what is damaged fails for whoever reads it");
    }
    if args.range.as_deref().is_some_and(|range| !range.is_empty()) {
        return refuse("--range", "it serves the whole volume");
    }
    let file = target.filter(|target| target.as_os_str() != "-");
    file.ok_or_else(|| {
        let what = "it needs a block device or a file, which can be read, too";
        Error::new(ErrorKind::Usage, "restore while it is served", what)
            .hint("mover restore BACKUP TARGET --live")
    })
}

fn run(
    ctx: &Context,
    repository: &Arc<Repository>,
    live: &LiveArgs,
    (below, journal): (Option<&Manifest>, Option<LiveJournal>),
    doors: &Doors,
    options: &LiveOptions,
) -> Result<LiveSummary> {
    let uri = doors.uri("");
    let name = journal.as_ref().map(|journal| journal.backup().clone());
    let name = name.or(below.map(Manifest::name));
    let export =
        name.map_or_else(String::new, |name| format!("{}@{}", name.volume, name.backup_id));
    let progress = Progress::new();
    if let Some(manifest) = below {
        ctx.telemetry.set_volume(manifest.volume.as_str());
    }
    let watch = Watch::served(ctx, &progress, Reads::Store, repository.store());
    let manager = ctx.settings.service.notify_socket.as_deref();
    let (mut pid_file, mut beside) = (None, None);
    let ready = || {
        pid_file = live.pid_file.as_deref().map(PidFile::make).transpose()?;
        if ctx.settings.output.json {
            ctx.output
                .result_json(&Line::new("ready", &Ready { uri: &uri, exports: [&export] }))?;
        } else {
            ctx.output.notice(&format!("serving {export} at {uri}"));
        }
        tell_manager(manager, "READY=1");
        let command = live.run.as_deref();
        beside = command.map(|run| Beside::start(run, &uri, &options.enough)).transpose()?;
        Ok(())
    };
    let seen = (&progress, &ctx.cancel);
    let of = (below, journal);
    let done = live_restore(ctx.runtime()?, repository, of, doors.all(), options, seen, ready);
    drop(watch);
    tell_manager(manager, "STOPPING=1");
    drop(pid_file);
    let ran = beside.map_or(Ok(()), Beside::end);
    let summary = done?;
    for warning in &summary.warnings {
        ctx.output.warn(warning);
    }
    ctx.output.summary(&live_text(&summary), &summary)?;
    ran.map(|()| summary)
}

/// Where the journal is. Beside a device there is no place that stays.
fn journal_path(live: &LiveArgs, target: &Path) -> Result<PathBuf> {
    if let Some(path) = live.journal.as_deref().filter(|path| !path.as_os_str().is_empty()) {
        return Ok(path.to_owned());
    }
    let is_device = std::fs::metadata(target).is_ok_and(|meta| meta.file_type().is_block_device());
    let real = behind_links(target);
    let is_memory = real.starts_with("/dev/shm");
    if is_device || (real.starts_with("/dev") && !is_memory) {
        let context = format!("restore to {} while it is served", target.display());
        return Err(Error::new(ErrorKind::Usage, context, "a device has no place for the journal")
            .hint("add --journal FILE, on a disk that stays as long as the target does"));
    }
    beside(target)
}

/// Refuses a journal in the repository, or in the place of the target.
fn keep_off(ctx: &Context, journal: &Path, target: &Path) -> Result<()> {
    let context = || format!("use journal {}", journal.display());
    if journal == target {
        return Err(Error::new(ErrorKind::Usage, context(), "it is the target"));
    }
    let Some(repository) = repository::directory(ctx)? else { return Ok(()) };
    let inside = leads_into(journal, &repository)
        .map_err(|e| Error::caused(ErrorKind::Device, context(), e))?;
    if inside {
        return Err(Error::new(ErrorKind::Usage, context(), "it leads into the repository")
            .hint("choose another file"));
    }
    Ok(())
}

/// The backup that a journal goes on with; none if all of it is there. `named` has to mean the same,
/// or to follow the newest one of its volume.
fn going_on(
    ctx: &Context,
    repository: &Repository,
    named: &BackupArg,
    journal: &LiveJournal,
) -> Result<Option<Manifest>> {
    journal.check_repository(&repository.params().repository_id)?;
    let is = journal.backup();
    is_meant(ctx, repository, named, journal)?;
    if journal.is_complete() {
        return Ok(None);
    }
    ctx.output.notice(&format!("goes on with {}@{}", is.volume, is.backup_id));
    match ctx.block_on(repository.backup_named(&is.volume, &is.backup_id))? {
        Some(manifest) => Ok(Some(manifest)),
        // forgotten in the moment in which it was held
        None => ctx.block_on(repository.held_backup(is)).map(Some),
    }
}

fn is_meant(
    ctx: &Context,
    repository: &Repository,
    named: &BackupArg,
    journal: &LiveJournal,
) -> Result<()> {
    let AttemptName { volume, backup_id, .. } = journal.backup();
    let full = format!("{volume}@{backup_id}");
    let follows = named.backup == format!("{volume}@latest");
    if follows || named.backup == full {
        return Ok(());
    }
    let found = find(ctx, repository, named)?;
    if (&found.volume, &found.backup_id) == (volume, backup_id) {
        return Ok(());
    }
    let context = format!("go on with journal {}", journal.path().display());
    let what = format!("it is of {full}, and {}@{} is named", found.volume, found.backup_id);
    Err(Error::new(ErrorKind::Usage, context, what)
        .hint(format!("name {full}; or give it up with --abandon, and begin anew")))
}

fn first(list: Option<&Path>, size_bytes: u64) -> Result<Vec<Range<u64>>> {
    let Some(path) = list.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(Vec::new());
    };
    let context = || format!("read --fetch-first {}", path.display());
    let file = File::open(path).map_err(|e| Error::caused(ErrorKind::Usage, context(), e))?;
    let options = ParseOptions::new(path.display().to_string(), size_bytes);
    parse_in_order(file, &options).map_err(|e| e.within(context()))
}

/// Gives up what a journal says, or all that holds a backup.
fn abandon(ctx: &Context, args: &RestoreArgs, target: Option<&Path>) -> Result<()> {
    let repository = repository::open(ctx)?;
    let named = args.live.journal.as_deref().filter(|path| !path.as_os_str().is_empty());
    let path = match (named, target) {
        (Some(named), _) => Some(named.to_owned()),
        (None, Some(target)) => Some(beside(target)?),
        (None, None) => None,
    };
    let (released, journal) = match path {
        Some(path) => (one(ctx, &repository, args, &path)?, Some(path)),
        None => (all(ctx, &repository, args)?, None),
    };
    let mut text = String::new();
    for Hold { id, name, host, since, .. } in &released {
        let since = since.format("%Y-%m-%d %H:%M:%S UTC");
        text.push_str(&format!("released hold {id} of {host} on {name}, since {since}\n"));
    }
    if let Some(path) = &journal {
        text.push_str(&format!("removed journal {}\n", path.display()));
    }
    text.push_str(&format!("gave up {}\n", counted(released.len() as u64, "holds")));
    let holds: Vec<String> = released.iter().map(|hold| hold.id.to_string()).collect();
    ctx.output.summary(&text, &json!({ "released_holds": holds, "removed_journal": journal }))
}

fn one(
    ctx: &Context,
    repository: &Repository,
    args: &RestoreArgs,
    path: &Path,
) -> Result<Vec<Hold>> {
    let context = || format!("give up the live restore of journal {}", path.display());
    let Some(journal) = LiveJournal::open(path)? else {
        return Err(Error::new(ErrorKind::NotFound, context(), "there is no such file").hint(
            "name it with --journal; without TARGET and --journal all holds on BACKUP are released",
        ));
    };
    journal.check_repository(&repository.params().repository_id)?;
    is_meant(ctx, repository, &args.backup, &journal)?;
    let holds = ctx.block_on(repository.holds())?;
    let released = holds.into_iter().filter(|hold| hold.id == *journal.hold()).collect();
    ctx.block_on(repository.release_hold(journal.hold()))?;
    std::fs::remove_file(path).map_err(|e| Error::caused(ErrorKind::Device, context(), e))?;
    Ok(released)
}

fn all(ctx: &Context, repository: &Repository, args: &RestoreArgs) -> Result<Vec<Hold>> {
    let spec = &args.backup.backup;
    let holds = ctx.block_on(repository.holds())?;
    let full = |name: &AttemptName| format!("{}@{}", name.volume, name.backup_id);
    // it may be forgotten
    let mut held: Vec<Hold> =
        holds.iter().filter(|hold| full(&hold.name) == *spec).cloned().collect();
    if held.is_empty() {
        let found = find(ctx, repository, &args.backup)?.name();
        held = holds.into_iter().filter(|hold| full(&hold.name) == full(&found)).collect();
    }
    if held.is_empty() {
        let context = format!("give up live restores of {spec}");
        return Err(Error::new(ErrorKind::NotFound, context, "nobody holds it")
            .hint("`mover list` shows which backups are held"));
    }
    for hold in &held {
        ctx.block_on(repository.release_hold(&hold.id))?;
    }
    Ok(held)
}
