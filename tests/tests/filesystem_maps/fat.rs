//! FAT12, FAT16 and FAT32. Files are put there and taken out by mtools, as not every kernel mounts
//! it.

use crate::stage::{
    Image, LIMITS, MIB, Stage, copy, expect_no_panic, expect_refused, map_of, spoil, text,
};
use mover_fsmap::used_space;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tests::{Filesystem, TreeListing, require_root, run, run_ok};

/// Each with what its mkfs is called with, and its size in MiB.
const VARIANTS: &[(&str, &[&str], u64)] = &[
    ("FAT12", &["-F", "12", "-s", "8"], 12),
    ("FAT12, one table", &["-F", "12", "-s", "16", "-f", "1"], 20),
    ("FAT16", &["-F", "16"], 60),
    ("FAT16, large clusters", &["-F", "16", "-s", "64"], 200),
    ("FAT32", &["-F", "32"], 200),
    ("FAT32, small", &["-F", "32", "-s", "1", "-R", "40"], 50),
    ("sectors of 4 KiB", &["-F", "16", "-S", "4096", "-s", "1"], 60),
    ("chosen by itself", &[], 100),
];

/// What mtools say of nothing but their own taste is passed over.
fn mtools(arguments: &[&str]) -> String {
    run_ok("env", ["MTOOLS_SKIP_CHECK=1"].iter().chain(arguments))
}

pub(crate) fn make(stage: &mut Stage, arguments: &[&str], bytes: u64) -> PathBuf {
    let image = stage.path("fat");
    File::create(&image).unwrap();
    File::options().write(true).open(&image).unwrap().set_len(bytes).unwrap();
    let path = text(&image);
    run_ok("mkfs.fat", arguments.iter().copied().chain([path.as_str()]));
    // as much as there is room for, of which some goes again
    let files = stage.path("files");
    fs::create_dir_all(&files).unwrap();
    stage.churn(&files);
    let second = stage.path("second");
    fs::create_dir_all(&second).unwrap();
    stage.churn(&second);
    let sources = [files, second].map(|files| text(&files));
    mtools(&["mcopy", "-s", "-Q", "-i", &path, &sources[0], "::"]);
    mtools(&["mdeltree", "-i", &path, "::files/1", "::files/4"]);
    mtools(&["mcopy", "-s", "-Q", "-i", &path, &sources[1], "::"]);
    mtools(&["mdeltree", "-i", &path, "::second/2"]);
    image
}

pub(crate) fn listing(stage: &Stage, image: &Path) -> TreeListing {
    let out = stage.path("out");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).unwrap();
    mtools(&["mcopy", "-s", "-n", "-Q", "-i", &text(image), "::files", "::second", &text(&out)]);
    let mut listing = TreeListing::of(&out);
    // when they were taken out
    listing.0.values_mut().for_each(|entry| entry.modified = (0, 0));
    listing
}

/// It is sound; gives how many bytes are free.
pub(crate) fn check(image: &Path) -> u64 {
    let output = run("fsck.fat", ["-n", "-v", &text(image)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let figure = |name: &str| {
        let line = said.lines().find(|line| line.contains(name)).expect("a figure");
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let counts = said.lines().last().unwrap().rsplit(' ').nth(1).unwrap();
    let (used, all) = counts.split_once('/').unwrap();
    (all.parse::<u64>().unwrap() - used.parse::<u64>().unwrap()) * figure("bytes per cluster")
}

#[test]
fn every_kind_of_fat_is_read_right() {
    for (what, arguments, mib) in VARIANTS {
        let mut stage = Stage::new(Filesystem::Ext4, 70);
        let image = make(&mut stage, arguments, mib * MIB);
        let limits = mover_fsmap::Limits { granule_bytes: 512, ..LIMITS };
        let file = Image::open(&image);
        let found = used_space(&file, mib * MIB, limits);
        let found = found.unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
        assert_eq!(found.kind, "vfat", "{what}");
        assert_eq!(found.free_bytes, check(&image), "{what}");
        assert!(found.notes.is_empty(), "{what}: {:?}", found.notes);
        let expected = listing(&stage, &image);
        assert!(expected.0.len() > 50, "{what}");
        let spoilt = stage.path("spoilt");
        copy(&image, &spoilt);
        let bytes = spoil(&spoilt, &found, &mut stage.rng);
        assert_eq!(bytes, found.free_bytes, "{what}");
        check(&spoilt);
        listing(&stage, &spoilt).expect_same(&expected);
        println!("{what}: {} ranges, {bytes} free", found.used.count());
    }
}

#[test]
fn a_backup_of_fat_leaves_free_space_out_and_restores_all_files() {
    require_root!();
    for arguments in [["-F", "16"], ["-F", "32"]] {
        let mut stage = Stage::new(Filesystem::Ext4, 71);
        let image = make(&mut stage, &arguments, 100 * MIB);
        let mover = stage.repository();
        let target = stage.restored(&mover, &image, "one");
        check(&target);
        listing(&stage, &target).expect_same(&listing(&stage, &image));
    }
}

fn le16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Writes an entry into both copies of a table.
fn with_entry(good: &[u8], number: usize, entry: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let sector = le16(good, 11);
    let table = if le16(good, 22) == 0 { le16(good, 36) } else { le16(good, 22) };
    for copy in 0..2 {
        let at = (le16(good, 14) + copy * table) * sector + number * entry.len();
        bytes[at..at + entry.len()].copy_from_slice(entry);
    }
    bytes
}

#[test]
fn fat_that_was_not_unmounted_or_does_not_add_up_is_refused() {
    let mut stage = Stage::new(Filesystem::Ext4, 72);
    let good = fs::read(make(&mut stage, &["-F", "16"], 60 * MIB)).unwrap();
    let table = le16(&good, 14) * le16(&good, 11);
    map_of(&good).unwrap();
    expect_refused(&good, 37, &[1], "not unmounted");
    expect_refused(&good, 37, &[2], "recorded errors");
    expect_refused(&good, 11, &[0, 3], "do not fit together");
    expect_refused(&good, 13, &[3], "do not fit together");
    expect_refused(&good, 14, &[0, 0], "do not fit together");
    expect_refused(&good, 22, &[1, 0], "do not fit together");
    expect_refused(&good, 32, &[0xff; 4], "smaller");
    expect_refused(&good, 54, b"FAT12", "what its sizes do not make it");
    expect_refused(&good, table + 1000, &[9], "copies of its table differ");
    expect_refused(&good, 510, &[0], "no file system is found");
    expect_refused(&good, 4086, b"SWAPSPACE2", "swap");
    // the two are told apart by nothing but this, so one of them is a leftover
    let entry = b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x10\0";
    expect_refused(&good, 446, entry, "an MBR partition table");
    let mut table = good.clone();
    table[446..462].copy_from_slice(entry);
    table[13] = 0;
    let refusal = map_of(&table).expect_err("half of each");
    assert!(refusal.contains("vfat: the sizes"), "{refusal}");
    // and without a jump and a name it is a partition table
    table[..3].fill(0);
    let refusal = map_of(&table).expect_err("no partitions that are understood");
    assert!(refusal.starts_with("mbr: "), "{refusal}");
    let refused = |number: usize, entry: u16, expected: &str| {
        let bytes = with_entry(&good, number, &entry.to_le_bytes());
        let refusal = map_of(&bytes).expect_err(expected);
        assert!(refusal.contains(expected), "{number} {entry:#x}: {refusal}");
    };
    refused(1, 0x7fff, "not unmounted");
    refused(1, 0xbfff, "recorded errors");
    refused(0, 0xfff0, "not of one medium");
    refused(2, 1, "leads to 1, which is none");
    let last = map_of(&good).unwrap().free_bytes;
    assert!(last > 0);
    // the last cluster is free, and so is none that a chain leads to
    let clusters = fs::metadata(stage.path("fat")).unwrap().len() / (le16(&good, 11) as u64);
    let clusters = clusters / u64::from(good[13]) - 200;
    refused(2, clusters as u16, "which is free");
    // one that has another before it
    let start = le16(&good, 14) * le16(&good, 11);
    let linked = (3..).find(|number| le16(&good, start + 2 * number) == number + 1).unwrap() + 1;
    refused(2, linked as u16, "two chains lead to");
    expect_no_panic(&good, &[(11, 50), (le16(&good, 14) * le16(&good, 11), 4000)], &mut stage.rng);

    let good = fs::read(make(&mut stage, &["-F", "32"], 100 * MIB)).unwrap();
    map_of(&good).unwrap();
    expect_refused(&good, 65, &[1], "not unmounted");
    expect_refused(&good, 40, &[0x80], "only one of its tables");
    expect_refused(&good, 42, &[1], "version 0x1");
    expect_refused(&good, 44, &[1], "do not fit together");
    for (entry, expected) in [(0x07ff_ffff_u32, "not unmounted"), (0x0bff_ffff, "recorded errors")]
    {
        let refusal = map_of(&with_entry(&good, 1, &entry.to_le_bytes())).expect_err(expected);
        assert!(refusal.contains(expected), "{refusal}");
    }
    // the root directory begins in the first cluster
    let refusal = map_of(&with_entry(&good, 2, &[0; 4])).expect_err("it is free");
    assert!(refusal.contains("its own tables"), "{refusal}");
    // what is kept as a hint is not relied upon
    let info = le16(&good, 48) * le16(&good, 11);
    let mut bytes = good.clone();
    bytes[info + 488] ^= 1;
    let found = map_of(&bytes).unwrap();
    assert_eq!(found.free_bytes, map_of(&good).unwrap().free_bytes);
    assert!(found.notes[0].contains("which is a hint"), "{:?}", found.notes);
}
