//! The shapes, as visitors that hand each range to the [`List`] as it goes by.
//!
//! Members that a tool may add to a range or to a CSI record are skipped: what they could mean
//! costs at most a needless read. That holds only where nothing is missing that they could stand
//! for: a range that has no offset, or a record that has no ranges, and a member that is not known
//! instead, are refused. So are such members of our own object: they could hold ranges.

use super::fields::{BlockType, Flag, Key, KindName, Num, set};
use super::{HINT_OTHER_VOLUME, HINT_SHAPES, List, Place, Shape};
use chunkstore::ErrorKind;
use mover_tracker::BlockMetadataType;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Fields of a CSI record beside its ranges.
#[derive(Default)]
pub(super) struct CsiFields {
    pub(super) block_type: Option<Option<BlockMetadataType>>,
    pub(super) capacity_bytes: Option<u64>,
    ranges: Option<()>,
    /// It has a member that is not known, which may be its ranges under another name.
    pub(super) unknown: bool,
}

impl CsiFields {
    /// Whether it may have ranges that were not seen: a record without changes is written without
    /// them, and nothing else is in it then.
    pub(super) fn may_miss_ranges(&self) -> bool {
        self.ranges.is_none() && self.unknown
    }

    /// Takes the value of one of the members of a record.
    fn take<'de, A: MapAccess<'de>>(
        &mut self,
        key: &Key,
        list: &mut List<'_>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        list.enter(Shape::Csi)?;
        match key {
            Key::BlockMetadataType => {
                set(map, &mut self.block_type, "block_metadata_type", BlockType)
            }
            Key::VolumeCapacityBytes => {
                let name = "volume_capacity_bytes";
                set(map, &mut self.capacity_bytes, name, Num(name))
            }
            _ => set(map, &mut self.ranges, "block_metadata", CsiRanges(list)),
        }
    }
}

fn is_csi(key: &Key) -> bool {
    matches!(key, Key::BlockMetadataType | Key::VolumeCapacityBytes | Key::BlockMetadata)
}

/// The whole list. Its value: whether more records may follow.
pub(super) struct Top<'l, 'o>(pub(super) &'l mut List<'o>);

impl<'de> DeserializeSeed<'de> for Top<'_, '_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a changed-block list: an array or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        let mut number = 0;
        while seq.next_element_seed(Element { list: self.0, number: number + 1 })?.is_some() {
            number += 1;
        }
        self.0.shape.get_or_insert(Shape::Bare);
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        read_object(self.0, map)?;
        Ok(self.0.shape == Some(Shape::Csi))
    }
}

/// A further CSI record behind the first.
pub(super) struct Record<'l, 'o>(pub(super) &'l mut List<'o>);

impl<'de> DeserializeSeed<'de> for Record<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        if let Place::Record(record, _) = self.0.place {
            self.0.place = Place::Record(record + 1, 0);
        }
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Record<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another record")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        read_object(self.0, map)
    }
}

/// An object that is not an element of an array: our own shape, or a CSI record.
fn read_object<'de, A: MapAccess<'de>>(list: &mut List<'_>, mut map: A) -> Result<(), A::Error> {
    let mut csi = CsiFields::default();
    let (mut extents, mut zero, mut unknown) = (None, None, false);
    while let Some(key) = map.next_key::<Key>()? {
        match key {
            key if is_csi(&key) => {
                if matches!(list.place, Place::Start) {
                    list.place = Place::Record(1, 0);
                }
                csi.take(&key, list, &mut map)?;
            }
            Key::VolumeSize => {
                list.enter(Shape::Mover)?;
                set(&mut map, &mut list.volume_bytes, "volume_size", Num("volume_size"))?;
                check_volume_size(list)?;
            }
            Key::Kind => {
                list.enter(Shape::Mover)?;
                set(&mut map, &mut list.kind, "kind", KindName)?;
            }
            Key::Extents => {
                list.enter(Shape::Mover)?;
                set(&mut map, &mut extents, "extents", Ranges { list, zero: false })?;
            }
            Key::Zero => {
                list.enter(Shape::Mover)?;
                set(&mut map, &mut zero, "zero", Ranges { list, zero: true })?;
            }
            _ => {
                unknown = true;
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    csi.unknown = unknown;
    match list.shape {
        Some(Shape::Csi) => list.end_record(csi),
        Some(Shape::Mover) if unknown => {
            let what = "it has a member that is none of volume_size, kind, extents, zero";
            Err(list.refuse(ErrorKind::Corrupt, HINT_SHAPES, what))
        }
        Some(Shape::Mover) if extents.is_some() => Ok(()),
        _ => {
            Err(list.refuse(ErrorKind::Corrupt, HINT_SHAPES, "it is an object without \"extents\""))
        }
    }
}

fn check_volume_size<E: de::Error>(list: &mut List<'_>) -> Result<(), E> {
    let device = list.options.volume_bytes;
    match list.volume_bytes {
        Some(size) if size != device => {
            let what = format!("volume_size is {size}, but the volume has {device} bytes");
            Err(list.refuse(ErrorKind::Usage, HINT_OTHER_VOLUME, what))
        }
        _ => Ok(()),
    }
}

/// An array of ranges in our own shape.
struct Ranges<'l, 'o> {
    list: &'l mut List<'o>,
    zero: bool,
}

impl<'de> DeserializeSeed<'de> for Ranges<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Ranges<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of ranges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let array = if self.zero { "zero range" } else { "extent" };
        let mut number = 1;
        loop {
            self.list.place = Place::Range(array, number);
            match seq.next_element_seed(Fields(self.list))? {
                None => break,
                Some(fields) => fields.end_own(self.list, self.zero)?,
            }
            number += 1;
        }
        self.list.place = Place::Start;
        Ok(())
    }
}

/// An element of a top-level array: a range of some shape, or a CSI record.
struct Element<'l, 'o> {
    list: &'l mut List<'o>,
    number: u64,
}

impl<'de> DeserializeSeed<'de> for Element<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        self.list.place = match self.list.shape {
            Some(Shape::Csi) => Place::Record(self.number, 0),
            _ => Place::Range("range", self.number),
        };
        let fields = Fields(self.list).deserialize(d)?;
        fields.end_element(self.list)
    }
}

/// Reads the members of a range or record.
struct Fields<'l, 'o>(&'l mut List<'o>);

impl<'de> DeserializeSeed<'de> for Fields<'_, '_> {
    type Value = Members;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Members, D::Error> {
        d.deserialize_any(self)
    }
}

/// Members that a range of any shape may have.
#[derive(Default)]
struct Members {
    offset: Option<u64>,
    length: Option<u64>,
    start: Option<u64>,
    exists: Option<bool>,
    zero_out: Option<bool>,
    data: Option<bool>,
    zero: Option<bool>,
    csi: Option<CsiFields>,
    unknown: bool,
}

impl<'de> Visitor<'de> for Fields<'_, '_> {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a range, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut m = Members::default();
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::Offset => set(&mut map, &mut m.offset, "offset", Num("offset"))?,
                Key::Length => set(&mut map, &mut m.length, "length", Num("length"))?,
                Key::Start => set(&mut map, &mut m.start, "start", Num("start"))?,
                Key::Exists => set(&mut map, &mut m.exists, "exists", Flag("exists"))?,
                Key::ZeroOut => set(&mut map, &mut m.zero_out, "zero_out", Flag("zero_out"))?,
                Key::Data => set(&mut map, &mut m.data, "data", Flag("data"))?,
                Key::Zero => set(&mut map, &mut m.zero, "zero", Flag("zero"))?,
                key if is_csi(&key) => {
                    if let Place::Range("range", number) = self.0.place {
                        self.0.place = Place::Record(number, 0);
                    }
                    m.csi.get_or_insert_default().take(&key, self.0, &mut map)?;
                }
                _ => {
                    m.unknown = true;
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(m)
    }
}

impl Members {
    /// Of an element of a top-level array: its shape, which must be that of the first.
    fn end_element<E: de::Error>(self, list: &mut List<'_>) -> Result<(), E> {
        let shape = match &self {
            Self { csi: Some(_), .. } => Shape::Csi,
            Self { start: Some(_), .. } => Shape::Qemu,
            Self { exists: Some(_), .. } => Shape::Rbd,
            _ => Shape::Bare,
        };
        if list.shape == Some(Shape::Csi) && shape == Shape::Bare && self.offset.is_none() {
            // a record with all its fields left out, which the stream's own check refuses
            return list.end_record(CsiFields::default());
        }
        list.enter(shape)?;
        match (shape, self.data, self.zero) {
            (Shape::Csi, ..) => {
                let named = self.offset.is_some() || self.length.is_some();
                let unknown = self.unknown || named;
                list.end_record(CsiFields { unknown, ..self.csi.unwrap_or_default() })
            }
            // unallocated without a promise to read as zero: reading it is always right
            (Shape::Qemu, Some(_), Some(zero)) => self.add(list, self.start, "start", zero),
            (Shape::Qemu, ..) => Err(missing(list, "data or zero")),
            (Shape::Rbd, ..) => self.add(list, self.offset, "offset", self.exists == Some(false)),
            _ => self.add(list, self.offset, "offset", self.zero_out == Some(true)),
        }
    }

    /// Of an element of one of our own arrays.
    fn end_own<E: de::Error>(self, list: &mut List<'_>, zero: bool) -> Result<(), E> {
        self.add(list, self.offset, "offset", zero || self.zero_out == Some(true))
    }

    fn add<E: de::Error>(
        &self,
        list: &mut List<'_>,
        start: Option<u64>,
        start_name: &str,
        zero: bool,
    ) -> Result<(), E> {
        let Some(start) = start else { return Err(missing(list, start_name)) };
        let Some(length) = self.length else { return Err(missing(list, "length")) };
        list.add(start, length, zero)
    }
}

fn missing<E: de::Error>(list: &mut List<'_>, name: &str) -> E {
    list.refuse(ErrorKind::Corrupt, HINT_SHAPES, format!("{name} is missing"))
}

/// The ranges of a CSI record; `null` stands for none.
struct CsiRanges<'l, 'o>(&'l mut List<'o>);

impl<'de> DeserializeSeed<'de> for CsiRanges<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CsiRanges<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of ranges for block_metadata")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Place::Record(record, _) = self.0.place else {
            return Err(de::Error::custom("block_metadata is not part of a record"));
        };
        let mut number = 1;
        loop {
            self.0.place = Place::Record(record, number);
            match seq.next_element_seed(CsiRange)? {
                None => break,
                Some((offset, len)) => self.0.add_csi(offset, len)?,
            }
            number += 1;
        }
        self.0.place = Place::Record(record, 0);
        Ok(())
    }
}

/// One range of a CSI record; a field that is left out is 0.
struct CsiRange;

impl<'de> DeserializeSeed<'de> for CsiRange {
    type Value = (u64, u64);

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(u64, u64), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CsiRange {
    type Value = (u64, u64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a range, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(u64, u64), A::Error> {
        let (mut offset, mut size, mut unknown) = (None, None, false);
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::ByteOffset => set(&mut map, &mut offset, "byte_offset", Num("byte_offset"))?,
                Key::SizeBytes => set(&mut map, &mut size, "size_bytes", Num("size_bytes"))?,
                _ => {
                    unknown = true;
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if offset.is_none() && unknown {
            let what = "byte_offset is missing, and a member that is not known may stand for it";
            return Err(de::Error::custom(what));
        }
        Ok((offset.unwrap_or(0), size.unwrap_or(0)))
    }
}
