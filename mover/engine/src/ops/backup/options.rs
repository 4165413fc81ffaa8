//! The request of a backup, and the one that the program makes when it is asked for nothing but a
//! source.

use super::{AttachmentSource, AuditAmount, ParentChoice};
use crate::ingest::CompressionChoice;
use crate::run::quota::Quota;
use crate::run::{MemoryBudget, host, tool};
use crate::volume::device::DirectIo;
use crate::volume::io::EngineChoice;
use chunkstore::format::SnapshotInfo;
use chunkstore::{BackupId, VolumeName};
use mover_changes::ChangeRequest;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// What a backup is asked to do.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    /// Block device or image file.
    pub source: PathBuf,
    /// Joins the backups of one volume; by default the filesystem's UUID or the file's name.
    pub volume: Option<VolumeName>,
    /// Random by default; given, it makes a run repeatable.
    pub backup_id: Option<BackupId>,
    /// Sources of changed-block lists; without one the whole source is read, holes of an image file
    /// apart.
    pub changes: ChangeRequest,
    /// Which backup to build on.
    pub parent: ParentChoice,
    /// The snapshot that the list starts from.
    pub base_snapshot: Option<String>,
    /// The snapshot that the source shows.
    pub snapshot: SnapshotInfo,
    /// The user says that another disk, or a snapshot made anew, has the name on purpose.
    pub volume_changed: bool,
    /// Codec of new chunks.
    pub compression: CompressionChoice,
    /// Kept in the manifest.
    pub labels: BTreeMap<String, String>,
    /// Files that are kept with the backup, by name.
    pub attachments: Vec<AttachmentSource>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Which engine reads the device.
    pub engine: EngineChoice,
    /// Whether the page cache is bypassed.
    pub direct: DirectIo,
    /// Where copies of dedup segments are kept.
    pub scratch: Option<PathBuf>,
    /// Where attachments are copied to that are directories or have a digest, in files without a
    /// name.
    pub temporary: Option<PathBuf>,
    /// Seal threads; by default one a core.
    pub threads: Option<usize>,
    /// What is read again at most after a kill; by default as little as checkpoints that cost next
    /// to nothing allow.
    pub checkpoint_bytes: Option<u64>,
    /// Bytes a second that are read from the source at most.
    pub limit_read: Option<NonZeroU64>,
    /// What the run may send before it stops, to be gone on with.
    pub quota: Quota,
    /// How much of what a list does not name is looked at.
    pub audit: AuditAmount,
    /// Program and version, for manifest and lease.
    pub tool: String,
    /// Name of this machine or pod, for the lease.
    pub host: String,
}

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
            attachments: Vec::new(),
            memory: MemoryBudget::DEFAULT,
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            scratch: None,
            temporary: None,
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
