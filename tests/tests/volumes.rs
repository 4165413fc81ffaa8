//! Volumes of every awkward size and content, lists of every awkward shape: backed up, restored,
//! compared bit for bit.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tests::{LoopDevice, Mover, Rng, changed_extents, extents_json, first_difference, work_dir};

const CHUNK: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

struct Bench {
    mover: Mover,
    dir: TempDir,
}

impl Bench {
    fn new(name: &str) -> Self {
        Self { mover: Mover::new(), dir: work_dir(name) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn image(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Backs up as snapshot `snapshot`; with a list, on top of the snapshot named there.
    fn backup(
        &self,
        source: &Path,
        snapshot: &str,
        list: Option<(&str, &Path)>,
    ) -> serde_json::Value {
        let mut args = vec!["--json", "backup", "--volume", "v", "--snapshot", snapshot];
        let source = source.to_str().unwrap();
        args.push(source);
        if let Some((base, list)) = list {
            args.extend(["--base-snapshot", base, "--changed-blocks", list.to_str().unwrap()]);
        }
        self.mover.ok(args).summary()
    }

    /// Restores the newest backup onto a dirty image of the same size and compares it with `want`.
    fn restored_equals(&self, want: &Path) {
        let target = self.path("restored.img");
        let size = fs::metadata(want).unwrap().len();
        dirty(&target, size);
        let target_name = target.to_str().unwrap();
        self.mover.ok(["restore", "v@latest", target_name, "--verify", "--force"]);
        assert_eq!(first_difference(want, &target), None);
    }
}

/// A file full of 0xa5, so that zeros which are not written show.
fn dirty(path: &Path, size: u64) {
    let file = File::create(path).unwrap();
    let block = vec![0xa5; 1 << 20];
    let mut at = 0;
    while at < size {
        let n = (size - at).min(MIB);
        file.write_all_at(&block[..usize::try_from(n).unwrap()], at).unwrap();
        at += n;
    }
}

fn write_json(path: &Path, value: &serde_json::Value) {
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn sizes_around_a_sector_and_a_chunk_come_back() {
    let mut rng = Rng::new(1);
    for size in [1, 511, 512, 513, 4096, CHUNK - 512, CHUNK, CHUNK + 512, CHUNK + 1, 17 * CHUNK + 7]
    {
        let bench = Bench::new("sizes");
        let image = bench.image("v.img", &rng.bytes(usize::try_from(size).unwrap()));
        bench.backup(&image, "s1", None);
        bench.restored_equals(&image);
    }
}

#[test]
fn small_block_devices_of_both_sector_sizes_come_back() {
    tests::require_root!();
    let mut rng = Rng::new(2);
    for (sector, size) in
        [(512, 512), (512, CHUNK - 512), (512, CHUNK + 512), (4096, 4096), (4096, CHUNK + 4096)]
    {
        let bench = Bench::new("sectors");
        let image = bench.image("v.img", &rng.bytes(usize::try_from(size).unwrap()));
        let target = bench.path("t.img");
        dirty(&target, size);
        let source = LoopDevice::attach_with_sectors(&image, sector);
        bench.backup(source.path(), "s1", None);
        let device = LoopDevice::attach_with_sectors(&target, sector);
        bench.mover.ok(["restore", "v@latest", device.path().to_str().unwrap(), "--verify"]);
        drop(device);
        assert_eq!(first_difference(&image, &target), None, "{sector} {size}");
    }
}

#[test]
fn nothing_to_back_up_is_refused() {
    let bench = Bench::new("empty");
    let image = bench.image("v.img", &[]);
    let run = bench.mover.run(["backup", "--volume", "v", image.to_str().unwrap()]).expect_code(2);
    assert!(run.stderr.contains("it is empty"), "{run:?}");
}

#[test]
fn five_gibibytes_and_a_sector_come_back() {
    let mut rng = Rng::new(3);
    let bench = Bench::new("five");
    let image = bench.path("v.img");
    let size = (5 << 30) + 512;
    let file = File::create(&image).unwrap();
    file.set_len(size).unwrap();
    for at in [0, 3 * CHUNK + 17, (4 << 30) - 5, size - 512] {
        file.write_all_at(&rng.bytes(512), at).unwrap();
    }
    drop(file);
    let summary = bench.backup(&image, "s1", None);
    assert!(summary["read_bytes"].as_u64().unwrap() < 16 * MIB, "holes are not read: {summary}");
    let target = bench.path("t.img");
    bench.mover.ok(["restore", "v@latest", target.to_str().unwrap(), "--verify"]);
    assert_eq!(first_difference(&image, &target), None);
    assert!(fs::metadata(&target).unwrap().blocks() * 512 < 16 * MIB, "the target is thin");
}

#[test]
fn zeros_cost_nothing_and_noise_costs_itself() {
    let mut rng = Rng::new(4);
    let size = usize::try_from(24 * MIB).unwrap();
    let bench = Bench::new("content");
    let zeros = bench.image("v.img", &vec![0; size]);
    let summary = bench.backup(&zeros, "s1", None);
    assert_eq!(summary["new_bytes"], 0);
    assert_eq!(summary["zero_bytes"], size);
    bench.restored_equals(&zeros);

    let noise = bench.image("v.img", &rng.bytes(size));
    let summary = bench.backup(&noise, "s2", None);
    assert_eq!(summary["new_bytes"], size);
    let stored = summary["stored_bytes"].as_u64().unwrap();
    assert!(stored < size as u64 * 102 / 100, "{stored} bytes for {size}");
    bench.restored_equals(&noise);

    let same = bench.backup(&noise, "s3", None);
    assert_eq!((&same["new_bytes"], &same["unchanged_bytes"]), (&json!(0), &json!(size)));
    bench.restored_equals(&noise);
}

#[test]
fn a_volume_may_grow_and_shrink_between_increments() {
    let mut rng = Rng::new(5);
    let mut bench = Bench::new("resize");
    // one that is smaller than before counts as another otherwise
    bench.mover = std::mem::take(&mut bench.mover).env("MOVER_VOLUME_CHANGED", "true");
    let old = bench.path("old.img");
    let new = bench.image("new.img", &rng.bytes(usize::try_from(3 * MIB + 100).unwrap()));
    bench.backup(&new, "s0", None);
    // over the fanout of a leaf (128 chunks), back below it, into the middle of a chunk, to a
    // border, to one sector
    let sizes = [9 * MIB + 512, 9 * MIB + 600, 20 * MIB, 5 * MIB, 5 * MIB + CHUNK, 512, 8 * MIB];
    for (i, size) in (1..).zip(sizes) {
        fs::copy(&new, &old).unwrap();
        let file = OpenOptions::new().write(true).open(&new).unwrap();
        file.set_len(size).unwrap();
        for _ in 0..4 {
            let at = rng.below(size);
            let n = rng.below(200_000).min(size - at);
            file.write_all_at(&rng.bytes(usize::try_from(n).unwrap()), at).unwrap();
        }
        drop(file);
        let list = bench.path("list.json");
        let changed = changed_extents(&old, &new, 512);
        write_json(&list, &extents_json(size, "delta", &changed));
        let base = format!("s{}", i - 1);
        bench.backup(&new, &format!("s{i}"), Some((&base, &list)));
        bench.restored_equals(&new);
    }
}

#[test]
fn lists_that_name_nothing_everything_and_too_much() {
    let mut rng = Rng::new(6);
    let bench = Bench::new("lists");
    let size = 4 * MIB + 512;
    let image = bench.image("v.img", &rng.bytes(usize::try_from(size).unwrap()));
    bench.backup(&image, "s0", None);
    let list = bench.path("list.json");

    write_json(&list, &extents_json(size, "delta", &[]));
    let nothing = bench.backup(&image, "s1", Some(("s0", &list)));
    assert_eq!((&nothing["read_bytes"], &nothing["unchanged_bytes"]), (&json!(0), &json!(size)));
    bench.restored_equals(&image);

    write_json(&list, &extents_json(size, "delta", std::slice::from_ref(&(0..size))));
    let everything = bench.backup(&image, "s2", Some(("s1", &list)));
    assert_eq!(everything["unchanged_bytes"], json!(size));
    bench.restored_equals(&image);

    // unsorted, overlapping, twice, not aligned to anything
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    for at in [7_u64, 70_000, 2_000_001, size - 1] {
        file.write_all_at(&[0x77], at).unwrap();
    }
    drop(file);
    let extent = |offset: u64, len: u64| json!({"offset": offset, "len": len});
    let extents = [
        extent(2_000_000, 10),
        extent(size - 1, 1),
        extent(5, 100_000),
        extent(69_000, 5000),
        extent(5, 100_000),
    ];
    write_json(&list, &json!({"volume_size": size, "kind": "delta", "extents": extents}));
    bench.backup(&image, "s3", Some(("s2", &list)));
    bench.restored_equals(&image);

    write_json(
        &list,
        &json!({"volume_size": size, "kind": "delta", "extents": [extent(size - 1, 2)]}),
    );
    let args = [
        "backup",
        "--volume",
        "v",
        "--snapshot",
        "s4",
        "--base-snapshot",
        "s3",
        "--changed-blocks",
    ];
    let run =
        bench.mover.run(args.into_iter().chain([list.to_str().unwrap(), image.to_str().unwrap()]));
    let code = run.code();
    assert!(matches!(code, Some(2 | 3)), "past the end is refused: {run:?}");
    // and what was there is still there
    bench.restored_equals(&image);
}

#[test]
fn what_an_allocated_list_leaves_out_is_zero_and_not_the_parents() {
    let mut rng = Rng::new(7);
    let mut bench = Bench::new("allocated");
    // it would find that the list is not true of this device
    bench.mover = bench.mover.env("MOVER_AUDIT", "off");
    let size = 8 * MIB;
    let image = bench.image("v.img", &rng.bytes(usize::try_from(size).unwrap()));
    bench.backup(&image, "s0", None);
    // the storage trimmed all but two ranges; what the device shows there is up to it
    let list = bench.path("list.json");
    let kept = [CHUNK / 2..3 * CHUNK, 5 * MIB..6 * MIB + 100];
    write_json(&list, &extents_json(size, "allocated", &kept));
    let summary = bench.backup(&image, "s1", Some(("s0", &list)));
    assert!(summary["read_bytes"].as_u64().unwrap() <= 2 * MIB, "{summary}");
    // which took nothing over from the base that was named
    let warning = summary["warnings"][0].as_str().unwrap();
    assert!(warning.contains("nothing is taken over from base snapshot \"s0\""), "{summary}");
    let shown = bench.mover.ok(["show", "--json", "v@latest"]).summary();
    assert!(shown["snapshot"]["base_id"].is_null() && shown["snapshot"]["id"] == "s1", "{shown}");
    let bytes = fs::read(&image).unwrap();
    let mut want = vec![0; bytes.len()];
    // a chunk that is partly allocated is read whole
    for range in [0..3 * CHUNK, 5 * MIB..6 * MIB + CHUNK] {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        want[range.clone()].copy_from_slice(&bytes[range]);
    }
    let want = bench.image("want.img", &want);
    bench.restored_equals(&want);
}
