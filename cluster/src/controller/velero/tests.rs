//! What Velero is told, and what becomes of its objects: by records that have ended, as the engine
//! leaves them.

use super::model::SnapshotId;
use crate::controller::Context;
use crate::controller::testing::{Server, clock, task};
use crate::engine::{
    self, Backup, ClaimRef, FOR, GIVEN, Key, Kind, Limits, OPERATION, Repository, Request, SEAL,
    STATE,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NOW: &str = "2026-11-25T12:00:00Z";
const UPLOAD: &str = "nightly-x";
const ORIGIN: &str = "s3://bucket/velero/backups/nightly/ at http://s3";

fn server() -> Server {
    clock::set(NOW);
    let server = Server::default();
    server.at(NOW);
    for name in ["velero", "shop"] {
        server
            .put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
    }
    server
}

fn put_upload(server: &Server, more: &Value, status: &Value) {
    let mut spec = json!({
        "snapshotType": "CSI",
        "csiSnapshot": { "volumeSnapshot": "velero-db-x", "storageClass": "fast", "snapshotClass": "snaps" },
        "sourcePVC": "db",
        "sourceNamespace": "shop",
        "datamover": "mover",
        "backupStorageLocation": "default",
        "operationTimeout": "1s",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    server.put(json!({
        "apiVersion": "velero.io/v2alpha1",
        "kind": "DataUpload",
        "metadata": {
            "name": UPLOAD,
            "namespace": "velero",
            "labels": { "velero.io/backup-name": "nightly" },
            "finalizers": [OPERATION],
        },
        "spec": spec,
        "status": status,
    }));
}

fn put_snapshot(server: &Server) {
    server.put(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": "velero-db-x", "namespace": "shop",
            "labels": { "velero.io/backup-name": "nightly" },
        },
        "spec": { "source": { "persistentVolumeClaimName": "db" } },
        "status": { "boundVolumeSnapshotContentName": "content", "readyToUse": true },
    }));
    server.put(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": { "name": "content" },
        "spec": {
            "deletionPolicy": "Retain",
            "volumeSnapshotRef": {
                "namespace": "shop", "name": "velero-db-x", "uid": "volumesnapshot-velero-db-x",
            },
        },
    }));
}

fn request() -> Request {
    Request::Backup(Box::new(Backup {
        source: ClaimRef { namespace: "shop".into(), name: "db".into(), uid: "claim-uid".into() },
        driver: "csi".into(),
        volume_handle: "v".into(),
        repository: Repository { name: "default".into(), ..Repository::default() },
        volume: "c1/shop/db".into(),
        snapshot_class: "snaps".into(),
        storage_class: "fast".into(),
        read_only: false,
        filesystem: true,
        capacity: "1Gi".into(),
        labels: BTreeMap::new(),
        changes: None,
        given: Some(engine::Given {
            name: "velero-db-x".into(),
            uid: "uid".into(),
            origin: Some(ORIGIN.into()),
        }),
        hook: None,
        keep_base: true,
        retain: None,
        objects: None,
        arguments: Vec::new(),
        limits: Limits::default(),
    }))
}

/// The record of the upload's operation, which has ended so. Its uid is the backup's id.
fn put_record(server: &Server, context: &Context, outcome: &Value, is_sealed: bool) {
    let uid = format!("dataupload-{UPLOAD}");
    let key = Key::new(Kind::ConfigMap, "velero", &format!("mover-backup-{uid}-1"));
    let text = request().text();
    let seal = if is_sealed { context.seal.of(&key, &uid, &text) } else { "none".into() };
    server.put(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": key.name, "namespace": "velero", "uid": "backup-id",
            "labels": { FOR: uid, STATE: "ended" },
            "annotations": { SEAL: seal },
        },
        "data": { "request": text, "outcome": outcome.to_string() },
    }));
}

fn good() -> Value {
    json!({
        "exitCode": 0,
        "message": "backup of pvc/db is complete",
        "summary": {
            "backup_id": "backup-id", "kind": "delta",
            "size_bytes": 1 << 30, "read_bytes": 2 << 20, "stored_bytes": 1 << 20,
        },
    })
}

async fn look(server: &Server, context: &Context, kind: Kind, name: &str) {
    server.tell(context);
    let task = task(context, &Key::new(kind, "velero", name));
    let done = match kind {
        Kind::DataUpload => super::upload(context, &task).await,
        _ => super::download(context, &task).await,
    };
    done.unwrap_or_else(|why| panic!("{why}"));
}

fn upload(server: &Server) -> Value {
    server.get(Kind::DataUpload, UPLOAD).expect("it is there")
}

#[tokio::test]
async fn a_good_end_names_the_backup_and_keeps_our_mark() {
    let server = server();
    put_upload(&server, &json!({}), &json!({ "phase": "InProgress", "activities": ["theirs"] }));
    let context = server.context(clock::now).await;
    put_record(&server, &context, &good(), true);
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    let object = upload(&server);
    let status = &object["status"];
    assert_eq!(status["phase"], "Completed");
    assert_eq!(status["snapshotID"], "mover1:backup-id:c1/shop/db");
    assert!(SnapshotId::parse(status["snapshotID"].as_str().expect("a text")).is_some());
    assert_eq!(status["progress"], json!({ "totalBytes": 1 << 30, "bytesDone": 1 << 30 }));
    assert_eq!(status["incrementalBytes"], 2 << 20);
    assert_eq!(status["message"], "delta: 2.0 MiB read, 1.0 MiB stored");
    assert_eq!(status["completionTimestamp"], NOW);
    assert_eq!(status["activities"], json!(["theirs"]), "members of Velero's stay");
    assert_eq!(object["metadata"]["finalizers"], json!([OPERATION]));
    // Nothing is written a second time.
    let before = server.written().len();
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    assert_eq!(server.written().len(), before, "{:?}", server.written());
}

#[tokio::test]
async fn a_record_without_our_seal_is_no_backup() {
    let server = server();
    put_upload(&server, &json!({}), &json!({ "phase": "InProgress" }));
    let context = server.context(clock::now).await;
    put_record(&server, &context, &good(), false);
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    let status = &upload(&server)["status"];
    assert_eq!(status["phase"], "Failed");
    assert!(status["snapshotID"].is_null(), "{status}");
}

#[tokio::test]
async fn an_end_that_velero_has_read_stays() {
    for phase in ["Completed", "Failed", "Canceled"] {
        let server = server();
        put_snapshot(&server);
        put_upload(&server, &json!({}), &json!({ "phase": phase, "snapshotID": "mover1:a:c/n/p" }));
        let context = server.context(clock::now).await;
        let before = server.written().len();
        look(&server, &context, Kind::DataUpload, UPLOAD).await;
        assert_eq!(server.written().len(), before, "{phase}: {:?}", server.written());
    }
}

#[tokio::test]
async fn a_failure_takes_the_snapshot_along_and_our_mark_off() {
    let server = server();
    put_snapshot(&server);
    put_upload(&server, &json!({}), &json!({ "phase": "Accepted" }));
    let context = server.context(clock::now).await;
    let failed = json!({ "exitCode": 2, "message": "there is no pvc/db", "hint": "make one" });
    put_record(&server, &context, &failed, true);
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    let object = upload(&server);
    assert_eq!(object["status"]["phase"], "Failed");
    assert_eq!(object["status"]["message"], "there is no pvc/db; make one");
    assert_eq!(object["metadata"]["finalizers"], json!([]));
    assert!(server.get(Kind::VolumeSnapshot, "velero-db-x").is_none());
    let content = server.get(Kind::VolumeSnapshotContent, "content").expect("it is there");
    assert_eq!(content["spec"]["deletionPolicy"], "Delete", "that of the storage goes too");
}

/// A bare id may be the beginning of another one.
#[tokio::test]
async fn what_failed_is_forgotten_by_its_full_name() {
    let server = server();
    put_upload(&server, &json!({}), &json!({ "phase": "Accepted" }));
    put_repository(&server, "http://s3");
    let context = server.context(clock::now).await;
    put_record(&server, &context, &json!({ "exitCode": 1, "message": "no" }), true);
    let asked = server.asked(look(&server, &context, Kind::DataUpload, UPLOAD)).await;
    assert_eq!(asked[..2], ["forget", "c1/shop/db@id:backup-id"], "{asked:?}");
}

/// One that is not Velero's may be anybody's.
#[tokio::test]
async fn a_snapshot_that_nobody_gave_stays() {
    let server = server();
    put_snapshot(&server);
    put_upload(&server, &json!({}), &json!({}));
    let context = server.context(clock::now).await;
    let key = Key::new(Kind::VolumeSnapshot, "shop", "velero-db-x");
    for labels in [json!({ "velero.io/backup-name": null }), json!({ engine::OWNER: "another" })] {
        let notes = match labels[engine::OWNER].is_string() {
            true => json!({ GIVEN: "volumesnapshot-velero-db-x" }),
            false => json!({}),
        };
        let patch = json!({ "metadata": { "labels": labels, "annotations": notes } });
        let uid = "volumesnapshot-velero-db-x";
        context.api.patch(&key, (uid, None), &patch).await.expect("it is taken");
        put_record(&server, &context, &json!({ "exitCode": 1, "message": "no" }), true);
        look(&server, &context, Kind::DataUpload, UPLOAD).await;
        assert!(server.get(Kind::VolumeSnapshot, "velero-db-x").is_some(), "{labels}");
    }
}

#[tokio::test]
async fn what_is_cancelled_before_it_began_is_canceled() {
    let server = server();
    put_snapshot(&server);
    put_upload(&server, &json!({ "cancel": true, "operationTimeout": "1h" }), &json!({}));
    let context = server.context(clock::now).await;
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    server.tell(&context);
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    let object = upload(&server);
    assert_eq!(object["status"]["phase"], "Canceled", "{object:#}");
    assert_eq!(object["metadata"]["finalizers"], json!([]));
    assert!(server.get(Kind::VolumeSnapshot, "velero-db-x").is_none());
}

/// Its record was changed by somebody while it ran, or the key of the seals is another one by now.
#[tokio::test]
async fn what_is_cancelled_ends_whatever_became_of_its_record() {
    let server = server();
    put_upload(&server, &json!({ "cancel": true }), &json!({ "phase": "InProgress" }));
    let context = server.context(clock::now).await;
    put_record(&server, &context, &json!({ "exitCode": 1, "message": "no" }), false);
    let uid = format!("dataupload-{UPLOAD}");
    let key = Key::new(Kind::ConfigMap, "velero", &format!("mover-backup-{uid}-1"));
    let running =
        json!({ "metadata": { "labels": { STATE: "running" } }, "data": { "outcome": null } });
    context.api.patch(&key, ("backup-id", None), &running).await.expect("it runs");
    for _ in 0..2 {
        look(&server, &context, Kind::DataUpload, UPLOAD).await;
        server.tell(&context);
    }
    let object = upload(&server);
    assert_eq!(object["status"]["phase"], "Canceled", "{object:#}");
    assert_eq!(object["metadata"]["finalizers"], json!([]));
}

/// There is no claim, no Repository and no snapshot, and none comes.
#[tokio::test]
async fn what_never_comes_is_a_failure_after_veleros_time() {
    let server = server();
    put_upload(&server, &json!({}), &json!({}));
    let context = server.context(clock::now).await;
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    let status = &upload(&server)["status"];
    assert_eq!(status["phase"], "Failed", "{status:#}");
    assert!(status["message"].as_str().is_some_and(|text| text.len() > 10), "{status:#}");
}

#[tokio::test]
async fn in_a_namespace_that_goes_nothing_is_forgotten_and_nothing_is_held() {
    let server = server();
    put_upload(
        &server,
        &json!({}),
        &json!({ "phase": "Completed", "snapshotID": "mover1:b:c/n/p" }),
    );
    let context = server.context(clock::now).await;
    put_record(&server, &context, &good(), true);
    server.remove(Kind::Namespace, "velero");
    let key = Key::new(Kind::DataUpload, "velero", UPLOAD);
    let uid = format!("dataupload-{UPLOAD}");
    context.api.delete(&key, &uid).await.expect("it is marked");
    look(&server, &context, Kind::DataUpload, UPLOAD).await;
    assert!(server.get(Kind::DataUpload, UPLOAD).is_none(), "our mark is off");
    let events = server.names(Kind::Event);
    let told = events.iter().filter_map(|name| server.get(Kind::Event, name));
    assert!(told.into_iter().any(|event| event["reason"] == "NotForgotten"), "{events:?}");
    assert_eq!(server.names(Kind::Job), Vec::<String>::new());
}

#[tokio::test]
async fn a_download_of_another_mover_fails_at_once() {
    for id in ["", "kopia-snapshot", "mover1:x"] {
        let server = server();
        server.put(json!({
            "apiVersion": "velero.io/v2alpha1",
            "kind": "DataDownload",
            "metadata": { "name": "d", "namespace": "velero", "finalizers": [OPERATION] },
            "spec": {
                "targetVolume": { "pvc": "db", "pv": "", "namespace": "shop" },
                "backupStorageLocation": "default",
                "datamover": "mover",
                "snapshotID": id,
                "operationTimeout": "1h",
            },
        }));
        let context = server.context(clock::now).await;
        look(&server, &context, Kind::DataDownload, "d").await;
        look(&server, &context, Kind::DataDownload, "d").await;
        let object = server.get(Kind::DataDownload, "d").expect("it is there");
        assert_eq!(object["status"]["phase"], "Failed", "{object:#}");
        let message = object["status"]["message"].as_str().expect("a text");
        assert!(message.contains("none of mover's"), "{message}");
        assert_eq!(object["metadata"]["finalizers"], json!([]));
    }
}

fn put_location(server: &Server, prefix: &str) {
    server.put(json!({
        "apiVersion": "velero.io/v1",
        "kind": "BackupStorageLocation",
        "metadata": { "name": "default", "namespace": "velero" },
        "spec": {
            "provider": "aws",
            "objectStorage": { "bucket": "bucket", "prefix": prefix },
            "config": { "region": "us-east-1", "s3ForcePathStyle": "true", "s3Url": "http://s3" },
        },
    }));
}

fn put_repository(server: &Server, endpoint: &str) {
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "Repository",
        "metadata": { "name": "default", "namespace": "velero" },
        "spec": {
            "url": "s3://bucket/velero-mover",
            "keySecretRef": { "name": "key" },
            "env": { "AWS_ENDPOINT_URL": endpoint },
            "jobTemplate": {},
        },
    }));
}

/// An empty folder of another place is no proof that Velero has forgotten its backup.
#[tokio::test]
async fn another_place_than_then_is_not_asked() {
    for (prefix, endpoint, why) in [
        (None, "http://s3", "there is no"),
        (Some("elsewhere"), "http://s3", "is another one now"),
        (Some("velero"), "http://other", "is in another store"),
    ] {
        let server = server();
        put_upload(
            &server,
            &json!({}),
            &json!({ "phase": "Completed", "snapshotID": "mover1:b:c/n/p" }),
        );
        prefix.into_iter().for_each(|prefix| put_location(&server, prefix));
        put_repository(&server, endpoint);
        let context = server.context(clock::now).await;
        put_record(&server, &context, &good(), true);
        let key = Key::new(Kind::DataUpload, "velero", UPLOAD);
        let uid = format!("dataupload-{UPLOAD}");
        context.api.delete(&key, &uid).await.expect("it is marked");
        look(&server, &context, Kind::DataUpload, UPLOAD).await;
        assert!(server.get(Kind::DataUpload, UPLOAD).is_none(), "our mark is off");
        let events = server.names(Kind::Event);
        let told: Vec<Value> =
            events.iter().filter_map(|name| server.get(Kind::Event, name)).collect();
        let is_said = |event: &Value| {
            event["reason"] == "NotForgotten"
                && event["message"].as_str().is_some_and(|text| text.contains(why))
        };
        assert!(told.iter().any(is_said), "{why}: {told:#?}");
        assert_eq!(server.names(Kind::Job), Vec::<String>::new(), "{why}");
    }
}

/// Of two controllers one is late, and knows an older state.
#[tokio::test]
async fn an_end_is_not_overwritten_by_who_does_not_know_it() {
    let server = server();
    put_upload(&server, &json!({}), &json!({ "phase": "InProgress" }));
    let context = server.context(clock::now).await;
    let key = Key::new(Kind::DataUpload, "velero", UPLOAD);
    let uid = format!("dataupload-{UPLOAD}");
    let task = task(&context, &key);
    let end = json!({ "status": { "phase": "Completed", "snapshotID": "mover1:b:c/n/p" } });
    context.api.patch(&key, (&uid, None), &end).await.expect("the other one writes");
    let late = json!({ "phase": "Canceling", "message": "late" });
    crate::controller::status::write(&context, &task, &late).await.expect("nothing to write");
    let status = upload(&server)["status"].clone();
    assert_eq!(status["phase"], "Completed", "{status}");
    assert!(status["message"].is_null(), "{status}");
    // And what is known now asks for nothing more.
    assert!(task.is_cancelled());
}
