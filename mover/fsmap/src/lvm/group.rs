//! A volume group, as its metadata describes it: which extents of one physical volume its logical
//! volumes have.

use super::text::{Section, Value};
use super::{UUID_LEN, unusable};
use crate::Refusal;
use mover_extents::Extents;
use std::ops::Range;

const SECTOR: u64 = 512;
const CONTENTS: &str = "Text Format Volume Group";

/// Marks that leave nothing to be known. Others stand apart, as flags, for they may be passed over.
const GROUP_STATUS: [&str; 7] =
    ["CLUSTERED", "EXPORTED", "PVMOVE", "READ", "RESIZEABLE", "SHARED", "WRITE"];
const VOLUME_STATUS: [&str; 2] = ["ALLOCATABLE", "EXPORTED"];
pub(super) const LOGICAL_STATUS: [&str; 10] = [
    "CACHE_VOL",
    "FIXED_MINOR",
    "LOCKED",
    "NOTSYNCED",
    "PVMOVE",
    "READ",
    "REBUILD",
    "VISIBLE",
    "WRITE",
    "WRITEMOSTLY",
];
const MISSING: &str = "MISSING";
/// Sections of a group. What the last one lists has no extents any more.
const SECTIONS: [&str; 3] = ["physical_volumes", "logical_volumes", "historical_logical_volumes"];
/// Kinds of segments that have no extents but those of other logical volumes, or none at all; all
/// kinds of RAID too.
const INDIRECT: [&str; 11] = [
    "snapshot",
    "thin",
    "thin-pool",
    "cache",
    "cache-pool",
    "writecache",
    "integrity",
    "vdo",
    "vdo-pool",
    "error",
    "zero",
];
const RAID: &str = "raid";
/// What may be added to a kind.
const KIND_FLAGS: [&str; 8] = [
    "CACHE_USES_CACHEVOL",
    "CROP_METADATA",
    "METADATA_FORMAT",
    "REMOVE_AFTER_RESHAPE",
    "RESHAPE",
    "RESHAPE_DATA_OFFSET",
    "RESHAPE_DELTA_DISKS_MINUS",
    "RESHAPE_DELTA_DISKS_PLUS",
];
/// Extents of 16 bytes each that are held; a group has far fewer segments.
const SEGMENTS_MAX: usize = 1 << 20;

/// Of the physical volume that is read.
#[derive(Debug)]
pub(super) struct Own {
    /// Where its first extent begins, in bytes.
    pub(super) start: u64,
    pub(super) extent_bytes: u64,
    pub(super) extents: u64,
    pub(super) used: Extents,
}

/// The section of the group, which is the only one of a text.
pub(super) fn the_group<'a, 't>(text: &'a Section<'t>) -> Result<&'a Section<'t>, Refusal> {
    if text.text("contents")? != CONTENTS || text.number("version")? != 1 {
        return Err(unusable("its metadata is of an unknown kind"));
    }
    let mut sections = text.iter().filter_map(|(_, value)| match value {
        Value::Section(section) => Some(section),
        _ => None,
    });
    match (sections.next(), sections.next()) {
        (Some(group), None) => Ok(group),
        _ => Err(unusable("its metadata is not that of one group")),
    }
}

/// What of the physical volume with that UUID is used.
pub(super) fn own_extents(text: &Section<'_>, uuid: &[u8; UUID_LEN]) -> Result<Own, Refusal> {
    let group = the_group(text)?;
    check_status(group, "its group", &GROUP_STATUS)?;
    for (name, value) in group.iter() {
        if matches!(value, Value::Section(_)) && !SECTIONS.contains(&name) {
            return Err(unusable(format!("its group has something unknown: {name}")));
        }
    }
    let volumes = group.section("physical_volumes")?;
    let own = find(volumes, uuid)?;
    let volume = volumes.section(own)?;
    check_status(volume, "it", &VOLUME_STATUS)?;
    if flags(volume, "flags")?.contains(&MISSING) {
        return Err(unusable("it is marked as MISSING: its group went on without it"));
    }
    let bytes = |name: &str, of: &Section<'_>| {
        let bytes = of.number(name)?.checked_mul(SECTOR);
        bytes.ok_or_else(|| unusable(format!("its metadata has a {name} that cannot be")))
    };
    let (start, extent_bytes) = (bytes("pe_start", volume)?, bytes("extent_size", group)?);
    let extents = volume.number("pe_count")?;
    if extent_bytes == 0 || u32::try_from(extents).is_err() {
        return Err(unusable("the sizes in its metadata do not fit together"));
    }
    let none = Section::default();
    let logical = match group.get("logical_volumes") {
        None => &none,
        Some(_) => group.section("logical_volumes")?,
    };
    let mut all = Areas { own, extents, volumes, logical, used: Vec::new() };
    for (name, _) in logical.iter() {
        all.add_volume(name, logical.section(name)?)?;
    }
    Ok(Own { start, extent_bytes, extents, used: all.finish()? })
}

/// What the group calls the physical volume with that UUID, in which there are dashes there.
pub(super) fn find<'t>(volumes: &Section<'t>, uuid: &[u8; UUID_LEN]) -> Result<&'t str, Refusal> {
    for (name, _) in volumes.iter() {
        let id = volumes.section(name)?.text("id")?;
        if id.bytes().filter(|byte| *byte != b'-').eq(uuid.iter().copied()) {
            return Ok(name);
        }
    }
    Err(unusable("its group does not have it"))
}

pub(super) fn flags<'t>(of: &Section<'t>, name: &str) -> Result<Vec<&'t str>, Refusal> {
    if !of.has(name) {
        return Ok(Vec::new());
    }
    let flags = of.list(name)?.iter().map(|flag| match flag {
        Value::Text(text) => Some(*text),
        _ => None,
    });
    let flags: Option<Vec<&str>> = flags.collect();
    flags.ok_or_else(|| unusable(format!("its metadata does not have {name} as it should")))
}

pub(super) fn check_status(of: &Section<'_>, what: &str, known: &[&str]) -> Result<(), Refusal> {
    match flags(of, "status")?.iter().find(|flag| !known.contains(flag)) {
        None => Ok(()),
        Some(unknown) => Err(unusable(format!("{what} has the status {unknown}"))),
    }
}

/// Collects extents of one physical volume.
struct Areas<'a, 't> {
    own: &'t str,
    extents: u64,
    volumes: &'a Section<'t>,
    logical: &'a Section<'t>,
    used: Vec<Range<u64>>,
}

impl Areas<'_, '_> {
    fn add_volume(&mut self, name: &str, volume: &Section<'_>) -> Result<(), Refusal> {
        check_status(volume, name, &LOGICAL_STATUS)?;
        let mut left = volume.number("segment_count")?;
        for (part, value) in volume.iter() {
            let Value::Section(segment) = value else { continue };
            let is_segment = part.strip_prefix("segment").is_some_and(|number| {
                !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
            });
            if !is_segment {
                return Err(unusable(format!("{name} has something unknown: {part}")));
            }
            left = left.wrapping_sub(1);
            self.add_segment(segment).map_err(|refusal| match refusal {
                Refusal::Unusable { kind, why } => {
                    Refusal::Unusable { kind, why: format!("{part} of {name}: {why}") }
                }
                other => other,
            })?;
        }
        if left == 0 {
            return Ok(());
        }
        Err(unusable(format!("{name} does not have as many segments as it says")))
    }

    fn add_segment(&mut self, segment: &Section<'_>) -> Result<(), Refusal> {
        let mut words = segment.text("type")?.split('+');
        let kind = words.next().unwrap_or_default();
        if let Some(unknown) = words.find(|flag| !KIND_FLAGS.contains(flag)) {
            return Err(unusable(format!("it has an unknown flag, {unknown}")));
        }
        let len = segment.number("extent_count")?;
        match kind {
            "striped" => {
                let stripes = segment.number("stripe_count")?;
                let each = len.checked_div(stripes).filter(|each| each * stripes == len);
                let each = each.ok_or_else(|| unusable("its stripes are not equally long"))?;
                self.add_areas(segment.list("stripes")?, stripes, each)
            }
            "mirror" => {
                let copies = segment.number("mirror_count")?;
                self.add_areas(segment.list("mirrors")?, copies, len)
            }
            _ if INDIRECT.contains(&kind) || kind.starts_with(RAID) => {
                let names =
                    |value: &Value<'_>| matches!(value, Value::Text(name) if *name == self.own);
                let own = |value: &Value<'_>| matches!(value, Value::List(list) if list.iter().any(names));
                if segment.iter().any(|(_, value)| own(value)) {
                    return Err(unusable("it has extents of its own, which its kind never has"));
                }
                Ok(())
            }
            _ => Err(unusable(format!("it is of an unknown kind, {kind}"))),
        }
    }

    /// Names of volumes, each with where it begins there.
    fn add_areas(&mut self, list: &[Value<'_>], count: u64, len: u64) -> Result<(), Refusal> {
        if count == 0 || list.len() as u64 != count.saturating_mul(2) {
            return Err(unusable("it does not have as many places as it says"));
        }
        for area in list.chunks_exact(2) {
            let [Value::Text(name), Value::Number(first)] = area else {
                return Err(unusable("its places make no sense"));
            };
            // as LVM does: a physical volume of a name goes before a logical one
            if !self.volumes.has(name) && !self.logical.has(name) {
                return Err(unusable(format!("it is on {name}, which its group does not have")));
            }
            if *name != self.own {
                continue;
            }
            let outside = || unusable("its extents lead outside");
            let start = u64::try_from(*first).map_err(|_| outside())?;
            let end = start.checked_add(len).filter(|end| *end <= self.extents);
            if self.used.len() == SEGMENTS_MAX {
                return Err(unusable("its group has too many segments"));
            }
            self.used.push(start..end.ok_or_else(outside)?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Extents, Refusal> {
        self.used.sort_unstable_by_key(|range| range.start);
        if self.used.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(unusable("two segments have the same extents"));
        }
        Ok(self.used.into_iter().collect())
    }
}
