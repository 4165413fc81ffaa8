//! Zeroing, in each of its ways: what is in the range reads as zeros, what is outside stays.

use crate::machine::{Loop, Mount, Zram, image, image_in, is_root};
use mover_engine::volume::device::{DirectIo, Target, TargetOptions, ZeroMethod};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const SIZE: u64 = 8 << 20;

/// Fills the target with ones, zeroes ranges, and looks at every byte; gives the ways that were
/// used.
fn check(path: &Path, expect: ZeroMethod) {
    // ends in the middle of a 512-byte sector; the device goes on
    let volume = SIZE - 1000;
    for range in [
        0..volume,
        0..4096,
        4096..1 << 20,
        1..2,
        511..8193,
        (1 << 20) - 1..(3 << 20) + 4097,
        volume - 5000..volume,
    ] {
        let ones = vec![0xFF; usize::try_from(SIZE).unwrap()];
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&ones, 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        // a file of another size than the volume's needs it
        let options = TargetOptions { force: true, ..TargetOptions::new(volume) };
        let target = Target::open(path, &options).unwrap();
        let method = target.deallocate_or_zero(range.clone()).unwrap();
        let small = range.end - range.start < 8192; // may hold no whole block
        assert!(method == expect || small && method == ZeroMethod::Written, "{method:?}");
        target.flush().unwrap();
        let mut through_us = vec![1; ones.len()];
        target.io_file().read_exact_at(&mut through_us, 0).unwrap();
        drop(target);
        let mut bytes = ones;
        File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert!(through_us == bytes);
        for (at, b) in (0u64..).zip(&bytes) {
            let want = if range.contains(&at) { 0 } else { 0xFF };
            assert_eq!(*b, want, "{} {range:?}: byte {at}", path.display());
        }
    }
}

#[test]
fn loop_devices_are_punched_and_the_file_behind_them_gets_thin() {
    if !is_root() {
        return;
    }
    for sector in [512, 4096] {
        let device = Loop::new(image(SIZE), sector, &[]);
        check(device.path(), ZeroMethod::Punched);
        let target = Target::open(device.path(), &TargetOptions::new(SIZE)).unwrap();
        target.deallocate_or_zero(0..SIZE).unwrap();
        target.flush().unwrap();
        let blocks = std::fs::metadata(device.image()).unwrap().blocks();
        assert!(blocks < 100, "{blocks} blocks are still allocated");
    }
}

#[test]
fn zram_is_zeroed() {
    if !is_root() {
        return;
    }
    let Some(device) = Zram::new(SIZE) else { return };
    check(device.path(), ZeroMethod::Punched);
}

/// A loop device over a file system that cannot deallocate refuses to punch; the kernel writes
/// zeros to it.
#[test]
fn a_device_that_cannot_deallocate_is_zeroed() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ramfs = Mount::memory("ramfs", dir.path());
    let image = image_in(ramfs.path(), SIZE);
    let device = Loop::new(image, 512, &["--direct-io=off"]);
    check(device.path(), ZeroMethod::Zeroed);
    let target = Target::open(device.path(), &TargetOptions::new(SIZE)).unwrap();
    assert!(target.direct());
}

#[test]
fn a_file_that_cannot_be_deallocated_is_written() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ramfs = Mount::memory("ramfs", dir.path());
    let image = image_in(ramfs.path(), SIZE);
    check(&image, ZeroMethod::Written);
    // and there is no direct I/O
    let forced = TargetOptions { force: true, ..TargetOptions::new(SIZE) };
    let target = Target::open(&*image, &forced).unwrap();
    assert!(!target.direct());
    // it has the file locked
    drop(target);
    let always = TargetOptions { direct: DirectIo::Always, ..TargetOptions::new(SIZE) };
    let e = Target::open(&*image, &always).unwrap_err().to_string();
    assert!(e.contains("for direct I/O") && e.contains("`direct-io` auto"), "{e}");
}
