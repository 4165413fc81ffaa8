//! Round trips, bit for bit, of real filesystems on loop devices: a full backup, five increments by
//! their real changed-block lists, and each of the six states restored onto a clean and onto a
//! dirty target.
//!
//! Everything goes through the program, as a user would call it.

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tests::{
    Filesystem, LiveVolume, LoopDevice, Mover, Rng, S3Server, VolumeState, changed_extents,
    first_difference, require_root, require_s3, volume_dir, work_dir, write_extents,
};

const MIB: u64 = 1 << 20;
const INCREMENTS: usize = 5;
/// Default chunk size of a repository; a list of smaller pieces costs at most two of these a piece.
const CHUNK_BYTES: u64 = 64 << 10;

/// Where the backups go, and what opens them.
struct Place {
    mover: Mover,
    /// Kept until the end of the test.
    _directory: TempDir,
}

impl Place {
    /// A directory, opened by a key file, or by nothing if it is not encrypted.
    fn directory(init: &[&str]) -> Self {
        let directory = work_dir("repository");
        let url = format!("file://{}", directory.path().join("repository").display());
        Self::with(directory, Mover::new().env("MOVER_REPO", url), init)
    }

    /// A bucket, opened in the same way.
    fn bucket(server: &S3Server, url: &str, init: &[&str]) -> Self {
        let mover = Mover::new().envs(server.environment()).env("MOVER_REPO", url);
        Self::with(work_dir("key"), mover, init)
    }

    fn with(directory: TempDir, mover: Mover, init: &[&str]) -> Self {
        if init.contains(&"none") {
            mover.ok(["init"].iter().chain(init));
            return Self { mover, _directory: directory };
        }
        let key = directory.path().join("key");
        let mut args = vec![OsStr::new("init"), OsStr::new("--new-key-file"), key.as_os_str()];
        args.extend(init.iter().map(OsStr::new));
        mover.ok(args);
        Self { mover: mover.env("MOVER_KEY_FILE", key), _directory: directory }
    }
}

/// What is backed up.
struct Shape {
    filesystem: Filesystem,
    volume_bytes: u64,
    file_bytes: u64,
}

/// Sizes for backups into a directory.
fn large(filesystem: Filesystem) -> Shape {
    let volume_bytes = if filesystem == Filesystem::Xfs { 384 * MIB } else { 256 * MIB };
    Shape { filesystem, volume_bytes, file_bytes: 64 * MIB }
}

/// Sizes for backups to a server; XFS makes none below 300 MiB.
fn small(filesystem: Filesystem) -> Shape {
    let volume_bytes = if filesystem == Filesystem::Xfs { 304 * MIB } else { 192 * MIB };
    Shape { filesystem, volume_bytes, file_bytes: 24 * MIB }
}

/// A volume that was backed up in six states.
struct BackedUp {
    directory: TempDir,
    volume: String,
    states: Vec<VolumeState>,
    /// Ids of the backups of the states.
    ids: Vec<String>,
    /// Where they were read: still attached, as a restore onto a device of the same name is
    /// refused.
    _sources: Vec<LoopDevice>,
}

fn sector_bytes(step: usize) -> u32 {
    if step.is_multiple_of(2) { 512 } else { 4096 }
}

fn engine(step: usize) -> &'static str {
    if step.is_multiple_of(3) { "blocking" } else { "auto" }
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {summary}"))
}

/// One backup of the state's image from a loop device.
fn backup(mover: &Mover, state: &VolumeState, step: usize, more: &[&OsStr]) -> (Value, LoopDevice) {
    let device = LoopDevice::attach_with_sectors(&state.image, sector_bytes(step));
    let snapshot = format!("snapshot-{step}");
    let mut args = vec![
        OsStr::new("--json"),
        OsStr::new("backup"),
        device.path().as_os_str(),
        OsStr::new("--snapshot"),
        OsStr::new(&snapshot),
        OsStr::new("--engine"),
        OsStr::new(engine(step)),
    ];
    args.extend(more);
    let summary = mover.ok(args).summary();
    assert_eq!(summary["type"], "summary", "{summary}");
    assert_eq!(number(&summary, "size_bytes"), device.size_bytes());
    (summary, device)
}

fn back_up_all(mover: &Mover, shape: &Shape, seed: u64) -> BackedUp {
    let directory = volume_dir("roundtrip");
    let rng = Rng::new(seed);
    let (mut live, first) = LiveVolume::create(
        directory.path(),
        shape.filesystem,
        shape.volume_bytes,
        shape.file_bytes,
        rng,
    );
    let volume = format!("pvc/{} {seed}", shape.filesystem.name());
    let name = [OsStr::new("--volume"), OsStr::new(&volume)];
    let (full, source) = backup(mover, &first, 0, &name);
    assert!(full["parent"].is_null(), "the first backup has no parent: {full}");
    let mut ids = vec![id_of(&full)];
    let mut states = vec![first];
    let mut sources = vec![source];
    for step in 1..=INCREMENTS {
        let state = live.change();
        let list = directory.path().join(format!("list-{step}.json"));
        let before = &states[step - 1];
        let listed_bytes = write_extents(&before.image, &state.image, &list);
        let base = format!("snapshot-{}", step - 1);
        let mut more = name.to_vec();
        more.extend([OsStr::new("--changed-blocks"), list.as_os_str()]);
        more.extend([OsStr::new("--base-snapshot"), OsStr::new(&base)]);
        let (summary, source) = backup(mover, &state, step, &more);
        expect_cheap(&summary, &ids[step - 1], listed_bytes, &list);
        ids.push(id_of(&summary));
        states.push(state);
        sources.push(source);
    }
    BackedUp { directory, volume, states, ids, _sources: sources }
}

fn id_of(summary: &Value) -> String {
    summary["backup_id"].as_str().expect("a summary names its backup").to_owned()
}

/// An increment builds on the backup before, and reads no more than what was listed, rounded to
/// chunks.
fn expect_cheap(summary: &Value, parent: &str, listed_bytes: u64, list: &Path) {
    assert_eq!(summary["kind"], "delta", "{summary}");
    assert!(
        summary["parent"].as_str().is_some_and(|text| text.contains(parent)),
        "the parent is {parent}: {summary}"
    );
    let list: Value = serde_json::from_slice(&std::fs::read(list).expect("read the list"))
        .expect("the list is JSON");
    let pieces = list["extents"].as_array().expect("extents").len() as u64;
    let read = number(summary, "read_bytes");
    assert!(
        read <= listed_bytes + pieces * 2 * CHUNK_BYTES,
        "{read} bytes were read for {listed_bytes} listed in {pieces} extents: {summary}"
    );
    assert!(number(summary, "new_bytes") <= read, "{summary}");
}

/// Each state onto a clean loop device and onto one that holds something else.
fn restore_all(mover: &Mover, backed_up: &BackedUp) {
    let dirty = backed_up.directory.path().join("dirty.img");
    let bytes = std::fs::metadata(&backed_up.states[0].image).expect("its size").len();
    fill_with_random(&dirty, bytes);
    // From both ends, so that what is on the dirty target is now older, now newer, than what goes
    // there.
    for step in [0, 5, 1, 4, 2, 3] {
        let state = &backed_up.states[step];
        let clean = backed_up.directory.path().join("clean.img");
        File::create(&clean).and_then(|file| file.set_len(bytes)).expect("make a clean target");
        restore(mover, backed_up, step, &clean, &["--verify"]);
        state.expect_restored(&clean);
        std::fs::remove_file(&clean).expect("remove the clean target");

        assert!(first_difference(&state.image, &dirty).is_some(), "the target is dirty");
        restore(mover, backed_up, step, &dirty, &["--force"]);
        state.expect_restored(&dirty);
    }
}

fn restore(mover: &Mover, backed_up: &BackedUp, step: usize, target: &Path, more: &[&str]) {
    let device = LoopDevice::attach_with_sectors(target, sector_bytes(step + 1));
    let backup = match step {
        INCREMENTS => format!("{}@latest", backed_up.volume),
        0 => backed_up.ids[step].clone(),
        _ => format!("{}@{}", backed_up.volume, backed_up.ids[step]),
    };
    let mut args = vec![OsStr::new("--json"), OsStr::new("restore"), OsStr::new(&backup)];
    args.extend([device.path().as_os_str(), OsStr::new("--engine"), OsStr::new(engine(step))]);
    args.extend(more.iter().map(OsStr::new));
    mover.ok(args);
}

fn fill_with_random(image: &Path, bytes: u64) {
    let file = File::create(image).expect("create a target");
    let piece = Rng::new(77).bytes(1 << 20);
    for offset in (0..bytes).step_by(piece.len()) {
        let len = usize::try_from((bytes - offset).min(MIB)).expect("a piece fits");
        file.write_all_at(&piece[..len], offset).expect("fill a target");
    }
}

/// `list` names the six, `verify` finds their data whole, and `diff` finds what really changed.
fn inspect_all(mover: &Mover, backed_up: &BackedUp) {
    let listed = mover.ok(["--json", "list", "--volume", &backed_up.volume]).json_lines();
    let listed: Vec<&str> = listed.iter().filter_map(|line| line["backup_id"].as_str()).collect();
    assert_eq!(listed, backed_up.ids, "oldest first");
    for (id, state) in backed_up.ids.iter().zip(&backed_up.states) {
        mover.ok(["verify", id]);
        let image = state.image.as_os_str();
        mover.ok([OsStr::new("verify"), id.as_ref(), OsStr::new("--device"), image]);
    }
    let (a, b) = (&backed_up.ids[0], &backed_up.ids[INCREMENTS]);
    let diff = mover.ok(["diff", a, b]).document();
    let found = ranges(&diff);
    let real =
        changed_extents(&backed_up.states[0].image, &backed_up.states[INCREMENTS].image, 4096);
    for range in &real {
        assert!(
            found.iter().any(|f| f.start <= range.start && range.end <= f.end),
            "{range:?} changed, and diff does not say so"
        );
    }
    for range in &found {
        let chunks = (range.start / CHUNK_BYTES)..range.end.div_ceil(CHUNK_BYTES);
        for chunk in chunks {
            let bytes = chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES;
            assert!(
                real.iter().any(|r| r.start < bytes.end && bytes.start < r.end),
                "diff says that {bytes:?} changed, and it did not"
            );
        }
    }
}

/// The way back: the first state once more, by the list that `diff` makes from the last backup to
/// the first one.
fn back_by_diff(mover: &Mover, backed_up: &BackedUp) {
    let (first, last) = (&backed_up.ids[0], &backed_up.ids[INCREMENTS]);
    let list = backed_up.directory.path().join("diff.json");
    std::fs::write(&list, mover.ok(["diff", last, first]).stdout).expect("write the list");
    let base = format!("snapshot-{INCREMENTS}");
    let mut more = vec![OsStr::new("--volume"), OsStr::new(&backed_up.volume)];
    more.extend([OsStr::new("--changed-blocks"), list.as_os_str()]);
    more.extend([OsStr::new("--base-snapshot"), OsStr::new(&base)]);
    let (summary, _source) = backup(mover, &backed_up.states[0], INCREMENTS + 1, &more);
    assert!(summary["parent"].as_str().is_some_and(|text| text.contains(last.as_str())));
    assert_eq!(number(&summary, "new_bytes"), 0, "all of it was stored before: {summary}");
    let target = backed_up.directory.path().join("back.img");
    mover.ok([OsStr::new("restore"), id_of(&summary).as_ref(), target.as_os_str()]);
    assert_eq!(first_difference(&backed_up.states[0].image, &target), None, "bit for bit");
    std::fs::remove_file(target).expect("remove the image");
}

/// All that a list of the program's own names, data and known zeros alike, ascending and merged.
fn ranges(list: &Value) -> Vec<Range<u64>> {
    let of = |name: &str| list[name].as_array().cloned().unwrap_or_default();
    let mut all: Vec<Range<u64>> = of("extents")
        .iter()
        .chain(&of("zero"))
        .map(|extent| {
            let offset = number(extent, "offset");
            offset..offset + number(extent, "len")
        })
        .collect();
    all.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// All of it for one filesystem in one place.
fn round_trip(place: &Place, shape: &Shape, seed: u64) {
    let backed_up = back_up_all(&place.mover, shape, seed);
    restore_all(&place.mover, &backed_up);
    inspect_all(&place.mover, &backed_up);
    back_by_diff(&place.mover, &backed_up);
}

fn through_bucket(server: &S3Server, filesystem: Filesystem, init: &[&str], seed: u64) {
    let bucket = server.bucket();
    let place = Place::bucket(server, &bucket.url("some/prefix"), init);
    round_trip(&place, &small(filesystem), seed);
    let keys = bucket.keys();
    assert!(keys.iter().all(|key| key.starts_with("some/prefix/")), "{keys:?}");
    let leases: Vec<&String> = keys.iter().filter(|key| key.contains("/leases/")).collect();
    assert!(leases.is_empty(), "nobody is at work any more: {leases:?}");
}

#[test]
fn ext4_in_a_directory() {
    require_root!();
    round_trip(&Place::directory(&[]), &large(Filesystem::Ext4), 11);
}

#[test]
fn xfs_in_a_directory() {
    require_root!();
    round_trip(&Place::directory(&["--encryption", "none"]), &large(Filesystem::Xfs), 12);
}

#[test]
fn btrfs_in_a_directory() {
    require_root!();
    round_trip(&Place::directory(&[]), &large(Filesystem::Btrfs), 13);
}

#[test]
fn ext4_through_ceph() {
    require_root!();
    through_bucket(&require_s3!(ceph), Filesystem::Ext4, &[], 21);
}

#[test]
fn xfs_through_ceph() {
    require_root!();
    through_bucket(&require_s3!(ceph), Filesystem::Xfs, &[], 22);
}

#[test]
fn btrfs_through_ceph() {
    require_root!();
    through_bucket(&require_s3!(ceph), Filesystem::Btrfs, &["--encryption", "none"], 23);
}

#[test]
fn ext4_through_moto() {
    require_root!();
    through_bucket(&require_s3!(moto), Filesystem::Ext4, &[], 31);
}

#[test]
fn xfs_through_moto() {
    require_root!();
    through_bucket(&require_s3!(moto), Filesystem::Xfs, &[], 32);
}

#[test]
fn btrfs_through_moto() {
    require_root!();
    through_bucket(&require_s3!(moto), Filesystem::Btrfs, &[], 33);
}

/// A target that is larger than the volume keeps what lies behind it.
#[test]
fn a_larger_target_keeps_its_tail() {
    require_root!();
    let place = Place::directory(&[]);
    let directory = volume_dir("tail");
    let (source, target): (PathBuf, PathBuf) =
        (directory.path().join("source.img"), directory.path().join("target.img"));
    let mut rng = Rng::new(41);
    let mut image = rng.bytes(5 << 20);
    image[1 << 20..3 << 20].fill(0);
    std::fs::write(&source, &image).expect("write the source");
    let dirt = rng.bytes(8 << 20);
    std::fs::write(&target, &dirt).expect("write the target");
    let device = LoopDevice::attach(&source);
    place.mover.ok([
        "backup".as_ref(),
        device.path().as_os_str(),
        "--volume".as_ref(),
        "t".as_ref(),
    ]);
    let device = LoopDevice::attach(&target);
    place.mover.ok(["restore".as_ref(), "t@latest".as_ref(), device.path().as_os_str()]);
    drop(device);
    image.extend_from_slice(&dirt[5 << 20..]);
    let restored = std::fs::read(&target).expect("read the target");
    assert!(restored == image, "the volume is there, and what was behind it too");
}
