//! Every command on small stacks: what runs on those of musl's size, or below a `ulimit -s` that
//! somebody has set for good reasons, must not end in a crash.
//!
//! `ulimit -s` is for the main thread, `RUST_MIN_STACK` for each that is started. A thread that
//! needs more ends the program, which names it. The whole suite runs with somewhat more
//! (`tests/src/binary.rs`), so what is not run here is bounded too.

use super::{Stage, file_url, p};
use std::path::PathBuf;
use std::process::Command;
use tests::mover_bin;

/// KiB; musl's threads have no more.
const STACK_KIB: u32 = 128;

#[test]
fn no_command_takes_a_large_stack() {
    let stage = Stage::new("small-stack");
    let key = stage.directory.path().join("key");
    let other = stage.directory.path().join("other");
    stage.mover.ok([
        p("init"),
        p("-q"),
        p("--repo"),
        other.clone(),
        p("--new-key-file"),
        key.clone(),
    ]);
    let run = |args: &[PathBuf]| {
        let done = Command::new("sh")
            .args(["-c", &format!("ulimit -s {STACK_KIB}; exec \"$0\" \"$@\"")])
            .arg(mover_bin())
            .args(args)
            .env_clear()
            .env("RUST_MIN_STACK", (STACK_KIB << 10).to_string())
            .env("HOME", stage.directory.path())
            .env("MOVER_REPO", file_url(&stage.repository()))
            .env("MOVER_KEY_FILE", &key)
            .output()
            .expect("a shell runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {:?}: {said}", done.status);
    };
    let target = stage.directory.path().join("target");
    let latest = || p("v@latest");
    run(&[p("backup"), stage.image(), p("--volume"), p("v")]);
    run(&[p("backup"), stage.image(), p("--volume"), p("w")]);
    run(&[p("backup"), stage.image(), p("--volume"), p("v"), p("--plan")]);
    run(&[p("list")]);
    run(&[p("show"), latest()]);
    run(&[p("verify"), latest()]);
    run(&[p("verify"), latest(), p("--device"), stage.image()]);
    run(&[p("restore"), latest(), target.clone(), p("--verify")]);
    run(&[p("restore"), latest(), target, p("--verify")]);
    run(&[p("restore"), latest(), p("-")]);
    run(&[p("diff"), latest(), latest()]);
    run(&[p("check"), p("--read-data=all")]);
    run(&[p("check"), p("--repair")]);
    run(&[p("copy"), p("--to"), other, p("--to-key-file"), key.clone(), latest()]);
    run(&[p("key"), p("list")]);
    run(&[p("forget"), p("--volume"), p("v"), p("--keep-last"), p("1")]);
    run(&[p("gc"), p("--dry-run")]);
    run(&[p("gc")]);
    run(&[p("gc")]);
    run(&[p("completions"), p("bash")]);
}
