//! The write stage: one thread feeds the engine, another makes ranges zero.
//!
//! The engine's thread owns the engine, the slots in flight, and the few edge bytes, which are
//! written last (see [`write_edges`]). It never waits for anyone but the device and its inbox: it
//! takes writes while there is room, and waits for a completion when there is none. After a failure
//! both threads go on emptying their inboxes, so that slots come home and senders do not wait.

use super::open::Write;
use crate::run::failure::Failure;
use crate::run::{Cancel, Progress};
use crate::volume::device::Target;
use crate::volume::io::{Engine, Op};
use chunkstore::Result;
use crossbeam_channel::{Receiver, TryRecvError};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What the write stage knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteContext<'a> {
    pub(crate) target: &'a Target,
    pub(crate) failure: &'a Failure,
    pub(crate) cancel: &'a Cancel,
    pub(crate) progress: &'a Progress,
}

/// What was written, and what is left to write.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    pub(crate) waited_for_device: Duration,
    pub(crate) edges: Vec<Edge>,
}

/// Bytes at an edge of the wanted range that are not a whole chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Runs until the inbox is closed and every slot is home.
pub(crate) fn run(mut engine: Engine, inbox: &Receiver<Write>, ctx: WriteContext<'_>) -> Written {
    let mut written = Written::default();
    let mut open = true;
    while open || engine.in_flight() > 0 {
        open = open && take_writes(&mut engine, inbox, ctx, &mut written);
        if engine.in_flight() == 0 {
            continue;
        }
        let begun = Instant::now();
        let completed = engine.wait();
        written.waited_for_device += begun.elapsed();
        let Some(completed) = ctx.failure.note(completed) else {
            // The engine itself is broken, its slots may be lost with it: openers wait for slots
            // with an eye on the failure.
            break;
        };
        let len = u64::from(completed.op.span.len);
        if ctx.failure.note(completed.into_slot(ctx.target.path())).is_some() {
            written.bytes += len;
            written.writes += 1;
            ctx.progress.written_bytes.add(len);
        }
    }
    drop(engine);
    inbox.iter().for_each(drop);
    written
}

/// Submits what is there, as far as there is room. False once the inbox is closed.
fn take_writes(
    engine: &mut Engine,
    inbox: &Receiver<Write>,
    ctx: WriteContext<'_>,
    written: &mut Written,
) -> bool {
    while engine.has_room() {
        let write = if engine.in_flight() == 0 {
            inbox.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            inbox.try_recv()
        };
        match write {
            Ok(_) if ctx.failure.failed() => {}
            Ok(Write::Slot { slot, offset, len }) => {
                let submitted = engine.submit(Op::write(slot, offset, len, 0));
                ctx.failure.note(submitted.map_err(|rejected| rejected.error));
            }
            Ok(Write::Edge { offset, bytes }) => written.edges.push(Edge { offset, bytes }),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        }
    }
    true
}

/// Deallocates at most so much at once, so that a request to stop is seen and progress is shown.
const ZERO_STEP_BYTES: u64 = 1 << 30;

/// Makes ranges zero until the inbox is closed.
pub(crate) fn run_zero(mut inbox: mpsc::Receiver<Vec<Range<u64>>>, ctx: WriteContext<'_>) -> u64 {
    let mut bytes = 0;
    while let Some(ranges) = inbox.blocking_recv() {
        for step in ranges.into_iter().flat_map(|r| steps(r, ZERO_STEP_BYTES)) {
            if ctx.failure.failed() || ctx.failure.note(ctx.cancel.check()).is_none() {
                break;
            }
            let len = step.end - step.start;
            if ctx.failure.note(ctx.target.deallocate_or_zero(step)).is_some() {
                bytes += len;
                ctx.progress.done_bytes.add(len);
                ctx.progress.zero_bytes.add(len);
            }
        }
    }
    bytes
}

/// A range in steps that end at multiples of `step_bytes`.
fn steps(range: Range<u64>, step_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / step_bytes + 1).saturating_mul(step_bytes).min(range.end);
        let step = at..end;
        at = end;
        (!step.is_empty()).then_some(step)
    })
}

/// Writes the edges, and nothing beside them. This comes after all other writes: the block around
/// an edge is read first, and what those left must be found there.
pub(crate) fn write_edges(target: &Target, edges: &[Edge], progress: &Progress) -> Result<()> {
    for Edge { offset, bytes } in edges {
        target.write_all_at(bytes, *offset)?;
        progress.written_bytes.add(bytes.len() as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_ranges_are_cut_at_round_offsets() {
        let cut: Vec<_> = steps(5..35, 10).collect();
        assert_eq!(cut, [5..10, 10..20, 20..30, 30..35]);
        assert_eq!(steps(10..20, 10).count(), 1);
        assert_eq!(steps(7..7, 10).count(), 0);
        let last = steps(u64::MAX - 3..u64::MAX, 1 << 30).last();
        assert_eq!(last, Some(u64::MAX - 3..u64::MAX));
    }
}
