//! `schedule` against an API server of fixed answers.

use crate::server::{Answer, Server};
use crate::{SHOP, ends, list, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Output;

const OURS: &str = "/apis/mover.dev/v1alpha1";
const SCHEDULES: &str = "/apis/mover.dev/v1alpha1/namespaces/shop/backupschedules";

fn repository(name: &str) -> (String, Value) {
    let object = json!({
        "metadata": { "name": name, "namespace": "shop", "uid": name },
        "spec": {
            "url": format!("s3://bucket/{name}"), "keySecretRef": { "name": "key" },
            "clusterName": "c1",
            "jobTemplate": {},
        },
    });
    (format!("{OURS}/namespaces/shop/repositories/{name}"), object)
}

fn hourly(spec: Value) -> Value {
    json!({
        "apiVersion": "mover.dev/v1alpha1", "kind": "BackupSchedule",
        "metadata": { "name": "hourly", "namespace": "shop", "uid": "u", "generation": 1 },
        "spec": spec,
        "status": {
            "newestGoodTime": "2026-11-24T14:00:00Z", "nextTime": "2026-11-24T15:00:00Z",
            "drill": { "result": "Passed" },
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Scheduled", "observedGeneration": 1 }],
        },
    })
}

fn some() -> Value {
    let template = json!({
        "labels": { "team": "shop" },
        "spec": { "source": { "pvc": "db" }, "repositoryRef": { "name": "default" } },
    });
    json!({ "cron": "@hourly", "template": template })
}

/// A cluster with the kinds, two Repositories, a claim and a schedule.
fn with_kinds() -> BTreeMap<String, Answer> {
    let mut all: BTreeMap<String, Value> =
        BTreeMap::from([repository("default"), repository("far")]);
    let kinds = json!([{ "name": "repositories" }, { "name": "backupschedules" }]);
    all.insert(OURS.into(), json!({ "resources": kinds }));
    all.insert(
        format!("{SHOP}/persistentvolumeclaims/db"),
        json!({ "metadata": { "name": "db", "namespace": "shop", "uid": "db" } }),
    );
    all.insert(SCHEDULES.into(), list(&[hourly(some())]));
    all.insert(format!("POST {SCHEDULES}"), hourly(json!({})));
    all.insert(format!("{SCHEDULES}/hourly"), hourly(some()));
    let made = json!({ "metadata": { "name": "hourly-now-x", "uid": "b" } });
    all.insert(format!("POST {OURS}/namespaces/shop/volumebackups"), made);
    all.into_iter().map(|(path, object)| (path, Answer::Object(object))).collect()
}

/// What it made, by the plural of its kind.
fn made(server: &Server, plural: &str) -> Value {
    let mut sent = server.sent().into_iter();
    let is_it = |(method, path, _): &(String, String, Value)| {
        method == "POST" && path.split('?').next().is_some_and(|path| path.ends_with(plural))
    };
    sent.find(is_it).expect("it made one").2
}

#[test]
fn flags_say_what_the_kind_says() {
    let server = Server::start("schedule-add", with_kinds());
    let arguments = [
        "schedule",
        "add",
        "hourly",
        "pvc/db",
        "--cron",
        "0 */6 * * *",
        "--time-zone",
        "Europe/Berlin",
        "--jitter",
        "300",
        "--history",
        "5",
        "--copy-to",
        "far",
        "--keep-last",
        "3",
        "--keep-daily",
        "7",
        "--keep-within",
        "30d",
        "--keep-base=false",
        "--label",
        "a=b",
        "--drill",
        "@weekly",
        "--drill-image",
        "postgres:18",
        "--drill-timeout",
        "60",
        "-o",
        "json",
        "--",
        "sh",
        "-c",
        "test -e /restored/PG_VERSION",
    ];
    let output = server.run(&arguments);
    ends(&output, 0, &["backupschedule/hourly"]);
    let record: Value = serde_json::from_slice(&output.stdout).expect("a record");
    assert_eq!(record["next"].as_array().expect("times").len(), 3);
    let object = made(&server, "backupschedules");
    let spec = &object["spec"];
    assert_eq!(spec["cron"], "0 */6 * * *");
    assert_eq!(spec["timeZone"], "Europe/Berlin");
    assert_eq!((&spec["jitterSeconds"], &spec["history"]), (&json!(300), &json!(5)));
    assert_eq!(spec["copyTo"], json!({ "name": "far" }));
    assert_eq!(spec["keep"], json!({ "last": 3, "daily": 7, "within": "30d" }));
    assert_eq!(
        spec["drill"],
        json!({
            "cron": "@weekly", "timeZone": "Europe/Berlin", "image": "postgres:18",
            "command": ["sh", "-c", "test -e /restored/PG_VERSION"], "timeoutSeconds": 60,
        })
    );
    let backup = &spec["template"]["spec"];
    assert_eq!(backup["source"], json!({ "pvc": "db" }));
    assert_eq!(backup["repositoryRef"], json!({ "name": "default" }));
    assert_eq!(backup["retainSnapshot"]["policy"], "Never");
    assert_eq!(backup["notes"], json!({ "a": "b" }));
}

#[test]
fn a_selector_takes_claims_that_come_later() {
    let server = Server::start("schedule-labels", with_kinds());
    let output =
        server.run(&["schedule", "add", "hourly", "-l", "app=db,tier=1", "--cron", "@hourly"]);
    ends(&output, 0, &["claims with app=db,tier=1"]);
    let labels = json!({ "matchLabels": { "app": "db", "tier": "1" } });
    let source = &made(&server, "backupschedules")["spec"]["template"]["spec"]["source"];
    assert_eq!(source, &json!({ "selector": labels }));
    let server = Server::start("schedule-group", with_kinds());
    let group =
        ["schedule", "add", "hourly", "-l", "app=db,tier=1", "--group", "--cron", "@hourly"];
    ends(&server.run(&group), 0, &["group with app=db,tier=1"]);
    let source = &made(&server, "backupschedules")["spec"]["template"]["spec"]["source"];
    assert_eq!(source, &json!({ "selector": labels, "group": true }));
}

/// Each ends with one error that names the next step, and makes nothing.
#[test]
fn a_schedule_that_cannot_be_meant_is_not_made() {
    let refused = |name: &str, answers, arguments: &[&str], said: &str| {
        let server = Server::start(name, answers);
        let output: Output = server.run(&[&["schedule", "add", "hourly"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        let err = text(&output.stderr);
        assert!(err.contains(said), "{said} is not in {err}");
        assert!(
            server
                .sent()
                .iter()
                .all(|(method, path, _)| method == "GET" || path.contains("selfsubject")),
            "{err}"
        );
    };
    let cron = ["pvc/db", "--cron", "61 * * * *"];
    refused("schedule-cron", with_kinds(), &cron, "--cron");
    let zone = ["pvc/db", "--cron", "@daily", "--time-zone", "Berlin"];
    refused("schedule-zone", with_kinds(), &zone, "--time-zone: Berlin is no time zone");
    let drill = ["pvc/db", "--cron", "@daily", "--drill", "0 0 31 2 *"];
    refused("schedule-drill", with_kinds(), &drill, "--drill");
    let word = ["statefulset/db", "--cron", "@daily"];
    refused("schedule-word", with_kinds(), &word, "write pvc/NAME");
    let labels = ["-l", "app in (a)", "--cron", "@daily"];
    refused("schedule-set", with_kinds(), &labels, "NAME=VALUE alone");
    let copy = ["pvc/db", "--cron", "@daily", "--copy-to", "default"];
    refused("schedule-copy", with_kinds(), &copy, "names the Repository default itself");
    let both = ["pvc/db", "-l", "a=b", "--cron", "@daily"];
    refused("schedule-both", with_kinds(), &both, "cannot be used with");
    let mut answers = with_kinds();
    answers.remove(OURS);
    refused("schedule-none", answers, &["pvc/db", "--cron", "@daily"], "kubectl mover install");
    let mut answers = with_kinds();
    answers.remove(&repository("default").0);
    let (labels, data) = (
        json!({ "mover.dev/repository": "default" }),
        json!({
            "url": "s3://bucket", "cluster": "c1", "keySecret": "keys", "serviceAccount": "mover",
            "image": "mover:1", "imagePullPolicy": "IfNotPresent", "memory": "320Mi", "cpu": "1",
        }),
    );
    let meta = json!({ "name": "mover-repository-default", "namespace": "shop", "uid": "m", "labels": labels });
    let map = Answer::Object(json!({ "metadata": meta, "data": data }));
    answers.insert(format!("{SHOP}/configmaps/mover-repository-default"), map);
    refused(
        "schedule-map",
        answers,
        &["pvc/db", "--cron", "@daily"],
        "no controller looks after it",
    );
}

/// One that is there is not changed by another that has its name.
#[test]
fn a_name_that_is_taken_stays_as_it_is() {
    let mut answers = with_kinds();
    answers.insert(format!("POST {SCHEDULES}"), Answer::Refused(409, "already exists"));
    let server = Server::start("schedule-taken", answers);
    let output = server.run(&["schedule", "add", "hourly", "pvc/db", "--cron", "@hourly"]);
    assert_eq!(output.status.code(), Some(2));
    let err = text(&output.stderr);
    assert!(
        err.contains("already") && err.contains("kubectl edit backupschedule hourly -n shop"),
        "{err}"
    );
}

#[test]
fn schedules_are_listed_run_suspended_and_removed() {
    let server = Server::start("schedule-rest", with_kinds());
    ends(
        &server.run(&["schedule", "list"]),
        0,
        &["hourly", "@hourly", "pvc/db", "ok", "2026-11-24T14:00:00Z", "Passed"],
    );
    ends(
        &server.run(&["schedule", "run", "hourly", "--wait=false"]),
        0,
        &["volumebackup/hourly-now-"],
    );
    let backup = made(&server, "volumebackups");
    assert_eq!(backup["spec"]["source"], json!({ "pvc": "db" }));
    assert_eq!(backup["metadata"]["labels"]["team"], "shop");
    ends(&server.run(&["schedule", "resume", "hourly"]), 0, &["did not rest"]);
    ends(&server.run(&["schedule", "suspend", "hourly"]), 0, &["rests"]);
    ends(&server.run(&["schedule", "remove", "hourly"]), 0, &["Its backups stay"]);
    let changes: Vec<String> = server
        .sent()
        .iter()
        .filter(|(method, path, _)| method != "GET" && path.contains("backupschedules"))
        .map(|(method, _, body)| format!("{method} {}", body["spec"]["suspend"]))
        .collect();
    assert_eq!(changes, ["PATCH true", "DELETE null"]);
    let output = server.run(&["schedule", "run", "daily"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no schedule daily"), "{}", text(&output.stderr));
}
