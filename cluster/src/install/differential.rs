//! The server of changed blocks, for whoever wants it: its accounts and rights, its Service, and who
//! may speak with it.
//!
//! Drivers are asked by an account of its own, which may read VolumeSnapshots and nothing else: the
//! services of drivers ask for that right. The controller may have tokens made for that account, by
//! its name.

use super::rights::{SNAPSHOTS, bound_to, role, rule};
use super::{
    CONTROLLER, DIFFERENTIAL, DIFFERENTIAL_PORT, EACH, File, Manifest, Settings, When, labelled,
    workload,
};
use serde_json::{Value, json};

/// What the account that drivers are asked by may do.
const READER: &str = "mover-differential-snapshots-reader";
/// What the controller may do for it in the namespaces that it works in.
const NAMESPACED: &str = "mover-differential-snapshots-namespaced";
/// For people.
const EDIT: &str = "mover-differential-snapshots-edit";
/// Where certificate and key are in its pod.
const TLS_FOLDER: &str = "/etc/mover/differential";
const VOLUME: &str = "differential-tls";

/// Objects of the cluster: whose a token is, and what its owner may do.
fn reviews() -> Vec<Value> {
    vec![
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

fn namespaced() -> Vec<Value> {
    vec![
        rule("mover.dev", &["differentialsnapshots"], &["get", "list", "watch"]),
        rule("mover.dev", &["differentialsnapshots/status"], &["get", "patch"]),
    ]
}

fn tokens() -> Vec<Value> {
    vec![json!({
        "apiGroups": [""], "resources": ["serviceaccounts/token"],
        "resourceNames": [DIFFERENTIAL], "verbs": ["create"],
    })]
}

/// Whoever may edit may have lists made, and read them.
fn people() -> Value {
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let mut role = role(
        "ClusterRole",
        EDIT,
        None,
        vec![rule("mover.dev", &["differentialsnapshots"], &verbs)],
    );
    for of in ["edit", "admin"] {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{of}");
        role["metadata"]["labels"][label] = "true".into();
    }
    role
}

pub(super) fn objects(settings: &Settings) -> Vec<Manifest> {
    let own = Some(settings.namespace.as_str());
    let of = |file, when, object| Manifest { file, when, object };
    let rights = |when, object| of(File::Differential, when, object);
    let bound = |account: &str, name: &str, namespace: Option<&str>, role: (&str, &str)| {
        let kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
        bound_to(settings, account, kind, name, namespace, role)
    };
    let account = labelled(json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": { "name": DIFFERENTIAL, "namespace": settings.namespace },
        "automountServiceAccountToken": false,
    }));
    let reader = vec![rule(SNAPSHOTS, &["volumesnapshots"], &["get"])];
    let wide = ("ClusterRole", DIFFERENTIAL);
    let mut all = vec![
        rights(When::Differential, account),
        rights(When::Differential, role("ClusterRole", READER, None, reader)),
        rights(When::Differential, role("ClusterRole", DIFFERENTIAL, None, reviews())),
        rights(When::Differential, bound(CONTROLLER, DIFFERENTIAL, None, wide)),
        rights(When::Differential, role("ClusterRole", NAMESPACED, None, namespaced())),
        rights(When::Differential, role("Role", DIFFERENTIAL, own, tokens())),
        rights(When::Differential, bound(CONTROLLER, DIFFERENTIAL, own, ("Role", DIFFERENTIAL))),
        rights(When::Differential, people()),
    ];
    for (account, name) in [(DIFFERENTIAL, READER), (CONTROLLER, NAMESPACED)] {
        let of = ("ClusterRole", name);
        all.push(rights(When::DifferentialEverywhere, bound(account, name, None, of)));
        all.push(rights(When::DifferentialSomewhere, bound(account, name, Some(EACH), of)));
    }
    all.push(of(File::Controller, When::Differential, service(settings)));
    all.push(of(File::Network, When::DifferentialNetwork, network(settings)));
    all
}

fn service(settings: &Settings) -> Value {
    labelled(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": DIFFERENTIAL, "namespace": settings.namespace },
        "spec": {
            "selector": workload::labels(),
            "ports": [{ "name": "lists", "port": 443, "targetPort": "lists", "protocol": "TCP" }],
        },
    }))
}

/// Clients come from anywhere, with a token. Services of drivers are pods of any namespace.
fn network(settings: &Settings) -> Value {
    labelled(json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": DIFFERENTIAL, "namespace": settings.namespace },
        "spec": {
            "podSelector": { "matchLabels": workload::labels() },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "ports": [{ "protocol": "TCP", "port": DIFFERENTIAL_PORT }] }],
            "egress": [{ "to": [{ "namespaceSelector": {} }] }],
        },
    }))
}

/// What the controller's Deployment has besides: arguments, a port, and certificate with key.
pub(super) fn extend(settings: &mut Settings, secret: &str) {
    let namespace = settings.namespace.clone();
    settings.arguments.extend(arguments(&namespace));
    settings.ports.push(port());
    settings.container.insert("volumeMounts".into(), json!([mount()]));
    settings.pod.insert("volumes".into(), json!([volume(secret)]));
}

fn arguments(namespace: &str) -> [String; 3] {
    [
        format!("--differential-snapshots=0.0.0.0:{DIFFERENTIAL_PORT}"),
        format!("--differential-tls={TLS_FOLDER}"),
        format!("--differential-url=https://{DIFFERENTIAL}.{namespace}.svc"),
    ]
}

fn port() -> Value {
    json!({ "name": "lists", "containerPort": DIFFERENTIAL_PORT, "protocol": "TCP" })
}

fn mount() -> Value {
    json!({ "name": VOLUME, "mountPath": TLS_FOLDER, "readOnly": true })
}

fn volume(secret: &str) -> Value {
    json!({ "name": VOLUME, "secret": { "secretName": secret } })
}
