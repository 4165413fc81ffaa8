//! ext2, ext3 and ext4.

use crate::stage::{BACKUP, LIMITS, MIB, Stage, copy, map, text};
use mover_fsmap::{UsedSpace, used_space};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tests::{Filesystem, LoopDevice, Mount, require_root, run, run_ok};

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

/// Free bytes as e2fsprogs count them.
fn free_bytes(image: &Path) -> u64 {
    let output = run_ok("dumpe2fs", ["-h", &text(image)]);
    let figure = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name)).expect("a figure");
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    figure("Free blocks:") * figure("Block size:")
}

fn expect_right(stage: &mut Stage, image: &Path, what: &str) -> UsedSpace {
    let found = stage.expect_right(image, what);
    assert_eq!(found.free_bytes, free_bytes(&stage.path("whole")), "{what}");
    found
}

#[test]
fn every_kind_of_ext4_is_read_right_mounted_and_unmounted() {
    require_root!();
    let mut replayed = 0;
    for (what, arguments) in VARIANTS {
        let mut stage = Stage::new(Filesystem::Ext4, 20);
        let image = stage.make(arguments, 200 * MIB);
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
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
    let mut stage = Stage::new(Filesystem::Ext4, 21);
    let image = stage.make(&["-O", "fast_commit", "-b", "1024"], 64 * MIB);
    let snapshot = stage.path("snapshot");
    {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
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
    let mut stage = Stage::new(Filesystem::Ext4, 22);
    for arguments in [&["-b", "1024", "-O", "^metadata_csum"][..], &["-b", "1024"]] {
        let image = stage.make(arguments, 40 * MIB);
        let snapshot = stage.path("snapshot");
        {
            let device = LoopDevice::attach(&image);
            let mount = stage.mount(&device);
            stage.churn(mount.path());
            copy(&image, &snapshot);
        }
        let good = fs::read(&snapshot).unwrap();
        let size = good.len() as u64;
        map(&snapshot).unwrap();
        let mut bytes = good.clone();
        let mut refused = 0;
        for _ in 0..2000 {
            // superblock, descriptors, bitmaps and inode tables of the first groups, and the
            // journal's superblock
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

/// A mount in a mount namespace of its own, until it is dropped. The namespace begins with a copy of
/// all mounts; it lets go of what other tests have mounted at that moment.
struct MountElsewhere(Child);

impl MountElsewhere {
    fn new(device: &LoopDevice, directory: &Path) -> Self {
        Self::with(device, directory, "").0
    }

    /// After some commands there, with what they printed.
    fn with(device: &LoopDevice, directory: &Path, commands: &str) -> (Self, String) {
        fs::create_dir_all(directory).unwrap();
        let script = "while read -r device at rest; do
              case $device in /dev/loop*) umount \"$at\" ;; esac
            done </proc/self/mounts
            mount \"$1\" \"$2\" && cd \"$2\" && eval \"$3\" && cd / && echo ready && read end";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(device.path()).arg(directory);
        command.arg(commands).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
        while !said.ends_with("ready\n") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
        }
        said.truncate(said.len() - "ready\n".len());
        (Self(child), said)
    }
}

impl Drop for MountElsewhere {
    fn drop(&mut self) {
        // its shell reads the end of this
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What a mount that is not seen writes at its end is behind the map that was read before.
#[test]
fn a_map_that_was_read_while_a_mount_went_away_is_read_again() {
    require_root!();
    // an unmount may take longer than a backup waits for it: then it is refused, and tried again
    for attempt in 0..10 {
        let stage = Stage::new(Filesystem::Ext4, 24);
        let device = LoopDevice::attach(&stage.make(&[], 100 * MIB));
        let mover = stage.repository();
        let late = "head -c 5000000 /dev/urandom >late && sha256sum <late";
        let (elsewhere, sum) = MountElsewhere::with(&device, &stage.path("elsewhere"), late);
        let mut backup = mover.command(BACKUP.iter().copied().chain([
            "-v",
            "--require",
            "allocated",
            "--volume",
            "v",
        ]));
        backup.arg(device.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut backup = backup.spawn().unwrap();
        let mut said = String::new();
        let mut errors = BufReader::new(backup.stderr.take().unwrap());
        while !said.contains("its map is read again if they let it go") {
            assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
        }
        drop(elsewhere);
        errors.read_to_string(&mut said).unwrap();
        if !backup.wait().unwrap().success() {
            assert!(said.contains("that is not seen from here"), "attempt {attempt}: {said}");
            continue;
        }
        let target = stage.path("target");
        mover.ok(["restore", "v@latest", &text(&target)]);
        let restored = LoopDevice::attach(&target);
        let mount = Mount::new(restored.path(), &stage.path("restored"), "ext4", "ro");
        let of = format!("sha256sum <{}", text(&mount.path().join("late")));
        assert_eq!(run_ok("sh", ["-c", of.as_str()]).trim(), sum.trim());
        return;
    }
    panic!("the mount never went away in time");
}

#[test]
fn a_backup_leaves_free_blocks_out_and_restores_all_files() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 23);
    let image = stage.make(&[], 200 * MIB);
    let snapshot = stage.path("snapshot");
    let mover = stage.repository();
    {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        copy(&image, &snapshot);
        // what is mounted is ahead of what is on the device
        let live = mover.ok(BACKUP.iter().copied().chain([text(device.path()).as_str()]));
        assert!(live.stderr.contains("is mounted read-write"), "{}", live.stderr);
        let why = live.summary()["degraded"].to_string();
        assert!(why.contains("the backup may be inconsistent"), "{why}");
        assert!(live.text().contains("\"kind\":\"whole\""), "{}", live.text());
    }
    {
        // the same in a container, of whose mounts nothing is seen outside
        let device = LoopDevice::attach(&image);
        let elsewhere = MountElsewhere::new(&device, &stage.path("elsewhere"));
        let live = mover.ok(BACKUP.iter().copied().chain([text(device.path()).as_str()]));
        assert!(live.stderr.contains("that is not seen from here"), "{}", live.stderr);
        assert!(live.text().contains("\"kind\":\"whole\""), "{}", live.text());
        drop(elsewhere);
    }
    stage.expect_backups_right(&mover, &snapshot);
    // its free blocks hold something, the backup does not
    let differs = mover.run(["verify", "v@latest", "--device", &text(&snapshot)]).expect_code(3);
    let why = "has zeros where the file system has free space";
    assert!(differs.stderr.contains(why), "{}", differs.stderr);
    let listed = mover.ok(["changes", &text(&snapshot), "--allocated-from", "filesystem"]).text();
    assert!(listed.contains("allocated"), "{listed}");
    // and where nothing is understood the whole is read, or nothing
    let unknown = text(&stage.path("unknown"));
    fs::write(&unknown, stage.rng.bytes(1 << 20)).unwrap();
    let whole = mover.ok(BACKUP.iter().copied().chain([unknown.as_str()]));
    assert!(whole.stderr.contains("went down from allocated to whole"), "{}", whole.stderr);
    let refused = mover.run(BACKUP.iter().copied().chain(["--require", "allocated", &unknown]));
    assert!(
        !refused.status.success() && refused.stderr.contains("--require"),
        "{}",
        refused.stderr
    );
}
