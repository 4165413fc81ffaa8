//! What is kept of objects, and what another namespace gets of them.

use super::{object, of};
use mover_cluster::manifest::{NamespaceMap, ready, stored};
use serde_json::{Value, json};

fn namespaces(pairs: &[(&str, &str)]) -> NamespaceMap {
    NamespaceMap(pairs.iter().map(|(old, new)| ((*old).into(), (*new).into())).collect())
}

fn made(object: &Value, map: &[(&str, &str)]) -> Value {
    let kind = of(object);
    ready(&kind, stored(&kind, object.clone()), &namespaces(map), |_| None).0
}

#[test]
fn nothing_of_the_old_cluster_is_kept() {
    let metadata = json!({
        "resourceVersion": "1", "generation": 3, "creationTimestamp": "t", "managedFields": [{}],
        "selfLink": "x", "generateName": "web-", "finalizers": ["example.com/x"],
        "labels": { "app": "web" },
    });
    let mount = json!([{ "name": "kube-api-access-abc" }, { "name": "data" }]);
    let pod = object(
        "v1",
        "Pod",
        "web",
        json!({
            "metadata": metadata,
            "spec": {
                "nodeName": "node1", "priority": 0, "nodeSelector": { "disk": "fast" },
                "volumes": [{ "name": "kube-api-access-abc", "projected": {} }, { "name": "data" }],
                "containers": [{ "name": "x", "volumeMounts": mount }],
            },
            "status": { "phase": "Running" },
        }),
    );
    let kept = stored(&of(&pod), pod.clone());
    // Owners are found by it.
    assert_eq!(kept["metadata"]["uid"], "Pod-web");
    assert_eq!(
        made(&pod, &[]),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web", "namespace": "shop", "labels": { "app": "web" } },
            "spec": {
                "nodeSelector": { "disk": "fast" },
                "volumes": [{ "name": "data" }],
                "containers": [{ "name": "x", "volumeMounts": [{ "name": "data" }] }],
            },
        })
    );
}

#[test]
fn addresses_tokens_and_selectors_are_given_anew() {
    let service = object(
        "v1",
        "Service",
        "web",
        json!({ "spec": {
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "healthCheckNodePort": 31000,
            "ports": [{ "port": 80, "nodePort": 30080 }],
        }}),
    );
    assert_eq!(
        made(&service, &[])["spec"],
        json!({ "ipFamilyPolicy": "SingleStack", "ports": [{ "port": 80 }] })
    );
    let headless = object(
        "v1",
        "Service",
        "web",
        json!({ "spec": {
            "clusterIP": "None", "clusterIPs": ["None"], "ports": [{ "port": 80 }],
        }}),
    );
    assert_eq!(made(&headless, &[])["spec"], headless["spec"]);
    let secrets = json!([{ "name": "web-token-abcde" }, { "name": "mine" }]);
    let account = object("v1", "ServiceAccount", "web", json!({ "secrets": secrets }));
    assert_eq!(made(&account, &[])["secrets"], json!([{ "name": "mine" }]));
    let labels = json!({ "batch.kubernetes.io/controller-uid": "u", "app": "web" });
    let job = object(
        "batch/v1",
        "Job",
        "once",
        json!({
            "spec": { "selector": {}, "template": { "metadata": { "labels": labels } } },
        }),
    );
    assert_eq!(
        made(&job, &[])["spec"],
        json!({ "template": { "metadata": { "labels": { "app": "web" } } } })
    );
    let space = object(
        "v1",
        "Namespace",
        "shop",
        json!({
            "metadata": { "labels": { "kubernetes.io/metadata.name": "shop" } },
            "spec": { "finalizers": ["kubernetes"] },
        }),
    );
    assert_eq!(made(&space, &[("shop", "new")])["metadata"]["name"], "new");
    assert_eq!(made(&space, &[])["spec"], json!({}));
    assert_eq!(made(&space, &[])["metadata"]["labels"], json!({}));
}

#[test]
fn owners_get_their_new_uids_and_others_are_told() {
    let owner = |name: &str| json!({ "apiVersion": "v1", "kind": "A", "name": name, "uid": name });
    let owners = json!({ "metadata": { "ownerReferences": [owner("here"), owner("later")] } });
    let object = object("v1", "ConfigMap", "x", owners);
    let kind = of(&object);
    let new = |old: &str| (old == "here").then(|| "new".to_owned());
    let (object, absent) = ready(&kind, stored(&kind, object), &NamespaceMap::default(), new);
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "new");
    assert_eq!(object["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
    assert_eq!(absent, ["later"]);
}

#[test]
fn another_namespace_is_another_one_in_references_too() {
    let binding = object(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "b",
        json!({
            "metadata": { "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "shop",
            } },
            "subjects": [
                { "kind": "ServiceAccount", "name": "web", "namespace": "shop" },
                { "kind": "ServiceAccount", "name": "web", "namespace": "other" },
            ],
        }),
    );
    let new = made(&binding, &[("shop", "new")]);
    assert_eq!(new["metadata"]["namespace"], "new");
    assert_eq!(new["subjects"][0]["namespace"], "new");
    assert_eq!(new["subjects"][1]["namespace"], "other");
    assert_eq!(new["metadata"]["annotations"], json!({ "note": "shop" }));
    let name = "kubernetes.io/metadata.name";
    let selector = json!({
        "matchLabels": { name: "shop" },
        "matchExpressions": [{ "key": name, "operator": "In", "values": ["shop", "other"] }],
    });
    let policy = object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "p",
        json!({
            "spec": { "ingress": [{ "from": [{ "namespaceSelector": selector }] }] },
        }),
    );
    let from = &made(&policy, &[("shop", "new")])["spec"]["ingress"][0]["from"][0];
    assert_eq!(from["namespaceSelector"]["matchLabels"][name], "new");
    assert_eq!(from["namespaceSelector"]["matchExpressions"][0]["values"], json!(["new", "other"]));
    // Contents are nobody's references, and without a map nothing is touched.
    let map =
        object("v1", "ConfigMap", "m", json!({ "data": { "name": "x", "namespace": "shop" } }));
    assert_eq!(made(&map, &[("shop", "new")])["data"]["namespace"], "shop");
    let kept = &made(&binding, &[])["metadata"]["annotations"];
    assert!(kept["kubectl.kubernetes.io/last-applied-configuration"].is_string());
    // Two that change places.
    let swapped = made(&binding, &[("shop", "other"), ("other", "shop")]);
    assert_eq!(swapped["subjects"][0]["namespace"], "other");
    assert_eq!(swapped["subjects"][1]["namespace"], "shop");
}
