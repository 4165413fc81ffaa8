//! btrfs on one device.

use crate::stage::{LIMITS, MIB, Stage, copy, crc32c, map, text};
use mover_fsmap::{Refusal, used_space};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tests::{Filesystem, LoopDevice, require_root, run_ok};

/// Each with what its mkfs is called with. What an installed mkfs or kernel does not know is left
/// out, and printed.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("everything twice", &["-d", "dup", "-m", "dup"]),
    ("everything once", &["-d", "single", "-m", "single"]),
    ("mixed", &["-M"]),
    ("mixed, twice", &["-M", "-d", "dup", "-m", "dup"]),
    ("4 KiB nodes", &["-n", "4096"]),
    ("8 KiB nodes", &["-n", "8192"]),
    ("32 KiB nodes", &["-n", "32768"]),
    ("64 KiB nodes", &["-n", "65536"]),
    ("xxhash", &["--csum", "xxhash"]),
    ("sha256", &["--csum", "sha256"]),
    ("blake2", &["--csum", "blake2"]),
    ("no extref", &["-O", "^extref"]),
    ("no skinny-metadata", &["-O", "^skinny-metadata"]),
    ("no no-holes", &["-O", "^no-holes"]),
    ("raid56 and raid1c34", &["-O", "raid56,raid1c34"]),
    ("free space cache", &["-R", "^free-space-tree"]),
    ("quota", &["-R", "quota"]),
    ("a tree of block groups", &["-O", "block-group-tree"]),
    ("simple quota", &["-O", "squota"]),
];
const BYTES: u64 = 400 * MIB;
/// Of the superblock.
const SUPERBLOCK: u64 = 64 << 10;
const SUPERBLOCK_LEN: usize = 4096;

/// A copy of an image that is mounted: what no commit came in between.
fn snapshot(image: &Path, to: &Path) {
    let state = || {
        let mut bytes = [0; SUPERBLOCK_LEN];
        File::open(image).unwrap().read_exact_at(&mut bytes, SUPERBLOCK).unwrap();
        bytes
    };
    loop {
        let before = state();
        copy(image, to);
        if state() == before {
            return;
        }
    }
}

/// Whether its superblock names a tree of logs: `log_root` of `struct btrfs_super_block`.
fn has_log(image: &Path) -> bool {
    let mut address = [0; 8];
    File::open(image).unwrap().read_exact_at(&mut address, SUPERBLOCK + 0x60).unwrap();
    address != [0; 8]
}

/// What the kernel says is used of a device, copies counted.
fn used_bytes(stage: &Stage, image: &Path) -> u64 {
    let device = LoopDevice::attach(image);
    let mount = tests::Mount::new(device.path(), &stage.path("mount"), "btrfs", "ro");
    let output = run_ok("btrfs", ["filesystem", "usage", "-b", &text(mount.path())]);
    let line = output.lines().find(|line| line.trim().starts_with("Used:")).expect("a figure");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn every_kind_of_btrfs_is_read_right_mounted_and_unmounted() {
    require_root!();
    let mut tried = 0;
    for (what, arguments) in VARIANTS {
        let mut stage = Stage::new(Filesystem::Btrfs, 30);
        let Some(image) = stage.try_make(arguments, BYTES) else { continue };
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        run_ok("btrfs", ["filesystem", "sync", &text(mount.path())]);
        // From here on there is only a log, unless somebody calls sync(2), or the kernel adds a chunk: either commits all.
        let live = stage.path("snapshot");
        let logged = (0..8).any(|attempt| {
            stage.churn(&mount.path().join(format!("again-{attempt}")));
            snapshot(&image, &live);
            has_log(&live)
        });
        assert!(logged, "{what}: there never is a log");
        drop(mount);
        drop(device);
        let found = stage.expect_right(&live, &format!("{what}, mounted"));
        assert_eq!(found.replayed, 1, "{what}: one subvolume was synced");
        let found = stage.expect_right(&image, &format!("{what}, unmounted"));
        assert_eq!(found.replayed, 0, "{what}");
        assert_eq!(found.free_bytes, BYTES - used_bytes(&stage, &image), "{what}");
        println!("{what} {arguments:?}: {} ranges, {} free", found.used.count(), found.free_bytes);
        tried += 1;
    }
    assert!(tried > 10, "{tried} of {} were tried", VARIANTS.len());
}

#[test]
fn subvolumes_snapshots_and_reserved_space_are_used() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Btrfs, 31);
    let image = stage.make(&[], BYTES);
    let live = stage.path("snapshot");
    {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        let root = mount.path();
        for name in ["one", "two"] {
            run_ok("btrfs", ["subvolume", "create", &text(&root.join(name))]);
        }
        stage.churn(&root.join("one"));
        let subvolume = ["subvolume", "snapshot"].map(str::to_owned);
        let places = ["one", "two/of-one"].map(|name| text(&root.join(name)));
        run_ok("btrfs", subvolume.into_iter().chain(places));
        run_ok("btrfs", ["filesystem", "sync", &text(root)]);
        // from here on there are only logs, one for each subvolume that is written to and synced
        stage.churn(&root.join("one"));
        stage.churn(&root.join("two"));
        let reserved = root.join("two/reserved");
        run_ok("fallocate", ["-l", "20M", &text(&reserved)]);
        let file = File::options().write(true).open(&reserved).unwrap();
        file.write_all_at(&stage.rng.bytes(1 << 20), 3 << 20).unwrap();
        file.sync_all().unwrap();
        fs::remove_dir_all(root.join("two/of-one/1")).unwrap();
        snapshot(&image, &live);
    }
    stage.expect_right(&live, "mounted");
    stage.expect_right(&image, "unmounted");
}

#[test]
fn a_backup_of_btrfs_leaves_free_space_out_and_restores_all_files() {
    require_root!();
    for arguments in [&[][..], &["-M"], &["--csum", "blake2", "-d", "dup"]] {
        let mut stage = Stage::new(Filesystem::Btrfs, 32);
        let image = stage.make(arguments, BYTES);
        let live = stage.path("snapshot");
        {
            let device = LoopDevice::attach(&image);
            let mount = stage.mount(&device);
            stage.churn(mount.path());
            run_ok("btrfs", ["filesystem", "sync", &text(mount.path())]);
            stage.churn(&mount.path().join("again"));
            snapshot(&image, &live);
        }
        let mover = stage.repository();
        stage.expect_backups_right(&mover, &live);
    }
}

/// Sets bytes of the superblock, whose checksum fits again afterwards.
fn patched(good: &[u8], at: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let block = &mut bytes[SUPERBLOCK as usize..][..SUPERBLOCK_LEN];
    block[at..at + value.len()].copy_from_slice(value);
    seal(block);
    bytes
}

fn seal(block: &mut [u8]) {
    let sum = crc32c(&block[32..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

fn map_of(bytes: &[u8]) -> Result<u64, String> {
    let found = used_space(&bytes, bytes.len() as u64, LIMITS);
    found.map(|found| found.free_bytes).map_err(|refusal| refusal.to_string())
}

#[test]
fn what_is_not_understood_of_btrfs_is_refused() {
    require_root!();
    let stage = Stage::new(Filesystem::Btrfs, 33);
    let image = stage.make(&[], 128 * MIB);
    let good = fs::read(&image).unwrap();
    map_of(&good).unwrap();
    for (at, value, expected) in [
        (0x38, 1_u64 | 1 << 32, "seed"),
        (0x38, 1 | 1 << 2, "recorded errors"),
        (0x38, 1 | 1 << 36, "unknown flags"),
        (0x88, 2, "spread over 2 devices"),
        (0xbc, 0x341 | 1 << 12, "zoned"),
        (0xbc, 0x341 | 1 << 13, "unknown features"),
        (0xbc, 0x341 | 1 << 40, "unknown features"),
        (0xbc, 0x340, "no longer in use"),
        (0xb4, 3 | 1 << 4, "unknown features"),
        (0xb4, 3 | 1 << 3, "tree of block groups"),
        (0xc9 + 8, 1 << 40, "the volume is smaller"),
        (0x48, 1 << 40, "is not the one that was referred to"),
        (0x60, 1 << 50, "are in no chunk"),
        (0x78, 12345, "says that it has 12345"),
    ] {
        let refusal = map_of(&patched(&good, at, &value.to_le_bytes())).expect_err(expected);
        assert!(refusal.contains(expected), "{at:#x} {value:#x}: {refusal}");
    }
    let refusal = map_of(&patched(&good, 0xc4, &[9, 0])).expect_err("an unknown checksum");
    assert!(refusal.contains("unknown kind"), "{refusal}");
    let mut bytes = good.clone();
    bytes[SUPERBLOCK as usize + 0x78] ^= 1;
    let refusal = map_of(&bytes).expect_err("a wrong checksum");
    assert!(refusal.contains("checksum"), "{refusal}");
    // other users of the device
    bytes = good;
    bytes[512..520].copy_from_slice(b"LABELONE");
    let refusal = map_of(&bytes).expect_err("LVM");
    assert!(refusal.contains("an LVM physical volume"), "{refusal}");
    let unknown = used_space(&&[0_u8; 4096][..], 4096, LIMITS);
    assert!(matches!(unknown, Err(Refusal::Unknown)), "{unknown:?}");
}

#[test]
fn a_file_system_of_several_devices_is_refused() {
    require_root!();
    let stage = Stage::new(Filesystem::Btrfs, 34);
    let images = ["image", "second"].map(|name| {
        let path = stage.path(name);
        File::create(&path).unwrap().set_len(256 * MIB).unwrap();
        text(&path)
    });
    for profile in ["raid1", "raid0"] {
        let arguments = ["-q", "-f", "-d", profile, "-m", profile, &images[0], &images[1]];
        run_ok("mkfs.btrfs", arguments);
        let refusal = map(Path::new(&images[0])).expect_err(profile).to_string();
        assert!(refusal.contains("spread over 2 devices"), "{refusal}");
    }
}

#[test]
fn damaged_btrfs_is_refused_or_harmless_and_never_a_panic_or_a_loop() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Btrfs, 35);
    let image = stage.make(&["-n", "4096", "-d", "single", "-m", "single"], 128 * MIB);
    let live = stage.path("snapshot");
    {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        snapshot(&image, &live);
    }
    let good = fs::read(&live).unwrap();
    map_of(&good).unwrap();
    // all blocks of trees, whichever commit they are of: they carry the file system's UUID
    let uuid = &good[SUPERBLOCK as usize + 32..][..16];
    let places = (0..good.len()).step_by(4096);
    let blocks: Vec<usize> = places.filter(|at| good[at + 32..].starts_with(uuid)).collect();
    assert!(blocks.len() > 20, "{} blocks", blocks.len());
    let mut bytes = good.clone();
    let mut refused = 0;
    for _ in 0..3000 {
        let at = blocks[stage.rng.below(blocks.len() as u64) as usize];
        let block = at..at + 4096;
        // headers, the first items, anywhere
        let most = [101, 300, 4096][stage.rng.below(3) as usize];
        let from = at + stage.rng.below(most) as usize;
        let len = 1 + stage.rng.below(8) as usize;
        let end = (from + len).min(at + 4096);
        stage.rng.fill(&mut bytes[from..end]);
        if !stage.rng.once_in(8) {
            seal(&mut bytes[block.clone()]);
        }
        refused += u32::from(map_of(&bytes).is_err());
        bytes[block.clone()].copy_from_slice(&good[block]);
    }
    assert!(refused > 100, "{refused} of 3000");
}

/// Roots that all lead to one log tree, or a walk of them would have no end that the device's size
/// gives it.
#[test]
fn log_trees_that_are_larger_than_the_device_are_refused() {
    require_root!();
    const NODE: usize = 64 << 10;
    const HEADER: usize = 101;
    const ITEM: usize = 25;
    let mut stage = Stage::new(Filesystem::Btrfs, 36);
    let image = stage.make(&["-n", "65536", "-d", "single", "-m", "single"], 128 * MIB);
    let live = stage.path("snapshot");
    {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        run_ok("btrfs", ["filesystem", "sync", &text(mount.path())]);
        // the first of these may be a commit
        for number in 0..3 {
            let file = File::create(mount.path().join(format!("synced-{number}"))).unwrap();
            file.write_all_at(&stage.rng.bytes(300_000), 0).unwrap();
            file.sync_all().unwrap();
        }
        snapshot(&image, &live);
    }
    let good = fs::read(&live).unwrap();
    let free = map_of(&good).unwrap();
    let root = good[SUPERBLOCK as usize + 0x60..][..8].to_vec();
    // all copies of the one leaf that names the roots of logs
    let blocks: Vec<usize> = (0..good.len() - NODE)
        .step_by(4096)
        .filter(|at| good[at + 48..at + 56] == root && good[at + 96..at + 101] == [1, 0, 0, 0, 0])
        .collect();
    assert!(!blocks.is_empty(), "no log root");
    let with_roots = |roots: usize| {
        let mut bytes = good.clone();
        for at in &blocks {
            let block = &mut bytes[*at..at + NODE];
            let item = block[HEADER..HEADER + ITEM].to_vec();
            for number in 0..roots {
                let own = &mut block[HEADER + ITEM * number..][..ITEM];
                own.copy_from_slice(&item);
                // its key: whose log it is
                own[9..17].copy_from_slice(&(256 + number as u64).to_le_bytes());
            }
            block[96..100].copy_from_slice(&(roots as u32).to_le_bytes());
            seal(block);
        }
        map_of(&bytes)
    };
    assert_eq!(with_roots(100), Ok(free));
    // the device has room for 2048 nodes
    let refusal = with_roots(2500).expect_err("too many");
    assert!(refusal.contains("its log trees are larger than the device"), "{refusal}");
}
