//! `fio` with many requests under way: what it has written it finds again, by sums in each block.

use super::live::until;
use super::overlay::copied;
use super::{MIB, SIZE, Server, Stage, text};
use serde_json::Value;
use std::fs;
use tests::{Rng, run};

/// Each three jobs write a part of their own, and read it.
const SUMMED: [&str; 5] =
    ["--bs=4k", "--size=4m", "--offset_increment=4m", "--numjobs=3", "--verify=crc32c"];
/// Blocks of all lengths at all places, read and written, each sum looked at in the end.
const MIXED: [&str; 8] = [
    "--name=mixed",
    "--rw=randrw",
    "--bsrange=512-64k",
    "--bs_unaligned=1",
    "--offset=12m",
    "--size=4m",
    "--verify=crc32c",
    "--end_fsync=1",
];
const WRITTEN: usize = 16 << 20;
const TRIMMED: usize = 24 << 20;

/// Each job as it has ended, or what went wrong.
fn fio(stage: &Stage, uri: &str, jobs: &[&[&str]]) -> Result<Vec<Value>, String> {
    let uri = format!("--uri={uri}");
    // the engine comes before its options
    let common = ["--ioengine=nbd", &uri, "--thread", "--iodepth=16", "--randseed=7"];
    // files of its own go where it is
    let directory = ["-C", text(stage.directory.path()), "fio", "--output-format=json"];
    let line = [&directory[..], &common, &["--verify_fatal=1"], &jobs.concat()].concat();
    let output = run("env", line);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = said.find('{').and_then(|at| serde_json::from_str::<Value>(&said[at..]).ok());
    match json {
        Some(json) if output.status.success() => Ok(json["jobs"].as_array().unwrap().clone()),
        _ => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Operations of one kind of all jobs.
fn operations(jobs: &[Value], kind: &str) -> u64 {
    jobs.iter().map(|job| job[kind]["total_ios"].as_u64().unwrap()).sum()
}

/// Writes the first half but for its end, makes zeros of the last quarter, and flushes both.
fn writes_and_trims(stage: &Stage, uri: &str) {
    let write = ["--name=summed", "--rw=randwrite", "--do_verify=0", "--end_fsync=1"];
    let trim = ["--name=trim", "--rw=randtrim", "--bs=64k", "--offset=24m", "--size=8m"];
    let jobs = [&[&write[..], &SUMMED].concat(), &MIXED[..], &trim];
    let done = fio(stage, uri, &jobs).unwrap();
    assert_eq!(operations(&done, "trim"), 8 * MIB / (64 << 10));
    assert!(operations(&done, "write") >= 3 * 4 * MIB / 4096, "{done:?}");
}

/// Reads at random, and looks at every sum.
fn finds_again(stage: &Stage, uri: &str) {
    let read = [&["--name=summed", "--rw=randread"], &SUMMED[..]].concat();
    let done = fio(stage, uri, &[&read]).unwrap();
    assert_eq!(operations(&done, "read"), 3 * 4 * MIB / 4096);
    // what nobody has written has no sums
    let other = [&read[..], &["--offset=16m", "--size=1m", "--numjobs=1"]].concat();
    let said = fio(stage, uri, &[&other]).unwrap_err();
    assert!(said.contains("verify"), "{said}");
}

#[test]
fn what_fio_writes_to_an_overlay_it_finds_again() {
    let Some(stage) = Stage::new("serve-fio", &["fio", "nbdcopy"]) else { return };
    let overlay = stage.path("ov");
    let line = ["db@b1", "--overlay", text(&overlay)];
    let server = stage.serve(&line);
    writes_and_trims(&stage, &server.uri(""));
    server.kill();
    let server = stage.serve(&line);
    finds_again(&stage, &server.uri(""));
    let read = copied(&server.uri(""), &stage.path("copied"));
    assert!(read[WRITTEN..TRIMMED] == stage.images[0][WRITTEN..TRIMMED]);
    assert!(read[TRIMMED..].iter().all(|byte| *byte == 0));
    drop(server);
    let restored = stage.path("restored");
    stage.mover.ok(["restore", "db@b1", text(&restored), "--quiet"]);
    assert!(fs::read(&restored).unwrap() == stage.images[0]);
}

#[test]
fn what_fio_writes_while_a_volume_arrives_it_finds_again() {
    let Some(stage) = Stage::new("serve-live-fio", &["fio", "nbdcopy"]) else { return };
    // behind what is written there is so much that it does not all arrive meanwhile
    let mut image = stage.images[0].clone();
    let mut rng = Rng::new(0xf10);
    image.extend((0..64 * MIB / 8).flat_map(|_| rng.next_u64().to_le_bytes()));
    let (file, target) = (stage.path("image"), stage.path("t"));
    fs::write(&file, &image).unwrap();
    let line = ["backup", text(&file), "--volume", "big", "--backup-id", "g1", "--quiet"];
    stage.mover.ok(line);
    let live = |more: &[&str]| {
        let line = [&["big@g1", text(&target), "--live", "--quiet"], more].concat();
        Server::start_as("restore", &stage.mover, &stage.sockets.path().join("s"), &line)
    };
    let server = live(&["--limit-download", "2MiB"]);
    writes_and_trims(&stage, &server.uri(""));
    finds_again(&stage, &server.uri(""));
    assert!(stage.held(), "all of it is there: nothing is tested");
    server.kill();
    let server = live(&[]);
    let mixed = fio(&stage, &server.uri(""), &[&MIXED]).unwrap();
    assert!(operations(&mixed, "read") > 0 && operations(&mixed, "write") > 0, "{mixed:?}");
    until("all is there", || !stage.held());
    finds_again(&stage, &server.uri(""));
    let read = copied(&server.uri(""), &stage.path("copied"));
    assert_eq!(server.end(), Some(0));
    assert!(fs::read(&target).unwrap() == read);
    let end = usize::try_from(SIZE).unwrap();
    assert!(read[WRITTEN..TRIMMED] == image[WRITTEN..TRIMMED]);
    assert!(read[TRIMMED..end].iter().all(|byte| *byte == 0));
    assert!(read[end..] == image[end..]);
}
