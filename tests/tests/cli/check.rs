//! `check`, and `restore --skip-damaged`: what they say, in text and JSON, and how they end.

use super::{IMAGE_BYTES, Stage, expect_error, p};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// Chunks of 64 KiB, random: an entry of the only pack of chunks holds all of them.
fn damaged(name: &str) -> (Stage, PathBuf) {
    let stage = Stage::new(name);
    let packs = stage.objects("packs");
    let of_chunks = packs.into_iter().find(|path| fs::read(path).expect("a pack")[10] == 1);
    let pack = of_chunks.expect("a pack of chunks");
    let mut bytes = fs::read(&pack).expect("a pack");
    bytes[64 + 8 + 1000] ^= 4;
    fs::write(&pack, bytes).expect("damage it");
    (stage, pack)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

#[test]
fn a_whole_repository_is_said_to_be_whole() {
    let stage = Stage::new("check-whole");
    let before = super::tree(&stage.repository());
    for flags in [&[][..], &["--read-data"], &["--read-data=50%"], &["--no-lease"]] {
        let text = stage.mover.ok(["check"].iter().chain(flags)).text();
        for word in ["checked", "1 backup,", "read", "result", "whole"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
    }
    let done = stage.mover.ok(["check", "--read-data=all", "--json"]).summary();
    assert_eq!((&done["clean"], &done["findings"]), (&true.into(), &0.into()), "{done}");
    assert_eq!(done["read_packs"], done["packs"]);
    assert!(done["read_bytes"].as_u64() > Some(0) && done["mark_bytes"].as_u64() > Some(0));
    assert_eq!(stage.mover.ok(["check", "--quiet"]).text(), "");
    assert!(before == super::tree(&stage.repository()), "nothing stays behind");
    for wrong in ["--read-data=5", "--read-data=0%", "--read-data=some"] {
        expect_error(stage.mover.run(["check", wrong]), 2, "--read-data");
    }
    expect_error(stage.mover.run(["check", "--repair", "--no-lease"]), 2, "--no-lease");
}

#[test]
fn damage_is_named_and_ends_with_code_3() {
    let (stage, pack) = damaged("check-damaged");
    stage.mover.ok(["check"]);
    let output = stage.mover.run(["check", "--read-data", "--json"]).expect_code(3);
    let said = lines(&output.text());
    let [finding] = of_type(&said, "finding")[..] else { panic!("{}", output.text()) };
    assert!(pack.ends_with(finding["object"].as_str().expect("a key")), "{finding}");
    assert_eq!(finding["what"], "pack");
    let [lost] = of_type(&said, "lost")[..] else { panic!("{}", output.text()) };
    assert_eq!(
        (&lost["volume"], &lost["backup_id"]),
        (&"v".into(), &stage.backup_id.clone().into())
    );
    let ranges = lost["ranges"].as_array().expect("ranges");
    let sum: u64 = ranges.iter().map(|r| r["len"].as_u64().expect("a length")).sum();
    assert!(sum > 0 && lost["bytes"] == sum, "{lost}");
    let [summary] = of_type(&said, "summary")[..] else { panic!("{}", output.text()) };
    assert_eq!((&summary["clean"], &summary["lost_backups"]), (&false.into(), &1.into()));
    let error = &lines(&output.stderr)[0];
    assert_eq!((&error["type"], &error["exit_code"]), (&"error".into(), &3.into()), "{error}");

    let output = stage.mover.run(["check", "--read-data", "--repair"]).expect_code(3);
    let text = output.text();
    for word in ["damaged   packs/", "lost      backup", "offset ", "1 damaged entries recorded"] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    assert_eq!(stage.objects("damaged").len(), 1);
    // the next backup is whole
    let line = [p("backup"), stage.image(), p("--volume"), p("v"), p("--backup-id"), p("next")];
    stage.mover.ok(line);
    let back = stage.path("back");
    stage.mover.ok([p("restore"), p("v@next"), back.clone()]);
    assert!(fs::read(back).expect("restored") == fs::read(stage.image()).expect("image"));
}

#[test]
fn what_is_left_is_restored_and_the_rest_is_listed() {
    let (stage, _) = damaged("skip-damaged");
    let image = fs::read(stage.image()).expect("image");
    let spec = format!("v@{}", stage.backup_id);
    let target = stage.path("target");
    // what stood there before must not show through
    fs::write(&target, vec![7; IMAGE_BYTES]).expect("a dirty target");
    let line = |more: &[&str]| {
        let line = [p("restore"), p(&spec), target.clone(), p("--force")];
        stage.mover.run(line.into_iter().chain(more.iter().map(|t| p(t))))
    };
    assert!(line(&[]).expect_code(3).stderr.contains("--skip-damaged"), "the way on");
    fs::write(&target, vec![7; IMAGE_BYTES]).expect("a dirty target");
    let output = line(&["--skip-damaged", "--json"]).expect_code(3);
    let said = lines(&output.text());
    let [summary] = of_type(&said, "summary")[..] else { panic!("{}", output.text()) };
    let damaged = &summary["damaged"];
    let mut expected = image.clone();
    let mut bytes = 0;
    for range in damaged["ranges"].as_array().expect("ranges") {
        let at = |name: &str| usize::try_from(range[name].as_u64().expect("a number")).unwrap_or(0);
        expected[at("offset")..at("offset") + at("len")].fill(0);
        bytes += at("len");
    }
    assert!(bytes > 0 && damaged["bytes"] == bytes, "{damaged}");
    assert!(fs::read(&target).expect("restored") == expected);
    assert_eq!(lines(&output.stderr)[0]["exit_code"], 3);
    let text = line(&["--skip-damaged"]).expect_code(3).text();
    assert!(text.contains("not there") && text.contains("offset "), "{text}");
    let piped = stage.mover.run(["restore", spec.as_str(), "-", "--skip-damaged"]).expect_code(3);
    assert!(piped.stdout == expected, "the same in order");
    assert!(piped.stderr.contains("not there"), "{}", piped.stderr);
    expect_error(line(&["--skip-damaged", "--verify"]), 2, "--skip-damaged");
}
