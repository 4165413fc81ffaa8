//! Drills of a schedule.

use super::*;
use crate::controller::drills;
use crate::engine::DRILL;

const DRILL_NAME: &str = "mover-drill-nightly-202605010930";

async fn begun(drill: Value) -> (Server, Context, Memory) {
    let mut whole = json!({ "cron": "30 9 * * *" });
    for (name, value) in drill.as_object().cloned().unwrap_or_default() {
        whole[name] = value;
    }
    let server = server(json!({ "drill": whole }));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    look(&server, &context, &mut memory, "2026-05-01T09:00:00Z").await;
    end(&server, 0);
    look(&server, &context, &mut memory, "2026-05-01T09:30:00Z").await;
    assert_eq!(server.names(Kind::VolumeRestore), [DRILL_NAME]);
    (server, context, memory)
}

/// The restore ends, and leaves a claim.
fn restored(server: &Server, exit_code: u8) {
    let restore = server.get(Kind::VolumeRestore, DRILL_NAME).expect("it");
    let uid = restore["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let record = record("restore", &uid, exit_code, "the bucket is gone");
    let name = record["metadata"]["name"].as_str().expect("it").to_owned();
    server.put(record);
    if exit_code == 0 {
        server.put(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": DRILL_NAME,
                "namespace": "shop",
                "labels": {
                    "app": "db",
                    OWNER_LABEL: format!("configmap-{name}"),
                    "mover.dev/role": "target",
                },
            },
            "spec": { "volumeName": "pv-drill", "volumeMode": "Filesystem" },
        }));
        server.put(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": { "name": "pv-drill" },
            "spec": {
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": { "uid": format!("persistentvolumeclaim-{DRILL_NAME}") },
            },
        }));
    }
}

/// A part of a group's run, which the API made after each claim's own.
#[tokio::test]
async fn a_drill_is_of_the_later_of_a_claims_run_and_its_part_of_a_groups() {
    let server = server(json!({ "drill": { "cron": "30 10 * * *" } }));
    let context = server.context(clock::now).await;
    let mut memory = Memory::default();
    look(&server, &context, &mut memory, "2026-05-01T09:00:00Z").await;
    end(&server, 0);
    let mut object = server.get(Kind::BackupSchedule, NAME).expect("it");
    object["spec"]["template"]["spec"]["source"]["group"] = true.into();
    server.put(object);
    look(&server, &context, &mut memory, "2026-05-01T10:00:00Z").await;
    let whole = server.get(Kind::VolumeBackup, "nightly-202605011000").expect("the group's");
    for claim in ["data-0", "data-1"] {
        server.put(json!({
            "apiVersion": "mover.dev/v1alpha1",
            "kind": "VolumeBackup",
            "metadata": {
                "name": format!("part-{claim}"),
                "namespace": "shop",
                "labels": { "mover.dev/part-of": whole["metadata"]["uid"] },
            },
            "spec": { "source": { "pvc": claim }, "repositoryRef": { "name": "main" } },
        }));
    }
    end(&server, 0);
    look(&server, &context, &mut memory, "2026-05-01T10:30:00Z").await;
    let name = "mover-drill-nightly-202605011030";
    let made = server.get(Kind::VolumeRestore, name).expect("a drill");
    let backup = made["spec"]["source"]["backupRef"]["name"].as_str().expect("a backup");
    assert!(backup.starts_with("part-data-"), "{backup}");
}

async fn step(server: &Server, context: &Context) -> Option<Pause> {
    server.tell(context);
    let key = Key::new(Kind::VolumeRestore, "shop", DRILL_NAME);
    let object = context.objects.get(&key)?;
    if !drills::is_drill(&object) {
        return None;
    }
    let task = super::task(context, &key);
    let step = drills::work(context, &task);
    // One that waits for its Job goes on to wait.
    let done = tokio::time::timeout(Duration::from_millis(400), step).await.ok()?;
    match done {
        Ok(pause) => Some(pause),
        // As if it was killed.
        Err(_) if server.cuts() => None,
        Err(why) => panic!("{why}"),
    }
}

async fn steps(server: &Server, context: &Context) {
    for _ in 0..8 {
        if step(server, context).await.is_none() {
            return;
        }
    }
}

fn job_ends(server: &Server, kind: &str, exit_code: i64, said: &str) {
    let mut job = server.get(Kind::Job, DRILL_NAME).expect("a Job");
    job["status"] = json!({ "conditions": [{ "type": kind, "status": "True" }] });
    server.put(job);
    let ended = json!({ "terminated": { "exitCode": exit_code, "message": said } });
    server.put(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "p", "namespace": "shop", "labels": { "job-name": DRILL_NAME } },
        "status": { "containerStatuses": [{ "state": ended }] },
    }));
}

fn left(server: &Server) -> Vec<String> {
    let claims = server.names(Kind::PersistentVolumeClaim);
    let drills = claims.into_iter().filter(|name| name.contains("drill"));
    drills.chain(server.names(Kind::Job)).collect()
}

#[tokio::test]
async fn a_drill_restores_runs_its_command_and_leaves_its_proof() {
    let (server, context, mut memory) =
        begun(json!({ "image": "db:1", "command": ["check"] })).await;
    let made = server.get(Kind::VolumeRestore, DRILL_NAME).expect("it");
    assert_eq!(made["metadata"]["finalizers"], json!([DRILL]));
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "backupschedule-nightly");
    assert_eq!(made["spec"]["target"]["pvc"], DRILL_NAME);
    restored(&server, 0);
    steps(&server, &context).await;
    let job = server.get(Kind::Job, DRILL_NAME).expect("a Job");
    assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["image"], "db:1");
    let claim = server.get(Kind::PersistentVolumeClaim, DRILL_NAME).expect("it");
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);
    // The schedule does not back its claim up.
    look(&server, &context, &mut memory, "2026-05-01T10:00:00Z").await;
    assert_eq!(server.names(Kind::VolumeBackup).len(), 4);
    assert_eq!(status(&server).drill.expect("it").result, "Running");
    job_ends(&server, "Complete", 0, "12 tables are whole");
    steps(&server, &context).await;
    assert_eq!(left(&server), [""; 0]);
    let volume = server.get(Kind::PersistentVolume, "pv-drill").expect("it");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    look(&server, &context, &mut memory, "2026-05-01T10:10:00Z").await;
    let drill = status(&server).drill.expect("it");
    assert_eq!(drill.result, "Passed");
    assert!(drill.message.contains("12 tables are whole"), "{}", drill.message);
    assert_eq!(drill.next_time.as_deref(), Some("2026-05-02T09:30:00Z"));
    assert_eq!(condition(&server, "Drilled"), ("True".into(), "DrillPassed".into()));
    assert_eq!(server.names(Kind::Event).len(), 3, "two of the record, one of the schedule");
}

#[tokio::test]
async fn a_drill_that_fails_is_told_and_leaves_nothing() {
    let (server, context, mut memory) =
        begun(json!({ "image": "db:1", "command": ["check"] })).await;
    restored(&server, 0);
    steps(&server, &context).await;
    job_ends(&server, "Failed", 3, "a table is torn");
    // Killed before each of the writes that follow, and gone on with by another one.
    for cut in [0, 1, 2, 3] {
        server.cut_after(Some(cut));
        steps(&server, &context).await;
        server.cut_after(None);
    }
    let other = server.context(clock::now).await;
    steps(&server, &other).await;
    assert_eq!(left(&server), [""; 0]);
    look(&server, &other, &mut memory, "2026-05-01T09:40:00Z").await;
    assert_eq!(condition(&server, "Drilled"), ("False".into(), "DrillFailed".into()));
    let drill = status(&server).drill.expect("it");
    assert!(drill.message.contains("3: a table is torn"), "{}", drill.message);
}

/// Records go by when the API made them, whatever the controller's clock said at their end.
#[tokio::test]
async fn a_record_of_a_clock_that_was_ahead_goes_like_any_other() {
    let server = server(json!({ "drill": { "cron": "30 9 * * *" } }));
    let context = server.context(clock::now).await;
    let due = |day: u32| match day {
        1 => "2036-05-01T09:30:00Z".to_owned(),
        day => format!("2026-05-{day:02}T09:30:00Z"),
    };
    let name = |day: u32| {
        let minute = due(day)[..16].replace(['-', 'T', ':'], "");
        format!("mover-drill-nightly-{minute}")
    };
    for day in 1..=4 {
        let ended = json!({ "passed": day == 1, "message": "said", "time": due(day) });
        server.put(json!({
            "apiVersion": "mover.dev/v1alpha1",
            "kind": "VolumeRestore",
            "metadata": {
                "name": name(day),
                "namespace": "shop",
                "labels": { SCHEDULE: "backupschedule-nightly" },
                "annotations": {
                    SCHEDULED: due(day), "mover.dev/drill-result": ended.to_string(),
                },
                "creationTimestamp": format!("2026-05-{day:02}T09:30:00Z"),
            },
            "spec": { "source": { "backupRef": { "name": format!("of-{day}") } } },
        }));
    }
    look(&server, &context, &mut Memory::default(), "2026-05-04T10:00:00Z").await;
    assert_eq!(server.names(Kind::VolumeRestore), [name(2), name(3), name(4)]);
    assert_eq!(condition(&server, "Drilled"), ("False".into(), "DrillFailed".into()));
    assert_eq!(status(&server).drill.expect("it").backup.as_deref(), Some("of-4"));
}

#[tokio::test]
async fn a_restore_that_fails_is_a_drill_that_failed() {
    let (server, context, mut memory) = begun(json!({})).await;
    restored(&server, 3);
    steps(&server, &context).await;
    assert_eq!(server.names(Kind::Job), [""; 0]);
    look(&server, &context, &mut memory, "2026-05-01T09:40:00Z").await;
    assert_eq!(status(&server).drill.expect("it").message, "the bucket is gone");
    assert_eq!(condition(&server, "Drilled").0, "False");
}

#[tokio::test]
async fn a_drill_that_is_deleted_while_it_runs_leaves_nothing() {
    let (server, context, _) = begun(json!({ "image": "db:1", "command": ["check"] })).await;
    restored(&server, 0);
    steps(&server, &context).await;
    assert_eq!(left(&server).len(), 2);
    let mut record = server.get(Kind::VolumeRestore, DRILL_NAME).expect("it");
    record["metadata"]["deletionTimestamp"] = "2026-05-01T09:31:00Z".into();
    server.put(record);
    // Its schedule is gone too.
    server.remove(Kind::BackupSchedule, NAME);
    steps(&server, &context).await;
    assert_eq!(left(&server), [""; 0]);
    assert_eq!(server.names(Kind::VolumeRestore), [""; 0]);
}

#[tokio::test]
async fn a_restore_that_claims_to_be_a_drill_removes_no_claim_and_makes_no_pod() {
    let (server, context, _) = begun(json!({ "image": "db:1", "command": ["check"] })).await;
    // Somebody has a claim of that name, and no restore made it.
    restored(&server, 0);
    put_claim(&server, DRILL_NAME, json!({ "app": "db" }));
    steps(&server, &context).await;
    assert_eq!(server.names(Kind::Job), [""; 0]);
    assert!(server.get(Kind::PersistentVolumeClaim, DRILL_NAME).is_some());
    // A record without its schedule gets no image from anybody.
    let (server, context, _) = begun(json!({ "image": "db:1", "command": ["check"] })).await;
    restored(&server, 0);
    server.remove(Kind::BackupSchedule, NAME);
    steps(&server, &context).await;
    assert_eq!(server.names(Kind::Job), [""; 0]);
    assert_eq!(left(&server), [""; 0], "its own claim is removed");
}
