//! Partition tables, GPT and MBR, with file systems in the partitions.
//!
//! Layout: the UEFI specification, chapter 5. Everything outside of partitions is used: tables,
//! gaps, boot loaders. A partition whose file system is known and can be relied upon is mapped by
//! it, at its place; any other is used as a whole. So are extended partitions of an MBR, with all
//! that is in them. Sectors of an MBR are taken to have 512 bytes: where they have more, no file
//! system is found where one is looked for, and all is used.

use super::{Limits, Map, ReadAt, Refusal, UsedSpace, file_system, le32, le64, read};
use std::io;

const GPT: &str = "gpt";
const MBR: &str = "mbr";
const SECTOR: u64 = 512;
const SECTOR_LEN: usize = 512;
/// An MBR that says that there is a GPT.
const PROTECTIVE: u8 = 0xee;
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The table that every program makes has 16 KiB.
const TABLE_BYTES_MAX: u64 = 1 << 20;
const ENTRY_BYTES_MIN: u32 = 128;

/// A partition: its number, and its place in bytes.
struct Partition {
    number: usize,
    start: u64,
    end: u64,
    extended: bool,
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
    let outside = |one: &Partition| one.start >= one.end || one.end > volume_bytes;
    let first = partitions.first().map_or(table_end, |one| one.start);
    if !apart || first < table_end || partitions.iter().any(outside) {
        return Err(unusable("its partitions overlap, or lead outside".to_owned()));
    }
    let mut map = Map::new(kind, volume_bytes, limits);
    let mut all = UsedSpace { kind, ..UsedSpace::default() };
    let (mut understood, mut used_from) = (0, 0);
    for Partition { number, start, end, extended } in partitions {
        let part = Part { volume, start, bytes: end - start };
        // half of them: its map and that of the volume are there at once
        let limits = Limits { ranges_max: limits.ranges_max / 2, ..limits };
        let found =
            if extended { Err(Refusal::Unknown) } else { file_system(&part, part.bytes, limits) };
        let found = match found {
            Ok(found) => found,
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
fn table(
    volume: &dyn ReadAt,
    volume_bytes: u64,
) -> Result<(&'static str, u64, Vec<Partition>), Refusal> {
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
    let partition = |(number, entry): (usize, &[u8])| {
        let start = u64::from(le32(entry, 8)) * SECTOR;
        let end = start + u64::from(le32(entry, 12)) * SECTOR;
        Partition { number, start, end, extended: EXTENDED.contains(&entry[4]) }
    };
    let entries = (1..).zip(entries).filter(|(_, entry)| entry[4] != 0).map(partition);
    Ok((MBR, SECTOR, entries.collect()))
}

fn gpt(volume: &dyn ReadAt, volume_bytes: u64) -> Result<(u64, Vec<Partition>), Refusal> {
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
            partitions.push(Partition { number, start, end, extended: false });
        }
        return Ok((from + table_bytes, partitions));
    }
    Err(unusable("its header is not found"))
}

/// As in Ethernet, over parts that stand one behind the other.
fn crc32(parts: &[&[u8]]) -> u32 {
    const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    let mut digest = CRC.digest();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}
