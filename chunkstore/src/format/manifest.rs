//! Manifests and the fences in their place: `docs/format.md`, section 9.
//!
//! Creating a manifest is the only commit point of a backup. The attempt it belongs to stands in
//! its object key *and* in its body.

use super::attachment::{self, Attachment, AttachmentBody};
use super::corrupt;
use super::json::{self, Head, RefBody, backup_id, int63};
use super::names::{AttemptName, parse_manifest_key};
use super::record::{RecordKind, metadata_record};
use super::repository::RepositoryParams;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{AttachmentName, BackupId, RepositoryId, VolumeName};
use crate::limits::{
    LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX, MAGIC_MANIFEST, MANIFEST_BYTES_MAX,
    MAP_DEPTH_MAX, VOLUME_BYTES_MAX,
};
use crate::units::{Geometry, PageRef, map_depth};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// One committed backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// What was backed up.
    pub volume: VolumeName,
    /// Name of the backup.
    pub backup_id: BackupId,
    /// From 0; fenced attempts are followed by another.
    pub attempt: u32,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Root of its map.
    pub map: MapRoot,
    /// The backup it inherited from.
    pub parent: Option<ParentRef>,
    /// The CSI snapshot it was made of.
    pub snapshot: SnapshotInfo,
    /// What was read.
    pub source: SourceInfo,
    /// Start of the run, by the store's clock if the machine's was off.
    pub started: DateTime<Utc>,
    /// When the manifest was made, by the store's clock if the machine's was off.
    pub finished: DateTime<Utc>,
    /// Its place among the backups of its volume: see [`Manifest::order`].
    pub ordered: DateTime<Utc>,
    /// How far the machine's clock was ahead of the store's; negative: behind. `None`: by nothing
    /// worth a word.
    pub clock_offset_ms: Option<i64>,
    /// Figures of the run.
    pub stats: BackupStats,
    /// Program and version.
    pub tool: String,
    /// The user's labels.
    pub labels: BTreeMap<String, String>,
    /// Why it was made differently than asked; empty if it was not.
    pub degraded: Vec<String>,
    /// Which backup of which repository it is a copy of; `None`: it was made here.
    pub copied_from: Option<CopiedFrom>,
    /// Named blobs that belong to it, ascending by name, each name once.
    pub attachments: Vec<Attachment>,
}

/// Where a copied backup came from. Volume and backup id are the copy's own. All else in its
/// manifest but map, parent and attempt is what the original says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFrom {
    /// The repository it was read from.
    pub repository_id: RepositoryId,
    /// Its attempt there.
    pub attempt: u32,
    /// The repository that it was first made in: another one if a copy was copied.
    pub origin_repository_id: RepositoryId,
    /// Its attempt there.
    pub origin_attempt: u32,
    /// When the copy was made.
    pub time: DateTime<Utc>,
}

/// Root of a volume map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRoot {
    /// Levels.
    pub depth: u8,
    /// The root page, of level `depth` − 1. `None`: all of the volume is zero.
    pub root: Option<PageRef>,
}

/// The backup of the same volume that another inherited from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentRef {
    /// Its name.
    pub backup_id: BackupId,
    /// Its attempt.
    pub attempt: u32,
}

/// Where a backup stands among those of its volume: the larger, the newer. What makes it up stands in
/// its own manifest, so it is the same wherever a copy of that manifest lies, in whatever order
/// copies were written, and whatever else was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupOrder<'a> {
    ordered: DateTime<Utc>,
    backup_id: &'a BackupId,
    attempt: u32,
}

/// What is known of the CSI snapshot; texts of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotInfo {
    /// The snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The snapshot that the changed-block list started from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_id: Option<String>,
    /// Name of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi_driver: Option<String>,
    /// The driver's name for the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The driver's name for the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// What a hypervisor calls this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}

/// What an extent list means for what it does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It equals the base.
    Delta,
    /// It is zero.
    Allocated,
    /// Everything is listed.
    Whole,
}

impl ChangeKind {
    /// As in manifests and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Allocated => "allocated",
            Self::Whole => "whole",
        }
    }
}

/// What was read, which changed-block list was used, and what it covered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// Device or image.
    pub path: String,
    /// Kind of the list.
    pub kind: ChangeKind,
    /// Where the list came from.
    pub origin: String,
    /// Bytes it covered.
    #[serde(deserialize_with = "int63")]
    pub listed_bytes: u64,
    /// Extents in it.
    #[serde(deserialize_with = "int63")]
    pub listed_extents: u64,
    /// What names the disk or the file system on it, such as `ext:` and its UUID; `None` where
    /// nothing known does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// Figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BackupStats {
    /// Read from the device.
    #[serde(deserialize_with = "int63")]
    pub read_bytes: u64,
    /// Of it, zero.
    #[serde(deserialize_with = "int63")]
    pub zero_bytes: u64,
    /// Of it, as in the parent.
    #[serde(deserialize_with = "int63")]
    pub unchanged_bytes: u64,
    /// Of it, stored before by another backup or elsewhere in this one.
    #[serde(deserialize_with = "int63")]
    pub reused_bytes: u64,
    /// Of it, new.
    #[serde(deserialize_with = "int63")]
    pub new_bytes: u64,
    /// Bytes put into the store.
    #[serde(deserialize_with = "int63")]
    pub stored_bytes: u64,
    /// Packs put into the store.
    #[serde(deserialize_with = "int63")]
    pub packs: u64,
    /// Map pages put into the store.
    #[serde(deserialize_with = "int63")]
    pub pages: u64,
}

/// What stands at a manifest's object key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestRecord {
    /// A committed backup.
    Backup(Box<Manifest>),
    /// This attempt can never be committed.
    Fence {
        /// Who fenced it.
        by: String,
        /// When.
        time: DateTime<Utc>,
    },
}

const BACKUP: &str = "backup";
const FENCE: &str = "fence";

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    backup_id: String,
    volume: String,
    attempt: u32,
    #[serde(deserialize_with = "int63")]
    size_bytes: u64,
    map: MapBody,
    parent: Option<ParentBody>,
    #[serde(default)]
    snapshot: SnapshotInfo,
    source: SourceInfo,
    started: DateTime<Utc>,
    finished: DateTime<Utc>,
    /// Always written; absent in manifests that were made before there was an order.
    #[serde(default)]
    ordered: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clock_offset_ms: Option<i64>,
    stats: BackupStats,
    tool: String,
    labels: BTreeMap<String, String>,
    degraded: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copied_from: Option<CopiedFrom>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<AttachmentBody>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MapBody {
    depth: u8,
    root: Option<RefBody>,
}

impl MapBody {
    pub(super) fn of(map: &MapRoot) -> Self {
        Self { depth: map.depth, root: map.root.as_ref().map(RefBody::of) }
    }

    pub(super) fn root(&self, what: &str) -> Result<MapRoot> {
        let root = self.root.map(|r| r.page_ref(what)).transpose()?;
        Ok(MapRoot { depth: self.depth, root })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ParentBody {
    backup_id: String,
    attempt: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct FenceBody {
    by: String,
    time: DateTime<Utc>,
}

impl ParentRef {
    pub(crate) fn to_body(&self) -> ParentBody {
        ParentBody { backup_id: self.backup_id.as_str().into(), attempt: self.attempt }
    }
}

impl ParentBody {
    pub(crate) fn parent_ref(&self, what: &str) -> Result<ParentRef> {
        Ok(ParentRef { backup_id: backup_id(what, &self.backup_id)?, attempt: self.attempt })
    }
}

impl Manifest {
    /// Volume, backup and attempt.
    pub fn name(&self) -> AttemptName {
        AttemptName {
            volume: self.volume.clone(),
            backup_id: self.backup_id.clone(),
            attempt: self.attempt,
        }
    }

    /// Its object key.
    pub fn object_key(&self) -> String {
        self.name().manifest_key()
    }

    /// As a child of it would name it.
    pub fn as_parent(&self) -> ParentRef {
        ParentRef { backup_id: self.backup_id.clone(), attempt: self.attempt }
    }

    /// The one order of the backups of a volume, for whoever sorts them or asks for the newest.
    ///
    /// `ordered` is set at the commit (`docs/format.md`, section 9): the store's time, but after all
    /// backups of the volume that the run had seen, its parent among them. So a child comes after its
    /// parent whatever any clock says, and goes on doing so when the parent, or any backup between
    /// two others, is forgotten. Of two that have seen nothing of each other the store's time
    /// decides, then the id: any order of those is right, but it has to be the same for all.
    ///
    /// A copy has the place of its original. Its own parent is only where its data lies, and says
    /// nothing about the order.
    pub fn order(&self) -> BackupOrder<'_> {
        BackupOrder { ordered: self.ordered, backup_id: &self.backup_id, attempt: self.attempt }
    }

    /// The attachment of that name.
    pub fn attachment(&self, name: &AttachmentName) -> Option<&Attachment> {
        self.attachments.iter().find(|attachment| attachment.name == *name)
    }

    /// The roots of its maps: that of the volume, then those of the attachments.
    pub(crate) fn roots(&self) -> Vec<Option<PageRef>> {
        let attached = self.attachments.iter().map(|attachment| attachment.map.root);
        std::iter::once(self.map.root).chain(attached).collect()
    }

    /// Size and chunks of its volume; refuses a map whose depth is not that of this size.
    pub fn geometry(&self, params: &RepositoryParams) -> Result<Geometry> {
        let what = self.object_key();
        let geometry = Geometry::new(self.size_bytes, params.chunk)
            .map_err(|e| corrupt(&what, "its size is out of bounds").caused_by(e))?;
        let depth = map_depth(params.page_fanout, geometry.chunks());
        if depth != self.map.depth {
            let found = self.map.depth;
            return Err(corrupt(&what, format!("its map has {found} levels instead of {depth}")));
        }
        Ok(geometry)
    }

    /// What is wrong with it, if something is: checked before writing and after reading.
    fn problem(&self) -> Option<String> {
        if !(1..=VOLUME_BYTES_MAX).contains(&self.size_bytes) {
            return Some(format!("a volume of {} bytes is not possible", self.size_bytes));
        }
        if !(1..=MAP_DEPTH_MAX).contains(&self.map.depth) {
            return Some(format!("a map of {} levels is not possible", self.map.depth));
        }
        label_problem(&self.labels).or_else(|| attachment::problem(&self.attachments))
    }

    fn body(&self) -> Body {
        Body {
            backup_id: self.backup_id.as_str().into(),
            volume: self.volume.as_str().into(),
            attempt: self.attempt,
            size_bytes: self.size_bytes,
            map: MapBody::of(&self.map),
            parent: self.parent.as_ref().map(ParentRef::to_body),
            snapshot: self.snapshot.clone(),
            source: self.source.clone(),
            started: self.started,
            finished: self.finished,
            ordered: Some(self.ordered),
            clock_offset_ms: self.clock_offset_ms,
            stats: self.stats,
            tool: self.tool.clone(),
            labels: self.labels.clone(),
            degraded: self.degraded.clone(),
            copied_from: self.copied_from.clone(),
            attachments: self.attachments.iter().map(AttachmentBody::of).collect(),
        }
    }

    fn from_json(what: &str, name: &AttemptName, json: &[u8]) -> Result<Self> {
        let body: Body = json::parse(what, json)?;
        if (body.volume.as_str(), body.backup_id.as_str(), body.attempt)
            != (name.volume.as_str(), name.backup_id.as_str(), name.attempt)
        {
            return Err(corrupt(what, "it is of another backup than its object key says"));
        }
        let attachments =
            body.attachments.iter().map(|a| a.attachment(what)).collect::<Result<_>>()?;
        let manifest = Self {
            volume: name.volume.clone(),
            backup_id: name.backup_id.clone(),
            attempt: name.attempt,
            size_bytes: body.size_bytes,
            map: body.map.root(what)?,
            parent: body.parent.map(|p| p.parent_ref(what)).transpose()?,
            snapshot: body.snapshot,
            source: body.source,
            started: body.started,
            finished: body.finished,
            ordered: body.ordered.unwrap_or(body.finished),
            clock_offset_ms: body.clock_offset_ms,
            stats: body.stats,
            tool: body.tool,
            labels: body.labels,
            degraded: body.degraded,
            copied_from: body.copied_from,
            attachments,
        };
        match manifest.problem() {
            None => Ok(manifest),
            Some(problem) => Err(corrupt(what, problem)),
        }
    }
}

/// As in the store: for `--json`.
impl Serialize for Manifest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.body().serialize(s)
    }
}

/// Refuses labels beyond the limits: for one who takes them from a user.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    match label_problem(labels) {
        None => Ok(()),
        Some(problem) => Err(Error::new(ErrorKind::Usage, "use these labels", problem)),
    }
}

fn label_problem(labels: &BTreeMap<String, String>) -> Option<String> {
    if labels.len() > LABELS_MAX as usize {
        return Some(format!("{} labels are more than {LABELS_MAX}", labels.len()));
    }
    for (name, value) in labels {
        if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX as usize {
            return Some(format!("label name {name:?} is not 1 to {LABEL_NAME_BYTES_MAX} bytes"));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX as usize {
            return Some(format!("label {name:?} is longer than {LABEL_VALUE_BYTES_MAX} bytes"));
        }
    }
    None
}

impl ManifestRecord {
    const KIND: RecordKind = RecordKind {
        name: "manifest",
        magic: MAGIC_MANIFEST,
        body_bytes_max: MANIFEST_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        match self {
            Self::Backup(manifest) => {
                if manifest.object_key() != object_key {
                    return Err(super::bug(object_key, "a manifest of another key"));
                }
                if let Some(problem) = manifest.problem() {
                    let context = format!("write manifest {object_key}");
                    return Err(Error::new(ErrorKind::Usage, context, problem));
                }
                json::write(object_key, BACKUP, &manifest.body())
            }
            Self::Fence { by, time } => {
                json::write(object_key, FENCE, &FenceBody { by: by.clone(), time: *time })
            }
        }
    }

    fn from_body(object_key: &str, json: &[u8]) -> Result<Self> {
        let what = format!("manifest {object_key}");
        let name = parse_manifest_key(object_key)?;
        match Head::read(&what, json)?.kind.as_str() {
            BACKUP => Ok(Self::Backup(Box::new(Manifest::from_json(&what, &name, json)?))),
            FENCE => {
                let FenceBody { by, time } = json::parse(&what, json)?;
                Ok(Self::Fence { by, time })
            }
            other => Err(corrupt(&what, format!("its type is {other:?}"))),
        }
    }
}

metadata_record!(ManifestRecord);

#[cfg(test)]
mod tests;
