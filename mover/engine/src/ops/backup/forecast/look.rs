//! The sample of a forecast: some of the units that a run would read are read now, compared with
//! the parent and looked up in the repository as a run would do it, and what is new of them is
//! compressed.
//!
//! Units are picked evenly over what is to be read, so that each stands for as many bytes. Where
//! there are few, all of them are looked at, and the figures are exact but for the order in which
//! chunks come. Otherwise the range is three standard errors wide to either side, and never
//! narrower than what so few units could have missed.

use super::elsewhere::Elsewhere;
use super::{Asking, Spread};
use crate::ingest::bounds::Bounds;
use crate::ingest::compression::{CompressionChoice, levels};
use crate::ingest::units::count_groups;
use crate::volume::device::Source;
use crate::volume::io::Arena;
use crate::volume::sample::places;
use chunkstore::{
    ChunkId, ChunkNo, Compression, Geometry, MapReader, Result, Sealer, VolumeMap, is_zero,
    map::{PageSet, ReadLimits},
    repository::DamagedSet,
};
use mover_changes::BackupPlan;
use mover_extents::Extents;
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Units that are looked at.
const UNITS: u64 = 64;
/// Of a level that works off a few MiB a second.
const UNITS_STRONG: u64 = 16;
const STRONG_LEVEL: i32 = 6;
/// A sample of n units without a single hit may have missed a share of so many n-ths, with a chance
/// of 5% at most.
const UNSEEN: f64 = 3.0;
/// Standard errors to either side.
const ERRORS: f64 = 3.0;
/// A chunk in a segment and a pack's directory, at least, about and at most; a chunk in a map page,
/// about and at most; and what a run stores besides.
const CHUNK_BYTES: [u64; 3] = [60, 100, 160];
const CHILD_BYTES: [u64; 2] = [46, 54];
const AROUND_BYTES: [u64; 2] = [256, 64 << 10];
/// Of what is compressed: entries are cut a little differently in a run.
const SLACK_PERCENT: u64 = 3;

/// What was looked at. Bytes are of the volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LookedAt {
    /// Read units that were looked at.
    pub units: u64,
    /// About so many there are.
    pub of_units: u64,
    /// Bytes of theirs that a run would look at.
    pub bytes: u64,
    /// Zero.
    pub zero_bytes: u64,
    /// As in the parent.
    pub unchanged_bytes: u64,
    /// The same as another chunk of the sample.
    pub repeated_bytes: u64,
    /// Stored already, of another volume or an older backup.
    pub reused_bytes: u64,
    /// New.
    pub new_bytes: u64,
    /// What the new ones compress to, at the level that a run starts with.
    pub packed_bytes: u64,
}

/// What is needed to look.
pub(super) struct Look<'a> {
    pub(super) asking: &'a Asking<'a>,
    pub(super) source: &'a Source,
    pub(super) geometry: Geometry,
    pub(super) damaged: &'a DamagedSet,
}

/// Shares of one unit.
#[derive(Debug, Clone, Copy)]
struct Shares {
    bytes: f64,
    new: f64,
    repeated: f64,
    /// At the weakest level, the first, the strongest.
    packed: [f64; 3],
}

/// Compresses at the weakest level, the first, the strongest.
struct Packer {
    sealer: Sealer,
    levels: [Compression; 3],
}

impl Packer {
    fn is_fixed(&self) -> bool {
        self.levels == [self.levels[1]; 3]
    }

    /// How many units may be looked at in a few seconds.
    fn units(&self) -> u64 {
        match self.levels[1] {
            Compression::Zstd(level) if level > STRONG_LEVEL => UNITS_STRONG,
            _ => UNITS,
        }
    }

    fn len(&mut self, level: usize, plain: &[u8]) -> Result<u64> {
        if plain.is_empty() {
            return Ok(0);
        }
        self.sealer.set_compression(self.levels[level])?;
        self.sealer.packed_len(plain)
    }
}

/// What a chunk may be beside new: in the sample before, or stored of another volume.
struct Known<'s, 'a> {
    seen: HashSet<ChunkId>,
    stored: &'s mut Elsewhere<'a>,
}

/// What came of looking.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) looked: LookedAt,
    units: Vec<Shares>,
    reading: Duration,
    working: Duration,
    /// Some of what counts as new may be stored already.
    unknown: bool,
}

/// What is new and what is stored of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    pub(super) new: Spread,
    pub(super) stored: Spread,
}

impl Look<'_> {
    pub(super) fn at(
        &self,
        plan: &BackupPlan,
        parent: Option<VolumeMap>,
        stored: &mut Elsewhere<'_>,
        bounds: &Bounds,
        compression: CompressionChoice,
    ) -> Result<Looked> {
        let read: Extents = plan.read.iter().cloned().collect();
        let group = u64::from(bounds.slot_bytes / self.geometry.chunk().bytes()).max(1);
        let of_units = count_groups(&plan.read, group);
        let levels = levels(compression);
        let mut packer = Packer { sealer: Sealer::new(levels[1])?, levels };
        let units = packer.units();
        let wanted: BTreeSet<u64> = if of_units <= units {
            plan.read.iter().flat_map(|r| r.start / group..r.end.div_ceil(group)).collect()
        } else {
            places(&read, units).into_iter().map(|chunk| chunk / group).collect()
        };
        let limits = ReadLimits::within(bounds.map_read_bytes);
        let mut reader = parent
            .map(|map| MapReader::with_limits(Arc::clone(self.asking.repo), map, limits))
            .transpose()?;
        if let Some(reader) = &mut reader {
            reader.skip_damaged(self.damaged.clone());
        }
        let mut looked = Looked::default();
        looked.looked.of_units = of_units;
        // page-aligned, so that it is read without a copy, as in a run
        let mut buffer = Arena::new(1, bounds.slot_bytes as usize)?.take_wait();
        let mut known = Known { seen: HashSet::new(), stored };
        for group_no in wanted {
            self.asking.run.cancel.check()?;
            let within = Extents::of(group_no * group..(group_no + 1) * group);
            let unit = within.intersect(&read).into_vec();
            let pages = match &mut reader {
                Some(reader) => self.pages(reader, &unit)?,
                None => None,
            };
            self.unit(&unit, pages.as_ref(), &mut buffer, &mut known, &mut packer, &mut looked)?;
        }
        looked.unknown = known.stored.unknown;
        Ok(looked)
    }

    /// The parent's pages there, as far as it had the chunks.
    fn pages(&self, reader: &mut MapReader, unit: &[Range<u64>]) -> Result<Option<PageSet>> {
        let had = Extents::of(0..reader.map().geometry().chunks());
        let unit: Extents = unit.iter().cloned().collect();
        let there = unit.intersect(&had).into_vec();
        if there.is_empty() {
            return Ok(None);
        }
        let pages = self.asking.wait(reader.load(&there))?;
        drop(reader.take_lost());
        Ok(Some(pages))
    }

    fn unit(
        &self,
        unit: &[Range<u64>],
        pages: Option<&PageSet>,
        buffer: &mut [u8],
        known: &mut Known<'_, '_>,
        packer: &mut Packer,
        looked: &mut Looked,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (unit.first(), unit.last()) else { return Ok(()) };
        let start = self.geometry.offset(ChunkNo(first.start));
        let last = ChunkNo(last.end - 1);
        let end = self.geometry.offset(last) + u64::from(self.geometry.len(last));
        let bytes = &mut buffer[..usize::try_from(end - start).unwrap_or(0)];
        let since = Instant::now();
        self.source.read_exact_at(bytes, start)?;
        looked.reading += since.elapsed();
        let (since, waited) = (Instant::now(), known.stored.waited);
        let mut at = LookedAt::default();
        let mut fresh = Vec::new();
        for chunk in unit.iter().cloned().flatten().map(ChunkNo) {
            let len = self.geometry.len(chunk) as usize;
            let from = usize::try_from(self.geometry.offset(chunk) - start).unwrap_or(0);
            let chunk_bytes = &bytes[from..from + len];
            let kind = self.kind(chunk, chunk_bytes, pages, known, &mut at)?;
            *kind += len as u64;
            at.bytes += len as u64;
            if at.new_bytes > fresh.len() as u64 {
                fresh.extend_from_slice(chunk_bytes);
            }
        }
        let first = packer.len(1, &fresh)?;
        looked.working += since.elapsed().saturating_sub(known.stored.waited - waited);
        let packed = match packer.is_fixed() {
            true => [first; 3],
            false => [packer.len(0, &fresh)?, first, packer.len(2, &fresh)?],
        };
        let share = |n: u64| float(n) / float(at.bytes.max(1));
        looked.units.push(Shares {
            bytes: float(at.bytes),
            new: share(at.new_bytes),
            repeated: share(at.repeated_bytes),
            packed: packed.map(share),
        });
        let sum = &mut looked.looked;
        sum.units += 1;
        sum.bytes += at.bytes;
        sum.zero_bytes += at.zero_bytes;
        sum.unchanged_bytes += at.unchanged_bytes;
        sum.repeated_bytes += at.repeated_bytes;
        sum.reused_bytes += at.reused_bytes;
        sum.new_bytes += at.new_bytes;
        sum.packed_bytes += first;
        Ok(())
    }

    /// Where the bytes of a chunk count.
    fn kind<'c>(
        &self,
        chunk: ChunkNo,
        bytes: &[u8],
        pages: Option<&PageSet>,
        known: &mut Known<'_, '_>,
        at: &'c mut LookedAt,
    ) -> Result<&'c mut u64> {
        if is_zero(bytes) {
            return Ok(&mut at.zero_bytes);
        }
        let id = self.asking.repo.keys().chunk_id(bytes);
        let had = pages.filter(|p| chunk.0 < p.map().geometry().chunks());
        let there = had.map(|pages| pages.chunk(chunk)).transpose()?.flatten();
        let sound = there.filter(|t| !self.damaged.covers(&t.location));
        Ok(match sound {
            Some(there) if there.id == id => &mut at.unchanged_bytes,
            _ if !known.seen.insert(id) => &mut at.repeated_bytes,
            _ if known.stored.has(&id)? => &mut at.reused_bytes,
            _ => &mut at.new_bytes,
        })
    }
}

impl Looked {
    /// Of so many bytes that are to be read.
    ///
    /// `leaves`: leaf pages of the map that the run touches, of `fanout` children each; all of
    /// those that change are stored anew.
    pub(super) fn estimate(
        &self,
        read_bytes: u64,
        geometry: Geometry,
        (leaves, fanout): (u64, u16),
    ) -> Estimate {
        let new = self.spread(|u| u.new);
        let repeated = self.mean(|u| u.repeated);
        let all = self.is_all();
        let weak = self.spread(|u| u.packed[0]);
        let first = self.spread(|u| u.packed[1]);
        let strong = self.spread(|u| u.packed[2]);
        // where data repeats itself, a sample does not see how often
        let unique = if (repeated > 0.0 && !all) || self.unknown { 0.0 } else { 1.0 };
        let again = if all { 0.0 } else { repeated };
        let of = |share: f64| scale(read_bytes, share);
        let new = Spread {
            low: of(new[0] * unique),
            about: of(new[1]),
            high: of((new[2] + again).min(1.0)),
        };
        let chunks = |bytes: u64| bytes.div_ceil(u64::from(geometry.chunk().bytes()));
        let [least, around, most] = CHUNK_BYTES;
        let [child, child_most] = CHILD_BYTES;
        let page = |child: u64| u64::from(fanout) * child;
        let changed = leaves.min(chunks(new.about));
        let low = of(strong[0] * unique);
        let high = of(weak[2] + again);
        let stored = Spread {
            low: low - low / 100 * SLACK_PERCENT + chunks(new.low) * least,
            about: of(first[1])
                + chunks(new.about) * around
                + changed * page(child)
                + AROUND_BYTES[0] * u64::from(new.about > 0),
            high: high
                + high / 100 * SLACK_PERCENT
                + chunks(new.high) * most
                + (leaves + leaves.div_ceil(u64::from(fanout.max(1)))) * page(child_most)
                + AROUND_BYTES[1],
        };
        Estimate { new, stored }
    }

    /// Bytes a second that the device gives or that so many threads work off, whichever is less.
    pub(super) fn rate(&self, threads: usize) -> f64 {
        let per_second = |time: Duration| float(self.looked.bytes) / time.as_secs_f64().max(1e-9);
        let working = per_second(self.working) * float(threads as u64);
        per_second(self.reading).min(working).max(1.0)
    }

    fn is_all(&self) -> bool {
        self.looked.units >= self.looked.of_units
    }

    /// Each unit stands for as many bytes; all of them, for its own.
    fn mean(&self, of: impl Fn(&Shares) -> f64) -> f64 {
        let weight = |u: &Shares| if self.is_all() { u.bytes } else { 1.0 };
        let sum: f64 = self.units.iter().map(|u| of(u) * weight(u)).sum();
        let weights: f64 = self.units.iter().map(weight).sum();
        sum / weights.max(1e-9)
    }

    /// At least, most likely, at most.
    fn spread(&self, of: impl Fn(&Shares) -> f64 + Copy) -> [f64; 3] {
        let mean = self.mean(of);
        if self.is_all() {
            return [mean; 3];
        }
        let n = float(self.units.len().max(1) as u64);
        let variance = self.mean(|u| (of(u) - mean).powi(2));
        let margin = ERRORS * (variance / n).sqrt() + UNSEEN / n;
        [(mean - margin).max(0.0), mean, (mean + margin).min(1.0)]
    }
}

#[allow(clippy::cast_precision_loss)] // 53 bits are more than an estimate has
pub(super) fn float(n: u64) -> f64 {
    n as f64
}

/// A share, of 0 to somewhat above 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates
fn scale(bytes: u64, share: f64) -> u64 {
    (float(bytes) * share) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::ChunkSize;

    fn looked(of_units: u64, new: &[f64]) -> Looked {
        let shares = |new: &f64| Shares {
            bytes: 1048576.0,
            new: *new,
            repeated: 0.0,
            packed: [new / 2.0, new / 2.5, new / 4.0],
        };
        let units: Vec<Shares> = new.iter().map(shares).collect();
        let looked = LookedAt { units: units.len() as u64, of_units, ..LookedAt::default() };
        Looked { looked, units, ..Looked::default() }
    }

    #[test]
    fn all_that_was_looked_at_is_exact_and_a_sample_is_not() {
        let geometry = Geometry::new(1 << 40, ChunkSize::new(65536).unwrap()).unwrap();
        let all = looked(4, &[1.0, 0.0, 0.5, 0.5]).estimate(4 << 20, geometry, (1, 128));
        assert_eq!(all.new, Spread { low: 2 << 20, about: 2 << 20, high: 2 << 20 });
        assert!(all.stored.low < 600 << 10 && all.stored.high > 1 << 20, "{all:?}");
        let some = looked(4000, &[1.0, 0.0, 0.5, 0.5]).estimate(4 << 30, geometry, (512, 128));
        assert!(some.new.low == 0 && some.new.about == 2 << 30 && some.new.high == 4 << 30);
        // nothing was seen: that does not mean that there is nothing
        let none = looked(4000, &[0.0; 64]).estimate(64 << 30, geometry, (8192, 128));
        assert_eq!((none.new.low, none.new.about, none.new.high), (0, 0, 3 << 30));
        let much = looked(4000, &[1.0; 64]).estimate(64 << 30, geometry, (8192, 128));
        assert_eq!((much.new.low, much.new.high), (61 << 30, 64 << 30));
        assert!(much.stored.low < much.stored.about && much.stored.about < much.stored.high);
        // and of nothing there is nothing
        let empty = Looked::default().estimate(0, geometry, (0, 128));
        assert_eq!(empty.new, Spread::default());
    }
}
