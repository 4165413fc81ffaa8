//! What a run has shown.

use crate::reading::SalvagedParts;
use crate::reading::limits::LimitLine;
use crate::reading::view::{ViewCounts, ViewPool};
use chunkstore::store::RequestCounts;
use mover_fuse::Counts;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MountEnd {
    /// It was unmounted at the end of the run.
    Unmounted,
    /// The same, and somebody had it in use.
    InUse,
    /// Somebody else unmounted it.
    Outside,
}

/// The figures of a run that mounted backups.
#[derive(Debug, Clone, Serialize)]
pub struct MountSummary {
    /// Where.
    pub directory: PathBuf,
    /// How it ended.
    pub end: MountEnd,
    /// How often a backup was opened.
    pub opened_backups: u64,
    /// Requests of the kernel.
    pub kernel_requests: u64,
    /// Reads of files among them that reached us, not those of the page cache.
    pub served_reads: u64,
    /// Bytes of them.
    pub served_bytes: u64,
    /// Requests that ended with an I/O error.
    pub served_errors: u64,
    /// Requests whose callers were killed.
    pub killed_requests: u64,
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

impl MountSummary {
    pub(super) fn new(
        directory: PathBuf,
        pool: &ViewPool,
        served: &Counts,
        opened_backups: u64,
        limits: Vec<LimitLine>,
    ) -> Self {
        let ViewCounts { hits, misses, disk_hits, reads, read_bytes } = pool.counts();
        let (salvaged, warnings) = pool.salvaged();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            directory,
            end: MountEnd::Unmounted,
            opened_backups,
            kernel_requests: get(&served.requests),
            served_reads: get(&served.reads),
            served_bytes: get(&served.read_bytes),
            served_errors: get(&served.errors),
            killed_requests: get(&served.killed),
            cache_hits: hits,
            cache_misses: misses,
            disk_hits,
            reads,
            fetched_bytes: read_bytes,
            salvaged,
            elapsed_seconds: 0.0,
            requests: RequestCounts::default(),
            limits,
            warnings,
        }
    }
}
