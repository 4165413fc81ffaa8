//! What a restore did, for people and machines.

use crate::reading::SalvagedParts;
use crate::reading::compare::longer_file;
use crate::reading::damage::SkippedDamage;
use crate::reading::get;
use crate::reading::limits::{LimitLine, Limits};
use crate::reading::open::OpenStats;
use crate::reading::pipeline::ReadingFigures;
use crate::reading::plan::PlanScope;
use crate::volume::device::{DeviceKind, Target};
use chunkstore::{Manifest, store::RequestCounts};
use serde::Serialize;

/// Result of a restore that ended well.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreSummary {
    /// Backup that was restored.
    pub backup_id: String,
    /// Its volume.
    pub volume: String,
    /// Id of the root page of its volume map, which stands for every byte; none where all is zero.
    pub root: Option<String>,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// First wanted byte.
    pub range_start: u64,
    /// End of the wanted bytes.
    pub range_end: u64,
    /// The target, or `-`.
    pub target: String,
    /// Size of the target; what lies behind the volume was not touched.
    pub target_bytes: Option<u64>,
    /// Whether the target was created by this run.
    pub created: bool,
    /// Bytes of stored chunks that were written.
    pub data_bytes: u64,
    /// Bytes that are zero.
    pub zero_bytes: u64,
    /// Bytes that the target had already, zeros among them, if it was compared first.
    pub same_bytes: Option<u64>,
    /// Those of them that are of stored chunks.
    pub same_data_bytes: Option<u64>,
    /// Chunks that were checked.
    pub chunks: u64,
    /// Bytes of packs that were read, map pages apart.
    pub fetched_bytes: u64,
    /// Range reads of packs, map pages apart.
    pub reads: u64,
    /// Map pages that were gone through.
    pub pages: u64,
    /// Entries that were found through forwarding stubs.
    pub moved_entries: u64,
    /// Which engine wrote.
    pub engine: Option<String>,
    /// Why better engines were not taken.
    pub engine_notes: Vec<String>,
    /// Whether the page cache was bypassed.
    pub direct: Option<bool>,
    /// Whether what was written is on the medium: `false` where an NBD server cannot flush, nothing
    /// for a pipe, whose reader alone knows.
    pub flushed: Option<bool>,
    /// What reading back found, if it was asked for.
    pub verified: Option<VerifiedTarget>,
    /// What could not be restored and is zero instead, if damage was to be skipped and there was
    /// any.
    pub damaged: Option<SkippedDamage>,
    /// What was damaged and found elsewhere in the repository; nothing was lost by it.
    pub salvaged: Option<SalvagedParts>,
    /// All of it.
    pub elapsed_seconds: f64,
    /// Requests to the store so far.
    pub requests: RequestCounts,
    /// What memory was divided into.
    pub limits: Vec<LimitLine>,
    /// What the run waited for most: `store`, `cpu` or `target`.
    pub bottleneck: String,
    /// What did not go as it should, without harm.
    pub warnings: Vec<String>,
}

/// A target that was read back and is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VerifiedTarget {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes in holes of the file, which read as zeros by definition.
    pub hole_bytes: u64,
    /// Whether the page cache was bypassed.
    pub direct: bool,
}

impl RestoreSummary {
    pub(crate) fn new(
        manifest: &Manifest,
        scope: &PlanScope,
        limits: &Limits,
        figures: &ReadingFigures,
    ) -> Self {
        let edge_bytes: u64 = figures.written.edges.iter().map(|e| e.bytes.len() as u64).sum();
        let fetch = &figures.fetch;
        Self {
            backup_id: manifest.backup_id.to_string(),
            volume: manifest.volume.to_string(),
            root: manifest.map.root.as_ref().map(|root| root.id.to_hex()),
            volume_bytes: manifest.size_bytes,
            range_start: scope.want.start,
            range_end: scope.want.end,
            target: "-".into(),
            target_bytes: None,
            created: false,
            data_bytes: figures.written.bytes + edge_bytes + figures.streamed.bytes,
            zero_bytes: get(&fetch.zero_bytes),
            same_bytes: None,
            same_data_bytes: None,
            chunks: figures.open.chunks,
            fetched_bytes: get(&fetch.read_bytes),
            reads: get(&fetch.reads),
            pages: get(&fetch.pages),
            moved_entries: get(&fetch.moved_entries),
            engine: None,
            engine_notes: Vec::new(),
            direct: None,
            flushed: None,
            verified: None,
            damaged: None,
            salvaged: None,
            elapsed_seconds: 0.0,
            requests: RequestCounts::default(),
            limits: limits.lines(),
            bottleneck: bottleneck(&figures.open, figures.streamed.waited_for_output),
            warnings: Vec::new(),
        }
    }

    /// What is neither written nor made zero is there.
    pub(crate) fn set_same(&mut self, figures: &ReadingFigures) {
        let want = self.range_end - self.range_start;
        self.same_bytes = Some(want.saturating_sub(self.data_bytes + self.zero_bytes));
        self.same_data_bytes = Some(get(&figures.fetch.same_bytes));
    }

    pub(crate) fn set_target(&mut self, target: &Target, engine: &str, notes: Vec<String>) {
        self.target = target.path().display().to_string();
        self.target_bytes = Some(target.device_bytes());
        self.created = target.created();
        self.engine = Some(engine.into());
        self.engine_notes = notes;
        self.direct = Some(target.direct());
        self.flushed = Some(target.can_flush());
        if !target.can_flush() {
            let path = target.path().display();
            self.warnings.push(format!(
                "not flushed: the server of {path} has no order for that, and what was written may \
                 be lost if it, or its machine, fails now"
            ));
        }
        self.warnings.extend(target.stale().map(|why| {
            let path = target.path().display();
            format!(
                "{path} was written through a page cache that may be older than the device: bytes \
                 beside those of the volume may have got old values ({why})"
            )
        }));
        let whole = (self.range_start, self.range_end) == (0, self.volume_bytes);
        // devices are longer more often than not
        if whole && target.kind() == DeviceKind::File {
            let longer = longer_file(target.path(), target.device_bytes(), self.volume_bytes);
            let volume_bytes = self.volume_bytes;
            self.warnings.extend(longer.map(|longer| {
                let path = target.path().display();
                format!(
                    "{longer} stay as they were; `truncate -s {volume_bytes} '{path}'` drops them"
                )
            }));
        }
    }
}

/// Where the opener threads' time went; they stand between store and target. `output` is what the
/// output in order took.
pub(crate) fn bottleneck(open: &OpenStats, output: std::time::Duration) -> String {
    let waited = [
        ("store", open.waited_for_store.saturating_sub(output)),
        ("cpu", open.worked),
        ("target", open.waited_for_output + output),
    ];
    let most = waited.into_iter().max_by_key(|(_, t)| *t);
    most.map_or("store", |(name, _)| name).into()
}
