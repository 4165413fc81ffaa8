//! exFAT, by its driver for FUSE, as not every kernel mounts it.

use crate::stage::{MIB, Stage, copy, expect_no_panic, map, map_of, spoil, text};
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Filesystem, LoopDevice, Mount, TreeListing, require_root, run_ok};

/// Each with what its mkfs is called with.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("clusters of 512 bytes", &["-c", "512"]),
    ("clusters of 128 KiB", &["-c", "128k"]),
    ("packed bitmap", &["--pack-bitmap"]),
];
const BYTES: u64 = 100 * MIB;

fn mount(device: &LoopDevice, directory: &Path) -> Mount {
    Mount::new(device.path(), directory, "exfat-fuse", "")
}

fn make(stage: &mut Stage, arguments: &[&str]) -> PathBuf {
    let image = stage.path("exfat");
    fs::write(&image, stage.rng.bytes(BYTES as usize)).unwrap();
    let path = text(&image);
    run_ok("mkfs.exfat", arguments.iter().copied().chain([path.as_str()]));
    let device = LoopDevice::attach(&image);
    let mount = mount(&device, &stage.path("live"));
    stage.churn(mount.path());
    stage.churn(&mount.path().join("again"));
    image
}

fn listing(stage: &Stage, image: &Path) -> TreeListing {
    let device = LoopDevice::attach(image);
    let mount = Mount::new(device.path(), &stage.path("mount"), "exfat-fuse", "ro");
    TreeListing::of(mount.path())
}

/// It is sound; gives how many bytes are free.
fn check(image: &Path) -> u64 {
    run_ok("fsck.exfat", ["-n", &text(image)]);
    let output = run_ok("dump.exfat", [text(image)]);
    let figure = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name)).expect("a figure");
        line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    figure("Free Clusters:") * figure("Cluster size:")
}

#[test]
fn every_kind_of_exfat_is_read_right() {
    require_root!();
    for (what, arguments) in VARIANTS {
        let mut stage = Stage::new(Filesystem::Ext4, 75);
        let image = make(&mut stage, arguments);
        let found = map(&image).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
        assert_eq!((found.kind, found.free_bytes), ("exfat", check(&image)), "{what}");
        let spoilt = stage.path("spoilt");
        copy(&image, &spoilt);
        let (bytes, free) = (spoil(&spoilt, &found, &mut stage.rng), found.free_bytes);
        assert!(bytes <= free && bytes > 10 * MIB && bytes + free / 10 > free, "{what}: {bytes}");
        check(&spoilt);
        let expected = listing(&stage, &image);
        assert!(expected.0.len() > 50, "{what}");
        listing(&stage, &spoilt).expect_same(&expected);
        println!("{what}: {} ranges, {free} free", found.used.count());
    }
}

#[test]
fn a_backup_of_exfat_leaves_free_space_out_and_restores_all_files() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 76);
    let image = make(&mut stage, &[]);
    let mover = stage.repository();
    let target = stage.restored(&mover, &image, "one");
    check(&target);
    listing(&stage, &target).expect_same(&listing(&stage, &image));
}

/// Sets bytes of the boot sector, whose checksum fits again afterwards.
fn patched(good: &[u8], at: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    bytes[at..at + value.len()].copy_from_slice(value);
    let mut sum = 0_u32;
    for (at, byte) in bytes[..11 * 512].iter().enumerate() {
        if ![106, 107, 112].contains(&at) {
            sum = sum.rotate_right(1).wrapping_add(u32::from(*byte));
        }
    }
    bytes[11 * 512..12 * 512].chunks_exact_mut(4).for_each(|kept| {
        kept.copy_from_slice(&sum.to_le_bytes());
    });
    bytes
}

#[test]
fn exfat_that_does_not_add_up_is_refused() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 77);
    let image = make(&mut stage, &[]);
    let good = fs::read(&image).unwrap();
    map_of(&good).unwrap();
    let le = |at: usize| u32::from_le_bytes(good[at..at + 4].try_into().unwrap()) as usize;
    let (table, data, root) = (le(80) * 512, le(88) * 512, le(96));
    let cluster = 512 << good[109];
    let directory = data + (root - 2) * cluster;
    let entries = (directory..).step_by(32);
    let entry = |kind: u8| entries.clone().find(|at| good[*at] == kind).unwrap();
    let (bitmap, letters) = (entry(0x81), entry(0x82));
    let place = data + (le(bitmap + 20) - 2) * cluster;
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    for (what, bytes, expected) in [
        ("dirty", patched(&good, 106, &[2]), "not unmounted"),
        ("errors", patched(&good, 106, &[4]), "recorded errors"),
        ("second table", patched(&good, 106, &[1]), "two tables"),
        ("tables", patched(&good, 110, &[2]), "two tables"),
        ("flags", patched(&good, 106, &[0x10]), "unknown flags"),
        ("revision", patched(&good, 105, &[2]), "revision 0x200"),
        ("checksum", with(100, &[!good[100]]), "the checksum of its boot sectors"),
        ("sector", patched(&good, 108, &[13]), "do not fit together"),
        ("size", patched(&good, 72, &[0xff; 7]), "smaller"),
        ("clusters", patched(&good, 92, &[0xff; 3]), "do not fit together"),
        ("table", patched(&good, 84, &[1, 0, 0, 0]), "do not fit together"),
        ("root", patched(&good, 96, &[1, 0, 0, 0]), "cluster 1, which is none"),
        ("chain", with(table + 4 * root, &[2, 0, 0, 0x70]), "which is none"),
        ("loop", with(table + 4 * root, &(root as u32).to_le_bytes()), "has no end"),
        ("no bitmap", with(bitmap, &[0x83]), "has no bitmap"),
        ("second bitmap", with(bitmap + 1, &[1]), "two bitmaps"),
        ("twice", with(letters, &[0x81]), "two bitmaps"),
        ("short bitmap", with(bitmap + 24, &[9, 0, 0]), "has not the length"),
        ("long bitmap", with(bitmap + 31, &[0x10]), "has not the length"),
        ("short chain", with(letters + 24, &[0, 0, 2]), "shorter than it says"),
        ("endless letters", with(letters + 31, &[0x10]), "more than there are"),
        ("free bitmap", with(place, &[0]), "its own tables"),
    ] {
        let refusal = map_of(&bytes).expect_err(what);
        assert!(refusal.contains(expected), "{what}: {refusal}");
    }
    map_of(&patched(&good, 106, &[8])).expect("a flag that has no meaning");
    let places = [(64, 50), (directory, 200), (table, 64), (bitmap, 32)];
    expect_no_panic(&good, &places, &mut stage.rng);
}
