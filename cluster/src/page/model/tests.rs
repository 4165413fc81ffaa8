//! From objects to rows: which belongs to which, and how each one is.

use super::*;
use crate::kinds::{BackupSchedule, BackupScheduleSpec};
use crate::schedule::{MARK, Mark};
use serde_json::{Value, json};

fn now() -> DateTime<Utc> {
    "2026-11-24T14:30:00Z".parse().expect("a time")
}

fn ago(minutes: i64) -> String {
    words::exact(now() - TimeDelta::minutes(minutes))
}

fn object(
    kind: &str,
    name: &str,
    owner: Option<(&str, &str)>,
    spec: Value,
    status: Value,
) -> Value {
    let mut object = json!({
        "apiVersion": "mover.dev/v1alpha1", "kind": kind, "spec": spec, "status": status,
        "metadata": { "namespace": "shop", "name": name, "creationTimestamp": ago(90_000) },
    });
    if let Some((kind, name)) = owner {
        object["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "mover.dev/v1alpha1", "kind": kind, "name": name, "uid": "" }]);
    }
    object
}

fn schedule(name: &str, source: Value, more: Value) -> Value {
    let template = json!({ "spec": { "source": source, "repositoryRef": { "name": "main" } } });
    let mut spec = json!({ "cron": "0 * * * *", "template": template });
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    object("BackupSchedule", name, None, spec, json!({}))
}

fn backup(
    name: &str,
    owner: Option<(&str, &str)>,
    claim: &str,
    phase: &str,
    minutes: i64,
) -> Value {
    let spec = json!({ "source": { "pvc": claim }, "repositoryRef": { "name": "main" } });
    let status = json!({
        "phase": phase, "cutTime": ago(minutes), "completionTime": ago(minutes),
        "message": "it says why", "backupId": name, "volume": format!("prod/shop/{claim}"),
    });
    object("VolumeBackup", name, owner, spec, status)
}

fn known(objects: &[Value]) -> Known {
    let mut known = Known::default();
    objects.iter().for_each(|object| known.set(object));
    known
}

/// Each volume with its words.
fn rows(known: &Known) -> Vec<(String, Vec<&'static str>)> {
    let model = Model::of(known, &View::default(), now());
    let row = |volume: &Volume<'_>| {
        (volume.claim.shown(), volume.lines.iter().map(|line| line.word).collect())
    };
    model.volumes.iter().map(row).collect()
}

fn row(claim: &str, words: &[&'static str]) -> (String, Vec<&'static str>) {
    (claim.to_owned(), words.to_vec())
}

#[test]
fn the_worst_comes_first() {
    let mut all = Vec::new();
    for claim in ["fine", "later", "late", "never", "failing", "rests", "gone", "alone"] {
        let more = json!({ "suspend": claim == "rests" });
        if claim != "alone" {
            all.push(schedule(claim, json!({ "pvc": claim }), more));
        }
        let minutes = match claim {
            "late" => 200,
            "later" => 900,
            "rests" | "gone" => 9_000,
            _ => 20,
        };
        if claim != "never" {
            let owner = Some(("BackupSchedule", claim));
            all.push(backup(&format!("{claim}-1"), owner, claim, "Completed", minutes));
        }
        if claim != "gone" {
            let metadata = json!({ "namespace": "shop", "name": claim });
            all.push(json!({ "kind": "PersistentVolumeClaim", "metadata": metadata }));
        }
    }
    all.push(backup("failing-2", None, "failing", "Failed", 10));
    let expected = [
        row("never", &["No backup"]),
        row("later", &["Late"]),
        row("late", &["Late"]),
        row("failing", &["Failed"]),
        row("alone", &["No schedule"]),
        row("gone", &["Claim is gone"]),
        row("rests", &["Suspended"]),
        row("fine", &["In time"]),
    ];
    assert_eq!(rows(&known(&all)), expected);
}

#[test]
fn a_late_volume_says_that_its_backup_failed_or_is_under_way() {
    let mut all = vec![schedule("s", json!({ "pvc": "db" }), json!({}))];
    all.push(backup("good", None, "db", "Completed", 300));
    all.push(backup("bad", None, "db", "Failed", 100));
    assert_eq!(rows(&known(&all)), [row("db", &["Late", "Failed"])]);
    all.push(backup("runs", None, "db", "Running", 5));
    let known = known(&all);
    let model = Model::of(&known, &View::default(), now());
    assert_eq!(model.volumes[0].lines[0].text, "It was due 4 h 30 min ago; it is under way now.");
    assert_eq!((model.underway.len(), model.schedules[0].late), (1, 1));
    assert_eq!(model.schedules[0].failing, 1);
}

/// Whoever ends a rest is not told of the runs of that time.
#[test]
fn nothing_is_owed_of_the_time_of_a_rest() {
    let drill = json!({ "drill": { "cron": "0 * * * *" } });
    let schedule = schedule("s", json!({ "pvc": "db" }), drill);
    let read: BackupSchedule = serde_json::from_value(schedule.clone()).expect("a schedule");
    let late = |mark: Option<Mark>| {
        let mut schedule = schedule.clone();
        if let Some(mark) = mark {
            schedule["metadata"]["annotations"] = json!({ MARK: mark.text() });
        }
        let known = known(&[schedule, backup("good", None, "db", "Completed", 3_000)]);
        let model = Model::of(&known, &View::default(), now());
        let drill = model.schedules[0].drill_owed;
        (model.schedules[0].late > 0, drill.is_some_and(|owed| owed.is_late))
    };
    let since = |minutes: i64| Mark::since(&read.spec, now() - TimeDelta::minutes(minutes));
    assert_eq!(late(Some(since(3_000))), (true, true));
    assert_eq!(late(Some(since(20))), (false, false), "it went on 20 minutes ago");
    let rested = BackupScheduleSpec { suspend: true, ..read.spec.clone() };
    let before = Mark::since(&rested, now() - TimeDelta::minutes(3_000));
    assert_eq!(late(Some(before)), (false, false), "the controller has not seen it yet");
    assert_eq!(late(None), (true, true), "nobody knows of a rest");
}

#[test]
fn a_cut_by_a_clock_that_is_ahead_hides_nothing() {
    let owner = Some(("BackupSchedule", "hourly"));
    let schedule = schedule("hourly", json!({ "pvc": "db" }), json!({}));
    let ahead = backup("a", owner, "db", "Completed", -600_000);
    assert_eq!(rows(&known(&[schedule, ahead])), [row("db", &["Late"])]);
}

#[test]
fn a_backup_in_another_repository_is_none_of_the_schedule() {
    let mut elsewhere = backup("other", None, "db", "Completed", 10);
    elsewhere["spec"]["repositoryRef"] = json!({ "name": "main", "namespace": "elsewhere" });
    let all = [schedule("s", json!({ "pvc": "db" }), json!({})), elsewhere.clone()];
    assert_eq!(rows(&known(&all)), [row("db", &["Late"])]);
    // Without a namespace it is that of all, unless there is one of its own.
    elsewhere["spec"]["repositoryRef"]["namespace"] = "mover-system".into();
    let all = [schedule("s", json!({ "pvc": "db" }), json!({})), elsewhere.clone()];
    assert_eq!(rows(&known(&all)), [row("db", &["In time"])]);
    let spec = json!({ "url": "s3://b", "keySecretRef": { "name": "k" }, "jobTemplate": {} });
    let own = object("Repository", "main", None, spec, json!({}));
    let all = [schedule("s", json!({ "pvc": "db" }), json!({})), elsewhere, own];
    assert_eq!(rows(&known(&all)), [row("db", &["Late"])]);
}

#[test]
fn what_a_sync_lists_joins_the_claim_and_is_shown_once() {
    let recorded = |name: &str, volume: &str, id: &str| {
        let source = json!({ "recorded": { "volume": volume, "backupId": id } });
        let spec = json!({ "source": source, "repositoryRef": { "name": "main" } });
        let status = json!({ "phase": "Completed", "cutTime": ago(500) });
        object("VolumeBackup", name, None, spec, status)
    };
    let known = known(&[
        backup("b1", None, "db", "Completed", 10),
        recorded("r1", "prod/shop/db", "b1"),
        recorded("r0", "prod/shop/db", "b0"),
        recorded("x", "old/shop/db", "b1"),
    ]);
    let model = Model::of(&known, &View::default(), now());
    let found: Vec<_> = model
        .volumes
        .iter()
        .map(|volume| {
            let names: Vec<_> = volume.backups.iter().map(|(place, _)| place.1.as_str()).collect();
            (volume.claim.shown(), names)
        })
        .collect();
    assert_eq!(found, [("db".to_owned(), vec!["b1", "r0"]), ("old/shop/db".to_owned(), vec!["x"])]);
}

#[test]
fn a_selector_has_a_row_for_each_claim() {
    let selector = json!({ "selector": { "matchLabels": { "app": "db" } } });
    let mut all = vec![schedule("each", selector.clone(), json!({}))];
    assert_eq!(rows(&known(&all)), [row("claims with app=db", &["No backup"])]);
    all.push(backup("a-1", Some(("BackupSchedule", "each")), "a", "Completed", 300));
    // A group: the schedule made the whole, and the whole its parts.
    let mut whole = backup("g", Some(("BackupSchedule", "each")), "", "Completed", 20);
    whole["spec"]["source"] = selector;
    all.push(whole);
    all.push(backup("g-b", Some(("VolumeBackup", "g")), "b", "Completed", 20));
    assert_eq!(rows(&known(&all)), [row("a", &["Late"]), row("b", &["In time"])]);
    let known = known(&all);
    let model = Model::of(&known, &View::default(), now());
    assert_eq!((model.schedules[0].volumes, model.schedules[0].late), (2, 1));
}

#[test]
fn drills_say_how_they_were() {
    let word = |result: &str, minutes: i64| {
        let drill = json!({ "drill": { "cron": "0 4 * * 0" } });
        let mut it = schedule("s", json!({ "pvc": "db" }), drill);
        it["status"] = json!({ "drill": {
            "result": result, "time": (result != "Never").then(|| ago(minutes)),
        } });
        let known = known(&[it, backup("b", None, "db", "Completed", 10)]);
        let model = Model::of(&known, &View::default(), now());
        let line = model.schedules[0].drill.clone().expect("there is one");
        let is_problem = model.problems.iter().any(|problem| problem.line.word == line.word);
        assert_eq!(model.volumes[0].lines[0].word, "In time", "a drill is no backup");
        (line.word, line.level, is_problem)
    };
    assert_eq!(word("Failed", 60), ("Drill failed", Level::Bad, true));
    assert_eq!(word("Never", 0), ("Drill never ran", Level::Bad, true));
    assert_eq!(word("what", 0), ("Drill never ran", Level::Bad, true));
    assert_eq!(word("Running", 60), ("Drill under way", Level::Busy, false));
    assert_eq!(word("Passed", 60), ("Drill passed", Level::Good, false));
    assert_eq!(word("Passed", 20_000), ("Drill late", Level::Warn, true));
}

#[test]
fn restores_and_what_cannot_be_read_are_named() {
    let spec = json!({ "source": { "backupRef": { "name": "b" } } });
    let status = json!({ "phase": "Running", "consumers": [
        { "pvc": "one", "phase": "Running", "message": "" },
        { "pvc": "two", "phase": "Failed", "message": "no room" },
    ] });
    let known = known(&[
        object("VolumeRestore", "r", None, spec.clone(), status),
        object("VolumeRestore", "waits-for-claims", None, spec.clone(), json!({})),
        object(
            "VolumeRestore",
            "d",
            Some(("BackupSchedule", "s")),
            spec,
            json!({ "phase": "Failed" }),
        ),
        object("VolumeBackup", "later-version", None, json!({ "source": 7 }), json!({})),
    ]);
    let model = Model::of(&known, &View::default(), now());
    let said: Vec<_> =
        model.problems.iter().map(|it| (it.place.1.as_str(), it.line.word)).collect();
    assert_eq!(said, [("r", "Restore failed"), ("later-version", "Cannot be read")]);
    assert!(model.problems[0].line.text.contains("two: no room"));
    assert!(model.underway.is_empty(), "{:?}", model.underway);
}

#[test]
fn a_namespace_is_shown_alone_with_the_repositories_that_it_uses() {
    let spec = json!({ "url": "s3://b", "keySecretRef": { "name": "k" }, "jobTemplate": {} });
    let repository = |name: &str| {
        let mut it = object("Repository", name, None, spec.clone(), json!({}));
        it["metadata"]["namespace"] = "mover-system".into();
        it
    };
    let mut other = backup("b", None, "db", "Completed", 10);
    other["metadata"]["namespace"] = "lab".into();
    let known = known(&[
        repository("main"),
        repository("unused"),
        backup("b", None, "db", "Completed", 10),
        other,
    ]);
    let view = View { namespace: Some("shop".into()), ..View::default() };
    let model = Model::of(&known, &view, now());
    assert_eq!(model.volumes.len(), 1);
    let used: Vec<_> = model.repositories.iter().map(|row| row.place.1.as_str()).collect();
    assert_eq!(used, ["main"]);
    assert_eq!(model.namespaces.len(), 3, "all can be chosen");
    let view = View { find: Some("LAB/d".into()), ..View::default() };
    assert_eq!(Model::of(&known, &view, now()).volumes.len(), 1);
}

#[test]
fn commands_are_offered_for_plain_names_only() {
    let offered = |namespace: &str, name: &str| hint("pod", &(namespace.into(), name.into()));
    assert_eq!(offered("a", "b.c-1").as_deref(), Some("kubectl describe pod b.c-1 -n a"));
    for name in ["", "-f", "a b", "$(x)", "a;b", "A", "\u{430}"] {
        assert_eq!(offered("a", name), None, "{name}");
        assert_eq!(offered(name, "a"), None, "{name}");
    }
}
