//! Namespaces that a controller works in, and where the API serves the kinds of an installation.

use super::Settings;
use serde_json::Value;

/// Named ones, and always its own: a Repository there serves the others. Records and Jobs of what is
/// moved for Velero are in Velero's.
pub(super) fn worked_in(settings: &Settings) -> Vec<String> {
    let mut all = settings.watch_namespaces.clone();
    for namespace in [&settings.namespace].into_iter().chain(&settings.velero) {
        if !all.contains(namespace) {
            all.push(namespace.clone());
        }
    }
    all
}

/// A resource of the API: group and version, name in paths, and whether its objects lie in
/// namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespaced: bool,
}

const fn place(
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> Place {
    Place { api_version, kind, plural, namespaced }
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const OPERATOR: &str = "monitoring.coreos.com/v1";
const OURS: &str = "mover.dev/v1alpha1";
const VELERO: &str = "velero.io/v2alpha1";

/// Kinds of an installation, in the order of their removal: first whoever acts, then its rights,
/// last what bounds it.
pub(super) const INSTALLED: [Place; 13] = [
    place("apps/v1", "Deployment", "deployments", true),
    place("v1", "Service", "services", true),
    place(OPERATOR, "PodMonitor", "podmonitors", true),
    place(OPERATOR, "PrometheusRule", "prometheusrules", true),
    place("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    place(RBAC, "ClusterRoleBinding", "clusterrolebindings", false),
    place(RBAC, "RoleBinding", "rolebindings", true),
    place(RBAC, "ClusterRole", "clusterroles", false),
    place(RBAC, "Role", "roles", true),
    place("v1", "ServiceAccount", "serviceaccounts", true),
    place(
        ADMISSION,
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
    place(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false),
    place("v1", "Namespace", "namespaces", false),
];

/// The definitions of kinds.
pub(super) const DEFINITIONS: Place = place(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

/// Our own kinds.
pub(super) const OWN: [Place; 5] = [
    place(OURS, "DifferentialSnapshot", "differentialsnapshots", true),
    place(OURS, "BackupSchedule", "backupschedules", true),
    place(OURS, "VolumeRestore", "volumerestores", true),
    place(OURS, "VolumeBackup", "volumebackups", true),
    place(OURS, "Repository", "repositories", true),
];

/// Records of operations.
pub(super) const RECORDS: Place = place("v1", "ConfigMap", "configmaps", true);

/// Kinds of others whose objects may have a finalizer of ours.
pub(super) const HELD: [Place; 9] = [
    place("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    place("v1", "PersistentVolume", "persistentvolumes", false),
    RECORDS,
    place("batch/v1", "Job", "jobs", true),
    place("snapshot.storage.k8s.io/v1", "VolumeSnapshot", "volumesnapshots", true),
    place("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent", "volumesnapshotcontents", false),
    place("groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshot", "volumegroupsnapshots", true),
    place(VELERO, "DataUpload", "datauploads", true),
    place(VELERO, "DataDownload", "datadownloads", true),
];

impl Place {
    /// That of an object of an installation.
    pub(super) fn of(object: &Value) -> Option<Self> {
        let mut all = INSTALLED.iter().chain([&DEFINITIONS]);
        all.find(|place| object["kind"] == place.kind && object["apiVersion"] == place.api_version)
            .copied()
    }

    /// The path of its objects, in one namespace if one is named.
    pub(super) fn path(self, namespace: Option<&str>) -> String {
        let root = if self.api_version.contains('/') { "/apis" } else { "/api" };
        let (version, plural) = (self.api_version, self.plural);
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{version}/{plural}"),
        }
    }

    /// The right that it takes, in the words of `kubectl auth can-i`.
    pub(super) fn right(self, verb: &str) -> String {
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        let dot = if group.is_empty() { "" } else { "." };
        format!("{verb} {}{dot}{group}", self.plural)
    }
}

/// `KIND/NAME in namespace NAMESPACE` of an object.
pub(super) fn shown(place: Place, object: &Value) -> String {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default();
    let kind = place.kind.to_ascii_lowercase();
    match meta["namespace"].as_str().filter(|_| place.namespaced) {
        Some(namespace) => format!("{kind}/{name} in namespace {namespace}"),
        None => format!("{kind}/{name}"),
    }
}
