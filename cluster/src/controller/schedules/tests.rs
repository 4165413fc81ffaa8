mod of_drills;

use super::super::testing::{Server, clock, record, task};
use super::*;
use crate::kinds::BackupTemplate;

const NAME: &str = "nightly";

fn server(spec: Value) -> Server {
    let server = Server::default();
    server.at("2026-05-01T08:30:00Z");
    let mut whole = json!({
        "cron": "0 * * * *",
        "template": { "spec": {
            "source": { "selector": { "matchLabels": { "app": "db" } } },
            "repositoryRef": { "name": "main" },
        } },
    });
    for (name, value) in spec.as_object().cloned().unwrap_or_default() {
        whole[name] = value;
    }
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "BackupSchedule",
        "metadata": { "name": NAME, "namespace": "shop" },
        "spec": whole,
    }));
    for name in ["data-0", "data-1"] {
        put_claim(&server, name, json!({ "app": "db" }));
    }
    server
}

fn put_claim(server: &Server, name: &str, labels: Value) {
    server.put(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "shop", "labels": labels },
        "spec": { "volumeName": format!("pv-{name}") },
    }));
}

async fn look(server: &Server, context: &Context, memory: &mut Memory, now: &str) -> Duration {
    clock::set(now);
    server.at(now);
    server.tell(context);
    let task = task(context, &Key::new(Kind::BackupSchedule, "shop", NAME));
    let (meta, object) = task.read::<Box<BackupSchedule>>().expect("one").expect("one");
    let turn = Box::pin(turn(context, &task, &meta, &object, memory));
    turn.await.unwrap_or_else(|why| panic!("{why}"))
}

/// Each run that is under way ends.
fn end(server: &Server, exit_code: u8) {
    for name in server.names(Kind::VolumeBackup) {
        let backup = server.get(Kind::VolumeBackup, &name).expect("it");
        let uid = backup["metadata"]["uid"].as_str().expect("a uid").to_owned();
        let found = record("backup", &uid, exit_code, "done");
        if server.get(Kind::ConfigMap, found["metadata"]["name"].as_str().expect("it")).is_none() {
            server.put(found);
        }
    }
}

fn status(server: &Server) -> BackupScheduleStatus {
    let object = server.get(Kind::BackupSchedule, NAME).expect("it");
    serde_json::from_value(object["status"].clone()).expect("a status")
}

fn condition(server: &Server, kind: &str) -> (String, String) {
    let status = status(server);
    let found = status.conditions.into_iter().find(|at| at.kind == kind).expect("a condition");
    (found.status, found.reason)
}

#[tokio::test]
async fn runs_are_made_once_and_the_mark_after_them() {
    let server = server(json!({}));
    put_claim(&server, "other", json!({ "app": "web" }));
    put_claim(&server, "ours", json!({ "app": "db", OWNER_LABEL: "x" }));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    look(&server, &context, &mut memory, "2026-05-01T08:59:00Z").await;
    assert_eq!(server.names(Kind::VolumeBackup), [""; 0]);
    look(&server, &context, &mut memory, "2026-05-01T09:00:00Z").await;
    let names = ["nightly-202605010900-data-0", "nightly-202605010900-data-1"];
    assert_eq!(server.names(Kind::VolumeBackup), names);
    let made = server.get(Kind::VolumeBackup, names[0]).expect("it");
    assert_eq!(made["spec"]["source"], json!({ "pvc": "data-0" }));
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "backupschedule-nightly");
    assert_eq!(made["metadata"]["labels"][SCHEDULE], "backupschedule-nightly");
    assert_eq!(made["metadata"]["annotations"][SCHEDULED], "2026-05-01T09:00:00Z");
    let object = server.get(Kind::BackupSchedule, NAME).expect("it");
    let mark = Mark::parse(object["metadata"]["annotations"][MARK].as_str().expect("a mark"));
    assert_eq!(written(mark.expect("a mark").backups.until), "2026-05-01T09:00:00Z");
    // A user deletes one, and another controller begins: it is not made again.
    server.remove(Kind::VolumeBackup, names[0]);
    let other = server.context(clock::now).await;
    look(&server, &context, &mut memory, "2026-05-01T09:00:10Z").await;
    look(&server, &other, &mut Memory::default(), "2026-05-01T09:00:20Z").await;
    assert_eq!(server.names(Kind::VolumeBackup), names[1..]);
    end(&server, 0);
    look(&server, &context, &mut memory, "2026-05-01T09:05:00Z").await;
    let status = status(&server);
    assert_eq!(status.last_time.as_deref(), Some("2026-05-01T09:00:00Z"));
    assert_eq!(status.next_time.as_deref(), Some("2026-05-01T10:00:00Z"));
    assert_eq!((status.claims, status.missed), (Some(2), Some(0)));
    assert_eq!(condition(&server, "Ready"), ("True".into(), "Scheduled".into()));
}

const OWNER_LABEL: &str = crate::engine::OWNER;

#[tokio::test]
async fn a_crash_before_each_write_makes_nothing_twice_and_misses_nothing() {
    for cut in 0..6 {
        let server = server(json!({}));
        let context = server.context(clock::now).await;
        clock::set("2026-05-01T09:00:00Z");
        server.at("2026-05-01T09:00:00Z");
        let key = Key::new(Kind::BackupSchedule, "shop", NAME);
        let one = task(&context, &key);
        let (meta, object) = one.read::<BackupSchedule>().expect("one").expect("one");
        server.cut_after(Some(cut));
        let mut lost = Memory::default();
        let dies = turn(&context, &one, &meta, &object, &mut lost);
        let _ = tokio::time::timeout(Duration::from_millis(300), dies).await;
        server.cut_after(None);
        // Another one takes over, which has seen nothing of it.
        let other = server.context(clock::now).await;
        let mut memory = Memory::default();
        look(&server, &other, &mut memory, "2026-05-01T09:00:30Z").await;
        look(&server, &other, &mut memory, "2026-05-01T09:01:00Z").await;
        let posts = server
            .written()
            .into_iter()
            .filter(|at| at.starts_with("POST") && at.ends_with("/volumebackups"));
        assert_eq!(posts.count(), 2, "cut after {cut} writes");
        assert_eq!(server.names(Kind::VolumeBackup).len(), 2, "cut after {cut} writes");
    }
}

#[tokio::test]
async fn a_run_that_is_refused_is_told_and_tried_again() {
    let server = server(json!({}));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    server.refuse(vec![("POST", "/volumebackups".into(), 403)]);
    look(&server, &context, &mut memory, "2026-05-01T09:00:00Z").await;
    assert_eq!(condition(&server, "Ready"), ("False".into(), "CannotBegin".into()));
    let object = server.get(Kind::BackupSchedule, NAME).expect("it");
    assert!(object["metadata"]["annotations"][MARK].is_null(), "nothing is settled");
    assert_eq!(server.names(Kind::Event).len(), 1);
    server.refuse(Vec::new());
    look(&server, &context, &mut memory, "2026-05-01T09:00:40Z").await;
    assert_eq!(server.names(Kind::VolumeBackup).len(), 2);
    assert_eq!(condition(&server, "Ready").0, "True");
}

/// The API refuses what the labels of a selector say, or the right to list claims.
#[tokio::test]
async fn a_look_that_fails_is_told_and_tried_again() {
    for code in [400, 403] {
        let server = server(json!({}));
        let context = server.context(clock::now).await;
        let mut memory = Memory::default();
        look(&server, &context, &mut memory, "2026-05-01T08:40:00Z").await;
        server.refuse(vec![("GET", "/persistentvolumeclaims".into(), code)]);
        for now in ["2026-05-01T09:00:00Z", "2026-05-01T09:00:30Z"] {
            clock::set(now);
            server.tell(&context);
            let task = task(&context, &Key::new(Kind::BackupSchedule, "shop", NAME));
            let (meta, object) = task.read::<Box<BackupSchedule>>().expect("one").expect("one");
            let turn = Box::pin(told_turn(&context, &task, &meta, &object, &mut memory));
            assert_eq!(turn.await, LOOK);
        }
        assert_eq!(condition(&server, "Ready"), ("False".into(), "CannotBegin".into()));
        let status = status(&server);
        let ready = status.conditions.iter().find(|at| at.kind == "Ready").expect("it");
        assert!(ready.message.contains("told to answer"), "{code}: {}", ready.message);
        assert_eq!(condition(&server, "UpToDate"), ("Unknown".into(), "NotSeen".into()));
        assert_eq!(status.claims, Some(2), "what was known stays");
        assert_eq!(server.names(Kind::Event).len(), 1, "it is told once");
        server.refuse(Vec::new());
        look(&server, &context, &mut memory, "2026-05-01T09:01:00Z").await;
        assert_eq!(server.names(Kind::VolumeBackup).len(), 2);
        assert_eq!(condition(&server, "Ready").0, "True");
    }
}

/// A policy of admission refuses changes of ended runs.
#[tokio::test]
async fn runs_that_cannot_be_removed_are_told_and_hold_up_nothing() {
    let server = server(json!({
        "history": 1,
        "template": { "spec": {
            "source": { "pvc": "data-0" },
            "repositoryRef": { "name": "main" },
            "deletionPolicy": "Forget",
        } },
    }));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    server.refuse(vec![("PATCH", "/volumebackups/nightly-202605010900".into(), 403)]);
    for hour in 9..12 {
        look(&server, &context, &mut memory, &format!("2026-05-01T{hour:02}:00:00Z")).await;
        end(&server, 0);
        look(&server, &context, &mut memory, &format!("2026-05-01T{hour:02}:10:00Z")).await;
    }
    let left = ["nightly-202605010900", "nightly-202605011100"];
    assert_eq!(server.names(Kind::VolumeBackup), left, "one that is held up holds up no other");
    assert_eq!(condition(&server, "Ready"), ("False".into(), "CannotRemove".into()));
    let status = status(&server);
    let ready = status.conditions.iter().find(|at| at.kind == "Ready").expect("it");
    assert!(ready.message.starts_with("nightly-202605010900: "), "{}", ready.message);
    assert_eq!(status.last_time.as_deref(), Some("2026-05-01T11:00:00Z"));
    assert_eq!(condition(&server, "UpToDate").0, "True");
    server.refuse(Vec::new());
    look(&server, &context, &mut memory, "2026-05-01T11:11:00Z").await;
    assert_eq!(server.names(Kind::VolumeBackup), left[1..]);
    assert_eq!(condition(&server, "Ready").0, "True");
}

#[tokio::test]
async fn a_name_that_somebody_else_has_is_told_and_left_alone() {
    let server = server(json!({}));
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "VolumeBackup",
        "metadata": { "name": "nightly-202605010900-data-0", "namespace": "shop" },
        "spec": { "source": { "pvc": "x" }, "repositoryRef": { "name": "main" } },
    }));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    look(&server, &context, &mut memory, "2026-05-01T09:00:00Z").await;
    assert_eq!(server.names(Kind::VolumeBackup).len(), 2, "the other claim has its run");
    let status = status(&server);
    let ready = status.conditions.iter().find(|at| at.kind == "Ready").expect("it");
    assert!(ready.message.contains("exists and is not of"), "{}", ready.message);
    // The next run has another name.
    end(&server, 0);
    look(&server, &context, &mut memory, "2026-05-01T10:00:01Z").await;
    assert_eq!(server.names(Kind::VolumeBackup).len(), 4);
}

#[tokio::test]
async fn ended_runs_go_and_their_backups_stay() {
    let template = BackupTemplate::default();
    assert!(template.labels.is_empty());
    let server = server(json!({
        "history": 1,
        "template": {
            "labels": { "team": "a", "mover.dev/part-of": "x" },
            "spec": {
                "source": { "pvc": "data-0" },
                "repositoryRef": { "name": "main" },
                "deletionPolicy": "Forget",
            },
        },
    }));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    for hour in 9..13 {
        look(&server, &context, &mut memory, &format!("2026-05-01T{hour:02}:00:00Z")).await;
        end(&server, if hour == 10 { 0 } else { 2 });
        look(&server, &context, &mut memory, &format!("2026-05-01T{hour:02}:10:00Z")).await;
    }
    let left = ["nightly-202605011000", "nightly-202605011200"];
    assert_eq!(server.names(Kind::VolumeBackup), left, "the newest, and the newest good one");
    let kept = server.get(Kind::VolumeBackup, left[1]).expect("it");
    assert_eq!(kept["metadata"]["labels"]["team"], "a");
    assert!(kept["metadata"]["labels"]["mover.dev/part-of"].is_null());
    let writes = server.written();
    let retained = writes
        .iter()
        .position(|at| at.starts_with("PATCH") && at.ends_with("nightly-202605010900"));
    let deleted = writes
        .iter()
        .position(|at| at.starts_with("DELETE") && at.ends_with("nightly-202605010900"));
    assert!(retained.is_some() && retained < deleted, "the stored backup stays: {writes:?}");
    assert_eq!(condition(&server, "UpToDate"), ("False".into(), "Behind".into()));
    // One that a restore names stays.
    server.put(json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": "VolumeRestore",
        "metadata": { "name": "mine", "namespace": "shop" },
        "spec": { "source": { "backupRef": { "name": left[0] } } },
    }));
    look(&server, &context, &mut memory, "2026-05-01T13:00:00Z").await;
    end(&server, 0);
    look(&server, &context, &mut memory, "2026-05-01T13:10:00Z").await;
    assert_eq!(server.names(Kind::VolumeBackup), [left[0], "nightly-202605011300"]);
    assert_eq!(condition(&server, "UpToDate").0, "True");
}

#[tokio::test]
async fn a_pattern_that_cannot_be_meant_is_told_with_its_field() {
    for (spec, words) in [
        (json!({ "cron": "0 0 30 2 *" }), "spec.cron: `0 0 30 2 *`: no such date"),
        (json!({ "timeZone": "Mars/Olympus" }), "spec.timeZone: Mars/Olympus"),
        (json!({ "drill": { "cron": "0 0 * * 9" } }), "spec.drill.cron: `0 0 * * 9`"),
    ] {
        let server = server(spec);
        let context = server.context(clock::now).await;
        look(&server, &context, &mut Memory::default(), "2026-05-01T09:00:00Z").await;
        assert_eq!(server.names(Kind::VolumeBackup), [""; 0]);
        let status = status(&server);
        assert!(status.conditions[0].message.contains(words), "{}", status.conditions[0].message);
    }
}
