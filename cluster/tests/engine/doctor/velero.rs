//! Findings about Velero, where mover moves its data.

use super::*;

const VELERO: &str = "velero";

fn at(kind: Kind, name: &str) -> Key {
    Key::new(kind, VELERO, name)
}

/// Velero as `velero install` leaves it, a location with its Repository, and our controller.
fn healthy() -> (Fake, Question) {
    let mut fake = shop(true);
    for (plural, version) in [
        ("datauploads", "v2alpha1"),
        ("datadownloads", "v2alpha1"),
        ("backupstoragelocations", "v1"),
    ] {
        fake.create(&json!({
            "kind": "CustomResourceDefinition", "metadata": { "name": format!("{plural}.velero.io") },
            "spec": { "versions": [
                { "name": "v1alpha1", "served": true }, { "name": version, "served": true },
            ] },
        }));
    }
    let deployment = |namespace: &str, name: &str, arguments: &[&str]| {
        let container = json!({ "name": name, "command": ["/it"], "args": arguments });
        json!({
            "kind": "Deployment",
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": { "app.kubernetes.io/part-of": "mover" },
            },
            "spec": { "template": { "spec": { "containers": [container] } } },
        })
    };
    let mut server = deployment(VELERO, VELERO, &["server", "--features=EnableCSI,Other"]);
    server["metadata"]["labels"] = json!({ "component": "velero" });
    fake.create(&server);
    let arguments = ["controller", "--velero-namespace=velero"];
    fake.create(&deployment("mover-system", "mover-controller", &arguments));
    let meta = |name: &str| json!({ "name": name, "namespace": VELERO });
    fake.create(&json!({ "kind": "Role", "metadata": meta("mover-controller-velero") }));
    fake.create(&json!({
        "kind": "BackupStorageLocation", "metadata": meta("main"),
        "spec": { "provider": "aws", "objectStorage": { "bucket": "b", "prefix": "velero" } },
        "status": { "phase": "Available" },
    }));
    fake.create(&json!({
        "kind": "ConfigMap", "metadata": meta("mover"), "data": { "main": "vault" },
    }));
    fake.create(&json!({
        "kind": "Repository", "metadata": meta("vault"),
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    }));
    fake.create(&json!({
        "kind": "VolumeSnapshotClass", "metadata": { "name": "snaps" }, "driver": DRIVER,
    }));
    fake.create(&json!({
        "kind": "StorageClass", "metadata": { "name": CLASS }, "provisioner": DRIVER,
    }));
    fake.create(&json!({
        "kind": "StorageClass", "metadata": { "name": "local" }, "provisioner": "no-csi",
    }));
    fake.create(&json!({ "kind": "CSIDriver", "metadata": { "name": DRIVER } }));
    let question = Question {
        namespace: NAMESPACE.into(),
        velero: Some(VELERO.into()),
        stale_before: Some("2026-01-01T00:00:00Z".into()),
        ..Question::default()
    };
    (fake, question)
}

/// This is found and nothing else, with a next step.
fn finds(level: Level, object: &str, message: &str, change: impl FnOnce(&mut Fake)) {
    let (mut fake, question) = healthy();
    assert_eq!(found(&fake, &question, &[]), Vec::new(), "a healthy cluster");
    change(&mut fake);
    let all = found(&fake, &question, &[]);
    let [finding] = all.as_slice() else { panic!("{object}, {message}: {all:#?}") };
    assert_eq!(finding.level, level, "{finding:?}");
    assert!(finding.object.contains(object) && finding.message.contains(message), "{finding:?}");
    assert!(finding.hint.as_ref().is_some_and(|hint| !hint.is_empty()), "{finding:?}");
}

fn serves(fake: &mut Fake, arguments: &[&str]) {
    let container = json!({ "name": VELERO, "command": ["/velero"], "args": arguments });
    let pod = json!({ "containers": [container] });
    let patch = json!({ "spec": { "template": { "spec": pod } } });
    fake.change(&at(Kind::Deployment, VELERO), &patch);
}

#[test]
fn velero_s_kinds() {
    let name = "datauploads.velero.io";
    let key = Key::wide(Kind::CustomResourceDefinition, name);
    let object = "crd/datauploads.velero.io";
    finds(Level::Error, object, "it is missing", |fake| {
        fake.objects.remove(&key).expect("it was there");
    });
    finds(Level::Error, object, "does not serve version v2alpha1", |fake| {
        let versions = json!([{ "name": "v1", "served": true }]);
        fake.change(&key, &json!({ "spec": { "versions": versions } }));
    });
}

#[test]
fn its_server() {
    let object = "deployment/velero in namespace velero";
    finds(Level::Error, object, "without --features=EnableCSI", |fake| serves(fake, &["server"]));
    finds(Level::Error, object, "without --features=EnableCSI", |fake| {
        serves(fake, &["server", "--features=", "--log-level=info"]);
    });
    for files in ["--default-volumes-to-fs-backup", "--default-volumes-to-fs-backup=true"] {
        finds(Level::Warning, object, "as files unless", |fake| {
            serves(fake, &["server", "--features", "EnableCSI", files]);
        });
    }
    finds(Level::Warning, object, "there is none", |fake| {
        fake.objects.remove(&at(Kind::Deployment, VELERO)).expect("it was there");
    });
}

#[test]
fn our_controller() {
    let key = Key::new(Kind::Deployment, "mover-system", "mover-controller");
    let runs = |arguments: &'static [&'static str]| {
        let container = json!({ "name": "controller", "args": arguments });
        let pod = json!({ "containers": [container] });
        json!({ "spec": { "template": { "spec": pod } } })
    };
    let object = "deployment/mover-controller in namespace mover-system";
    finds(Level::Error, object, "without --velero-namespace", |fake| {
        fake.change(&key, &runs(&["controller"]));
    });
    finds(Level::Error, object, "in namespace other, not velero", |fake| {
        fake.change(&key, &runs(&["controller", "--velero-namespace=other"]));
    });
    finds(Level::Warning, "deployments of mover", "nobody takes up", |fake| {
        fake.objects.remove(&key).expect("it was there");
    });
    finds(Level::Warning, "role/mover-controller-velero", "no such Role", |fake| {
        fake.objects.remove(&at(Kind::Role, "mover-controller-velero")).expect("it was there");
    });
}

#[test]
fn locations_and_their_repositories() {
    let location = at(Kind::BackupStorageLocation, "main");
    let object = "backupstoragelocation/main";
    finds(Level::Error, object, "folders of others", |fake| {
        let said = "Backup store contains invalid top-level directories: [mover]";
        let status = json!({ "phase": "Unavailable", "message": said });
        fake.change(&location, &json!({ "status": status }));
    });
    finds(Level::Error, object, "it is Unavailable: no such bucket", |fake| {
        let status = json!({ "phase": "Unavailable", "message": "no such bucket" });
        fake.change(&location, &json!({ "status": status }));
    });
    finds(Level::Warning, object, "has not looked at it yet", |fake| {
        fake.change(&location, &json!({ "status": { "phase": null } }));
    });
    finds(Level::Error, "backupstoragelocations", "no place for backups", |fake| {
        fake.objects.remove(&location).expect("it was there");
    });

    let repository = at(Kind::Repository, "vault");
    finds(Level::Error, "repository/vault", "it is not ready", |fake| {
        let condition = json!({ "type": "Ready", "status": "False", "message": "no key" });
        fake.change(&repository, &json!({ "status": { "conditions": [condition] } }));
    });
    finds(Level::Error, "repository/vault", "there is no such Repository", |fake| {
        fake.objects.remove(&repository).expect("it was there");
    });
    finds(Level::Error, "repository/main", "there is no such Repository", |fake| {
        fake.objects.remove(&at(Kind::ConfigMap, "mover")).expect("it was there");
    });
    // One of others than the usual location may be meant for no moved volume.
    finds(Level::Warning, "repository/other", "there is no such Repository", |fake| {
        fake.change(&location, &json!({ "spec": { "default": true } }));
        fake.create(&json!({
            "kind": "BackupStorageLocation", "metadata": { "name": "other", "namespace": VELERO },
            "status": { "phase": "Available" },
        }));
    });
}

#[test]
fn classes_of_snapshots() {
    let another = |fake: &mut Fake, name: &str, labels: &Value, notes: &Value| {
        fake.create(&json!({
            "kind": "VolumeSnapshotClass", "driver": DRIVER,
            "metadata": { "name": name, "labels": labels, "annotations": notes },
        }));
    };
    finds(Level::Error, "volumesnapshotclass/", "none is marked for Velero", |fake| {
        another(fake, "more", &json!({}), &json!({}));
    });
    finds(Level::Warning, "storageclass/", "has no VolumeSnapshotClass", |fake| {
        fake.objects.remove(&Key::wide(Kind::VolumeSnapshotClass, "snaps")).expect("it was there");
    });
    let mark = json!({ "velero.io/csi-volumesnapshot-class": "true" });
    let usual = json!({ "snapshot.storage.kubernetes.io/is-default-class": "true" });
    for (labels, notes) in [(&mark, &json!({})), (&json!({}), &usual)] {
        let (mut fake, question) = healthy();
        another(&mut fake, "more", labels, notes);
        assert_eq!(found(&fake, &question, &[]), Vec::new());
    }
}

#[test]
fn what_nobody_takes_up() {
    let upload = |mover: &str, made: &str, phase: &str| {
        json!({
            "kind": "DataUpload",
            "metadata": { "name": "one", "namespace": VELERO, "creationTimestamp": made },
            "spec": { "datamover": mover }, "status": { "phase": phase },
        })
    };
    let put = |fake: &mut Fake, upload: &Value| {
        fake.create(upload);
        let made = json!({ "creationTimestamp": upload["metadata"]["creationTimestamp"] });
        fake.change(&at(Kind::DataUpload, "one"), &json!({ "metadata": made }));
    };
    let old = "2025-12-31T23:00:00Z";
    finds(Level::Error, "dataupload/one", "nobody has taken it up", |fake| {
        put(fake, &upload("mover", old, ""));
    });
    finds(Level::Warning, "dataupload/one", "its data mover is \"moover\"", |fake| {
        put(fake, &upload("moover", old, "New"));
    });
    for fine in [
        upload("mover", "2026-01-01T00:01:00Z", ""),
        upload("mover", old, "InProgress"),
        upload("", old, ""),
        upload("velero", old, "New"),
    ] {
        let (mut fake, question) = healthy();
        put(&mut fake, &fine);
        assert_eq!(found(&fake, &question, &[]), Vec::new(), "{fine}");
    }
}

#[test]
fn what_goes_elsewhere() {
    let policies = |fake: &mut Fake, text: &str| {
        fake.create(&json!({
            "kind": "ConfigMap", "metadata": { "name": "policies", "namespace": VELERO },
            "data": { "policies.yaml": text },
        }));
    };
    let of = |action: &str| {
        let mut text = "version: v1\nvolumePolicies:\n".to_owned();
        text.push_str("- conditions: {storageClass: [slow]}\n  action: {type: skip}\n");
        text.push_str("- conditions: {capacity: '0,100Gi'}\n  action: ");
        text + action + "\n"
    };
    let plain = of("{type: snapshot}");
    finds(Level::Warning, "configmap/policies", "1 of its volume policies", |fake| {
        policies(fake, &plain);
    });
    for fine in [of("{type: snapshot, parameters: {dataMover: velero}}"), of("{type: fs-backup}")] {
        let (mut fake, question) = healthy();
        policies(&mut fake, &fine);
        assert_eq!(found(&fake, &question, &[]), Vec::new(), "{fine}");
    }
    finds(
        Level::Warning,
        "pod/app-0 in namespace shop",
        "volumes data backed up as files",
        |fake| {
            fake.create(&json!({ "kind": "Pod", "metadata": {
            "name": "app-0", "namespace": NAMESPACE,
            "annotations": { "backup.velero.io/backup-volumes": "data" },
        } }));
        },
    );
}

/// What may not be seen is said, and nothing is taken to be wrong for that.
#[test]
fn rights_that_lack() {
    let (fake, question) = healthy();
    for kind in [Kind::Deployment, Kind::Pod, Kind::StorageClass, Kind::CustomResourceDefinition] {
        let all = found(&fake, &question, &[kind]);
        assert!(!all.is_empty(), "{kind:?}");
        for finding in all {
            assert!(finding.level == Level::Note && finding.hint.is_some(), "{finding:?}");
        }
    }
}
