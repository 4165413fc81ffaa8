//! What a server keeps beside its answers: stored entries on a disk, and a record of what was read.

use super::ends::{measured, scrape, value};
use super::overlay::copied;
use super::{CHUNK, MIB, SIZE, Stage, text};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};
use tests::{Mount, Mover, run_ok, work_dir};

/// So little memory that a volume is not kept in it.
const LITTLE: [&str; 4] = ["--memory", "96MiB", "--threads", "1"];

#[test]
fn what_was_fetched_comes_from_the_disk_and_nothing_of_it_is_found_there() {
    let Some(stage) = Stage::new("serve-disk-cache", &["nbdcopy"]) else { return };
    // it is made where it is missing
    let scratch = stage.path("not/there/yet");
    let line = ["db@b1", "--disk-cache", "64MiB", "--scratch", text(&scratch)];
    let (server, address) = measured(&stage, &[&line[..], &LITTLE].concat());
    let out = stage.path("copied");
    let end = Instant::now() + Duration::from_secs(120);
    let mut fetched = Vec::new();
    loop {
        assert!(copied(&server.uri(""), &out) == stage.images[0], "other bytes than the backup's");
        let now = scrape(&address);
        fetched.push(value(&now, "mover_fetched_bytes_total"));
        let hits = value(&now, "mover_disk_cache_hits_total");
        // the figures are brought up to date twice a second
        if hits >= 20.0
            && fetched.len() > 3
            && fetched[fetched.len() - 3..].windows(2).all(|w| w[0] >= w[1])
        {
            break;
        }
        assert!(Instant::now() < end, "{now}");
    }
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "it has no name");
}

#[test]
fn a_disk_that_is_full_costs_no_answer() {
    tests::require_root!();
    let Some(stage) = Stage::new("serve-disk-cache-full", &["nbdcopy"]) else { return };
    let point = work_dir("serve-disk-cache-full-disk");
    let _mount = Mount::new("none".as_ref(), point.path(), "tmpfs", "size=2m");
    let copy = "for n in 1 2 3; do nbdcopy \"$uri\" copy$n && cmp copy$n wanted || exit 9; done";
    fs::write(stage.path("wanted"), &stage.images[0]).unwrap();
    let command = format!("cd {} && {copy}", stage.directory.path().display());
    let line = ["serve", "db@b1", "--disk-cache", "64MiB", "--scratch", text(point.path())];
    let more = ["--run", &command];
    let output = stage.mover.ok([&line[..], &LITTLE, &more].concat());
    let told = output.stderr.matches("takes no more").count();
    assert_eq!(told, 1, "{}", output.stderr);
    // what cannot be at all is refused before anybody is served
    for (size, code, words) in [("0", 2, "keeps nothing"), ("many", 2, "--disk-cache")] {
        let line = ["serve", "db@b1", "--disk-cache", size, "--run", "true"];
        let output = stage.mover.run(line).expect_code(code);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    }
    fs::write(stage.path("file"), "").unwrap();
    let nowhere = stage.path("file");
    let line =
        ["serve", "db@b1", "--disk-cache", "1GiB", "--scratch", text(&nowhere), "--run", "true"];
    let output = stage.mover.run(line);
    assert!(!output.status.success() && output.stderr.contains("disk cache"), "{}", output.stderr);
}

/// A temporary overlay, too, on a machine where nothing of ours was before.
#[test]
fn the_default_place_of_files_without_a_name_is_made() {
    let Some(stage) = Stage::new("serve-first-time", &["qemu-io"]) else { return };
    // where no backup was made before
    let url = format!("file://{}", stage.path("repository").display());
    let mover = Mover::new().env("MOVER_REPO", url).env("MOVER_KEY_FILE", stage.path("key"));
    let write = "qemu-io -f raw -c 'write -P 7 0 1M' -c 'read -P 7 0 1M' \"$uri\"";
    for more in [&["--overlay", "temp"][..], &["--overlay", "temp", "--disk-cache", "1GiB"]] {
        mover.ok([&["serve", "db@b1", "--run", write, "--quiet"], more].concat());
    }
    assert!(mover.home().join(".cache/mover").is_dir());
}

fn ranges(list: &Value) -> Vec<(u64, u64)> {
    let of = |range: &Value, member: &str| range[member].as_u64().unwrap();
    let extents = list["extents"].as_array().unwrap();
    extents.iter().map(|range| (of(range, "offset"), of(range, "len"))).collect()
}

/// A trace of one machine's start makes the next one's quick: it is recorded, and fetched first.
#[test]
fn what_was_read_is_recorded_in_its_order_and_is_fetched_first() {
    let Some(stage) = Stage::new("serve-record", &["qemu-io"]) else { return };
    let record = stage.path("trace.json");
    let line = ["db@b1", "--record", text(&record)];
    let server = stage.serve(&line);
    let reads = ["read 20M 64k", "read 5M 200k", "read 20M 128k", "read 0 1", "read 5200k 100k"];
    for read in reads {
        run_ok("qemu-io", ["-r", "-f", "raw", "-c", read, &server.uri("")]);
    }
    drop(server);
    let list: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(list["volume_size"], json!(SIZE));
    // what the client's tools read at the beginning of a volume, to know its format, is read, too
    let found = ranges(&list);
    let place = |at: u64| found.iter().position(|(start, len)| (*start..start + len).contains(&at));
    let (first, second) = (place(20 * MIB).unwrap(), place(5 * MIB).unwrap());
    assert!(first < second && place(20 * MIB + CHUNK).is_some(), "{found:?}");
    assert!(second < place(20 * MIB + CHUNK).unwrap() || found[first].1 > CHUNK, "{found:?}");
    assert_eq!(place(30 * MIB), None, "{found:?}");
    let mut sorted = found.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "each once: {found:?}");
    // it is never replaced, and refused where it says nothing
    let again = ["serve", "db@b1", "--record", text(&record), "--run", "true"];
    let output = stage.mover.run(again).expect_code(2);
    assert!(output.stderr.contains("name a file that is not there"), "{}", output.stderr);
    let other = stage.path("other.json");
    let two = ["serve", "db@b1", "db@b2", "--record", text(&other), "--run", "true"];
    assert!(stage.mover.run(two).expect_code(2).stderr.contains("one backup"));
    assert!(!other.exists());
    // the same of a live restore, which takes the first one
    let target = stage.path("target");
    let line = ["restore", "db@b1", text(&target), "--live", "--quiet", "--record", text(&other)];
    let read = "qemu-io -f raw -c 'read 9M 64k' \"$uri\"";
    let first = ["--fetch-first", text(&record), "--run", read];
    stage.mover.ok([&line[..], &first].concat());
    assert!(fs::read(&target).unwrap() == stage.images[0]);
    let list: Value = serde_json::from_slice(&fs::read(&other).unwrap()).unwrap();
    assert!(ranges(&list).contains(&(9 * MIB, CHUNK)), "{list}");
    // all is there: nothing is fetched any more, and the same command is no mistake; what its first
    // run has recorded stays
    let recorded = fs::read(&other).unwrap();
    let line = line.map(|word| if word == "--quiet" { "--no-lease" } else { word });
    let output = stage.mover.ok([&line[..], &first].concat());
    assert!(output.stderr.contains("reads are not recorded"), "{}", output.stderr);
    assert!(fs::read(&other).unwrap() == recorded);
    fs::remove_file(&other).unwrap();
    run_ok("test", ["-s", text(&stage.path("target.journal"))]);
    stage.mover.ok([&line[..], &first].concat());
}
