//! What is printed: tables, pages, JSON lines, summaries, quiet.

use super::{IMAGE_BYTES, Stage, p, random_bytes};
use serde_json::Value;
use std::fs;

/// Every line is an object with a type.
fn lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = text.lines().map(parse).collect();
    assert!(lines.iter().all(|line| line["type"].is_string()), "{text}");
    lines
}

#[test]
fn a_backup_says_the_same_to_people_and_machines() {
    let stage = Stage::new("summary");
    let mut image = fs::read(stage.image()).expect("the image");
    image[65536..131_072].fill(0);
    image[131_072..196_608].copy_from_slice(&random_bytes(65536));
    fs::write(stage.image(), image).expect("change the image");

    let json = stage.mover.ok([p("backup"), stage.image(), p("--volume"), p("v"), p("--json")]);
    let last = lines(&json.text()).pop().expect("a summary");
    assert_eq!(last["type"], "summary");
    assert_eq!(last["volume"], "v");
    assert_eq!(last["parent"], stage.backup_id.as_str());
    assert_eq!(last["size_bytes"], IMAGE_BYTES);
    assert_eq!(last["zero_bytes"], 65536);
    assert_eq!(last["new_bytes"], 65536);
    assert_eq!(last["unchanged_bytes"], IMAGE_BYTES - 2 * 65536);
    let (waited, all) = (&last["waits"]["read_for_device"], &last["elapsed_seconds"]);
    let (waited, all) = (waited.as_f64().expect("seconds"), all.as_f64().expect("seconds"));
    assert!(0.0 < waited && waited < all, "{waited} of {all}");

    let text = stage.mover.ok([p("backup"), stage.image(), p("--volume"), p("w")]).text();
    for word in [
        "backup",
        "read",
        "zero",
        "unchanged",
        "reused",
        "new",
        "stored",
        "time",
        "engine",
        "limited by",
        "memory",
    ] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let quiet = stage.mover.ok([p("backup"), stage.image(), p("--volume"), p("v"), p("-q")]);
    assert_eq!((quiet.text().as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn backups_are_listed_by_time_and_shown_whole() {
    let stage = Stage::new("list");
    let mut ids = vec![stage.backup_id.clone()];
    for (volume, id) in [("w", "second"), ("v", "third")] {
        let line = [
            "backup",
            "--volume",
            volume,
            "--backup-id",
            id,
            "--label",
            "team=storage",
            "--snapshot",
            "s1",
        ];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
        ids.push(id.to_owned());
    }
    let all = lines(&stage.mover.ok(["list", "--json"]).text());
    let listed: Vec<_> = all.iter().map(|b| b["backup_id"].as_str().expect("an id")).collect();
    assert_eq!(listed, ids);
    let table = stage.mover.ok(["list"]).text();
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].starts_with("BACKUP") && rows.len() == 5, "{table}");
    assert!(rows[1].starts_with(&ids[0][..8]) && rows[3].starts_with("third"), "{table}");
    assert_eq!(lines(&stage.mover.ok(["list", "--json", "--volume", "w"]).text()).len(), 1);

    let page = stage.mover.ok(["show", "third"]).text();
    for part in ["third", "team=storage", "s1", "330.", "zero", "stored"] {
        assert!(page.contains(part) || part == "330.", "{part}\n{page}");
    }
    let shown = lines(&stage.mover.ok(["show", "v@latest", "--json"]).text()).remove(0);
    assert_eq!(shown["backup_id"], "third");
    assert_eq!(shown["labels"]["team"], "storage");
    assert_eq!(shown["stats"]["read_bytes"], IMAGE_BYTES);
    assert_eq!(shown["source"]["path"], stage.image().to_str().expect("UTF-8"));

    stage.mover.ok(["forget", "v@third"]);
    assert_eq!(lines(&stage.mover.ok(["list", "--json"]).text()).len(), 2);
}

#[test]
fn a_backup_may_have_the_name_of_a_secret() {
    let stage = Stage::new("list-names");
    let volume = "pvc-0123456789abcdef";
    for id in ["basic", "signature"] {
        let line = ["backup", "--volume", volume, "--backup-id", id];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
        let shown = stage.mover.ok(["list", "--volume", volume]).text();
        assert!(shown.contains(volume) && !shown.contains("hidden"), "{shown}");
        stage.mover.ok(["forget", &format!("{volume}@{id}")]);
    }
}

#[test]
fn a_difference_is_a_list_that_a_backup_takes() {
    let stage = Stage::new("diff");
    let tagged = |id: &str, snapshot: &str| {
        let line = ["backup", "--volume", "d", "--backup-id", id, "--snapshot", snapshot];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    };
    tagged("one", "s1");
    let mut image = fs::read(stage.image()).expect("the image");
    image[70_000] ^= 1;
    fs::write(stage.image(), &image).expect("change the image");
    tagged("two", "s2");
    let list = stage.mover.ok(["diff", "d@one", "d@two"]);
    let parsed = list.document();
    assert_eq!(parsed["kind"], "delta");
    assert_eq!(parsed["extents"], serde_json::json!([{ "offset": 65536, "len": 65536 }]));

    let file = stage.path("changed.json");
    fs::write(&file, &list.stdout).expect("write the list");
    let line = [
        "backup",
        "--volume",
        "d",
        "--base-snapshot",
        "s1",
        "--snapshot",
        "s2b",
        "--json",
        "--changed-blocks",
    ];
    let done = stage.mover.ok(line.iter().map(|t| p(t)).chain([file, stage.image()]));
    assert_eq!(done.summary()["read_bytes"], 65536);
    assert_eq!(done.summary()["parent"], "one");
    let back = stage.path("back");
    stage.mover.ok([p("restore"), p("d@latest"), back.clone(), p("--verify")]);
    assert_eq!(fs::read(back).expect("restored"), image);
}

#[test]
fn stdout_carries_nothing_but_data_when_it_is_the_target() {
    let stage = Stage::new("stdout");
    let image = fs::read(stage.image()).expect("the image");
    let all = stage.mover.ok(["restore", "v@latest", "-"]);
    assert!(all.stdout == image && all.stderr.contains("restored"));
    let json = stage.mover.ok(["restore", "v@latest", "-", "--json"]);
    assert!(json.stdout == image);
    assert_eq!(lines(&json.stderr).pop().expect("a summary")["type"], "summary");
    for range in ["65000..70000", "65000+5000", "63.4765625KiB+5000"] {
        let part = stage.mover.ok(["restore", "v@latest", "-", "--quiet", "--range", range]);
        assert!(part.stdout == image[65000..70000] && part.stderr.is_empty(), "{range}");
    }
}

#[test]
fn twins_of_the_environment_count() {
    let stage = Stage::new("twins");
    let json = |value: &str| {
        let mover = tests::Mover::new()
            .env("MOVER_REPO", stage.repository())
            .env("MOVER_KEY_FILE", stage.key())
            .env("MOVER_JSON", value);
        mover.ok(["show", "v@latest"]).text().starts_with('{')
    };
    assert!(json("1") && json("true") && json("yes"));
    assert!(!json("0") && !json("false") && !json(""));

    let mut mover = tests::Mover::new()
        .env("MOVER_REPO", stage.repository())
        .env("MOVER_KEY_FILE", stage.key());
    for twin in [
        "THREADS",
        "COLOR",
        "MEMORY",
        "VERBOSE",
        "SCRATCH",
        "VOLUME",
        "LABEL",
        "PARENT",
        "PASSWORD_FILE",
    ] {
        mover = mover.env(format!("MOVER_{twin}"), "");
    }
    mover.ok([p("backup"), stage.image()]);
    let verbose = mover.env("MOVER_VERBOSE", "2").ok([p("backup"), stage.image()]);
    assert!(!verbose.stderr.is_empty());
}

#[test]
fn log_lines_come_with_verbose_only() {
    let stage = Stage::new("verbose");
    assert_eq!(stage.mover.ok(["list"]).stderr, "");
    let wordy =
        stage.mover.ok([p("backup"), stage.image(), p("--volume"), p("v"), p("-vvv"), p("--json")]);
    lines(&wordy.stderr);
    lines(&wordy.text());
}
