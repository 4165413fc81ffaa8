//! Ends that cannot wait: a store, a device or a reader of the log that does not answer any more
//! must not keep a pod longer than its grace period, nor from saying how it ended.

use super::runs::{Output, fails, finish, only_error, signal, until_uploaded};
use super::shop::Shop;
use super::{Stage, eventually, termination, text};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tests::{BadFile, Badness, LoopDevice, Mood, MoverOutput, require_s3};

const MIB: u64 = 1 << 20;
/// Ten seconds are promised; the rest is for a machine that has much else to do.
const GRACE: Duration = Duration::from_secs(12);

/// A backup that has stored something, when the store falls silent.
fn met_by_silence(shop: &Shop, log: &Path) -> (Child, Output) {
    let mover = shop.mover(shop.server.environment());
    let slow = ["--limit-upload", "12MiB", "--checkpoint-interval", "8MiB"];
    let more = ["--snapshot", "s1", "--json", "--termination-log", text(log)];
    let mut command = mover.command(shop.backup().iter().chain(&slow).chain(&more));
    let met = until_uploaded(&mut command, 24 * MIB);
    shop.relay.becomes(Mood::Silent);
    met
}

#[test]
fn a_store_that_falls_silent_does_not_hold_up_a_stop() {
    let shop = Shop::new("silent-store", require_s3!(moto), 64);
    let log = shop.stage.path("termination-log");
    let (child, lines) = met_by_silence(&shop, &log);
    let begun = Instant::now();
    signal(&child, "TERM");
    let output = finish(child, lines);
    assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
    let said = fails(output, &log, 143);
    assert!(said.contains("run the same command again"), "{said}");
    assert_eq!(termination(&log)["state"], "stopped");
    // and all that was noted before counts
    shop.relay.becomes(Mood::Seeded);
    let line = [&shop.backup()[..], &["--snapshot", "s1", "--json"]].concat();
    let mover = shop.mover(shop.server.environment());
    let summary = mover.ok(line).summary();
    assert!(summary["resumed"]["bytes"].as_u64().unwrap_or(0) >= 8 * MIB, "{summary}");
    mover.ok(["verify", "db@latest", "--device", text(&shop.stage.image)]);
}

#[test]
fn a_second_signal_ends_it_at_once_and_is_told() {
    let shop = Shop::new("second-signal", require_s3!(moto), 64);
    let log = shop.stage.path("termination-log");
    let (child, lines) = met_by_silence(&shop, &log);
    signal(&child, "TERM");
    let asked = |said: &serde_json::Value| {
        said["message"].as_str().unwrap().starts_with("it was asked to stop")
    };
    eventually("what a stop says", || asked(&termination(&log)).then_some(()));
    let begun = Instant::now();
    signal(&child, "TERM");
    let _ = finish(child, lines).expect_code(143);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let said = termination(&log);
    assert!(asked(&said), "{said}");
    assert_eq!(
        (&said["state"], &said["hint"]),
        (&"killed".into(), &"run the same command again".into())
    );
}

/// A volume whose middle is never read to an end.
struct Hanging {
    stage: Stage,
    bad: BadFile,
    log: PathBuf,
}

const MIDDLE: std::ops::Range<u64> = 8 * MIB..9 * MIB;

impl Hanging {
    fn new(name: &str) -> Self {
        let stage = Stage::new(name, 24);
        let bad = BadFile::new(&stage.image, Badness::default());
        // the server says once what it does not know; who ends later need not ask it for that
        drop(fs::File::open(bad.path()));
        bad.becomes(Badness { hangs: Some(MIDDLE), ..Badness::default() });
        let log = stage.path("termination-log");
        Self { stage, bad, log }
    }

    fn backup(&self, source: &Path, more: &[&str]) -> Command {
        let line = ["backup", text(source), "--volume", "v", "--snapshot", "s1", "--json"];
        let log = ["--termination-log", text(&self.log)];
        let mut command = self.stage.mover.command(line.iter().chain(&log).chain(more));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Started, and waiting for the device.
    fn start(&self, source: &Path, more: &[&str]) -> (Child, Output) {
        let mut child = self.backup(source, more).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        self.bad.wait_for_hang();
        (child, lines)
    }
}

#[test]
fn a_device_that_hangs_does_not_hold_up_the_end() {
    tests::require_root!();
    let cached = ["--direct-io", "never"];
    for (name, more, stopped, code, words) in [
        ("hang-signal", &[][..], true, 143, "what was in flight took too long"),
        ("hang-deadline", &["--deadline", "1s"], false, 6, "--deadline is reached"),
        ("hang-stall", &["--stall-timeout", "2s"], false, 1, "nothing moved for 2 s"),
    ] {
        let hanging = Hanging::new(name);
        let (mut child, lines) = hanging.start(&hanging.bad.path(), &[&cached[..], more].concat());
        let begun = Instant::now();
        if stopped {
            signal(&child, "TERM");
        }
        eventually("its end", || child.try_wait().unwrap());
        assert!(begun.elapsed() < GRACE + Duration::from_secs(3), "{name}: {:?}", begun.elapsed());
        let output = finish(child, lines);
        let said = termination(&hanging.log);
        let error = only_error(output, &said, code);
        assert!(error.contains(words), "{error}");
        // it was the device, and nothing of the run stands in the way of the next
        hanging.bad.becomes(Badness::default());
        let again = MoverOutput::of(&mut hanging.backup(&hanging.bad.path(), &cached));
        let _ = again.expect_code(0);
    }
}

/// Reads past the page cache cannot be given up: the kernel keeps the process until the device
/// answers. What a kubelet reads is there before.
#[test]
fn what_the_kernel_does_not_let_go_of_has_said_how_it_ends() {
    tests::require_root!();
    let hanging = Hanging::new("hang-kernel");
    let device = LoopDevice::attach(&hanging.bad.path());
    let (child, lines) = hanging.start(device.path(), &["--engine", "blocking"]);
    signal(&child, "TERM");
    let begun = Instant::now();
    eventually("the message of the end", || {
        (termination(&hanging.log)["state"] == "stopped").then_some(())
    });
    assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
    hanging.bad.becomes(Badness::default());
    let said = fails(finish(child, lines), &hanging.log, 143);
    assert!(said.contains("what was in flight took too long"), "{said}");
}

/// How a run ended is there for a kubelet before anybody is waited for who may never read it.
#[test]
fn an_error_that_nobody_reads_is_in_the_termination_message() {
    let stage = Stage::new("full-log-at-the-end", 1);
    let log = stage.path("termination-log");
    let (unread, full) = full_pipe();
    let line = ["backup", "/does/not/exist", "--volume", "v", "--termination-log", text(&log)];
    let mut command = stage.mover.command(line);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full);
    let mut child = command.spawn().unwrap();
    drop(command);
    eventually("the message of the end", || {
        let said = fs::read_to_string(&log).ok()?;
        let said: serde_json::Value = serde_json::from_str(&said).ok()?;
        (said["state"] == "failed" && said["exit_code"] == 2).then_some(())
    });
    assert!(child.try_wait().unwrap().is_none(), "it waits for somebody who reads its error");
    drop(unread);
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

/// As much as it holds, and nobody reads.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (unread, mut full) = std::io::pipe().unwrap();
    full.write_all(&vec![b'\n'; 64 << 10]).unwrap();
    (unread, full)
}

/// A log that nobody reads any more stops who writes to it, and is no reason to stay.
#[test]
fn a_log_that_nobody_reads_does_not_hold_up_the_end() {
    let stage = Stage::new("full-log", 1);
    let log = stage.path("termination-log");
    let (unread, full) = full_pipe();
    let line = ["backup", text(&stage.image), "--volume", "v", "--json", "--log-level", "info"];
    let mut command = stage.mover.command(line.iter().chain(&["--termination-log", text(&log)]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full);
    let mut child = command.spawn().unwrap();
    drop(command);
    eventually("the message of the start", || {
        fs::metadata(&log).ok().filter(|meta| meta.len() > 0)
    });
    // its first line of log does not get through, and from now on it hears of signals
    let tasks = format!("/proc/{}/task", child.id());
    eventually("the thread that waits for signals", || {
        let mut tasks = fs::read_dir(&tasks).ok()?;
        let named = |path: PathBuf| fs::read_to_string(path.join("comm")).ok();
        tasks
            .any(|task| {
                task.ok().and_then(|task| named(task.path())).as_deref() == Some("supervise\n")
            })
            .then_some(())
    });
    signal(&child, "TERM");
    let status = child.wait().unwrap();
    drop(unread);
    assert_eq!(status.code(), Some(143));
    let said = termination(&log);
    assert_eq!((&said["state"], &said["exit_code"]), (&"stopped".into(), &143.into()));
}
