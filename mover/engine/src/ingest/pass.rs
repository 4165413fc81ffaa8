//! One pass over the plan: starts the stages, joins them, and keeps the first error.
//!
//! ```text
//! feed ──units──▶ read ──slots──▶ seal ×N ──steps──▶ assemble (caller) ──packs──▶ uploads (runtime)
//!   └──────────── zero ranges ────────────────────────▲
//! ```
//!
//! It cannot deadlock: data flows one way, and what flows back (slots, tickets) is only ever waited
//! for by a stage ahead of the one that gives it. A stage that ends, well or not, drops its channel
//! ends, and its neighbours end too.

use super::assemble::{AssembleStage, Assembled};
use super::backup_source::{BackupRead, SourceBackup};
use super::bounds::Bounds;
use super::checkpoint::{CheckpointSchedule, Checkpoints};
use super::compression::{CompressionChoice, CompressionController, CompressionUsed};
use super::dedup::Dedup;
use super::feed::{FeedOut, FeedStage};
use super::read::{ReadStage, ReadStats};
use super::seal::{SealStage, SealStats};
use super::stop::Stop;
use super::unit::{Filled, Unit};
use super::upload::{UploadBounds, UploadStats, Uploads};
use crate::run::Progress;
use crate::volume::device::Source;
use crate::volume::io::{Arena, Engine, EngineChoice};
use chunkstore::{
    ChunkNo, Compression, Error, ErrorKind, Geometry, MapBuilder, MapReader, PackAllocator,
    PackBuilder, PackId, PackKind, Repository, Result, Sealer, VolumeMap,
    dedup::RunTable,
    format::{Attachment, Checkpoint},
    map::{Inherit, PageSink, ReadLimits},
    protocol::Checkpointer,
};
use crossbeam_channel::{Receiver, Sender, bounded};
use mover_changes::BackupPlan;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

/// A segment of fewer records is not worth a request in the middle of a run.
const SEGMENT_RECORDS_MIN: u64 = 4096;

/// Where the bytes of a pass come from.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    Device {
        source: &'a Source,
        engine: EngineChoice,
    },
    /// A backup in another repository.
    Backup(&'a SourceBackup),
}

/// The read stage, whatever it reads.
enum Reading<'a> {
    Device(ReadStage<'a>),
    Backup(BackupRead<'a>),
}

impl Reading<'_> {
    fn run(self, inbox: &Receiver<Unit>, outbox: &Sender<Filled>) -> Result<ReadStats> {
        match self {
            Self::Device(stage) => stage.run(inbox, outbox),
            Self::Backup(stage) => stage.run(inbox, outbox),
        }
    }
}

/// What a pass works with.
pub(crate) struct Pass<'a> {
    pub(crate) repo: &'a Arc<Repository>,
    pub(crate) runtime: &'a tokio::runtime::Handle,
    pub(crate) input: Input<'a>,
    pub(crate) geometry: Geometry,
    /// What is left to do.
    pub(crate) plan: &'a BackupPlan,
    /// Where the map goes on, if not at its start.
    pub(crate) from: Option<&'a Checkpoint>,
    /// Writes down how far the run is, where another one may go on with it.
    pub(crate) checkpointer: Option<Checkpointer>,
    /// How often that is done.
    pub(crate) schedule: CheckpointSchedule,
    pub(crate) parent: Option<VolumeMap>,
    pub(crate) dedup: &'a Dedup,
    pub(crate) bounds: &'a Bounds,
    pub(crate) compression: CompressionChoice,
    pub(crate) limit_read: Option<NonZeroU64>,
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
    /// What was stored besides, once it is: see `attach`.
    pub(crate) attachments: Vec<Attachment>,
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
        let mut uploads = self.uploads();
        let stages = self.stages(&mut uploads);
        let done = stages.and_then(|s| {
            self.stop.take()?;
            let upload = uploads.finish()?;
            match (s.assembled, s.read, s.seal) {
                (Some(assembled), Some(read), Some(seal)) => {
                    let own_packs = uploads.take_packs();
                    let (engine, compression) = (s.engine, s.compression);
                    let attachments = Vec::new();
                    Ok(PassDone {
                        assembled,
                        engine,
                        read,
                        seal,
                        upload,
                        compression,
                        own_packs,
                        attachments,
                    })
                }
                _ => Err(Error::new(ErrorKind::Bug, "end the run", "a stage left no result")),
            }
        });
        if done.is_err() {
            uploads.salvage();
        }
        done
    }

    fn uploads(&self) -> Uploads {
        // a killed run loses for dedup what no segment names yet: about what it loses for the map,
        // so no more
        let interval_chunks = self.schedule.hold_bytes / u64::from(self.geometry.chunk().bytes());
        let records = self.bounds.segment_records;
        let bounds = UploadBounds {
            uploads: self.bounds.uploads,
            records,
            segment_records: usize::try_from(interval_chunks.max(SEGMENT_RECORDS_MIN))
                .map_or(records, |n| n.min(records)),
        };
        let first = self.from.map_or(ChunkNo(0), |c| c.next_chunk);
        let on = self.checkpointer.is_some();
        let checkpoints = Checkpoints::new(self.schedule, first, on, Instant::now());
        let checkpointer = self.checkpointer.clone();
        let (repo, runtime) = (self.repo, self.runtime);
        Uploads::new(repo, runtime, self.stop, self.progress, bounds, checkpoints, checkpointer)
    }

    fn stages(&self, uploads: &mut Uploads) -> Result<Stages> {
        let b = self.bounds;
        let arena = Arena::new(b.slots, b.slot_bytes as usize)?;
        let (read, engine_name) = self.reading(&arena)?;
        let keys = self.repo.keys();
        let allocator = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, b.pack_bytes)
            .staggered(self.staggered_packs());
        let table = RunTable::new(b.run_table_bytes);
        // what comes over a network is planned in larger pieces than what a device has in flight
        let ahead = match self.input {
            Input::Device { .. } => b.depth,
            Input::Backup(_) => b.units_ahead,
        };
        let (units_tx, units) = bounded(ahead);
        let (filled_tx, filled) = bounded(b.slots);
        let (steps_tx, steps) = bounded(2 * b.seal_threads + 2);
        let (tickets_tx, tickets) = bounded(b.units_ahead);
        let level = CompressionController::new(self.compression, b.seal_thread_bytes);
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

    /// The read stage, and the name of what it reads with.
    fn reading<'s>(&'s self, arena: &'s Arc<Arena>) -> Result<(Reading<'s>, &'static str)> {
        let (geometry, progress, stop) = (self.geometry, &**self.progress, &**self.stop);
        match self.input {
            Input::Device { source, engine } => {
                let engine = Engine::start(engine, arena, source.io_file(), self.bounds.depth)?;
                let name = engine.name();
                let source = source.path();
                let stage = ReadStage { engine, arena, geometry, source, progress, stop };
                Ok((Reading::Device(stage), name))
            }
            Input::Backup(origin) => {
                let runtime = self.runtime;
                let stage = BackupRead { origin, arena, geometry, runtime, progress, stop };
                Ok((Reading::Backup(stage), "repository"))
            }
        }
    }

    /// Uneven first packs cost a request or two more: worth it only where many follow.
    fn staggered_packs(&self) -> u32 {
        let many = 4 * self.bounds.uploads as u64 * u64::from(self.bounds.pack_bytes);
        if self.plan.read_bytes < many {
            0
        } else {
            u32::try_from(self.bounds.uploads).unwrap_or(0)
        }
    }

    fn feed(&self) -> Result<FeedStage<'_>> {
        let fanout = self.repo.params().page_fanout;
        let unit_chunks = self.bounds.slot_bytes / self.geometry.chunk().bytes();
        Ok(FeedStage {
            geometry: self.geometry,
            fanout,
            unit_chunks: u16::try_from(unit_chunks).unwrap_or(u16::MAX),
            window_leaves: self.bounds.window_leaves,
            limit_read: self.limit_read,
            parent: self
                .parent
                .clone()
                .map(|map| {
                    let limits = ReadLimits::within(self.bounds.map_read_bytes);
                    let mut reader = MapReader::with_limits(Arc::clone(self.repo), map, limits)?;
                    // the plan reads all that they hold, or inherits nothing
                    reader.skip_damaged(self.dedup.damage().clone());
                    Ok::<_, Error>(reader)
                })
                .transpose()?,
            first: self.from.map(|c| c.next_chunk),
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
        let (keys, parent) = (Arc::clone(repo.keys()), self.parent.clone());
        let mut builder = MapBuilder::new(keys, fanout, self.geometry, inherit, parent)?;
        if let Some(from) = self.from {
            builder.go_on_from(from.next_chunk, &from.frontier)?;
        }
        Ok(AssembleStage {
            builder,
            sink: PageSink::new(
                repo.keys(),
                *repo.id(),
                Compression::Zstd(1),
                self.bounds.pack_bytes,
            )?,
            collector: PackBuilder::new(Arc::clone(repo.keys()), *repo.id(), PackKind::Chunks),
            table,
            uploads,
            tickets,
            chunk_bytes: self.geometry.chunk().bytes(),
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
