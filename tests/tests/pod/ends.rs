//! How a run tells a kubelet that it ended, what it makes of limits, and that it does not hang.

use super::{Stage, eventually, termination, text};
use serde_json::Value;
use std::fs;
use std::process::{Child, Stdio};
use tests::{Cgroup, MoverOutput, mover_bin};

#[test]
fn the_termination_message_tells_how_it_ended() {
    let stage = Stage::new("termination", 3);
    let log = stage.path("termination-log");
    let backup =
        ["backup", text(&stage.image), "--volume", "v", "--json", "--termination-log", text(&log)];
    let summary = stage.mover.ok(backup).summary();
    let said = termination(&log);
    assert_eq!((&said["state"], &said["exit_code"]), (&"ok".into(), &0.into()));
    assert_eq!((&said["command"], &said["retryable"]), (&"backup".into(), &false.into()));
    for name in ["backup_id", "read_bytes", "stored_bytes", "engine", "requests"] {
        assert!(!summary[name].is_null(), "{name} in {summary}");
        assert_eq!(said["summary"][name], summary[name], "{name}");
    }

    // what only looks says nothing, or a look into a pod would be what its Job ended with
    stage.mover.ok(["list", "--termination-log", text(&log)]);
    assert_eq!(termination(&log), said);

    let failed =
        stage.mover.run(["verify", "v@nothing", "--json", "--termination-log", text(&log)]);
    let failed = failed.expect_code(2);
    let said = termination(&log);
    let error: Value = serde_json::from_str(failed.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&said["state"], &said["retryable"]), (&"failed".into(), &false.into()));
    assert_eq!((&said["kind"], &said["message"]), (&error["kind"], &error["message"]));
    assert!(said.get("summary").is_none(), "{said}");

    // a command line that makes no sense, as a manifest may have it
    let mut command = stage.mover.command(["backup", "/dev/source", "--snapshto", "s"]);
    command.env("MOVER_TERMINATION_LOG", &log);
    let _ = MoverOutput::of(&mut command).expect_code(2);
    let said = termination(&log);
    assert_eq!((&said["kind"], &said["retryable"]), (&"usage".into(), &false.into()));
    assert!(said["message"].as_str().unwrap().contains("--snapshto"), "{said}");

    // a file that cannot be written changes nothing but a line
    let nowhere = stage.path("no/such/directory");
    let done = stage.mover.ok(["verify", "v@latest", "-q", "--termination-log", text(&nowhere)]);
    assert!(done.stderr.starts_with("warning: "), "{}", done.stderr);
}

/// A backup that waits for a list of changed blocks which never comes.
fn waiting_backup(stage: &Stage, more: &[&str]) -> Child {
    let line = ["backup", text(&stage.image), "--volume", "v", "--json", "--snapshot", "s1"];
    let list = ["--changed-blocks", "-", "--changed-blocks-kind", "allocated"];
    let mut command = stage.mover.command(line.iter().chain(&list).chain(more));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_process_that_is_killed_leaves_a_message() {
    let stage = Stage::new("killed", 1);
    let log = stage.path("termination-log");
    // as a kubelet makes it
    fs::write(&log, "").unwrap();
    let mut child = waiting_backup(&stage, &["--termination-log", text(&log)]);
    eventually("the message of the start", || {
        fs::metadata(&log).ok().filter(|meta| meta.len() > 0)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let said = termination(&log);
    assert_eq!((&said["state"], &said["command"]), (&"killed".into(), &"backup".into()));
    assert!(said["message"].as_str().unwrap().contains("out of memory"), "{said}");
}

#[test]
fn a_run_in_which_nothing_moves_ends_and_may_be_tried_again() {
    let stage = Stage::new("stall", 1);
    let log = stage.path("termination-log");
    let more = ["--stall-timeout", "2s", "--termination-log", text(&log)];
    let mut child = waiting_backup(&stage, &more);
    // dropped only behind the wait: an end of the list would be something else
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let error: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&error["type"], &error["kind"]), (&"error".into(), &"unavailable".into()));
    assert!(error["message"].as_str().unwrap().contains("nothing moved for 2 s"), "{error}");
    let said = termination(&log);
    assert_eq!((&said["state"], &said["retryable"]), (&"failed".into(), &true.into()));
}

#[test]
fn limits_decide_memory_and_threads_and_are_said_at_the_start() {
    tests::require_root!();
    let stage = Stage::new("limits", 3);
    let group = Cgroup::with_memory_limit(128 << 20);
    let mut command = group.command(mover_bin());
    stage.mover.dress(&mut command);
    let line = ["backup", text(&stage.image), "--volume", "v", "--json", "--log-level", "info"];
    command.args(line);
    let done = MoverOutput::of(&mut command).expect_code(0);
    assert!(!group.killed_for_memory());
    let bounds = &done.summary()["bounds"];
    assert_eq!(bounds["memory_bytes"], 112 << 20, "{bounds}");
    let mut lines = done.stderr.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let first = lines.next().unwrap();
    assert_eq!((&first["type"], &first["level"]), (&"log".into(), &"info".into()));
    let said = first["message"].as_str().unwrap();
    assert!(said.starts_with("memory: limit 128 MiB, 112 MiB are used; processor: "), "{said}");
    assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");

    let mut command = group.command(mover_bin());
    stage.mover.dress(&mut command);
    command.args(["verify", "v@latest", "--quiet", "--memory", "256MiB"]);
    let done = MoverOutput::of(&mut command).expect_code(0);
    assert!(done.stderr.contains("the kernel may kill the process"), "{}", done.stderr);
}
