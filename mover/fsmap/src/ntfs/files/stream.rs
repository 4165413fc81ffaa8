//! The value of an attribute: within a record, or in runs of clusters. A long list of runs stands
//! in several records, each with the number of its first cluster.

use super::super::record::{LONG, Record, Run, Runs, name, runs, value};
use super::super::{Boot, attribute};
use super::wrong;
use crate::files::{Piece, Place};
use crate::{Refusal, le16, le32, le64};

/// Flags of an attribute: how it is compressed, if it is; that its bytes are encrypted.
const COMPRESSED: u16 = 0x00ff;
const ENCRYPTED: u16 = 0x4000;
/// A unit of compression has at most so many clusters, as a power of two.
const UNIT_MAX: u8 = 8;
/// In which room is counted.
const SECTOR: u64 = 512;
/// Stretches of one file: 40 bytes each.
const PIECES_MAX: usize = 4 << 20;

/// See the module.
pub(super) struct Stream {
    /// Of the file's record.
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// What is behind this is zero, whatever stands there.
    written: u64,
    /// Room that it takes.
    pub(super) stored: u64,
    flags: u16,
    /// Clusters that are compressed together, if any are.
    unit: u64,
    within: Option<Vec<u8>>,
    /// By their first clusters.
    parts: Vec<(u64, Vec<Run>)>,
}

/// What one record tells of the master file table.
pub(super) fn begin(first: &Record, boot: &Boot) -> Result<Stream, Refusal> {
    let mut stream = Stream::new(first.number());
    stream.add(first, (attribute::DATA, &[]), boot)?;
    Ok(stream)
}

impl Stream {
    pub(super) fn new(number: u64) -> Self {
        let (bytes, written, stored, flags, unit) = Default::default();
        Self { number, bytes, written, stored, flags, unit, within: None, parts: Vec::new() }
    }

    /// Adds what a record tells of it.
    pub(super) fn add(
        &mut self,
        record: &Record,
        (kind, own): (u32, &[u8]),
        boot: &Boot,
    ) -> Result<(), Refusal> {
        let broken = || wrong(self.number, "its attributes do not fit together");
        for one in record.attributes()? {
            if le32(one, 0) != kind || name(one) != Some(own) {
                continue;
            }
            if one[8] == 0 {
                let value = value(one).filter(|_| !self.is_there()).ok_or_else(broken)?;
                (self.bytes, self.flags) = (value.len() as u64, le16(one, 12));
                // a file that takes no room is taken for a hole
                self.stored = self.bytes.next_multiple_of(SECTOR);
                self.within = Some(value.to_vec());
                continue;
            }
            let runs = runs(one, boot).filter(|_| self.within.is_none()).ok_or_else(broken)?;
            let first = le64(one, 16);
            if first == 0 {
                (self.bytes, self.written) = (le64(one, 48), le64(one, 56));
                self.flags = le16(one, 12);
                let packed = self.flags != 0 && one.len() >= LONG + 8;
                self.stored = if packed { le64(one, LONG) } else { le64(one, 40) };
                let unit = one[34];
                if unit > UNIT_MAX || self.written > self.bytes {
                    return Err(broken());
                }
                self.unit = 1 << unit;
            }
            self.parts.push((first, runs));
        }
        Ok(())
    }

    pub(super) fn is_there(&self) -> bool {
        self.within.is_some() || !self.parts.is_empty()
    }

    /// Refuses one of which some clusters are told nowhere.
    pub(super) fn check_whole(&self, boot: &Boot) -> Result<(), Refusal> {
        if self.within.is_some() {
            return Ok(());
        }
        let clusters =
            self.runs()?.iter().try_fold(0_u64, |all, run| all.checked_add(run.clusters));
        let bytes = clusters.and_then(|clusters| clusters.checked_mul(boot.cluster_bytes));
        match bytes.is_some_and(|bytes| bytes >= self.bytes) {
            true => Ok(()),
            false => Err(wrong(self.number, "its runs are shorter than it is")),
        }
    }

    /// Its runs in their order.
    fn runs(&self) -> Result<Vec<Run>, Refusal> {
        let broken = || wrong(self.number, "its runs do not fit together");
        let mut parts: Vec<&(u64, Vec<Run>)> = self.parts.iter().collect();
        parts.sort_unstable_by_key(|(first, _)| *first);
        let (mut all, mut at) = (Vec::new(), 0_u64);
        for (first, runs) in parts {
            if *first != at {
                return Err(broken());
            }
            for run in runs {
                at = at.checked_add(run.clusters).ok_or_else(broken)?;
                all.push(*run);
            }
        }
        Ok(all)
    }

    /// Of the master file table, as far as it is told.
    pub(super) fn own_runs(&self) -> Result<Runs, Refusal> {
        let broken = || wrong(self.number, "its runs do not fit together");
        let runs = self.runs()?;
        let place = |run: &Run| Some(run.start?..run.start?.checked_add(run.clusters)?);
        let clusters: Option<Vec<_>> = runs.iter().map(place).collect();
        let clusters = clusters.ok_or_else(broken)?;
        Ok(Runs { clusters, bytes: self.bytes, written: self.written })
    }

    /// Refuses bytes that are in another form than they are read.
    fn check_plain(&self, runs: &[Run]) -> Result<(), Refusal> {
        if self.flags & ENCRYPTED != 0 {
            return Err(wrong(self.number, "it is encrypted (EFS)"));
        }
        if self.flags & COMPRESSED == 0 {
            return Ok(());
        }
        // a unit that is packed is shorter, and a hole fills it up
        let end: u64 = runs.iter().map(|run| run.clusters).sum();
        let mut at = 0;
        for run in runs {
            let next = at + run.clusters;
            let even =
                at.is_multiple_of(self.unit) && (next.is_multiple_of(self.unit) || next == end);
            if run.start.is_none() && !even {
                return Err(wrong(
                    self.number,
                    "it is compressed (LZNT1): restore or serve the volume to read it",
                ));
            }
            at = next;
        }
        Ok(())
    }

    /// Where its bytes are, as far as its runs are told.
    pub(super) fn pieces(&self, boot: &Boot) -> Result<Vec<Piece>, Refusal> {
        let broken = || wrong(self.number, "its runs do not fit together");
        if let Some(within) = &self.within {
            if self.flags & ENCRYPTED != 0 {
                return Err(wrong(self.number, "it is encrypted (EFS)"));
            }
            return Ok(match within.is_empty() {
                true => Vec::new(),
                false => vec![Piece { range: 0..self.bytes, place: Place::Inline(within.clone()) }],
            });
        }
        let runs = self.runs()?;
        self.check_plain(&runs)?;
        let mut pieces = Pieces::default();
        let mut at = 0_u64;
        for run in &runs {
            let len = run.clusters.checked_mul(boot.cluster_bytes).ok_or_else(broken)?;
            let end = at.checked_add(len).ok_or_else(broken)?;
            let place = run.start.map_or(Place::Hole, |start| {
                // within the volume, as runs are
                Place::Volume(start * boot.cluster_bytes)
            });
            let written = end.min(self.written);
            pieces.add(at, written, place);
            pieces.add(at.max(written), end.min(self.bytes), Place::Hole);
            at = end;
            if pieces.0.len() > PIECES_MAX {
                return Err(wrong(self.number, "it is in too many pieces"));
            }
        }
        Ok(pieces.0)
    }
}

/// Collects pieces that follow each other.
#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn add(&mut self, start: u64, end: u64, place: Place) {
        if start >= end {
            return;
        }
        match (self.0.last_mut(), &place) {
            (Some(Piece { range, place: Place::Hole }), Place::Hole) => range.end = end,
            (Some(Piece { range, place: Place::Volume(at) }), Place::Volume(next))
                if *at + (range.end - range.start) == *next =>
            {
                range.end = end;
            }
            _ => self.0.push(Piece { range: start..end, place }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_within_the_record_take_room() {
        let boot =
            Boot { cluster_bytes: 4096, clusters: 1000, record_bytes: 1024, table: 4, mirror: 2 };
        for (len, stored) in [(0_u8, 0), (5, 512)] {
            let mut bytes = vec![0; 1024];
            bytes[..4].copy_from_slice(b"FILE");
            // three numbers at the ends of sectors, all zero
            (bytes[4], bytes[6], bytes[20], bytes[22], bytes[25]) = (48, 3, 56, 1, 4);
            let attribute = &mut bytes[56..];
            (attribute[0], attribute[4], attribute[16], attribute[20]) = (0x80, 32, len, 24);
            attribute[32..36].fill(0xff);
            let record = Record::parse(bytes, 64).unwrap();
            let stream = begin(&record, &boot).unwrap();
            assert_eq!((stream.bytes, stream.stored), (len.into(), stored));
        }
    }
}
