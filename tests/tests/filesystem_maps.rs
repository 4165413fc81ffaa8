//! Which blocks a file system uses, as `mover` reads it from the raw device, held against the file system's own tools and against
//! the kernel: everything that a map leaves out is overwritten, and then the file system must check clean and show the same files.
//!
//! Snapshots are taken while the file system is mounted and its newest metadata is in the journal alone, as with a CSI snapshot
//! of a running pod.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed
#![allow(clippy::cast_possible_truncation)] // volumes of some MiB

use mover::filesystem::{Limits, Refusal, UsedSpace, used_space};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::{LoopDevice, Mount, Mover, Rng, TreeListing, require_root, run, run_ok, work_dir};

const MIB: u64 = 1 << 20;
const LIMITS: Limits = Limits { granule_bytes: 4 << 10, ranges_max: 1 << 20 };

/// Each with what its mkfs is called with.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("1 KiB blocks", &["-b", "1024"]),
    ("2 KiB blocks", &["-b", "2048", "-g", "1024"]),
    ("ext2", &["-t", "ext2"]),
    ("ext3", &["-t", "ext3", "-b", "1024"]),
    ("no journal", &["-O", "^has_journal"]),
    ("no checksums", &["-O", "^metadata_csum,uninit_bg", "-b", "1024"]),
    ("32 bit", &["-O", "^64bit,^metadata_csum"]),
    ("32 bit with checksums", &["-O", "^64bit,metadata_csum", "-b", "1024"]),
    ("meta_bg", &["-O", "meta_bg,^resize_inode", "-b", "1024"]),
    ("sparse_super2", &["-O", "sparse_super2,^resize_inode", "-b", "1024"]),
    ("all superblocks", &["-O", "^sparse_super,^resize_inode", "-b", "1024"]),
    ("no flex_bg", &["-O", "^flex_bg", "-b", "1024"]),
    ("bigalloc", &["-O", "bigalloc", "-C", "65536"]),
    ("bigalloc, 1 KiB blocks", &["-O", "bigalloc", "-b", "1024", "-C", "16384"]),
    ("inline data", &["-O", "inline_data"]),
    ("seed of its own", &["-O", "metadata_csum_seed"]),
    ("large inodes", &["-I", "1024", "-i", "4096"]),
    ("small journal", &["-J", "size=4"]),
    ("lazy tables", &["-E", "lazy_itable_init=1"]),
];

struct Stage {
    directory: tempfile::TempDir,
    rng: Rng,
}

impl Stage {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make(&self, arguments: &[&str], bytes: u64) -> PathBuf {
        let image = self.path("image");
        File::create(&image).unwrap().set_len(bytes).unwrap();
        let quiet = ["-q", "-F"].iter().chain(arguments);
        run_ok("mkfs.ext4", quiet.map(|s| (*s).to_owned()).chain([text(&image)]));
        image
    }

    /// Files of all sizes, of which some go again; the newest metadata is committed to the journal and nowhere else.
    fn churn(&mut self, root: &Path) {
        for round in 0..3 {
            for n in 0..60 {
                let directory = root.join(format!("{}", n % 7));
                fs::create_dir_all(&directory).unwrap();
                let name = directory.join(format!("{round}-{n}"));
                let len = self.rng.below(1 << (3 + n % 16)) as usize;
                fs::write(&name, self.rng.bytes(len)).unwrap();
                if self.rng.once_in(3) {
                    fs::remove_file(&name).unwrap();
                }
            }
            let committed = File::create(root.join(format!("committed-{round}"))).unwrap();
            committed.write_all_at(&self.rng.bytes(300_000), 0).unwrap();
            committed.sync_all().unwrap();
        }
    }

    /// Mounts a copy, which replays its journal, and lists it.
    fn listing(&self, image: &Path) -> TreeListing {
        let device = LoopDevice::attach(image);
        let mount = Mount::new(device.path(), &self.path("mount"), "ext4", "");
        TreeListing::of(mount.path())
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn map(image: &Path) -> Result<UsedSpace, Refusal> {
    let file = File::open(image).unwrap();
    let bytes = file.metadata().unwrap().len();
    used_space(&file, bytes, LIMITS)
}

fn copy(from: &Path, to: &Path) {
    run_ok("cp", ["--sparse=always", &text(from), &text(to)]);
}

/// Overwrites what the map leaves out: a restore would leave zeros there; noise is found by more.
fn spoil(image: &Path, used: &UsedSpace, rng: &mut Rng) -> u64 {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    let end = file.metadata().unwrap().len();
    let (mut at, mut spoilt) = (0, 0);
    let noise = rng.bytes(1 << 20);
    let last = std::iter::once(end..end);
    for range in used.used.iter().chain(last) {
        while at < range.start {
            let len = (range.start - at).min(noise.len() as u64);
            file.write_all_at(&noise[..len as usize], at).unwrap();
            at += len;
            spoilt += len;
        }
        at = at.max(range.end);
    }
    spoilt
}

/// Free bytes as e2fsprogs count them.
fn free_bytes(image: &Path) -> u64 {
    let output = run_ok("dumpe2fs", ["-h", &text(image)]);
    let figure = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name)).expect("a figure");
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    figure("Free blocks:") * figure("Block size:")
}

/// The map of an image, tried on a copy of it.
fn expect_right(stage: &mut Stage, image: &Path, what: &str) -> UsedSpace {
    let found = map(image).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
    let (whole, spoilt) = (stage.path("whole"), stage.path("spoilt"));
    copy(image, &whole);
    copy(image, &spoilt);
    let bytes = spoil(&spoilt, &found, &mut stage.rng);
    assert!(bytes > 10 * MIB, "{what}: only {bytes} bytes are free of {found:?}");
    let expected = stage.listing(&whole);
    assert!(expected.0.len() > 50, "{what}");
    expected.expect_same(&stage.listing(&spoilt));
    for image in [&whole, &spoilt] {
        run_ok("e2fsck", ["-f", "-n", &text(image)]);
    }
    assert_eq!(found.free_bytes, free_bytes(&whole), "{what}");
    found
}

#[test]
fn every_kind_of_ext4_is_read_right_mounted_and_unmounted() {
    require_root!();
    let mut replayed = 0;
    for (what, arguments) in VARIANTS {
        let rng = Rng::new(20);
        let mut stage = Stage { directory: work_dir("ext4"), rng };
        let image = stage.make(arguments, 200 * MIB);
        let device = LoopDevice::attach(&image);
        let mount = Mount::new(device.path(), &stage.path("live"), "ext4", "");
        stage.churn(mount.path());
        let snapshot = stage.path("snapshot");
        copy(&image, &snapshot);
        drop(mount);
        drop(device);
        if what.contains("no journal") || *what == "ext2" {
            let refusal = map(&snapshot).expect_err("it is mounted and has no journal");
            assert!(refusal.to_string().contains("was not unmounted"), "{what}: {refusal}");
        } else {
            let found = expect_right(&mut stage, &snapshot, &format!("{what}, mounted"));
            assert!(found.replayed > 0, "{what}: nothing was in the journal");
            replayed += found.replayed;
        }
        let found = expect_right(&mut stage, &image, &format!("{what}, unmounted"));
        assert_eq!(found.replayed, 0, "{what}");
    }
    assert!(replayed > 20, "{replayed} transactions");
}

#[test]
fn what_is_not_understood_or_does_not_add_up_is_refused() {
    require_root!();
    let mut stage = Stage { directory: work_dir("ext4"), rng: Rng::new(21) };
    let image = stage.make(&["-O", "fast_commit", "-b", "1024"], 64 * MIB);
    let snapshot = stage.path("snapshot");
    {
        let device = LoopDevice::attach(&image);
        let mount = Mount::new(device.path(), &stage.path("live"), "ext4", "");
        stage.churn(mount.path());
        copy(&image, &snapshot);
    }
    let refusal = map(&snapshot).expect_err("fast commits");
    assert!(refusal.to_string().contains("features that are not understood"), "{refusal}");
    map(&image).expect("it was unmounted");

    let debugfs = |image: &Path, command: &str| {
        run_ok("debugfs", ["-w", "-R", command, &text(image)]);
    };
    for (command, expected) in [
        ("ssv state 3", "recorded errors"),
        ("ssv feature_incompat 0x8000000", "unknown features"),
        ("set_bg 2 free_blocks_count 5", "as many free blocks"),
        ("set_bg 1 block_bitmap 4000000", "leads outside"),
        ("freeb 20000 7", "as many free blocks"),
    ] {
        let broken = stage.path("broken");
        copy(&image, &broken);
        debugfs(&broken, command);
        let refusal = map(&broken).expect_err(command).to_string();
        // which of them is met first, a checksum or what it protects, is debugfs's affair
        let found = refusal.contains(expected) || refusal.contains("checksum");
        assert!(found, "{command}: {refusal}");
    }
    assert!(run("e2fsck", ["-f", "-n", &text(&image)]).status.success());
}

#[test]
fn damaged_metadata_is_refused_or_harmless_and_never_a_panic_or_a_loop() {
    require_root!();
    let mut stage = Stage { directory: work_dir("ext4"), rng: Rng::new(22) };
    for arguments in [&["-b", "1024", "-O", "^metadata_csum"][..], &["-b", "1024"]] {
        let image = stage.make(arguments, 40 * MIB);
        let snapshot = stage.path("snapshot");
        {
            let device = LoopDevice::attach(&image);
            let mount = Mount::new(device.path(), &stage.path("live"), "ext4", "");
            stage.churn(mount.path());
            copy(&image, &snapshot);
        }
        let good = fs::read(&snapshot).unwrap();
        let size = good.len() as u64;
        map(&snapshot).unwrap();
        let mut bytes = good.clone();
        let mut refused = 0;
        for _ in 0..2000 {
            // superblock, descriptors, bitmaps and inode tables of the first groups, and the journal's superblock
            let at = 1024 + stage.rng.below(1 << 20) as usize;
            let at = if stage.rng.once_in(2) { 1024 + at % 4096 } else { at };
            let len = 1 + stage.rng.below(8) as usize;
            stage.rng.fill(&mut bytes[at..at + len]);
            refused += u32::from(used_space(&&bytes[..], size, LIMITS).is_err());
            bytes[at..at + len].copy_from_slice(&good[at..at + len]);
        }
        assert!(refused > 10, "{refused} of 2000");
    }
}

#[test]
fn a_backup_leaves_free_blocks_out_and_restores_all_files() {
    require_root!();
    let mut stage = Stage { directory: work_dir("ext4"), rng: Rng::new(23) };
    let image = stage.make(&[], 200 * MIB);
    let snapshot = stage.path("snapshot");
    let repository = format!("file://{}", text(&stage.path("repository")));
    let mover = Mover::new().env("MOVER_REPO", repository).env("MOVER_AUDIT", "all");
    mover.ok(["init", "--encryption", "none"]);
    let target = text(&stage.path("target"));
    let backup = ["backup", "--allocated-from", "filesystem", "--json"];
    {
        let device = LoopDevice::attach(&image);
        let mount = Mount::new(device.path(), &stage.path("live"), "ext4", "");
        stage.churn(mount.path());
        copy(&image, &snapshot);
        // what is mounted is ahead of what is on the device
        let live = mover.ok(backup.iter().copied().chain([text(device.path()).as_str()]));
        assert!(live.stderr.contains("is mounted read-write"), "{}", live.stderr);
        assert!(live.text().contains("\"kind\":\"whole\""), "{}", live.text());
    }
    for name in ["one", "two"] {
        // what free blocks hold does not matter
        let used = map(&snapshot).unwrap();
        spoil(&snapshot, &used, &mut stage.rng);
        let device = LoopDevice::attach(&snapshot);
        let device = text(device.path());
        let more = ["--volume", "v", "--snapshot", name, &device];
        let done = mover.ok(backup.iter().copied().chain(more)).text();
        assert!(
            done.contains("\"kind\":\"allocated\"") && done.contains("\"degraded\":[]"),
            "{done}"
        );
        assert!(done.contains("\"origin\":\"filesystem\""), "{done}");
        mover.ok(["restore", "v@latest", &target, "--force"]);
        let whole = stage.path("whole");
        copy(&snapshot, &whole);
        stage.listing(&whole).expect_same(&stage.listing(&stage.path("target")));
        run_ok("e2fsck", ["-f", "-n", &target]);
    }
    let listed = mover.ok(["changes", &text(&snapshot), "--allocated-from", "filesystem"]).text();
    assert!(listed.contains("allocated"), "{listed}");
    // and where nothing is understood the whole is read, or nothing
    let unknown = text(&stage.path("unknown"));
    fs::write(&unknown, stage.rng.bytes(1 << 20)).unwrap();
    let whole = mover.ok(backup.iter().copied().chain([unknown.as_str()]));
    assert!(whole.stderr.contains("went down from allocated to whole"), "{}", whole.stderr);
    let refused = mover.run(backup.iter().copied().chain(["--require", "allocated", &unknown]));
    assert!(
        !refused.status.success() && refused.stderr.contains("--require"),
        "{}",
        refused.stderr
    );
}
