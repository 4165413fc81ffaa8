//! What the first and last bytes of a device say about what is on it. Pure.
//!
//! Offsets and magics are those of libblkid's probes and of the formats' own documents. A signature
//! that is missed lets someone overwrite data; one that is seen wrongly costs a `--force`: so these
//! lean to the second.

/// Enough for every signature below (VMFS has the last).
pub const HEAD_BYTES: u64 = (1 << 20) + 4096;
/// Enough for all that names a disk or the file system on it (btrfs has the last): each backup reads
/// it.
pub const NAMES_BYTES: u64 = (64 << 10) + 4096;
/// Enough for the signatures at a device's end: a GPT's second header, the metadata of older md
/// arrays.
pub const TAIL_BYTES: u64 = 128 << 10;

pub(crate) const EXT: &str = "an ext2, ext3 or ext4 file system";
pub(crate) const GPT: &str = "a GPT partition table";
pub(crate) const SECOND_GPT: &str = "a GPT partition table (its second header)";
pub(crate) const MBR: &str = "an MBR partition table";
pub(crate) const XFS: &str = "an XFS file system";
pub(crate) const BTRFS: &str = "a btrfs file system";
pub(crate) const FAT: &str = "a FAT file system";
pub(crate) const NTFS: &str = "an NTFS file system";
pub(crate) const SWAP: &str = "swap space";
pub(crate) const LVM: &str = "an LVM physical volume";
const SUSPENDED: &str = "a hibernation image";

struct Magic {
    what: &'static str,
    offset: usize,
    magic: &'static [u8],
}

const fn magic(what: &'static str, offset: usize, magic: &'static [u8]) -> Magic {
    Magic { what, offset, magic }
}

/// What is recognised by bytes at one place.
const MAGICS: &[Magic] = &[
    magic(XFS, 0, b"XFSB"),
    magic(BTRFS, (64 << 10) + 64, b"_BHRfS_M"),
    magic(NTFS, 3, b"NTFS    "),
    magic("an exFAT file system", 3, b"EXFAT   "),
    magic("a ReFS file system", 3, b"ReFS\0\0\0\0"),
    magic(FAT, 54, b"FAT12   "),
    magic(FAT, 54, b"FAT16   "),
    magic(FAT, 82, b"FAT32   "),
    magic("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    magic("a bcache device", 4096 + 24, BCACHE_MAGIC),
    magic("a bcachefs file system", 4096 + 24, BCACHEFS_MAGIC),
    magic("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    magic("a squashfs file system", 0, b"hsqs"),
    magic("an ISO 9660 file system", 32769, b"CD001"),
    magic("a UDF file system", 32769, b"BEA01"),
    magic("a GFS2 file system", 65536, b"\x01\x16\x19\x70\x00\x00\x00\x01"),
    magic("an OCFS2 file system", 8192, b"OCFSV2"),
    magic("an OCFS2 file system", 4096, b"OCFSV2"),
    magic("an OCFS2 file system", 2048, b"OCFSV2"),
    magic("an OCFS2 file system", 1024, b"OCFSV2"),
    magic("a JFS file system", 32768, b"JFS1"),
    magic("a ReiserFS file system", 65536 + 52, b"ReIsEr"),
    magic("a ReiserFS file system", 8192 + 52, b"ReIsEr"),
    magic("a Reiser4 file system", 65536, b"ReIsEr4"),
    magic("a UFS file system", 65536 + 1372, b"\x19\x01\x54\x19"),
    magic("a UFS file system", 8192 + 1372, b"\x54\x19\x01\x00"),
    magic("a UFS file system", 8192 + 1372, b"\x19\x01\x54\x19"),
    magic("a VMFS volume", 1 << 20, b"\x0d\xd0\x01\xc0"),
    magic("a VxFS file system", 1024, b"\xf5\xfc\x01\xa5"),
    magic("an HFS+ file system", 1024, b"H+\0\x04"),
    magic("an HFS+ file system", 1024, b"HX\0\x05"),
    magic("an APFS container", 32, b"NXSB"),
    magic("a NILFS2 file system", 1024, b"\x02\0\0\0\0\0\x34\x34"),
    magic("an HPFS file system", 8192, b"\x49\xe8\x95\xf9\xc5\xe9\x53\xfa"),
    magic("a BSD disklabel", 512, b"\x57\x45\x56\x82"),
    magic("a Windows dynamic disk", 3072, b"PRIVHEAD"),
    magic("an Oracle ASM disk", 32, b"ORCLDISK"),
    magic("a VDO volume", 0, b"dmvdo001"),
    magic("a Stratis pool member", 516, b"!Stra0tis"),
    magic("a dm-integrity volume", 0, b"integrt\0"),
    magic("a LUKS container", 0, b"LUKS\xba\xbe"),
    magic("a BitLocker volume", 3, b"-FVE-FS-"),
    magic("Ceph BlueStore data", 0, b"bluestore block device"),
    magic("a member of a Linux RAID array", 0, b"\xfc\x4e\x2b\xa9"),
    magic("a member of a Linux RAID array", 4096, b"\xfc\x4e\x2b\xa9"),
    magic(SWAP, 4096 - 10, b"SWAPSPACE2"),
    magic(SWAP, 4096 - 10, b"SWAP-SPACE"),
    magic(SWAP, 8192 - 10, b"SWAPSPACE2"),
    magic(SWAP, 16384 - 10, b"SWAPSPACE2"),
    magic(SWAP, 32768 - 10, b"SWAPSPACE2"),
    magic(SWAP, 65536 - 10, b"SWAPSPACE2"),
    magic(SUSPENDED, 4096 - 10, b"S1SUSPEND"),
    magic(SUSPENDED, 4096 - 10, b"S2SUSPEND"),
    magic(SUSPENDED, 4096 - 10, b"ULSUSPEND"),
    magic(SUSPENDED, 4096 - 10, b"LINHIB0001"),
    magic(SUSPENDED, 4096 - 10, b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"),
    magic(SUSPENDED, 8192 - 10, b"S1SUSPEND"),
    magic(SUSPENDED, 16384 - 10, b"S1SUSPEND"),
    magic(SUSPENDED, 32768 - 10, b"S1SUSPEND"),
    magic(SUSPENDED, 65536 - 10, b"S1SUSPEND"),
    magic(LVM, 0, b"LABELONE"),
    magic(LVM, 512, b"LABELONE"),
    magic(LVM, 1024, b"LABELONE"),
    magic(LVM, 1536, b"LABELONE"),
    magic(GPT, 512, b"EFI PART"),
    magic(GPT, 4096, b"EFI PART"),
    magic("a qcow2 image", 0, b"QFI\xfb"),
    magic("a VMDK image", 0, b"KDMV"),
    magic("a VHDX image", 0, b"vhdxfile"),
];

/// What is recognised by bytes so far before the end: the RAID of controllers, in the last sectors
/// of 512 or 4096 bytes.
const FROM_END: &[Magic] = &[
    magic(INTEL_RAID, 1024, b"Intel Raid ISM Cfg Sig. "),
    magic(INTEL_RAID, 8192, b"Intel Raid ISM Cfg Sig. "),
    magic(DDF_RAID, 512, b"\xde\x11\xde\x11"),
    magic(DDF_RAID, 4096, b"\xde\x11\xde\x11"),
    // a second header, before a workspace of 256 sectors, is behind what is read
    magic("a member of an LSI MegaRAID", 512, b"$XIDE$"),
    magic("a member of an NVIDIA RAID", 1024, b"NVIDIA  "),
    magic("a member of an Adaptec RAID", 512, b"\x37\xfc\x4d\x1e"),
];
const INTEL_RAID: &str = "a member of an Intel RAID";
const DDF_RAID: &str = "a member of a DDF RAID";
/// Where DRBD's internal metadata may begin, at the end of a device; where its magic is in it; the
/// last bytes of the magics of its versions 8.3, 8.4 and 9.
const DRBD_BYTES: usize = 8 << 10;
const DRBD_MAGIC_AT: usize = 60;
const DRBD_MAGICS: [u8; 3] = [0x6b, 0x6c, 0x6d];

const BCACHE_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// What is on a device that begins and ends with these bytes; `None` if nothing is recognised.
pub fn detect(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    besides(head, tail, &[])
}

/// The same, some of what is recognised apart. A device whose use has changed may keep the
/// superblock of what was on it before.
pub(crate) fn besides(head: &[u8], tail: &[u8], known: &[&str]) -> Option<&'static str> {
    let at = |m: &&Magic| head.get(m.offset..).is_some_and(|b| b.starts_with(m.magic));
    MAGICS
        .iter()
        .filter(at)
        .map(|m| m.what)
        .chain(zfs(head))
        .chain(mbr(head))
        .chain(at_the_end(tail))
        .chain(is_ext(head).then_some(EXT))
        .find(|what| !known.contains(what))
}

/// Its magic is only two bytes, so a block size and a revision that exist are asked for too.
pub(super) fn is_ext(head: &[u8]) -> bool {
    let Some(sb) = head.get(1024..1024 + 256) else { return false };
    let word = |at: usize| sb.get(at..at + 4).map(|b| [b[0], b[1], b[2], b[3]]);
    let small = |at: usize, most: u32| word(at).is_some_and(|w| u32::from_le_bytes(w) <= most);
    sb.get(56..58) == Some(b"\x53\xef") && small(24, 6) && small(76, 1)
}

/// An uberblock in the first label: they start at 128 KiB and are at least 1 KiB apart.
fn zfs(head: &[u8]) -> Option<&'static str> {
    let rings = head.get(128 << 10..256 << 10)?;
    rings
        .chunks(1024)
        .any(|b| {
            b.starts_with(b"\x0c\xb1\xba\x00\0\0\0\0") || b.starts_with(b"\0\0\0\0\x00\xba\xb1\x0c")
        })
        .then_some("a member of a ZFS pool")
}

/// A boot sector with a partition that has a type, a size and a sane boot flag.
fn mbr(head: &[u8]) -> Option<&'static str> {
    let sector = head.get(..512)?;
    if sector.get(510..)? != b"\x55\xaa" {
        return None;
    }
    let entries = sector.get(446..510)?.chunks_exact(16);
    let sane = entries.clone().all(|e| e[0] & 0x7f == 0);
    let used = entries.clone().any(|e| e[4] != 0 && e[12..16] != [0; 4]);
    (sane && used).then_some(MBR)
}

fn at_the_end(tail: &[u8]) -> Option<&'static str> {
    let from_end = |n: usize| tail.len().checked_sub(n).and_then(|at| tail.get(at..));
    for sector in [512, 4096] {
        if from_end(sector).is_some_and(|b| b.starts_with(b"EFI PART")) {
            return Some(SECOND_GPT);
        }
    }
    let raid = FROM_END.iter().find(|m| from_end(m.offset).is_some_and(|b| b.starts_with(m.magic)));
    if let Some(raid) = raid {
        return Some(raid.what);
    }
    // 4 KiB before the end, rounded down to as much
    let drbd = from_end(tail.len().min(DRBD_BYTES)).unwrap_or_default();
    let magic = |b: &[u8]| b.get(DRBD_MAGIC_AT..).is_some_and(|b| b.starts_with(b"\x83\x74\x02"));
    let number = |b: &[u8]| b.get(DRBD_MAGIC_AT + 3).is_some_and(|n| DRBD_MAGICS.contains(n));
    if drbd.chunks(512).any(|b| magic(b) && number(b)) {
        return Some("DRBD metadata");
    }
    // md 1.0 is 8 to 12 KiB before the end, md 0.90 64 to 128 KiB, both at a multiple of 4 KiB from
    // the device's start; Promise's is at one of many places
    tail.chunks(512).find_map(|b| match b {
        _ if b.starts_with(b"\xfc\x4e\x2b\xa9") => Some("a member of a Linux RAID array"),
        _ if b.starts_with(b"Promise Technology, Inc.") => Some("a member of a Promise RAID"),
        _ => None,
    })
}

/// UUID of the file system or encrypted container that begins with these bytes, in its usual
/// spelling.
pub fn filesystem_uuid(head: &[u8]) -> Option<String> {
    let has =
        |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|b| b.starts_with(magic));
    let uuid_at = |offset: usize| head.get(offset..offset + 16).and_then(format_uuid);
    if is_ext(head) {
        return uuid_at(1024 + 104);
    }
    if has(0, b"XFSB") {
        return uuid_at(32);
    }
    if has((64 << 10) + 64, b"_BHRfS_M") {
        return uuid_at((64 << 10) + 32);
    }
    if has(1024, b"\x10\x20\xf5\xf2") {
        return uuid_at(1024 + 108);
    }
    if has(0, b"LUKS\xba\xbe") {
        // text, filled up with zeros
        let field = head.get(168..208)?;
        let text = field.split(|b| *b == 0).next()?;
        let plain = text.iter().all(|b| b.is_ascii_hexdigit() || *b == b'-');
        return (text.len() == 36 && plain)
            .then(|| String::from_utf8_lossy(text).to_ascii_lowercase());
    }
    None
}

/// `None` for all zeros: a file system that was given no UUID.
pub(super) fn format_uuid(bytes: &[u8]) -> Option<String> {
    if bytes.iter().all(|b| *b == 0) {
        return None;
    }
    let hex = hex::encode(bytes);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    Some(format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    ))
}

#[cfg(test)]
mod tests;
