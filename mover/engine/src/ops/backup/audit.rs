//! The audit: a sample of what a list calls unchanged is read and compared with the parent, and of
//! what it calls zero with zero.
//!
//! A changed-block list is a claim of somebody else. One that leaves out what has changed makes a
//! backup that looks good and restores wrong, and nothing later would ever tell. So before anything
//! is inherited some of it is looked at: the first and the last MiB (partition tables,
//! superblocks), and chunks that are spread over all the rest, one taken at random from each of so
//! many equal parts. One that is not what the list says is enough: the list is false, and the whole
//! volume is compared instead.
//!
//! If a share *f* of what a list calls unchanged has changed in truth, *n* chunks find none of it
//! with a chance of (1 − *f*)^*n* at most. What is known without reading, holes of an image file,
//! is not looked at.

use crate::ingest::read_throttle::ReadThrottle;
use crate::run::{Cancel, RunContext};
use crate::volume::device::Source;
use crate::volume::io::Arena;
use chunkstore::{
    ChunkNo, ChunkRef, Error, ErrorKind, Geometry, MapReader, Repository, Result, Setting,
    VolumeMap, format::ChangeKind, is_zero, map::PageSet,
};
use mover_changes::BackupPlan;
use mover_extents::Extents;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Looked at wherever it is unlisted, at both ends of a volume.
const ALWAYS_BYTES: u64 = 1 << 20;
/// Chunks that are looked at between two loads of map pages.
const WINDOW_CHUNKS: usize = 1024;
/// Reads under way at a time, beyond which a device gains little.
const READERS_MAX: usize = 8;
const PARTS_IN_ALL: u64 = 1_000_000;

/// How much of what is unlisted is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditAmount {
    /// So many chunks, beside both ends.
    Chunks(u64),
    /// So many millionths of it.
    Share(u64),
}

impl AuditAmount {
    /// Nothing.
    pub const OFF: Self = Self::Chunks(0);
    /// All of it.
    pub const ALL: Self = Self::Share(PARTS_IN_ALL);

    /// Of so many chunks. A share is at most a few million, which are held in memory.
    fn of(self, chunks: u64) -> u64 {
        const PICKED_MAX: u64 = 4 << 20;
        if self == Self::ALL {
            return chunks;
        }
        let share = |parts| u128::from(chunks) * u128::from(parts) / u128::from(PARTS_IN_ALL);
        match self {
            Self::Chunks(n) => n.min(chunks),
            // no more than there are
            Self::Share(parts) => u64::try_from(share(parts)).unwrap_or(chunks),
        }
        .min(PICKED_MAX)
    }
}

/// A lie of one chunk in twenty is found at once four times in five, for some thirty reads and map
/// pages.
impl Default for AuditAmount {
    fn default() -> Self {
        Self::Chunks(32)
    }
}

impl fmt::Display for AuditAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OFF => f.write_str("off"),
            Self::ALL => f.write_str("all"),
            Self::Chunks(n) => write!(f, "{n}"),
            Self::Share(parts) => {
                let text = format!("{}.{:04}", parts / 10_000, parts % 10_000);
                write!(f, "{}%", text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

impl FromStr for AuditAmount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::new(ErrorKind::Usage, format!("read the amount {text:?} of an audit"), "")
                .hint("give a number of chunks, a share such as 1% or 0.05%, off, or all")
        };
        match (text, text.strip_suffix('%')) {
            ("off", _) => Ok(Self::OFF),
            ("all", _) => Ok(Self::ALL),
            (_, None) => text.parse().map(Self::Chunks).map_err(|_| wrong()),
            (_, Some(percent)) => {
                let (whole, rest) = percent.split_once('.').unwrap_or((percent, ""));
                let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
                if rest.len() > 4 || !digits(whole) || !digits(rest) {
                    return Err(wrong());
                }
                let parts: u64 = format!("{whole}{rest:0<4}").parse().map_err(|_| wrong())?;
                if parts > PARTS_IN_ALL { Err(wrong()) } else { Ok(Self::Share(parts)) }
            }
        }
    }
}

/// What an audit looked at and found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Audited {
    /// Chunks that were looked at.
    pub chunks: u64,
    /// Their bytes, all read from the device.
    pub bytes: u64,
    /// Chunks that could have been.
    pub of_chunks: u64,
    /// Where the first bytes are that are not what the list says.
    pub false_at: Option<u64>,
}

/// What an audit works with.
pub(super) struct Audit<'a> {
    pub(super) run: RunContext<'a>,
    pub(super) repo: &'a Arc<Repository>,
    pub(super) source: &'a Source,
    pub(super) geometry: Geometry,
    /// How fast the source may be read.
    pub(super) turns: ReadThrottle,
    /// Whether the list says that something is zero, and not only that nobody needs it.
    pub(super) says_zero: bool,
}

/// What becomes of a false list, as the manifest and the summary say it.
pub(super) fn verdict(audited: &Audited, offset: u64) -> String {
    let Audited { chunks, of_chunks, .. } = audited;
    format!(
        "the changed-block list is false: bytes at {offset} are not what it says (found among {chunks} of {of_chunks} chunks that \
         were looked at); the whole volume was compared instead"
    )
}

/// The error where nothing but a true list will do.
pub(super) fn refused(source: &Source, kind: ChangeKind, offset: u64) -> Error {
    let context = format!(
        "keep to {require} {} for {}",
        kind.as_str(),
        source.path().display(),
        require = Setting("require")
    );
    let detail = format!("the changed-block list is false: bytes at {offset} are not what it says");
    Error::new(ErrorKind::Corrupt, context, detail)
        .hint(format!("report it to whoever makes the list; without {require} the whole volume is compared instead", require = Setting("require")))
}

/// What a plan takes for known without reading it.
struct ListAssertions {
    /// As in the parent.
    inherited: Extents,
    zero: Extents,
}

impl ListAssertions {
    fn of(plan: &BackupPlan, geometry: Geometry, holes: Option<&Extents>, says_zero: bool) -> Self {
        let known: Extents = plan.read.iter().chain(&plan.zero).cloned().collect();
        let all = Extents::of(0..geometry.chunks());
        let inherited = if plan.inherit { all.subtract(&known) } else { Extents::new() };
        let zero = if says_zero { &plan.zero[..] } else { &[] };
        let zero: Extents = zero.iter().cloned().collect();
        let holes = holes.map(|holes| holes.to_full_chunks(geometry)).unwrap_or_default();
        Self { inherited, zero: zero.subtract(&holes.into_iter().collect()) }
    }

    /// Chunks to look at.
    fn sample(&self, geometry: Geometry, amount: AuditAmount, seed: u64) -> Extents {
        let all = self.inherited.union(&self.zero);
        let picked = pick(&all, amount.of(all.total()), seed);
        if amount == AuditAmount::OFF {
            return picked;
        }
        let size = geometry.size_bytes();
        let ends = [0..size.min(ALWAYS_BYTES), size.saturating_sub(ALWAYS_BYTES)..size];
        let ends: Extents = ends.into_iter().map(|bytes| geometry.chunks_of(bytes)).collect();
        picked.union(&ends.intersect(&all))
    }
}

/// Bytes that an audit of a plan reads at most.
pub(super) fn bytes_max(
    plan: &BackupPlan,
    geometry: Geometry,
    holes: Option<&Extents>,
    says_zero: bool,
    amount: AuditAmount,
) -> u64 {
    let claims = ListAssertions::of(plan, geometry, holes, says_zero);
    let all = claims.inherited.total() + claims.zero.total();
    // both ends, which the sample may or may not have hit
    let ends = claims.sample(geometry, AuditAmount::Chunks(1), 0).total();
    let chunks = match amount.of(all) {
        0 => 0,
        picked => picked.saturating_add(ends).min(all),
    };
    chunks.saturating_mul(u64::from(geometry.chunk().bytes())).min(geometry.size_bytes())
}

/// One at random of each of `count` equal parts.
fn pick(all: &Extents, count: u64, seed: u64) -> Extents {
    let total = all.total();
    if count == 0 || count >= total {
        return if count == 0 { Extents::new() } else { all.clone() };
    }
    let mut state = seed;
    let mut ranges = all.iter();
    let (mut range, mut before) = (ranges.next(), 0);
    let part = |n: u64| {
        let start = u128::from(n) * u128::from(total) / u128::from(count);
        u64::try_from(start).unwrap_or(total)
    };
    let mut picked = Vec::new();
    for n in 0..count {
        let (start, end) = (part(n), part(n + 1));
        let rank = start + split_mix(&mut state) % (end - start);
        while let Some(r) = range.as_ref().filter(|r| rank - before >= r.end - r.start) {
            before += r.end - r.start;
            range = ranges.next();
        }
        picked.extend(
            range.as_ref().map(|r| r.start + (rank - before)..r.start + (rank - before) + 1),
        );
    }
    picked.into_iter().collect()
}

/// SplitMix64: enough for a sample that nobody can foresee, since the seed cannot be.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Audit<'_> {
    /// Looks at a sample. `parent` is what is inherited from, if anything is; `holes` read as zero
    /// by definition.
    pub(super) fn run(
        &self,
        plan: &BackupPlan,
        holes: Option<&Extents>,
        parent: Option<VolumeMap>,
        amount: AuditAmount,
        seed: u64,
    ) -> Result<Audited> {
        let claims = ListAssertions::of(plan, self.geometry, holes, self.says_zero);
        let sample = claims.sample(self.geometry, amount, seed);
        let of_chunks = claims.inherited.total() + claims.zero.total();
        let mut done = Audited { of_chunks, ..Audited::default() };
        let mut reader =
            parent.map(|map| MapReader::new(Arc::clone(self.repo), map)).transpose()?;
        let mut chunks = sample.iter().flatten().map(ChunkNo);
        loop {
            let window: Vec<ChunkNo> = chunks.by_ref().take(WINDOW_CHUNKS).collect();
            if window.is_empty() {
                return Ok(done);
            }
            let from_parent: Vec<Range<u64>> = {
                let ranges = window.iter().map(|c| c.0..c.0 + 1).collect::<Extents>();
                ranges.intersect(&claims.inherited).into_vec()
            };
            let pages = match &mut reader {
                Some(reader) if !from_parent.is_empty() => {
                    Some(self.run.wait(reader.load(&from_parent))?)
                }
                _ => None,
            };
            let expected = self.expected(&window, &claims, pages.as_ref())?;
            done.chunks += window.len() as u64;
            done.bytes += window.iter().map(|c| u64::from(self.geometry.len(*c))).sum::<u64>();
            done.false_at = self.compare(&expected)?;
            if done.false_at.is_some() {
                return Ok(done);
            }
        }
    }

    fn expected(
        &self,
        window: &[ChunkNo],
        claims: &ListAssertions,
        pages: Option<&PageSet>,
    ) -> Result<Vec<(ChunkNo, Option<ChunkRef>)>> {
        let of = |chunk: &ChunkNo| {
            let inherited = claims.inherited.covers(&(chunk.0..chunk.0 + 1));
            let at = match pages.filter(|_| inherited) {
                Some(pages) => pages.chunk(*chunk)?,
                None => None,
            };
            Ok((*chunk, at))
        };
        window.iter().map(of).collect()
    }

    /// Reads chunks; gives the offset of the first that is not what it should be.
    fn compare(&self, expected: &[(ChunkNo, Option<ChunkRef>)]) -> Result<Option<u64>> {
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Ok(None)));
        let readers = expected.len().min(READERS_MAX);
        let arena = Arena::new(readers.max(1), self.geometry.chunk().bytes() as usize)?;
        std::thread::scope(|threads| {
            for _ in 0..readers {
                threads.spawn(|| {
                    let mut buffer = arena.take_wait();
                    while let Some((chunk, at)) = expected.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let result = self.differs(*chunk, at.as_ref(), &mut buffer);
                        let offset = match result {
                            Ok(false) => continue,
                            Ok(true) => Ok(Some(self.geometry.offset(*chunk))),
                            Err(e) => Err(e),
                        };
                        // the others end with their next
                        next.store(expected.len(), Ordering::Relaxed);
                        *found.lock().unwrap_or_else(PoisonError::into_inner) = offset;
                    }
                });
            }
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn differs(&self, chunk: ChunkNo, at: Option<&ChunkRef>, buffer: &mut [u8]) -> Result<bool> {
        let bytes = &mut buffer[..self.geometry.len(chunk) as usize];
        let turn = self.turns.wait(bytes.len() as u64, || self.run.cancel.cancelled());
        if !turn || self.run.cancel.cancelled() {
            return Err(Cancel::error());
        }
        self.source.read_exact_at(bytes, self.geometry.offset(chunk))?;
        Ok(match at {
            Some(at) => self.repo.keys().chunk_id(bytes) != at.id,
            None => !is_zero(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> Extents {
        ranges.iter().cloned().collect()
    }

    #[test]
    fn amounts_read_as_they_are_written() {
        for (text, amount, of_10000) in [
            ("off", AuditAmount::OFF, 0),
            ("0", AuditAmount::OFF, 0),
            ("all", AuditAmount::ALL, 10_000),
            ("100%", AuditAmount::ALL, 10_000),
            ("1%", AuditAmount::Share(10_000), 100),
            ("0.05%", AuditAmount::Share(500), 5),
            ("12", AuditAmount::Chunks(12), 12),
            ("20000", AuditAmount::Chunks(20_000), 10_000),
        ] {
            assert_eq!(text.parse::<AuditAmount>().unwrap(), amount);
            assert_eq!(amount.to_string().parse::<AuditAmount>().unwrap(), amount);
            assert_eq!(amount.of(10_000), of_10000, "{text}");
        }
        for text in ["", "%", "-1", "1.5", "101%", "1e3%", "0.00001%", "x%", "99999999999999999999"]
        {
            let found = text.parse::<AuditAmount>();
            // nothing before the point is nothing
            assert!(found.is_err() || text == "%", "{text}: {found:?}");
        }
    }

    #[test]
    fn one_of_each_part_is_picked_and_never_anything_else() {
        let all = set(&[5..6, 10..20, 100..189]);
        for count in [0, 1, 7, 50, 99, 100, 1000] {
            for seed in 0..50 {
                let picked = pick(&all, count, seed);
                assert_eq!(picked.total(), count.min(100), "{count} {seed}");
                assert_eq!(picked.subtract(&all), Extents::new());
            }
        }
        // every one of them, sooner or later
        let seen = (0..2000).fold(Extents::new(), |seen, seed| seen.union(&pick(&all, 3, seed)));
        assert_eq!(seen, all);
    }

    #[test]
    fn what_is_read_or_known_is_no_claim_and_both_ends_are_always_looked_at() {
        let chunk = chunkstore::ChunkSize::new(65536).unwrap();
        let geometry = Geometry::new(1000 * 65536 - 7, chunk).unwrap();
        let plan = BackupPlan {
            inherit: true,
            read: std::iter::once(4..10).collect(),
            zero: vec![10..14, 500..600],
            ..BackupPlan::default()
        };
        let holes = Extents::of(510 * 65536..620 * 65536);
        let claims = ListAssertions::of(&plan, geometry, Some(&holes), true);
        assert_eq!(claims.inherited, set(&[0..4, 14..500, 600..1000]));
        assert_eq!(claims.zero, set(&[10..14, 500..510]));
        assert!(claims.sample(geometry, AuditAmount::OFF, 1).is_empty());
        let few = claims.sample(geometry, AuditAmount::Chunks(1), 1);
        assert!(few.covers(&(0..4)) && few.covers(&(10..16)) && few.covers(&(984..1000)));
        assert!((27..=28).contains(&few.total()), "{few:?}");
        let all = claims.sample(geometry, AuditAmount::ALL, 1);
        assert_eq!(all, claims.inherited.union(&claims.zero));
        // under an allocated list nothing is inherited
        let plan = BackupPlan { inherit: false, ..plan };
        let claims = ListAssertions::of(&plan, geometry, None, true);
        assert_eq!((claims.inherited.total(), claims.zero.total()), (0, 104));
        // and what free blocks hold is nobody's claim
        let claims = ListAssertions::of(&plan, geometry, None, false);
        assert!(claims.sample(geometry, AuditAmount::ALL, 1).is_empty());
    }
}
