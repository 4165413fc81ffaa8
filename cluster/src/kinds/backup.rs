//! One backup of one claim, or of those that a selector chooses.

use super::common::{Condition, Deadlines, LabelSelector, Phase, RepositoryRef};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A member of a spec is what it was, or absent as it was.
macro_rules! same {
    ($member:literal) => {
        concat!(
            "has(self.spec.",
            $member,
            ") == has(oldSelf.spec.",
            $member,
            ") && (!has(self.spec.",
            $member,
            ") || self.spec.",
            $member,
            " == oldSelf.spec.",
            $member,
            ")"
        )
    };
}

/// All members but `deletionPolicy`. The rule stands at the object, not at its spec: a schedule has
/// the same spec as its template, which may change.
const UNCHANGED: &str = concat!(
    "self.spec.source == oldSelf.spec.source && self.spec.repositoryRef == oldSelf.spec.repositoryRef && ",
    same!("snapshotClassName"),
    " && ",
    same!("base"),
    " && ",
    same!("hooks"),
    " && ",
    same!("retainSnapshot"),
    " && ",
    same!("volume"),
    " && ",
    same!("notes"),
    " && ",
    same!("deadlines"),
    " && ",
    same!("maxUpload"),
    " && ",
    same!("maxRequests"),
    " && ",
    same!("failOnDegraded"),
    " && ",
    same!("retries"),
);

/// A backup. Its spec never changes, but for its deletion policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "mover.dev",
    version = "v1alpha1",
    kind = "VolumeBackup",
    namespaced,
    category = "mover",
    shortname = "vb",
    status = "VolumeBackupStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A backup of a PersistentVolumeClaim. Its spec never changes, but for deletionPolicy.",
    validation = Rule::new(UNCHANGED).message("a backup's spec never changes, but for its deletionPolicy: make another one"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".status.claim"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Changed-Blocks", type_ = "string", json_path = ".status.changedBlocks"),
    printcolumn(name = "Read", type_ = "string", json_path = ".status.read"),
    printcolumn(name = "Stored", type_ = "string", json_path = ".status.stored"),
    printcolumn(name = "Cut", type_ = "date", json_path = ".status.cutTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
pub struct VolumeBackupSpec {
    /// What is backed up.
    pub source: BackupSource,
    /// Where it goes.
    pub repository_ref: RepositoryRef,
    /// Class of the snapshot: the driver's default, or its only one, without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub snapshot_class_name: Option<String>,
    /// What changed blocks are asked since.
    #[serde(default)]
    pub base: Base,
    /// How the application holds still while the snapshot is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
    /// Whether the snapshot stays in the storage.
    #[serde(default)]
    pub retain_snapshot: RetainSnapshot,
    /// The volume that is made of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeTemplate>,
    /// Notes on the backup.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub notes: BTreeMap<String, String>,
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// Most bytes that one run may upload, such as `10GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+([KMGT]i?B?)?$')").message("write a number and a unit, such as 10GiB"))]
    #[schemars(length(max = 20))]
    pub max_upload: Option<String>,
    /// Most requests that one run may send to the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests: Option<i64>,
    /// Whether a backup that was not made as asked counts as failed. It is committed all the same.
    #[serde(default)]
    pub fail_on_degraded: bool,
    /// How often a failure that may pass is tried again; 2 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20))]
    pub retries: Option<u32>,
    /// What becomes of the stored backup when this object is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// What is backed up: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.pvc), has(self.selector), has(self.recorded)].filter(x, x).size() == 1").message("name exactly one of pvc, selector and recorded"),
    validation = Rule::new("!has(self.group) || !self.group || has(self.selector)").message("a group needs a selector"),
)]
pub struct BackupSource {
    /// A PersistentVolumeClaim of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pvc: Option<String>,
    /// Claims of this namespace by their labels: one backup each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Whether all of them are snapshotted at one moment, by one VolumeGroupSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<bool>,
    /// A backup that the repository has already: nothing is done but to show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<RecordedBackup>,
}

/// A backup that a repository has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedBackup {
    /// Its volume, as `CLUSTER/NAMESPACE/PVC`.
    #[schemars(length(min = 1, max = 1024))]
    pub volume: String,
    /// Its id.
    #[schemars(length(min = 1, max = 256))]
    pub backup_id: String,
}

/// What changed blocks are asked since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Base {
    /// The newest snapshot that stayed for that, if there is one.
    #[default]
    Auto,
    /// Nothing: the whole volume is read.
    None,
}

/// Whether a snapshot stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.count) || has(self.days)) || (has(self.policy) && self.policy == 'Keep')").message("count and days belong to the policy Keep"))]
pub struct RetainSnapshot {
    /// How long.
    #[serde(default)]
    pub policy: SnapshotPolicy,
    /// Most snapshots of this claim that stay; the oldest goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub count: Option<u32>,
    /// Days that one stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 36_500))]
    pub days: Option<u32>,
}

/// How long a snapshot stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SnapshotPolicy {
    /// Until the next good backup, where the driver tells changes; else not at all.
    #[default]
    AsBase,
    /// Until its backup has ended.
    Never,
    /// By count and age, for restores without the bucket.
    Keep,
}

/// The volume that is made of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeTemplate {
    /// Its class: the claim's own without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Whether it is asked for as one that nobody may write to (ReadOnlyMany): some drivers need not
    /// copy the snapshot for it. The default asks for ReadWriteOnce.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// How an application holds still.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.session), has(self.pair), has(self.fsfreeze)].filter(x, x).size() == 1").message("name exactly one of session, pair and fsfreeze"))]
pub struct Hooks {
    /// Pod that it runs in: the only running one that uses the claim without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pod: Option<String>,
    /// Its container: the only one without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// Shell command that holds a lock from its first line of output until its input ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10_000))]
    pub session: Option<String>,
    /// A command that takes the lock, and one that lets go of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<HookPair>,
    /// Path of a filesystem in the container that is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4_096))]
    pub fsfreeze: Option<String>,
    /// Seconds after which the application goes on, whatever happens; 60 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_seconds: Option<u32>,
    /// What follows then.
    #[serde(default)]
    pub on_timeout: AfterTimeout,
}

/// Two shell commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookPair {
    /// Has the application hold still.
    #[schemars(length(min = 1, max = 10_000))]
    pub before: String,
    /// Lets it go on: it may run twice, and after a first one that failed.
    #[schemars(length(min = 1, max = 10_000))]
    pub after: String,
}

/// What follows where an application went on too early.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AfterTimeout {
    /// The backup fails.
    #[default]
    Fail,
    /// The snapshot is taken as it is, and the backup says so.
    Continue,
}

/// What becomes of a stored backup when its object is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It stays in the repository.
    #[default]
    Retain,
    /// It is forgotten, and the next collection frees its space.
    Forget,
}

/// How a backup is. Nothing is decided by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeBackupStatus {
    /// How far it is, derived from its conditions.
    #[serde(default)]
    pub phase: Phase,
    /// `Complete`, `SnapshotTaken`, `Quiesced`, `VolumeReady`, `Moved`, `CleanedUp`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// For people: what is waited for, or how it ended, with the next step.
    #[serde(default)]
    pub message: String,
    /// Claim, or number of claims.
    #[serde(default)]
    pub claim: String,
    /// Attempts until now.
    #[serde(default)]
    pub attempts: u32,
    /// ConfigMap that holds the record of the newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Volume in the repository, as `CLUSTER/NAMESPACE/PVC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Id of the backup in the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_id: Option<String>,
    /// When its schedule wanted it (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_time: Option<String>,
    /// The moment that it holds (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_time: Option<String>,
    /// When it was committed (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// The snapshot that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotStatus>,
    /// `delta`, `allocated` or `whole`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_blocks: Option<String>,
    /// Why more was read than asked for, and other warnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<Figures>,
    /// Bytes read, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    /// Bytes stored, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
}

/// A snapshot of the storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Name of the VolumeSnapshot.
    #[serde(default)]
    pub name: String,
    /// CSI driver.
    #[serde(default)]
    pub driver: String,
    /// Its name in the storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
}

/// Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Of the volume.
    #[serde(default)]
    pub size_bytes: i64,
    /// Read from it.
    #[serde(default)]
    pub read_bytes: i64,
    /// Written to the store.
    #[serde(default)]
    pub stored_bytes: i64,
}
