//! One pass over the plan: starts the stages, joins them, and keeps the first error.
//!
//! ```text
//! feed ──units──▶ read ──slots──▶ seal ×N ──steps──▶ assemble (caller) ──packs──▶ uploads (runtime)
//!   └──────────── zero ranges ────────────────────────▲
//! ```
//!
//! It cannot deadlock: data flows one way, and what flows back (slots, tickets) is only ever waited for by a stage ahead
//! of the one that gives it. A stage that ends, well or not, drops its channel ends, and its neighbours end too.

use super::assemble::{AssembleStage, Assembled};
use super::bounds::Bounds;
use super::dedup::Dedup;
use super::feed::{FeedOut, FeedStage};
use super::level::{CompressionChoice, CompressionUsed, Level};
use super::read::{ReadStage, ReadStats};
use super::seal::{SealStage, SealStats};
use super::stop::Stop;
use super::upload::{UploadStats, Uploads};
use crate::changes::BackupPlan;
use crate::control::Progress;
use crate::device::Source;
use crate::io::{Arena, Engine, EngineChoice};
use chunkstore::{
    Compression, Error, ErrorKind, Geometry, Inherit, MapBuilder, MapReader, PackAllocator,
    PackCollector, PackId, PackKind, PageSink, ReadLimits, Repository, Result, RunTable, Sealer,
    VolumeMap,
};
use crossbeam_channel::bounded;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long packs under way are waited for when a run is cancelled.
const SALVAGE: Duration = Duration::from_secs(6);

/// What a pass works with.
pub(crate) struct Pass<'a> {
    pub(crate) repo: &'a Arc<Repository>,
    pub(crate) runtime: &'a tokio::runtime::Handle,
    pub(crate) source: &'a Source,
    pub(crate) geometry: Geometry,
    pub(crate) plan: &'a BackupPlan,
    pub(crate) parent: Option<VolumeMap>,
    pub(crate) dedup: &'a Dedup,
    pub(crate) bounds: &'a Bounds,
    pub(crate) engine: EngineChoice,
    pub(crate) compression: CompressionChoice,
    pub(crate) progress: &'a Arc<Progress>,
    pub(crate) stop: &'a Arc<Stop>,
}

/// What a pass did.
pub(crate) struct PassDone {
    pub(crate) assembled: Assembled,
    pub(crate) engine: &'static str,
    pub(crate) read: ReadStats,
    pub(crate) seal: SealStats,
    pub(crate) upload: UploadStats,
    pub(crate) compression: CompressionUsed,
    /// Packs that this pass stored.
    pub(crate) own_packs: Vec<PackId>,
}

struct Stages {
    assembled: Option<Assembled>,
    read: Option<ReadStats>,
    seal: Option<SealStats>,
    compression: CompressionUsed,
    engine: &'static str,
}

impl Pass<'_> {
    pub(crate) fn run(&self) -> Result<PassDone> {
        let mut uploads = Uploads::new(
            self.repo,
            self.runtime,
            self.stop,
            self.progress,
            self.bounds.uploads,
            self.bounds.segment_records,
        );
        let stages = self.stages(&mut uploads);
        let done = stages.and_then(|s| {
            self.stop.take()?;
            let upload = uploads.finish()?;
            match (s.assembled, s.read, s.seal) {
                (Some(assembled), Some(read), Some(seal)) => {
                    let own_packs = uploads.take_packs();
                    let (engine, compression) = (s.engine, s.compression);
                    Ok(PassDone { assembled, engine, read, seal, upload, compression, own_packs })
                }
                _ => Err(Error::new(ErrorKind::Bug, "end the run", "a stage left no result")),
            }
        });
        if done.is_err()
            && let Err(e) = uploads.salvage(Instant::now() + SALVAGE)
        {
            tracing::warn!("name the packs that were stored in a dedup segment: {e}");
        }
        done
    }

    fn stages(&self, uploads: &mut Uploads) -> Result<Stages> {
        let b = self.bounds;
        let arena = Arena::new(b.slots, b.slot_bytes as usize)?;
        let engine = Engine::start(self.engine, &arena, self.source.io_file(), b.depth)?;
        let engine_name = engine.name();
        let keys = self.repo.keys();
        let allocator = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, b.pack_bytes);
        let table = RunTable::new(b.run_table_bytes);
        let (units_tx, units) = bounded(b.depth);
        let (filled_tx, filled) = bounded(b.slots);
        let (steps_tx, steps) = bounded(2 * b.seal_threads + 2);
        let (tickets_tx, tickets) = bounded(b.units_ahead);
        let level = Level::new(self.compression, b.memory_bytes / 16 / b.seal_threads as u64);
        let read = ReadStage {
            engine,
            arena: &arena,
            geometry: self.geometry,
            source: self.source.path(),
            progress: self.progress,
            stop: self.stop,
        };
        let seal = SealStage {
            keys,
            geometry: self.geometry,
            allocator: &allocator,
            table: &table,
            level: &level,
            dedup: self.dedup,
            progress: self.progress,
            stop: self.stop,
        };
        let feed = self.feed()?;
        let assemble = self.assemble(uploads, &table, tickets)?;
        let stop = self.stop;
        let stages = std::thread::scope(|scope| {
            let out = FeedOut { units: units_tx, steps: steps_tx.clone(), tickets: tickets_tx };
            let feeder = scope.spawn(move || stop.guard(|| feed.run(self.plan, &out)));
            let reader = scope.spawn(move || {
                let filled_tx = filled_tx;
                stop.guard(|| read.run(&units, &filled_tx))
            });
            let sealers: Vec<_> = (0..b.seal_threads)
                .map(|_| {
                    let (inbox, outbox) = (filled.clone(), steps_tx.clone());
                    let sealer = Sealer::new(level.compression());
                    scope.spawn(move || stop.guard(|| seal.run(sealer?, &inbox, &outbox)))
                })
                .collect();
            drop((filled, steps_tx));
            let assembled = stop.guard(|| assemble.run(&steps, || allocator.close())).flatten();
            // the stages ahead may wait to hand something on
            drop(steps);
            join(feeder, stop);
            let read = join(reader, stop);
            let mut seal = SealStats::default();
            for stats in sealers.into_iter().map(|s| join(s, stop)) {
                seal.add(&stats.unwrap_or_default());
            }
            let compression = level.used();
            Stages { assembled, read, seal: Some(seal), compression, engine: engine_name }
        });
        assert!(arena.all_home(), "every slot is back when all stages have ended");
        Ok(stages)
    }

    fn feed(&self) -> Result<FeedStage<'_>> {
        let fanout = self.repo.params().page_fanout;
        let unit_chunks = self.bounds.slot_bytes / self.geometry.chunk().bytes();
        Ok(FeedStage {
            geometry: self.geometry,
            fanout,
            unit_chunks: u16::try_from(unit_chunks).unwrap_or(u16::MAX),
            window_leaves: self.bounds.window_leaves,
            parent: self
                .parent
                .clone()
                .map(|map| {
                    let limits = ReadLimits::within(self.bounds.map_read_bytes);
                    MapReader::with_limits(Arc::clone(self.repo), map, limits)
                })
                .transpose()?,
            runtime: self.runtime.clone(),
            stop: self.stop,
        })
    }

    fn assemble<'s>(
        &'s self,
        uploads: &'s mut Uploads,
        table: &'s RunTable,
        tickets: crossbeam_channel::Receiver<()>,
    ) -> Result<AssembleStage<'s>> {
        let repo = self.repo;
        let inherit = if self.plan.inherit { Inherit::Parent } else { Inherit::Nothing };
        let fanout = repo.params().page_fanout;
        Ok(AssembleStage {
            builder: MapBuilder::new(
                Arc::clone(repo.keys()),
                fanout,
                self.geometry,
                inherit,
                self.parent.clone(),
            )?,
            sink: PageSink::new(
                repo.keys(),
                *repo.id(),
                Compression::Zstd(1),
                self.bounds.pack_bytes,
            )?,
            collector: PackCollector::new(Arc::clone(repo.keys()), *repo.id(), PackKind::Chunks),
            table,
            uploads,
            tickets,
            stop: self.stop,
        })
    }
}

/// Joins a stage. A panic is our bug: it becomes an error, not a second panic.
fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Option<T>>, stop: &Stop) -> Option<T> {
    thread.join().unwrap_or_else(|_| {
        stop.fail(Error::new(ErrorKind::Bug, "run a stage", "it panicked"));
        None
    })
}
