//! `stats`: sizes and growth, by the manifests and one listing.

use super::{IMAGE_BYTES, Stage, p, random_bytes};
use serde_json::Value;
use std::fs;

fn views(stage: &Stage, args: &[&str]) -> (Vec<Value>, Value) {
    let mut lines = stage.mover.ok([&["stats", "--json"], args].concat()).json_lines();
    let summary = lines.pop().expect("a summary");
    assert_eq!(summary["type"], "summary");
    assert!(lines.iter().all(|line| line["type"] == "volume"), "{lines:?}");
    (lines, summary)
}

fn backup(stage: &Stage, volume: &str) -> Value {
    let line = ["backup", "--volume", volume, "--json"].map(p);
    stage.mover.ok(line.into_iter().chain([stage.image()])).summary()
}

#[test]
fn growth_and_ratios_are_those_of_the_runs() {
    let stage = Stage::new("stats");
    let mut image = fs::read(stage.image()).expect("the image");
    image[65536..131_072].copy_from_slice(&random_bytes(65536));
    image[131_072..196_608].fill(0);
    fs::write(stage.image(), &image).expect("change the image");
    let second = backup(&stage, "v");
    let other = backup(&stage, "w");

    let (volumes, summary) = views(&stage, &[]);
    assert_eq!(volumes.len(), 2);
    let v = &volumes[0];
    assert_eq!((v["volume"].as_str(), v["backups"].as_u64()), (Some("v"), Some(2)));
    assert_eq!(v["size_bytes"], IMAGE_BYTES);
    assert_eq!(v["logical_bytes"], 2 * IMAGE_BYTES);
    // one chunk of the newest is zero
    assert_eq!(v["data_bytes"], IMAGE_BYTES - 65536);
    assert_eq!(v["new_bytes"], IMAGE_BYTES + 65536);
    let growth = v["growth"].as_array().expect("a list");
    assert_eq!(growth[1]["backup_id"], second["backup_id"]);
    for member in ["new_bytes", "stored_bytes"] {
        assert_eq!(growth[1][member], second[member], "{member}");
    }
    let sum: u64 = growth.iter().map(|g| g["stored_bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(v["stored_bytes"], sum);
    #[allow(clippy::cast_precision_loss)]
    let (of, to) = ((2 * IMAGE_BYTES - 65536) as f64, (IMAGE_BYTES + 65536) as f64);
    let dedup = v["dedup_ratio"].as_f64().expect("a ratio");
    assert!((dedup - of / to).abs() < 1e-9, "{dedup}");
    // random bytes do not compress, and pages and frames come on top
    let compression = v["compression_ratio"].as_f64().expect("a ratio");
    assert!((0.8..1.0).contains(&compression), "{compression}");
    // all of w was there
    assert_eq!(volumes[1]["new_bytes"], 0);
    assert_eq!(volumes[1]["dedup_ratio"], Value::Null);
    assert_eq!(volumes[1]["stored_bytes"], other["stored_bytes"]);

    // the packs that are there, to the byte
    let packs = stage.objects("packs");
    let bytes: u64 = packs.iter().map(|path| fs::metadata(path).expect("a pack").len()).sum();
    assert_eq!(summary["packs"], packs.len());
    assert_eq!(summary["pack_bytes"], bytes);
    let stored: u64 = volumes.iter().map(|v| v["stored_bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(summary["stored_bytes"], stored);
    assert_eq!(views(&stage, &["--volume", "w"]).0.len(), 1);
}

#[test]
fn people_see_a_table_and_no_data_is_read() {
    let stage = Stage::new("stats-table");
    backup(&stage, "v");
    // packs that are there and cannot be read are no obstacle: only their sizes count
    for pack in stage.objects("packs") {
        let len = fs::metadata(&pack).expect("a pack").len();
        fs::write(&pack, vec![0; usize::try_from(len).expect("small")]).expect("damage a pack");
    }
    let text = stage.mover.ok(["stats"]).text();
    let head = text.lines().next().expect("a head");
    let words: Vec<_> = head.split_whitespace().collect();
    let expected =
        ["VOLUME", "BACKUPS", "NEWEST", "SIZE", "DATA", "STORED", "LAST", "DEDUP", "COMPRESSION"];
    assert_eq!(words, expected);
    assert!(text.contains("\nrepository ") && text.contains("2 backups of 1 volume"), "{text}");
    let one = stage.mover.ok(["stats", "--volume", "v"]).text();
    assert!(one.contains(&stage.backup_id[..8]) && one.contains("NEW"), "{one}");
}

/// A copy has the figures of a run in another repository.
#[test]
fn a_copy_has_stored_nothing_that_is_known() {
    let stage = Stage::new("stats-copy");
    let (far, key) = (super::file_url(&stage.path("far")), stage.path("far.key"));
    stage.mover.ok([
        p("init"),
        p("--quiet"),
        p("--repo"),
        p(&far),
        p("--new-key-file"),
        key.clone(),
    ]);
    stage.mover.ok([p("copy"), p("--quiet"), p("--to"), p(&far), p("--to-key-file"), key.clone()]);
    let mover = tests::Mover::new().env("MOVER_REPO", far).env("MOVER_KEY_FILE", key);
    let mut lines = mover.ok(["stats", "--json"]).json_lines();
    let (summary, v) = (lines.pop().expect("a summary"), lines.pop().expect("a volume"));
    assert_eq!((&v["copies"], &v["stored_bytes"]), (&1.into(), &0.into()));
    assert_eq!(v["growth"][0]["stored_bytes"], Value::Null);
    assert_eq!(v["compression_ratio"], Value::Null);
    assert!(summary["pack_bytes"].as_u64().expect("bytes") > 0);
}
