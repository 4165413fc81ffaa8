//! The request of a copy.

use crate::ingest::CompressionChoice;
use crate::run::MemoryBudget;
use crate::run::quota::Quota;
use std::path::PathBuf;

/// How copies are made.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Codec of new chunks.
    pub compression: CompressionChoice,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Where copies of the target's dedup segments are kept.
    pub scratch: Option<PathBuf>,
    /// Threads that open, and as many that seal; by default one a core.
    pub threads: Option<usize>,
    /// What is read again at most after a kill; by default as little as costs next to nothing.
    pub checkpoint_bytes: Option<u64>,
    /// What this copy may send before it stops, to be gone on with.
    pub quota: Quota,
    /// Take leases in the source. Without them nobody may forget there what is copied.
    pub source_lease: bool,
    /// Program and version, for the leases.
    pub tool: String,
    /// Name of this machine or pod, for the leases.
    pub host: String,
}
