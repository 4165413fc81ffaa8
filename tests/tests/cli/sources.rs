//! Sources that somebody writes to while they are read.

use super::{Stage, p, random_bytes};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use tests::LoopDevice;

const BACKUP: [&str; 5] = ["backup", "--json", "--volume", "changing", "--fail-on-degraded"];

#[test]
fn a_source_that_is_written_to_meanwhile_makes_a_degraded_backup() {
    let stage = Stage::new("changing");
    let image = stage.path("changing");
    fs::write(&image, random_bytes(24 << 20)).expect("write the image");
    let line = BACKUP.into_iter().chain(["--limit-read", "6MiB"]).map(p).chain([image.clone()]);
    let line: Vec<PathBuf> = line.collect();
    let mut slow = stage.mover.command(&line);
    let mut slow =
        slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start a backup");
    let mut lines = BufReader::new(slow.stdout.take().expect("its output")).lines();
    let mut next = || {
        let line = lines.next()?.expect("text");
        Some(serde_json::from_str::<Value>(&line).expect("JSON"))
    };
    while next().expect("a line of progress")["read_bytes"].as_u64() == Some(0) {}
    let file = File::options().write(true).open(&image).expect("open the image");
    file.write_all_at(b"written meanwhile", 12345).expect("write to it");
    let summary = std::iter::from_fn(next).last().expect("a summary");
    let output = slow.wait_with_output().expect("wait");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    let reasons = summary["degraded"].as_array().expect("a list");
    let [reason] = &reasons[..] else { panic!("{summary}") };
    let text = reason.as_str().expect("a text");
    assert!(text.contains(&format!("{} was written to while it was read", image.display())));
    assert!(stderr.contains(text), "{stderr}");
    let shown = stage.mover.ok(["show", "changing@latest", "--json"]).document();
    assert_eq!(shown["degraded"], json!([text]));
    // what was written before is nothing to the next one
    assert_eq!(stage.mover.ok(&line).summary()["degraded"], json!([]));
}

#[test]
fn what_was_written_before_and_is_still_in_memory_is_no_change() {
    tests::require_root!();
    let stage = Stage::new("page-cache");
    let image = stage.path("image-of-device");
    fs::write(&image, random_bytes(8 << 20)).expect("write the image");
    let device = LoopDevice::attach(&image);
    // kept open: the last one that closes a device writes back what is in its page cache
    let mut file = File::options().write(true).open(device.path()).expect("open the device");
    file.write_all(&random_bytes(8 << 20)).expect("write to it");
    let line = BACKUP.into_iter().map(p).chain([device.path().to_owned()]);
    assert_eq!(stage.mover.ok(line).summary()["degraded"], json!([]));
    stage.mover.ok([p("verify"), p("changing@latest"), p("--device"), device.path().to_owned()]);
    drop(file);
}
