//! Stage *assemble*: the caller's thread. It owns the volume map and the packs, and starts uploads.
//!
//! Results arrive in any order. A sealed entry goes to its pack at once; what became of each chunk
//! waits, as a few dozen bytes, for its turn in the map, which is built in ascending order. A chunk
//! that another unit claimed waits for that unit's result, which is under way and needs nothing of
//! this stage but that it keeps receiving: so this stage never stops receiving to wait for a chunk.
//! It does stop for uploads: that is how a slow store holds the run back.
//!
//! When the run has to stop, it goes on receiving until the stages ahead have ended, so that the
//! packs that are open can be completed: an entry that got a place and never arrived would cost its
//! whole pack.

use super::stop::Stop;
use super::unit::{ChunkOutcome, SealedUnit, Step, Work};
use super::upload::Uploads;
use chunkstore::{
    ChunkId, ChunkNo, ChunkRef, Error, ErrorKind, Location, MapBuilder, PackBuilder, PackId,
    Result, dedup::RunTable, format::MapRoot, map::PageSink,
};
use crossbeam_channel::Receiver;
use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

pub(crate) struct AssembleStage<'a> {
    pub(crate) builder: MapBuilder,
    pub(crate) sink: PageSink,
    pub(crate) collector: PackBuilder,
    pub(crate) table: &'a RunTable,
    pub(crate) uploads: &'a mut Uploads,
    pub(crate) tickets: Receiver<()>,
    pub(crate) chunk_bytes: u32,
    pub(crate) stop: &'a Stop,
}

/// What the stage leaves, besides the uploads.
pub(crate) struct Assembled {
    pub(crate) map: MapRoot,
    pub(crate) pages: u64,
    /// Packs of other backups that a dedup segment led to.
    pub(crate) reused: HashSet<PackId>,
}

/// A chunk whose turn in the map has not come.
#[derive(Debug, Clone, Copy)]
enum Waiting {
    Zero,
    Ref(ChunkRef),
    Claimed(ChunkId),
}

struct Turn {
    base: Option<std::sync::Arc<chunkstore::map::PageSet>>,
    work: TurnWork,
}

enum TurnWork {
    Chunks(Vec<(ChunkNo, Waiting)>),
    Zero(std::ops::Range<u64>),
    Pages,
}

impl AssembleStage<'_> {
    /// Ends when all senders of steps are gone. `close` ends the last pack.
    pub(crate) fn run(
        mut self,
        inbox: &Receiver<Step>,
        close: impl Fn() -> Option<chunkstore::pack::ClosedPack>,
    ) -> Result<Option<Assembled>> {
        let mut turns: BTreeMap<u64, Turn> = BTreeMap::new();
        let mut next = 0;
        let mut reused = HashSet::new();
        while let Ok(step) = inbox.recv() {
            let turn = self.arrived(step.base, step.work, &mut reused)?;
            turns.insert(step.seq, turn);
            while let Some(mut turn) = turns.remove(&next) {
                if !self.apply(&mut turn)? {
                    turns.insert(next, turn);
                    break;
                }
                next += 1;
                if let (Some(meter), TurnWork::Chunks(_)) = (self.stop.meter(), &turn.work) {
                    meter.unit_done();
                }
                // one ticket was taken for each step, so there is one to give back
                let _ = self.tickets.try_recv();
            }
            if self.uploads.checkpoints().due(Instant::now()) {
                self.cut(&close, &reused)?;
            }
            if self.uploads.must_close() {
                close_chunks(&mut self.collector, &mut self.sink, self.uploads, &close)?;
            }
            self.uploads.hold()?;
            if let Some(meter) = self.stop.meter() {
                // looked up at a checkpoint, and again before the commit
                let requests = self.uploads.requests() + 2 * reused.len() as u64;
                meter.set_pending(self.sink.held_bytes() as u64, requests);
            }
        }
        if self.stop.stopping() {
            // every entry that has a place has arrived: what is begun can be completed and kept
            self.cut(&close, &reused)?;
            return Ok(None);
        }
        if !turns.is_empty() {
            let what = format!("{} results never got their turn", turns.len());
            return Err(Error::new(ErrorKind::Bug, "build the volume map", what));
        }
        let map = self.builder.finish(&mut self.sink)?;
        let pages = self.sink.pages();
        self.sink.close()?;
        close_chunks(&mut self.collector, &mut self.sink, self.uploads, &close)?;
        Ok(Some(Assembled { map, pages, reused }))
    }

    /// Has everything stored that the map refers to so far, and the place noted as one to go on
    /// from.
    fn cut(
        &mut self,
        close: &impl Fn() -> Option<chunkstore::pack::ClosedPack>,
        reused: &HashSet<PackId>,
    ) -> Result<()> {
        let frontier = match self.uploads.checkpoints().on() {
            true => self.builder.frontier(&mut self.sink)?,
            false => None,
        };
        let ahead = frontier.filter(|(next, _)| self.uploads.checkpoints().is_ahead(*next));
        if ahead.is_some() {
            self.sink.close()?;
        }
        if self.stop.stopping() {
            close_chunks(&mut self.collector, &mut self.sink, self.uploads, close)?;
        }
        ship(&mut self.collector, &mut self.sink, self.uploads)?;
        match ahead {
            // every pack that the map refers to and that is not stored is under way, or some of its
            // entries have arrived here
            Some(frontier) => self.uploads.cut(frontier, self.collector.unfinished_packs(), reused),
            None => {
                self.uploads.checkpoints().skip(Instant::now());
                Ok(())
            }
        }
    }

    /// Takes what cannot wait out of a result: the entry goes to its pack, locations become known
    /// to the run.
    fn arrived(
        &mut self,
        base: Option<std::sync::Arc<chunkstore::map::PageSet>>,
        work: Work,
        reused: &mut HashSet<PackId>,
    ) -> Result<Turn> {
        let work = match work {
            Work::Zero(range) => TurnWork::Zero(range),
            Work::Pages => TurnWork::Pages,
            Work::Unit(SealedUnit { chunks, entry }) => {
                let place = |index| entry.as_ref().map(|e| e.location(index));
                let mut waiting = Vec::with_capacity(chunks.len());
                for (chunk, outcome) in chunks {
                    waiting.push((chunk, self.settle(outcome, place, reused)?));
                }
                if let Some(entry) = entry {
                    self.collector.add(entry)?;
                    ship(&mut self.collector, &mut self.sink, self.uploads)?;
                }
                TurnWork::Chunks(waiting)
            }
        };
        Ok(Turn { base, work })
    }

    fn settle(
        &self,
        outcome: ChunkOutcome,
        place: impl Fn(u16) -> Option<Location>,
        reused: &mut HashSet<PackId>,
    ) -> Result<Waiting> {
        Ok(match outcome {
            ChunkOutcome::Zero => Waiting::Zero,
            ChunkOutcome::Unchanged(stored) | ChunkOutcome::Own(stored) => Waiting::Ref(stored),
            ChunkOutcome::Claimed(id) => Waiting::Claimed(id),
            ChunkOutcome::Reused(stored) => {
                reused.insert(stored.location.pack);
                self.table.publish(&stored.id, &stored.location);
                Waiting::Ref(stored)
            }
            ChunkOutcome::New(id, index) => {
                let location = place(index).ok_or_else(|| {
                    Error::new(ErrorKind::Bug, "place a new chunk", "its unit has no entry")
                })?;
                self.table.publish(&id, &location);
                Waiting::Ref(ChunkRef { id, location })
            }
        })
    }

    /// Puts one result into the map; false if a chunk of it is still being stored by another unit.
    fn apply(&mut self, turn: &mut Turn) -> Result<bool> {
        if let TurnWork::Chunks(chunks) = &mut turn.work {
            for (_, waiting) in chunks.iter_mut() {
                if let Waiting::Claimed(id) = *waiting {
                    let Some(location) = self.table.settle(&id) else { return Ok(false) };
                    *waiting = Waiting::Ref(ChunkRef { id, location });
                }
            }
        }
        if let Some(base) = &turn.base {
            self.builder.provide(base)?;
        }
        match &turn.work {
            TurnWork::Pages => {}
            TurnWork::Zero(range) => self.builder.set_zero(&mut self.sink, range.clone())?,
            TurnWork::Chunks(chunks) => {
                for (chunk, waiting) in chunks {
                    let stored = match waiting {
                        Waiting::Ref(stored) => Some(*stored),
                        Waiting::Zero | Waiting::Claimed(_) => None,
                    };
                    self.builder.set(&mut self.sink, *chunk, stored)?;
                }
                let bytes = chunks.len() as u64 * u64::from(self.chunk_bytes);
                self.uploads.checkpoints().done(bytes);
            }
        }
        Ok(true)
    }
}

/// Starts the upload of every pack that is complete.
fn ship(collector: &mut PackBuilder, sink: &mut PageSink, uploads: &mut Uploads) -> Result<()> {
    while let Some(pack) = collector.take_finished() {
        uploads.start(pack)?;
    }
    while let Some(pack) = sink.take_finished() {
        uploads.start(pack)?;
    }
    Ok(())
}

/// Ends the pack of chunks that is being filled, and starts the upload of those that are complete.
fn close_chunks(
    collector: &mut PackBuilder,
    sink: &mut PageSink,
    uploads: &mut Uploads,
    close: &impl Fn() -> Option<chunkstore::pack::ClosedPack>,
) -> Result<()> {
    if let Some(closed) = close() {
        collector.close(closed)?;
    }
    ship(collector, sink, uploads)
}
