//! Swap space.

use crate::stage::{MIB, Stage, expect_no_panic, expect_refused, map, map_of, spoil, text};
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Filesystem, Rng, require_root, run_ok};

pub(crate) const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Some of it, with noise where something was swapped out.
pub(crate) fn make(stage: &mut Stage, page: u64, bytes: u64) -> PathBuf {
    let image = stage.path("swap");
    let noise = stage.rng.bytes(bytes as usize);
    fs::write(&image, noise).unwrap();
    let page = page.to_string();
    run_ok("mkswap", ["-f", "-p", &page, "-L", "label", "-U", UUID, &text(&image)]);
    image
}

pub(crate) fn check(image: &Path) {
    let found = run_ok("swaplabel", [text(image)]);
    assert!(found.contains("label") && found.contains(UUID), "{found}");
}

#[test]
fn only_the_header_of_swap_space_is_used() {
    let mut stage = Stage::new(Filesystem::Ext4, 60);
    // the kernel has pages of 4, 16 and 64 KiB; the end is no whole page
    for page in [4096, 8192, 16384, 32768, 65536] {
        let image = make(&mut stage, page, 5 * MIB + 3000);
        let found = map(&image).unwrap_or_else(|refusal| panic!("{page}: {refusal}"));
        let pages = (5 * MIB + 3000) / page;
        assert_eq!((found.kind, found.free_bytes), ("swap", (pages - 1) * page));
        let ranges = found.used.as_slice();
        assert_eq!(ranges, [0..page, pages * page..5 * MIB + 3000], "{page}");
        assert_eq!(spoil(&image, &found, &mut stage.rng), (pages - 1) * page);
        check(&image);
    }
}

#[test]
fn a_backup_of_swap_space_restores_its_header() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 61);
    let image = make(&mut stage, 4096, 16 * MIB);
    let mover = stage.repository();
    let target = stage.restored(&mover, &image, "one");
    check(&target);
    // a chunk of which anything is used is kept whole
    let (bytes, chunk) = (fs::read(&target).unwrap(), 65536);
    assert!(bytes[..chunk] == fs::read(&image).unwrap()[..chunk]);
    assert!(bytes[chunk..].iter().all(|byte| *byte == 0));
}

#[test]
fn swap_space_that_may_be_needed_is_refused() {
    let mut stage = Stage::new(Filesystem::Ext4, 62);
    let good = fs::read(make(&mut stage, 4096, 4 * MIB)).unwrap();
    map_of(&good).unwrap();
    let marks: [&[u8]; 5] = [
        b"S1SUSPEND\0",
        b"S2SUSPEND\0",
        b"ULSUSPEND\0",
        b"LINHIB0001",
        b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c",
    ];
    for mark in marks {
        expect_refused(&good, 4086, mark, "a suspended system is in it");
    }
    // of pages that are larger, or of an earlier use
    expect_refused(&good, 65526, b"S1SUSPEND", "a suspended system");
    expect_refused(&good, 16374, b"SWAPSPACE2", "two sizes");
    expect_refused(&good, 4086, b"SWAP-SPACE", "version 0");
    expect_refused(&good, 1024, &[2], "version 2");
    expect_refused(&good, 1024, &[0, 0, 0, 1], "byte order");
    expect_refused(&good, 1028, &1024_u32.to_le_bytes(), "the volume is smaller");
    expect_refused(&good, 1028, &[0; 4], "does not fit together");
    expect_refused(&good, 1032, &638_u32.to_le_bytes(), "does not fit together");
    expect_refused(&good, 1032, &[1], "bad page 0 leads outside");
    expect_refused(&good, 512, b"LABELONE", "LVM");
    // another use, which left the first page alone: a file system of FreeBSD, one of VMware
    expect_refused(&good, 65536 + 1372, b"\x19\x01\x54\x19", "UFS");
    expect_refused(&good, MIB as usize, b"\x0d\xd0\x01\xc0", "VMFS");
    for at in [1068, 1535, 1536, 4055] {
        expect_refused(&good, at, &[1], "more in its first page than a header");
    }
    let mut bytes = good.clone();
    // pages 5 and 9 are bad
    bytes[1032] = 2;
    bytes[1536] = 5;
    bytes[1540] = 9;
    let found = map_of(&bytes).unwrap();
    assert_eq!(found.free_bytes, map_of(&good).unwrap().free_bytes - 2 * 4096);
    expect_refused(&bytes, 1540, &1024_u32.to_le_bytes(), "bad page 1024 leads outside");
    // a volume that was cut off
    let refusal = map_of(&good[..good.len() - 1]).expect_err("it is smaller");
    assert!(refusal.contains("the volume is smaller"), "{refusal}");
    expect_no_panic(&good, &[(1024, 12), (4086, 10)], &mut Rng::new(62));
}
