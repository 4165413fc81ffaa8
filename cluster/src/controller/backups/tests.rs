//! A backup that the repository had before its object: how it is shown, and how it is forgotten.

use super::work;
use crate::controller::testing::{Server, clock, task};
use crate::engine::{FOUND, Key, Kind, OPERATION};
use serde_json::{Value, json};

async fn shown(found: &str) -> Value {
    const NOW: &str = "2026-11-25T12:00:00Z";
    clock::set(NOW);
    let server = Server::default();
    server.at(NOW);
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "VolumeBackup",
        "metadata": { "name": "db", "namespace": "shop", "annotations": { FOUND: found } },
        "spec": {
            "source": { "recorded": { "volume": "c1/shop/db", "backupId": "b1" } },
            "repositoryRef": { "name": "main" },
        },
    }));
    let context = server.context(clock::now).await;
    let task = task(&context, &Key::new(Kind::VolumeBackup, "shop", "db"));
    work(&context, &task).await.unwrap_or_else(|why| panic!("{why}"));
    server.get(Kind::VolumeBackup, "db").expect("it is there")["status"].clone()
}

#[tokio::test]
async fn it_shows_what_the_repository_said_of_it() {
    let found = json!({
        "finished": "2026-11-20T01:02:03Z", "sizeBytes": 1 << 30, "storedBytes": 3 << 20,
        "readBytes": 2 << 20, "kind": "delta", "degraded": ["the tracker was gone"],
    });
    let status = shown(&found.to_string()).await;
    assert_eq!(status["phase"], "Completed");
    assert_eq!(status["changedBlocks"], "delta");
    assert_eq!(status["completionTime"], "2026-11-20T01:02:03Z");
    let figures = json!({ "sizeBytes": 1 << 30, "readBytes": 2 << 20, "storedBytes": 3 << 20 });
    assert_eq!(status["figures"], figures);
    assert_eq!((&status["read"], &status["stored"]), (&json!("2.0 MiB"), &json!("3.0 MiB")));
    assert_eq!(status["warnings"], json!(["the tracker was gone"]));
}

/// A VolumeBackup that is being deleted, and forgets.
fn going() -> Server {
    const NOW: &str = "2026-11-25T12:00:00Z";
    clock::set(NOW);
    let server = Server::default();
    server.at(NOW);
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "VolumeBackup",
        "metadata": {
            "name": "db", "namespace": "shop", "finalizers": [OPERATION], "deletionTimestamp": NOW,
        },
        "spec": {
            "source": { "recorded": { "volume": "c1/shop/db", "backupId": "u-m1" } },
            "repositoryRef": { "name": "main" },
            "deletionPolicy": "Forget",
        },
    }));
    server
}

fn put_repository(server: &Server) {
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "Repository",
        "metadata": { "name": "main", "namespace": "shop" },
        "spec": { "url": "s3://b", "keySecretRef": { "name": "key" }, "jobTemplate": {} },
    }));
}

/// `u-m10` may be a backup of another volume.
#[tokio::test]
async fn it_is_forgotten_by_its_full_name() {
    let server = going();
    server.put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }));
    put_repository(&server);
    let context = server.context(clock::now).await;
    let task = task(&context, &Key::new(Kind::VolumeBackup, "shop", "db"));
    let asked = server.asked(work(&context, &task)).await;
    assert_eq!(asked[..2], ["forget", "c1/shop/db@id:u-m1"], "{asked:?}");
}

/// It would hold its namespace for ever.
#[tokio::test]
async fn what_nobody_can_forget_any_more_goes_with_an_event() {
    for (has_repository, why) in [(false, "there is no Repository"), (true, "goes, and with it")] {
        let server = going();
        server.put(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "shop", "deletionTimestamp": "2026-11-25T12:00:00Z" },
        }));
        if has_repository {
            put_repository(&server);
        }
        let context = server.context(clock::now).await;
        let task = task(&context, &Key::new(Kind::VolumeBackup, "shop", "db"));
        work(&context, &task).await.unwrap_or_else(|why| panic!("{why}"));
        assert!(server.get(Kind::VolumeBackup, "db").is_none(), "our mark is off");
        let events = server.names(Kind::Event);
        let event = events.first().and_then(|name| server.get(Kind::Event, name));
        let event = event.expect("it is told");
        assert_eq!(event["reason"], "NotForgotten");
        assert!(event["message"].as_str().is_some_and(|said| said.contains(why)), "{event:#}");
        assert_eq!(server.names(Kind::Job), Vec::<String>::new());
    }
}

#[tokio::test]
async fn what_nobody_said_is_not_shown() {
    for found in ["", "no object", "{}", "[]"] {
        let status = shown(found).await;
        assert_eq!(status["phase"], "Completed", "{found}");
        assert!(status["changedBlocks"].is_null() && status["stored"].is_null(), "{status}");
    }
}
