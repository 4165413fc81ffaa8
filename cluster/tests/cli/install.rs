//! `install` and `uninstall` against an API server of fixed answers: which requests, in which order.

use crate::server::{Answer, Sent, Server};
use crate::{ends, list, text};
use mover_cluster::install::{Settings, manifests};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

const SYSTEM: &str = "mover-system";
const OURS: &str = "/apis/mover.dev/v1alpha1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const MONITORING: &str = "/apis/monitoring.coreos.com/v1";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/db";

/// Each kind of an installation, where the API serves it.
const PLACES: [(&str, &str); 14] = [
    ("Namespace", "/api/v1/namespaces"),
    ("CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
    (
        "ValidatingAdmissionPolicy",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    ),
    ("ServiceAccount", "/api/v1/namespaces/mover-system/serviceaccounts"),
    ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("Role", "/apis/rbac.authorization.k8s.io/v1/namespaces/mover-system/roles"),
    ("RoleBinding", "/apis/rbac.authorization.k8s.io/v1/namespaces/mover-system/rolebindings"),
    ("NetworkPolicy", "/apis/networking.k8s.io/v1/namespaces/mover-system/networkpolicies"),
    ("Deployment", "/apis/apps/v1/namespaces/mover-system/deployments"),
    ("PodMonitor", "/apis/monitoring.coreos.com/v1/namespaces/mover-system/podmonitors"),
    ("PrometheusRule", "/apis/monitoring.coreos.com/v1/namespaces/mover-system/prometheusrules"),
    ("Pod", "/api/v1/pods"),
];

fn path_of(object: &Value) -> String {
    let kind = object["kind"].as_str().expect("a kind");
    let place = PLACES.iter().find(|(of, _)| *of == kind).expect("a place").1;
    format!("{place}/{}", object["metadata"]["name"].as_str().expect("a name"))
}

/// A server that takes each object of an installation, and says that it is at work.
fn taking() -> BTreeMap<String, Answer> {
    let mut all = BTreeMap::new();
    for manifest in manifests(&Settings::new(SYSTEM, "mover:1")) {
        let mut object = manifest.object;
        object["metadata"]["generation"] = 2.into();
        object["status"] = match object["kind"].as_str() {
            Some("Deployment") => json!({
                "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            }),
            _ => json!({ "conditions": [{ "type": "Established", "status": "True" }] }),
        };
        all.insert(path_of(&object), Answer::Object(object));
    }
    all
}

fn of<'a>(sent: &'a [Sent], method: &str) -> Vec<&'a Sent> {
    sent.iter().filter(|(of, _, _)| of == method).collect()
}

/// Where the first request about such a path is.
fn at(sent: &[&Sent], part: &str) -> usize {
    sent.iter().position(|(_, path, _)| path.contains(part)).unwrap_or_else(|| panic!("no {part}"))
}

#[test]
fn it_is_printed_without_a_cluster() {
    let server = Server::start("printed", BTreeMap::new());
    let output = server.run(&["install", "--image", "r.example.com/mover@sha256:0"]);
    let said =
        ["kind: Deployment", "image: \"r.example.com/mover@sha256:0\"", "namespace: mover-system"];
    ends(&output, 0, &said);
    assert!(server.sent().is_empty());
    let output = server.run(&["install", "-n", "other", "--without", "policies", "-o", "json"]);
    let printed: Value = serde_json::from_slice(&output.stdout).expect("a list");
    let kinds: Vec<&str> = printed["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|at| at["kind"].as_str())
        .collect();
    assert!(kinds.contains(&"CustomResourceDefinition") && kinds.contains(&"PodMonitor"));
    assert!(!kinds.contains(&"ValidatingAdmissionPolicy"), "{kinds:?}");
    assert!(text(&output.stdout).contains("\"name\":\"other\""));
    let output = server.run(&["install", "--print", "crds"]);
    assert!(!text(&output.stdout).contains("kind: Deployment"));
    ends(&output, 0, &["name: volumebackups.mover.dev"]);
    ends(&server.run(&["install", "--dry-run"]), 2, &[]);
}

#[test]
fn it_is_applied_in_an_order_that_holds() {
    let server = Server::start("applied", taking());
    let output = server.run(&["install", "--apply", "--wait", "--image", "mover:1"]);
    ends(&output, 0, &["deployment/mover-controller in namespace mover-system "]);
    let sent = server.sent();
    let patches = of(&sent, "PATCH");
    assert_eq!(patches.len(), manifests(&Settings::new(SYSTEM, "mover:1")).len());
    for (_, path, body) in &patches {
        assert!(path.contains("fieldManager=kubectl-mover-install"), "{path}");
        assert!(body["metadata"]["name"].is_string(), "{path}");
    }
    let order = [
        "/namespaces/mover-system?",
        "customresourcedef",
        "/validating",
        "/clusterroles",
        "deployments",
    ];
    let places: Vec<usize> = order.iter().map(|part| at(&patches, part)).collect();
    assert!(places.is_sorted(), "{places:?}");
    // Waited for: the definitions, and the controller.
    assert_eq!(of(&sent, "GET").len(), 6);
}

#[test]
fn a_cluster_without_the_prometheus_operator_gets_the_rest() {
    let mut answers = taking();
    answers.retain(|path, _| !path.starts_with(MONITORING));
    let server = Server::start("plain", answers);
    let output = server.run(&["install", "--apply", "--image", "mover:1"]);
    ends(&output, 0, &["podmonitor/mover-controller in namespace mover-system", "left away"]);
}

#[test]
fn a_right_that_lacks_is_named() {
    let mut answers = taking();
    let refused = Answer::Refused(403, "ann cannot patch resource clusterroles");
    answers.insert(format!("{RBAC}/clusterroles/mover-controller"), refused);
    let server = Server::start("denied", answers);
    let output = server.run(&["install", "--apply", "--image", "mover:1"]);
    ends(&output, 4, &[]);
    let said = text(&output.stderr);
    assert!(said.contains("apply clusterrole/mover-controller"), "{said}");
    assert!(said.contains("patch clusterroles.rbac.authorization.k8s.io"), "{said}");
    let sent = server.sent();
    assert!(of(&sent, "PATCH").iter().all(|(_, path, _)| !path.contains("deployments")));
}

#[test]
fn a_controller_that_does_not_start_is_no_success() {
    let mut answers = taking();
    let path = "/apis/apps/v1/namespaces/mover-system/deployments/mover-controller";
    let old = json!({ "metadata": { "generation": 3 }, "status": {
        "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
    } });
    answers.insert(path.into(), Answer::Object(old));
    let server = Server::start("stuck", answers);
    let arguments = ["install", "--apply", "--wait", "--timeout", "0", "--image", "mover:1"];
    let output = server.run(&arguments);
    ends(&output, 1, &[]);
    assert!(text(&output.stderr).contains("deployment/mover-controller is not ready"));
}

/// An installation whose controller is dead: a backup and a claim wait for it.
fn left() -> BTreeMap<String, Answer> {
    let mut all = BTreeMap::new();
    for (kind, place) in PLACES {
        let labels = json!({ "app.kubernetes.io/part-of": "mover" });
        let place = place.replace("/namespaces/mover-system", "");
        let mut meta = json!({ "name": "mover-controller", "uid": "u", "labels": labels });
        if kind == "Pod" {
            all.insert(place, Answer::Object(list(&[])));
            continue;
        }
        if !["ClusterRole", "ClusterRoleBinding", "Namespace", "CustomResourceDefinition"]
            .contains(&kind)
            && !kind.starts_with("Validating")
        {
            meta["namespace"] = SYSTEM.into();
        }
        let object = json!({ "kind": kind, "metadata": meta });
        all.insert(
            format!("DELETE {}", path_of(&object)),
            Answer::Object(json!({ "kind": "Status" })),
        );
        all.insert(place, Answer::Object(list(&[object])));
    }
    let held = |name: &str, own: &[&str]| {
        json!({ "metadata": {
            "name": name, "namespace": "shop", "uid": name, "resourceVersion": "5", "finalizers": own,
        } })
    };
    let backup = held("db-1", &["mover.dev/cleanup"]);
    let path = format!("{OURS}/namespaces/shop/volumebackups/db-1");
    all.insert(
        format!("{OURS}/volumebackups"),
        Answer::Object(list(std::slice::from_ref(&backup))),
    );
    all.insert(path, Answer::Object(backup));
    let claim = held("db", &["kubernetes.io/pvc-protection", "mover.dev/populate"]);
    let other = held("other", &["kubernetes.io/pvc-protection"]);
    all.insert(
        "/api/v1/persistentvolumeclaims".into(),
        Answer::Object(list(&[claim.clone(), other])),
    );
    all.insert(CLAIM.into(), Answer::Object(claim));
    let record = json!({ "metadata": {
        "name": "mover-backup-1-1", "namespace": "shop", "labels": { "mover.dev/state": "running" },
    } });
    all.insert("/api/v1/configmaps".into(), Answer::Object(list(&[record])));
    all
}

#[test]
fn finalizers_come_off_before_anything_else_goes() {
    let server = Server::start("left", left());
    let output = server.run(&["uninstall"]);
    let said =
        ["persistentvolumeclaim/db in namespace shop", "volumebackup/db-1", "finalizer taken off"];
    ends(&output, 0, &said);
    let sent = server.sent();
    let changes: Vec<&Sent> = sent.iter().filter(|(method, _, _)| method != "GET").collect();
    // The controller is stopped first, or it would put them on again.
    assert!(changes[0].0 == "DELETE" && changes[0].1.contains("/deployments/"), "{changes:?}");
    let patches = of(&sent, "PATCH");
    assert_eq!(patches.len(), 2, "{patches:?}");
    let claim = patches.iter().find(|(_, path, _)| path == CLAIM).expect("the claim");
    assert_eq!(claim.2["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(claim.2["metadata"]["resourceVersion"], "5");
    let last = changes.iter().rposition(|(method, _, _)| method == "PATCH").expect("a change");
    let first = changes.iter().skip(1).position(|(method, _, _)| method == "DELETE").expect("more");
    assert!(last < first + 1, "{changes:?}");
    // What bounds the rights goes after them.
    assert!(at(&changes, "/clusterroles/") < at(&changes, "/validatingadmissionpolicies/"));
    let gone = |part: &str| changes.iter().any(|(_, path, _)| path.contains(part));
    assert!(!gone("customresourcedefinitions") && !gone("/api/v1/namespaces/mover-system?"));
    let told = text(&output.stderr);
    for stays in [
        "1 objects of kind VolumeBackup",
        "kubectl mover cancel mover-backup-1-1 -n shop",
        "all backups",
    ] {
        assert!(told.contains(stays), "{told}");
    }
    assert!(
        !changes.iter().any(|(_, path, _)| path == "/api/v1/namespaces/mover-system"),
        "{changes:?}"
    );
}

#[test]
fn the_kinds_go_where_that_is_asked_for() {
    let server = Server::start("crds", left());
    ends(&server.run(&["uninstall", "--crds"]), 0, &["customresourcedefinition/mover-controller "]);
    let sent = server.sent();
    let deleted = of(&sent, "DELETE");
    let last = sent.iter().rposition(|(method, _, _)| method == "PATCH").expect("a change");
    let gone =
        sent.iter().position(|(method, path, _)| method == "DELETE" && path.contains("customres"));
    assert!(gone.is_some_and(|gone| gone > last), "{deleted:?}");
}

/// Velero's objects wait for nobody, also where its controller and ours are long dead.
#[test]
fn finalizers_come_off_velero_s_objects() {
    const VELERO: &str = "/apis/velero.io/v2alpha1";
    let answers = || {
        let mut all = BTreeMap::new();
        for (plural, name) in [("datauploads", "nightly-1"), ("datadownloads", "back-1")] {
            let held = json!({ "metadata": {
                "name": name, "namespace": "velero", "uid": name, "resourceVersion": "5",
                "finalizers": ["mover.dev/operation", "example.com/theirs"],
            } });
            let other = json!({ "metadata": { "name": "other", "namespace": "velero" } });
            let path = format!("{VELERO}/namespaces/velero/{plural}/{name}");
            all.insert(path, Answer::Object(held.clone()));
            all.insert(format!("{VELERO}/{plural}"), Answer::Object(list(&[held, other])));
        }
        all
    };
    let server = Server::start("velero-dry", answers());
    let said =
        ["dataupload/nightly-1 in namespace velero", "datadownload/back-1", "would be taken"];
    ends(&server.run(&["uninstall", "--dry-run"]), 0, &said);
    assert!(server.sent().iter().all(|(method, _, _)| method == "GET"));
    let server = Server::start("velero-held", answers());
    let said = ["dataupload/nightly-1 in namespace velero", "finalizer taken off"];
    ends(&server.run(&["uninstall"]), 0, &said);
    let sent = server.sent();
    let patches = of(&sent, "PATCH");
    assert_eq!(patches.len(), 2, "{patches:?}");
    for (_, path, body) in patches {
        assert!(path.starts_with(VELERO) && path.contains("/namespaces/velero/"), "{path}");
        assert_eq!(body["metadata"]["finalizers"], json!(["example.com/theirs"]));
        assert!(body["spec"].is_null() && body["status"].is_null(), "{body}");
    }
}

#[test]
fn velero_is_named_or_the_usual_one() {
    let server = Server::start("velero-printed", BTreeMap::new());
    for (arguments, named) in [
        (vec!["install", "--velero"], "--velero-namespace=velero"),
        (vec!["install", "--velero", "backups"], "--velero-namespace=backups"),
    ] {
        ends(&server.run(&arguments), 0, &[named, "name: mover-controller-velero"]);
    }
    let output = server.run(&["install", "--velero", "--print", "rights"]);
    ends(&output, 0, &["name: mover-controller-velero", "- datauploads"]);
    assert!(!text(&output.stdout).contains("ValidatingAdmissionPolicy"));
}

#[test]
fn a_dry_run_changes_nothing() {
    let server = Server::start("dry", left());
    let output = server.run(&["uninstall", "--crds", "--dry-run"]);
    ends(&output, 0, &["its finalizer would be taken off", "would be removed"]);
    assert!(server.sent().iter().all(|(method, _, _)| method == "GET"));
}

#[test]
fn somebody_who_comes_before_is_not_overwritten() {
    let mut answers = left();
    let again = Answer::Contended(AtomicU32::new(2), json!({}));
    answers.insert(format!("PATCH {CLAIM}"), again);
    let now = json!({ "metadata": {
        "name": "db", "namespace": "shop", "uid": "db", "resourceVersion": "6",
        "finalizers": ["mover.dev/populate", "example.com/new"],
    } });
    answers.insert(format!("GET {CLAIM}"), Answer::Object(now));
    let server = Server::start("contended", answers);
    ends(&server.run(&["uninstall"]), 0, &[]);
    let sent = server.sent();
    let last =
        of(&sent, "PATCH").into_iter().rfind(|(_, path, _)| path == CLAIM).expect("a change");
    assert_eq!(last.2["metadata"]["finalizers"], json!(["example.com/new"]));
    assert_eq!(last.2["metadata"]["resourceVersion"], "6");
}

#[test]
fn without_the_right_to_change_a_claim_the_rest_stays() {
    let mut answers = left();
    answers.insert(format!("PATCH {CLAIM}"), Answer::Refused(403, "forbidden"));
    let server = Server::start("kept", answers);
    let output = server.run(&["uninstall", "--crds"]);
    ends(&output, 4, &[]);
    let sent = server.sent();
    let deleted = of(&sent, "DELETE");
    assert_eq!(deleted.len(), 1, "only the controller is stopped: {deleted:?}");
    assert!(text(&output.stderr).contains("some could not be taken off"));
}

#[test]
fn where_nothing_is_installed_nothing_is_done() {
    let server = Server::start("nothing", BTreeMap::new());
    ends(&server.run(&["uninstall"]), 0, &[]);
    assert!(server.sent().iter().all(|(method, _, _)| method == "GET"));
}
