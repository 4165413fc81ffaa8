use super::*;
use proptest::prelude::*;

fn with(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, part) in parts {
        bytes[*at..*at + part.len()].copy_from_slice(part);
    }
    bytes
}

const HEAD: usize = (1 << 20) + 4096;
const UUID: &[u8] = b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
const UUID_TEXT: &str = "01234567-89ab-cdef-0123-456789abcdef";

#[test]
fn every_magic_is_recognised_at_its_place() {
    for m in MAGICS {
        let head = with(HEAD, &[(m.offset, m.magic)]);
        assert_eq!(detect(&head, &[]), Some(m.what));
        // one byte less of the device, and it is not there
        let cut = &head[..m.offset + m.magic.len() - 1];
        assert_eq!(detect(cut, &[]), None, "{}", m.what);
    }
}

#[test]
fn nothing_is_recognised_in_nothing() {
    for len in [0, 1, 511, 512, 4096, HEAD] {
        let zeros = vec![0; len];
        assert_eq!(detect(&zeros, &zeros), None);
        assert_eq!(filesystem_uuid(&zeros), None);
    }
}

#[test]
fn an_mbr_needs_a_partition() {
    let mut head = with(HEAD, &[(510, b"\x55\xaa")]);
    assert_eq!(detect(&head, &[]), None, "a boot sector alone");
    head[446..462].copy_from_slice(b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x10\0");
    assert_eq!(detect(&head, &[]), Some("an MBR partition table"));
    head[446] = 0x13;
    assert_eq!(detect(&head, &[]), None, "no such boot flag: these are other bytes");
}

#[test]
fn what_stands_at_the_end_is_recognised() {
    let len = 128 << 10;
    for (at, magic) in [
        (len - 512, &b"EFI PART"[..]),
        (len - 4096, b"EFI PART"),
        (len - (8 << 10), b"\xfc\x4e\x2b\xa9"),
        (0, b"\xfc\x4e\x2b\xa9"),
    ] {
        assert!(detect(&[], &with(len, &[(at, magic)])).is_some(), "{at}");
    }
}

/// As libblkid finds them, and mdadm on sectors of 4 KiB.
#[test]
fn the_raid_of_controllers_and_drbd_are_recognised() {
    let len = 128 << 10;
    let ism: &[u8] = b"Intel Raid ISM Cfg Sig. 1.3.00";
    let places: [(usize, &[u8], &str); 12] = [
        (1024, ism, "an Intel RAID"),
        (8192, ism, "an Intel RAID"),
        (512, b"\xde\x11\xde\x11", "a DDF RAID"),
        (4096, b"\xde\x11\xde\x11", "a DDF RAID"),
        (512, b"$XIDE$", "an LSI"),
        (1024, b"NVIDIA  ", "an NVIDIA"),
        (512, b"\x37\xfc\x4d\x1e", "an Adaptec"),
        (63 * 512, b"Promise Technology, Inc.", "a Promise"),
        (4096 - 60, b"\x83\x74\x02\x6b", "DRBD"),
        (4096 - 60, b"\x83\x74\x02\x6c", "DRBD"),
        (4096 - 60, b"\x83\x74\x02\x6d", "DRBD"),
        // a device whose size is no multiple of 4 KiB
        (4096 + 512 - 60, b"\x83\x74\x02\x6d", "DRBD"),
    ];
    for (before_end, magic, what) in places {
        let at = len - before_end;
        let found = detect(&[], &with(len, &[(at, magic)])).unwrap_or_default();
        assert!(found.contains(what), "{what}: {found:?}");
        // elsewhere it is nobody's
        let found = detect(&[], &with(len, &[(at - 100, magic)]));
        assert_eq!(found, None, "{what}");
    }
}

#[test]
fn a_zfs_label_is_recognised_in_both_byte_orders() {
    for magic in [b"\x0c\xb1\xba\x00\0\0\0\0", b"\0\0\0\0\x00\xba\xb1\x0c"] {
        let head = with(HEAD, &[((128 << 10) + 5 * 1024, magic)]);
        assert_eq!(detect(&head, &[]), Some("a member of a ZFS pool"));
    }
}

/// Real file systems are in `tests/device.rs`, as far as their tools are there.
#[test]
fn uuids_are_read_where_the_formats_keep_them() {
    let ext: &[(usize, &[u8])] = &[(1024 + 56, b"\x53\xef"), (1024 + 104, UUID)];
    let xfs: &[(usize, &[u8])] = &[(0, b"XFSB"), (32, UUID)];
    let btrfs: &[(usize, &[u8])] = &[(65536 + 64, b"_BHRfS_M"), (65536 + 32, UUID)];
    let f2fs: &[(usize, &[u8])] = &[(1024, b"\x10\x20\xf5\xf2"), (1024 + 108, UUID)];
    let luks: &[(usize, &[u8])] = &[(0, b"LUKS\xba\xbe"), (168, UUID_TEXT.as_bytes())];
    let names = usize::try_from(NAMES_BYTES).unwrap();
    for parts in [ext, xfs, btrfs, f2fs, luks] {
        assert_eq!(filesystem_uuid(&with(names, parts)).as_deref(), Some(UUID_TEXT));
        // no UUID was given, or the device ends before it
        assert_eq!(filesystem_uuid(&with(HEAD, &parts[..1])), None);
        assert_eq!(filesystem_uuid(&with(HEAD, parts)[..parts[1].0 + 15]), None);
    }
    let odd = with(HEAD, &[(0, b"LUKS\xba\xbe"), (168, &[b'/'; 36])]);
    assert_eq!(filesystem_uuid(&odd), None);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(head in proptest::collection::vec(any::<u8>(), 0..2048), tail in proptest::collection::vec(any::<u8>(), 0..2048)) {
        detect(&head, &tail);
        filesystem_uuid(&head);
    }
}
