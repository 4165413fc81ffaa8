//! Objects of the API by kind and name, and questions about them.

use std::fmt;

/// Kinds of objects that an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    BackupSchedule,
    BackupStorageLocation,
    ConfigMap,
    CSIDriver,
    CustomResourceDefinition,
    DataDownload,
    DataUpload,
    Deployment,
    DifferentialSnapshot,
    Event,
    Job,
    Lease,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Repository,
    ResourceQuota,
    Role,
    RoleBinding,
    Secret,
    ServiceAccount,
    StatefulSet,
    StorageClass,
    VolumeAttachment,
    VolumeBackup,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeRestore,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    SnapshotMetadataService,
}

/// Where the API serves a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// API group, empty for the core.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// As people type it.
    pub short: &'static str,
    /// Whether its objects lie in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 34] = [
        Self::BackupSchedule,
        Self::BackupStorageLocation,
        Self::ConfigMap,
        Self::CSIDriver,
        Self::CustomResourceDefinition,
        Self::DataDownload,
        Self::DataUpload,
        Self::Deployment,
        Self::DifferentialSnapshot,
        Self::Event,
        Self::Job,
        Self::Lease,
        Self::Namespace,
        Self::PersistentVolume,
        Self::PersistentVolumeClaim,
        Self::Pod,
        Self::Repository,
        Self::ResourceQuota,
        Self::Role,
        Self::RoleBinding,
        Self::Secret,
        Self::ServiceAccount,
        Self::StatefulSet,
        Self::StorageClass,
        Self::VolumeAttachment,
        Self::VolumeBackup,
        Self::VolumeGroupSnapshot,
        Self::VolumeGroupSnapshotClass,
        Self::VolumeGroupSnapshotContent,
        Self::VolumeRestore,
        Self::VolumeSnapshot,
        Self::VolumeSnapshotClass,
        Self::VolumeSnapshotContent,
        Self::SnapshotMetadataService,
    ];

    /// Where the API serves it.
    pub const fn resource(self) -> Resource {
        const STORAGE: &str = "storage.k8s.io";
        const SNAPSHOT: &str = "snapshot.storage.k8s.io";
        const GROUPS: &str = "groupsnapshot.storage.k8s.io";
        const RBAC: &str = "rbac.authorization.k8s.io";
        const OURS: &str = "mover.dev";
        const OUR_VERSION: &str = "v1alpha1";
        const VELERO: &str = "velero.io";
        let (group, version, plural, short, namespaced) = match self {
            Self::BackupSchedule => (OURS, OUR_VERSION, "backupschedules", "backupschedule", true),
            Self::BackupStorageLocation => {
                (VELERO, "v1", "backupstoragelocations", "backupstoragelocation", true)
            }
            Self::ConfigMap => ("", "v1", "configmaps", "configmap", true),
            Self::CSIDriver => (STORAGE, "v1", "csidrivers", "csidriver", false),
            Self::CustomResourceDefinition => {
                ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "crd", false)
            }
            Self::DataDownload => (VELERO, "v2alpha1", "datadownloads", "datadownload", true),
            Self::DataUpload => (VELERO, "v2alpha1", "datauploads", "dataupload", true),
            Self::Deployment => ("apps", "v1", "deployments", "deployment", true),
            Self::DifferentialSnapshot => {
                (OURS, OUR_VERSION, "differentialsnapshots", "differentialsnapshot", true)
            }
            Self::Event => ("", "v1", "events", "event", true),
            Self::Job => ("batch", "v1", "jobs", "job", true),
            Self::Lease => ("coordination.k8s.io", "v1", "leases", "lease", true),
            Self::Namespace => ("", "v1", "namespaces", "namespace", false),
            Self::PersistentVolume => ("", "v1", "persistentvolumes", "pv", false),
            Self::PersistentVolumeClaim => ("", "v1", "persistentvolumeclaims", "pvc", true),
            Self::Pod => ("", "v1", "pods", "pod", true),
            Self::Repository => (OURS, OUR_VERSION, "repositories", "repository", true),
            Self::ResourceQuota => ("", "v1", "resourcequotas", "resourcequota", true),
            Self::Role => (RBAC, "v1", "roles", "role", true),
            Self::RoleBinding => (RBAC, "v1", "rolebindings", "rolebinding", true),
            Self::Secret => ("", "v1", "secrets", "secret", true),
            Self::ServiceAccount => ("", "v1", "serviceaccounts", "serviceaccount", true),
            Self::StatefulSet => ("apps", "v1", "statefulsets", "statefulset", true),
            Self::StorageClass => (STORAGE, "v1", "storageclasses", "storageclass", false),
            Self::VolumeAttachment => {
                (STORAGE, "v1", "volumeattachments", "volumeattachment", false)
            }
            Self::VolumeBackup => (OURS, OUR_VERSION, "volumebackups", "volumebackup", true),
            Self::VolumeGroupSnapshot => {
                (GROUPS, "v1", "volumegroupsnapshots", "volumegroupsnapshot", true)
            }
            Self::VolumeGroupSnapshotClass => {
                (GROUPS, "v1", "volumegroupsnapshotclasses", "volumegroupsnapshotclass", false)
            }
            Self::VolumeGroupSnapshotContent => {
                (GROUPS, "v1", "volumegroupsnapshotcontents", "volumegroupsnapshotcontent", false)
            }
            Self::VolumeRestore => (OURS, OUR_VERSION, "volumerestores", "volumerestore", true),
            Self::VolumeSnapshot => (SNAPSHOT, "v1", "volumesnapshots", "volumesnapshot", true),
            Self::VolumeSnapshotClass => {
                (SNAPSHOT, "v1", "volumesnapshotclasses", "volumesnapshotclass", false)
            }
            Self::VolumeSnapshotContent => {
                (SNAPSHOT, "v1", "volumesnapshotcontents", "volumesnapshotcontent", false)
            }
            Self::SnapshotMetadataService => (
                "cbt.storage.k8s.io",
                "v1beta1",
                "snapshotmetadataservices",
                "snapshotmetadataservice",
                false,
            ),
        };
        Resource { group, version, plural, short, namespaced }
    }

    /// The kind's own name, as `kind` in an object.
    pub fn word(self) -> String {
        format!("{self:?}")
    }

    /// `apiVersion` of its objects.
    pub fn api_version(self) -> String {
        let Resource { group, version, .. } = self.resource();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; `None` exactly for kinds without.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Key {
    /// An object of a kind with namespaces.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        assert!(kind.resource().namespaced, "{kind:?} has no namespaces");
        Self { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// An object of a kind without namespaces.
    pub fn wide(kind: Kind, name: &str) -> Self {
        assert!(!kind.resource().namespaced, "{kind:?} lies in namespaces");
        Self { kind, namespace: None, name: name.to_owned() }
    }
}

impl Key {
    /// The command that shows it.
    pub fn shown_by(&self) -> String {
        let place = self.namespace.as_ref().map_or(String::new(), |name| format!(" -n {name}"));
        format!("kubectl get {}/{}{place} -o yaml", self.kind.resource().short, self.name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.resource().short, self.name)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// Objects of a kind: in one namespace or in all, with these labels or fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selection {
    /// Their kind.
    pub kind: Kind,
    /// Their namespace; `None` means all, and kinds without.
    pub namespace: Option<String>,
    /// `name=value`, joined by commas; empty for all.
    pub labels: String,
    /// The same of fields.
    pub fields: String,
}

impl Selection {
    /// All objects of a kind without namespaces.
    pub fn all(kind: Kind) -> Self {
        Self { kind, namespace: None, labels: String::new(), fields: String::new() }
    }

    /// By labels in one namespace.
    pub fn labelled(kind: Kind, namespace: &str, labels: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.to_owned()), labels: labels.into(), ..Self::all(kind) }
    }

    /// Events about one object of a namespace.
    pub fn events(namespace: &str, about: &str) -> Self {
        let fields = format!("involvedObject.name={about}");
        Self { namespace: Some(namespace.to_owned()), fields, ..Self::all(Kind::Event) }
    }
}

/// What may have to be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Query {
    /// An object, which may be absent.
    One(Key),
    /// Objects.
    Many(Selection),
}

impl From<Key> for Query {
    fn from(key: Key) -> Self {
        Self::One(key)
    }
}

impl From<Selection> for Query {
    fn from(selection: Selection) -> Self {
        Self::Many(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_kinds_are_where_their_definitions_say() {
        let ours: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| kind.resource().group == "mover.dev").collect();
        let definitions = crate::kinds::definitions();
        assert_eq!(ours.len(), definitions.len());
        for kind in ours {
            let Resource { group, version, plural, short, namespaced } = kind.resource();
            let is_it = |definition: &&serde_json::Value| {
                definition["spec"]["names"]["kind"] == kind.word().as_str()
            };
            let spec = &definitions.iter().find(is_it).expect("its definition")["spec"];
            assert_eq!(spec["group"], group);
            assert_eq!(spec["names"]["plural"], plural);
            assert_eq!(spec["names"]["singular"], short);
            assert_eq!(spec["scope"], if namespaced { "Namespaced" } else { "Cluster" });
            assert_eq!(spec["versions"][0]["name"], version);
        }
    }
}
