//! Stage *read*: one thread that owns the engine and keeps the device busy.
//!
//! A unit gets a slot, is in flight in the device, and is handed to the seal threads. It never
//! waits for a slot while a read is in flight, nor for a unit: so a completion is always taken.
//! Slots come back from the seal threads, which wait for nothing that this thread holds.

use super::stop::Stop;
use super::unit::{Filled, Unit};
use crate::run::Progress;
use crate::volume::io::{Arena, Engine, Op, Slot};
use chunkstore::{Error, ErrorKind, Geometry, Result};
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait for a slot looks whether the run has to stop.
const LOOK_UP: Duration = Duration::from_millis(200);

/// What the stage did and where it waited.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReadStats {
    pub(crate) read_bytes: u64,
    pub(crate) reads: u64,
    /// For the device.
    pub(crate) device_wait: Duration,
    /// For a free slot: the stages behind are the limit.
    pub(crate) slot_wait: Duration,
}

pub(crate) struct ReadStage<'a> {
    pub(crate) engine: Engine,
    pub(crate) arena: &'a Arc<Arena>,
    pub(crate) geometry: Geometry,
    pub(crate) source: &'a Path,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
}

enum Next {
    Submit(Unit, Slot),
    /// Nothing can be submitted now; something is in flight.
    Full,
    End,
}

impl ReadStage<'_> {
    pub(crate) fn run(
        mut self,
        inbox: &Receiver<Unit>,
        outbox: &Sender<Filled>,
    ) -> Result<ReadStats> {
        let mut stats = ReadStats::default();
        let mut flying: HashMap<u64, Unit> = HashMap::new();
        let mut held: Option<Unit> = None;
        loop {
            if self.stop.stopping() {
                return Ok(stats);
            }
            match self.next(inbox, &mut held, &mut stats) {
                Next::Submit(unit, slot) => {
                    let offset = self.geometry.offset(unit.first);
                    let op = Op::read(slot, offset, unit.read_bytes, unit.seq);
                    self.engine.submit(op).map_err(|rejected| rejected.error)?;
                    flying.insert(unit.seq, unit);
                }
                Next::End if flying.is_empty() => return Ok(stats),
                Next::Full | Next::End => {
                    let since = Instant::now();
                    let done = self.engine.wait()?;
                    stats.device_wait += since.elapsed();
                    let Some(unit) = flying.remove(&done.op.tag) else {
                        let what = format!("completion {} was never submitted", done.op.tag);
                        return Err(Error::new(ErrorKind::Bug, "read a device", what));
                    };
                    let slot = done.into_slot(self.source)?;
                    stats.reads += 1;
                    stats.read_bytes += u64::from(unit.read_bytes);
                    self.progress.read_bytes.add(u64::from(unit.read_bytes));
                    if outbox.send(Filled { unit, slot }).is_err() {
                        return Ok(stats);
                    }
                }
            }
        }
    }

    /// `None`: the run has to stop. Slots that lie in the channel to seal threads which have ended
    /// come back only when this thread has ended too, so it must not wait for them.
    fn wait_for_slot(&self) -> Option<Slot> {
        loop {
            if let Some(slot) = self.arena.take_timeout(LOOK_UP) {
                return Some(slot);
            }
            if self.stop.stopping() {
                return None;
            }
        }
    }

    /// The next unit with a slot for it. Blocks only while nothing is in flight.
    fn next(&self, inbox: &Receiver<Unit>, held: &mut Option<Unit>, stats: &mut ReadStats) -> Next {
        let idle = self.engine.in_flight() == 0;
        if !self.engine.has_room() {
            return Next::Full;
        }
        if held.is_none() {
            *held = if idle {
                inbox.recv().ok()
            } else {
                match inbox.try_recv() {
                    Ok(unit) => Some(unit),
                    Err(TryRecvError::Empty) => return Next::Full,
                    Err(TryRecvError::Disconnected) => None,
                }
            };
        }
        if held.is_none() {
            return Next::End;
        }
        let slot = if idle {
            let since = Instant::now();
            let slot = self.wait_for_slot();
            stats.slot_wait += since.elapsed();
            if slot.is_none() {
                return Next::End;
            }
            slot
        } else {
            self.arena.take()
        };
        match (slot, held.take()) {
            (Some(slot), Some(unit)) => Next::Submit(unit, slot),
            (_, unit) => {
                *held = unit;
                Next::Full
            }
        }
    }
}
