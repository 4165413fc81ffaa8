//! The request of a restore, and the one that the program makes when it is asked for nothing but a
//! backup and a target.

use crate::run::{MemoryBudget, host, tool};
use crate::volume::device::DirectIo;
use crate::volume::io::EngineChoice;
use chunkstore::LeaseOptions;
use std::ops::Range;
use std::path::PathBuf;

/// A reader without a heartbeat for this long counts as dead to a collector.
pub const LEASE_SECONDS: u32 = 600;

/// Where a restore goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreTarget {
    /// A block device or an image file; a file that is absent is created, sparse, with the volume's
    /// size.
    Path(PathBuf),
    /// Standard output, in order, zeros included.
    Stdout,
}

/// What to restore, where to, and with what.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// Id, unique prefix, or `VOLUME@latest`.
    pub backup: String,
    /// Where to.
    pub target: RestoreTarget,
    /// Overwrite what is recognised on the target.
    pub force: bool,
    /// Read the target first, and write only chunks that differ.
    pub differential: bool,
    /// Read the target back after the flush and compare.
    pub verify: bool,
    /// Write all that is left of a damaged backup: what cannot be read is zero on the target, and
    /// listed in the summary.
    pub skip_damaged: bool,
    /// Only these bytes of the volume, to the same offsets of the target.
    pub range: Option<Range<u64>>,
    /// The reader's lease to take; without one, nobody may forget this backup meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Which engine writes.
    pub engine: EngineChoice,
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
    /// Opener threads; by default one a core.
    pub threads: Option<usize>,
    /// Devices and files that must not be the target, nor share bytes with it.
    pub source_paths_to_refuse: Vec<PathBuf>,
    /// The journal of a live restore to this target that is given up: it is removed once the target
    /// is open, before its first byte is written. Refused while another process has it open.
    pub journal_to_remove: Option<PathBuf>,
}

impl RestoreOptions {
    /// All of `backup`, under a lease, onto a target on which nothing is recognised.
    pub fn new(backup: impl Into<String>, target: RestoreTarget) -> Self {
        Self {
            backup: backup.into(),
            target,
            force: false,
            differential: false,
            verify: false,
            skip_damaged: false,
            range: None,
            lease: Some(LeaseOptions { lease_seconds: LEASE_SECONDS, tool: tool(), host: host() }),
            memory: MemoryBudget::DEFAULT,
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            threads: None,
            source_paths_to_refuse: Vec::new(),
            journal_to_remove: None,
        }
    }
}
