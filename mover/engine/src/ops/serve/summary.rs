//! What a run has served.

use crate::reading::SalvagedParts;
use crate::reading::limits::LimitLine;
use crate::reading::view::{ViewCounts, ViewLimits, ViewPool};
use chunkstore::store::RequestCounts;
use mover_nbd::server::Counts;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The figures of a run that served backups.
#[derive(Debug, Clone, Serialize)]
pub struct ServeSummary {
    /// Names of the exports.
    pub exports: Vec<String>,
    /// Clients that have come.
    pub clients: u64,
    /// Reads that they asked for.
    pub served_reads: u64,
    /// Bytes of the volumes that were sent to them.
    pub served_bytes: u64,
    /// Writes, zeros and trims of theirs.
    pub served_changes: u64,
    /// Bytes that they wrote.
    pub served_written_bytes: u64,
    /// Flushes of theirs, those of changes with `FUA` too.
    pub served_flushes: u64,
    /// Bytes of volumes that are in overlays, as whole chunks.
    pub overlay_bytes: u64,
    /// Requests of theirs that ended with an error.
    pub served_errors: u64,
    /// Entries that were wanted, and kept or under way.
    pub cache_hits: u64,
    /// Entries that were wanted, and not there.
    pub cache_misses: u64,
    /// Entries that came from the disk cache.
    pub disk_hits: u64,
    /// Range reads of packs.
    pub reads: u64,
    /// Bytes of them.
    pub fetched_bytes: u64,
    /// What was damaged and found elsewhere.
    pub salvaged: Option<SalvagedParts>,
    /// From the start to the end.
    pub elapsed_seconds: f64,
    /// To the store.
    pub requests: RequestCounts,
    /// What each bound on memory was for.
    pub limits: Vec<LimitLine>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl ServeSummary {
    pub(super) fn new(
        exports: Vec<String>,
        pool: &ViewPool,
        served: &Counts,
        limits: &ViewLimits,
    ) -> Self {
        let ViewCounts { hits, misses, disk_hits, reads, read_bytes } = pool.counts();
        let (salvaged, warnings) = pool.salvaged();
        Self {
            exports,
            clients: served.clients.load(Ordering::Relaxed),
            served_reads: served.reads.load(Ordering::Relaxed),
            served_bytes: served.sent_bytes.load(Ordering::Relaxed),
            served_changes: served.changes.load(Ordering::Relaxed),
            served_written_bytes: served.written_bytes.load(Ordering::Relaxed),
            served_flushes: served.flushes.load(Ordering::Relaxed),
            overlay_bytes: 0,
            served_errors: served.errors.load(Ordering::Relaxed),
            cache_hits: hits,
            cache_misses: misses,
            disk_hits,
            reads,
            fetched_bytes: read_bytes,
            salvaged,
            elapsed_seconds: 0.0,
            requests: RequestCounts::default(),
            limits: limits.lines(),
            warnings,
        }
    }
}
