//! Mounting: backups as files of a directory, before or instead of a restore.
//!
//! | file | |
//! |---|---|
//! | `tree` | what the kernel asks for, answered |
//! | `inodes` | what the numbers of files mean |
//! | `handles` | what is open, and how failures are told |
//! | `backup` | one backup that is open: its lease, its bytes, its file system |
//! | `shelf` | which backups are open |
//! | `list` | which backups there are |
//! | `content` | bytes of a file |
//! | `names` | names of directories; pure |
//! | `limits` | the memory budget → every bound; pure |
//!
//! A backup that is named has its lease from before the mount to its end. Without one named, each
//! backup has its lease from when somebody first looks into it until nobody has used it for a
//! minute; what is open of it keeps it.
//!
//! It ends when it is told to, when a stop is requested (that is no failure), or when somebody
//! unmounts it. Then it is unmounted, also where somebody has it in use, who is named.
//!
//! Cannot deadlock: this thread waits for the kernel's end of the mount, or for the user; requests
//! wait for nobody of here (`mover_fuse`), and backups' threads for the store alone.

mod backup;
mod content;
mod handles;
mod inodes;
mod limits;
mod list;
mod names;
mod shelf;
mod summary;
mod tree;

pub use crate::reading::view::DiskCacheOptions;
pub use summary::{MountEnd, MountSummary};

use crate::ops::files::FilesLocation;
use crate::reading::view::ViewPool;
use crate::run::threads::cores;
use crate::run::{Cancel, MemoryBudget, Phase, Progress};
use backup::Means;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Repository, Result, Setting};
use limits::MountLimits;
use mover_fuse::{
    MountError, MountOptions as FuseOptions, MountPoint, Mounted, PointFailure, Time, Unmounted,
};
use shelf::{Shelf, Slot};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tree::Backups;

/// How often the figures for whoever looks at them are brought up to date.
const FIGURES_EVERY: Duration = Duration::from_millis(500);
/// How often it is looked which backups nobody uses.
const IDLE_EVERY: Duration = Duration::from_secs(5);

/// What to mount, and where.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An empty directory.
    pub directory: PathBuf,
    /// The backup; by default all of the repository, each in a directory of its own.
    pub backup: Option<Manifest>,
    /// The leases to take; without them, nobody may forget these backups meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Opener threads; by default one a core.
    pub threads: Option<usize>,
    /// Keeps what was fetched on a disk, too.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Where the file system is.
    pub location: FilesLocation,
    /// Other users may read it too.
    pub allow_other: bool,
    /// It ends when this is notified.
    pub enough: Arc<Notify>,
}

/// What whoever waits for it hears.
#[derive(Debug, Clone)]
pub struct MountReady {
    /// Where it is, without links.
    pub directory: PathBuf,
    /// The file system of the one backup.
    pub filesystem: Option<&'static str>,
    /// Why it has no files.
    pub no_files: Option<String>,
    /// A mount of ours that had lost its server was cleared away.
    pub cleared: bool,
}

/// Mounts backups. `ready` is called once files are there; an error of it ends the run. The calling
/// thread drives it and must not be one of the runtime's.
pub fn mount(
    rt: &Handle,
    repo: &Arc<Repository>,
    options: &MountOptions,
    (progress, cancel): (&Arc<Progress>, &Arc<Cancel>),
    ready: impl FnOnce(&MountReady) -> Result<()>,
) -> Result<MountSummary> {
    let begun = Instant::now();
    progress.set_phase(Phase::Planning);
    let point = MountPoint::look(&options.directory).map_err(|e| told(&options.directory, e))?;
    let threads = options.threads.unwrap_or_else(cores);
    let one = options.backup.is_some();
    let disk_cache = options.disk_cache.is_some();
    let limits = MountLimits::plan(options.memory, repo.params(), (one, disk_cache), threads)?;
    let pool =
        Arc::new(ViewPool::start(rt, repo, limits.views.clone(), options.disk_cache.as_ref())?);
    let means = Means {
        rt: rt.clone(),
        repo: Arc::clone(repo),
        pool: Arc::clone(&pool),
        lease: options.lease.clone(),
        location: options.location.clone(),
        progress: Arc::clone(progress),
        cancel: Arc::clone(cancel),
        over: Cancel::new(),
    };
    let slot = options.backup.as_ref().map(|manifest| Arc::new(Slot::pinned(manifest)));
    let shelf = Shelf::new(Arc::new(means), limits.open_max);
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let backups = Arc::new(Backups::new(shelf, slot.as_ref(), owner, now()));
    let shown = (|| {
        let mut is = MountReady {
            directory: point.path().to_owned(),
            filesystem: None,
            no_files: None,
            cleared: point.cleared,
        };
        if let Some(slot) = &slot {
            backups.shelf.add(slot);
            let held = rt.block_on(cancel.unless_requested(Box::pin(backups.shelf.hold(slot))))?;
            match &held.open.files {
                Ok(files) => is.filesystem = Some(files.kind),
                Err(why) if options.location.is_named() => return Err(no_files(slot, why)),
                Err(why) => is.no_files = Some(why.clone()),
            }
        }
        let fuse = FuseOptions { allow_other: options.allow_other, limits: limits.session() };
        let mounted = point.mount(rt, &backups, fuse).map_err(|e| told(&options.directory, e))?;
        progress.set_phase(Phase::Moving);
        let done = ready(&is).map(|()| {
            rt.block_on(until_enough(&mounted, &backups, &pool, options, (progress, cancel)));
        });
        progress.set_phase(Phase::Finishing);
        ended(rt, mounted, (&pool, &backups, &limits), done)
    })();
    let warnings = backups.end();
    let mut summary = shown?;
    summary.warnings.extend(warnings);
    summary.elapsed_seconds = begun.elapsed().as_secs_f64();
    summary.requests = repo.store().counts();
    Ok(summary)
}

/// Unmounts, also after an error.
fn ended(
    rt: &Handle,
    mounted: Mounted,
    (pool, backups, limits): (&ViewPool, &Backups, &MountLimits),
    done: Result<()>,
) -> Result<MountSummary> {
    let directory = mounted.path().to_owned();
    let opened = backups.shelf.opened.load(Ordering::Relaxed);
    let mut summary =
        MountSummary::new(directory.clone(), pool, mounted.counts(), opened, limits.lines());
    let unmounted = mounted.unmount(rt).map_err(|e| {
        let context = format!("unmount {}", directory.display());
        Error::caused(ErrorKind::Device, context, e)
            .hint(format!("umount -l {}", directory.display()))
    });
    done?;
    summary.end = match unmounted? {
        Unmounted::Now => MountEnd::Unmounted,
        Unmounted::Before => MountEnd::Outside,
        Unmounted::InUse(users) => {
            let who =
                if users.is_empty() { String::new() } else { format!(": {}", users.join(", ")) };
            summary.warnings.push(format!(
                "{} was in use when it was unmounted, and reading there fails now{who}",
                directory.display()
            ));
            MountEnd::InUse
        }
    };
    Ok(summary)
}

async fn until_enough(
    mounted: &Mounted,
    backups: &Backups,
    pool: &ViewPool,
    options: &MountOptions,
    (progress, cancel): (&Arc<Progress>, &Arc<Cancel>),
) {
    let figures = async {
        let mut every = tokio::time::interval(FIGURES_EVERY);
        loop {
            every.tick().await;
            publish(mounted, pool, progress);
        }
    };
    let idle = async {
        let mut every = tokio::time::interval(IDLE_EVERY);
        loop {
            every.tick().await;
            backups.shelf.close_idle();
        }
    };
    tokio::select! {
        biased;
        () = cancel.requested() => tracing::info!("a stop was requested"),
        () = options.enough.notified() => {}
        () = mounted.ended() => tracing::info!("it was unmounted"),
        () = figures => {}
        () = idle => {}
    }
    publish(mounted, pool, progress);
}

/// For the metrics.
fn publish(mounted: &Mounted, pool: &ViewPool, progress: &Progress) {
    let (served, read) = (mounted.counts(), pool.counts());
    progress.read_bytes.set(read.read_bytes);
    progress.cache_hits.set(read.hits);
    progress.cache_misses.set(read.misses);
    progress.disk_hits.set(read.disk_hits);
    progress.served_bytes.set(served.read_bytes.load(Ordering::Relaxed));
    progress.served_reads.set(served.reads.load(Ordering::Relaxed));
    progress.served_micros.set(served.read_micros.load(Ordering::Relaxed));
    progress.served_errors.set(served.errors.load(Ordering::Relaxed));
}

fn now() -> Time {
    let now = chrono::Utc::now();
    Time { seconds: now.timestamp(), nanoseconds: now.timestamp_subsec_nanos() }
}

fn no_files(slot: &Slot, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("read files of backup {}", slot.name), why)
}

/// What is wrong with the directory, and what to do about it.
fn told(directory: &Path, e: MountError) -> Error {
    let shown = directory.display();
    let (kind, hint) = match e.failure {
        PointFailure::NoDirectory => (ErrorKind::NotFound, format!("mkdir {shown}")),
        PointFailure::NotEmpty => (ErrorKind::Usage, "name an empty directory".to_owned()),
        PointFailure::Mounted => {
            (ErrorKind::Usage, format!("umount {shown}, or name another directory"))
        }
        PointFailure::Dead => {
            (ErrorKind::Usage, format!("fusermount3 -u {shown}, or as root umount -l {shown}"))
        }
        PointFailure::NoFuse => (
            ErrorKind::Unsupported,
            "serve the backup over NBD instead, which needs no FUSE: docs/mounting.md".to_owned(),
        ),
        PointFailure::OthersNotAllowed => (
            ErrorKind::Denied,
            format!(
                "write user_allow_other into /etc/fuse.conf, or leave {} out",
                Setting("allow-other")
            ),
        ),
        PointFailure::Other => {
            return Error::new(ErrorKind::Device, format!("mount on {shown}"), e.detail);
        }
    };
    Error::new(kind, format!("mount on {shown}"), e.detail).hint(hint)
}
