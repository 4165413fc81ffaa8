//! A backup as the program makes it when it is asked for nothing but a source.

use super::{AuditAmount, BackupOptions, ParentChoice};
use crate::ingest::CompressionChoice;
use crate::run::quota::Quota;
use crate::run::{MemoryBudget, host, tool};
use crate::volume::device::DirectIo;
use crate::volume::io::EngineChoice;
use chunkstore::format::SnapshotInfo;
use mover_changes::ChangeRequest;
use std::collections::BTreeMap;
use std::path::PathBuf;

impl BackupOptions {
    /// All of `source`, on top of the newest backup of its volume; nothing is bounded but memory.
    pub fn new(source: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            volume: None,
            backup_id: None,
            changes: ChangeRequest::default(),
            parent: ParentChoice::Auto,
            base_snapshot: None,
            snapshot: SnapshotInfo::default(),
            volume_changed: false,
            compression: CompressionChoice::Auto,
            labels: BTreeMap::new(),
            memory: MemoryBudget::DEFAULT,
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            scratch: None,
            threads: None,
            checkpoint_bytes: None,
            limit_read: None,
            quota: Quota::default(),
            audit: AuditAmount::default(),
            tool: tool(),
            host: host(),
        }
    }
}
