//! Attachments of a backup: after the volume's pass, a small pass for each of them.
//!
//! An attachment is stored as a volume is, by the same stages, compared with the attachment of the
//! same name that the parent has. Its packs count as the run's own: the lease that keeps those of
//! the volume keeps these.
//!
//! Must not: write a checkpoint. A run that goes on from one stores its attachments anew.

use super::bounds::Bounds;
use super::checkpoint::CheckpointSchedule;
use super::compression::CompressionChoice;
use super::dedup::{Dedup, Unusable};
use super::pass::{Input, Pass, PassDone};
use super::stop::Stop;
use super::upload::UploadStats;
use crate::run::RunContext;
use crate::run::quota::Meter;
use chunkstore::format::{Attachment, EMPTY_MAP};
use chunkstore::repository::SegmentInfo;
use chunkstore::{
    AttachmentName, ErrorKind, Geometry, PackId, Repository, Result, VolumeMap, Writer,
    dedup::DedupOptions,
};
use mover_changes::{Changes, PlanInput, plan_backup};
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

/// From this size on it is worth a request to know the dedup segments. Most attachments are as they
/// were in the parent, or small.
const SEGMENTS_FROM_BYTES: u64 = 4 << 20;
/// Read units in memory: reading is not what takes time here.
const SLOTS: usize = 4;

/// An attachment that is to be stored.
pub(crate) struct AttachmentInput<'a> {
    pub(crate) name: &'a AttachmentName,
    pub(crate) size_bytes: u64,
    /// Its bytes; `None` if it has none.
    pub(crate) input: Option<Input<'a>>,
}

/// What storing attachments left.
#[derive(Default)]
pub(crate) struct AttachedDone {
    /// As the manifest names them.
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) own_packs: Vec<PackId>,
    /// Packs of other backups that a dedup segment led to.
    pub(crate) reused: HashSet<PackId>,
    pub(crate) upload: UploadStats,
    pub(crate) pages: u64,
}

/// Stores the attachments of one round.
pub(crate) struct Attaching<'a> {
    pub(crate) run: RunContext<'a>,
    pub(crate) repo: &'a Arc<Repository>,
    pub(crate) writer: &'a Writer,
    pub(crate) bounds: &'a Bounds,
    pub(crate) compression: CompressionChoice,
    pub(crate) limit_read: Option<NonZeroU64>,
    pub(crate) meter: Option<&'a Arc<Meter>>,
    /// Packs that a collector has taken away.
    pub(crate) missing: &'a HashSet<PackId>,
}

impl Attaching<'_> {
    /// Stores them, in this order: ascending by name. `warnings` get what the user should know.
    pub(crate) fn all(
        &self,
        inputs: &[AttachmentInput<'_>],
        warnings: &mut Vec<String>,
    ) -> Result<AttachedDone> {
        let mut all = AttachedDone::default();
        let largest = inputs.iter().map(|input| input.size_bytes).max().unwrap_or(0);
        let segments = match largest >= SEGMENTS_FROM_BYTES {
            true => self.run.wait(self.writer.list_segments())?,
            false => Vec::new(),
        };
        let bounds = Bounds {
            slots: self.bounds.slots.min(SLOTS),
            depth: self.bounds.depth.min(SLOTS / 2),
            ..self.bounds.clone()
        };
        for AttachmentInput { name, size_bytes, input } in inputs {
            let (name, size_bytes) = ((*name).clone(), *size_bytes);
            let Some(input) = *input else {
                all.attachments.push(Attachment { name, size_bytes, map: EMPTY_MAP });
                continue;
            };
            let pass = |parent| self.pass(size_bytes, input, parent, &segments, &bounds);
            let parent = self.parent_of(&name)?;
            let done = match pass(parent.clone()) {
                Err(e) if is_damage(&e) && parent.is_some() => {
                    warnings.push(format!(
                        "attachment {name} is stored without comparing it with that of the parent: {e}"
                    ));
                    pass(None)
                }
                done => done,
            };
            let done = done.map_err(|e| match e.kind() {
                // the words of an early end are those of the run
                ErrorKind::Cancelled | ErrorKind::Limit | ErrorKind::Fenced => e,
                _ => e.within(format!("store attachment {name}")),
            })?;
            all.add(Attachment { name, size_bytes, map: done.assembled.map }, done);
        }
        Ok(all)
    }

    /// The attachment of that name that the confirmed parent has.
    fn parent_of(&self, name: &AttachmentName) -> Result<Option<VolumeMap>> {
        let parent = self.writer.parent();
        let found = parent.and_then(|m| m.attachment(name).map(|attachment| (m, attachment)));
        let Some((manifest, attachment)) = found else { return Ok(None) };
        VolumeMap::of_attachment(self.repo, manifest, attachment)
    }

    fn pass(
        &self,
        size_bytes: u64,
        input: Input<'_>,
        parent: Option<VolumeMap>,
        segments: &[SegmentInfo],
        bounds: &Bounds,
    ) -> Result<PassDone> {
        let RunContext { rt, cancel, progress } = self.run;
        let geometry = Geometry::new(size_bytes, self.repo.params().chunk)?;
        let whole = PlanInput { geometry, parent: None, changes: Changes::Whole, holes: None };
        let plan = plan_backup(&whole)?;
        let mut packs = self.writer.condemned().clone();
        packs.extend(self.missing);
        let unusable = Unusable { packs, entries: self.writer.damaged().clone() };
        let stop = Arc::new(Stop::new(cancel, self.meter.cloned()));
        let _watch = stop.fail_when(rt, self.writer.taken_for_dead());
        let memory = DedupOptions { memory_bytes: bounds.dedup_bytes, worth_bytes: size_bytes / 8 };
        let dedup = Dedup::new(self.repo, rt, &stop, segments.to_vec(), memory, None, unusable);
        Pass {
            repo: self.repo,
            runtime: rt,
            input,
            geometry,
            plan: &plan,
            from: None,
            checkpointer: None,
            schedule: CheckpointSchedule::sparing(size_bytes),
            parent,
            dedup: &dedup,
            bounds,
            compression: self.compression,
            limit_read: self.limit_read,
            progress,
            stop: &stop,
        }
        .run()
    }
}

impl AttachedDone {
    fn add(&mut self, attachment: Attachment, done: PassDone) {
        self.attachments.push(attachment);
        self.own_packs.extend(done.own_packs);
        self.reused.extend(done.assembled.reused);
        self.upload.add(&done.upload);
        self.pages += done.assembled.pages;
    }
}

fn is_damage(e: &chunkstore::Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
}
