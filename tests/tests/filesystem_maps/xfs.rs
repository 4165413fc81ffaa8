//! XFS, versions 5 and 4.

use crate::stage::{Image, LIMITS, MIB, Stage, copy, crc32c, map, text};
use mover_fsmap::used_space;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tests::{Filesystem, LoopDevice, Mount, require_root, run, run_ok};

/// Each with what its mkfs is called with. What an installed mkfs or kernel does not know is left
/// out, and printed.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("1 KiB blocks", &["-b", "size=1024"]),
    ("2 KiB blocks", &["-b", "size=2048"]),
    ("no free inode trees", &["-m", "finobt=0"]),
    ("reverse mappings", &["-m", "rmapbt=1"]),
    ("no reverse mappings", &["-m", "rmapbt=0"]),
    ("no shared blocks", &["-m", "reflink=0"]),
    ("no inode counts", &["-m", "inobtcount=0"]),
    ("short times", &["-m", "bigtime=0"]),
    ("own UUID", &["-m", "uuid=01234567-89ab-cdef-0123-456789abcdef"]),
    ("two groups", &["--unsupported", "-d", "agcount=2"]),
    ("many groups", &["--unsupported", "-d", "agcount=16"]),
    ("4 KiB sectors", &["-s", "size=4096"]),
    ("large inodes", &["-i", "size=2048"]),
    ("no sparse inodes", &["-i", "sparse=0"]),
    ("large extent counts", &["-i", "nrext64=1"]),
    ("a log in stripes", &["-l", "su=256k"]),
    ("a log in another group", &["-l", "agnum=0"]),
    ("a small log", &["--unsupported", "-l", "size=10m"]),
    ("large directory blocks", &["-n", "size=65536"]),
    ("names without case", &["-n", "version=ci"]),
    ("no file types", &["-m", "crc=0", "-n", "ftype=0"]),
    ("version 4", &["-m", "crc=0"]),
    ("version 4, exact counters", &["-m", "crc=0", "-l", "lazy-count=0"]),
    ("version 4, log of version 1", &["-m", "crc=0", "-l", "version=1"]),
    ("parent pointers", &["-n", "parent=1"]),
    ("exchange of ranges", &["-i", "exchange=1"]),
];
const BYTES: u64 = 400 * MIB;

/// Free extents in bytes, as xfsprogs list them: those of the lists of blocks that are kept ready
/// too, of which there are so many.
fn free_extents(image: &Path) -> (Vec<(u64, u64)>, usize) {
    let db = |commands: &[String]| {
        let commands = commands.iter().flat_map(|command| ["-c".to_owned(), command.clone()]);
        run_ok("xfs_db", ["-r".to_owned()].into_iter().chain(commands).chain([text(image)]))
    };
    let field = |place: &str, name: &str| {
        let output = db(&[place.to_owned(), format!("print {name}")]);
        output.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let [blocks, bytes, groups] =
        ["agblocks", "blocksize", "agcount"].map(|name| field("sb 0", name));
    let ready: u64 = (0..groups).map(|group| field(&format!("agf {group}"), "flcount")).sum();
    let numbers = |line: &str| {
        let words = line.split_whitespace().map(str::parse);
        words.collect::<Result<Vec<u64>, _>>().ok().filter(|row| row.len() == 3)
    };
    let output = db(&["freesp -d".to_owned()]);
    let rows = output.lines().filter_map(numbers);
    let extent = |row: Vec<u64>| ((row[0] * blocks + row[1]) * bytes, row[2] * bytes);
    let mut extents: Vec<_> = rows.map(extent).collect();
    extents.sort_unstable();
    (extents, ready as usize)
}

/// The map is what xfsprogs say, block for block.
fn expect_as_listed(image: &Path, what: &str) {
    let limits = mover_fsmap::Limits { granule_bytes: 512, ..LIMITS };
    let file = Image::open(image);
    let end = file.bytes();
    let found =
        used_space(&file, end, limits).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
    let mut at = 0;
    let mut free = Vec::new();
    for range in found.used.iter().chain(std::iter::once(end..end)) {
        if range.start > at {
            free.push((at, range.start - at));
        }
        at = range.end;
    }
    let (mut listed, ready) = free_extents(image);
    let all = listed.len();
    listed.retain(|extent| free.binary_search(extent).is_ok());
    assert!(!listed.is_empty() && all - listed.len() == ready, "{what}: {ready} of {all}");
    assert_eq!(free, listed, "{what}");
    assert_eq!(found.free_bytes, listed.iter().map(|(_, len)| len).sum::<u64>(), "{what}");
}

/// Leaves a device as it is at this moment, as a crash would; the newest changes are in the log
/// alone.
fn stop(mount: &Mount) {
    run_ok("xfs_io", ["-x", "-c", "shutdown -f", &text(mount.path())]);
}

/// Waits until the kernel has freed what it frees later: the blocks of files that were deleted,
/// which until then are on a list of inodes without a name, and those that it keeps behind the ends
/// of files. Both are still used in a map, and a replay frees the first, an unmount the second.
fn settle(mount: &Mount) {
    run_ok("xfs_spaceman", ["-c", "prealloc -s", &text(mount.path())]);
}

#[test]
fn every_kind_of_xfs_is_read_right_mounted_frozen_and_unmounted() {
    require_root!();
    let (mut tried, mut replayed) = (0, 0);
    for (what, arguments) in VARIANTS {
        let mut stage = Stage::new(Filesystem::Xfs, 40);
        let Some(image) = stage.try_make(arguments, BYTES) else { continue };
        expect_as_listed(&image, &format!("{what}, new"));
        if ["crc=0", "version=ci"].iter().any(|rare| arguments.contains(rare)) {
            println!("{what} {arguments:?}: not mounted, as not every kernel does");
            continue;
        }
        let snapshots = ["frozen", "stopped"].map(|name| stage.path(name));
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        run_ok("xfs_freeze", ["-f", &text(mount.path())]);
        copy(&image, &snapshots[0]);
        run_ok("xfs_freeze", ["-u", &text(mount.path())]);
        stage.churn(mount.path());
        settle(&mount);
        stop(&mount);
        copy(&image, &snapshots[1]);
        drop(mount);
        // what the stop left in the log is replayed, and more done
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        drop(mount);
        drop(device);
        for snapshot in &snapshots {
            let found = stage.expect_right(snapshot, &format!("{what}, {}", text(snapshot)));
            assert!(found.replayed > 0, "{what}: nothing was in the log");
            replayed += found.replayed;
            // `whole` was mounted, which replayed its log
            let free = map(&stage.path("whole")).unwrap().free_bytes;
            assert_eq!(found.free_bytes, free, "{what}");
        }
        let found = stage.expect_right(&image, &format!("{what}, unmounted"));
        assert_eq!(found.replayed, 0, "{what}");
        expect_as_listed(&image, what);
        println!("{what} {arguments:?}: {} ranges, {} free", found.used.count(), found.free_bytes);
        tried += 1;
    }
    assert!(tried > 10, "{tried} of {} were tried", VARIANTS.len());
    assert!(replayed > 20, "{replayed} transactions");
}

/// What was deleted while it was open has no name and all its blocks. The kernel frees these once
/// it has replayed the log.
#[test]
fn files_without_a_name_are_used_until_the_kernel_frees_them() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Xfs, 45);
    let image = stage.make(&[], BYTES);
    let stopped = stage.path("stopped");
    let blocks = {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        let open: Vec<fs::File> = (0..20)
            .map(|number: usize| {
                let name = mount.path().join(format!("open-{number}"));
                fs::write(&name, stage.rng.bytes(100_000 + 10_000 * number)).unwrap();
                let file = fs::File::open(&name).unwrap();
                file.sync_all().unwrap();
                fs::remove_file(&name).unwrap();
                file
            })
            .collect();
        settle(&mount);
        let blocks: u64 = open.iter().map(|file| file.metadata().unwrap().blocks()).sum();
        stop(&mount);
        copy(&image, &stopped);
        blocks * 512
    };
    let found = stage.expect_right(&stopped, "stopped");
    let free = map(&stage.path("whole")).unwrap().free_bytes;
    println!("{blocks} bytes without a name, {} free, then {free}", found.free_bytes);
    // to free them, the kernel may take a block for a tree, or refill the list of those that a
    // group keeps ready
    let ready = 4 * 4 * 4096;
    let later = free - found.free_bytes;
    assert!(later.abs_diff(blocks) <= ready, "{later} of {blocks} were freed");
}

/// Many checkpoints, blocks that change their use within the log, a log that goes round.
#[test]
fn a_long_and_full_log_is_replayed_as_the_kernel_does() {
    require_root!();
    // logs as small as these are made for tests alone
    let small: [&[&str]; 2] = [
        &["--unsupported", "-l", "size=10m"],
        &["--unsupported", "-b", "size=1024", "-l", "size=8m", "-m", "rmapbt=1"],
    ];
    for arguments in small {
        let mut stage = Stage::new(Filesystem::Xfs, 41);
        let Some(image) = stage.try_make(arguments, BYTES) else { continue };
        let device = LoopDevice::attach(&image);
        let mut most = 0;
        for round in 0..6_u64 {
            let mount = stage.mount(&device);
            let root = mount.path().join("many");
            for n in 0..2000 + 500 * round {
                let directory = root.join(format!("{}", n % 40));
                fs::create_dir_all(&directory).unwrap();
                let name = directory.join(format!("{round}-{n}"));
                let len = stage.rng.below(20_000) as usize;
                fs::write(&name, stage.rng.bytes(len)).unwrap();
                if stage.rng.once_in(50) {
                    fs::File::open(&name).unwrap().sync_all().unwrap();
                }
                if stage.rng.once_in(300) {
                    fs::remove_dir_all(&directory).unwrap();
                }
            }
            settle(&mount);
            stop(&mount);
            drop(mount);
            let snapshot = stage.path("stopped");
            copy(&image, &snapshot);
            let found = stage.expect_right(&snapshot, &format!("{arguments:?}, round {round}"));
            let free = map(&stage.path("whole")).unwrap().free_bytes;
            assert_eq!(found.free_bytes, free, "{arguments:?}, round {round}");
            most = most.max(found.replayed);
        }
        println!("{arguments:?}: up to {most} transactions");
        assert!(most > 10, "{most} transactions");
    }
}

/// Where the blocks of its log are, in bytes.
fn log_of(bytes: &[u8]) -> std::ops::Range<usize> {
    let be = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (block, group, log, bits) = (be(4), be(84), be(52), u32::from(bytes[124]));
    // of its place, the upper bits are the group
    let start = ((log >> bits) * group + (log & ((1 << bits) - 1))) * block;
    start..start + be(96) * block
}

/// Where the records of its log are, the newest last.
fn records(bytes: &[u8]) -> Vec<usize> {
    let number = |at: usize| u64::from_be_bytes(bytes[at + 16..at + 24].try_into().unwrap());
    let magic = 0xfeed_babe_u32.to_be_bytes();
    // not those that stand for what was never written
    let is_record =
        |at: &usize| bytes[*at..].starts_with(&magic) && bytes[at + 4..at + 8] != [0; 4];
    let mut records: Vec<usize> = log_of(bytes).step_by(512).filter(is_record).collect();
    records.sort_unstable_by_key(|at| number(*at));
    records
}

/// A crash tears what was under way. The log ends before that, for the kernel too; what is damaged
/// before cannot be a crash.
#[test]
fn a_log_ends_before_torn_records_and_nowhere_else() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Xfs, 46);
    let image = stage.make(&[], BYTES);
    let stopped = stage.path("stopped");
    {
        let device = LoopDevice::attach(&image);
        let mount = stage.mount(&device);
        stage.churn(mount.path());
        settle(&mount);
        for number in 0..40 {
            let file = fs::File::create(mount.path().join(format!("synced-{number}"))).unwrap();
            file.set_len(number).unwrap();
            file.sync_all().unwrap();
        }
        stop(&mount);
        copy(&image, &stopped);
    }
    let good = fs::read(&stopped).unwrap();
    let records = records(&good);
    assert!(records.len() > 20, "{} records", records.len());
    let all = map(&stopped).unwrap().replayed;
    let torn = |back: usize| {
        let mut bytes = good.clone();
        bytes[records[records.len() - back] + 512 + 20] ^= 1;
        bytes
    };
    // as many as can be under way
    for back in [1, 3, 8] {
        let torn = torn(back);
        let image = stage.path("torn");
        fs::write(&image, &torn).unwrap();
        let found = stage.expect_right(&image, &format!("{back} before the end"));
        assert!(found.replayed < all, "{back}: {} of {all}", found.replayed);
        assert_eq!(found.free_bytes, map(&stage.path("whole")).unwrap().free_bytes, "{back}");
    }
    for back in [9, 12] {
        let torn = torn(back);
        let refusal = map_of(&torn).expect_err("more than can be under way");
        assert!(refusal.contains("a checksum in its log does not fit"), "{back}: {refusal}");
        let image = stage.path("torn");
        fs::write(&image, &torn).unwrap();
        let device = LoopDevice::attach(&image);
        let paths = [text(device.path()), text(&stage.path("mount"))];
        let mounted =
            run("mount", ["-t", "xfs"].iter().copied().chain(paths.iter().map(String::as_str)));
        assert!(!mounted.status.success(), "{back}: the kernel takes it");
    }
}

#[test]
fn a_backup_of_xfs_leaves_free_space_out_and_restores_all_files() {
    require_root!();
    for arguments in [&[][..], &["-b", "size=1024", "-m", "rmapbt=1"]] {
        let mut stage = Stage::new(Filesystem::Xfs, 42);
        let image = stage.make(arguments, BYTES);
        let stopped = stage.path("stopped");
        {
            let device = LoopDevice::attach(&image);
            let mount = stage.mount(&device);
            stage.churn(mount.path());
            stop(&mount);
            copy(&image, &stopped);
        }
        let mover = stage.repository();
        stage.expect_backups_right(&mover, &stopped);
    }
}

fn map_of(bytes: &[u8]) -> Result<u64, String> {
    let found = used_space(&bytes, bytes.len() as u64, LIMITS);
    found.map(|found| found.free_bytes).map_err(|refusal| refusal.to_string())
}

/// Makes the checksum of a block fit again that has it at a place.
fn seal(block: &mut [u8], at: usize) {
    block[at..at + 4].fill(0);
    let sum = crc32c(block);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn what_is_not_understood_of_xfs_is_refused() {
    require_root!();
    let stage = Stage::new(Filesystem::Xfs, 43);
    let image = stage.make(&[], 300 * MIB);
    let mut bytes = fs::read(&image).unwrap();
    map_of(&bytes).unwrap();
    let good = bytes[..4096].to_vec();
    let [ro_compat, incompat] =
        [212, 216].map(|at| u32::from_be_bytes(good[at..at + 4].try_into().unwrap()));
    for (at, value, expected) in [
        (212, ro_compat | 1 << 4, "unknown features"),
        (216, incompat | 1 << 4, "xfs_repair"),
        (216, incompat | 1 << 8, "unknown features"),
        (216, incompat | 1 << 9, "unknown features"),
        (216, incompat | 1 << 30, "unknown features"),
        (220, 2, "unknown features"),
        (20, 5, "real-time"),
        (52, 0, "on another device"),
        (84, 1, "do not fit together"),
        (88, 77, "do not fit together"),
        (8, 1, "the volume is smaller"),
        (148, 5, "says 5"),
        (96, u32::MAX, "do not fit together"),
    ] {
        let value: u32 = value;
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        if expected == "on another device" {
            bytes[48..56].fill(0);
        }
        seal(&mut bytes[..512], 224);
        let refusal = map_of(&bytes).expect_err(expected);
        assert!(refusal.contains(expected), "{at} {value:#x}: {refusal}");
        bytes[..4096].copy_from_slice(&good);
    }
    // the header of the first group says that the log has come further than it has
    let lsn = u64::from_be_bytes(good[720..728].try_into().unwrap());
    for (ahead, expected) in [(0, None), (1 << 40, Some("has not come to"))] {
        bytes[720..728].copy_from_slice(&(lsn + ahead).to_be_bytes());
        seal(&mut bytes[512..1024], 216);
        let refusal = map_of(&bytes).err();
        let fits = match (&refusal, expected) {
            (Some(refusal), Some(expected)) => refusal.contains(expected),
            (refusal, expected) => refusal.is_none() && expected.is_none(),
        };
        assert!(fits, "{lsn:#x} and {ahead:#x} more: {refusal:?}");
    }
    bytes[..4096].copy_from_slice(&good);
    bytes[148] ^= 1;
    let refusal = map_of(&bytes).expect_err("a wrong checksum");
    assert!(refusal.contains("checksum"), "{refusal}");
}

#[test]
fn damaged_xfs_is_refused_or_harmless_and_never_a_panic_or_a_loop() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Xfs, 44);
    for arguments in [&["-b", "size=1024"][..], &["-m", "crc=0"]] {
        let Some(image) = stage.try_make(arguments, 300 * MIB) else { continue };
        let with_log = !arguments.contains(&"crc=0");
        let snapshot = stage.path("stopped");
        if with_log {
            let device = LoopDevice::attach(&image);
            let mount = stage.mount(&device);
            stage.churn(mount.path());
            stop(&mount);
            copy(&image, &snapshot);
        } else {
            copy(&image, &snapshot);
        }
        let good = fs::read(&snapshot).unwrap();
        map_of(&good).unwrap();
        let be = |at: usize| u32::from_be_bytes(good[at..at + 4].try_into().unwrap()) as usize;
        let (block, group) = (be(4), be(84));
        let (log, log_len) = (be(52), be(96) * block);
        // its place, of which the upper bits are the group
        let bits = u32::from(good[124]);
        let log = ((log >> bits) * group + (log & ((1 << bits) - 1))) * block;
        // superblock, headers of a group, the first blocks of its trees, records
        let mut places: Vec<(usize, usize, Option<usize>)> =
            vec![(0, 512, Some(224)), (512, 512, Some(216)), (1024, 512, Some(312))];
        let magics: [&[u8]; 2] = [b"AB3B", b"ABTB"];
        let trees = (0..group * block).step_by(block);
        let trees = trees.filter(|at| magics.iter().any(|magic| good[*at..].starts_with(magic)));
        places.extend(trees.map(|at| (at, block, Some(52))));
        let records = (log..log + log_len).step_by(512);
        // not those that stand for what was never written
        let records = records.filter(|at| be(*at) == 0xfeed_babe && be(*at + 4) != 0);
        places.extend(records.flat_map(|at| [(at, 512, None), (at, 4096, None)]));
        println!("{arguments:?}: {} places", places.len());
        assert!(places.len() > 4, "{} places", places.len());
        let mut bytes = good.clone();
        let mut refused = 0;
        for _ in 0..3000 {
            let (at, len, crc) = places[stage.rng.below(places.len() as u64) as usize];
            let end = (at + len).min(bytes.len());
            let most = if stage.rng.once_in(2) { 80 } else { len as u64 };
            let from = at + stage.rng.below(most) as usize;
            let to = (from + 1 + stage.rng.below(8) as usize).min(end);
            stage.rng.fill(&mut bytes[from.min(end)..to]);
            if let Some(crc) = crc.filter(|_| with_log) {
                seal(&mut bytes[at..end], crc);
            }
            refused += u32::from(map_of(&bytes).is_err());
            bytes[at..end].copy_from_slice(&good[at..end]);
        }
        assert!(refused > 100, "{refused} of 3000");
    }
}
