//! Finding a backup: by what people know of it, and what is said where there is none.

use super::{Stage, expect_error, p};
use serde_json::Value;
use std::fs;

/// A stage whose volume `v` has two more backups, of named snapshots, and `other` one.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    for (volume, id, snapshot) in [
        ("v", "second-id", "snap-2"),
        ("v", "third-id", "snap-3"),
        ("other", "fourth-id", "snap-4"),
    ] {
        let line =
            ["backup", "--quiet", "--volume", volume, "--backup-id", id, "--snapshot", snapshot];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    }
    stage
}

fn shown(stage: &Stage, args: &[&str]) -> String {
    let shown = stage.mover.ok([&["show", "--json"], args].concat()).summary();
    shown["backup_id"].as_str().expect("an id").to_owned()
}

/// The time of a backup, as far as `length` characters of it say.
fn finished(stage: &Stage, id: &str, length: usize) -> String {
    let shown = stage.mover.ok(["show", id, "--json"]).summary();
    shown["finished"].as_str().expect("a time")[..length].to_owned()
}

#[test]
fn a_backup_is_restored_by_snapshot_date_and_time() {
    let stage = stage("find-restore");
    let image = fs::read(stage.image()).expect("the image");
    let day = finished(&stage, "third-id", 10);
    for (i, spec) in
        [format!("v@{day}"), "v@snap-2".into(), "v@third".into(), "v@snapshot:snap-3".into()]
            .into_iter()
            .enumerate()
    {
        let back = stage.path(&format!("back-{i}"));
        stage.mover.ok([p("restore"), p(&spec), back.clone(), p("--quiet")]);
        assert!(fs::read(back).expect("restored") == image, "{spec}");
    }
    for (args, id) in [
        (vec!["v@snap-2"], "second-id"),
        (vec!["v@seco"], "second-id"),
        (vec!["v@latest"], "third-id"),
        (vec!["v", "--before", "2999-01-01"], "third-id"),
        (vec!["v@latest", "--before", "2999-01-01T12:00+01:00"], "third-id"),
    ] {
        assert_eq!(shown(&stage, &args), id, "{args:?}");
    }
    // to the millisecond, as JSON has it
    let moment = finished(&stage, "second-id", 24);
    assert_eq!(shown(&stage, &[&format!("v@{moment}")]), "second-id");
    stage.mover.ok(["verify", "v@snap-3", "--quiet"]);
    stage.mover.ok(["verify", "v", "--before", "2999-01", "--quiet"]);
    let twin = stage.mover.command(["show", "v", "--json"]).env("MOVER_BEFORE", "2999-01").output();
    assert!(twin.expect("a run").status.success());
    stage.mover.ok(["diff", "v@snap-2", "v@third-id"]);
    let parent = ["backup", "--volume", "v", "--parent", "v@snap-2", "--json"].map(p);
    let child = stage.mover.ok(parent.into_iter().chain([stage.image()]));
    assert_eq!(child.summary()["parent"], "second-id");
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let stage = stage("find-nothing");
    let run = |args: &[&str]| stage.mover.run(args);
    for (args, words) in [
        (&["show", "w@latest"][..], &["no backup of volume w", "there are those of v, other"][..]),
        (&["show", "othr@latest"], &["there are those of other, v"]),
        (&["show", "v@2001-02-03"], &["no such backup", "after it", "v@"]),
        (&["show", "v@2999"], &["no such backup", "v@third-id", "newest"]),
        (&["show", "v@2999-01-01"], &["v@third-id of ", "before it"]),
        (&["show", "v"], &["v is a volume", "v@latest"]),
        (&["show", "v@th"], &["4 characters"]),
        (&["show", "v@"], &["behind the @"]),
        (&["show", "v@time:noon"], &["2026-11-22T14"]),
        (&["show", "v", "--before", "noon"], &["--before", "2026-11-22"]),
        (&["show", "v", "--before", "2001-01-01"], &["oldest data"]),
        (&["show", "x", "--before", "2999-01-01"], &["there are those of"]),
        (&["show", "v@third-id", "--before", "2999-01-01"], &["name of a volume"]),
        (&["forget", "v@latest"], &["by its id", "v@third-id"]),
        (&["forget", "v@snap-2"], &["by its id", "v@second-id"]),
    ] {
        let line = expect_error(run(args), 2, words[0]);
        for word in words {
            assert!(line.contains(word), "{args:?}: no {word:?} in {line}");
        }
    }
    // the commands that list say so too, and go on
    for args in [&["list", "--volume", "w"][..], &["stats", "--volume", "w"]] {
        let output = run(args).expect_code(0);
        assert!(output.stderr.contains("those of v, other"), "{}", output.stderr);
    }
}

#[test]
fn a_name_that_means_two_backups_is_refused() {
    let stage = stage("find-two");
    let line = ["backup", "--quiet", "--volume", "v", "--backup-id", "snap-2"].map(p);
    stage.mover.ok(line.into_iter().chain([stage.image()]));
    let line = expect_error(stage.mover.run(["show", "v@snap-2"]), 2, "more than one backup");
    for word in ["as an id: v@snap-2", "as a snapshot: v@second-id", "v@snapshot:snap-2"] {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
    assert_eq!(shown(&stage, &["v@snapshot:snap-2"]), "second-id");
    assert_eq!(shown(&stage, &["v@id:snap-2"]), "snap-2");
}

#[test]
fn a_list_shows_what_people_look_for() {
    let stage = Stage::new("list-columns");
    let plain = stage.mover.ok(["list"]).text();
    assert!(!plain.contains("STATE") && !plain.contains("LABELS"), "{plain}");
    let write = ["backup", "--quiet", "--volume", "v", "--backup-id", "labelled"];
    let labels = ["--label", "team=storage", "--label", "tier=1", "--snapshot", "s9"];
    let line = [&write[..], &labels].concat();
    stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    let table = stage.mover.ok(["list"]).text();
    let rows: Vec<_> = table.lines().collect();
    let head = rows[0].split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(head, "BACKUP VOLUME FINISHED TOOK SIZE READ STORED LIST SNAPSHOT LABELS");
    assert!(rows[1].starts_with(&stage.backup_id[..8]), "{table}");
    assert!(!rows[1].contains(&stage.backup_id), "{table}");
    assert!(rows[2].starts_with("labelled ") && rows[2].ends_with("s9        team=storage,tier=1"));
    assert!(rows[3].starts_with("2 backups of 1 volume; their runs have stored "), "{table}");
    // what is shown is enough to name it
    let short = rows[1].split(' ').next().expect("an id");
    assert_eq!(shown(&stage, &[short]), stage.backup_id);

    let lines = |args: &[&str]| stage.mover.ok([&["list", "--json"], args].concat()).json_lines();
    let ids = |args: &[&str]| -> Vec<String> {
        let id = |b: &Value| b["short_id"].as_str().expect("an id").to_owned();
        lines(args).iter().map(id).collect()
    };
    assert_eq!(ids(&[]), [short, "labelled"]);
    assert!(lines(&[]).iter().all(|b| b["duration_seconds"].as_f64().expect("a time") > 0.0));
    for (label, found) in [("team=storage", 1), ("team", 1), ("team=other", 0), ("none", 0)] {
        assert_eq!(ids(&["--label", label]).len(), found, "{label}");
    }
    assert_eq!(ids(&["--label", "team", "--label", "tier=2"]).len(), 0);
    let none = stage.mover.ok(["list", "--label", "none"]);
    assert!(none.text().is_empty() && none.stderr.contains("no backups"), "{}", none.stderr);
}

#[test]
fn a_degraded_backup_is_marked() {
    let stage = Stage::new("list-degraded");
    // a delta that cannot be had is a step down
    let line = ["backup", "--volume", "v", "--snapshot", "s2", "--base-snapshot", "s1", "--json"];
    let server =
        ["--changes-url", "http://127.0.0.1:9/s2", "--changes-http", "--changes-tries", "1"];
    let line = [&line[..], &server].concat();
    let done = stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    assert!(!done.summary()["degraded"].as_array().expect("a list").is_empty());
    let table = stage.mover.ok(["list"]).text();
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].contains("  STATE") && rows[2].contains("  degraded"), "{table}");
    assert!(rows[3].contains("1 degraded"), "{table}");
}
