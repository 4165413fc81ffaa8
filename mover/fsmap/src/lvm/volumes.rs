//! Logical volumes whose extents all lie on the one physical volume that is read: where their bytes
//! are. All others are named, with the reason.
//!
//! Segments are of kind `striped`, with one stripe where they are linear. A volume that has the
//! changed blocks of a snapshot is of that kind too, and has no file system: only the segment of
//! the snapshot tells. One whose snapshot is being merged into it has its newest bytes in there.

use super::group::{LOGICAL_STATUS, check_status, find, flags, the_group};
use super::text::{Section, Value};
use super::{UUID_LEN, unusable};
use crate::{Layout, Refusal};
use std::collections::HashMap;

const SECTOR: u64 = 512;
/// It is shown to users.
const VISIBLE: &str = "VISIBLE";
/// Stretches of one volume: far more than any has.
const RUNS_MAX: usize = 1 << 20;

/// A logical volume of the group that a physical volume is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalVolume {
    /// Of its group and its own: `VG/LV`.
    pub name: String,
    /// Where its bytes are in the physical volume, or why that cannot be said.
    pub layout: Result<Layout, String>,
}

/// The volumes of a group that users see. `volume_bytes` is the size of the physical volume with
/// that UUID.
pub(super) fn logical_volumes(
    text: &Section<'_>,
    uuid: &[u8; UUID_LEN],
    volume_bytes: u64,
) -> Result<Vec<LogicalVolume>, Refusal> {
    let group = the_group(text)?;
    let mut sections = text.iter().filter(|(_, value)| matches!(value, Value::Section(_)));
    let group_name = sections.next().map_or("", |(name, _)| name);
    let volumes = group.section("physical_volumes")?;
    let own = find(volumes, uuid)?;
    let none = Section::default();
    let logical = match group.get("logical_volumes") {
        None => &none,
        Some(_) => group.section("logical_volumes")?,
    };
    let physical = Physical::read(group, volumes.section(own)?, volume_bytes)?;
    let held = snapshots(logical);
    let mut all = Vec::new();
    for (name, _) in logical.iter() {
        let volume = logical.section(name)?;
        // one with the changes of a snapshot is hidden, and shown by the name of that
        if !flags(volume, "status")?.contains(&VISIBLE) && !held.contains_key(name) {
            continue;
        }
        let layout = match held.get(name) {
            Some(why) => Err((*why).to_owned()),
            None => match physical.layout(volume, (own, volumes)) {
                Ok(layout) => Ok(layout),
                Err(Refusal::Unusable { why, .. }) => Err(why),
                Err(other) => return Err(other),
            },
        };
        all.push(LogicalVolume { name: format!("{group_name}/{name}"), layout });
    }
    Ok(all)
}

/// Volumes that are not what their own segments say, because of a snapshot.
fn snapshots<'t>(logical: &Section<'t>) -> HashMap<&'t str, &'static str> {
    let mut held = HashMap::new();
    let volumes = logical.iter().filter_map(|(_, value)| match value {
        Value::Section(volume) => Some(volume),
        _ => None,
    });
    for (_, value) in volumes.flat_map(|volume| volume.iter()) {
        let Value::Section(segment) = value else { continue };
        if segment.text("type").ok() != Some("snapshot") {
            continue;
        }
        if let Ok(name) = segment.text("cow_store") {
            held.insert(name, "it is a snapshot");
        }
        if let Ok(name) = segment.text("merging_store") {
            held.insert(name, "it is a snapshot that is being merged");
            if let Ok(origin) = segment.text("origin") {
                held.insert(origin, "a snapshot is being merged into it");
            }
        }
    }
    held
}

/// The extents of the physical volume.
struct Physical {
    start: u64,
    extent_bytes: u64,
    extents: u64,
}

impl Physical {
    fn read(group: &Section<'_>, own: &Section<'_>, volume_bytes: u64) -> Result<Self, Refusal> {
        if flags(own, "flags")?.contains(&"MISSING") {
            return Err(unusable("it is marked as MISSING: its group went on without it"));
        }
        let bytes = |of: &Section<'_>, name: &str| {
            let bytes = of.number(name)?.checked_mul(SECTOR);
            bytes.ok_or_else(|| unusable(format!("its metadata has a {name} that cannot be")))
        };
        let (start, extent_bytes) = (bytes(own, "pe_start")?, bytes(group, "extent_size")?);
        let extents = own.number("pe_count")?;
        let end = extents.checked_mul(extent_bytes).and_then(|bytes| bytes.checked_add(start));
        if extent_bytes == 0 || end.is_none_or(|end| end > volume_bytes) {
            return Err(unusable(format!(
                "it has {extents} extents of {extent_bytes} bytes, and the volume is smaller"
            )));
        }
        Ok(Self { start, extent_bytes, extents })
    }

    fn layout(
        &self,
        volume: &Section<'_>,
        (own, volumes): (&str, &Section<'_>),
    ) -> Result<Layout, Refusal> {
        check_status(volume, "it", &LOGICAL_STATUS)?;
        let count = volume.number("segment_count")?;
        let mut layout = Layout::empty();
        let mut places = 0;
        for number in 1..=count {
            let segment = volume.section(&format!("segment{number}"))?;
            let kind = segment.text("type")?;
            if kind != "striped" {
                return Err(unusable(format!("it is of kind {kind}")));
            }
            let extents = segment.number("extent_count")?;
            let stripes = segment.number("stripe_count")?;
            let list = segment.list("stripes")?;
            let each = extents.checked_div(stripes).filter(|each| each * stripes == extents);
            let each = each.filter(|_| list.len() as u64 == stripes.saturating_mul(2));
            let each = each.ok_or_else(|| unusable("its stripes do not fit together"))?;
            if segment.number("start_extent")?.checked_mul(self.extent_bytes)
                != Some(layout.bytes())
            {
                return Err(unusable("its segments do not follow each other"));
            }
            places += list.len() / 2;
            if places > RUNS_MAX {
                return Err(unusable("it has too many segments"));
            }
            let starts = self.starts(list, each, (own, volumes))?;
            let stripe_bytes = if stripes > 1 { self.stripe_bytes(segment)? } else { 1 };
            // no overflow: as many extents as lie on it, each at a place of its own
            let bytes = extents.checked_mul(self.extent_bytes).filter(|_| each > 0);
            let bytes = bytes.ok_or_else(|| unusable("a segment of it is empty"))?;
            if layout.bytes().checked_add(bytes).is_none_or(|all| all > i64::MAX.unsigned_abs()) {
                return Err(unusable("it is longer than a volume can be"));
            }
            layout.add(bytes, starts, stripe_bytes);
        }
        Ok(layout)
    }

    fn stripe_bytes(&self, segment: &Section<'_>) -> Result<u64, Refusal> {
        let bytes = segment.number("stripe_size")?.checked_mul(SECTOR);
        let fits = |bytes: &u64| *bytes > 0 && self.extent_bytes.is_multiple_of(*bytes);
        bytes.filter(fits).ok_or_else(|| unusable("the size of its stripes cannot be"))
    }

    /// Where so many extents begin, of each place.
    fn starts(
        &self,
        list: &[Value<'_>],
        each: u64,
        (own, volumes): (&str, &Section<'_>),
    ) -> Result<Vec<u64>, Refusal> {
        let start = |area: &[Value<'_>]| {
            let [Value::Text(name), Value::Number(first)] = area else {
                return Err(unusable("its places make no sense"));
            };
            if *name != own {
                return Err(unusable(match volumes.has(name) {
                    true => format!(
                        "some of it is on another physical volume, {name}, which is not in this \
                         backup"
                    ),
                    false => format!("some of it is in another logical volume, {name}"),
                }));
            }
            let first = u64::try_from(*first).ok();
            let end = first.and_then(|first| first.checked_add(each));
            match (first, end) {
                (Some(first), Some(end)) if end <= self.extents => {
                    Ok(self.start + first * self.extent_bytes)
                }
                _ => Err(unusable("its extents lead outside")),
            }
        };
        list.chunks(2).map(start).collect()
    }
}
