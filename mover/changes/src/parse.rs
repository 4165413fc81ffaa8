//! Reads a changed-block list of any shape, as a stream.
//!
//! The shape shows in the list itself: an object with `extents` is ours, objects with
//! `block_metadata` are CSI records, and an array has the shape of its first element. The JSON is
//! never held: members go by one at a time, and each range is checked and merged as it comes.
//! Whoever reads a list decides nothing about it here that could lose a change: what is not
//! understood is refused, and where a list leaves room, the bytes in question are read.

mod fields;
mod guard;
mod shapes;

use super::{ChangeKind, ChangedBlocks, ListOrigin};
use chunkstore::{Error, ErrorKind, Result};
use guard::Guard;
use mover_extents::Extents;
use mover_extents::{ExtentsBuilder, sweep};
use mover_tracker::CsiStream;
use serde::de;
use std::fmt;
use std::io::{BufReader, Read};
use std::ops::Range;

/// Most ranges that a list may have after merging, unless the caller says otherwise: 160 MB.
pub const RANGES_MAX_DEFAULT: usize = 10_000_000;

/// Unsorted lists are sorted each time that this part of the limit has come in on top of it.
const UNSORTED_SLACK: usize = 4;

/// `qemu-img` counts in sectors: it may round the end of an odd-sized image up to one.
const QEMU_SECTOR_BYTES: u64 = 512;

/// Longest part of a message that comes from a list, in characters.
const QUOTED_CHARS_MAX: usize = 300;

/// What the caller knows about a list.
#[derive(Debug, Clone)]
pub struct ParseOptions {
    /// What to call it in messages: a path, or "standard input".
    pub name: String,
    /// Size of the volume that is backed up.
    pub volume_bytes: u64,
    /// Kind of a list that does not state it; one that states another is refused. Without it, such
    /// a list is a delta.
    pub kind_override: Option<ChangeKind>,
    /// Most ranges after merging, 16 bytes of memory each.
    pub ranges_max: usize,
}

impl ParseOptions {
    /// For a list called `name`, of a volume of this size; the rest by default.
    pub fn new(name: impl Into<String>, volume_bytes: u64) -> Self {
        let (kind_override, ranges_max) = (None, RANGES_MAX_DEFAULT);
        Self { name: name.into(), volume_bytes, kind_override, ranges_max }
    }
}

/// Reads a list. `Corrupt`: it is not a list, or breaks its protocol. `Usage`: it does not fit this
/// volume, or what was asked for.
pub fn parse_changed_blocks(reader: impl Read, options: &ParseOptions) -> Result<ChangedBlocks> {
    let mut list = List::new(options);
    read(reader, &mut list)?;
    list.finish()
}

fn read(reader: impl Read, list: &mut List<'_>) -> Result<()> {
    const BUFFER_BYTES: usize = 64 << 10;
    let reader = BufReader::with_capacity(BUFFER_BYTES, Guard::new(reader));
    let mut json = serde_json::Deserializer::from_reader(reader);
    read_values(&mut json, list).map_err(|error| list.describe(error))
}

/// Reads a list as what is to be fetched first: its ranges of data in the order in which they
/// stand there, which may overlap. Errors are those of [`parse_changed_blocks`].
pub fn parse_in_order(reader: impl Read, options: &ParseOptions) -> Result<Vec<Range<u64>>> {
    let mut list = List::new(options);
    list.in_order = Some(Vec::new());
    let in_order = read(reader, &mut list).map(|()| list.in_order.take().unwrap_or_default())?;
    let found = list.finish()?;
    // records of a stream are in the volume's order
    Ok(if found.origin == ListOrigin::Csi { found.data.iter().collect() } else { in_order })
}

/// One value, or any number of CSI records one behind the other.
fn read_values<'de, R>(
    json: &mut serde_json::Deserializer<R>,
    list: &mut List<'_>,
) -> std::result::Result<(), serde_json::Error>
where
    R: serde_json::de::Read<'de>,
{
    use serde::de::DeserializeSeed;
    let nothing = match json.end() {
        Ok(()) => true,
        Err(error) if error.is_io() => return Err(error),
        Err(_) => false,
    };
    if nothing {
        let hint = "a list without changes is written []; check the command that wrote this one";
        return Err(list.refuse(ErrorKind::Corrupt, hint, "it is empty"));
    }
    let again = shapes::Top(list).deserialize(&mut *json)?;
    loop {
        match json.end() {
            Ok(()) => return Ok(()),
            Err(error) if error.is_io() => return Err(error),
            Err(_) if again => shapes::Record(list).deserialize(&mut *json)?,
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                let hint = "one file holds one list; check the command that wrote it";
                let what = format!(
                    "something follows behind the end of the list, at line {line}, column {column}"
                );
                list.place = Place::Start;
                return Err(list.refuse(ErrorKind::Corrupt, hint, what));
            }
        }
    }
}

/// Which of the shapes it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Mover,
    Bare,
    Rbd,
    Qemu,
    Csi,
}

/// What a parser is looking at, for messages. Both count from 1.
#[derive(Debug, Clone, Copy)]
enum Place {
    Start,
    /// An element of the array of ranges `.0`.
    Range(&'static str, u64),
    /// A CSI record, and the range within it.
    Record(u64, u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => Ok(()),
            Self::Range(array, number) => write!(f, "{array} {number}"),
            Self::Record(record, 0) => write!(f, "record {record}"),
            Self::Record(record, range) => write!(f, "record {record}, range {range}"),
        }
    }
}

/// A list while it is read.
struct List<'a> {
    options: &'a ParseOptions,
    shape: Option<Shape>,
    place: Place,
    kind: Option<ChangeKind>,
    volume_bytes: Option<u64>,
    data: ExtentsBuilder,
    zero: ExtentsBuilder,
    /// Ranges of data as they come, for whoever wants them so.
    in_order: Option<Vec<Range<u64>>>,
    csi: CsiStream,
    /// Kind and hint of the error on its way up; its text travels with the parser's own error.
    refusal: Option<(ErrorKind, &'static str)>,
    notes: Vec<String>,
}

const HINT_SHAPES: &str = "docs/changed-blocks.md shows the shapes that are understood";
const HINT_OTHER_VOLUME: &str = "the list is of another volume or another time: take it again of the snapshot that is backed up";
const HINT_PROTOCOL: &str =
    "the changed-block tracker broke its protocol: do not use this list; back up without one";

impl<'a> List<'a> {
    fn new(options: &'a ParseOptions) -> Self {
        Self {
            options,
            shape: None,
            place: Place::Start,
            kind: None,
            volume_bytes: None,
            data: ExtentsBuilder::default(),
            zero: ExtentsBuilder::default(),
            in_order: None,
            csi: CsiStream::default(),
            refusal: None,
            notes: Vec::new(),
        }
    }

    /// An error of this kind, on its way through the parser.
    fn refuse<E: de::Error>(
        &mut self,
        kind: ErrorKind,
        hint: &'static str,
        what: impl fmt::Display,
    ) -> E {
        self.refusal = Some((kind, hint));
        E::custom(what)
    }

    /// All of a list has one shape.
    fn enter<E: de::Error>(&mut self, shape: Shape) -> Result<(), E> {
        if *self.shape.get_or_insert(shape) == shape {
            return Ok(());
        }
        Err(self.refuse(
            ErrorKind::Corrupt,
            HINT_SHAPES,
            "it mixes the members of different shapes",
        ))
    }

    /// Adds a range of one of the shapes that promise no order; bounds are checked here.
    fn add<E: de::Error>(&mut self, offset: u64, len: u64, zero: bool) -> Result<(), E> {
        let volume = self.options.volume_bytes;
        let Some(end) = offset.checked_add(len) else {
            let what = format!("offset {offset} and length {len} add up to more than 64 bits hold");
            return Err(self.refuse(ErrorKind::Corrupt, HINT_SHAPES, what));
        };
        let rounded = self.shape == Some(Shape::Qemu)
            && end <= volume.checked_next_multiple_of(QEMU_SECTOR_BYTES).unwrap_or(volume);
        if end > volume && !(offset < volume && rounded) {
            let what = format!(
                "bytes {offset} to {end} reach behind the end of the volume, which has {volume} bytes"
            );
            return Err(self.refuse(ErrorKind::Usage, HINT_OTHER_VOLUME, what));
        }
        let builder = if zero { &mut self.zero } else { &mut self.data };
        builder.push(offset..end.min(volume));
        if let Some(in_order) = self.in_order.as_mut().filter(|_| !zero) {
            in_order.push(offset..end.min(volume));
            if in_order.len() > self.options.ranges_max {
                let what = format!("it has more than {} ranges", self.options.ranges_max);
                return Err(self.refuse(ErrorKind::Usage, "give a shorter list", what));
            }
        }
        self.check_room()
    }

    /// Adds the next range of a CSI stream; bounds are checked when the capacity is known.
    fn add_csi<E: de::Error>(&mut self, offset: u64, len: u64) -> Result<(), E> {
        match self.csi.range(offset, len) {
            Ok(range) => self.data.push(range),
            Err(what) => return Err(self.refuse(ErrorKind::Corrupt, HINT_PROTOCOL, what)),
        }
        self.check_room()
    }

    fn check_room<E: de::Error>(&mut self) -> Result<(), E> {
        let max = self.options.ranges_max;
        let held = |list: &Self| list.data.held() + list.zero.held();
        let unsorted = self.data.is_unsorted() || self.zero.is_unsorted();
        let slack = if unsorted { max / UNSORTED_SLACK } else { 0 };
        if held(self) <= max.saturating_add(slack) {
            return Ok(());
        }
        self.data.compact();
        self.zero.compact();
        if held(self) <= max {
            return Ok(());
        }
        let hint = "give it more memory, use a coarser list, or back up without one";
        let what = format!(
            "it has more than {max} ranges that do not touch, which memory does not allow for"
        );
        Err(self.refuse(ErrorKind::Usage, hint, what))
    }

    /// The end of one CSI record.
    fn end_record<E: de::Error>(&mut self, fields: shapes::CsiFields) -> Result<(), E> {
        if fields.may_miss_ranges() {
            let what = "block_metadata is missing, and a member that is not known may stand for it";
            return Err(self.refuse(ErrorKind::Corrupt, HINT_SHAPES, what));
        }
        let block_type = fields.block_type.flatten();
        let capacity = fields.capacity_bytes.unwrap_or(0);
        self.csi
            .end_message(block_type, capacity)
            .map_err(|what| self.refuse(ErrorKind::Corrupt, HINT_PROTOCOL, what))
    }

    /// All was read: what the ranges mean as a whole.
    fn finish(mut self) -> Result<ChangedBlocks> {
        let shape = self.shape.unwrap_or(Shape::Bare);
        let kind = self.decide_kind(shape)?;
        if shape == Shape::Csi {
            self.fit_csi_to_volume()?;
        }
        let volume_bytes = match shape {
            Shape::Csi => self.csi.capacity_bytes(),
            _ => self.volume_bytes,
        };
        let mut data = std::mem::take(&mut self.data).finish();
        data.clamp(self.options.volume_bytes);
        let mut zero = std::mem::take(&mut self.zero).finish();
        // reading is always right, so data wins
        if !zero.is_disjoint(&data) {
            zero = zero.subtract(&data);
        }
        if shape == Shape::Qemu || kind == ChangeKind::Whole {
            self.check_cover(&data, &zero)?;
        }
        if kind == ChangeKind::Allocated && data.is_empty() {
            self.notes.push(format!(
                "{} names no allocated block: the whole volume counts as zero",
                self.options.name
            ));
        }
        let origin = match shape {
            Shape::Mover => ListOrigin::Mover,
            Shape::Bare => ListOrigin::Extents,
            Shape::Rbd => ListOrigin::Rbd,
            Shape::Qemu => ListOrigin::Qemu,
            Shape::Csi => ListOrigin::Csi,
        };
        let (contexts, notes) = (Vec::new(), self.notes);
        Ok(ChangedBlocks { kind, origin, volume_bytes, data, zero, contexts, notes })
    }

    fn decide_kind(&self, shape: Shape) -> Result<ChangeKind> {
        // an image's map says what is allocated, never what changed
        let stated = if shape == Shape::Qemu { Some(ChangeKind::Allocated) } else { self.kind };
        match (stated, self.options.kind_override) {
            (Some(stated), Some(asked)) if stated != asked => Err(self
                .error(
                    ErrorKind::Usage,
                    format!("it is {}, not {}, as asked for", stated.as_str(), asked.as_str()),
                )
                .hint("leave the kind out, or give a list of the kind that is wanted")),
            (stated, asked) => Ok(stated.or(asked).unwrap_or(ChangeKind::Delta)),
        }
    }

    /// A CSI capacity that is not the device's size: a device may be larger than its snapshot,
    /// never smaller.
    fn fit_csi_to_volume(&mut self) -> Result<()> {
        let device = self.options.volume_bytes;
        let Some(capacity) = self.csi.capacity_bytes() else { return Ok(()) };
        if capacity > device {
            let what = format!(
                "volume_capacity_bytes is {capacity}, but the device has only {device} bytes"
            );
            return Err(self.error(ErrorKind::Usage, what).hint(HINT_OTHER_VOLUME));
        }
        if capacity < device {
            self.notes.push(format!(
                "{} is of a volume of {capacity} bytes; the {} bytes that the device has behind that are read as well",
                self.options.name,
                device - capacity
            ));
            self.data.push(capacity..device);
        }
        Ok(())
    }

    /// Nothing may be left out of a list that claims to name every byte.
    fn check_cover(&self, data: &Extents, zero: &Extents) -> Result<()> {
        let all = std::iter::once(0..self.options.volume_bytes);
        let named = sweep(data.iter(), zero.iter(), |data, zero| data || zero);
        match sweep(all, named, |all, named| all && !named).next() {
            None => Ok(()),
            Some(gap) => Err(self
                .error(
                    ErrorKind::Usage,
                    format!(
                        "it must name every byte of the volume, but says nothing of bytes {} to {}",
                        gap.start, gap.end
                    ),
                )
                .hint(HINT_OTHER_VOLUME)),
        }
    }

    fn error(&self, kind: ErrorKind, what: impl Into<String>) -> Error {
        Error::new(kind, format!("read changed-block list {}", self.options.name), what)
    }

    /// The one clear message: the list, the place in it, what is wrong there, what to do.
    fn describe(&self, error: serde_json::Error) -> Error {
        use serde_json::error::Category;
        let category = error.classify();
        if category == Category::Io {
            let error = std::io::Error::from(error);
            return match error.kind() {
                std::io::ErrorKind::InvalidData => {
                    self.error(ErrorKind::Corrupt, error.to_string()).hint(HINT_SHAPES)
                }
                _ => self.error(ErrorKind::Device, "reading it failed").caused_by(error),
            };
        }
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
        let text: String = text.chars().take(QUOTED_CHARS_MAX).collect();
        let default_hint = match category {
            Category::Eof => "it was cut off: write it again",
            _ => HINT_SHAPES,
        };
        let (kind, hint) = self.refusal.unwrap_or((ErrorKind::Corrupt, default_hint));
        let what = match category {
            Category::Eof => format!("it ends in the middle ({text})"),
            Category::Syntax if self.refusal.is_none() => format!("it is not JSON ({text})"),
            _ => text,
        };
        let mut place = self.place.to_string();
        if line > 0 {
            let separator = if place.is_empty() { "" } else { ", " };
            place += &format!("{separator}line {line}, column {column}");
        }
        let separator = if place.is_empty() { "" } else { ": " };
        self.error(kind, format!("{place}{separator}{what}")).hint(hint)
    }
}

#[cfg(test)]
mod tests;
