//! NTFS, by ntfs-3g.

use crate::stage::{MIB, Stage, copy, expect_no_panic, map, map_of, spoil, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::{Filesystem, LoopDevice, Mount, TreeListing, require_root, run, run_ok};

/// Each with what its mkfs is called with.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("clusters of 512 bytes", &["-c", "512"]),
    ("clusters of 2 KiB", &["-c", "2048"]),
    ("clusters of 64 KiB", &["-c", "65536"]),
    ("clusters of 256 KiB", &["-c", "262144"]),
    ("sectors of 4 KiB", &["-s", "4096"]),
    ("compressed", &["-C"]),
];
const BYTES: u64 = 100 * MIB;
/// Numbers of records.
const VOLUME: usize = 3;
const BITMAP: usize = 6;
/// Kinds of attributes.
const STATE: u32 = 0x70;
const DATA: u32 = 0x80;
/// Of a restart page: what it says begins here.
const AREA: usize = 48;

pub(crate) fn make(stage: &mut Stage, arguments: &[&str], bytes: u64) -> PathBuf {
    let image = stage.path("ntfs");
    let file = File::create(&image).unwrap();
    // a quick format leaves what was there before
    let noise = stage.rng.bytes(MIB as usize);
    (0..bytes / MIB).for_each(|at| file.write_all_at(&noise, at * MIB).unwrap());
    // it has no whole cluster at its end
    file.set_len(bytes + 3 * 4096).unwrap();
    let path = text(&image);
    let all = ["-Q", "-F", "-q"].iter().chain(arguments).copied();
    run_ok("mkntfs", all.chain([path.as_str()]));
    let device = LoopDevice::attach(&image);
    let mount = mount(&device, &stage.path("live"));
    stage.churn(mount.path());
    stage.churn(&mount.path().join("again"));
    image
}

fn mount(device: &LoopDevice, directory: &Path) -> Mount {
    Mount::new(device.path(), directory, "ntfs-3g", "")
}

pub(crate) fn listing(stage: &Stage, image: &Path) -> TreeListing {
    let device = LoopDevice::attach(image);
    let mount = mount(&device, &stage.path("mount"));
    TreeListing::of(mount.path())
}

/// It is sound, clusters counted; gives how many bytes are free.
pub(crate) fn check(image: &Path) -> u64 {
    run_ok("ntfsfix", ["-n", &text(image)]);
    run_ok("ntfsresize", ["-f", "-i", "-P", &text(image)]);
    let output = run_ok("ntfsinfo", ["-m", &text(image)]);
    let figure = |name: &str| {
        let line = output.lines().find(|line| line.contains(name)).expect("a figure");
        let (_, number) = line.split_once(':').unwrap();
        number.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    figure("Free Clusters:") * figure("Cluster Size:")
}

#[test]
fn every_kind_of_ntfs_is_read_right() {
    require_root!();
    for (what, arguments) in VARIANTS {
        let mut stage = Stage::new(Filesystem::Ext4, 80);
        let image = make(&mut stage, arguments, BYTES);
        let found = map(&image).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
        assert_eq!((found.kind, found.free_bytes), ("ntfs", check(&image)), "{what}");
        let (whole, spoilt) = (stage.path("whole"), stage.path("spoilt"));
        copy(&image, &whole);
        copy(&image, &spoilt);
        let bytes = spoil(&spoilt, &found, &mut stage.rng);
        // small pieces of small clusters apart
        let free = found.free_bytes;
        assert!(bytes <= free && bytes > 10 * MIB && bytes + free / 10 > free, "{what}: {bytes}");
        check(&spoilt);
        let expected = listing(&stage, &whole);
        assert!(expected.0.len() > 50, "{what}");
        listing(&stage, &spoilt).expect_same(&expected);
        println!("{what}: {} ranges, {free} free", found.used.count());
    }
}

#[test]
fn a_backup_of_ntfs_leaves_free_space_out_and_restores_all_files() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 81);
    let image = make(&mut stage, &[], BYTES);
    let mover = stage.repository();
    let target = stage.restored(&mover, &image, "one");
    check(&target);
    let whole = stage.path("whole");
    copy(&image, &whole);
    listing(&stage, &target).expect_same(&listing(&stage, &whole));
}

fn le(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Where records begin: of the master file table, and of its mirror.
fn tables(bytes: &[u8]) -> [usize; 2] {
    let cluster = le(bytes, 11, 2) * usize::from(bytes[13]);
    [48, 56].map(|at| le(bytes, at, 8) * cluster)
}

/// Where the first attribute of a kind is in a record.
fn attribute(bytes: &[u8], record: usize, kind: u32) -> usize {
    let mut at = record + le(bytes, record + 20, 2);
    while le(bytes, at, 4) != kind as usize {
        at += le(bytes, at + 4, 4);
    }
    at
}

/// A record of a file whose data is in clusters, and the first of these.
fn first_file(bytes: &[u8], table: usize) -> (usize, usize) {
    let in_clusters = |number: &usize| {
        let record = table + number * 1024;
        let mut at = record + le(bytes, record + 20, 2);
        let used = bytes[record..].starts_with(b"FILE") && bytes[record + 22] & 1 == 1;
        while used && le(bytes, at, 4) != u32::MAX as usize {
            if le(bytes, at, 4) == DATA as usize && bytes[at + 8] == 1 {
                let run = at + le(bytes, at + 32, 2);
                let first = run + 1 + usize::from(bytes[run] & 0xf);
                return Some((*number, le(bytes, first, usize::from(bytes[run] >> 4))));
            }
            at += le(bytes, at + 4, 4);
        }
        None
    };
    // those before are the file system's own
    (24..400).find_map(|number| in_clusters(&number)).expect("a file")
}

/// Patches a record wherever it is.
fn patched(good: &[u8], number: usize, kind: u32, at: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for (table, start) in tables(good).into_iter().enumerate() {
        if table == 1 && number > VOLUME {
            continue;
        }
        let record = start + number * 1024;
        let from = attribute(good, record, kind) + at;
        bytes[from..from + value.len()].copy_from_slice(value);
    }
    bytes
}

#[test]
fn ntfs_that_does_not_add_up_is_refused() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 82);
    let good = fs::read(make(&mut stage, &[], BYTES)).unwrap();
    map_of(&good).unwrap();
    let record = |number: usize| tables(&good)[0] + number * 1024;
    let state = le(&good, attribute(&good, record(VOLUME), STATE) + 20, 2);
    let runs = le(&good, attribute(&good, record(BITMAP), DATA) + 32, 2);
    let volume = |at: usize, value: &[u8]| patched(&good, VOLUME, STATE, state + at, value);
    let bitmap = |at: usize, value: &[u8]| patched(&good, BITMAP, DATA, at, value);
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    // the first byte of the bitmap is of the boot sector's clusters
    let run = attribute(&good, record(BITMAP), DATA) + runs;
    let (head, cluster) = (good[run], le(&good, 11, 2) * usize::from(good[13]));
    let first = run + 1 + usize::from(head & 0xf);
    let place = le(&good, first, usize::from(head >> 4)) * cluster;
    for (what, bytes, expected) in [
        ("dirty", volume(10, &[1]), "marked as dirty"),
        ("flags", volume(10, &[0x10]), "unknown flags"),
        ("version", volume(8, &[4]), "version 4"),
        ("list", patched(&good, 1, 0x30, 0, &[0x20]), "goes on in other records"),
        ("hole", bitmap(runs, &[0x01]), "runs of record 6"),
        ("compressed", bitmap(12, &[1]), "not plain clusters"),
        ("sparse", bitmap(13, &[0x80]), "not plain clusters"),
        ("short", bitmap(48, &[8, 0]), "record 6"),
        ("not written", bitmap(56, &[8, 0]), "too short"),
        ("free boot sector", with(place, &[0xfe]), "its own tables"),
        ("torn", with(record(BITMAP) + 510, &[0xaa, 0x55]), "record 6 of its file table is broken"),
        ("sector", with(11, &[0, 3]), "do not fit together"),
        ("cluster", with(13, &[3]), "do not fit together"),
        ("record", with(64, &[0x80]), "do not fit together"),
        ("size", with(40, &[0xff; 7]), "smaller"),
        ("table", with(48, &[0xff; 7]), "do not fit together"),
        ("mirror", with(56, &[!good[56]]), "its mirror is not where"),
    ] {
        let refusal = map_of(&bytes).expect_err(what);
        assert!(refusal.contains(expected), "{what}: {refusal}");
    }
    // a file whose clusters were not marked in time, as ntfs-3g leaves it below a snapshot
    let (number, cluster) = first_file(&good, tables(&good)[0]);
    let bit = good[place + cluster / 8] & !(1 << (cluster % 8));
    let refusal = map_of(&with(place + cluster / 8, &[bit])).expect_err("it counts as free");
    let expected = format!("record {number} refers to clusters that count as free");
    assert!(refusal.contains(&expected), "{refusal}");
    // files that were deleted after a shadow copy was made are nowhere else
    let shadows = *b"\x6b\x87\x08\x38\x76\xc1\x48\x4e\xb7\xae\x04\x04\x6e\x6c\xc7\x52";
    let mut bytes = with(0x1e00, &shadows);
    bytes[0x1e00 + 48..0x1e00 + 56].fill(0);
    map_of(&bytes).expect("there was never any");
    bytes[0x1e00 + 50] = 4;
    let refusal = map_of(&bytes).expect_err("it has a catalog");
    assert!(refusal.contains("it has shadow copies"), "{refusal}");
    let mut bytes = good.clone();
    bytes[attribute(&good, record(VOLUME), STATE) + state + 10] = 8;
    let refusal = map_of(&bytes).expect_err("only one copy was changed");
    assert!(refusal.contains("not what it is in the mirror"), "{refusal}");
    map_of(&volume(10, &[8])).expect("what Windows NT 4 left does no harm");
    let places =
        [(0, 80), (record(0), 1024), (record(2), 1024), (record(3), 1024), (record(6), 1024)];
    expect_no_panic(&good, &places, &mut stage.rng);
}

/// A restart page, as Windows writes two of them at the start of its log.
fn restart(number: u64, open: u16, flags: u16, version: [u8; 2]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let mut put = |at: usize, value: &[u8]| page[at..at + value.len()].copy_from_slice(value);
    put(0, b"RSTR");
    put(4, &[30, 0, 9, 0]);
    put(16, &4096_u32.to_le_bytes());
    put(20, &4096_u32.to_le_bytes());
    put(24, &[AREA as u8, 0, version[1], 0, version[0], 0]);
    put(30, &[5, 0]);
    (1..=8).for_each(|sector| put(512 * sector - 2, &[5, 0]));
    put(AREA, &number.to_le_bytes());
    put(AREA + 8, &[1, 0, 0xff, 0xff]);
    put(AREA + 12, &open.to_le_bytes());
    put(AREA + 14, &flags.to_le_bytes());
    // lengths of the area and of what stands before its client
    put(AREA + 20, &[0xe0, 0, 0x40, 0]);
    put(AREA + 36, &[0x30, 0, 0x40, 0]);
    put(AREA + 0x40 + 16, &[0xff; 4]);
    page
}

/// Where its log is, and how long.
fn log_of(bytes: &[u8]) -> (usize, u64) {
    let cluster = le(bytes, 11, 2) * usize::from(bytes[13]);
    let data = attribute(bytes, tables(bytes)[0] + 2 * 1024, DATA);
    let run = data + le(bytes, data + 32, 2);
    let head = bytes[run];
    let place = le(bytes, run + 1 + usize::from(head & 0xf), usize::from(head >> 4));
    (place * cluster, le(bytes, data + 48, 8) as u64)
}

/// A volume whose log begins with two pages.
fn with_log(good: &[u8], pages: [Vec<u8>; 2]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let (log, len) = log_of(good);
    for (at, mut page) in [log, log + 4096].into_iter().zip(pages) {
        if page.starts_with(b"RSTR") {
            // how many bits a place in it leaves for the number of its round
            let bits = 67 - (64 - len.leading_zeros());
            page[AREA + 16..AREA + 20].copy_from_slice(&bits.to_le_bytes());
            page[AREA + 24..AREA + 32].copy_from_slice(&len.to_le_bytes());
        }
        bytes[at..at + 4096].copy_from_slice(&page);
    }
    bytes
}

/// What ntfs-3g says when it mounts an image.
fn said_by_ntfs_3g(stage: &Stage, image: &Path) -> String {
    let device = LoopDevice::attach(image);
    let directory = stage.path("mount");
    fs::create_dir_all(&directory).unwrap();
    let paths = [text(device.path()), text(&directory)];
    let mounted = run("ntfs-3g", paths.iter());
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(mounted.status.success(), "{said}");
    run_ok("umount", [&paths[1]]);
    said
}

#[test]
fn only_a_log_that_has_nothing_to_replay_is_taken() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 83);
    let image = make(&mut stage, &[], BYTES);
    let good = fs::read(&image).unwrap();
    let (log, len) = log_of(&good);
    assert!(good[log..log + len as usize].iter().all(|byte| *byte == 0xff), "mkntfs empties it");
    let (nobody, old, new) = (u16::MAX, [1, 1], [2, 0]);
    let (clean, open) = (("", ""), ("was not unmounted", "unclean file system"));
    let cached = ("version 2.0", "Metadata kept in Windows cache");
    for (number, (pages, (ours, theirs))) in [
        ([restart(1, 0, 2, old), restart(2, 0, 2, old)], clean),
        ([restart(3, nobody, 0, old), restart(2, 0, 0, old)], clean),
        ([restart(1, 0, 0, old), restart(2, 0, 2, old)], clean),
        ([restart(1, 0, 2, old), restart(2, 0, 0, old)], open),
        ([restart(1, 0, 0, old), restart(1, 0, 0, old)], open),
        ([restart(1, 0, 2, new), restart(2, 0, 2, new)], cached),
    ]
    .into_iter()
    .enumerate()
    {
        let volume = with_log(&good, pages);
        match map_of(&volume) {
            Ok(_) => assert_eq!(ours, "", "{number}"),
            Err(refusal) => {
                assert!(!ours.is_empty() && refusal.contains(ours), "{number}: {refusal}");
            }
        }
        fs::write(&image, &volume).unwrap();
        let said = said_by_ntfs_3g(&stage, &image);
        assert!(said.contains(theirs) && said.is_empty() == theirs.is_empty(), "{number}: {said}");
    }
}

/// ntfs-3g is content with one page, and with the first of two that say different things.
#[test]
fn restart_pages_that_do_not_fit_together_are_refused() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 84);
    let good = fs::read(make(&mut stage, &[], BYTES)).unwrap();
    let page = |number: u64, flags: u16| restart(number, 0, flags, [1, 1]);
    let empty = || vec![0xff; 4096];
    let mut torn = page(2, 2);
    torn[2046] = 4;
    let mut by_chkdsk = page(1, 2);
    by_chkdsk[..4].copy_from_slice(b"CHKD");
    let broken = "do not fit together";
    for (number, (pages, expected)) in [
        ([page(2, 2), page(2, 0)], "was not unmounted"),
        ([page(1, 2), torn], broken),
        ([page(1, 2), empty()], broken),
        ([empty(), page(1, 2)], broken),
        ([vec![0; 4096], empty()], broken),
        ([by_chkdsk, page(1, 2)], "chkdsk was at its log"),
    ]
    .into_iter()
    .enumerate()
    {
        let refusal = map_of(&with_log(&good, pages)).expect_err(expected);
        assert!(refusal.contains(expected), "{number}: {refusal}");
    }
}
