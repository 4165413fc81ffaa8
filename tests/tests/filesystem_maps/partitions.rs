//! Partition tables, with file systems in the partitions.

use crate::stage::{LIMITS, MIB, Stage, copy, map, spoil, text};
use crate::{fat, lvm, ntfs, swap};
use mover_fsmap::{ReadAt, used_space};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tests::{Filesystem, LoopDevice, require_root, run_ok};

const SECTOR: u64 = 512;
/// What a partition has, in MiB.
const SIZES: [(Option<Filesystem>, u64); 5] = [
    (None, 20),
    (Some(Filesystem::Xfs), 400),
    (Some(Filesystem::Btrfs), 300),
    (Some(Filesystem::Ext4), 200),
    (None, 20),
];

/// Where each begins, in bytes; the first two are no multiples of what a map is rounded to.
fn starts() -> Vec<u64> {
    let mut at = MIB;
    let place = |(number, (_, mib)): (u64, &(_, u64))| {
        let start = at + if number < 2 { 3 * SECTOR } else { 0 };
        at += (mib + 1) * MIB;
        start
    };
    (0..).zip(&SIZES).map(place).collect()
}

fn disk_bytes() -> u64 {
    SIZES.iter().map(|(_, mib)| (mib + 1) * MIB).sum::<u64>() + 2 * MIB
}

fn write_gpt(disk: &Path) {
    let mut arguments = vec!["-a".to_owned(), "1".to_owned()];
    for (number, (start, (_, mib))) in (1..).zip(starts().iter().zip(&SIZES)) {
        let first = start / SECTOR;
        arguments.push("-n".to_owned());
        arguments.push(format!("{number}:{first}:{}", first + mib * MIB / SECTOR - 1));
    }
    arguments.push(text(disk));
    run_ok("sgdisk", arguments);
}

/// The first, all but the last two, and an extended one that has these.
fn mbr() -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes[510..].copy_from_slice(b"\x55\xaa");
    let starts = starts();
    for (number, (start, (_, mib))) in starts.iter().zip(&SIZES).enumerate().take(4) {
        let entry = &mut bytes[446 + 16 * number..][..16];
        let extended = number == 3;
        entry[4] = if extended { 0x0f } else { 0x83 };
        let sectors = if extended { disk_bytes() - start } else { mib * MIB } / SECTOR;
        entry[8..12].copy_from_slice(&((start / SECTOR) as u32).to_le_bytes());
        entry[12..].copy_from_slice(&(sectors as u32).to_le_bytes());
    }
    bytes
}

/// One that has a file system of Linux in its last partition, which is of this type.
fn of_one_kind(kind: u8) -> [u8; 512] {
    let mut bytes = mbr();
    let last = &mut bytes[446 + 16 * 3..][..16];
    last[4] = kind;
    last[12..].copy_from_slice(&((SIZES[3].1 * MIB / SECTOR) as u32).to_le_bytes());
    bytes
}

fn put(disk: &Path, at: u64, part: &Path) {
    let mut disk = OpenOptions::new().write(true).open(disk).unwrap();
    disk.seek(SeekFrom::Start(at)).unwrap();
    std::io::copy(&mut File::open(part).unwrap(), &mut disk).unwrap();
}

fn take(disk: &Path, at: u64, bytes: u64, part: &Path) {
    let mut disk = File::open(disk).unwrap();
    disk.seek(SeekFrom::Start(at)).unwrap();
    std::io::copy(&mut disk.take(bytes), &mut File::create(part).unwrap()).unwrap();
}

/// A disk with all of it, whose gaps and unknown partitions are noise; without a table.
fn fill(disk: &Path, stage: &mut Stage) {
    let file = File::create(disk).unwrap();
    file.set_len(disk_bytes()).unwrap();
    let noise = stage.rng.bytes((MIB) as usize);
    (0..disk_bytes() / MIB).for_each(|at| file.write_all_at(&noise, at * MIB).unwrap());
    for (start, (kind, mib)) in starts().into_iter().zip(SIZES) {
        let Some(kind) = kind else { continue };
        let mut one = Stage::new(kind, stage.rng.next_u64());
        let image = one.make(&[], mib * MIB);
        {
            let device = LoopDevice::attach(&image);
            let mount = one.mount(&device);
            one.churn(mount.path());
        }
        put(disk, start, &image);
    }
}

/// All files of both are the same, and the file systems are sound.
fn expect_same_files(stage: &mut Stage, one: &Path, other: &Path) {
    for (start, (kind, mib)) in starts().into_iter().zip(SIZES) {
        let parts = [stage.path("one"), stage.path("other")];
        for (disk, part) in [one, other].iter().zip(&parts) {
            take(disk, start, mib * MIB, part);
        }
        match kind {
            Some(kind) => {
                let stage = Stage::new(kind, 0);
                kind.check(&parts[1]);
                stage.listing(&parts[0]).expect_same(&stage.listing(&parts[1]));
            }
            None => assert!(fs::read(&parts[0]).unwrap() == fs::read(&parts[1]).unwrap()),
        }
    }
    let outside = |disk: &Path| {
        let mut bytes = vec![0; MIB as usize];
        let file = File::open(disk).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut end = bytes.clone();
        file.read_exact_at(&mut end, disk_bytes() - MIB).unwrap();
        bytes.extend(end);
        bytes
    };
    assert!(outside(one) == outside(other), "the first or the last MiB");
}

#[test]
fn file_systems_in_partitions_are_mapped_at_their_places() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 50);
    let (plain, disk, spoilt) = (stage.path("plain"), stage.path("disk"), stage.path("spoilt"));
    fill(&plain, &mut stage);
    for table in ["gpt", "mbr"] {
        copy(&plain, &disk);
        let wiped = OpenOptions::new().write(true).open(&disk).unwrap();
        wiped.write_all_at(&vec![0; 34 * SECTOR as usize], 0).unwrap();
        wiped.write_all_at(&vec![0; 34 * SECTOR as usize], disk_bytes() - 34 * SECTOR).unwrap();
        if table == "gpt" {
            write_gpt(&disk);
        } else {
            wiped.write_all_at(&mbr(), 0).unwrap();
        }
        let found = map(&disk).unwrap_or_else(|refusal| panic!("{table}: {refusal}"));
        assert_eq!(found.kind, table);
        assert_eq!(found.notes.len(), 2, "{table}: {:?}", found.notes);
        copy(&disk, &spoilt);
        let bytes = spoil(&spoilt, &found, &mut stage.rng);
        let least = if table == "gpt" { 700 } else { 550 } * MIB;
        assert!(bytes > least, "{table}: {bytes} bytes are left out of {found:?}");
        assert!(bytes + found.free_bytes / 10 > found.free_bytes, "{table}: {bytes} of {found:?}");
        expect_same_files(&mut stage, &disk, &spoilt);
        println!("{table}: {bytes} bytes left out, {:?}", found.notes);
    }
    let device = LoopDevice::attach(&disk);
    let device = text(device.path());
    let mover = stage.repository();
    let backup = ["--volume", "v", "--snapshot", "s", &device];
    let done = mover.ok(crate::stage::BACKUP.iter().copied().chain(backup)).text();
    assert!(done.contains("\"kind\":\"allocated\"") && done.contains("\"degraded\":[]"), "{done}");
    let target = stage.path("target");
    let mut noise = File::create(&target).unwrap();
    let piece = stage.rng.bytes(MIB as usize);
    (0..disk_bytes() / MIB).for_each(|_| noise.write_all(&piece).unwrap());
    mover.ok(["restore", "v@latest", &text(&target), "--force"]);
    expect_same_files(&mut stage, &disk, &target);
}

/// What the type of its partition says is not there is a leftover, or a piece of something.
fn expect_types_count(stage: &Stage, disk: &Path, places: &[(u64, u64)]) {
    for (number, kind, found) in [
        (2, "4202", "its type is none of those"),
        (2, "a503", "its type is none of those"),
        (2, "8200", "ntfs: its type is of something else"),
        (3, "8300", "swap: its type is of something else"),
        (3, "0700", "swap: its type is of something else"),
        (4, "0700", "lvm: its type is of something else"),
    ] {
        let other = stage.path("other");
        copy(disk, &other);
        run_ok("sgdisk", ["-t", &format!("{number}:{kind}"), &text(&other)]);
        let found_now = map(&other).unwrap();
        let (at, bytes) = places[number - 1];
        assert!(found_now.used.covers(&(at..at + bytes)), "{number} {kind}");
        let note = format!("partition {number} counts as used: {found}");
        let all = &found_now.notes;
        assert!(all.iter().any(|one| one.starts_with(&note)), "{kind}: {all:?}");
    }
}

/// A disk as that of a virtual machine with several systems.
#[test]
fn fat_ntfs_swap_space_and_lvm_are_mapped_in_partitions() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 52);
    let images = [
        fat::make(&mut stage, &["-F", "32"], 60 * MIB),
        ntfs::make(&mut stage, &[], 80 * MIB),
        swap::make(&mut stage, 4096, 16 * MIB),
        lvm::make(&mut stage, 100 * MIB),
    ];
    let [disk, spoilt] = ["disk", "spoilt"].map(|name| stage.path(name));
    let file = File::create(&disk).unwrap();
    file.set_len(300 * MIB).unwrap();
    let mut arguments = vec!["-a".to_owned(), "1".to_owned()];
    let mut at = MIB;
    let mut places = Vec::new();
    let mut free = 0;
    for (number, image) in (1..).zip(&images) {
        let bytes = fs::metadata(image).unwrap().len();
        let sectors = at / SECTOR..(at + bytes) / SECTOR;
        arguments.push("-n".to_owned());
        arguments.push(format!("{number}:{}:{}", sectors.start, sectors.end - 1));
        let kind = ["0700", "0700", "8200", "8e00"][number - 1];
        arguments.extend(["-t".to_owned(), format!("{number}:{kind}")]);
        put(&disk, at, image);
        places.push((at, bytes));
        free += map(image).unwrap().free_bytes;
        at += bytes.next_multiple_of(MIB) + MIB;
    }
    run_ok("sgdisk", arguments.into_iter().chain([text(&disk)]));
    let found = map(&disk).unwrap();
    assert_eq!((found.kind, found.free_bytes), ("gpt", free));
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    copy(&disk, &spoilt);
    let bytes = spoil(&spoilt, &found, &mut stage.rng);
    assert!(bytes <= free && bytes + free / 10 > free, "{bytes} of {free}");
    let parts = ["fat", "ntfs", "swap", "pv"].map(|name| stage.path(&format!("{name}-part")));
    for ((at, bytes), part) in places.iter().zip(&parts) {
        take(&spoilt, *at, *bytes, part);
    }
    fat::check(&parts[0]);
    fat::listing(&stage, &parts[0]).expect_same(&fat::listing(&stage, &images[0]));
    ntfs::check(&parts[1]);
    ntfs::listing(&stage, &parts[1]).expect_same(&ntfs::listing(&stage, &images[1]));
    swap::check(&parts[2]);
    lvm::check(&stage, &images[3], &parts[3]);
    // what is refused is said, and used as a whole
    let dirty = File::options().write(true).open(&disk).unwrap();
    dirty.write_all_at(&[1], places[0].0 + 65).unwrap();
    let less = map(&disk).unwrap();
    assert!(less.used.covers(&(places[0].0..places[0].0 + places[0].1)));
    assert!(less.notes[0].contains("partition 1 counts as used: vfat: it was not unmounted"));
    // and a note of a file system is one of its partition
    dirty.write_all_at(&[0], places[0].0 + 65).unwrap();
    dirty.write_all_at(&[1, 0, 0, 0], places[0].0 + SECTOR + 488).unwrap();
    let notes = map(&disk).unwrap().notes;
    assert!(notes[0].starts_with("partition 1: its table has"), "{notes:?}");
    // what has no map is used as a whole, too
    let mut boot = [0; SECTOR as usize];
    boot[3..11].copy_from_slice(b"EXFAT   ");
    dirty.write_all_at(&boot, places[0].0).unwrap();
    let less = map(&disk).unwrap();
    assert!(less.used.covers(&(places[0].0..places[0].0 + places[0].1)));
    let note = "partition 1 counts as used: no file system is found";
    assert!(less.notes[0].starts_with(note), "{:?}", less.notes);
    expect_types_count(&stage, &disk, &places);
    run_ok("sgdisk", ["-t", "4:8300", &text(&disk)]);
    assert_eq!(map(&disk).unwrap().notes.len(), 1, "physical volumes are where Linux's data is");
}

/// A disk with sectors of 4 KiB.
struct Sectors<'a>(&'a File);

impl ReadAt for Sectors<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn sector_bytes(&self) -> Option<u64> {
        Some(4096)
    }
}

#[test]
fn tables_that_cannot_be_relied_upon_are_refused() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 51);
    let disk = stage.path("disk");
    File::create(&disk).unwrap().set_len(disk_bytes()).unwrap();
    write_gpt(&disk);
    let ext4 = stage.make(&[], SIZES[3].1 * MIB);
    put(&disk, starts()[3], &ext4);
    map(&disk).unwrap();
    let mut head = vec![0; MIB as usize];
    File::open(&disk).unwrap().read_exact(&mut head).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&disk).unwrap();
    let tried = |at: usize, value: &[u8], expected: &str| {
        let mut bytes = head.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        file.write_all_at(&bytes, 0).unwrap();
        let refusal = map(&disk).expect_err(expected).to_string();
        assert!(refusal.contains(expected), "{at} {value:?}: {refusal}");
    };
    tried(512 + 72, &[9], "the checksum of its header");
    tried(1024 + 40, &[9], "the checksum of its table");
    tried(512 + 12, &[0xff; 4], "does not fit together");
    tried(512, b"none", "is not found");
    tried(446 + 16 + 4, &[0x83], "two partition tables");
    tried(510, &[0], "no file system is found");
    tried(0, b"XFSB", "xfs");
    let mut overlapping = mbr();
    overlapping[446 + 16 + 8..][..4].copy_from_slice(&1_u32.to_le_bytes());
    tried(0, &overlapping, "overlap");
    // without a file system that is understood the whole disk would count as used
    let mut unknown = mbr();
    unknown[446 + 16 * 3..][..16].fill(0);
    tried(0, &unknown, "no partition has");
    // Windows spreads volumes over the pieces of a dynamic disk
    file.write_all_at(&of_one_kind(0x83), 0).unwrap();
    map(&disk).expect("ext4");
    tried(0, &of_one_kind(0x42), "no partition has");
    let mut database = of_one_kind(0x83).to_vec();
    database.resize(3072, 0);
    database.extend(b"PRIVHEAD");
    tried(0, &database, "dynamic disk");
    file.write_all_at(&of_one_kind(0x83), 0).unwrap();
    let refusal = used_space(&Sectors(&file), disk_bytes(), LIMITS).expect_err("its sectors");
    assert!(refusal.to_string().contains("sectors have another size"), "{refusal}");
    // whatever stands in tables, nothing panics
    let mut refused = 0;
    let short = &mut head.clone();
    for _ in 0..5000 {
        let at = 446 + stage.rng.below(1024) as usize;
        let len = 1 + stage.rng.below(8) as usize;
        stage.rng.fill(&mut short[at..at + len]);
        refused += u32::from(used_space(&&short[..], short.len() as u64, LIMITS).is_err());
        if stage.rng.once_in(4) {
            short.copy_from_slice(&head);
        }
    }
    assert_eq!(refused, 5000, "its partitions are behind the end");
}
