//! Image files as targets: who else writes to them, and what is longer than the volume.

use super::{IMAGE_BYTES, Stage, expect_error, p, random_bytes};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn forced(backup: &str, target: &Path) -> [PathBuf; 4] {
    [p("restore"), p(backup), target.to_owned(), p("--force")]
}

/// Until a file has this length.
fn wait_for_length(path: &Path, bytes: u64) {
    let begun = Instant::now();
    let (_open, never) = std::sync::mpsc::channel::<()>();
    while fs::metadata(path).map_or(0, |meta| meta.len()) != bytes {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} does not grow", path.display());
        let _ = never.recv_timeout(Duration::from_millis(5));
    }
}

/// A second restore onto the first one's file moves only what was changed there since.
#[test]
fn a_differential_restore_says_what_was_there() {
    let stage = Stage::new("differential");
    let image = fs::read(stage.image()).expect("image");
    let spec = format!("v@{}", stage.backup_id);
    let target = stage.path("target");
    stage.mover.ok([p("restore"), p(&spec), target.clone()]);
    let mut bytes = image.clone();
    bytes[100] ^= 1;
    fs::write(&target, &bytes).expect("a changed target");
    let line = |more: &[&str]| {
        let line = [p("restore"), p(&spec), target.clone(), p("--force"), p("--differential")];
        stage.mover.run(line.into_iter().chain(more.iter().map(|t| p(t))))
    };
    let said = line(&["--json", "--verify"]).expect_code(0).text();
    let mut lines = said.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let summary = lines.next_back().expect("a summary");
    assert_eq!(summary["type"], "summary", "{said}");
    let same = summary["same_bytes"].as_u64().expect("bytes");
    let wrote = summary["data_bytes"].as_u64().expect("bytes");
    assert!(wrote > 0 && wrote < 100_000 && same + wrote == image.len() as u64, "{summary}");
    assert!(fs::read(&target).expect("restored") == image);
    let text = line(&[]).expect_code(0).text();
    assert!(text.contains("were there already") && text.contains("0 B in 0 reads"), "{text}");
    expect_error(stage.mover.run(["restore", &spec, "-", "--differential"]), 2, "standard output");
    expect_error(line(&["--skip-damaged"]), 2, "--skip-damaged");
    expect_error(line(&["--live"]), 2, "--live");
}

#[test]
fn two_restores_into_one_image_do_not_mix() {
    let stage = Stage::new("one-image");
    let image = stage.path("large");
    fs::write(&image, random_bytes(48 << 20)).expect("write the image");
    stage.mover.ok([p("backup"), p("--volume"), p("large"), p("-q"), image.clone()]);
    let target = stage.path("target");
    let line = ["restore", "large@latest", "--limit-download", "6MiB"].map(p);
    let mut slow = stage.mover.command(line.into_iter().chain([target.clone()]));
    let slow = slow.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start a restore");
    // it is made that long when it is locked
    wait_for_length(&target, 48 << 20);
    let error = expect_error(stage.mover.run(forced("v@latest", &target)), 2, "target");
    assert!(error.contains("another process is writing to it"), "{error}");
    let slow = slow.wait_with_output().expect("wait");
    assert_eq!(slow.status.code(), Some(0), "{}", String::from_utf8_lossy(&slow.stderr));
    assert!(fs::read(&image).expect("read") == fs::read(&target).expect("read"));
    // and nothing stays behind
    stage.mover.ok(forced("v@latest", &target));
}

#[test]
fn an_image_that_is_locked_is_left_as_it_is() {
    let stage = Stage::new("locked-image");
    let target = stage.path("target");
    let before = random_bytes(IMAGE_BYTES / 2);
    fs::write(&target, &before).expect("write the target");
    let file = File::options().read(true).write(true).open(&target).expect("open it");
    let refused = || {
        let error = expect_error(stage.mover.run(forced("v@latest", &target)), 2, "target");
        assert!(error.contains("another process is writing to it"), "{error}");
        assert!(fs::read(&target).expect("read") == before, "it was changed");
    };
    // as QEMU has it, for reading too
    fcntl_lock(&file, FlockOperation::LockShared).expect("lock it");
    refused();
    fcntl_lock(&file, FlockOperation::Unlock).expect("unlock it");
    flock(&file, FlockOperation::LockExclusive).expect("lock it");
    refused();
    // a source may be locked
    stage.mover.ok([p("backup"), p("--volume"), p("locked"), p("-q"), target.clone()]);
    stage.mover.ok([p("verify"), p("locked@latest"), p("--device"), target.clone()]);
    drop(file);
    stage.mover.ok(forced("v@latest", &target));
    assert!(fs::read(&target).expect("read") == fs::read(stage.image()).expect("read"));
}

#[test]
fn a_file_that_is_longer_than_the_volume_is_said_to_be() {
    let stage = Stage::new("longer");
    let target = stage.path("target");
    fs::write(&target, vec![9; IMAGE_BYTES + 1000]).expect("write the target");
    let warning = |line: Vec<PathBuf>| {
        let summary = stage.mover.ok(line.into_iter().chain([p("--json")])).summary();
        let warnings = summary["warnings"].as_array().expect("a list").clone();
        assert!(warnings.len() <= 1, "{summary}");
        warnings.first().map(|text| text.as_str().expect("a text").to_owned())
    };
    let verify = || vec![p("verify"), p("v@latest"), p("--device"), target.clone()];
    let said = warning(forced("v@latest", &target).to_vec()).expect("a warning");
    assert!(said.contains("the 1000 bytes behind it stay"), "{said}");
    assert!(said.contains(&format!("`truncate -s {IMAGE_BYTES} ")), "{said}");
    assert_eq!(fs::read(&target).expect("read")[IMAGE_BYTES..], [9; 1000]);
    let said = warning(verify()).expect("a warning");
    assert!(said.contains("the 1000 bytes behind it were not compared"), "{said}");
    // a part of the volume says nothing of the length
    let part = forced("v@latest", &target).into_iter().chain([p("--range"), p("0..65536")]);
    assert_eq!(warning(part.collect()), None);
    let file = File::options().write(true).open(&target).expect("open it");
    file.set_len(IMAGE_BYTES as u64).expect("cut it");
    assert_eq!(warning(forced("v@latest", &target).to_vec()), None);
    assert_eq!(warning(verify()), None);
    // one that is shorter was not written to
    file.set_len(4096).expect("cut it");
    let error = expect_error(stage.mover.run(verify()), 3, "it has 4096 bytes");
    assert!(!error.contains("written to"), "{error}");
}
