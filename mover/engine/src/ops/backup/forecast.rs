//! What a backup would take, said before anything is moved: `backup --plan`.
//!
//! It goes the way of a backup as far as that writes nothing: opens the source, finds the parent,
//! gets the list over the same ladder, looks for a checkpoint to go on from, and makes the same
//! plan. *What is read* follows from that exactly. *What is stored* cannot be known without
//! reading, so a sample is read, compared with the parent and compressed (`forecast/look.rs`), and
//! the answer is a range. *Requests* follow from both (`forecast/requests.rs`), memory is what the
//! bounds say, and time comes from the parent's rate, or from the sample's.
//!
//! It takes no lease: a parent that is forgotten between the plan and the run is another plan. What
//! of the sample is in the repository already, of another volume, is looked up as a run does it
//! (`forecast/elsewhere.rs`).

mod elsewhere;
mod look;
mod requests;

pub use look::LookedAt;
pub use requests::RequestForecast;

use super::prepare::{Prepared, prepare};
use super::{BackupOptions, audit, resume};
use crate::ingest::dedup::worth_bytes;
use crate::ingest::{Bounds, Resumed, damage, units};
use crate::run::{Cancel, Progress, RunContext};
use chunkstore::{
    ChunkNo, Geometry, Manifest, Repository, Result, VolumeMap,
    dedup::DedupOptions,
    format::{ChangeKind, Checkpoint},
    map::check_frontier,
    protocol::{Unfinished, find_unfinished},
    repository::{DamagedSet, read_damaged},
};
use elsewhere::Elsewhere;
use look::{Estimate, Look};
use mover_changes::{BackupPlan, ListOrigin};
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// An earlier run of less tells nothing about the rate or the ratio of this one.
const TELLING_BYTES: u64 = 64 << 20;
const TELLING_NEW_BYTES: u64 = 1 << 20;

/// Between which figures something is, and which is the likeliest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// At least.
    pub low: u64,
    /// Most likely.
    pub about: u64,
    /// At most.
    pub high: u64,
}

/// What is read from the device, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReadForecast {
    /// All of it but the audit: `read_bytes` of the run's summary.
    pub read_bytes: u64,
    /// Reads of the device.
    pub reads: u64,
    /// A delta lists it.
    pub changed_bytes: u64,
    /// A list says that it is allocated.
    pub allocated_bytes: u64,
    /// There is no list.
    pub whole_bytes: u64,
    /// The volume's size has changed.
    pub tail_bytes: u64,
    /// What the repository has of it is damaged.
    pub damaged_bytes: u64,
    /// It lies between two pieces that are read as one.
    pub gap_bytes: u64,
    /// Samples of what a list does not name, at most; on top of `read_bytes`.
    pub audit_bytes: u64,
}

/// How long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeForecast {
    /// Seconds of the data's way, without the dozens of requests around it.
    pub seconds: f64,
    /// What that is concluded from: `parent`, `sample`, or `limit` (of reading or of the upload).
    pub basis: &'static str,
}

/// What a backup would take.
#[derive(Debug, Clone, Serialize)]
pub struct Forecast {
    /// Its volume.
    pub volume: String,
    /// Size of the volume.
    pub size_bytes: u64,
    /// The backup that it would build on.
    pub parent: Option<String>,
    /// Which kind of list it would use.
    pub kind: ChangeKind,
    /// Where that comes from; `device` without one.
    pub origin: String,
    /// What an earlier run has done of it.
    pub resumed: Option<Resumed>,
    /// What is read.
    pub read: ReadForecast,
    /// Known to be zero without reading.
    pub zero_bytes: u64,
    /// Taken over from the parent without reading.
    pub inherited_bytes: u64,
    /// Not in the repository, and not zero.
    pub new_bytes: Spread,
    /// Packs and segments, as stored.
    pub stored_bytes: Spread,
    /// What `stored_bytes` is concluded from: `sample`, or `parent and sample`.
    pub stored_basis: &'static str,
    /// The sample.
    pub sample: LookedAt,
    /// Requests, by kind.
    pub requests: RequestForecast,
    /// Map pages and dedup segments that are fetched, at most.
    pub fetched_bytes: u64,
    /// Bounds on memory that would be in force.
    pub bounds: Bounds,
    /// How long it takes; `None` if nothing is read.
    pub time: Option<TimeForecast>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Each step down from what was asked for.
    pub degraded: Vec<String>,
}

/// Says what `backup` with these options would take. Writes nothing, to the repository, the scratch
/// directory or the source.
pub fn forecast(
    rt: &tokio::runtime::Handle,
    repo: &Arc<Repository>,
    options: &BackupOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<Forecast> {
    let run = RunContext { rt, cancel, progress };
    let (prepared, known) = prepare(run, repo, options)?;
    let asking = Asking { run, repo };
    let (damaged, notes) = asking.wait(read_damaged(repo))?;
    let resume_by = resume::resume_by(options, &prepared, &known.parents);
    let unfinished = match resume_by {
        None => None,
        Some(by) => {
            let id = options.backup_id.as_ref();
            asking.wait(find_unfinished(repo, &prepared.volume, id, by))?
        }
    };
    let (parent, checkpoint) = match unfinished {
        Some(Unfinished { checkpoint, parent }) => (parent, Some(checkpoint)),
        None => (known.parents.into_iter().next(), None),
    };
    prepared.check_parent(options, parent.is_some())?;
    let (plan, lost) = prepared.plan(run, repo, parent.as_ref(), &damaged)?;
    let from = checkpoint.filter(|c| fits(repo, prepared.geometry, c, &lost, &damaged));
    let next = from.as_ref().map_or(ChunkNo(0), |c| c.next_chunk);
    let left = plan.remaining_from(prepared.geometry, next);
    let (parent, geometry) = (parent.as_ref(), prepared.geometry);
    let before = repo.store().counts();
    let fanout = repo.params().page_fanout;
    let read = reads(&prepared, options, parent, (&left, next), fanout)?;
    let look = Look { asking: &asking, source: &prepared.source, geometry, damaged: &damaged };
    let map = parent.map(|m| VolumeMap::of(repo, m)).transpose()?;
    let segments = requests::Segments::list(&asking)?;
    let dedup = DedupOptions {
        memory_bytes: prepared.bounds.dedup_bytes,
        worth_bytes: worth_bytes(left.read_bytes),
    };
    let mut stored = Elsewhere::new(&asking, &damaged, segments.found.clone(), dedup);
    let looked = look.at(&left, map, &mut stored, &prepared.bounds, options.compression)?;
    let facts = Facts { prepared: &prepared, options, parent, left: &left };
    let (estimate, stored_basis) = facts.stored(&looked, fanout);
    let (requests, fetched_bytes) =
        requests::requests(&facts, fanout, before, &segments, estimate.stored, resume_by.is_some());
    let kind = prepared.changes.as_ref().map_or(ChangeKind::Whole, |c| c.kind);
    let origin = prepared.changes.as_ref().map_or("device", |c| c.origin.as_str());
    Ok(Forecast {
        volume: prepared.volume.to_string(),
        size_bytes: geometry.size_bytes(),
        parent: parent.map(|m| m.backup_id.to_string()),
        kind,
        origin: origin.to_owned(),
        resumed: from.as_ref().map(|_| Resumed::of(plan.read_bytes, left.read_bytes)),
        read,
        zero_bytes: left.zero_bytes,
        inherited_bytes: left.inherited_bytes,
        new_bytes: estimate.new,
        stored_bytes: estimate.stored,
        stored_basis,
        sample: looked.looked,
        requests,
        fetched_bytes,
        time: facts.time(repo, &read, &looked, estimate.stored),
        bounds: prepared.bounds.clone(),
        warnings: prepared.warnings.iter().chain(&notes).cloned().collect(),
        degraded: prepared.degraded.clone(),
    })
}

/// Who asks, and whom.
pub(super) struct Asking<'a> {
    run: RunContext<'a>,
    repo: &'a Arc<Repository>,
}

impl Asking<'_> {
    fn wait<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.run.wait(request)
    }
}

/// Whether a run would go on from there.
fn fits(
    repo: &Repository,
    geometry: Geometry,
    from: &Checkpoint,
    lost: &[Range<u64>],
    damaged: &DamagedSet,
) -> bool {
    let fanout = repo.params().page_fanout;
    check_frontier(fanout, geometry, from.next_chunk, &from.frontier)
        .and_then(|()| damage::check_undamaged(from, lost, damaged))
        .is_ok()
}

/// What is read of what is left, by reason.
fn reads(
    prepared: &Prepared,
    options: &BackupOptions,
    parent: Option<&Manifest>,
    (left, next): (&BackupPlan, ChunkNo),
    fanout: u16,
) -> Result<ReadForecast> {
    let (geometry, bounds) = (prepared.geometry, &prepared.bounds);
    let unit_chunks = u16::try_from(bounds.slot_bytes / geometry.chunk().bytes());
    let pages = (fanout, bounds.window_leaves);
    let (reads, read_bytes) =
        units::count_reads(left, geometry, unit_chunks.unwrap_or(u16::MAX), pages);
    let gap_bytes = read_bytes - left.read_bytes;
    let mut read = ReadForecast { read_bytes, reads, gap_bytes, ..ReadForecast::default() };
    match prepared.changes.as_ref().map(|list| list.kind) {
        None | Some(ChangeKind::Whole) => read.whole_bytes = left.read_bytes,
        Some(ChangeKind::Allocated) => read.allocated_bytes = left.read_bytes,
        Some(ChangeKind::Delta) => {
            // the same without the resize, and without what is damaged
            let of = |parent| prepared.plan_on(Some(parent));
            let before = parent.map(|m| Geometry::new(m.size_bytes, geometry.chunk()));
            let sound = of(before.transpose()?.unwrap_or(geometry))?.remaining_from(geometry, next);
            read.changed_bytes = of(geometry)?.remaining_from(geometry, next).read_bytes;
            read.tail_bytes = sound.read_bytes.saturating_sub(read.changed_bytes);
            read.damaged_bytes = left.read_bytes.saturating_sub(sound.read_bytes);
        }
    }
    if let Some(list) = &prepared.changes {
        let says_zero = list.origin != ListOrigin::FileSystem;
        // the audit looks at all of the plan, also where the run goes on in the middle
        let holes = prepared.holes()?;
        let whole = prepared
            .plan_on(parent.map(|m| Geometry::new(m.size_bytes, geometry.chunk())).transpose()?)?;
        read.audit_bytes =
            audit::bytes_max(&whole, geometry, holes.as_ref(), says_zero, options.audit);
    }
    Ok(read)
}

/// What is known of a run.
pub(super) struct Facts<'a> {
    prepared: &'a Prepared,
    options: &'a BackupOptions,
    parent: Option<&'a Manifest>,
    left: &'a BackupPlan,
}

impl Facts<'_> {
    /// What is new and what is stored of it, and from what that is concluded.
    fn stored(&self, looked: &look::Looked, fanout: u16) -> (Estimate, &'static str) {
        let pages = (requests::leaves(self.left, fanout), fanout);
        let mut estimate = looked.estimate(self.left.read_bytes, self.prepared.geometry, pages);
        let known = self.parent.map(|m| &m.stats).filter(|s| s.new_bytes >= TELLING_NEW_BYTES);
        let Some(stats) = known else { return (estimate, "sample") };
        let share = |new: u64| {
            let stored = u128::from(new) * u128::from(stats.stored_bytes);
            u64::try_from(stored / u128::from(stats.new_bytes.max(1))).unwrap_or(u64::MAX)
        };
        let stored = &mut estimate.stored;
        stored.about = share(estimate.new.about);
        stored.low = stored.low.min(share(estimate.new.low));
        stored.high = stored.high.max(share(estimate.new.high));
        (estimate, "parent and sample")
    }

    fn time(
        &self,
        repo: &Repository,
        read: &ReadForecast,
        looked: &look::Looked,
        stored: Spread,
    ) -> Option<TimeForecast> {
        if read.read_bytes == 0 {
            return None;
        }
        let parent = self.parent.filter(|m| m.stats.read_bytes >= TELLING_BYTES);
        let rate = parent.and_then(|m| {
            let seconds = (m.finished - m.started).to_std().ok()?.as_secs_f64();
            (seconds > 0.0).then(|| look::float(m.stats.read_bytes) / seconds)
        });
        let threads = self.prepared.bounds.seal_threads;
        let (rate, basis) =
            rate.map_or_else(|| (looked.rate(threads), "sample"), |rate| (rate, "parent"));
        let mut time = TimeForecast { seconds: look::float(read.read_bytes) / rate, basis };
        let limits = [
            (self.options.limit_read, read.read_bytes),
            (repo.store().limits().upload, stored.about),
        ];
        for (limit, bytes) in limits {
            let seconds = limit.map_or(0.0, |l| look::float(bytes) / look::float(l.get()));
            if seconds > time.seconds {
                time = TimeForecast { seconds, basis: "limit" };
            }
        }
        Some(time)
    }
}
