//! What a backup did, with the same numbers for people, machines and the manifest.

use super::{Audited, Job};
use crate::ingest::pass::PassDone;
use crate::ingest::rounds::{Committed, Rounds};
use crate::ingest::{Bounds, CompressionUsed, Resumed};
use chunkstore::{
    Manifest, Writer,
    format::{Attachment, BackupStats, ChangeKind, ParentRef, SnapshotInfo, SourceInfo},
    store::{RequestCounts, Retention},
};
use mover_changes::BackupPlan;
use serde::Serialize;
use std::time::Duration;

/// How a backup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackupOutcome {
    /// It is committed.
    Committed,
    /// The same backup had been committed before; this run changed nothing.
    AlreadyCommitted,
}

/// What a backup did. Bytes are of the volume unless said otherwise.
#[derive(Debug, Clone, Serialize)]
pub struct BackupSummary {
    /// Id of the backup.
    pub backup_id: String,
    /// Its volume.
    pub volume: String,
    /// How it ended.
    pub outcome: BackupOutcome,
    /// The backup that it builds on.
    pub parent: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Which kind of list was used.
    pub kind: ChangeKind,
    /// Where it came from, by its shape or protocol; `device` without one.
    pub origin: String,
    /// Bytes and ranges that it named.
    pub listed_bytes: u64,
    /// See `listed_bytes`.
    pub listed_extents: u64,
    /// Read from the device.
    pub read_bytes: u64,
    /// Zero, read or known.
    pub zero_bytes: u64,
    /// As in the parent, read or inherited.
    pub unchanged_bytes: u64,
    /// Stored before, at another place.
    pub reused_bytes: u64,
    /// Stored by this run.
    pub new_bytes: u64,
    /// What this run put into the store: packs and segments, in bytes as stored.
    pub stored_bytes: u64,
    /// Packs stored.
    pub packs: u64,
    /// Map pages stored.
    pub pages: u64,
    /// What was stored besides the volume. Of the figures above only the last three count it.
    pub attachments: Vec<AttachmentSummary>,
    /// From start to commit, seconds.
    pub elapsed_seconds: f64,
    /// Read from the device, a second.
    pub rate_bytes_per_second: f64,
    /// Which engine read the device.
    pub engine: &'static str,
    /// How new chunks were compressed.
    pub compression: CompressionUsed,
    /// Where the run went on if an earlier one had begun. The other figures are then those of this
    /// run alone.
    pub resumed: Option<Resumed>,
    /// What was looked at of what the list does not name; `None` without a list.
    pub audit: Option<Audited>,
    /// What the run waited for most: `device`, `cpu` or `store`.
    pub bottleneck: &'static str,
    /// Where its stages waited.
    pub waits: Waits,
    /// Bounds on memory that were in force.
    pub bounds: Option<Bounds>,
    /// Requests to the store, by kind.
    pub requests: RequestCounts,
    /// How long it is locked, where that was asked for.
    pub retention: Option<Retention>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Why the backup was made differently than asked.
    pub degraded: Vec<String>,
}

/// An attachment of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttachmentSummary {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
}

impl AttachmentSummary {
    fn of(attachment: &Attachment) -> Self {
        Self { name: attachment.name.to_string(), size_bytes: attachment.size_bytes }
    }
}

/// Where the stages of a run waited, in seconds; of stages with several threads the sum over them.
/// What is short of all of it was work, on a core or waiting for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Waits {
    /// The read stage, for the device.
    pub read_for_device: f64,
    /// The read stage, for a free buffer: the stages behind it are slower.
    pub read_for_buffers: f64,
    /// The seal threads, for something to seal.
    pub seal_for_input: f64,
    /// The seal threads, to hand on what they have sealed.
    pub seal_for_output: f64,
    /// The run, for packs to be stored.
    pub for_store: f64,
}

impl Waits {
    fn of(done: &PassDone) -> Self {
        Self {
            read_for_device: done.read.device_wait.as_secs_f64(),
            read_for_buffers: done.read.slot_wait.as_secs_f64(),
            seal_for_input: done.seal.idle.as_secs_f64(),
            seal_for_output: done.seal.blocked.as_secs_f64(),
            for_store: done.upload.wait.as_secs_f64(),
        }
    }
}

impl BackupSummary {
    pub(super) fn already_done(m: Manifest, warnings: Vec<String>, elapsed: Duration) -> Self {
        let mut summary = Self::of(m, BackupOutcome::AlreadyCommitted, elapsed);
        summary.warnings = warnings;
        summary
    }

    fn of(m: Manifest, outcome: BackupOutcome, elapsed: Duration) -> Self {
        Self {
            backup_id: m.backup_id.to_string(),
            volume: m.volume.to_string(),
            outcome,
            parent: m.parent.map(|p| p.backup_id.to_string()),
            size_bytes: m.size_bytes,
            kind: m.source.kind,
            origin: m.source.origin,
            listed_bytes: m.source.listed_bytes,
            listed_extents: m.source.listed_extents,
            read_bytes: 0,
            zero_bytes: 0,
            unchanged_bytes: 0,
            reused_bytes: 0,
            new_bytes: 0,
            stored_bytes: 0,
            packs: 0,
            pages: 0,
            attachments: m.attachments.iter().map(AttachmentSummary::of).collect(),
            elapsed_seconds: elapsed.as_secs_f64(),
            rate_bytes_per_second: 0.0,
            engine: "none",
            compression: CompressionUsed::default(),
            resumed: None,
            audit: None,
            bottleneck: "none",
            waits: Waits::default(),
            bounds: None,
            requests: RequestCounts::default(),
            retention: None,
            warnings: Vec::new(),
            degraded: m.degraded,
        }
    }
}

impl Job<'_> {
    /// The manifest of what the pass made. The commit gives it its attempt and its place in the order,
    /// and right times where the clock is off.
    pub(super) fn manifest_of(
        &self,
        writer: &Writer,
        plan: &BackupPlan,
        done: &PassDone,
    ) -> Manifest {
        let p = &self.prepared;
        let listed = p.changes.as_ref().map(|c| {
            (
                c.data.total() + c.zero.total(),
                (c.data.iter().count() + c.zero.iter().count()) as u64,
            )
        });
        let kind = p.changes.as_ref().map_or(ChangeKind::Whole, |c| c.kind);
        let (listed_bytes, listed_extents) = listed.unwrap_or((p.geometry.size_bytes(), 1));
        let finished = chrono::Utc::now();
        // a clock may have been set meanwhile
        let ran = chrono::TimeDelta::from_std(self.begun.elapsed()).unwrap_or_default();
        Manifest {
            backup_id: writer.backup_id().clone(),
            volume: p.volume.clone(),
            attempt: writer.attempt(),
            size_bytes: p.geometry.size_bytes(),
            map: done.assembled.map,
            parent: writer
                .parent()
                .map(|m| ParentRef { backup_id: m.backup_id.clone(), attempt: m.attempt }),
            snapshot: SnapshotInfo {
                // of what is taken over from nothing it is none
                base_id: self.options.base_snapshot.clone().filter(|_| kind == ChangeKind::Delta),
                ..self.options.snapshot.clone()
            },
            source: SourceInfo {
                path: p.source.absolute_path(),
                kind,
                origin: p.changes.as_ref().map_or("device", |c| c.origin.as_str()).to_owned(),
                listed_bytes,
                listed_extents,
                identity: p.identity.clone(),
            },
            started: finished.checked_sub_signed(ran).unwrap_or(finished),
            finished,
            ordered: finished,
            clock_offset_ms: None,
            stats: Self::stats(plan, done),
            tool: self.options.tool.clone(),
            labels: self.options.labels.clone(),
            degraded: self.prepared.degraded.clone(),
            copied_from: None,
            attachments: done.attachments.clone(),
        }
    }

    fn stats(plan: &BackupPlan, done: &PassDone) -> BackupStats {
        BackupStats {
            read_bytes: done.read.read_bytes,
            zero_bytes: done.seal.zero_bytes + plan.zero_bytes,
            unchanged_bytes: done.seal.unchanged_bytes + plan.inherited_bytes,
            reused_bytes: done.seal.reused_bytes,
            new_bytes: done.seal.new_bytes,
            stored_bytes: done.upload.bytes,
            packs: done.upload.packs,
            pages: done.assembled.pages,
        }
    }

    pub(super) fn summary(&self, rounds: &Rounds<'_>, committed: Committed) -> BackupSummary {
        let Committed { manifest, fresh, done, .. } = committed;
        let done = &done;
        let outcome = match fresh {
            true => BackupOutcome::Committed,
            false => BackupOutcome::AlreadyCommitted,
        };
        let elapsed = self.begun.elapsed();
        let stats = self.last_stats.unwrap_or_default();
        let mut summary = BackupSummary::of(manifest, outcome, elapsed);
        summary.read_bytes = stats.read_bytes;
        summary.zero_bytes = stats.zero_bytes;
        summary.unchanged_bytes = stats.unchanged_bytes;
        summary.reused_bytes = stats.reused_bytes;
        summary.new_bytes = stats.new_bytes;
        summary.stored_bytes = stats.stored_bytes;
        summary.packs = stats.packs;
        summary.pages = stats.pages;
        #[allow(clippy::cast_precision_loss)] // shown with three digits
        let rate = stats.read_bytes as f64 / elapsed.as_secs_f64().max(1e-9);
        summary.rate_bytes_per_second = rate;
        summary.engine = done.engine;
        summary.compression.clone_from(&done.compression);
        summary.resumed = rounds.resumed;
        summary.audit = self.audited;
        summary.bottleneck = self.bottleneck(done, elapsed);
        summary.waits = Waits::of(done);
        summary.bounds = Some(self.prepared.bounds.clone());
        summary.requests = rounds.repo.store().counts();
        summary.warnings.clone_from(&rounds.warnings);
        summary
    }

    /// The stage that the others waited for. The run waits for the store when packs cannot be
    /// handed on; the seal threads wait for the device when nothing is there to seal; otherwise
    /// they are what the rest waits for.
    fn bottleneck(&self, done: &PassDone, elapsed: Duration) -> &'static str {
        let threads = u32::try_from(self.prepared.bounds.seal_threads).unwrap_or(1).max(1);
        if done.upload.wait > elapsed / 3 {
            "store"
        } else if done.seal.idle / threads > elapsed / 2 {
            "device"
        } else {
            "cpu"
        }
    }
}
