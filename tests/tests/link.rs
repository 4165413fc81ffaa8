//! Backups and restores over a line with a latency and a rate, and with limits on the rate: what
//! arrives is right, how many requests it takes, and that limits hold. How quick it is is measured
//! elsewhere; here only lower bounds are timed.

#![allow(clippy::print_stdout)] // the harness shows it for tests that fail

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests::{
    Mover, Relay, RelayOptions, Rng, S3Server, first_difference, require_s3, volume_dir, work_dir,
    write_extents,
};

const MIB: usize = 1 << 20;

/// A volume of `data` incompressible bytes between zeros.
fn volume(data: usize) -> (TempDir, PathBuf) {
    let directory = volume_dir("link");
    let mut bytes = vec![0; MIB];
    bytes.extend(Rng::new(30).bytes(data));
    bytes.resize(bytes.len() + MIB, 0);
    let path = directory.path().join("volume");
    std::fs::write(&path, bytes).expect("write the volume");
    (directory, path)
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {summary}"))
}

fn requests(summary: &Value) -> u64 {
    let counts = summary["requests"].as_object().expect("requests by kind");
    counts.values().map(|n| n.as_u64().expect("a count")).sum()
}

fn back_up(mover: &Mover, source: &Path, more: &[&str]) -> Value {
    let source = source.to_str().expect("UTF-8");
    let args = ["--json", "--no-progress", "backup", source, "--volume", "v"];
    mover.ok(args.iter().chain(more)).summary()
}

fn restore(mover: &Mover, target: &Path, more: &[&str]) -> Value {
    let target = target.to_str().expect("UTF-8");
    mover
        .ok(["--json", "--no-progress", "restore", "v@latest", target].iter().chain(more))
        .summary()
}

/// There and back through a relay in front of `server`.
fn over_a_line(server: &S3Server) {
    let bucket = server.bucket();
    let address = server.endpoint.trim_start_matches("http://").parse().expect("IP and port");
    let line = RelayOptions::symmetric(address, Duration::from_millis(10), Some(64 << 20));
    let relay = Relay::start(line).expect("start a relay");
    let endpoint = format!("http://{}", relay.address());
    let far = S3Server { endpoint, ..server.clone() };
    let directory = work_dir("link");
    let key = directory.path().join("key");
    let mover = Mover::new()
        .envs(far.environment())
        .env("MOVER_REPO", bucket.url("far"))
        .env("MOVER_KEY_FILE", &key);
    mover.ok(["init", "--new-key-file", key.to_str().expect("UTF-8")]);
    let (_volumes, source) = volume(40 * MIB);

    let backup = back_up(&mover, &source, &[]);
    let packs = number(&backup, "packs");
    println!("backup: {packs} packs, {}", backup["requests"]);
    assert!(packs <= 4, "{backup}");
    assert!(requests(&backup) <= packs + 20, "{backup}");
    let up = relay.counts();
    assert!(up.up_bytes >= 40 << 20, "the packs went over the line: {up:?}");

    let target = directory.path().join("restored");
    let restored = restore(&mover, &target, &[]);
    println!("restore: {}", restored["requests"]);
    assert_eq!(first_difference(&source, &target), None);
    assert!(requests(&restored) <= 4 * packs + 16, "{restored}");
    let both = relay.counts();
    assert!(both.down_bytes - up.down_bytes >= 40 << 20, "{both:?}");

    // what is there already is not sent again
    let again = back_up(&mover, &source, &[]);
    assert!(relay.counts().up_bytes - both.up_bytes < 1 << 20, "{again}");
    assert!(requests(&again) <= 30, "{again}");
}

#[test]
fn a_round_trip_over_a_line_with_latency_to_ceph() {
    over_a_line(&require_s3!(ceph));
}

#[test]
fn a_round_trip_over_a_line_with_latency_to_moto() {
    over_a_line(&require_s3!(moto));
}

#[test]
fn limits_hold_and_change_no_byte() {
    let directory = work_dir("limits");
    let repository = format!("file://{}", directory.path().join("repository").display());
    let mover = Mover::new().env("MOVER_REPO", repository);
    mover.ok(["init", "--encryption", "none"]);
    let (_volumes, source) = volume(12 * MIB);
    let timed = |run: &dyn Fn() -> Value| {
        let begun = Instant::now();
        (run(), begun.elapsed())
    };

    // units of a MiB, each after the time of those before it
    let slow = ["--limit-read", "10MiB", "--snapshot", "s0"];
    let (_, took) = timed(&|| back_up(&mover, &source, &slow));
    assert!(took >= Duration::from_millis(1200), "{took:?}");

    // what the audit reads counts too
    let list = directory.path().join("nothing.json");
    write_extents(&source, &source, &list);
    let list = list.to_str().expect("UTF-8");
    let audit = ["--limit-read", "10MiB", "--audit", "all", "--changed-blocks", list];
    let audit = [&audit[..], &["--base-snapshot", "s0", "--snapshot", "s1"]].concat();
    let (backup, took) = timed(&|| back_up(&mover, &source, &audit));
    assert_eq!(number(&backup["audit"], "bytes"), 14 << 20, "{backup}");
    assert!(took >= Duration::from_millis(1300), "{took:?}");

    // a pack is sent at once; two of 8 and 4 MiB: the second after the time of the first
    let other = directory.path().join("other");
    let far = Mover::new().env("MOVER_REPO", other).env("MOVER_LIMIT_UPLOAD", "8MiB");
    far.ok(["init", "--encryption", "none"]);
    let (backup, took) = timed(&|| back_up(&far, &source, &[]));
    assert!(took >= Duration::from_millis(990), "{took:?}, {backup}");
    assert_eq!(number(&backup, "packs"), 3, "two of chunks, one of pages: {backup}");

    let target = directory.path().join("restored");
    let (_, took) = timed(&|| restore(&far, &target, &["--limit-download", "8MiB"]));
    assert!(took >= Duration::from_millis(1000), "{took:?}");
    assert_eq!(first_difference(&source, &target), None);
}
