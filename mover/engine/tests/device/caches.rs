//! A disk's page cache that is older than the disk: somebody has the disk open, and a partition was
//! written to.

use crate::machine::{Loop, image, is_root, pattern, run};
use mover_engine::volume::device::{DirectIo, Source, SourceOptions, Target, TargetOptions};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SIZE: usize = 8 << 20;
/// Where the partition begins.
const START: usize = 1 << 20;

/// A disk with a partition, both open.
struct Disk {
    device: Loop,
    partition: PathBuf,
    /// Holds the disk's cache.
    held: File,
}

impl Disk {
    /// The disk's cache has zeros, and the disk something else.
    fn new() -> Self {
        let device = Loop::new(image(SIZE as u64), 512, &[]);
        let sectors = |bytes: usize| (bytes / 512).to_string();
        let text = device.path().to_str().unwrap().to_owned();
        run("addpart", &[&text, "1", &sectors(START)], Path::new(&sectors(SIZE - START)));
        let mut held = File::open(device.path()).unwrap();
        held.read_to_end(&mut Vec::new()).unwrap();
        let this = Self { partition: format!("{text}p1").into(), device, held };
        let partition = File::options().write(true).open(&this.partition).unwrap();
        partition.write_all_at(&content()[START..], 0).unwrap();
        partition.sync_all().unwrap();
        this
    }

    fn expect_stale(&self) {
        let mut bytes = [1; 512];
        self.held.read_exact_at(&mut bytes, START as u64).unwrap();
        assert_eq!(bytes, [0; 512], "the cache is what it was");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("delpart", &[self.device.path().to_str().unwrap()], Path::new("1"));
    }
}

fn content() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    pattern(3, START as u64, &mut bytes[START..]);
    bytes
}

/// Anywhere, of any length.
const PIECES: [(usize, usize); 9] = [
    (START, 1),
    (START + 1, 511),
    (START + 4095, 2),
    (START + 513, 1 << 20),
    (START - 7, 4096),
    (START, 4096),
    (START + 100, (3 << 20) + 5),
    (SIZE - 1, 1),
    (SIZE - 70_001, 70_001),
];

#[test]
fn reads_beside_an_engine_are_of_the_device_and_not_of_its_cache() {
    if !is_root() {
        return;
    }
    let disk = Disk::new();
    let content = content();
    for direct in [DirectIo::Always, DirectIo::Never] {
        disk.expect_stale();
        let source = Source::open(disk.device.path(), SourceOptions { direct }).unwrap();
        assert_eq!(source.stale(), None);
        for (at, len) in PIECES {
            let mut bytes = vec![0xee; len];
            source.read_exact_at(&mut bytes, at as u64).unwrap();
            assert!(bytes == content[at..at + len], "{direct}: {len} bytes at {at}");
        }
        let end = source.read_exact_at(&mut [0; 2], SIZE as u64 - 1).unwrap_err().to_string();
        assert!(end.contains("it ends at"), "{end}");
    }
}

#[test]
fn a_write_beside_an_engine_changes_its_own_bytes_and_no_others() {
    if !is_root() {
        return;
    }
    for direct in [DirectIo::Always, DirectIo::Never] {
        let disk = Disk::new();
        let mut content = content();
        disk.expect_stale();
        let options = TargetOptions { direct, ..TargetOptions::new(SIZE as u64) };
        let target = Target::open(disk.device.path(), &options).unwrap();
        assert_eq!(target.stale(), None);
        for (n, (at, len)) in PIECES.into_iter().enumerate() {
            let bytes = vec![u8::try_from(n).unwrap() + 1; len];
            target.write_all_at(&bytes, at as u64).unwrap();
            content[at..at + len].copy_from_slice(&bytes);
        }
        target.deallocate_or_zero(START as u64 + 5000..START as u64 + 99_999).unwrap();
        content[START + 5000..START + 99_999].fill(0);
        target.flush().unwrap();
        drop(target);
        let now = std::fs::read(disk.device.image()).unwrap();
        let differs = now.iter().zip(&content).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{direct}");
    }
}
