//! `copy`: what is selected, what is said, and what ends it.

use super::ends::cancelled_by;
use super::{Stage, expect_error, file_url, p, random_bytes};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tests::MoverOutput;

/// A stage with three backups of `v` and one of `w`, and an empty repository with another key and
/// another chunk size.
struct Pair {
    stage: Stage,
    far: PathBuf,
    far_key: PathBuf,
}

impl Pair {
    fn new(name: &str) -> Self {
        let stage = Stage::new(name);
        for (volume, id) in [("v", "two"), ("v", "three"), ("w", "other")] {
            let mut image = fs::read(stage.image()).expect("read the image");
            image[70_000..75_000].copy_from_slice(&random_bytes(5000));
            fs::write(stage.image(), image).expect("change the image");
            let line = ["backup", "--quiet", "--volume", volume, "--backup-id", id];
            stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
        }
        let (far, far_key) = (stage.path("far"), stage.path("far-key"));
        let url = file_url(&far);
        let line = ["init", "--quiet", "--chunk-size", "16KiB", "--repo", &url, "--new-key-file"];
        let mut init = stage.mover.command(line.iter().map(|t| p(t)).chain([far_key.clone()]));
        let _ = tests::MoverOutput::of(init.env("MOVER_KEY_FILE", "")).expect_code(0);
        Self { stage, far, far_key }
    }

    fn line(&self, more: &[&str]) -> Vec<PathBuf> {
        let to = [p("copy"), p("--to"), p(&file_url(&self.far)), p("--to-key-file")];
        to.into_iter().chain([self.far_key.clone()]).chain(more.iter().map(|t| p(t))).collect()
    }

    fn far(&self, args: &[&str]) -> tests::MoverOutput {
        let mut command = self.stage.mover.command(args);
        command.env("MOVER_REPO", file_url(&self.far)).env("MOVER_KEY_FILE", &self.far_key);
        tests::MoverOutput::of(&mut command)
    }

    fn copied(&self) -> Vec<String> {
        let id = |b: &Value| b["backup_id"].as_str().expect("an id").to_owned();
        self.far(&["list", "--json"]).expect_code(0).json_lines().iter().map(id).collect()
    }
}

#[test]
fn all_is_copied_once_and_restores_from_there() {
    let pair = Pair::new("copy-all");
    let dry = pair.stage.mover.ok(pair.line(&["--dry-run"])).text();
    assert!(dry.ends_with("would copy 4 backups, 0 are there already\n"), "{dry}");
    assert!(pair.copied().is_empty());
    let lines = pair.stage.mover.ok(pair.line(&["--json"])).json_lines();
    let copied: Vec<&Value> = lines.iter().filter(|l| l["type"] == "copied").collect();
    assert_eq!(copied.len(), 4);
    let base =
        |id: &str| copied.iter().find(|l| l["backup_id"] == id).expect("a line")["base"].clone();
    assert_eq!((base("two"), base("three")), (pair.stage.backup_id.as_str().into(), "two".into()));
    assert!(base("other").is_null());
    let summary = lines.last().expect("a summary");
    assert_eq!((&summary["copied"], &summary["already_there"]), (&4.into(), &0.into()));
    assert_eq!(pair.copied(), [&*pair.stage.backup_id, "two", "three", "other"]);

    let again = pair.stage.mover.ok(pair.line(&[])).text();
    assert!(again.ends_with("copied 0 backups, 4 were there already\n"), "{again}");
    let target = pair.stage.path("restored");
    let _ = pair.far(&["restore", "w@other", target.to_str().expect("a path")]).expect_code(0);
    assert_eq!(
        fs::read(target).unwrap_or_default(),
        fs::read(pair.stage.image()).unwrap_or_default()
    );
    let shown = pair.far(&["show", "v@two"]).expect_code(0).text();
    assert!(shown.contains("  from repository "), "{shown}");
}

#[test]
fn volumes_rules_and_names_say_what_is_copied() {
    let pair = Pair::new("copy-some");
    pair.stage.mover.ok(pair.line(&["--quiet", "--volume", "w"]));
    assert_eq!(pair.copied(), ["other"]);
    pair.stage.mover.ok(pair.line(&["--quiet", "--volume", "v", "--keep-last", "1"]));
    assert_eq!(pair.copied(), ["three", "other"]);
    pair.stage.mover.ok(pair.line(&["--quiet", "v@two", "w@other"]));
    assert_eq!(pair.copied(), ["two", "three", "other"]);
    let (mover, line) = (&pair.stage.mover, |more: &[&str]| pair.line(more));
    expect_error(mover.run(line(&["v@two", "--keep-last", "1"])), 2, "policy");
    expect_error(mover.run(line(&["v@nothing"])), 2, "no such backup");
    expect_error(mover.run(line(&["v@two", "--volume", "w"])), 2, "--volume");
}

#[test]
fn what_stands_in_the_way_is_said_and_the_rest_is_copied() {
    let pair = Pair::new("copy-refused");
    let image = pair.stage.image();
    let image = image.to_str().expect("a path");
    let _ = pair
        .far(&["backup", "--quiet", image, "--volume", "v", "--backup-id", "two"])
        .expect_code(0);
    let output = pair.stage.mover.run(pair.line(&[])).expect_code(2);
    assert!(output.text().contains("copied 3 backups"), "{}", output.text());
    assert!(output.stderr.contains("another backup of that name"), "{}", output.stderr);
    let _ = pair.far(&["forget", "v@three"]).expect_code(0);
    let output = pair.stage.mover.run(pair.line(&["v@three"])).expect_code(2);
    assert!(output.stderr.contains("was forgotten"), "{}", output.stderr);

    let (mover, url) = (&pair.stage.mover, file_url(&pair.stage.repository()));
    assert!(mover.run(["copy"]).expect_code(2).stderr.contains("--to"));
    expect_error(mover.run(["copy", "--to", &url]), 4, "--to-key-file");
    let own = [p("copy"), p("--to"), p(&url), p("--to-key-file"), pair.stage.key()];
    expect_error(mover.run(own), 2, "there already");
    let wrong = [p("copy"), p("--to"), p(&file_url(&pair.far)), p("--to-key-file")];
    expect_error(mover.run(wrong.into_iter().chain([pair.stage.key()])), 4, "key");
    expect_error(mover.run(pair.line(&["--memory", "64MiB"])), 2, "--memory");
}

#[test]
fn a_copy_to_a_server_is_stopped_and_gone_on_with() {
    const MIB: u64 = 1 << 20;
    let server = tests::require_s3!(ceph);
    let bucket = server.bucket();
    let stage = Stage::new("copy-server");
    let image = stage.path("large");
    fs::write(&image, random_bytes(48 << 20)).expect("write the image");
    let line = ["backup", "-q", "--volume", "large", "--backup-id", "b"];
    stage.mover.ok(line.iter().map(|t| p(t)).chain([image.clone()]));
    let (url, key) = (bucket.url("far"), stage.path("far-key"));
    let far = |args: &[&str]| {
        let mut command = stage.mover.command(args);
        command.envs(server.environment()).env("MOVER_REPO", &url).env("MOVER_KEY_FILE", &key);
        command
    };
    let mut init = far(&["init", "-q", "--new-key-file", key.to_str().expect("a path")]);
    let _ = MoverOutput::of(init.env_remove("MOVER_KEY_FILE")).expect_code(0);
    let copy = |more: &[&str]| {
        let line = ["copy", "--volume", "large", "--to", &url, "--checkpoint-interval", "4MiB"];
        let line = line.iter().chain(["--json", "--to-key-file"].iter()).map(|t| p(t));
        let line = line.chain([key.clone()]).chain(more.iter().map(|t| p(t)));
        let mut command = stage.mover.command(line);
        command.envs(server.environment());
        command
    };
    let mut slow = copy(&["--limit-upload", "4MiB"]);
    let slow = slow.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = slow.spawn().expect("start a copy");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    loop {
        let line = lines.next().expect("a line of progress").expect("text");
        let progress: Value = serde_json::from_str(&line).expect("JSON");
        if progress["uploaded_bytes"].as_u64().expect("a number") >= 12 * MIB {
            break;
        }
    }
    let error = cancelled_by(&mut child, "TERM", Duration::from_secs(10));
    assert!(error.contains("run the same command again"), "{error}");
    assert!(MoverOutput::of(&mut far(&["list", "--json"])).expect_code(0).json_lines().is_empty());
    let done = MoverOutput::of(&mut copy(&[])).expect_code(0);
    let lines = done.json_lines();
    let copied = lines.iter().find(|l| l["type"] == "copied").expect("a line");
    assert!(copied["resumed"]["bytes"].as_u64().unwrap_or(0) >= 4 * MIB, "{copied}");
    assert!(copied["stored_bytes"].as_u64().expect("a number") < 44 * MIB, "{copied}");
    let target = stage.path("restored");
    let line = ["restore", "large@b", target.to_str().expect("a path"), "--verify"];
    let _ = MoverOutput::of(&mut far(&line)).expect_code(0);
    assert_eq!(tests::first_difference(&image, &target), None);
}
