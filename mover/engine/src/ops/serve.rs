//! Serving: backups that are read at any offset, by clients of the NBD protocol, before or instead
//! of a restore.
//!
//! Takes a lease on each backup that is served or compared with, and keeps it for as long as it
//! serves. Nothing of a backup is read before a client asks for it, but for the upper pages of its
//! map, and of the maps of two backups where they differ.
//!
//! With an overlay clients may write to a backup's export. What they write goes to a file; the
//! backup stays as it is.
//!
//! It ends when it is told to, when a stop is requested (that is no failure: nobody ends a server
//! otherwise), or, if so wished, when the last client has left. Clients are left then.
//!
//! Cannot deadlock: this thread waits for the server's task alone, and that waits for clients.

mod overlay;
mod summary;
mod volume;

pub use crate::reading::view::DiskCacheOptions;
pub use overlay::OverlayPlace;
pub use summary::ServeSummary;

use crate::ops::trace::ReadTrace;
use crate::reading::Reading;
use crate::reading::view::{BackupView, OpeningView, ViewLimits, ViewNeeds, ViewPool, ViewUse};
use crate::run::threads::cores;
use crate::run::{Cancel, MemoryBudget, Phase, Progress, RunContext};
use chunkstore::map::delta_of;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Repository, Result};
use mover_nbd::server::{
    Access, Door, ExportTerms, NbdServer, ServedExport, ServerMemory, ServerTls,
};
use overlay::Overlay;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use volume::{ServedVolume, context_names};

/// How often the figures for whoever looks at them are brought up to date.
const FIGURES_EVERY: Duration = Duration::from_millis(500);

/// A backup, and under which names it is served.
#[derive(Debug, Clone)]
pub struct ServedBackup {
    /// What clients may call it. The first one is listed.
    pub names: Vec<String>,
    /// The backup.
    pub manifest: Manifest,
    /// Backups of the same volume; what differs from each can be asked for.
    pub since: Vec<Manifest>,
    /// Where clients write to. Without it the export is read-only.
    pub overlay: Option<OverlayPlace>,
    /// Records what clients read.
    pub trace: Option<Arc<ReadTrace>>,
}

/// What to serve with, and for how long.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The leases to take; without them, nobody may forget these backups meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Opener threads; by default one a core.
    pub threads: Option<usize>,
    /// Keeps what was fetched on a disk, too.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Clients that come by TCP speak TLS, and show who they are.
    pub tls: Option<ServerTls>,
    /// It ends when somebody was served and all have left.
    pub exit_when_idle: bool,
    /// It ends when this is notified.
    pub enough: Arc<Notify>,
}

/// Serves backups to whoever comes to the doors. `ready` is called once clients are answered; an
/// error of it ends the run. The calling thread drives it and must not be one of the runtime's.
///
/// The inner error is of an overlay's last flush: clients were served, and what they wrote since
/// their own last one may be lost.
pub fn serve(
    rt: &Handle,
    repo: &Arc<Repository>,
    backups: Vec<ServedBackup>,
    doors: &[Door],
    options: &ServeOptions,
    (progress, cancel): (&Arc<Progress>, &Arc<Cancel>),
    ready: impl FnOnce() -> Result<()>,
) -> Result<(ServeSummary, Result<()>)> {
    let begun = Instant::now();
    progress.set_phase(Phase::Planning);
    let run = RunContext { rt, cancel, progress };
    let threads = options.threads.unwrap_or_else(cores);
    let written = backups.iter().any(|backup| backup.overlay.is_some());
    let use_of = if written { ViewUse::Overlaid } else { ViewUse::Reading };
    let disk_cache = options.disk_cache.is_some();
    let needs = ViewNeeds { maps: backups.len(), use_of, threads, disk_cache };
    let limits = ViewLimits::plan(options.memory, repo.params(), needs)?;
    let pool = ViewPool::start(rt, repo, limits.clone(), options.disk_cache.as_ref())?;
    let opening: Result<Vec<OpeningView>> =
        backups.iter().map(|backup| BackupView::begin(&pool, &backup.manifest)).collect();
    let opening = opening?;
    let mut leases = Vec::new();
    let served = leases_of(run, repo, &backups, options, &mut leases).and_then(|()| {
        let mut exports = Vec::new();
        for (backup, opening) in backups.into_iter().zip(opening) {
            exports.push(export(run, repo, (opening, &limits), backup)?);
        }
        let names = exports.iter().filter_map(|e| e.terms.names.first().cloned()).collect();
        let overlays: Vec<_> =
            exports.iter().filter_map(|e| e.volume.overlay().map(Arc::clone)).collect();
        let memory = ServerMemory {
            answer_bytes: limits.reply_bytes(),
            payload_bytes: limits.payload_bytes(),
        };
        let server = NbdServer::new(exports, memory, options.tls.clone());
        progress.set_phase(Phase::Moving);
        ready()?;
        let figures = || publish(&server, (&pool, &overlays), progress);
        let mut flushing = JoinSet::new();
        for overlay in &overlays {
            let counts = Arc::clone(server.counts());
            flushing.spawn_on(Arc::clone(overlay).keep_flushed(counts), rt);
        }
        rt.block_on(until_enough(&server, doors, options, cancel, &figures));
        progress.set_phase(Phase::Finishing);
        // else somebody is told that a write failed, and it is only that the overlay is closed
        rt.block_on(server.gone());
        drop(flushing);
        let mut summary = ServeSummary::new(names, &pool, server.counts(), &limits);
        summary.overlay_bytes = overlays.iter().map(|overlay| overlay.overlaid_bytes()).sum();
        let closed = close(rt, &overlays);
        figures();
        Ok((summary, closed))
    });
    let warnings: Vec<String> = leases.into_iter().flat_map(|lease| lease.finish(run)).collect();
    let (mut summary, closed) = served?;
    summary.warnings.extend(warnings);
    summary.elapsed_seconds = begun.elapsed().as_secs_f64();
    summary.requests = repo.store().counts();
    Ok((summary, closed))
}

/// One lease for each backup, however often it is named. What was taken is given back by the
/// caller, also after an error.
fn leases_of(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    backups: &[ServedBackup],
    options: &ServeOptions,
    leases: &mut Vec<Reading>,
) -> Result<()> {
    let mut held = Vec::new();
    for manifest in backups.iter().flat_map(|b| std::iter::once(&b.manifest).chain(&b.since)) {
        let name = manifest.name();
        if !held.contains(&name) {
            leases.push(Reading::begin(run, repo, manifest, options.lease.clone())?);
            held.push(name);
        }
    }
    Ok(())
}

fn export(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    (opening, limits): (OpeningView, &ViewLimits),
    backup: ServedBackup,
) -> Result<ServedExport<ServedVolume>> {
    let ServedBackup { names, manifest, since, overlay, trace } = backup;
    let view = run.wait(opening.opened())?;
    let mut deltas = Vec::new();
    for base in &since {
        if base.volume != manifest.volume {
            let context = format!("compare backups {} and {}", base.backup_id, manifest.backup_id);
            let what = format!(
                "the first is of volume {}, the second of {}",
                base.volume, manifest.volume
            );
            return Err(Error::new(ErrorKind::Usage, context, what)
                .hint("name backups of the volumes that are served"));
        }
        deltas.push(run.wait(Box::pin(delta_of(repo, base, &manifest)))?);
    }
    let overlay = overlay.map(|place| {
        let below = (&repo.params().repository_id, &manifest, &view);
        Overlay::open(run.rt, &place, below, limits.merge_bytes())
    });
    let overlay = overlay.transpose()?;
    let terms = ExportTerms {
        names,
        description: format!(
            "volume {}, backup {} of {}",
            manifest.volume,
            manifest.backup_id,
            manifest.ordered.format("%Y-%m-%d %H:%M:%S UTC")
        ),
        size_bytes: view.size_bytes(),
        access: if overlay.is_some() { Access::Writable } else { Access::ReadOnly },
        preferred_bytes: view.chunk_bytes(),
        contexts: context_names(&since),
    };
    Ok(ServedExport { terms, volume: ServedVolume::new(view, deltas, overlay, trace) })
}

async fn until_enough(
    server: &NbdServer<ServedVolume>,
    doors: &[Door],
    options: &ServeOptions,
    cancel: &Cancel,
    publish: &impl Fn(),
) {
    let idle = async {
        if options.exit_when_idle {
            server.idle().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let figures = async {
        let mut every = tokio::time::interval(FIGURES_EVERY);
        loop {
            every.tick().await;
            publish();
        }
    };
    tokio::select! {
        biased;
        () = cancel.requested() => tracing::info!("a stop was requested"),
        () = options.enough.notified() => {}
        () = idle => tracing::info!("all clients have left"),
        () = figures => {}
        () = Box::pin(server.run(doors)) => {}
    }
}

/// What clients have not flushed is made durable, too. All are closed; the first error counts.
fn close(rt: &Handle, overlays: &[Arc<Overlay>]) -> Result<()> {
    let mut closed = Ok(());
    for overlay in overlays {
        match rt.block_on(overlay.close()) {
            Err(another) if closed.is_err() => tracing::warn!("{another}"),
            Err(first) => closed = Err(first),
            Ok(()) => {}
        }
    }
    closed
}

/// For the metrics.
fn publish(
    server: &NbdServer<ServedVolume>,
    (pool, overlays): (&ViewPool, &[Arc<Overlay>]),
    progress: &Progress,
) {
    let (served, read) = (server.counts(), pool.counts());
    progress.read_bytes.set(read.read_bytes);
    progress.cache_hits.set(read.hits);
    progress.cache_misses.set(read.misses);
    progress.disk_hits.set(read.disk_hits);
    progress.clients.set(served.connected.load(Ordering::Relaxed) as u64);
    progress.served_bytes.set(served.sent_bytes.load(Ordering::Relaxed));
    progress.served_reads.set(served.reads.load(Ordering::Relaxed));
    progress.served_micros.set(served.read_micros.load(Ordering::Relaxed));
    progress.served_errors.set(served.errors.load(Ordering::Relaxed));
    progress.served_changes.set(served.changes.load(Ordering::Relaxed));
    progress.served_written_bytes.set(served.written_bytes.load(Ordering::Relaxed));
    progress.served_flushes.set(served.flushes.load(Ordering::Relaxed));
    progress.overlay_bytes.set(overlays.iter().map(|overlay| overlay.overlaid_bytes()).sum());
}
