//! A claim whose operation runs, and whose VolumeRestore is gone.

use super::work;
use crate::controller::testing::{Server, clock, task};
use crate::engine::{self, CANCEL, FOR, Key, Kind, Limits, POPULATE, Repository, Request, SEAL};
use serde_json::{Value, json};
use std::time::Duration;

const NOW: &str = "2026-11-25T12:00:00Z";

fn request() -> Request {
    Request::Restore(Box::new(engine::Restore {
        repository: Repository { namespace: "shop".into(), ..Repository::default() },
        volume: "c1/shop/db".into(),
        asked: "db@latest".into(),
        backup: "b1".into(),
        size_bytes: 1 << 30,
        namespace: "shop".into(),
        claim: "db".into(),
        storage_class: "fast".into(),
        capacity: "1Gi".into(),
        access_modes: vec!["ReadWriteOnce".into()],
        filesystem: None,
        in_place: None,
        differential: false,
        kept: None,
        populate: Some(engine::Populate {
            uid: "persistentvolumeclaim-db".into(),
            selected_node: None,
            attributes_class: None,
        }),
        limits: Limits::default(),
    }))
}

fn put_claim(server: &Server, more: &Value) {
    let mut metadata = json!({ "name": "db", "namespace": "shop", "finalizers": [POPULATE] });
    for (name, value) in more.as_object().into_iter().flatten() {
        metadata[name] = value.clone();
    }
    server.put(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "dataSourceRef": { "apiGroup": "mover.dev", "kind": "VolumeRestore", "name": "gone" },
        },
    }));
}

#[tokio::test]
async fn what_runs_is_ended_though_its_restore_is_gone() {
    clock::set(NOW);
    let server = Server::default();
    server.at(NOW);
    put_claim(&server, &json!({ "deletionTimestamp": NOW }));
    let context = server.context(clock::now).await;
    // The record of the process before this one.
    let uid = "persistentvolumeclaim-db";
    let key = Key::new(Kind::ConfigMap, "shop", &format!("mover-restore-{uid}-1"));
    let request = request();
    let mut record = engine::anchor(&key.name, "shop", "to", &request);
    record["metadata"]["labels"][FOR] = uid.into();
    let seal = context.seal.of(&key, uid, &request.text());
    record["metadata"]["annotations"] = json!({ SEAL: seal });
    server.put(record);
    server.tell(&context);
    let task = task(&context, &Key::new(Kind::PersistentVolumeClaim, "shop", "db"));
    let is_cancelled = || {
        let record = server.get(Kind::ConfigMap, &key.name).expect("it is there");
        record["metadata"]["annotations"][CANCEL] == "deleted"
    };
    let cancelled = async {
        while !is_cancelled() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = cancelled => {}
        done = work(&context, &task) => {
            let record = server.get(Kind::ConfigMap, &key.name);
            assert!(is_cancelled(), "nothing was cancelled: {done:?}, {record:?}");
        }
    }
}

#[tokio::test]
async fn what_does_not_run_waits_for_its_restore() {
    clock::set(NOW);
    let server = Server::default();
    server.at(NOW);
    put_claim(&server, &json!({}));
    let context = server.context(clock::now).await;
    let task = task(&context, &Key::new(Kind::PersistentVolumeClaim, "shop", "db"));
    work(&context, &task).await.unwrap_or_else(|why| panic!("{why}"));
    let events = server.names(Kind::Event);
    let event = events.first().and_then(|name| server.get(Kind::Event, name));
    assert_eq!(event.expect("it is told")["reason"], "PopulateWaits");
}
