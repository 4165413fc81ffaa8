//! Stage *plan*: cuts the plan into windows, loads the parent's map pages of each window, and hands
//! out read units and zero ranges in ascending order.
//!
//! A window touches a bounded number of leaf pages, so a plan over a petabyte needs no more memory
//! than one over a gigabyte. A ticket is taken for each step and given back when the map has taken
//! it: that bounds how far this stage runs ahead. It waits only for tickets and for the reader's
//! inbox; neither needs anything of this stage.

use super::read_throttle::ReadThrottle;
use super::stop::Stop;
use super::unit::{Step, Unit, Work};
use super::units::{UnitCutter, UnitPiece, Windows, read_bytes};
use chunkstore::{Advice, ChunkNo, ErrorKind, Geometry, MapReader, Result, Setting, map::PageSet};
use crossbeam_channel::Sender;
use mover_changes::BackupPlan;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct FeedStage<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) fanout: u16,
    /// Chunks of one read unit: a group of this many, aligned to as many.
    pub(crate) unit_chunks: u16,
    pub(crate) window_leaves: usize,
    /// Bytes a second that may be read.
    pub(crate) limit_read: Option<NonZeroU64>,
    pub(crate) parent: Option<MapReader>,
    /// Where the map goes on, if not at its start: the parent's pages there are needed first.
    pub(crate) first: Option<ChunkNo>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) stop: &'a Stop,
}

/// Where the stage hands its work to.
pub(crate) struct FeedOut {
    pub(crate) units: Sender<Unit>,
    pub(crate) steps: Sender<Step>,
    pub(crate) tickets: Sender<()>,
}

impl FeedStage<'_> {
    pub(crate) fn run(mut self, plan: &BackupPlan, out: &FeedOut) -> Result<()> {
        let turns = ReadThrottle::new(self.limit_read);
        let cutter = UnitCutter::new(self.unit_chunks, self.geometry.chunk());
        let mut feed = Feed { seq: 0, base: None, cutter, turns, out };
        for window in Windows::new(plan, self.fanout, self.window_leaves) {
            feed.base = self.load(&window)?;
            for piece in window {
                let fed = match piece {
                    UnitPiece::Read(range) => self.read(&mut feed, range),
                    UnitPiece::Zero(range) => {
                        self.flush(&mut feed) && self.step(&mut feed, Work::Zero(range))
                    }
                };
                if !fed {
                    return Ok(());
                }
            }
            if !self.flush(&mut feed) {
                return Ok(());
            }
        }
        // after a shrink the map's right edge is cut even where nothing was read
        let ours = self.geometry.chunks();
        let both = self.parent.as_ref().map_or(ours, |p| p.map().geometry().chunks().min(ours));
        feed.base = self.load(&[UnitPiece::Read(both - 1..both)])?;
        self.step(&mut feed, Work::Pages);
        Ok(())
    }

    /// The parent's pages that the window's updates and comparisons need.
    fn load(&mut self, window: &[UnitPiece]) -> Result<Option<Arc<PageSet>>> {
        let Some(parent) = &mut self.parent else { return Ok(None) };
        let end = parent.map().geometry().chunks();
        let mut wanted: Vec<Range<u64>> = Vec::with_capacity(window.len());
        for piece in window {
            match piece {
                UnitPiece::Read(r) => wanted.push(r.clone()),
                UnitPiece::Zero(r) => wanted.extend([r.start..r.start + 1, r.end - 1..r.end]),
            }
        }
        wanted.extend(self.first.take().map(|first| first.0..first.0 + 1));
        // what the parent never had is not in its map
        let within =
            wanted.into_iter().map(|r| r.start..r.end.min(end)).filter(|r| r.start < r.end);
        let wanted: Vec<_> = within.collect();
        let loaded = self.stop.block_on(&self.runtime, parent.load(&wanted))?;
        // pages that are known to be damaged are no news: the plan has seen them
        drop(parent.take_lost());
        loaded.map(|pages| Some(Arc::new(pages))).map_err(|e| match e.kind() {
            ErrorKind::Corrupt | ErrorKind::Missing => {
                e.within("build on the parent backup").hint(format!(
                    "{}, and backups store it again; or build on nothing with {} none",
                    Advice::RecordDamage.words(),
                    Setting("parent")
                ))
            }
            _ => e,
        })
    }

    /// Hands out a step that needs no reading; false when the run is over.
    fn step(&self, feed: &mut Feed<'_>, work: Work) -> bool {
        if !self.stop.send(&feed.out.tickets, ()) {
            return false;
        }
        let step = Step { seq: feed.take_seq(), base: feed.base.clone(), work };
        feed.out.steps.send(step).is_ok()
    }

    /// Hands out the units that a run of chunks completes; false when the run is over.
    fn read(&self, feed: &mut Feed<'_>, mut range: Range<u64>) -> bool {
        while !range.is_empty() {
            let complete = feed.cutter.push(&mut range);
            if !self.hand_out(feed, complete) {
                return false;
            }
        }
        true
    }

    /// Hands out the pending unit; false when the run is over.
    fn flush(&self, feed: &mut Feed<'_>) -> bool {
        let pending = feed.cutter.take();
        self.hand_out(feed, pending)
    }

    /// Hands out a unit, if there is one; false when the run is over.
    fn hand_out(&self, feed: &mut Feed<'_>, unit: Option<Vec<Range<u64>>>) -> bool {
        let Some(wanted) = unit else { return true };
        let Some(start) = wanted.first().map(|r| r.start) else { return true };
        if !self.stop.send(&feed.out.tickets, ()) {
            return false;
        }
        let bytes = read_bytes(self.geometry, &wanted);
        // a group has at most ENTRY_CHUNKS_MAX chunks and ENTRY_PLAIN_BYTES_MAX bytes, so all fit
        let near = |n: u64| u16::try_from(n - start).unwrap_or(u16::MAX);
        let unit = Unit {
            seq: feed.take_seq(),
            first: ChunkNo(start),
            wanted: wanted.iter().map(|r| near(r.start)..near(r.end)).collect(),
            read_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            base: feed.base.clone(),
        };
        feed.turns.wait(bytes, || self.stop.stopping()) && feed.out.units.send(unit).is_ok()
    }
}

/// State of the stage between pieces.
struct Feed<'a> {
    seq: u64,
    base: Option<Arc<PageSet>>,
    cutter: UnitCutter,
    turns: ReadThrottle,
    out: &'a FeedOut,
}

impl Feed<'_> {
    fn take_seq(&mut self) -> u64 {
        let seq = self.seq;
        self.seq += 1;
        seq
    }
}
