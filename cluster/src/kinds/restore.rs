//! One restore: to a claim that it names, or to the claims that name it.

use super::common::{Condition, Deadlines, ObjectRef, Phase, RepositoryRef};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A restore. A PersistentVolumeClaim names it in `dataSourceRef`, or it names its target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "mover.dev",
    version = "v1alpha1",
    kind = "VolumeRestore",
    namespaced,
    category = "mover",
    shortname = "vr",
    status = "VolumeRestoreStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A restore: a PersistentVolumeClaim names it in dataSourceRef, or it names its target.",
    printcolumn(name = "Volume", type_ = "string", json_path = ".status.volume"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target.pvc"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Proved", type_ = "date", json_path = ".status.proof.time"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("a restore's spec never changes: make another one"),
    validation = Rule::new("!has(self.preferSnapshot) || !self.preferSnapshot || !has(self.target) || !has(self.target.inPlace) || !self.target.inPlace").message("preferSnapshot is about a new volume: in place, differential fetches only what differs"),
)]
pub struct VolumeRestoreSpec {
    /// What is restored.
    pub source: RestoreSource,
    /// Where to; without it, claims name this object in `dataSourceRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<RestoreTarget>,
    /// Class of the new claim: the source's, or the cluster's default, without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Size of the new claim, such as `20Gi`: the source's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30))]
    pub size: Option<String>,
    /// Mode of the new claim: the source's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<VolumeMode>,
    /// Type of its filesystem: the source's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30))]
    pub filesystem: Option<String>,
    /// Whether a claim whose class waits for its first consumer is waited for; so without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_consumer: Option<bool>,
    /// The new volume begins as the backup's snapshot, where the storage still has it in this namespace,
    /// and only what differs is fetched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefer_snapshot: bool,
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// How often a failure that may pass is tried again; 2 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20))]
    pub retries: Option<u32>,
}

/// What is restored: a VolumeBackup, or a volume of a Repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.backupRef) != has(self.repositoryRef)").message("name either backupRef or repositoryRef"),
    validation = Rule::new("!has(self.backupRef) || !(has(self.volume) || has(self.backup) || has(self.before))").message("backupRef says all: leave volume, backup and before away"),
    validation = Rule::new("!has(self.repositoryRef) || has(self.volume)").message("name the volume: PVC, or CLUSTER/NAMESPACE/PVC"),
    validation = Rule::new("!(has(self.backup) && has(self.before))").message("name either backup or before"),
)]
pub struct RestoreSource {
    /// A VolumeBackup of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_ref: Option<ObjectRef>,
    /// A Repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository_ref: Option<RepositoryRef>,
    /// A volume in it: a claim of this namespace by its name, or `CLUSTER/NAMESPACE/PVC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1_024))]
    pub volume: Option<String>,
    /// A backup of it: its id, a date, or `latest`, which is meant without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub backup: Option<String>,
    /// The newest backup of which no data is younger than this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 4, max = 40))]
    pub before: Option<String>,
}

/// Where a restore goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.assumeDetached) || !self.assumeDetached || (has(self.inPlace) && self.inPlace)").message("assumeDetached belongs to inPlace"),
    validation = Rule::new("!has(self.differential) || !self.differential || (has(self.inPlace) && self.inPlace)").message("differential belongs to inPlace: a new volume has nothing that could be the same"),
)]
pub struct RestoreTarget {
    /// A claim of this namespace: a new one, or with `inPlace` one that exists.
    #[schemars(length(min = 1, max = 253))]
    pub pvc: String,
    /// Whether the volume of a claim that exists is written.
    #[serde(default)]
    pub in_place: bool,
    /// No node has that volume, of a driver that does not tell.
    #[serde(default)]
    pub assume_detached: bool,
    /// The volume is read first, and only what differs from the backup is fetched and written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub differential: bool,
}

/// Mode of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum VolumeMode {
    Filesystem,
    Block,
}

/// How a restore is. Nothing is decided by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRestoreStatus {
    /// How far it is, derived from its conditions.
    #[serde(default)]
    pub phase: Phase,
    /// `Complete`, `Moved`, `Proved`, `Bound`, `CleanedUp`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// For people: what is waited for, or how it ended, with the next step.
    #[serde(default)]
    pub message: String,
    /// Attempts until now.
    #[serde(default)]
    pub attempts: u32,
    /// Volume in the repository, as `CLUSTER/NAMESPACE/PVC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Id of the backup that is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_id: Option<String>,
    /// That the target has its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Claims that name this object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<ConsumerStatus>,
}

/// That all data was read back and is that of the backup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// Id of the root of the volume map, which stands for every byte; none where all is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The record of the operation whose Job read it all back.
    #[serde(default)]
    pub verified_by: String,
    /// When (RFC 3339).
    #[serde(default)]
    pub time: String,
    /// Bytes of data that were read back, written now or there before.
    #[serde(default)]
    pub data_bytes: i64,
    /// Those of them that were there before, as of a snapshot that the volume began as; none where
    /// nothing was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_bytes: Option<i64>,
    /// Why all came from the bucket, where a snapshot was preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_bucket: Option<String>,
}

/// One claim that names a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerStatus {
    /// Its name.
    pub pvc: String,
    /// How far it is.
    #[serde(default)]
    pub phase: Phase,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// That it has its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
}
