//! The usual order of kinds, for where owners say nothing.

use super::item::ItemKind;

/// The order in which kinds are made: name of the step, and kinds of it as `Kind.group`. A kind that
/// ends with `Class` is a class; any other kind that is not here is a custom resource.
pub const RANKS: &[(&str, &[&str])] = &[
    ("namespaces", &["Namespace"]),
    ("definitions", &["CustomResourceDefinition.apiextensions.k8s.io"]),
    ("classes", &["StorageClass.storage.k8s.io"]),
    ("rights", &["ClusterRole.rbac.authorization.k8s.io", "Role.rbac.authorization.k8s.io"]),
    ("accounts", &["ServiceAccount"]),
    (
        "bindings",
        &["ClusterRoleBinding.rbac.authorization.k8s.io", "RoleBinding.rbac.authorization.k8s.io"],
    ),
    ("secrets", &["Secret"]),
    ("settings", &["ConfigMap", "LimitRange"]),
    (
        "volumes",
        &[
            "PersistentVolume",
            "VolumeSnapshotContent.snapshot.storage.k8s.io",
            "VolumeSnapshot.snapshot.storage.k8s.io",
            "PersistentVolumeClaim",
        ],
    ),
    (
        "services",
        &[
            "Service",
            "Endpoints",
            "EndpointSlice.discovery.k8s.io",
            "NetworkPolicy.networking.k8s.io",
            "PodDisruptionBudget.policy",
        ],
    ),
    ("custom resources", &[]),
    ("pods", &["Pod", "PodTemplate"]),
    ("replicas", &["ReplicaSet.apps", "ReplicationController", "ControllerRevision.apps"]),
    ("workloads", &["StatefulSet.apps", "DaemonSet.apps", "Deployment.apps"]),
    ("jobs", &["Job.batch", "CronJob.batch"]),
    (
        "scaling and entrances",
        &["HorizontalPodAutoscaler.autoscaling", "Ingress.networking.k8s.io"],
    ),
    (
        "limits and admission",
        &[
            "ResourceQuota",
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io",
            "MutatingWebhookConfiguration.admissionregistration.k8s.io",
        ],
    ),
];

const CLASSES: usize = 2;
const CUSTOM: usize = 10;

/// Step, and place within it: which kind is made first.
pub(super) fn rank(of: &ItemKind) -> (usize, usize) {
    let is = |text: &str| match text.split_once('.') {
        Some((kind, group)) => of.kind == kind && of.group == group,
        None => of.kind == text && of.group.is_empty(),
    };
    for (step, (_, kinds)) in RANKS.iter().enumerate() {
        if let Some(at) = kinds.iter().position(|text| is(text)) {
            return (step, at);
        }
    }
    match of.kind.ends_with("Class") {
        true => (CLASSES, usize::MAX),
        false => (CUSTOM, 0),
    }
}

/// Whether it is of a kind that Kubernetes itself does not look after.
pub(super) fn is_custom(of: &ItemKind) -> bool {
    rank(of).0 == CUSTOM || of.namespaced && of.kind.ends_with("Class")
}

/// Whether it only holds what others read.
pub(super) fn is_setting(of: &ItemKind) -> bool {
    of.group.is_empty() && ["Secret", "ConfigMap"].contains(&of.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_have_no_list_are_where_they_are_said_to_be() {
        assert_eq!(RANKS[CLASSES].0, "classes");
        assert_eq!(RANKS[CUSTOM].0, "custom resources");
    }
}
