//! Records of the master file table, and the runs of clusters that their data is in.
//!
//! The last two bytes of each sector of a record are kept in its head, and a number that grows with
//! each write stands in their place: a record that was written only in part has two of these.

use super::{Boot, attribute, unusable};
use crate::{ReadAt, Refusal, field, le16, le32, le64, read};
use std::ops::Range;

/// What such numbers stand at the end of, whatever sectors the device has.
const SECTOR: usize = 512;
/// Attributes begin behind the record's own fields.
const HEAD: usize = 42;
const IN_USE: u16 = 1;
const DIRECTORY: u16 = 2;
/// Of an attribute: what all have, what those have whose value is elsewhere.
const SHORT: usize = 24;
pub(super) const LONG: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Record {
    number: u64,
    bytes: Vec<u8>,
}

/// Clusters of an attribute that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) clusters: u64,
    /// The first one; a hole has none.
    pub(super) start: Option<u64>,
}

impl Run {
    fn range(&self) -> Option<Range<u64>> {
        self.start.map(|start| start..start.saturating_add(self.clusters))
    }
}

/// Where the data of a file is.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) clusters: Vec<Range<u64>>,
    pub(super) bytes: u64,
    /// What is behind this is zero, whatever stands there.
    pub(super) written: u64,
}

/// Puts the bytes back that stand in the head; `None` if they do not fit.
pub(super) fn mend(bytes: &mut [u8]) -> Option<()> {
    let (from, count) = (usize::from(le16(bytes, 4)), usize::from(le16(bytes, 6)));
    let kept = bytes.get(from..from + 2 * count)?.to_vec();
    // they are before the end of the first sector
    if count != bytes.len() / SECTOR + 1 || from + 2 * count > SECTOR - 2 || from < 8 {
        return None;
    }
    let (number, kept) = kept.split_at(2);
    for (sector, kept) in bytes.chunks_exact_mut(SECTOR).zip(kept.chunks_exact(2)) {
        if &sector[SECTOR - 2..] != number {
            return None;
        }
        sector[SECTOR - 2..].copy_from_slice(kept);
    }
    Some(())
}

fn broken(number: u64) -> Refusal {
    unusable(format!("record {number} of its file table is broken"))
}

impl Record {
    /// One at a place of the volume.
    pub(super) fn read(
        volume: &dyn ReadAt,
        at: u64,
        boot: &Boot,
        number: u64,
    ) -> Result<Self, Refusal> {
        let len = usize::try_from(boot.record_bytes).unwrap_or(0);
        Self::parse(read(volume, at, len)?, number)
    }

    /// One that has to be there, and is not the rest of another.
    pub(super) fn parse(bytes: Vec<u8>, number: u64) -> Result<Self, Refusal> {
        match Self::of_file(&bytes, number)? {
            Some(record) if le64(&record.bytes, 32) == 0 => Ok(record),
            _ => Err(broken(number)),
        }
    }

    /// Any; `None` if it is of no file.
    pub(super) fn of_file(bytes: &[u8], number: u64) -> Result<Option<Self>, Refusal> {
        let broken = || broken(number);
        if bytes.starts_with(b"BAAD") {
            return Err(broken());
        }
        if !bytes.starts_with(b"FILE") || le16(bytes, 22) & IN_USE == 0 {
            return Ok(None);
        }
        let mut bytes = bytes.to_vec();
        mend(&mut bytes).ok_or_else(broken)?;
        let used = le32(&bytes, 24) as usize;
        if used > bytes.len() || usize::from(le16(&bytes, 20)) < HEAD {
            return Err(broken());
        }
        bytes.truncate(used);
        Ok(Some(Self { number, bytes }))
    }

    /// Whether two hold the same; how often each was written does not matter.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let parts = |record: &Self| {
            let bytes = &record.bytes;
            let from = usize::from(le16(bytes, 4)).min(bytes.len());
            let to = (from + 2 * usize::from(le16(bytes, 6))).min(bytes.len());
            (bytes[..from].to_vec(), bytes[to..].to_vec())
        };
        parts(self) == parts(other)
    }

    /// The one attribute of a kind that has no name.
    fn attribute(&self, kind: u32) -> Result<&[u8], Refusal> {
        let number = self.number;
        let mut found = None;
        for one in self.attributes()? {
            if le32(one, 0) == attribute::LIST {
                return Err(unusable(format!("record {number} goes on in other records")));
            }
            if le32(one, 0) == kind && one[9] == 0 && found.replace(one).is_some() {
                return Err(self.broken("attributes"));
            }
        }
        found.ok_or_else(|| unusable(format!("record {number} has no attribute {kind:#x}")))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// How often its place was given to another file.
    pub(super) fn sequence(&self) -> u16 {
        le16(&self.bytes, 16)
    }

    /// The record that it is the rest of; 0 of one that is nobody's rest.
    pub(super) fn base(&self) -> u64 {
        le64(&self.bytes, 32)
    }

    pub(super) fn is_directory(&self) -> bool {
        le16(&self.bytes, 22) & DIRECTORY != 0
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn attributes(&self) -> Result<Vec<&[u8]>, Refusal> {
        let broken = || self.broken("attributes");
        let mut rest = self.bytes.get(usize::from(le16(&self.bytes, 20))..).ok_or_else(broken)?;
        let mut all = Vec::new();
        while rest.get(..4).map(|_| le32(rest, 0)).ok_or_else(broken)? != attribute::END {
            let len = le32(rest, 4) as usize;
            let (one, behind) = rest
                .split_at_checked(len)
                .filter(|(one, _)| one.len() >= SHORT && len.is_multiple_of(8))
                .ok_or_else(broken)?;
            all.push(one);
            rest = behind;
        }
        Ok(all)
    }

    fn broken(&self, what: &str) -> Refusal {
        unusable(format!("the {what} of record {} do not fit together", self.number))
    }

    /// All clusters that any of its attributes is in, holes apart.
    pub(super) fn clusters(&self, boot: &Boot) -> Result<Vec<Range<u64>>, Refusal> {
        let mut all = Vec::new();
        for one in self.attributes()?.into_iter().filter(|one| one[8] != 0) {
            let runs = runs(one, boot).ok_or_else(|| self.broken("runs"))?;
            all.extend(runs.iter().filter_map(Run::range));
        }
        Ok(all)
    }

    /// The value of an attribute that stands in the record.
    pub(super) fn value(&self, kind: u32) -> Result<&[u8], Refusal> {
        value(self.attribute(kind)?)
            .ok_or_else(|| unusable(format!("a value of record {} leads outside", self.number)))
    }

    /// Where the data of the file is: plain, in clusters, all of them told in this record.
    pub(super) fn data(&self, boot: &Boot) -> Result<Runs, Refusal> {
        let number = self.number;
        let one = self.attribute(attribute::DATA)?;
        if one.len() < LONG || one[8] != 1 || le16(one, 12) != 0 || le64(one, 16) != 0 {
            let why = format!("the data of record {number} is not plain clusters of its own");
            return Err(unusable(why));
        }
        let broken = || self.broken("runs");
        let runs = runs(one, boot).ok_or_else(broken)?;
        let clusters: Option<Vec<_>> = runs.iter().map(Run::range).collect();
        let clusters = clusters.ok_or_else(broken)?;
        let count =
            clusters.iter().try_fold(0_u64, |all, run| all.checked_add(run.end - run.start));
        let count = count.ok_or_else(broken)?;
        let (last, bytes, written) = (le64(one, 24), le64(one, 48), le64(one, 56));
        let fits = last.checked_add(1) == Some(count)
            && count <= boot.clusters
            && bytes <= count * boot.cluster_bytes
            && written <= bytes;
        if fits { Ok(Runs { clusters, bytes, written }) } else { Err(broken()) }
    }
}

/// What an attribute says, where it stands in the record.
pub(super) fn value(attribute: &[u8]) -> Option<&[u8]> {
    let (from, len) = (usize::from(le16(attribute, 20)), le32(attribute, 16) as usize);
    let value = attribute.get(from..).and_then(|value| value.get(..len));
    value.filter(|_| attribute[8] == 0)
}

/// Its name, in UTF-16. Most have none.
pub(super) fn name(attribute: &[u8]) -> Option<&[u8]> {
    let (from, len) = (usize::from(le16(attribute, 10)), 2 * usize::from(attribute[9]));
    if len == 0 { Some(&[]) } else { attribute.get(from..).and_then(|name| name.get(..len)) }
}

/// Those of an attribute whose value is in clusters.
pub(super) fn runs(attribute: &[u8], boot: &Boot) -> Option<Vec<Run>> {
    let runs = attribute.get(usize::from(le16(attribute, 32))..);
    runs.filter(|_| attribute.len() >= LONG).and_then(|runs| parse(runs, boot))
}

/// Each begins with how many bytes its length and its distance from the one before have. One
/// without a place is a hole.
fn parse(mut rest: &[u8], boot: &Boot) -> Option<Vec<Run>> {
    let mut runs = Vec::new();
    let mut place = 0_i64;
    loop {
        let (head, behind) = rest.split_first()?;
        if *head == 0 {
            return Some(runs);
        }
        let (len, behind) = number(behind, head & 0xf)?;
        let clusters = u64::try_from(len).ok().filter(|len| *len > 0)?;
        if *head >> 4 == 0 {
            runs.push(Run { clusters, start: None });
            rest = behind;
            continue;
        }
        let (distance, behind) = number(behind, head >> 4)?;
        place = place.checked_add(distance)?;
        let start = u64::try_from(place).ok()?;
        start.checked_add(clusters).filter(|end| *end <= boot.clusters)?;
        runs.push(Run { clusters, start: Some(start) });
        rest = behind;
    }
}

/// A signed number of some bytes, and what is behind it.
fn number(bytes: &[u8], len: u8) -> Option<(i64, &[u8])> {
    let (digits, behind) = bytes.split_at_checked(len.into()).filter(|_| (1..=8).contains(&len))?;
    let unused = 64 - 8 * u32::from(len);
    let mut all = [0; 8];
    all[..digits.len()].copy_from_slice(digits);
    Some((i64::from_le_bytes(field(&all, 0)) << unused >> unused, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Boot =
        Boot { cluster_bytes: 4096, clusters: 1000, record_bytes: 1024, table: 4, mirror: 2 };

    #[test]
    fn runs_are_relative_and_may_go_back() {
        let runs = parse(&[0x11, 4, 100, 0x21, 2, 0x2c, 1, 1, 7, 0x11, 1, 0x9c, 0, 9, 9], &BOOT);
        let run = |clusters, start| Run { clusters, start };
        let all = [run(4, Some(100)), run(2, Some(400)), run(7, None), run(1, Some(300))];
        assert_eq!(runs, Some(all.to_vec()));
        assert_eq!(parse(&[0], &BOOT), Some(vec![]));
    }

    #[test]
    fn runs_that_lead_outside_are_none() {
        for bytes in [
            &[0x01, 0, 0][..],
            &[0x01, 0x80, 0],
            &[0x11, 4, 0xff, 0],
            &[0x21, 4, 0xe5, 3, 0],
            &[0x11, 0, 100, 0],
            &[0x11, 0xff, 100, 0],
            &[0x19, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
            &[0x11, 4],
            &[0x11, 4, 100],
            &[],
        ] {
            assert_eq!(parse(bytes, &BOOT), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_record_that_was_written_in_part_is_broken() {
        let mut good = vec![0; 1024];
        good[..4].copy_from_slice(b"FILE");
        good[4..8].copy_from_slice(&[48, 0, 3, 0]);
        good[48..54].copy_from_slice(&[7, 8, 1, 2, 3, 4]);
        for end in [510, 1022] {
            good[end..end + 2].copy_from_slice(&[7, 8]);
        }
        let mut bytes = good.clone();
        assert_eq!(mend(&mut bytes), Some(()));
        assert_eq!((&bytes[510..512], &bytes[1022..]), (&[1, 2][..], &[3, 4][..]));
        for (at, value) in [(1022, 6), (510, 6), (6, 2), (6, 4), (4, 0), (4, 255), (5, 255)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(mend(&mut bytes), None, "{at} {value}");
        }
    }
}
