//! Memory and cost that do not grow: a sparse volume of 64 TiB, memory limits that the kernel
//! enforces, and what a restore and an unchanged incremental must not read.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tests::{Cgroup, Mover, MoverOutput, Rng, extents_json, first_difference, mover_bin, work_dir};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn limited(mover: &Mover, limit_bytes: u64, args: &[&str]) -> (MoverOutput, u64) {
    let group = Cgroup::with_memory_limit(limit_bytes);
    let mut command = group.command(mover_bin());
    mover.dress(&mut command);
    command.args(args);
    let output = MoverOutput::of(&mut command);
    assert!(!group.killed_for_memory(), "killed for memory: {output:?}");
    (output, group.peak_bytes())
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or_else(|| panic!("{name} in {summary}"))
}

#[test]
fn an_unchanged_sparse_volume_of_64_tib_costs_nothing() {
    tests::require_root!();
    let mover = Mover::new();
    // ext4 holds no file of this size; tmpfs does
    let dir = tempfile::Builder::new().prefix("mover-sparse").tempdir_in("/dev/shm").unwrap();
    let image = dir.path().join("v.img");
    let file = File::create(&image).unwrap();
    file.set_len(64 * TIB).unwrap();
    let mut rng = Rng::new(1);
    for at in [0, 17 * TIB + 12345, 40 * TIB, 64 * TIB - 4096] {
        file.write_all_at(&rng.bytes(4096), at).unwrap();
    }
    drop(file);
    let path = image.to_str().unwrap();
    let base = ["--json", "--memory", "96MiB", "backup", "--volume", "v"];
    let args: Vec<&str> = base.into_iter().chain(["--snapshot", "s0", path]).collect();
    let (full, _) = limited(&mover, 128 * MIB, &args);
    let full = full.expect_code(0).summary();
    assert!(number(&full, "read_bytes") < 4 * MIB, "{full}");

    let list = dir.path().join("list.json");
    fs::write(&list, extents_json(64 * TIB, "delta", &[]).to_string()).unwrap();
    let tail = [
        "--snapshot",
        "s1",
        "--base-snapshot",
        "s0",
        "--changed-blocks",
        list.to_str().unwrap(),
        path,
    ];
    let args: Vec<&str> = base.into_iter().chain(tail).collect();
    let (delta, peak) = limited(&mover, 128 * MIB, &args);
    let delta = delta.expect_code(0).summary();
    println!("64 TiB unchanged: {} s, peak {peak} bytes", delta["elapsed_seconds"]);
    assert_eq!(number(&delta, "read_bytes"), 0);
    assert_eq!(number(&delta, "stored_bytes"), 0, "nothing changed, nothing is stored: {delta}");
    assert_eq!(number(&delta, "unchanged_bytes"), 64 * TIB);

    // and once more by itself: holes are found, the rest compares equal
    let args: Vec<&str> = base.into_iter().chain(["--snapshot", "s2", path]).collect();
    let (whole, _) = limited(&mover, 128 * MIB, &args);
    let whole = whole.expect_code(0).summary();
    assert_eq!(number(&whole, "new_bytes"), 0, "{whole}");

    let target = dir.path().join("t.img");
    mover.ok(["restore", "v@latest", target.to_str().unwrap()]);
    let (a, b) = (File::open(&image).unwrap(), File::open(&target).unwrap());
    for at in [0, TIB, 17 * TIB + 12345, 40 * TIB, 64 * TIB - 4096] {
        let (mut x, mut y) = ([0; 4096], [1; 4096]);
        a.read_exact_at(&mut x, at).unwrap();
        b.read_exact_at(&mut y, at).unwrap();
        assert_eq!(x, y, "at {at}");
    }
}

/// Half of it shrinks to a half, half of it not at all: all buffers are used.
fn mixed_image(path: &Path, bytes: u64) {
    let mut rng = Rng::new(2);
    let file = File::create(path).unwrap();
    for at in (0..bytes).step_by(1 << 20) {
        let mut block = rng.bytes(1 << 20);
        if (at / MIB).is_multiple_of(2) {
            for pair in block.chunks_exact_mut(2) {
                pair[1] = 0;
            }
        }
        file.write_all_at(&block, at).unwrap();
    }
}

#[test]
fn memory_stays_within_the_budget_at_two_volume_sizes() {
    tests::require_root!();
    for size in [256 * MIB, 1024 * MIB] {
        let dir = work_dir("memory");
        let image = dir.path().join("v.img");
        mixed_image(&image, size);
        let mover = Mover::new();
        let path = image.to_str().unwrap();
        for (budget, limit) in [("128MiB", 128 * MIB), ("256MiB", 256 * MIB)] {
            let args = ["--json", "--memory", budget, "backup", "--volume", budget, path];
            let (run, _) = limited(&mover, limit, &args);
            let summary = run.expect_code(0).summary();
            assert_eq!(number(&summary, "read_bytes"), size);
            let target = dir.path().join("t.img");
            let from = format!("{budget}@latest");
            let args = [
                "--json",
                "--memory",
                budget,
                "restore",
                &from,
                target.to_str().unwrap(),
                "--force",
            ];
            let _ = limited(&mover, limit, &args).0.expect_code(0);
            assert_eq!(first_difference(&image, &target), None);
        }
    }
}

#[test]
fn a_restore_reads_no_dedup_segment_and_an_unchanged_run_neither() {
    let dir = work_dir("segments");
    let image = dir.path().join("v.img");
    mixed_image(&image, 16 * MIB);
    let mover = Mover::new();
    let path = image.to_str().unwrap();
    mover.ok(["backup", "--volume", "v", path]);
    // a segment that nobody can read: whoever reads it fails or complains
    let store = mover.home().join(".local/share/mover/repository/dedup");
    let mut damaged = 0;
    for entry in fs::read_dir(&store).unwrap() {
        fs::write(entry.unwrap().path(), b"not a segment").unwrap();
        damaged += 1;
    }
    assert!(damaged > 0, "the backup wrote a segment");
    let _ = fs::remove_dir_all(mover.home().join(".cache"));
    let target = dir.path().join("t.img");
    let restored = mover.ok(["restore", "v@latest", target.to_str().unwrap(), "--verify"]);
    assert!(!restored.stderr.contains("segment"), "{restored:?}");
    assert_eq!(first_difference(&image, &target), None);
    let again = mover.ok(["backup", "--volume", "v", path]);
    assert!(!again.stderr.contains("segment"), "{again:?}");
    // one that needs it goes on without it: dedup is an accelerator
    fs::write(&image, Rng::new(9).bytes(1 << 20)).unwrap();
    mover.ok(["backup", "--volume", "w", path]);
    mover.ok(["restore", "w@latest", target.to_str().unwrap(), "--force", "--verify"]);
}
