//! Partition tables, GPT and MBR, with file systems in the partitions.
//!
//! Layout: the UEFI specification, chapter 5. Everything outside of partitions is used: tables,
//! gaps, boot loaders. A partition whose file system is known and can be relied upon is mapped by
//! it, at its place; any other is used as a whole. So is one whose type says that something else is
//! in it: what is found there is a leftover then, or a part of a volume that goes on elsewhere. And
//! so are extended partitions of an MBR, with all that is in them.

use super::{Limits, Map, ReadAt, Refusal, UsedSpace};
use super::{be16, file_system, le16, le32, le64, lvm, read, swap};
use std::io;
use std::ops::Range;

const GPT: &str = "gpt";
const MBR: &str = "mbr";
const SECTOR: u64 = 512;
const SECTOR_LEN: usize = 512;
/// An MBR that says that there is a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of an MBR that hold file systems: FAT, NTFS and exFAT, hidden ones, a recovery system's,
/// those of Linux, and EFI's.
const OF_FILES: [u8; 17] = [
    0x01, 0x04, 0x06, 0x07, 0x0b, 0x0c, 0x0e, 0x11, 0x14, 0x16, 0x17, 0x1b, 0x1c, 0x1e, 0x27, 0x83,
    0xef,
];
const OF_SWAP: u8 = 0x82;
const OF_LVM: u8 = 0x8e;
/// The same for a GPT: EFI's, Microsoft's, a recovery system's, and of Linux the general one,
/// `/boot`, `/` (x86, x86-64, arm, arm64, riscv64, s390x, ppc64le), `/usr` (x86, x86-64, arm64),
/// `/home`, that of one user, `/srv`, `/var`, `/var/tmp`, and those of CoreOS and Flatcar.
const GPT_OF_FILES: [&str; 22] = [
    "c12a7328-f81f-11d2-ba4b-00a0c93ec93b",
    "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7",
    "de94bba4-06d1-4d40-a16a-bfd50179d6ac",
    LINUX_DATA,
    "bc13c2ff-59e6-4262-a352-b275fd6f7172",
    "44479540-f297-41b2-9af7-d131d5f0458a",
    "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
    "b921b045-1df0-41c3-af44-4c6f280d3fae",
    "69dad710-2ce4-4e3c-b16c-21a1d49abed3",
    "72ec70a6-cf74-40e6-bd49-4bda08e8f224",
    "5eead9a9-fe09-4a1e-a1d7-520d00531306",
    "c31c45e6-3f39-412e-80fb-4809c4980599",
    "75250d76-8cc6-458e-bd66-bd47cc81a812",
    "8484680c-9521-48c6-9c11-b0720656f69e",
    "b0e01050-ee5f-4390-949a-9101b17104e9",
    "933ac7e1-2eb4-4f13-b844-0e14e2aef915",
    "3b8f8425-20e0-4f3b-907f-1a25a76f98e8",
    "4d21b016-b534-45c2-a9fb-5c16e091fd2d",
    "7ec6f557-3bc5-4aca-b293-16ef5df639d1",
    "773f91ef-66d4-49b5-bd83-d683bf40ad16",
    "3884dd41-8582-4404-b9a8-e9b84f2df50e",
    "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6",
];
const LINUX_DATA: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const GPT_OF_SWAP: &str = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f";
const GPT_OF_LVM: &str = "e6d6d379-f507-44c2-a23c-238f2a3df928";
/// The table that every program makes has 16 KiB.
const TABLE_BYTES_MAX: u64 = 1 << 20;
const ENTRY_BYTES_MIN: u32 = 128;

/// A partition: its number, and its place in bytes.
struct Row {
    number: usize,
    start: u64,
    end: u64,
    holds: Holds,
}

/// What the type of a partition says is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    FileSystem,
    /// Of the general type of Linux, which is given to physical volumes too.
    LinuxData,
    Swap,
    Lvm,
    Other,
}

impl Holds {
    fn of_mbr(kind: u8) -> Self {
        match kind {
            0x83 => Self::LinuxData,
            OF_SWAP => Self::Swap,
            OF_LVM => Self::Lvm,
            kind if OF_FILES.contains(&kind) => Self::FileSystem,
            _ => Self::Other,
        }
    }

    fn of_gpt(kind: &str) -> Self {
        match kind {
            LINUX_DATA => Self::LinuxData,
            GPT_OF_SWAP => Self::Swap,
            GPT_OF_LVM => Self::Lvm,
            kind if GPT_OF_FILES.contains(&kind) => Self::FileSystem,
            _ => Self::Other,
        }
    }

    fn may_be(self, found: &str) -> bool {
        match self {
            Self::FileSystem => !matches!(found, swap::KIND | lvm::KIND),
            Self::LinuxData => found != swap::KIND,
            Self::Swap => found == swap::KIND,
            Self::Lvm => found == lvm::KIND,
            Self::Other => false,
        }
    }
}

/// A partition of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// As its table counts, from 1 on.
    pub number: usize,
    /// Its bytes.
    pub range: Range<u64>,
}

/// The partitions of a volume, in the order of their table; none where there is no table.
///
/// # Errors
///
/// There is a table, and it does not fit together.
pub fn partitions(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Vec<Partition>, Refusal> {
    if volume_bytes < SECTOR {
        return Ok(Vec::new());
    }
    let all = match table(volume, volume_bytes) {
        Err(Refusal::Unknown) => return Ok(Vec::new()),
        found => found?.2,
    };
    let inside = all.into_iter().filter(|one| one.start < one.end && one.end <= volume_bytes);
    Ok(inside.map(|one| Partition { number: one.number, range: one.start..one.end }).collect())
}

/// A part of a volume.
struct Part<'a> {
    volume: &'a dyn ReadAt,
    start: u64,
    bytes: u64,
}

impl ReadAt for Part<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.volume.read_at(buffer, self.start + offset)
    }
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    if volume_bytes < SECTOR {
        return Err(Refusal::Unknown);
    }
    let (kind, table_end, mut partitions) = table(volume, volume_bytes)?;
    let unusable = |why: String| Refusal::Unusable { kind, why };
    partitions.sort_unstable_by_key(|partition| partition.start);
    let apart = partitions.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let outside = |one: &Row| one.start >= one.end || one.end > volume_bytes;
    let first = partitions.first().map_or(table_end, |one| one.start);
    if !apart || first < table_end || partitions.iter().any(outside) {
        return Err(unusable("its partitions overlap, or lead outside".to_owned()));
    }
    let mut map = Map::new(kind, volume_bytes, limits);
    let mut all = UsedSpace { kind, ..UsedSpace::default() };
    let (mut understood, mut used_from) = (0, 0);
    for Row { number, start, end, holds } in partitions {
        let part = Part { volume, start, bytes: end - start };
        // half of them: its map and that of the volume are there at once
        let limits = Limits { ranges_max: limits.ranges_max / 2, ..limits };
        let found = match holds {
            Holds::Other => {
                all.notes.push(format!(
                    "partition {number} counts as used: its type is none of those of file systems"
                ));
                continue;
            }
            _ => file_system(&part, part.bytes, limits),
        };
        let found = match found {
            Ok(found) if holds.may_be(found.kind) => found,
            Ok(UsedSpace { kind, .. }) => {
                let why = "its type is of something else";
                all.notes.push(format!("partition {number} counts as used: {kind}: {why}"));
                continue;
            }
            Err(refusal @ Refusal::Io { .. }) => return Err(refusal),
            Err(refusal) => {
                all.notes.push(format!("partition {number} counts as used: {refusal}"));
                continue;
            }
        };
        understood += 1;
        map.add(used_from..start)?;
        for used in &found.used {
            map.add(start + used.start..start + used.end)?;
        }
        used_from = end;
        let note = |note| format!("partition {number}: {note}");
        all.notes.extend(found.notes.iter().map(note));
        all.free_bytes += found.free_bytes;
        all.replayed += found.replayed;
    }
    if understood == 0 {
        let why = "no partition has a file system whose free space is understood";
        return Err(unusable([why, &all.notes.join(", ")].join(": ")));
    }
    map.add(used_from..u64::MAX)?;
    all.used = map.finish();
    Ok(all)
}

/// Which table it is, where it ends, and what it has.
fn table(volume: &dyn ReadAt, volume_bytes: u64) -> Result<(&'static str, u64, Vec<Row>), Refusal> {
    let bytes = read(volume, 0, SECTOR_LEN)?;
    let entries = bytes[446..510].chunks_exact(16);
    let is_table = bytes.ends_with(b"\x55\xaa")
        && entries.clone().all(|entry| entry[0] & 0x7f == 0)
        && entries.clone().any(|entry| entry[4] != 0 && le32(entry, 12) != 0);
    if !is_table {
        return Err(Refusal::Unknown);
    }
    let types: Vec<u8> = entries.clone().map(|entry| entry[4]).filter(|kind| *kind != 0).collect();
    if types == [PROTECTIVE] {
        let (end, partitions) = gpt(volume, volume_bytes)?;
        return Ok((GPT, end, partitions));
    }
    if types.contains(&PROTECTIVE) {
        let why = "two partition tables say different things of it".to_owned();
        return Err(Refusal::Unusable { kind: MBR, why });
    }
    if volume.sector_bytes().is_some_and(|bytes| bytes != SECTOR) {
        let why = "its sectors have another size, which an MBR does not say".to_owned();
        return Err(Refusal::Unusable { kind: MBR, why });
    }
    let partition = |(number, entry): (usize, &[u8])| {
        let start = u64::from(le32(entry, 8)) * SECTOR;
        let end = start + u64::from(le32(entry, 12)) * SECTOR;
        Row { number, start, end, holds: Holds::of_mbr(entry[4]) }
    };
    let entries = (1..).zip(entries).filter(|(_, entry)| entry[4] != 0).map(partition);
    Ok((MBR, SECTOR, entries.collect()))
}

fn gpt(volume: &dyn ReadAt, volume_bytes: u64) -> Result<(u64, Vec<Row>), Refusal> {
    let unusable = |why: &str| Refusal::Unusable { kind: GPT, why: why.to_owned() };
    let nonsense = || unusable("its header does not fit together");
    for sector in [SECTOR, 4096] {
        if volume_bytes < 2 * sector {
            continue;
        }
        let header = read(volume, sector, SECTOR_LEN)?;
        if !header.starts_with(b"EFI PART") {
            continue;
        }
        let len = le32(&header, 12) as usize;
        let summed = header.get(..len).filter(|_| len >= 92).ok_or_else(nonsense)?;
        if crc32(&[&summed[..16], &[0; 4], &summed[20..]]) != le32(&header, 16) {
            return Err(unusable("the checksum of its header does not fit"));
        }
        let (count, size) = (le32(&header, 80), le32(&header, 84));
        let table_bytes = u64::from(count) * u64::from(size);
        let from = le64(&header, 72).checked_mul(sector);
        let end = from.and_then(|from| from.checked_add(table_bytes));
        let fits = le64(&header, 24) == 1
            && size >= ENTRY_BYTES_MIN
            && (1..=TABLE_BYTES_MAX).contains(&table_bytes)
            && end.is_some_and(|end| end <= volume_bytes);
        let (true, Some(from)) = (fits, from) else { return Err(nonsense()) };
        let table = read(volume, from, usize::try_from(table_bytes).map_err(|_| nonsense())?)?;
        if crc32(&[&table]) != le32(&header, 88) {
            return Err(unusable("the checksum of its table does not fit"));
        }
        let usable = le64(&header, 40)..=le64(&header, 48);
        let mut partitions = Vec::new();
        for (number, entry) in (1..).zip(table.chunks_exact(size as usize)) {
            if entry[..16] == [0; 16] {
                continue;
            }
            let (first, last) = (le64(entry, 32), le64(entry, 40));
            let place = |sectors: u64| sectors.checked_mul(sector).ok_or_else(nonsense);
            if !usable.contains(&first) || !usable.contains(&last) || last == u64::MAX {
                return Err(unusable("its partitions overlap, or lead outside"));
            }
            let (start, end) = (place(first)?, place(last + 1)?);
            let holds = Holds::of_gpt(&guid(&entry[..16]));
            partitions.push(Row { number, start, end, holds });
        }
        return Ok((from + table_bytes, partitions));
    }
    Err(unusable("its header is not found"))
}

/// As it is written: the first three parts begin with their lowest byte.
fn guid(bytes: &[u8]) -> String {
    let (first, second, third) = (le32(bytes, 0), le16(bytes, 4), le16(bytes, 6));
    let (fourth, fifth) = (be16(bytes, 8), hex::encode(&bytes[10..]));
    format!("{first:08x}-{second:04x}-{third:04x}-{fourth:04x}-{fifth}")
}

/// As in Ethernet, over parts that stand one behind the other.
fn crc32(parts: &[&[u8]]) -> u32 {
    const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    let mut digest = CRC.digest();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}
