//! LVM physical volumes: the extents that any logical volume has.
//!
//! Layout: `lib/format_text/layout.h` and `lib/label/label.h` of LVM2. A label in one of the first
//! four sectors leads to the volume's header, and that to up to two metadata areas, each a ring of
//! texts that describe the whole group; the header of an area says which text counts. All of it has
//! checksums. Used are labels and areas, all that lies before the first extent and behind the last,
//! and each extent that a segment of any logical volume names, hidden ones and those that are being
//! moved too. What is free within a logical volume is not looked at.
//!
//! A text that another volume of the group has may be newer, if this one was away when it was
//! written. Then nothing was given out of this one meanwhile: what is used by the older text is no
//! less.

mod group;
mod text;
mod volumes;

pub use volumes::LogicalVolume;

use super::{Limits, Map, ReadAt, Refusal, UsedSpace, field, le32, le64, read};
use mover_extents::Extents;
use std::ops::Range;
use text::Section;

pub(super) const KIND: &str = "lvm";
const SECTOR: usize = 512;
const LABEL_SECTORS: u64 = 4;
const LABEL: &[u8; 8] = b"LABELONE";
const LABEL_KIND: &[u8; 8] = b"LVM2 001";
/// Of the label: what its checksum is of begins here.
const LABEL_BODY: usize = 20;
const UUID_LEN: usize = 32;
/// Of the header, before its lists.
const HEADER_LEN: usize = UUID_LEN + 8;
const AREA_MAGIC: &[u8; 16] = b" LVM2 x[5A%r0N*>";
const AREA_VERSION: u32 = 1;
/// Of a metadata area: its header, in which places of texts begin here, each with so many bytes.
const AREA_HEADER: u64 = SECTOR as u64;
const TEXTS: usize = 40;
const TEXT_PLACE: usize = 24;
/// The area has no text that counts, as there are enough of them.
const IGNORED: u32 = 1;
const AREAS_MAX: usize = 4;
/// Of what stands behind the lists: version 1, and that the volume is in a group.
const EXTENSION_VERSIONS: Range<u32> = 1..3;
const EXTENSION_USED: u32 = 1;
/// Read, it takes some times that. A group of some thousand volumes has one MiB.
const TEXT_BYTES_MAX: u64 = 4 << 20;

fn unusable(why: impl Into<String>) -> Refusal {
    Refusal::Unusable { kind: KIND, why: why.into() }
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    let header = Header::read(volume, volume_bytes)?;
    let text = newest_text(volume, &header)?;
    let own = group::own_extents(&text::parse(&text)?, &header.uuid)?;
    let end = own.start.checked_add(own.extent_bytes.saturating_mul(own.extents));
    let Some(end) = end.filter(|end| *end <= volume_bytes) else {
        let group::Own { extents, extent_bytes, .. } = own;
        return Err(unusable(format!(
            "it has {extents} extents of {extent_bytes} bytes, and the volume is smaller"
        )));
    };
    let mut map = Map::new(KIND, volume_bytes, limits);
    map.add_anywhere(0..own.start)?;
    map.add_anywhere(end..u64::MAX)?;
    header.places.iter().try_for_each(|place| map.add_anywhere(place.clone()))?;
    let mut free = own.extents;
    for used in &own.used {
        let place = |extent: u64| own.start + extent * own.extent_bytes;
        map.add_anywhere(place(used.start)..place(used.end))?;
        free -= used.end - used.start;
    }
    let free_bytes = free * own.extent_bytes;
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, ..UsedSpace::default() })
}

/// The logical volumes that users see of the group that a physical volume is in, in the order of
/// their names; none where the volume is no physical volume.
///
/// # Errors
///
/// It is one, and its metadata does not fit together.
pub fn logical_volumes(
    volume: &dyn ReadAt,
    volume_bytes: u64,
) -> Result<Vec<LogicalVolume>, Refusal> {
    let header = match Header::read(volume, volume_bytes) {
        Err(Refusal::Unknown) => return Ok(Vec::new()),
        found => found?,
    };
    let text = newest_text(volume, &header)?;
    volumes::logical_volumes(&text::parse(&text)?, &header.uuid, volume_bytes)
}

/// What label and header say.
struct Header {
    uuid: [u8; UUID_LEN],
    areas: Vec<Range<u64>>,
    /// Of labels, areas, boot loaders.
    places: Extents,
}

impl Header {
    fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        let mut found = None;
        for number in 0..LABEL_SECTORS.min(volume_bytes / AREA_HEADER) {
            let sector = read(volume, number * AREA_HEADER, SECTOR)?;
            if sector.starts_with(LABEL) && found.replace((number, sector)).is_some() {
                return Err(unusable("it has two labels"));
            }
        }
        let Some((number, sector)) = found else { return Err(Refusal::Unknown) };
        if field(&sector, 24) != *LABEL_KIND || le64(&sector, 8) != number {
            return Err(unusable("its label is not one of LVM2"));
        }
        if crc(&sector[LABEL_BODY..]) != le32(&sector, 16) {
            return Err(unusable("the checksum of its label does not fit"));
        }
        let header = sector.get(le32(&sector, LABEL_BODY) as usize..).unwrap_or_default();
        Self::parse(header, volume_bytes)
    }

    fn parse(header: &[u8], volume_bytes: u64) -> Result<Self, Refusal> {
        let broken = || unusable("its header does not fit together");
        let mut rest = header.get(HEADER_LEN..).ok_or_else(broken)?;
        let mut lists = Vec::new();
        // where data begins, where metadata is
        for _ in 0..2 {
            let (list, behind) = places(rest, volume_bytes).ok_or_else(broken)?;
            lists.push(list);
            rest = behind;
        }
        let areas = lists.pop().unwrap_or_default();
        let (version, flags) = (le32(rest, 0), le32(rest, 4));
        let label = std::iter::once(0..AREA_HEADER * LABEL_SECTORS);
        let mut all: Vec<_> = label.chain(areas.iter().cloned()).collect();
        if version != 0 {
            let behind = rest.get(8..).ok_or_else(broken)?;
            let known = EXTENSION_VERSIONS.contains(&version) && flags & !EXTENSION_USED == 0;
            if !known {
                let why = format!("its header has version {version} and flags {flags:#x}");
                return Err(unusable(why));
            }
            all.extend(places(behind, volume_bytes).ok_or_else(broken)?.0);
        }
        let places = all.into_iter().collect();
        Ok(Self { uuid: field(header, 0), areas, places })
    }
}

/// A list of places, up to one at zero, and what is behind it. No size: to the end of the volume.
fn places(bytes: &[u8], volume_bytes: u64) -> Option<(Vec<Range<u64>>, &[u8])> {
    let mut rest = bytes;
    let mut list = Vec::new();
    loop {
        let (place, behind) = rest.split_at_checked(16)?;
        let (start, len) = (le64(place, 0), le64(place, 8));
        rest = behind;
        if start == 0 {
            return Some((list, rest));
        }
        let len = if len == 0 { volume_bytes.checked_sub(start)? } else { len };
        list.push(start..start.checked_add(len).filter(|end| *end <= volume_bytes)?);
        if list.len() > AREAS_MAX {
            return None;
        }
    }
}

/// The text that counts, of all areas.
fn newest_text(volume: &dyn ReadAt, header: &Header) -> Result<Vec<u8>, Refusal> {
    let mut newest: Option<(u64, Vec<u8>)> = None;
    for area in &header.areas {
        let Some(bytes) = read_area(volume, area)? else { continue };
        let number = number_of(&text::parse(&bytes)?)?;
        match &newest {
            Some((last, _)) if *last > number => {}
            Some((last, other)) if *last == number && *other != bytes => {
                let why = format!("its areas have two texts of number {number}");
                return Err(unusable(why));
            }
            _ => newest = Some((number, bytes)),
        }
    }
    let (_, text) = newest.ok_or_else(|| unusable("no group has its metadata on it"))?;
    Ok(text)
}

/// A text grows older by one with each that is written.
fn number_of(text: &Section<'_>) -> Result<u64, Refusal> {
    group::the_group(text)?.number("seqno")
}

/// The text that counts of one area, if it has any.
fn read_area(volume: &dyn ReadAt, area: &Range<u64>) -> Result<Option<Vec<u8>>, Refusal> {
    let start = area.start;
    let broken = || unusable(format!("the metadata area at {start} does not fit together"));
    let size = area.end - start;
    if size < 2 * AREA_HEADER {
        return Err(broken());
    }
    let header = read(volume, start, SECTOR)?;
    if crc(&header[4..]) != le32(&header, 0) {
        return Err(unusable(format!("the checksum of the metadata area at {start} does not fit")));
    }
    let own = field(&header, 4) == *AREA_MAGIC
        && le32(&header, 20) == AREA_VERSION
        && le64(&header, 24) == start
        && le64(&header, 32) == size;
    if !own {
        return Err(broken());
    }
    let (at, len) = (le64(&header, TEXTS), le64(&header, TEXTS + 8));
    let (sum, flags) = (le32(&header, TEXTS + 16), le32(&header, TEXTS + 20));
    if flags & !IGNORED != 0 {
        return Err(unusable(format!("the metadata area at {start} has flags {flags:#x}")));
    }
    if flags & IGNORED != 0 || at == 0 {
        return Ok(None);
    }
    if le64(&header, TEXTS + TEXT_PLACE) != 0 {
        return Err(unusable("its metadata was being changed"));
    }
    if !(AREA_HEADER..size).contains(&at) || len > size - AREA_HEADER || len > TEXT_BYTES_MAX {
        return Err(broken());
    }
    // what does not fit before the area's end stands behind its header
    let first = len.min(size - at);
    let part = |from: u64, len: u64| read(volume, start + from, usize::try_from(len).unwrap_or(0));
    let mut text = part(at, first)?;
    text.extend(part(AREA_HEADER, len - first)?);
    if crc(&text) != sum {
        return Err(unusable(format!("the checksum of the metadata at {start} does not fit")));
    }
    Ok(Some(text))
}

/// As in Ethernet, with a beginning of its own and no inversion at the end.
fn crc(bytes: &[u8]) -> u32 {
    const BEGINNING: u32 = 0xf597_a6cf;
    const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    let mut digest = CRC.digest_with_initial(BEGINNING.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}
