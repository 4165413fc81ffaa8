//! How the program ends: readers that leave, full disks, signals; and what others may see of it.

use super::{Stage, p};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tests::Rng;

/// Standard output whose reader has left.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_leaves_is_no_news() {
    let stage = Stage::new("epipe");
    for (line, code) in [
        (&["list"][..], 0),
        (&["list", "--json"], 0),
        (&["show", "v@latest"], 0),
        (&["diff", "v@latest", "v@latest"], 0),
        (&["--help"], 0),
        (&["completions", "bash"], 0),
        (&["verify", "v@latest", "--json"], 0),
        (&["restore", "v@latest", "-"], 1),
    ] {
        let output = stage.mover.command(line).stdout(closed_pipe()).output().expect("run");
        assert_eq!(output.status.code(), Some(code), "{line:?}");
        assert!(output.stderr.is_empty(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let stage = Stage::new("full");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    for line in [&["list"][..], &["diff", "v@latest", "v@latest"], &["restore", "v@latest", "-"]] {
        let stdout = full.try_clone().expect("a descriptor");
        let output = stage.mover.command(line).stdout(stdout).output().expect("run");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

fn signal(child: &Child, name: &str) {
    tests::run_ok("kill", ["-s", name, &child.id().to_string()]);
}

/// Waits for it; a hang is killed and is a failure.
fn ends_within(child: &mut Child, limit: Duration) -> Option<i32> {
    let begun = Instant::now();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            drop(ended);
            return status.code();
        }
        if begun.elapsed() > limit {
            child.kill().expect("kill");
            child.wait().expect("wait");
            panic!("it still ran after {limit:?}");
        }
        let _ = end.recv_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_signal_stops_a_backup_which_then_can_be_done_again() {
    let stage = Stage::new("signal");
    // slow to compress: some seconds a core at level 19
    let mut rng = Rng::new(9);
    let words: Vec<Vec<u8>> = (0..4096).map(|_| rng.bytes(9)).collect();
    let mut text = Vec::new();
    while text.len() < 192 << 20 {
        let word = usize::try_from(rng.below(4096)).expect("small");
        text.extend_from_slice(&words[word]);
    }
    let image = stage.path("large");
    fs::write(&image, &text).expect("write the image");
    for name in ["TERM", "INT"] {
        let line = ["backup", "--volume", "large", "--json", "--compression", "zstd:19"];
        let mut command = stage.mover.command(line.iter().map(|t| p(t)).chain([image.clone()]));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start a backup");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let first = lines.next().expect("a line of progress").expect("text");
        assert!(first.contains("\"type\":\"progress\""), "{first}");
        cancelled_by(&mut child, name, Duration::from_secs(11));
    }
    assert!(stage.mover.ok(["list", "--volume", "large", "--json"]).json_lines().is_empty());
    stage.mover.ok([p("backup"), p("--volume"), p("large"), p("-q"), image.clone()]);
    stage.mover.ok([p("verify"), p("large@latest"), p("--device"), image]);
}

/// Signals it, and gives the one error that it ends with.
pub(crate) fn cancelled_by(child: &mut Child, name: &str, within: Duration) -> String {
    signal(child, name);
    assert_eq!(ends_within(child, within), Some(143), "{name}");
    let mut stderr = String::new();
    child.stderr.take().expect("its errors").read_to_string(&mut stderr).expect("text");
    let mut errors = stderr.lines().filter(|l| l.contains("\"type\":\"error\""));
    let error = errors.next().expect("an error").to_owned();
    assert_eq!(errors.next(), None, "{stderr}");
    assert!(error.contains("\"kind\":\"cancelled\""), "{stderr}");
    error
}

#[test]
fn a_signal_does_not_wait_for_packs_that_a_limit_holds_back() {
    const PACK_BYTES: u64 = 4 << 20;
    let stage = Stage::new("paced-signal");
    let image = stage.path("large");
    fs::write(&image, Rng::new(31).bytes(24 << 20)).expect("write the image");
    // one pack at once, the next one 16 s later, and so on
    let line = ["backup", "--volume", "large", "--json", "--limit-upload", "256KiB"];
    let mut command = stage.mover.command(line.iter().map(|t| p(t)).chain([image.clone()]));
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start a backup");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    loop {
        let line = lines.next().expect("a line of progress").expect("text");
        let progress: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        if progress["uploaded_bytes"].as_u64().expect("a number") >= PACK_BYTES {
            break;
        }
    }
    let error = cancelled_by(&mut child, "TERM", Duration::from_secs(10));
    // by its own doing, not because its time was over
    assert!(!error.contains("took too long"), "{error}");
    assert!(stage.mover.ok(["list", "--volume", "large", "--json"]).json_lines().is_empty());
    stage.mover.ok([p("backup"), p("--volume"), p("large"), p("-q"), image.clone()]);
    stage.mover.ok([p("verify"), p("large@latest"), p("--device"), image]);
}

/// Hangs in a passphrase command, which tells when the program has come so far.
fn hanging(stage: &Stage) -> Child {
    let command = "echo ready >&2; exec sleep 60";
    let mut child = stage
        .mover
        .command(["list", "--password-command", command])
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("start");
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().expect("its errors"))
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let stage = Stage::new("second-signal");
    let mut child = hanging(&stage);
    let group = format!("-{}", child.id());
    signal(&child, "TERM");
    signal(&child, "TERM");
    let code = ends_within(&mut child, Duration::from_secs(3));
    let _ = tests::run("kill", ["-s", "KILL", "--", &group]);
    assert_eq!(code, Some(143));
}

#[test]
fn what_does_not_stop_in_time_is_ended() {
    let stage = Stage::new("watchdog");
    let mut child = hanging(&stage);
    let group = format!("-{}", child.id());
    signal(&child, "TERM");
    let code = ends_within(&mut child, Duration::from_secs(11));
    let _ = tests::run("kill", ["-s", "KILL", "--", &group]);
    assert_eq!(code, Some(143));
}

#[test]
fn a_process_that_holds_keys_is_closed_to_others() {
    tests::require_root!();
    const NOBODY: u32 = 65534;
    // nobody has no way into the target directory of root
    let place = tempfile::tempdir().expect("a directory");
    tests::run_ok("chmod", ["755".as_ref(), place.path().as_os_str()]);
    let program = place.path().join("mover");
    fs::copy(tests::mover_bin(), &program).expect("copy the program");
    let mut child = Command::new(program)
        .args(["list", "--repo", "/tmp", "--password-command", "echo ready >&2; exec sleep 60"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .uid(NOBODY)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("start");
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().expect("its errors"))
        .read_line(&mut line)
        .expect("a line");
    let owner = fs::metadata(format!("/proc/{}/environ", child.id())).expect("it runs").uid();
    tests::run_ok("kill", ["-s", "KILL", "--", &format!("-{}", child.id())]);
    child.wait().expect("it ends");
    // what may not be dumped belongs to root in /proc, whoever runs it
    assert_eq!((line.as_str(), owner), ("ready\n", 0));
}
