//! What a copy did, with the same numbers for people and machines.

use crate::ingest::{Bounds, CompressionUsed, Resumed};
use crate::reading::{LimitLine, SalvagedParts};
use chunkstore::{Manifest, store::RequestCounts};
use serde::Serialize;

/// How the copy of one backup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyOutcome {
    /// It is committed.
    Copied,
    /// Somebody else copied it meanwhile.
    AlreadyThere,
}

/// What the copy of one backup did. Bytes are of the volume unless said otherwise.
#[derive(Debug, Clone, Serialize)]
pub struct CopySummary {
    /// Id of the backup.
    pub backup_id: String,
    /// Its volume.
    pub volume: String,
    /// How it ended.
    pub outcome: CopyOutcome,
    /// The backup in both repositories that the copy builds on.
    pub base: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Gone through.
    pub read_bytes: u64,
    /// Read from packs of the source, in bytes as stored there.
    pub fetched_bytes: u64,
    /// Range reads of packs of the source.
    pub reads: u64,
    /// Zero.
    pub zero_bytes: u64,
    /// As in the base.
    pub unchanged_bytes: u64,
    /// In the target before, at another place.
    pub reused_bytes: u64,
    /// Not in the target before.
    pub new_bytes: u64,
    /// What was put into the target: packs and segments, in bytes as stored.
    pub stored_bytes: u64,
    /// Packs put into the target.
    pub packs: u64,
    /// Map pages put into the target.
    pub pages: u64,
    /// From start to commit, seconds.
    pub elapsed_seconds: f64,
    /// How new chunks were compressed.
    pub compression: CompressionUsed,
    /// Where the run went on if an earlier one had begun.
    pub resumed: Option<Resumed>,
    /// Bounds on memory of what reads.
    pub limits: Vec<LimitLine>,
    /// Bounds on memory of what stores.
    pub bounds: Bounds,
    /// Requests to the source so far.
    pub source_requests: RequestCounts,
    /// Requests to the target so far.
    pub target_requests: RequestCounts,
    /// What was damaged and found elsewhere in the source; nothing was lost by it.
    pub salvaged: Option<SalvagedParts>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// What stands in the target now.
    #[serde(skip)]
    pub manifest: Manifest,
}
