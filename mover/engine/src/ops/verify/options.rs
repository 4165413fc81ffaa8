//! The request of a verification.

use crate::run::MemoryBudget;
use crate::volume::device::DirectIo;
use crate::volume::io::EngineChoice;
use chunkstore::LeaseOptions;
use std::path::PathBuf;

/// What to verify, and with what.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Id, unique prefix, or `VOLUME@latest`.
    pub backup: String,
    /// Compare with this device or image instead of reading the backup's data.
    pub device: Option<PathBuf>,
    /// The reader's lease to take; without one, nobody may forget this backup meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Which engine reads the device.
    pub engine: EngineChoice,
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
    /// Checking threads; by default one a core.
    pub threads: Option<usize>,
}
