//! What names a disk, or the file system or container that fills it. Pure.
//!
//! Two volumes with different names are two volumes, whatever they are called. Equal names, or none,
//! prove nothing. The names survive growing, snapshots and clones of a disk; formatting anew makes
//! another one.
//!
//! Offsets are those of libblkid's probes.

use super::signatures::{self, format_uuid};

/// Finds the name of one kind in the beginning of a volume.
type Name = fn(&[u8]) -> Option<String>;

/// Its kind and its name, such as `ext:` and a UUID. `None`: nothing known is on it, or it has none.
///
/// What fills the volume comes first: a partition table may be left over in front of it.
pub fn identity(head: &[u8]) -> Option<String> {
    let kinds: [(&str, Name); 9] = [
        ("luks", luks),
        ("lvm", lvm),
        ("ext", ext),
        ("xfs", |head| uuid_behind(head, 0, b"XFSB", 32)),
        ("btrfs", |head| uuid_behind(head, (64 << 10) + 64, b"_BHRfS_M", (64 << 10) + 32)),
        ("f2fs", |head| uuid_behind(head, 1024, b"\x10\x20\xf5\xf2", 1024 + 108)),
        ("swap", swap),
        ("gpt", gpt),
        ("serial", serial),
    ];
    kinds.iter().find_map(|(kind, name)| Some(format!("{kind}:{}", name(head)?)))
}

fn has(head: &[u8], offset: usize, magic: &[u8]) -> bool {
    head.get(offset..).is_some_and(|b| b.starts_with(magic))
}

fn uuid_behind(head: &[u8], at: usize, magic: &[u8], uuid_at: usize) -> Option<String> {
    if !has(head, at, magic) {
        return None;
    }
    format_uuid(head.get(uuid_at..uuid_at + 16)?)
}

fn ext(head: &[u8]) -> Option<String> {
    signatures::is_ext(head).then(|| head.get(1024 + 104..1024 + 120).and_then(format_uuid))?
}

/// Text, filled up with zeros.
fn luks(head: &[u8]) -> Option<String> {
    if !has(head, 0, b"LUKS\xba\xbe") {
        return None;
    }
    let text = head.get(168..208)?.split(|b| *b == 0).next()?;
    plain(text).filter(|text| !text.is_empty())
}

/// The physical volume's, 32 letters and digits behind its label.
fn lvm(head: &[u8]) -> Option<String> {
    let label = (0..4).map(|n| n * 512).find(|at| has(head, *at, b"LABELONE"))?;
    plain(head.get(label + 32..label + 64)?)
}

fn plain(text: &[u8]) -> Option<String> {
    let plain = text.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
    plain.then(|| String::from_utf8_lossy(text).into_owned())
}

fn swap(head: &[u8]) -> Option<String> {
    let ends = [4096, 8192, 16384, 32768, 65536];
    ends.iter().find_map(|end| uuid_behind(head, end - 10, b"SWAPSPACE2", 1024 + 12))
}

/// The disk's.
fn gpt(head: &[u8]) -> Option<String> {
    [512, 4096].iter().find_map(|at| uuid_behind(head, *at, b"EFI PART", at + 56))
}

/// Of the file systems of Windows.
fn serial(head: &[u8]) -> Option<String> {
    let at = if has(head, 3, b"NTFS    ") {
        72..80
    } else if has(head, 3, b"EXFAT   ") {
        100..104
    } else if has(head, 82, b"FAT32   ") {
        67..71
    } else if has(head, 54, b"FAT12   ") || has(head, 54, b"FAT16   ") {
        39..43
    } else {
        return None;
    };
    let serial = head.get(at)?;
    serial.iter().any(|b| *b != 0).then(|| hex::encode(serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with these bytes on it.
    fn disk(places: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; usize::try_from(signatures::NAMES_BYTES).unwrap()];
        for (at, bytes) in places {
            head[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[test]
    fn each_kind_has_its_name() {
        let uuid = [0xab; 16];
        let spelled = "abababab-abab-abab-abab-abababababab";
        let pv = b"Xv2mFqPzT0aBcDeFgHiJkLmNoPqRsTuV";
        let luks = b"3b0bd5b8-8a0c-4a24-9d8e-2d7f1b6f3c11";
        for (places, expected) in [
            (&[(1024 + 56, &b"\x53\xef"[..]), (1024 + 104, &uuid)][..], format!("ext:{spelled}")),
            (&[(0, b"XFSB"), (32, &uuid)], format!("xfs:{spelled}")),
            (
                &[((64 << 10) + 64, b"_BHRfS_M"), ((64 << 10) + 32, &uuid)],
                format!("btrfs:{spelled}"),
            ),
            (&[(4086, b"SWAPSPACE2"), (1036, &uuid)], format!("swap:{spelled}")),
            (&[(512, b"EFI PART"), (512 + 56, &uuid)], format!("gpt:{spelled}")),
            (&[(512, b"LABELONE"), (544, pv)], format!("lvm:{}", String::from_utf8_lossy(pv))),
            (
                &[(0, b"LUKS\xba\xbe"), (168, luks)],
                "luks:3b0bd5b8-8a0c-4a24-9d8e-2d7f1b6f3c11".to_owned(),
            ),
            (
                &[(3, b"NTFS    "), (72, &[1, 2, 3, 4, 5, 6, 7, 8])],
                "serial:0102030405060708".into(),
            ),
            (&[(3, b"EXFAT   "), (100, &[1, 2, 3, 4])], "serial:01020304".into()),
            (&[(82, b"FAT32   "), (67, &[1, 2, 3, 4])], "serial:01020304".into()),
        ] {
            assert_eq!(identity(&disk(places)), Some(expected));
        }
    }

    #[test]
    fn what_has_no_name_has_none() {
        for places in [
            &[][..],
            &[(0, &b"XFSB"[..])],
            &[(1024 + 56, b"\x53\xef")],
            &[(3, b"NTFS    ")],
            &[(0, b"LUKS\xba\xbe"), (168, b"not \x01 text")],
        ] {
            assert_eq!(identity(&disk(places)), None, "{places:?}");
        }
        assert_eq!(identity(b"XFSB"), None, "cut short");
        assert_eq!(identity(&[]), None);
    }
}
