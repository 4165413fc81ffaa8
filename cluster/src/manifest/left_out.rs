//! Which objects are listed and not made again, and why: whoever made them makes them anew, or they
//! belong to the old cluster.

use crate::engine::{MANAGER, OWNER, ROLE, STATE, TARGET};
use serde_json::Value;

/// Kinds that are not read at all: they come by themselves, change all the time, and say nothing of
/// an application.
const UNREAD: &[(&str, &str)] = &[("", "events"), ("events.k8s.io", "events")];

/// Why volumes and their claims are left out.
pub(super) const ITS_DATA: &str = "its data is in a backup: restore brings both";

/// Whether objects of this resource are listed.
pub(crate) fn is_listed(group: &str, resource: &str) -> bool {
    !UNREAD.contains(&(group, resource))
}

/// Why an object of this group and kind is not made again.
pub(crate) fn left_out(group: &str, kind: &str, object: &Value) -> Option<&'static str> {
    let metadata = &object["metadata"];
    let label = |name: &str| metadata["labels"].get(name).and_then(Value::as_str);
    if metadata["deletionTimestamp"].is_string() {
        return Some("it is being deleted");
    }
    let is_claim = (group, kind) == ("", "PersistentVolumeClaim");
    // What a restore has made of a backup is its user's from then on.
    let is_target = is_claim && label(ROLE) == Some(TARGET);
    if label(STATE).is_some() || label(OWNER).is_some() && !is_target {
        return Some("it belongs to an operation of mover");
    }
    if is_claim {
        // A StatefulSet that owns its claims does not bring back what was in them.
        let is_pod = |owner: &Value| owner["apiVersion"] == "v1" && owner["kind"] == "Pod";
        return Some(match owners_of(object).any(is_pod) {
            true => "its pod makes it",
            false => ITS_DATA,
        });
    }
    if let Some(why) = made(group, kind, object) {
        return Some(why);
    }
    let kind_of = object["type"].as_str().unwrap_or_default();
    match (group, kind) {
        ("", "Secret") if label("app.kubernetes.io/managed-by") == Some(MANAGER) => {
            Some("it is the key of a repository, which is kept elsewhere")
        }
        ("", "Secret") if kind_of == "kubernetes.io/service-account-token" => {
            Some("it is a token of the old cluster")
        }
        ("", "Secret") if kind_of == "bootstrap.kubernetes.io/token" => {
            Some("it is a token of the old cluster")
        }
        ("", "PersistentVolume") => Some(ITS_DATA),
        ("snapshot.storage.k8s.io", "VolumeSnapshot" | "VolumeSnapshotContent")
        | ("groupsnapshot.storage.k8s.io", _) => {
            Some("it belongs to the storage: snapshots import brings it")
        }
        ("", "Pod") if ended(&object["status"]["phase"]) => Some("it has ended"),
        ("batch", "Job") if job_ended(&object["status"]) => Some("it has ended"),
        _ => None,
    }
}

fn owners_of(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

fn ended(phase: &Value) -> bool {
    matches!(phase.as_str(), Some("Succeeded" | "Failed"))
}

/// One that failed has no time of completion.
fn job_ended(status: &Value) -> bool {
    let is_end = |at: &Value| {
        at["status"] == "True" && matches!(at["type"].as_str(), Some("Complete" | "Failed"))
    };
    status["completionTime"].is_string()
        || status["conditions"].as_array().into_iter().flatten().any(is_end)
}

/// Whether a controller of Kubernetes makes it by itself.
fn made(group: &str, kind: &str, object: &Value) -> Option<&'static str> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let runs = [("", "Pod"), ("batch", "Job")].contains(&(group, kind));
    // Whatever else a workload owns, such as a Secret, somebody wrote: no controller makes it anew.
    let by_workload = [("apps", "ReplicaSet"), ("apps", "ControllerRevision")]
        .contains(&(group, kind))
        || (group, kind) == ("", "ReplicationController");
    let is_made = owners_of(object).any(|owner| {
        let version = owner["apiVersion"].as_str().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let is_workload = ["apps", "batch"].contains(&group)
            || group.is_empty() && owner["kind"] == "ReplicationController";
        // An operator that finds what it ran for the old cluster would have it run for the new one.
        owner["controller"] == true && (is_workload && by_workload || runs)
    });
    if is_made {
        return Some("its owner makes it");
    }
    match (group, kind) {
        ("", "ConfigMap") if ["kube-root-ca.crt", "openshift-service-ca.crt"].contains(&name) => {
            Some("each namespace has its own")
        }
        ("coordination.k8s.io", "Lease") => Some("whoever holds it takes it anew"),
        ("", "Endpoints")
            if metadata["annotations"]
                .get("endpoints.kubernetes.io/last-change-trigger-time")
                .is_some()
                || metadata["labels"].get("endpoints.kubernetes.io/managed-by").is_some() =>
        {
            Some("its service makes it")
        }
        ("discovery.k8s.io", "EndpointSlice") => {
            let by = metadata["labels"].get("endpointslice.kubernetes.io/managed-by");
            let by = by.and_then(Value::as_str).unwrap_or_default();
            by.starts_with("endpointslice").then_some("its service makes it")
        }
        ("storage.k8s.io", "CSIStorageCapacity") => Some("its driver makes it"),
        ("", "Pod") if metadata["annotations"].get("kubernetes.io/config.mirror").is_some() => {
            Some("a file of its node makes it")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conditions(of: &str, status: &str) -> Value {
        json!({ "status": { "conditions": [{ "type": of, "status": status }] } })
    }

    #[test]
    fn what_comes_by_itself_or_is_of_the_old_cluster_is_left_out() {
        let owned = |version: &str, kind: &str| json!([{ "apiVersion": version, "kind": kind, "name": "x", "uid": "u", "controller": true }]);
        let meta = |owners| json!({ "metadata": { "name": "x", "ownerReferences": owners } });
        for (group, kind, object, said) in [
            ("", "Pod", meta(owned("apps/v1", "ReplicaSet")), Some("its owner makes it")),
            ("", "Pod", meta(owned("example.com/v1", "Game")), Some("its owner makes it")),
            ("batch", "Job", meta(owned("example.com/v1", "Game")), Some("its owner makes it")),
            ("", "Secret", meta(owned("example.com/v1", "Game")), None),
            (
                "apps",
                "ReplicaSet",
                meta(owned("apps/v1", "Deployment")),
                Some("its owner makes it"),
            ),
            ("batch", "Job", meta(owned("batch/v1", "CronJob")), Some("its owner makes it")),
            ("cluster.x-k8s.io", "Machine", meta(owned("cluster.x-k8s.io/v1", "MachineSet")), None),
            ("", "Pod", json!({ "status": { "phase": "Succeeded" } }), Some("it has ended")),
            ("", "Pod", json!({ "status": { "phase": "Running" } }), None),
            ("batch", "Job", json!({ "status": { "completionTime": "t" } }), Some("it has ended")),
            (
                "",
                "Secret",
                json!({ "type": "kubernetes.io/service-account-token" }),
                Some("it is a token of the old cluster"),
            ),
            ("", "Secret", json!({ "type": "Opaque" }), None),
            (
                "",
                "ConfigMap",
                json!({ "metadata": { "name": "kube-root-ca.crt" } }),
                Some("each namespace has its own"),
            ),
            ("", "ConfigMap", json!({ "metadata": { "name": "mine" } }), None),
            (
                "",
                "ConfigMap",
                json!({ "metadata": { "labels": { OWNER: "u" } } }),
                Some("it belongs to an operation of mover"),
            ),
            (
                "",
                "PersistentVolumeClaim",
                json!({ "metadata": { "labels": { OWNER: "u", ROLE: TARGET } } }),
                Some(ITS_DATA),
            ),
            // By a retention policy of the StatefulSet, and of a generic ephemeral volume.
            ("", "PersistentVolumeClaim", meta(owned("apps/v1", "StatefulSet")), Some(ITS_DATA)),
            ("", "PersistentVolumeClaim", meta(owned("v1", "Pod")), Some("its pod makes it")),
            (
                "",
                "PersistentVolumeClaim",
                json!({ "metadata": { "labels": { OWNER: "u", ROLE: "source" } } }),
                Some("it belongs to an operation of mover"),
            ),
            (
                "",
                "ConfigMap",
                json!({ "metadata": { "deletionTimestamp": "t" } }),
                Some("it is being deleted"),
            ),
        ] {
            assert_eq!(left_out(group, kind, &object), said, "{group} {kind} {object}");
        }
    }

    #[test]
    fn a_job_that_has_ended_is_left_out_however_it_ended() {
        for (condition, status, said) in [
            ("Complete", "True", Some("it has ended")),
            ("Failed", "True", Some("it has ended")),
            ("Failed", "False", None),
            ("Suspended", "True", None),
        ] {
            let object = conditions(condition, status);
            assert_eq!(left_out("batch", "Job", &object), said, "{object}");
        }
    }

    /// No controller of Kubernetes makes these.
    #[test]
    fn what_a_workload_owns_is_saved() {
        for kind in ["Secret", "ConfigMap", "Service"] {
            let owner = json!({
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "u",
                "controller": true,
            });
            let object = json!({ "metadata": { "name": "x", "ownerReferences": [owner] } });
            assert_eq!(left_out("", kind, &object), None, "{kind}");
        }
    }
}
