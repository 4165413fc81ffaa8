//! A volume that is restored to standard output: success means that it is where it was sent to.

use super::{Stage, expect_error, p, random_bytes};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use tests::{LoopDevice, Mount, MoverOutput, work_dir};

/// A sparse file on a filesystem that is too small for it: what is written goes into the cache of
/// the device over it, and cannot be written back.
#[test]
fn a_device_that_loses_what_was_written_is_an_error() {
    tests::require_root!();
    let stage = Stage::new("lost-write-back");
    let image = stage.path("noise");
    fs::write(&image, random_bytes(48 << 20)).expect("write the image");
    stage.mover.ok([p("backup"), image.clone(), p("--volume"), p("noise"), p("-q")]);
    let point = work_dir("small");
    let _mount = Mount::new("none".as_ref(), point.path(), "tmpfs", "size=24m");
    let small = point.path().join("target");
    File::create(&small).and_then(|f| f.set_len(48 << 20)).expect("make the target");
    let device = LoopDevice::attach(&small);
    let onto = |path: &Path, more: &[&str]| {
        let file = File::options().write(true).open(path).expect("open the target");
        let line = ["restore", "noise@latest", "-"].iter().chain(more);
        MoverOutput::of(stage.mover.command(line).stdout(file))
    };
    let error = expect_error(onto(device.path(), &[]), 1, "standard output");
    assert!(error.contains("os error"), "{error}");
    drop(device);
    // one that keeps it, and a file
    let sound = stage.path("sound");
    File::create(&sound).and_then(|f| f.set_len(48 << 20)).expect("make the target");
    let device = LoopDevice::attach(&sound);
    let done = onto(device.path(), &["--json"]).expect_code(0);
    assert_eq!(done.summary()["flushed"], true, "{}", done.stderr);
    drop(device);
    assert_eq!(tests::first_difference(&image, &sound), None);
    assert_eq!(onto(&sound, &["--json"]).expect_code(0).summary()["flushed"], true);
}

#[test]
fn an_output_that_is_closed_is_an_error_and_one_that_is_thrown_away_is_none() {
    let stage = Stage::new("closed-output");
    let run = |redirect: &str, more: &[&str]| {
        let line = format!("\"$@\" {redirect}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line, "sh"]).arg(tests::mover_bin());
        stage.mover.dress(command.args(["restore", "v@latest", "-"]).args(more));
        MoverOutput::of(command.stdout(Stdio::null()))
    };
    let error = expect_error(run(">&-", &[]), 2, "standard output");
    assert!(error.contains("it is closed"), "{error}");
    // as some give it who want to throw the bytes away
    let error = expect_error(run("<> /dev/null >&0", &[]), 2, "opened for reading too");
    assert!(error.contains("`> /dev/null`"), "{error}");
    for redirect in ["> /dev/null", "| cat > /dev/null"] {
        // nobody knows whether a pipe's reader has kept it
        let done = run(redirect, &["--json"]).expect_code(0);
        assert!(done.summary()["flushed"].is_null(), "{}", done.stderr);
    }
}
