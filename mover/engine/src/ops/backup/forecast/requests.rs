//! How many requests a run makes, by kind: those that opening and planning made just now, the fixed
//! ones of a writer (`chunkstore`'s commit protocol), and those that follow from what is read and
//! stored.
//!
//! What depends on other backups is a range: how many map pages lie side by side and come with one
//! request, how many dedup segments are worth reading, how many checkpoints the store's speed
//! allows. Not in it are looks at packs of other backups that new data turns out to be in, and
//! tries that fail.

use super::{Asking, Facts, Spread};
use crate::ingest::checkpoint::CheckpointSchedule;
use crate::ingest::dedup::worth_bytes;
use crate::ingest::units::count_groups;
use chunkstore::{Result, repository::SegmentInfo, store::RequestCounts};
use mover_changes::BackupPlan;
use serde::Serialize;

/// Map pages that come with one request, where they lie side by side.
const PAGES_A_GET: u64 = 32;
/// Bytes of a map page for each child: what is fetched of them.
const CHILD_BYTES: u64 = 60;
/// Requests for a segment of which no copy is at hand: whole, or its parts.
const GETS_A_SEGMENT: [u64; 2] = [1, 4];
/// Packs that are closed early at the start, so that uploads do not end all at once.
const EARLY_PACKS: u64 = 4;

/// Requests of a run, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestForecast {
    /// Whole objects and ranges read.
    pub gets: Spread,
    /// Packs, segments and leases written.
    pub puts: Spread,
    /// Written only if absent.
    pub creates: Spread,
    /// Look-ups.
    pub heads: Spread,
    /// Pages of listings.
    pub lists: Spread,
    /// Deletions.
    pub deletes: Spread,
    /// All of them.
    pub total: Spread,
}

/// The repository's dedup segments.
pub(super) struct Segments {
    pub(super) found: Vec<SegmentInfo>,
    /// Pages of the listing.
    lists: u64,
}

impl Segments {
    pub(super) fn list(asking: &Asking<'_>) -> Result<Self> {
        let store = asking.repo.store();
        let before = store.counts().lists;
        let found = asking.wait(asking.repo.list_segments(|_, _| ()))?;
        Ok(Self { found, lists: store.counts().lists - before })
    }
}

impl Spread {
    fn exactly(n: u64) -> Self {
        Self { low: n, about: n, high: n }
    }

    fn of(low: u64, about: u64, high: u64) -> Self {
        Self { low, about: about.clamp(low, high), high }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            low: self.low.saturating_add(other.low),
            about: self.about.saturating_add(other.about),
            high: self.high.saturating_add(other.high),
        }
    }

    fn each(self, of: impl Fn(u64) -> u64) -> Self {
        Self { low: of(self.low), about: of(self.about), high: of(self.high) }
    }
}

impl RequestForecast {
    /// The likeliest counts, to be priced.
    pub fn about(&self) -> RequestCounts {
        self.counts(|spread| spread.about)
    }

    /// The highest counts.
    pub fn high(&self) -> RequestCounts {
        self.counts(|spread| spread.high)
    }

    fn counts(&self, of: impl Fn(Spread) -> u64) -> RequestCounts {
        RequestCounts {
            gets: of(self.gets),
            puts: of(self.puts),
            creates: of(self.creates),
            heads: of(self.heads),
            lists: of(self.lists),
            deletes: of(self.deletes),
            failed_tries: 0,
        }
    }
}

/// Requests of the run, and bytes that it fetches at most. `before`: what opening and planning
/// took. `keeps`: checkpoints are made.
pub(super) fn requests(
    facts: &Facts<'_>,
    fanout: u16,
    before: RequestCounts,
    segments: &Segments,
    stored: Spread,
    keeps: bool,
) -> (RequestForecast, u64) {
    let segment_bytes: u64 = segments.found.iter().map(|segment| segment.size_bytes).sum();
    let bounds = &facts.prepared.bounds;
    let (pages, depth) = pages(facts, fanout);

    let pack_bytes = u64::from(bounds.pack_bytes);
    let staggers = facts.left.read_bytes >= 4 * bounds.uploads as u64 * pack_bytes;
    let early = Spread::of(0, 0, if staggers { EARLY_PACKS } else { 0 });
    let packs = stored.each(|bytes| bytes.div_ceil(pack_bytes)).plus(early);
    let schedule = facts
        .options
        .checkpoint_bytes
        .map_or_else(|| CheckpointSchedule::sparing(facts.left.read_bytes), CheckpointSchedule::of);
    let cuts = if keeps { schedule.cuts_max(facts.left.read_bytes) } else { 0 };
    let cuts = Spread::of(0, cuts / 2, cuts);
    // its map pages, a pack that is closed for it, and the lease
    let cut_puts = Spread { low: 2 * cuts.low, about: 2 * cuts.about, high: 3 * cuts.high };
    // the last map pages and the last segment
    let last_puts = Spread::of(0, if stored.about == 0 { 0 } else { 2 }, 3);

    let map = Spread::of(
        u64::from(pages > 0),
        depth + pages.div_ceil(PAGES_A_GET),
        depth * pages.max(1) + pages,
    );
    let map = if pages == 0 { Spread::default() } else { map };
    let worth = worth_bytes(facts.left.read_bytes).min(segment_bytes);
    let known = if worth == 0 { 0 } else { segments.found.len() as u64 };
    let dedup = Spread::of(0, GETS_A_SEGMENT[0] * known, GETS_A_SEGMENT[1] * known);

    let begins = u64::from(facts.parent.is_some());
    let mut all = RequestForecast {
        // the parent is confirmed under the lease
        gets: Spread::exactly(before.gets + begins).plus(map).plus(dedup),
        puts: packs.plus(cut_puts).plus(last_puts),
        // the lease, asked for twice, and the manifest
        creates: Spread::exactly(3),
        // the lease, before the commit and now and then
        heads: Spread::of(before.heads + 1, before.heads + 2, before.heads + 4).plus(cuts),
        // attempts of this id and whether it was forgotten, the parent, what is condemned, whether
        // it was forgotten meanwhile
        lists: Spread::exactly(before.lists + 4 + begins + segments.lists),
        deletes: Spread::exactly(1),
        total: Spread::default(),
    };
    all.total = [all.gets, all.puts, all.creates, all.heads, all.lists, all.deletes]
        .into_iter()
        .fold(Spread::default(), Spread::plus);
    let page_bytes = u64::from(fanout) * CHILD_BYTES;
    (all, (pages + depth).saturating_mul(page_bytes).saturating_add(worth))
}

/// Leaf pages of the parent's map that are needed, and the levels above them.
fn pages(facts: &Facts<'_>, fanout: u16) -> (u64, u64) {
    let Some(parent) = facts.parent.filter(|m| m.map.root.is_some()) else { return (0, 0) };
    // the right edge of the map is always looked at
    (leaves(facts.left, fanout).max(1), u64::from(parent.map.depth))
}

/// Leaf pages of the map that a plan touches.
pub(super) fn leaves(plan: &BackupPlan, fanout: u16) -> u64 {
    let edges = plan.zero.iter().flat_map(|r| [r.start..r.start + 1, r.end - 1..r.end]);
    let mut touched: Vec<_> = plan.read.iter().cloned().chain(edges).collect();
    touched.sort_unstable_by_key(|r| r.start);
    count_groups(&touched, u64::from(fanout))
}
