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

mod of_drills {
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
}
