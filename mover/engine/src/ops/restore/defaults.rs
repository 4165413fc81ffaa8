//! A restore as the program makes it when it is asked for nothing but a backup and a target.

use super::{RestoreOptions, RestoreTarget};
use crate::run::{MemoryBudget, host, tool};
use crate::volume::device::DirectIo;
use crate::volume::io::EngineChoice;
use chunkstore::LeaseOptions;

/// A reader without a heartbeat for this long counts as dead to a collector.
pub const LEASE_SECONDS: u32 = 600;

impl RestoreOptions {
    /// All of `backup`, under a lease, onto a target on which nothing is recognised.
    pub fn new(backup: impl Into<String>, target: RestoreTarget) -> Self {
        Self {
            backup: backup.into(),
            target,
            force: false,
            verify: false,
            skip_damaged: false,
            range: None,
            lease: Some(LeaseOptions { lease_seconds: LEASE_SECONDS, tool: tool(), host: host() }),
            memory: MemoryBudget::DEFAULT,
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            threads: None,
            source_paths_to_refuse: Vec::new(),
        }
    }
}
