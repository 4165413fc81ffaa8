//! Physical volumes of LVM. Its tools write them, and say which extents are used, without the
//! kernel's device mapper.

use crate::stage::{MIB, Stage, expect_no_panic, expect_refused, map, map_of, spoil};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::{Filesystem, Lvm, require_root};

const BYTES: u64 = 200 * MIB;
const EXTENT: u64 = MIB;
/// Of the label's sector.
const LABEL: usize = 512;
/// Where the metadata area is that pvcreate makes first.
const AREA: usize = 4096;

/// A command of LVM that sees one device.
pub(crate) fn on_device(stage: &Stage, device: &Path, command: &str, arguments: &[&str]) -> String {
    Lvm::on_device(&stage.path("lvm"), device, command, arguments)
}

fn lvm_of(stage: &Stage, images: &[PathBuf]) -> Lvm {
    Lvm::new(&stage.path("lvm"), images)
}

/// Two volumes of one group with logical volumes on both, and gaps where there were others.
fn make_two(stage: &mut Stage) -> (Lvm, [PathBuf; 2]) {
    let images = ["one", "two"].map(|name| {
        let image = stage.path(name);
        let file = File::create(&image).unwrap();
        let noise = stage.rng.bytes(MIB as usize);
        (0..BYTES / MIB).for_each(|at| file.write_all_at(&noise, at * MIB).unwrap());
        image
    });
    let lvm = lvm_of(stage, &images);
    let [one, two] = [0, 1].map(|number| lvm.device(number));
    // one with its metadata at the end too, one with room behind the last extent
    lvm.ok("pvcreate", &["-ff", "--pvmetadatacopies", "2", &one]);
    lvm.ok("pvcreate", &["-ff", "--dataalignment", "3m", &two]);
    lvm.ok("vgcreate", &["-s", "1m", "vg", &one, &two]);
    let plain = ["-an", "-Zn", "-Wn", "vg"];
    for (name, more) in [
        ("a", &["-l", "11"][..]),
        ("b", &["-l", "30"]),
        ("striped", &["-i", "2", "-I", "64k", "-l", "40"]),
        ("c", &["-l", "7"]),
    ] {
        lvm.ok("lvcreate", &[&plain[..], &["-n", name], more].concat());
    }
    lvm.ok("lvremove", &["vg/a"]);
    lvm.ok("lvextend", &["-l", "45", "vg/c"]);
    (lvm, images)
}

/// One volume, of a group of its own.
pub(crate) fn make(stage: &mut Stage, bytes: u64) -> PathBuf {
    let image = stage.path("pv");
    let file = File::create(&image).unwrap();
    let noise = stage.rng.bytes(MIB as usize);
    (0..bytes / MIB).for_each(|at| file.write_all_at(&noise, at * MIB).unwrap());
    let lvm = lvm_of(stage, std::slice::from_ref(&image));
    let device = lvm.device(0);
    lvm.ok("pvcreate", &["-ff", &device]);
    lvm.ok("vgcreate", &["-s", "1m", "vg", &device]);
    for (name, extents) in [("a", "5"), ("b", "10")] {
        lvm.ok("lvcreate", &["-an", "-Zn", "-Wn", "-l", extents, "-n", name, "vg"]);
    }
    lvm.ok("lvremove", &["vg/a"]);
    image
}

/// LVM reads it, and its logical volumes have the same bytes as those of another.
pub(crate) fn check(stage: &Stage, good: &Path, image: &Path) {
    let used = {
        let lvm = lvm_of(stage, &[image.to_owned()]);
        lvm.ok("pvck", &[&lvm.device(0)]);
        lvm.used(0)
    };
    assert!(!used.is_empty());
    let [good, image] = [good, image].map(|path| fs::read(path).unwrap());
    for range in used {
        let bytes = range_of(MIB, &range);
        assert!(good[bytes.clone()] == image[bytes], "{range:?}");
    }
}

fn range_of(start: u64, extents: &Range<u64>) -> Range<usize> {
    let place = |extent: u64| (start + extent * EXTENT) as usize;
    place(extents.start)..place(extents.end)
}

#[test]
fn extents_that_no_logical_volume_has_are_free() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 90);
    let (lvm, images) = make_two(&mut stage);
    for (number, (image, start)) in images.iter().zip([MIB, 3 * MIB]).enumerate() {
        let found = map(image).unwrap_or_else(|refusal| panic!("{number}: {refusal}"));
        let used = lvm.used(number);
        println!("{number}: {used:?}, {found:?}");
        assert!(!used.is_empty());
        let extents: u64 = used.iter().map(|range| range.end - range.start).sum();
        let all = lvm.ok("pvs", &["--noheadings", "-o", "pv_pe_count", &lvm.device(number)]);
        let all: u64 = all.parse().unwrap();
        assert_eq!((found.kind, found.free_bytes), ("lvm", (all - extents) * EXTENT));
        let mut expected: Vec<Range<u64>> = vec![0..start, start + all * EXTENT..BYTES];
        let bytes = used.iter().map(|range| range_of(start, range));
        expected.extend(bytes.map(|range| range.start as u64..range.end as u64));
        let expected: mover_extents::Extents = expected.into_iter().collect();
        assert_eq!(found.used, expected, "{number}");
        let before = fs::read(image).unwrap();
        assert_eq!(spoil(image, &found, &mut stage.rng), found.free_bytes);
        let after = fs::read(image).unwrap();
        for range in used {
            let bytes = range_of(start, &range);
            assert!(before[bytes.clone()] == after[bytes], "{number}: {range:?}");
        }
        lvm.ok("pvck", &[&lvm.device(number)]);
    }
}

#[test]
fn a_backup_of_a_physical_volume_leaves_free_extents_out() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 91);
    let image = make(&mut stage, BYTES);
    let good = stage.path("good");
    fs::copy(&image, &good).unwrap();
    let mover = stage.repository();
    let target = stage.restored(&mover, &image, "one");
    check(&stage, &good, &target);
}

/// What LVM writes while it moves extents, and of volumes that are on others.
#[test]
fn hidden_logical_volumes_and_those_that_are_moved_are_used() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 92);
    let image = make(&mut stage, BYTES);
    let lvm = lvm_of(&stage, std::slice::from_ref(&image));
    let before = map(&image).unwrap().free_bytes;
    let id = |number: u32| format!("AAAAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA{number:02}");
    lvm.edit(|group| {
        let volume = |name: &str, number: u32, segment: &str| {
            format!(
                "{name} {{\nid = \"{}\"\nstatus = [\"READ\", \"WRITE\"]\nflags = []\n\
                 segment_count = 1\nsegment1 {{\nstart_extent = 0\n{segment}\n}}\n}}\n",
                id(number)
            )
        };
        let striped = |extents: u32, first: u32| {
            format!(
                "extent_count = {extents}\ntype = \"striped\"\nstripe_count = 1\n\
                 stripes = [ \"pv0\", {first} ]"
            )
        };
        let pool = "extent_count = 20\ntype = \"thin-pool\"\nmetadata = \"pool_tmeta\"\n\
                    pool = \"pool_tdata\"\ntransaction_id = 1\nchunk_size = 128\n\
                    discards = \"passdown\"\nzero_new_blocks = 1";
        let thin = "extent_count = 500\ntype = \"thin\"\nthin_pool = \"pool\"\n\
                    transaction_id = 0\ndevice_id = 1";
        let moving = "extent_count = 3\ntype = \"mirror\"\nmirror_count = 2\nextents_moved = 0\nregion_size = 1024\n\
                      mirrors = [ \"pv0\", 85, \"pv0\", 90 ]";
        let moved = "extent_count = 3\ntype = \"striped\"\nstripe_count = 1\n\
                     stripes = [ \"pvmove0\", 0 ]";
        let pvmove =
            volume("pvmove0", 6, moving).replace("\"WRITE\"", "\"WRITE\", \"PVMOVE\", \"LOCKED\"");
        let all = [
            volume("moved", 5, moved).replace("\"WRITE\"", "\"WRITE\", \"LOCKED\""),
            pvmove,
            volume("pool_tmeta", 1, &striped(2, 40)),
            volume("pool_tdata", 2, &striped(20, 60)),
            volume("pool", 3, pool),
            volume("thin", 4, thin),
        ];
        group.replace("logical_volumes {", &format!("logical_volumes {{\n{}", all.concat()))
    });
    let found = map(&image).unwrap();
    assert_eq!(found.free_bytes, before - 28 * EXTENT);
    for range in lvm.used(0) {
        let bytes = range_of(MIB, &range);
        assert!(found.used.covers(&(bytes.start as u64..bytes.end as u64)), "{range:?}");
    }
}

/// As LVM sums up.
fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
    };
    bytes.iter().fold(0xf597_a6cf, step)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Makes the checksums of label and metadata fit again.
fn seal(bytes: &mut [u8]) {
    let sum = crc(&bytes[LABEL + 20..LABEL + 512]);
    put(bytes, LABEL + 16, &sum.to_le_bytes());
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (at, len) = (AREA + number(AREA + 40), number(AREA + 48));
    let sum = crc(&bytes[at..at + len]);
    put(bytes, AREA + 56, &sum.to_le_bytes());
    let sum = crc(&bytes[AREA + 4..AREA + 512]);
    put(bytes, AREA, &sum.to_le_bytes());
}

#[test]
fn physical_volumes_that_do_not_add_up_are_refused() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 93);
    let good = fs::read(make(&mut stage, 64 * MIB)).unwrap();
    map_of(&good).unwrap();
    let number = |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().unwrap()) as usize;
    let (text, len) = (AREA + number(AREA + 40), number(AREA + 48));
    expect_refused(&good, LABEL + 100, &[1], "the checksum of its label");
    expect_refused(&good, AREA + 100, &[1], "the checksum of the metadata area");
    // in an id, which no such byte is in
    expect_refused(&good, text + 20, b"?", "the checksum of the metadata at");
    expect_refused(&good, LABEL + 512, b"LABELONE", "two labels");
    let sealed = |at: usize, value: &[u8], expected: &str| {
        let mut bytes = good.clone();
        put(&mut bytes, at, value);
        seal(&mut bytes);
        let refusal = map_of(&bytes).expect_err(expected);
        assert!(refusal.contains(expected), "{at} {value:?}: {refusal}");
    };
    sealed(LABEL + 24, b"LVM3", "not one of LVM2");
    sealed(LABEL + 8, &[2], "not one of LVM2");
    sealed(AREA + 20, &[2], "does not fit together");
    sealed(AREA + 60, &[2], "has flags 0x2");
    sealed(AREA + 60, &[1], "no group has its metadata on it");
    sealed(AREA + 64, &[0, 2], "was being changed");
    // the text, in which nothing grows or shrinks
    let replaced = |from: &str, to: &str, expected: &str| {
        assert_eq!(from.len(), to.len());
        let at =
            good[text..text + len].windows(from.len()).position(|part| part == from.as_bytes());
        sealed(text + at.expect(from), to.as_bytes(), expected);
    };
    replaced("\"RESIZEABLE\"", "\"RESIZEABLF\"", "its group has the status RESIZEABLF");
    replaced("\"ALLOCATABLE\"", "\"ALLOCATABLF\"", "it has the status ALLOCATABLF");
    replaced("\"VISIBLE\"", "\"VISIBLF\"", "b has the status VISIBLF");
    replaced("\"striped\"", "\"stroped\"", "unknown kind, stroped");
    replaced("\"striped\"", "\"raid1\"  ", "extents of its own, which its kind never has");
    replaced("segment_count = 1", "segment_count = 2", "as many segments");
    replaced("stripe_count = 1", "stripe_count = 3", "not equally long");
    replaced("extent_count = 10", "extent_count = 99", "lead outside");
    replaced("pe_count = 63", "pe_count = 99", "the volume is smaller");
    replaced("contents = ", "contants = ", "does not have contents");
    replaced("logical_volumes", "lagical_volumes", "something unknown: lagical_volumes");
    replaced("seqno = ", "seqno : ", "makes no sense at byte");
    // that of the volume, whose name and id come first
    let uuid = std::str::from_utf8(&good[LABEL + 32..LABEL + 38]).unwrap().to_owned();
    replaced(&uuid, "------", "its group does not have it");
    replaced("\"pv0\", 5", "\"pvx\", 5", "on pvx, which its group does not have");
    let places = [(LABEL, 200), (AREA, 120), (text, len)];
    expect_no_panic(&good, &places, &mut stage.rng);
    // no group at all
    let image = stage.path("orphan");
    File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    let lvm = lvm_of(&stage, std::slice::from_ref(&image));
    lvm.ok("pvcreate", &["-ff", &lvm.device(0)]);
    let refusal = map(&image).expect_err("it is in no group").to_string();
    assert!(refusal.contains("no group has its metadata on it"), "{refusal}");
}
