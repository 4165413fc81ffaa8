//! Image files as targets: who else writes to them.

use super::{IMAGE_BYTES, Stage, expect_error, p, random_bytes};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
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
