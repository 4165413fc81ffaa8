//! What a live restore did.

use crate::reading::SalvagedParts;
use crate::reading::limits::LimitLine;
use crate::reading::view::{ViewCounts, ViewLimits, ViewPool};
use crate::reading::{SkippedDamage, SkippedRange};
use chunkstore::store::RequestCounts;
use mover_nbd::server::Counts;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The figures of a run of a live restore.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LiveSummary {
    /// Backup that is restored.
    pub backup_id: String,
    /// Its volume.
    pub volume: String,
    /// Bytes of the volume that is served; zeros behind the end of the backup's.
    pub volume_bytes: u64,
    /// The target.
    pub target: String,
    /// Its size; what lies behind the volume was not touched.
    pub target_bytes: u64,
    /// The journal, which stays.
    pub journal: String,
    /// Whether it went on with one.
    pub resumed: bool,
    /// All of the volume is on the target, durably.
    pub complete: bool,
    /// Bytes of the volume that are on the target, as whole chunks.
    pub done_bytes: u64,
    /// Bytes that this run has brought there from the backup, zeros too.
    pub landed_bytes: u64,
    /// Bytes of the backup that are damaged, and that nobody has written since: reading them fails.
    pub damaged: Option<SkippedDamage>,
    /// Clients that have come.
    pub clients: u64,
    /// Reads that they asked for.
    pub served_reads: u64,
    /// Bytes of the volume that were sent to them.
    pub served_bytes: u64,
    /// Writes, zeros and trims of theirs.
    pub served_changes: u64,
    /// Bytes that they wrote.
    pub served_written_bytes: u64,
    /// Flushes of theirs, those of changes with `FUA` too.
    pub served_flushes: u64,
    /// Requests of theirs that ended with an error.
    pub served_errors: u64,
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

impl LiveSummary {
    pub(super) fn add_served(&mut self, served: &Counts) {
        self.clients = served.clients.load(Ordering::Relaxed);
        self.served_reads = served.reads.load(Ordering::Relaxed);
        self.served_bytes = served.sent_bytes.load(Ordering::Relaxed);
        self.served_changes = served.changes.load(Ordering::Relaxed);
        self.served_written_bytes = served.written_bytes.load(Ordering::Relaxed);
        self.served_flushes = served.flushes.load(Ordering::Relaxed);
        self.served_errors = served.errors.load(Ordering::Relaxed);
    }

    pub(super) fn add_read(&mut self, pool: &ViewPool, limits: &ViewLimits) {
        let ViewCounts { reads, read_bytes, .. } = pool.counts();
        (self.reads, self.fetched_bytes) = (reads, read_bytes);
        let (salvaged, warnings) = pool.salvaged();
        self.salvaged = salvaged;
        self.warnings.extend(warnings);
        self.limits = limits.lines();
    }

    /// What is not there, in a run that could read all else.
    pub(super) fn add_damage(&mut self, absent: &[std::ops::Range<u64>], first: &str) {
        let range =
            |r: &std::ops::Range<u64>| SkippedRange { offset: r.start, len: r.end - r.start };
        let ranges: Vec<SkippedRange> = absent.iter().map(range).collect();
        self.damaged = (!ranges.is_empty()).then(|| SkippedDamage {
            bytes: ranges.iter().map(|range| range.len).sum(),
            ranges,
            first: first.to_owned(),
        });
    }
}
