//! What is asked for. A request is written once, into the anchor, and never changed: what decides
//! about an operation does not change under it.

use super::kept::Kept;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A Repository: where it is, and how a pod gets at it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Repository {
    /// The namespace of its Secrets, and of the Jobs.
    #[serde(default)]
    pub namespace: String,
    /// Its name in that namespace.
    #[serde(default)]
    pub name: String,
    /// Such as `s3://bucket/prefix`.
    pub url: String,
    /// How volumes of this cluster begin in it.
    pub cluster: String,
    /// Secret whose files are the repository's keys.
    pub key_secret: String,
    /// Secret whose members become environment variables, such as `AWS_ACCESS_KEY_ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
    /// ConfigMap with an authority of one's own in `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_config_map: Option<String>,
    /// More environment variables, such as `AWS_ENDPOINT_URL`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Service account of the Jobs.
    pub service_account: String,
    /// Image of the Jobs.
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub image_pull_policy: String,
    /// Memory of a Job, as Kubernetes writes it.
    pub memory: String,
    /// Processor of a Job, as Kubernetes writes it.
    pub cpu: String,
    /// Namespaces whose claims may use it, besides its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// Whether a restored block volume may become a filesystem volume. Whoever holds bucket and key
    /// can forge a filesystem that the kernel will parse.
    #[serde(default)]
    pub allow_mode_change: bool,
    /// Whether its pods are of the level *restricted*: the container runtime gives the device to
    /// their user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restricted: bool,
    /// Labels of the nodes that may run a Job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that a Job bears, as they stand in the spec of a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Value>,
    /// Priority class of the Jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Secrets by which the image is pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// Most pods of its Jobs on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_per_node: Option<u32>,
}

/// A claim by name and uid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another claim of that name is another one.
    pub uid: String,
}

/// How to ask for changed blocks: a SnapshotMetadataService.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangesService {
    /// `HOST:PORT`.
    pub address: String,
    /// Audience of the token that it takes.
    pub audience: String,
    /// The authority of its certificate, PEM.
    pub ca: String,
}

/// Seconds that each step may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Until a snapshot is ready.
    pub snapshot_seconds: u64,
    /// Until a volume is bound.
    pub volume_seconds: u64,
    /// Until a pod runs.
    pub start_seconds: u64,
    /// Until something that is to be removed is gone.
    pub removal_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            snapshot_seconds: 1800,
            volume_seconds: 600,
            start_seconds: 900,
            removal_seconds: 120,
        }
    }
}

/// How an application holds still while the snapshot is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// Namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its uid: another pod of that name is another one.
    pub uid: String,
    /// Its container.
    pub container: String,
    /// The container's id: one that has begun anew has no lock.
    pub container_id: String,
    /// Shell command that holds the lock from its first line of output until its input ends.
    pub command: String,
    /// Shell command that lets go of the lock by itself, if there is one: it may run twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// There is no half of its lock: where it did not hold, it is somebody else's.
    #[serde(default)]
    pub whole: bool,
    /// The lock is let go of after so long, whatever happens.
    pub timeout_seconds: u64,
    /// What follows where the lock was let go of before the snapshot was taken.
    pub on_timeout: OnTimeout,
}

/// What follows where a lock did not live until the snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnTimeout {
    /// The snapshot is deleted, and the backup fails.
    Fail,
    /// The snapshot is that of a running application, and says so in an annotation.
    Continue,
}

/// Snapshots that stay in the storage after their backups, besides the base; all of them without a
/// bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retain {
    /// Most of one claim, with backups of one volume; the oldest goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Days that one stays, as the newest one tells the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
}

/// A snapshot that somebody else took of the claim, and gave away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Given {
    /// Its name, in the claim's namespace.
    pub name: String,
    /// Its uid: another snapshot of that name is another one.
    pub uid: String,
    /// Where its giver keeps the backup that it is a part of: the stored backup is needed for as long
    /// as anything is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// Objects of an application that go with a backup: their bytes are in Secrets of the Repository's
/// namespace, whose names follow from the operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CarriedObjects {
    /// How many Secrets.
    pub parts: u32,
    /// Bytes of all of them.
    pub size_bytes: u64,
    /// BLAKE3 of all bytes, in hexadecimal digits.
    pub digest: String,
    /// What says which objects were asked for, as text that is the same for the same question.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selection: String,
}

/// A backup of one claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backup {
    /// What is backed up.
    pub source: ClaimRef,
    /// Its CSI driver.
    pub driver: String,
    /// The storage's name of its volume.
    pub volume_handle: String,
    /// Where it goes.
    pub repository: Repository,
    /// The volume's name there.
    pub volume: String,
    /// Class of the snapshot.
    pub snapshot_class: String,
    /// Class of the volume that is made of it.
    pub storage_class: String,
    /// Whether that volume is asked for as one that nobody may write to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Whether the source is a filesystem.
    pub filesystem: bool,
    /// Bytes of the source, as Kubernetes writes them.
    pub capacity: String,
    /// Notes on the backup, which a restore reads.
    pub labels: BTreeMap<String, String>,
    /// Where changed blocks can be asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangesService>,
    /// The snapshot, where it is there already: none is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Given>,
    /// How the application holds still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
    /// Whether the snapshot stays, as the base of the next backup.
    pub keep_base: bool,
    /// Whether the snapshot stays for longer, for restores without the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
    /// Objects that go with it; those of a group are the same for each of its claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<CarriedObjects>,
    /// More arguments for `mover backup`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Bounds on each step.
    #[serde(default)]
    pub limits: Limits,
}

/// A backup of all claims with some labels, each as it was at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// Namespace of the claims.
    pub namespace: String,
    /// Labels of all of them, and of no other claim.
    pub selector: BTreeMap<String, String>,
    /// Class of the VolumeGroupSnapshot. Without it there is a snapshot of each, all of them under one
    /// lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Its claims. None of them has a hook of its own.
    pub members: Vec<Backup>,
    /// How the applications hold still, all at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Bounds on each step.
    #[serde(default)]
    pub limits: Limits,
}

/// The volume that is restored in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InPlace {
    /// Its PersistentVolume.
    pub volume: String,
    /// The uid of that: it stays while claims come and go.
    pub uid: String,
}

/// A claim of a user that is there, and waits for its volume: it names a source that no provisioner
/// knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Populate {
    /// Its uid: another claim of that name is another one.
    pub uid: String,
    /// The node of its first consumer, where its class waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_node: Option<String>,
    /// Its VolumeAttributesClass: it is bound to no volume of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes_class: Option<String>,
}

/// A restore to a claim that does not exist yet, onto the volume of one that does, or for one that
/// waits for its volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Restore {
    /// Where it comes from.
    pub repository: Repository,
    /// The volume's name there.
    pub volume: String,
    /// As it was asked for, such as `db@latest`.
    pub asked: String,
    /// Its id: `latest` was looked up before.
    pub backup: String,
    /// Bytes of the backup.
    pub size_bytes: u64,
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub claim: String,
    /// Its class.
    pub storage_class: String,
    /// Its size, as Kubernetes writes it.
    pub capacity: String,
    /// Its access modes.
    pub access_modes: Vec<String>,
    /// Of what type, if it is to be a filesystem; empty for that which the driver makes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    /// Whether the claim is there, and its volume is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlace>,
    /// Whether that volume is read first, and only what differs is written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub differential: bool,
    /// How its volume begins, where a snapshot of the backup's state is preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// Whether the claim is there, and waits for its volume. Class, size, access modes and mode are
    /// its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub populate: Option<Populate>,
    /// Bounds on each step.
    #[serde(default)]
    pub limits: Limits,
}

/// What an anchor holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Request {
    /// See [`Backup`].
    Backup(Box<Backup>),
    /// See [`Group`].
    Group(Box<Group>),
    /// See [`Restore`].
    Restore(Box<Restore>),
}

impl Backup {
    /// Whether its snapshot outlives it.
    pub(super) fn stays(&self) -> bool {
        self.keep_base || self.retain.is_some()
    }
}

impl Group {
    /// Whether its snapshots outlive it.
    pub(super) fn stays(&self) -> bool {
        self.members.iter().any(Backup::stays)
    }

    /// Its claims, for people.
    pub(super) fn claims(&self) -> String {
        let names = self.members.iter().map(|member| format!("pvc/{}", member.source.name));
        names.collect::<Vec<_>>().join(", ")
    }
}

impl Request {
    /// The same with these objects, or with none; a restore has none.
    #[must_use]
    pub fn with_objects(mut self, objects: Option<&CarriedObjects>) -> Self {
        match &mut self {
            Self::Backup(backup) => backup.objects = objects.cloned(),
            Self::Group(group) => {
                group.members.iter_mut().for_each(|member| member.objects = objects.cloned());
            }
            Self::Restore(_) => {}
        }
        self
    }

    /// The objects that go with it.
    pub fn objects(&self) -> Option<&CarriedObjects> {
        match self {
            Self::Backup(backup) => backup.objects.as_ref(),
            Self::Group(group) => group.members.first()?.objects.as_ref(),
            Self::Restore(_) => None,
        }
    }

    /// One word, the role of its anchor.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Backup(_) | Self::Group(_) => "backup",
            Self::Restore(_) => "restore",
        }
    }

    /// Bounds on each step.
    pub fn limits(&self) -> Limits {
        match self {
            Self::Backup(backup) => backup.limits,
            Self::Group(group) => group.limits,
            Self::Restore(restore) => restore.limits,
        }
    }

    /// Namespaces of its Jobs: those of its Repository.
    pub fn jobs_in(&self) -> &str {
        match self {
            Self::Backup(backup) => &backup.repository.namespace,
            Self::Group(group) => {
                group.members.first().map_or(&group.namespace, |first| &first.repository.namespace)
            }
            Self::Restore(restore) => &restore.repository.namespace,
        }
    }

    /// What an anchor holds.
    ///
    /// # Errors
    ///
    /// A text that no version of this program wrote.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// As [`Self::parse`] reads it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a request has no maps with other keys than texts")
    }
}

/// Notes on a backup that a restore reads: how the volume was one in Kubernetes.
pub mod notes {
    /// `Filesystem` or `Block`.
    pub const MODE: &str = "kubernetes/volume-mode";
    /// Type of the filesystem.
    pub const FS_TYPE: &str = "kubernetes/fs-type";
    /// Class of the claim.
    pub const STORAGE_CLASS: &str = "kubernetes/storage-class";
    /// Size of the claim.
    pub const CAPACITY: &str = "kubernetes/capacity";
    /// Access modes of the claim, joined by commas.
    pub const ACCESS_MODES: &str = "kubernetes/access-modes";
    /// Which backups are of one moment: those with the same value.
    pub const GROUP: &str = "kubernetes/group";
    /// Uid of the claim's namespace: one that is made anew under that name is another one.
    pub const NAMESPACE_UID: &str = "kubernetes/namespace-uid";
}

/// The environment of every Job.
pub(super) fn value(name: &str, value: &str) -> Value {
    serde_json::json!({ "name": name, "value": value })
}
