//! Owners of each sort, manifests as files, and what two of them tell beside each other.

use super::{built, object, of, owned, sequence};
use mover_cluster::manifest::{
    Difference, Identity, ManifestBuilder, ManifestScope, ObjectManifest, SOFT_OWNERS, Strength,
    differences, read_manifest, restore_order, shared, write_manifest,
};
use serde_json::{Value, json};

const CAPI: &str = "cluster.x-k8s.io/v1beta1";
const INFRA: &str = "infrastructure.cluster.x-k8s.io/v1beta1";

/// Owners of an item, as `Kind/name by`.
fn owners(manifest: &ObjectManifest, name: &str) -> Vec<String> {
    let item = manifest.items.iter().find(|item| format!("{}/{}", item.of.kind, item.name) == name);
    let item = item.unwrap_or_else(|| panic!("{name}"));
    let text = |owner: &mover_cluster::manifest::ItemOwner| {
        let of = &manifest.items[owner.item as usize];
        format!("{}/{} {}", of.of.kind, of.name, owner.by)
    };
    item.owners.iter().map(text).collect()
}

/// A cluster of Cluster API as its controllers leave it: the cluster refers to its infrastructure and
/// owns it, machines belong to sets and to deployments, and everything has the label of the cluster.
fn cluster_api() -> Vec<Value> {
    let of_cluster = || json!({ "cluster.x-k8s.io/cluster-name": "c1" });
    let meta = |owners: Value| json!({ "labels": of_cluster(), "ownerReferences": owners });
    let to = |kind: &str, name: &str| json!({ "apiVersion": INFRA, "kind": kind, "name": name });
    let cluster = owned(CAPI, "Cluster", "c1");
    vec![
        object(
            INFRA,
            "DockerMachine",
            "m1",
            json!({ "metadata": meta(json!([owned(CAPI, "Machine", "m1")])) }),
        ),
        object(
            CAPI,
            "Machine",
            "m1",
            json!({
                "metadata": meta(json!([owned(CAPI, "MachineSet", "s1")])),
                "spec": { "infrastructureRef": to("DockerMachine", "m1") },
            }),
        ),
        object(
            CAPI,
            "MachineSet",
            "s1",
            json!({
                "metadata": meta(json!([owned(CAPI, "MachineDeployment", "d1")])),
                "spec": { "template": { "spec": { "infrastructureRef": to("DockerMachineTemplate", "t1") } } },
            }),
        ),
        object(
            CAPI,
            "MachineDeployment",
            "d1",
            json!({
                "metadata": meta(json!([cluster])),
                "spec": { "template": { "spec": { "infrastructureRef": to("DockerMachineTemplate", "t1") } } },
            }),
        ),
        object(INFRA, "DockerMachineTemplate", "t1", json!({ "metadata": meta(json!([cluster])) })),
        object(INFRA, "DockerCluster", "c1", json!({ "metadata": meta(json!([cluster])) })),
        object(
            CAPI,
            "Cluster",
            "c1",
            json!({ "spec": { "infrastructureRef": to("DockerCluster", "c1") } }),
        ),
        // By its label alone.
        object("v1", "Secret", "c1-kubeconfig", json!({ "metadata": { "labels": of_cluster() } })),
    ]
}

#[test]
fn cluster_api_comes_back_from_its_roots() {
    let manifest = built(&cluster_api(), &[]);
    let order = sequence(&manifest);
    let at =
        |name: &str| order.iter().position(|of| of == name).unwrap_or_else(|| panic!("{name}"));
    // The cluster refers to its infrastructure, which it owns: the owner comes first.
    for (first, item) in [
        ("Cluster/c1", "DockerCluster/c1"),
        ("Cluster/c1", "DockerMachineTemplate/t1"),
        // Its controllers would make another one.
        ("Secret/c1-kubeconfig", "Cluster/c1"),
        ("DockerMachineTemplate/t1", "MachineDeployment/d1"),
        ("MachineDeployment/d1", "MachineSet/s1"),
        ("MachineSet/s1", "Machine/m1"),
        ("Machine/m1", "DockerMachine/m1"),
    ] {
        assert!(at(first) < at(item), "{first} after {item}: {order:?}");
    }
    assert_eq!(
        owners(&manifest, "Secret/c1-kubeconfig"),
        ["Cluster/c1 label cluster.x-k8s.io/cluster-name"]
    );
    // Two references stand in circles with owners.
    assert_eq!(restore_order(&manifest).cut.len(), 2);
    assert!(SOFT_OWNERS.iter().any(|(label, ..)| *label == "cluster.x-k8s.io/cluster-name"));
}

#[test]
fn built_in_kinds_refer_by_their_fields() {
    let pod = json!({
        "serviceAccountName": "web",
        "imagePullSecrets": [{ "name": "pull" }],
        "volumes": [
            { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
            { "name": "b", "configMap": { "name": "settings" } },
            { "name": "c", "projected": { "sources": [{ "secret": { "name": "tls" } }] } },
        ],
        "containers": [{
            "name": "x",
            "envFrom": [{ "configMapRef": { "name": "env" } }],
            "env": [{ "name": "P", "valueFrom": { "secretKeyRef": { "name": "password" } } }],
        }],
    });
    let template = json!({ "spec": { "template": { "spec": pod }, "serviceName": "web" } });
    let cron = json!({ "spec": { "jobTemplate": { "spec": { "template": { "spec": pod } } } } });
    let role = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" },
        "subjects": [{ "kind": "ServiceAccount", "name": "web", "namespace": "shop" }],
    });
    let target = json!({ "spec": {
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web" },
    }});
    let ingress = json!({ "spec": {
        "rules": [{ "http": { "paths": [{ "backend": { "service": { "name": "web" } } }] } }],
        "tls": [{ "secretName": "tls" }],
    }});
    let names = ["pull", "tls", "password"].map(|name| object("v1", "Secret", name, json!({})));
    let mut all = names.to_vec();
    all.extend(["settings", "env"].map(|name| object("v1", "ConfigMap", name, json!({}))));
    let volume = json!({ "spec": { "volumeName": "pv", "storageClassName": "fast" } });
    all.extend([
        object("v1", "PersistentVolumeClaim", "data", volume),
        object("v1", "PersistentVolume", "pv", json!({ "spec": { "storageClassName": "fast" } })),
        object("storage.k8s.io/v1", "StorageClass", "fast", json!({})),
        object("v1", "ServiceAccount", "web", json!({ "imagePullSecrets": [{ "name": "pull" }] })),
        object("v1", "Service", "web", json!({})),
        object("apps/v1", "StatefulSet", "web", template),
        object("batch/v1", "CronJob", "night", cron),
        object("rbac.authorization.k8s.io/v1", "Role", "r", json!({})),
        object("rbac.authorization.k8s.io/v1", "RoleBinding", "b", role),
        object("autoscaling/v2", "HorizontalPodAutoscaler", "web", target),
        object("networking.k8s.io/v1", "Ingress", "web", ingress),
    ]);
    let manifest = built(&all, &[]);
    for (name, expected) in [
        (
            "CronJob/night",
            "ConfigMap/env ConfigMap/settings PersistentVolumeClaim/data Secret/password \
             Secret/pull Secret/tls ServiceAccount/web",
        ),
        ("PersistentVolumeClaim/data", "PersistentVolume/pv StorageClass/fast"),
        ("PersistentVolume/pv", "StorageClass/fast"),
        ("ServiceAccount/web", "Secret/pull"),
        ("RoleBinding/b", "Role/r ServiceAccount/web"),
        ("HorizontalPodAutoscaler/web", "StatefulSet/web"),
        ("Ingress/web", "Secret/tls Service/web"),
    ] {
        let mut found: Vec<String> = owners(&manifest, name)
            .iter()
            .map(|text| text.split(' ').next().expect("a name").to_owned())
            .collect();
        found.sort();
        assert_eq!(found.join(" "), expected, "{name}");
    }
    assert!(
        owners(&manifest, "StatefulSet/web").contains(&"Service/web field spec.serviceName".into())
    );
}

#[test]
fn rules_of_the_user_name_owners() {
    let all = [
        object(
            "db.example.com/v1",
            "Backup",
            "b",
            json!({ "spec": { "of": [{ "name": "main" }] } }),
        ),
        object("db.example.com/v1", "Zoo", "main", json!({})),
    ];
    assert_eq!(sequence(&built(&all, &[])), ["Backup/b", "Zoo/main"]);
    let rule = "Backup.db.example.com:spec.of[*].name=Zoo.db.example.com";
    let manifest = built(&all, &[rule]);
    assert_eq!(sequence(&manifest), ["Zoo/main", "Backup/b"]);
    assert_eq!(owners(&manifest, "Backup/b"), [format!("Zoo/main rule {rule}")]);
}

/// What no API server allows, and objects that somebody wrote to do harm.
#[test]
fn owners_that_are_none_are_named_and_do_not_count() {
    let references = json!({ "metadata": { "ownerReferences": [
        owned("v1", "ConfigMap", "itself"),
        owned("v1", "ConfigMap", "gone"),
        // Of another namespace; of another kind than it says; nothing at all.
        owned("v1", "ConfigMap", "elsewhere"),
        { "apiVersion": "v1", "kind": "Secret", "name": "other", "uid": "ConfigMap-other" },
        {},
    ]}});
    let elsewhere =
        object("v1", "ConfigMap", "elsewhere", json!({ "metadata": { "namespace": "y" } }));
    let all = [
        object("v1", "ConfigMap", "itself", references),
        object("v1", "ConfigMap", "other", json!({})),
        object("v1", "ConfigMap", "twin", json!({ "metadata": { "uid": "ConfigMap-other" } })),
        object("v1", "ConfigMap", "other", json!({ "metadata": { "uid": "again" } })),
        elsewhere,
    ];
    let manifest = built(&all, &[]);
    assert_eq!(manifest.items.len(), 4);
    assert!(manifest.items.iter().all(|item| item.owners.is_empty()), "{manifest:?}");
    let notes = manifest.notes.join("\n");
    for said in [
        "configmaps/other in namespace shop was told twice",
        "configmaps/twin in namespace shop has the uid of configmaps/other in namespace shop",
        "its owner ConfigMap gone is not here",
        "its owner ConfigMap elsewhere is not here",
        "its owner Secret other is not here",
    ] {
        assert!(notes.contains(said), "{said} is not in {notes}");
    }
    // However many there are, few are told.
    let many: Vec<Value> = (0..1000)
        .map(|at| {
            let gone = json!({ "metadata": { "ownerReferences": [owned("v1", "Pod", "gone")] } });
            object("v1", "ConfigMap", &format!("c{at}"), gone)
        })
        .collect();
    assert_eq!(built(&many, &[]).notes.len(), 101);
}

#[test]
fn an_object_without_a_name_is_an_error() {
    let nameless = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} });
    let mut builder = ManifestBuilder::default();
    let why = builder.add(&of(&nameless), &nameless, true).expect_err("it has no name");
    assert!(why.message.contains("an object has no name"), "{why}");
}

#[test]
fn a_saved_manifest_is_read_as_it_was_written() {
    let mut manifest = built(&cluster_api(), &[]);
    manifest.scope = ManifestScope {
        namespaces: vec!["shop".into()],
        selector: Some("app=db".into()),
        rules: vec!["A:b=C".into()],
    };
    let mut text = Vec::new();
    write_manifest(&manifest, &mut text).expect("it is written");
    assert_eq!(read_manifest(text.as_slice()).expect("it is read"), manifest);
    // The structure of the proposal: kinds, namespaces, items; index; set.
    let wire: Value = serde_json::from_slice(&text).expect("JSON");
    let machine = &wire["kinds"]["machines.cluster.x-k8s.io"]["shop"][0];
    assert_eq!(machine["name"], "m1");
    assert_eq!(machine["owners"], json!(["Cluster-c1", "MachineSet-s1", "DockerMachine-m1"]));
    assert_eq!(machine["children"], json!(["DockerMachine-m1"]));
    assert_eq!(wire["index"]["Machine-m1"], "machines.cluster.x-k8s.io/shop/m1");
    let set = wire["set"].as_array().expect("a set");
    assert!(set.contains(&"cluster.x-k8s.io/shop/v1beta1/m1".into()), "{set:?}");
    for (from, to, said) in [
        ("\"v1\"", "\"v1\"", ""),
        ("object-manifest/v1", "object-manifest/v9", "instead of"),
        ("\"owners\":[\"Cluster-c1\"", "\"owners\":[\"nobody\"", "which is not in it"),
        ("{\"format\"", "[\"format\"", "it is no list of objects"),
        ("\"name\":\"m1\"", "\"name\":\"../../secrets\"", "no object can be"),
        ("\"namespace\":\"shop\",\"name\"", "\"namespace\":\"../x\",\"name\"", "no object can be"),
        ("\"resource\":\"machines\"", "\"resource\":\"x/../y\"", "no kind can be"),
    ] {
        let text = String::from_utf8(text.clone()).expect("text").replacen(from, to, 1);
        match read_manifest(text.as_bytes()) {
            Ok(_) => assert!(said.is_empty(), "{from}"),
            Err(why) => assert!(!said.is_empty() && why.message.contains(said), "{why}"),
        }
    }
}

#[test]
fn a_cluster_that_changed_no_longer_matches() {
    let pod = |name: &str| {
        let owner =
            json!({ "metadata": { "ownerReferences": [owned("apps/v1", "ReplicaSet", "web")] } });
        object("v1", "Pod", name, owner)
    };
    let map = |name: &str, more: Value| object("v1", "ConfigMap", name, more);
    let accepted = built(
        &[pod("a"), map("stays", json!({})), map("goes", json!({})), map("anew", json!({}))],
        &[],
    );
    assert!(differences(&accepted, &accepted).is_empty());
    let now = built(
        &[
            // Pods come and go, and contents change.
            pod("b"),
            map("stays", json!({ "data": { "a": "b" }, "metadata": { "labels": { "x": "y" } } })),
            map("anew", json!({ "metadata": { "uid": "another" } })),
            map("new", json!({})),
        ],
        &[],
    );
    let text = |name: &str| format!("configmaps/{name} in namespace shop");
    assert_eq!(
        differences(&accepted, &now),
        [
            Difference::Replaced(text("anew")),
            Difference::Gone(text("goes")),
            Difference::New(text("new"))
        ]
    );
    let owned_now = map(
        "stays",
        json!({ "metadata": { "ownerReferences": [owned("v1", "ConfigMap", "anew")] } }),
    );
    let now = built(&[owned_now, map("goes", json!({})), map("anew", json!({}))], &[]);
    assert_eq!(differences(&accepted, &now), [Difference::Owners(text("stays"))]);
    let mut now = accepted.clone();
    now.scope.namespaces.push("other".into());
    assert_eq!(differences(&accepted, &now), [Difference::Scope]);
}

/// An object that is read in two versions is one object; one of another kind is another one.
#[test]
fn what_two_applications_share_does_not_depend_on_versions() {
    let one = built(&[object("autoscaling/v1", "HorizontalPodAutoscaler", "web", json!({}))], &[]);
    let other = [
        object("autoscaling/v2", "HorizontalPodAutoscaler", "web", json!({})),
        object("v1", "ConfigMap", "web", json!({})),
    ];
    let other = built(&other, &[]);
    let name = "horizontalpodautoscalers.autoscaling/web in namespace shop";
    assert_eq!(shared(&one, &other), [name]);
    // The set of texts tells neither: it has no kind, and counts both versions.
    assert_ne!(one.items[0].text(), other.items[1].text());
    let identity = Identity { group: "", resource: "configmaps", namespace: "shop", name: "web" };
    assert_eq!(other.find(identity), Some(0));
}

/// With labels: what has them, what it owns, and what all those need.
#[test]
fn a_selection_takes_its_kin_along() {
    let all = [
        object(
            "example.com/v1",
            "Game",
            "chess",
            json!({ "spec": { "ref": { "kind": "Secret", "name": "s" } } }),
        ),
        object("v1", "Secret", "s", json!({})),
        object(
            "v1",
            "ConfigMap",
            "owned",
            json!({ "metadata": { "ownerReferences": [owned("example.com/v1", "Game", "chess")] } }),
        ),
        object("v1", "ConfigMap", "other", json!({})),
        object(
            "example.com/v1",
            "Game",
            "go",
            json!({ "spec": { "ref": { "kind": "Secret", "name": "s" } } }),
        ),
    ];
    let mut builder = ManifestBuilder::default();
    for object in &all {
        let is_chosen = object["metadata"]["name"] == "chess";
        builder.add(&of(object), object, is_chosen).expect("an object");
    }
    let manifest = builder.finish(ManifestScope::default(), Vec::new());
    assert_eq!(sequence(&manifest), ["Secret/s", "ConfigMap/owned", "Game/chess"]);
    let strengths: Vec<Strength> = manifest
        .items
        .iter()
        .flat_map(|item| item.owners.iter().map(|owner| owner.strength))
        .collect();
    assert_eq!(strengths, [Strength::Hard, Strength::Soft]);
}
