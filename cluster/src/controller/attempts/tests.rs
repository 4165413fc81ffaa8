//! When the time of an operation is over, however many processes worked on it.

use super::*;
use crate::controller::task::Task;
use crate::controller::testing::Server;
use chrono::{DateTime, Utc};
use tokio::sync::watch;

const CREATED: &str = "2026-11-24T12:00:00Z";

/// A minute and a half after the record was made.
fn clock() -> DateTime<Utc> {
    "2026-11-24T12:01:30Z".parse().expect("a time")
}

async fn scene() -> (Server, Context, Task) {
    let server = Server::default();
    server.at(CREATED);
    let key = Key::new(Kind::VolumeBackup, "shop", "b");
    let metadata = json!({ "name": "b", "namespace": "shop" });
    server.put(engine::object(&key, metadata, json!({ "spec": {} })));
    let context = server.context(clock).await;
    let uid = "volumebackup-b".to_owned();
    let task = Task::new(key, uid, context.objects.clone(), watch::channel(0).1);
    (server, context, task)
}

fn subject(task: &Task, total: Duration) -> Subject<'_> {
    Subject {
        task,
        word: "backup",
        retries: 0,
        total: Some(total),
        patience: PREFLIGHT,
        patience_retryable: PREFLIGHT,
    }
}

#[tokio::test]
async fn time_that_is_over_before_the_begin_is_no_cancellation() {
    let (_server, context, task) = scene().await;
    let make = async || std::future::pending().await;
    let subject = subject(&task, Duration::ZERO);
    let ended = operate(&context, &subject, make, |_| Vec::new(), &|_| ()).await;
    assert_eq!(ended.expect("an end").why, Some(Why::Deadline));
}

#[tokio::test]
async fn another_process_counts_on_from_the_first_record() {
    let (_server, context, task) = scene().await;
    let whole = Duration::from_secs(5);
    let all = subject(&task, whole).going_on(&context).total;
    assert_eq!(all, Some(whole), "it has not begun");
    let key = Key::new(Kind::ConfigMap, "shop", "mover-backup-volumebackup-b-1");
    let metadata = json!({
        "name": key.name, "namespace": "shop", "labels": { FOR: task.uid, STATE: "running" },
        "creationTimestamp": CREATED,
    });
    context.objects.wrote(engine::object(&key, metadata, json!({ "data": {} })));
    let left = subject(&task, Duration::from_secs(100)).going_on(&context).total;
    let ten = Duration::from_secs(10);
    assert!(left.is_some_and(|left| left >= ten && left < ten * 2), "{left:?}");
    // A clock that is behind takes nothing away, and adds nothing.
    let early: fn() -> DateTime<Utc> = || "2020-01-01T00:00:00Z".parse().expect("a time");
    let context = Context { clock: early, ..context };
    let all = subject(&task, ten).going_on(&context).total;
    assert_eq!(all, Some(ten));
}
