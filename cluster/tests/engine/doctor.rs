//! Each reason why a backup would not work is found for its cause, and none in a healthy cluster.

mod places;
mod velero;

use super::*;
use mover_cluster::engine::{Failure, Finding, Level, Question, doctor, exit};
use serde_json::Value;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n";
/// `PEM`, as the API holds it.
const PEM_BASE64: &str =
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K";

fn definitions(fake: &mut Fake) {
    for plural in ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"] {
        fake.create(&json!({
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.snapshot.storage.k8s.io") },
            "spec": { "versions": [{ "name": "v1", "served": true }] },
        }));
    }
}

fn classes(fake: &mut Fake) {
    fake.create(&json!({
        "kind": "VolumeSnapshotClass", "metadata": { "name": "snaps" },
        "driver": DRIVER, "deletionPolicy": "Delete",
    }));
    fake.create(&json!({
        "kind": "VolumeSnapshotClass", "metadata": { "name": "others" },
        "driver": "other.csi", "deletionPolicy": "Delete",
    }));
    fake.create(&json!({
        "kind": "StorageClass", "metadata": { "name": CLASS },
        "provisioner": DRIVER, "volumeBindingMode": "Immediate",
    }));
    fake.create(&json!({ "kind": "CSIDriver", "metadata": { "name": DRIVER } }));
    fake.create(&json!({
        "kind": "SnapshotMetadataService", "metadata": { "name": DRIVER },
        "spec": { "address": "cbt:6443", "audience": "cbt", "caCert": PEM_BASE64 },
    }));
    fake.create(&json!({
        "kind": "VolumeSnapshot", "metadata": { "name": "old", "namespace": NAMESPACE },
        "status": { "boundVolumeSnapshotContentName": "content-old", "readyToUse": true },
    }));
}

fn place(fake: &mut Fake) {
    let meta = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
    fake.create(&json!({ "kind": "Namespace", "metadata": { "name": NAMESPACE } }));
    fake.create(&json!({
        "kind": "ConfigMap",
        "metadata": {
            "name": "mover-repository-default", "namespace": NAMESPACE,
            "labels": { "mover.dev/repository": "default" },
        },
        "data": {
            "url": "s3://bucket", "cluster": "c1", "keySecret": "keys",
            "credentialsSecret": "credentials", "caConfigMap": "authority",
            "serviceAccount": "mover", "image": "mover:1", "imagePullPolicy": "IfNotPresent",
            "memory": "320Mi", "cpu": "1", "allowModeChange": "true",
        },
    }));
    for name in ["keys", "credentials"] {
        let data = json!({ "member": "dGV4dA==" });
        fake.create(&json!({ "kind": "Secret", "metadata": meta(name), "data": data }));
    }
    let data = json!({ "ca.crt": PEM });
    fake.create(&json!({ "kind": "ConfigMap", "metadata": meta("authority"), "data": data }));
    fake.create(&json!({ "kind": "ServiceAccount", "metadata": meta("mover") }));
    fake.create(&json!({
        "kind": "Role", "metadata": meta("mover-changed-blocks"),
        "rules": [{
            "apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshots"],
            "verbs": ["get"],
        }],
    }));
    fake.create(&json!({
        "kind": "RoleBinding", "metadata": meta("mover-changed-blocks"),
        "roleRef": { "kind": "Role", "name": "mover-changed-blocks" },
        "subjects": [{ "kind": "ServiceAccount", "name": "mover", "namespace": NAMESPACE }],
    }));
    fake.create(&json!({
        "kind": "ResourceQuota", "metadata": meta("quota"),
        "spec": { "hard": {} },
        "status": {
            "hard": { "requests.storage": "10Gi", "pods": "10", "limits.memory": "1Gi" },
            "used": { "requests.storage": "1Gi", "pods": "1", "limits.memory": "0" },
        },
    }));
}

fn healthy() -> (Fake, Question) {
    let mut fake = shop(true);
    let claim = json!({
        "spec": { "accessModes": ["ReadWriteOnce"] },
        "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } },
    });
    fake.change(&Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db"), &claim);
    definitions(&mut fake);
    classes(&mut fake);
    place(&mut fake);
    let question = Question {
        namespace: NAMESPACE.into(),
        claims: vec![(NAMESPACE.into(), "db".into())],
        issuer: Some("https://issuer.example".into()),
        stale_before: Some("2026-01-01T00:00:00Z".into()),
        ..Question::default()
    };
    (fake, question)
}

/// All that is found, with reads of some kinds refused.
fn found(fake: &Fake, question: &Question, refused: &[Kind]) -> Vec<Finding> {
    let mut seen = Observed::default();
    for _ in 0..200 {
        let query = match doctor(&seen, question) {
            Ok(found) => return found,
            Err(Stop::Next(Next::Read(query))) => query,
            Err(other) => panic!("it only reads: {other:?}"),
        };
        assert!(!seen.knows(&query), "{query:?} was read");
        let kind = match &query {
            Query::One(key) => key.kind,
            Query::Many(selection) => selection.kind,
        };
        if refused.contains(&kind) {
            seen.set_refused(query, Failure::new(exit::DENIED, format!("read {kind:?}: no right")));
        } else {
            fake.read(&query, &mut seen);
        }
    }
    panic!("it does not end");
}

/// This is found, and nothing else that is as bad; and each error has a next step.
fn finds(level: Level, object: &str, message: &str, change: impl FnOnce(&mut Fake, &mut Question)) {
    let (mut fake, mut question) = healthy();
    change(&mut fake, &mut question);
    let all = found(&fake, &question, &[]);
    let is_it = |at: &&Finding| {
        at.level == level && at.object.contains(object) && at.message.contains(message)
    };
    assert_eq!(all.iter().filter(is_it).count(), 1, "{object}, {message}: {all:#?}");
    for other in &all {
        assert!(is_it(&other) || other.level > level || level == Level::Note, "{all:#?}");
        assert!(other.level == Level::Note || other.hint.is_some(), "{other:?} has no next step");
    }
    let (fake, question) = healthy();
    assert_eq!(found(&fake, &question, &[]), Vec::new(), "a healthy cluster");
}

fn error(object: &str, message: &str, change: impl FnOnce(&mut Fake)) {
    finds(Level::Error, object, message, |fake, _| change(fake));
}

fn note(object: &str, message: &str, change: impl FnOnce(&mut Fake)) {
    finds(Level::Note, object, message, |fake, _| change(fake));
}

fn of(kind: Kind, name: &str) -> Key {
    match kind.resource().namespaced {
        true => Key::new(kind, NAMESPACE, name),
        false => Key::wide(kind, name),
    }
}

fn gone(fake: &mut Fake, kind: Kind, name: &str) {
    fake.objects.remove(&of(kind, name)).expect("it was there");
}

fn set(fake: &mut Fake, kind: Kind, name: &str, patch: &Value) {
    fake.change(&of(kind, name), patch);
}

const REPOSITORY: &str = "mover-repository-default";

#[test]
fn a_claim_that_cannot_be_backed_up() {
    use Kind::PersistentVolumeClaim as Pvc;
    error("pvc/db", "there is no such claim", |fake| gone(fake, Pvc, "db"));
    error("pvc/db", "is Pending, not Bound: the array is full", |fake| {
        set(fake, Pvc, "db", &json!({ "status": { "phase": "Pending" } }));
        for (name, time, text) in
            [("a", "2026-01-02", "waits"), ("b", "2026-01-03", "the array is full")]
        {
            fake.create(&json!({
                "kind": "Event", "metadata": { "name": name, "namespace": NAMESPACE },
                "type": "Warning", "message": text, "lastTimestamp": time,
            }));
        }
    });
    error("pvc/db", "is Lost, not Bound", |fake| {
        set(fake, Pvc, "db", &json!({ "status": { "phase": "Lost" } }));
    });
    error("pvc/db", "is being deleted", |fake| {
        set(fake, Pvc, "db", &json!({ "metadata": { "deletionTimestamp": "now" } }));
    });
    error("pvc/db", "has no storage class", |fake| {
        set(fake, Pvc, "db", &json!({ "spec": { "storageClassName": null } }));
    });
    note("pvc/db", "ReadWriteOncePod", |fake| {
        set(fake, Pvc, "db", &json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } }));
    });
}

#[test]
fn a_volume_without_snapshots() {
    use Kind::PersistentVolume as Pv;
    for (kind, body) in [
        ("nfs", json!({ "server": "a", "path": "/b" })),
        ("local", json!({ "path": "/mnt/disk" })),
        ("awsElasticBlockStore", json!({ "volumeID": "vol-1" })),
    ] {
        error("pvc/db", &format!("which is of type {kind}, has no CSI driver"), |fake| {
            set(fake, Pv, "pv-db", &json!({ "spec": { "csi": null, kind: body } }));
        });
    }
    error("pv/pv-db", "it does not exist", |fake| gone(fake, Pv, "pv-db"));
    note("pvc/db", "XFS", |fake| {
        set(fake, Pv, "pv-db", &json!({ "spec": { "csi": { "fsType": "xfs" } } }));
    });
}

#[test]
fn a_cluster_without_snapshots() {
    use Kind::CustomResourceDefinition as Crd;
    for plural in ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"] {
        let name = format!("{plural}.snapshot.storage.k8s.io");
        error(&name, "the cluster has no snapshots", |fake| gone(fake, Crd, &name));
        error(&name, "does not serve version v1", |fake| {
            let versions = json!([{ "name": "v1beta1", "served": true }]);
            set(fake, Crd, &name, &json!({ "spec": { "versions": versions } }));
        });
    }
    let make = |fake: &mut Fake, made: &str| {
        let meta = json!({ "name": "stuck", "namespace": NAMESPACE });
        fake.create(&json!({ "kind": "VolumeSnapshot", "metadata": meta }));
        let patch = json!({ "metadata": { "creationTimestamp": made } });
        set(fake, Kind::VolumeSnapshot, "stuck", &patch);
    };
    error("volumesnapshot/stuck", "no snapshot controller seems to run", |fake| {
        make(fake, "2025-12-01T00:00:00Z");
    });
    // A young one may still get its status.
    let (mut fake, question) = healthy();
    make(&mut fake, "2026-02-01T00:00:00Z");
    assert_eq!(found(&fake, &question, &[]), Vec::new());
    note("volumesnapshots in namespace shop", "would tell whether", |fake| {
        gone(fake, Kind::VolumeSnapshot, "old");
    });
}

#[test]
fn classes_of_snapshots() {
    use Kind::VolumeSnapshotClass as Class;
    let all = "volumesnapshotclasses";
    let second = |fake: &mut Fake| {
        fake.create(&json!({
            "kind": "VolumeSnapshotClass", "metadata": { "name": "second" },
            "driver": DRIVER, "deletionPolicy": "Delete",
        }));
    };
    let default = |fake: &mut Fake, name: &str| {
        let is = json!({ "snapshot.storage.kubernetes.io/is-default-class": "true" });
        set(fake, Class, name, &json!({ "metadata": { "annotations": is } }));
    };
    error(all, "no VolumeSnapshotClass is of driver", |fake| gone(fake, Class, "snaps"));
    error(all, "the cluster has no VolumeSnapshotClass", |fake| {
        gone(fake, Class, "snaps");
        gone(fake, Class, "others");
    });
    error(all, "several VolumeSnapshotClasses and no default", second);
    error(all, "several default VolumeSnapshotClasses", |fake| {
        second(fake);
        default(fake, "snaps");
        default(fake, "second");
    });
    let (mut fake, mut question) = healthy();
    second(&mut fake);
    default(&mut fake, "second");
    assert_eq!(found(&fake, &question, &[]), Vec::new(), "one default of two");
    question.snapshot_class = Some("snaps".into());
    assert_eq!(found(&fake, &question, &[]), Vec::new(), "the other one, by its name");
    finds(Level::Error, all, "there is no VolumeSnapshotClass none", |_, question| {
        question.snapshot_class = Some("none".into());
    });
    finds(Level::Error, all, "others is of driver other.csi, not", |_, question| {
        question.snapshot_class = Some("others".into());
    });
    note("volumesnapshotclass/snaps", "deletionPolicy is Retain", |fake| {
        set(fake, Class, "snaps", &json!({ "deletionPolicy": "Retain" }));
    });
    finds(Level::Warning, "csidriver/", "the driver may be gone", |fake, _| {
        gone(fake, Kind::CSIDriver, DRIVER);
    });
}

#[test]
fn classes_of_volumes() {
    use Kind::StorageClass as Class;
    error("storageclass/fast", "the cluster has no such class", |fake| gone(fake, Class, CLASS));
    error("storageclass/fast", "makes no volumes of snapshots of", |fake| {
        set(fake, Class, CLASS, &json!({ "provisioner": "other.csi" }));
    });
    finds(Level::Warning, "storageclass/fast", "makes no volumes of snapshots of", |fake, _| {
        set(fake, Class, CLASS, &json!({ "provisioner": "kubernetes.io/aws-ebs" }));
    });
    note("storageclass/fast", "wait for their first pod", |fake| {
        set(fake, Class, CLASS, &json!({ "volumeBindingMode": "WaitForFirstConsumer" }));
    });
    finds(Level::Error, "storageclass/none", "no such class", |_, question| {
        question.storage_class = Some("none".into());
    });
}

#[test]
fn a_service_of_changed_blocks() {
    use Kind::SnapshotMetadataService as Service;
    let object = "snapshotmetadataservice/";
    note(object, "whole volumes are read", |fake| gone(fake, Service, DRIVER));
    let with = |field: &'static str, value: &'static str| {
        move |fake: &mut Fake| set(fake, Service, DRIVER, &json!({ "spec": { field: value } }))
    };
    error(object, "caCert is not PEM", with("caCert", "AAAA"));
    error(object, "caCert is not PEM", with("caCert", "?"));
    error(object, "address is empty", with("address", ""));
    error(object, "audience is empty", with("audience", ""));
    for audience in [
        "https://kubernetes.default.svc.cluster.local",
        "https://kubernetes.default.svc",
        "kubernetes",
        "https://issuer.example",
    ] {
        error(object, "audience is that of the API server", with("audience", audience));
    }
    note("role/mover-changed-blocks", "no such Role", |fake| {
        gone(fake, Kind::Role, "mover-changed-blocks");
    });
    note("role/mover-changed-blocks", "no such Role", |fake| {
        set(fake, Kind::Role, "mover-changed-blocks", &json!({ "rules": [] }));
    });
    note("rolebinding/mover-changed-blocks", "does not bind", |fake| {
        gone(fake, Kind::RoleBinding, "mover-changed-blocks");
    });
    note("rolebinding/mover-changed-blocks", "does not bind", |fake| {
        set(fake, Kind::RoleBinding, "mover-changed-blocks", &json!({ "subjects": [] }));
    });
    let (mut fake, mut question) = healthy();
    gone(&mut fake, Service, DRIVER);
    question.whole = true;
    assert_eq!(found(&fake, &question, &[]), Vec::new(), "nobody is to be asked");
}

#[test]
fn a_repository_that_does_not_work() {
    let object = "Repository default";
    error(object, "there is no Repository default in namespace shop or mover-system", |fake| {
        gone(fake, Kind::ConfigMap, REPOSITORY);
    });
    let with = |patch: Value| {
        move |fake: &mut Fake| set(fake, Kind::ConfigMap, REPOSITORY, &json!({ "data": patch }))
    };
    error(object, "member url is missing", with(json!({ "url": null })));
    error(object, "member env has a line", with(json!({ "env": "nothing" })));
    error(REPOSITORY, "its memory is much", with(json!({ "memory": "much" })));
    error(REPOSITORY, "its cpu is 0", with(json!({ "cpu": "0" })));
    error(
        REPOSITORY,
        "imagePullPolicy is Sometimes",
        with(json!({ "imagePullPolicy": "Sometimes" })),
    );
    note(REPOSITORY, "imagePullPolicy is Never", with(json!({ "imagePullPolicy": "Never" })));
    finds(Level::Warning, "pvc/db", "does not allow a restored volume", |fake, _| {
        with(json!({ "allowModeChange": "false" }))(fake);
    });
    finds(
        Level::Error,
        "Repository other/default",
        "is not for namespace shop",
        |fake, question| {
            let mut copy = fake.get(&of(Kind::ConfigMap, REPOSITORY)).expect("it").clone();
            copy["metadata"]["namespace"] = "other".into();
            fake.create(&copy);
            question.repository = Some("other/default".into());
        },
    );
    use Kind::Secret;
    error("secret/keys", "key is missing", |fake| gone(fake, Secret, "keys"));
    error("secret/keys", "key is empty", |fake| {
        set(fake, Secret, "keys", &json!({ "data": null }));
    });
    error("secret/credentials", "credentials is missing", |fake| gone(fake, Secret, "credentials"));
    error("secret/credentials", "credentials is empty", |fake| {
        set(fake, Secret, "credentials", &json!({ "data": { "member": "" } }));
    });
    let authority = "configmap/authority";
    error(authority, "authority is missing", |fake| gone(fake, Kind::ConfigMap, "authority"));
    error(authority, "no member ca.crt", |fake| {
        set(fake, Kind::ConfigMap, "authority", &json!({ "data": null }));
    });
    error(authority, "no certificate in PEM", |fake| {
        set(fake, Kind::ConfigMap, "authority", &json!({ "data": { "ca.crt": "text" } }));
    });
    error("serviceaccount/mover", "no pod of its Jobs begins", |fake| {
        gone(fake, Kind::ServiceAccount, "mover");
    });
}

/// What may not be read is said, each by its kind, and nothing else is made of it.
#[test]
fn refused_reads_are_findings() {
    let (mut fake, question) = healthy();
    let pending = json!({ "status": { "phase": "Pending" } });
    for (kind, level) in [
        (Kind::PersistentVolumeClaim, Level::Error),
        (Kind::PersistentVolume, Level::Error),
        (Kind::VolumeSnapshotClass, Level::Error),
        (Kind::ConfigMap, Level::Error),
        (Kind::Lease, Level::Error),
        (Kind::CustomResourceDefinition, Level::Note),
        (Kind::VolumeSnapshot, Level::Note),
        (Kind::CSIDriver, Level::Note),
        (Kind::StorageClass, Level::Note),
        (Kind::SnapshotMetadataService, Level::Note),
        (Kind::Secret, Level::Note),
        (Kind::ServiceAccount, Level::Note),
        (Kind::Role, Level::Note),
        (Kind::RoleBinding, Level::Note),
        (Kind::Namespace, Level::Note),
        (Kind::ResourceQuota, Level::Note),
    ] {
        let all = found(&fake, &question, &[kind]);
        assert!(!all.is_empty(), "{kind:?}");
        for one in &all {
            assert_eq!(one.level, level, "{kind:?}: {one:?}");
            assert_eq!(one.message, format!("read {kind:?}: no right"));
            assert!(one.hint.as_ref().is_some_and(|hint| hint.contains("--as")), "{one:?}");
        }
    }
    set(&mut fake, Kind::PersistentVolumeClaim, "db", &pending);
    let all = found(&fake, &question, &[Kind::Event]);
    assert!(all.iter().any(|at| at.object == "events in namespace shop"), "{all:#?}");
    assert!(all.iter().any(|at| at.message == "is Pending, not Bound"), "{all:#?}");
}

/// One run names them all, the worst first, and each once.
#[test]
fn all_findings_at_once() {
    let (mut fake, mut question) = healthy();
    gone(&mut fake, Kind::VolumeSnapshotClass, "snaps");
    gone(&mut fake, Kind::Secret, "keys");
    gone(&mut fake, Kind::StorageClass, CLASS);
    gone(&mut fake, Kind::CSIDriver, DRIVER);
    gone(&mut fake, Kind::SnapshotMetadataService, DRIVER);
    question.claims.push((NAMESPACE.into(), "none".into()));
    let all = found(&fake, &question, &[]);
    let levels: Vec<Level> = all.iter().map(|at| at.level).collect();
    use Level::{Error, Note, Warning};
    assert_eq!(levels, [Error, Error, Error, Error, Warning, Note], "{all:#?}");
    // Without a claim the namespace and its Repository are looked at.
    question.claims.clear();
    let all = found(&fake, &question, &[]);
    assert_eq!(all.len(), 1, "{all:#?}");
    assert!(all[0].object.contains("secret/keys"), "{all:#?}");
}
