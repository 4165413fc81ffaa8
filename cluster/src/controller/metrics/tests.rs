//! The table and the manual say the same, and the values are those of the objects.

use super::names::Metric;
use super::*;
use serde_json::json;

fn now() -> DateTime<Utc> {
    "2026-11-24T14:30:00Z".parse().expect("a time")
}

fn known(backup: &str, drill: &str) -> Known {
    let mut known = Known::default();
    known.heard(now());
    let born = "2026-11-01T00:00:00Z";
    let meta = |name: &str| json!({ "namespace": "shop", "name": name, "creationTimestamp": born });
    let source = json!({ "source": { "pvc": "db\"\n" }, "repositoryRef": { "name": "main" } });
    let repository = json!({ "namespace": "mover-system", "name": "main" });
    for object in [
        json!({
            "kind": "BackupSchedule", "apiVersion": "mover.dev/v1alpha1", "metadata": meta("hourly"),
            "spec": { "cron": "0 * * * *", "template": { "spec": source },
                "drill": { "cron": "0 4 * * 0" } },
            "status": { "missed": 3, "drill": { "result": drill } },
        }),
        json!({
            "kind": "VolumeBackup", "apiVersion": "mover.dev/v1alpha1", "metadata": meta("one"),
            "spec": source, "status": { "phase": "Completed", "cutTime": backup },
        }),
        json!({
            "kind": "Repository", "apiVersion": "mover.dev/v1alpha1", "metadata": repository,
            "spec": { "url": "s3://a", "keySecretRef": { "name": "k" }, "jobTemplate": {} },
            "status": { "conditions": [
                { "type": "Ready", "status": "True" }, { "type": "Checked", "status": "False" },
            ] },
        }),
        json!({ "kind": "VolumeRestore", "metadata": meta("unreadable"), "spec": 5 }),
    ] {
        known.set(&object);
    }
    known
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
}

#[test]
fn values_are_those_of_the_objects() {
    let metrics = Metrics::default();
    metrics.backup_ended(Tally::Failed);
    metrics.request("get");
    metrics.refused(409);
    let text = metrics.text(&known("2026-11-24T09:00:10Z", "Failed"), now()).expect("text");
    for line in [
        "mover_controller_backups_total{outcome=\"failed\"} 1",
        "mover_controller_backups_total{outcome=\"good\"} 0",
        "mover_controller_api_requests_total{verb=\"get\"} 1",
        "mover_controller_api_refusals_total{code=\"409\"} 1",
        "mover_controller_objects{kind=\"VolumeBackup\"} 1",
        "mover_controller_unreadable_objects 1",
        "mover_controller_operations{kind=\"backup\",state=\"running\"} 0",
        // Due at ten, and nothing is good since.
        "mover_schedule_lag_seconds{namespace=\"shop\",schedule=\"hourly\"} 16200",
        "mover_schedule_late_claims{namespace=\"shop\",schedule=\"hourly\"} 1",
        "mover_schedule_missed_runs_total{namespace=\"shop\",schedule=\"hourly\"} 3",
        "mover_drill_result{namespace=\"shop\",result=\"failed\",schedule=\"hourly\"} 1",
        "mover_repository_ready{namespace=\"mover-system\",repository=\"main\"} 1",
        "mover_repository_check_good{namespace=\"mover-system\",repository=\"main\"} 0",
        "# TYPE mover_schedule_missed_runs_total counter",
    ] {
        has(&text, line);
    }
    // What a name holds cannot end a line.
    assert!(text.contains("claim=\"db\\\"\\n\""), "{text}");
    assert!(!text.contains("mover_repository_check_timestamp_seconds{"), "it was never checked");
}

#[test]
fn in_time_is_no_lag() {
    let text = Metrics::default().text(&known("2026-11-24T13:00:10Z", "Passed"), now());
    let text = text.expect("text");
    has(&text, "mover_schedule_lag_seconds{namespace=\"shop\",schedule=\"hourly\"} 0");
    has(&text, "mover_schedule_late_claims{namespace=\"shop\",schedule=\"hourly\"} 0");
}

#[test]
fn the_number_of_series_has_a_bound() {
    let mut known = Known::default();
    for number in 0..SERIES_MAX + 5 {
        known.set(&json!({
            "kind": "VolumeBackup", "apiVersion": "mover.dev/v1alpha1",
            "metadata": { "namespace": "shop", "name": format!("b{number}") },
            "spec": { "source": { "pvc": format!("c{number}") }, "repositoryRef": { "name": "m" } },
            "status": { "phase": "Completed", "cutTime": "2026-11-24T13:00:10Z" },
        }));
    }
    let text = Metrics::default().text(&known, now()).expect("text");
    let series = text.lines().filter(|line| line.starts_with("mover_claim_newest_good_"));
    assert_eq!(series.count(), SERIES_MAX);
    has(&text, "mover_controller_claims_left_off 5");
}

#[test]
fn names_say_their_unit() {
    for metric in COUNTED.iter().chain(&TOLD) {
        let name = metric.name;
        assert!(metric.unit != "bytes" || name.ends_with("_bytes"), "{name}");
        assert!(metric.unit != "seconds" || name.ends_with("_seconds"), "{name}");
        assert!(name.starts_with("mover_"), "{name}");
    }
    assert!(COUNTED.iter().all(Metric::is_counter));
    let left_off = TOLD.iter().find(|it| it.name == names::LEFT_OFF).expect("it is there");
    assert!(left_off.help.contains(&SERIES_MAX.to_string()));
}

#[test]
fn the_manual_has_every_metric_and_no_other() {
    let manual = include_str!("../../../../docs/metrics-controller.md");
    let mut rows = 0;
    for metric in COUNTED.iter().chain(&TOLD) {
        let kind = if metric.is_counter() { "counter" } else { "gauge" };
        let labels: Vec<_> = metric.labels.iter().map(|it| format!("`{it}`")).collect();
        let (name, unit, help) = (metric.name, metric.unit, metric.help);
        let row = format!("| `{name}` | {kind} | {unit} | {} | {help} |", labels.join(", "));
        assert!(manual.contains(&row), "docs/metrics-controller.md lacks this row:\n{row}");
        rows += 1;
    }
    assert_eq!(manual.matches("\n| `mover_").count(), rows);
}
