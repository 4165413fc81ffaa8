//! One run through the stages: starts the threads, drives the network, joins everything, adds up.
//!
//! ```text
//!  map ─▶ plan ─▶ range reads ─▶ open, check ids ─▶ slots ─▶ engine ─▶ target      (any order)
//!          │        (tokio)        (N threads)   └─▶ pieces ─▶ one writer ─▶ output  (in order)
//!          └─▶ zero ranges ─▶ one thread ─▶ target
//! ```
//!
//! The caller's thread drives the network stage. Memory in flight is bounded by what travels with
//! it: permits for stored bytes, slots or permits for opened ones.
//!
//! Cannot deadlock: waiting goes one way, towards the output. The network waits for permits (freed
//! by openers, or by the writer of the output in order) and for the zero thread; openers wait for
//! slots (freed by the engine's thread); the engine's, the zero and the output threads wait for the
//! outside world only. Every stage empties its inbox to the end, also after a failure, and ends
//! when its inbox closes; inboxes close from the front, because the network stage ends at the end
//! of the map, at an error, at a failure elsewhere or when it is asked to stop.

use super::damage::Damage;
use super::fetch::{Fetch, FetchStats, ZeroBox};
use super::limits::{Limits, READS_MAX, READS_START};
use super::open::{self, OpenContext, OpenStats, Outbox, Outcome, Sealed};
use super::plan::{PlanScope, ReadShape};
use super::stream::{self, StreamContext, Streamed};
use super::write::{self, WriteContext, Written};
use crate::run::concurrency::Gate;
use crate::run::failure::Failure;
use crate::run::threads::spawn;
use crate::run::{Cancel, RunContext};
use crate::volume::device::Target;
use crate::volume::io::{Arena, Engine};
use chunkstore::{Error, ErrorKind, MapReader, Repository, Result, fetch::StubFollower};
use crossbeam_channel::{Receiver, unbounded};
use std::io::Write;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use tokio::sync::{Mutex, Semaphore, mpsc};

/// Bytes between two entries that are read for nothing rather than paying for another request.
pub(crate) const GAP_BYTES: u32 = 128 << 10;

/// What all stages share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) context: RunContext<'a>,
    pub(crate) repo: &'a Arc<Repository>,
    pub(crate) scope: &'a PlanScope,
    pub(crate) limits: &'a Limits,
}

/// Where the volume goes.
pub(crate) enum Destination<'a> {
    /// Onto a device or image.
    Target {
        target: &'a Target,
        engine: Box<Engine>,
        arena: Arc<Arena>,
        /// The target reads zero wherever nothing is written.
        reads_zero: bool,
        /// What is damaged is left out, and collected here.
        skip: Option<Arc<Damage>>,
    },
    /// Out, in order; what is damaged as zeros, if it is to be collected.
    Output(&'a mut (dyn Write + Send), Option<Arc<Damage>>),
    /// Nowhere: the data is checked, and what is damaged collected.
    Check(Arc<Damage>),
}

/// What a run did.
#[derive(Debug, Default)]
pub(crate) struct ReadingFigures {
    pub(crate) fetch: FetchStats,
    pub(crate) open: OpenStats,
    pub(crate) written: Written,
    pub(crate) streamed: Streamed,
}

/// Runs all stages to the end. An error is the first one that any of them met.
pub(crate) fn run(run: Run<'_>, reader: MapReader, to: Destination<'_>) -> Result<ReadingFigures> {
    let failure = Failure::default();
    let figures = std::thread::scope(|threads| match to {
        Destination::Target { target, engine, arena, reads_zero, skip } => {
            let ctx = WriteContext {
                target,
                failure: &failure,
                cancel: run.context.cancel,
                progress: run.context.progress,
            };
            let (writes, inbox) = unbounded();
            let writer =
                spawn(threads, &failure, "write", move || write::run(*engine, &inbox, ctx));
            let (zero, zeroer) = if reads_zero {
                (ZeroBox::Counted, None)
            } else {
                let (zero, inbox) = mpsc::channel(2);
                let zeroer = spawn(threads, &failure, "zero", move || write::run_zero(inbox, ctx));
                (ZeroBox::Target(zero), zeroer)
            };
            let outbox = Outbox::Target { arena, writes };
            let outcome = skip.map_or(Outcome::Restored, Outcome::Checked);
            let (fetch, open) = middle(run, &failure, threads, reader, outbox, zero, outcome);
            let written = failure.join("write", writer).unwrap_or_default();
            failure.join("zero", zeroer);
            ReadingFigures { fetch, open, written, ..ReadingFigures::default() }
        }
        Destination::Output(out, skip) => {
            let (pieces, inbox) = unbounded();
            let want = run.scope.want.clone();
            let (failure_ref, cancel, progress) =
                (&failure, run.context.cancel, run.context.progress);
            let ctx = StreamContext { want, failure: failure_ref, cancel, progress };
            let writer = spawn(threads, &failure, "output", move || stream::run(out, &inbox, &ctx));
            let zero = ZeroBox::Ordered(pieces.clone());
            let outcome = match skip {
                Some(damage) => Outcome::Zeroed(damage, pieces.clone()),
                None => Outcome::Restored,
            };
            let outbox = Outbox::Ordered(pieces);
            let (fetch, open) = middle(run, &failure, threads, reader, outbox, zero, outcome);
            let streamed = failure.join("output", writer).unwrap_or_default();
            ReadingFigures { fetch, open, streamed, ..ReadingFigures::default() }
        }
        Destination::Check(damage) => {
            let outcome = Outcome::Checked(damage);
            let zero = ZeroBox::Counted;
            let (fetch, open) =
                middle(run, &failure, threads, reader, Outbox::Nowhere, zero, outcome);
            ReadingFigures { fetch, open, ..ReadingFigures::default() }
        }
    });
    failure.into_result().map(|()| figures)
}

/// The network and the openers. When it returns, nothing more goes into the outbox and its senders
/// are gone.
fn middle<'scope, 'env: 'scope>(
    run: Run<'env>,
    failure: &'scope Failure,
    threads: &'scope Scope<'scope, 'env>,
    reader: MapReader,
    outbox: Outbox,
    zero: ZeroBox,
    outcome: Outcome,
) -> (FetchStats, OpenStats) {
    let (entries, inbox) = unbounded();
    let openers = openers(run, failure, threads, &inbox, &outbox, &outcome);
    drop((inbox, outbox));
    let ordered = run.limits.ordered_bytes as usize;
    let fetch = Fetch {
        repo: run.repo,
        scope: run.scope,
        shape: ReadShape { gap_bytes: GAP_BYTES, read_bytes_max: run.limits.read_bytes_max },
        leaves_per_window: run.limits.leaves_per_window,
        stubs: Mutex::new(StubFollower::default()),
        memory: Arc::new(Semaphore::new(run.limits.fetch_bytes as usize)),
        gate: Gate::new(READS_START, READS_MAX),
        ordered: (ordered > 0).then(|| Arc::new(Semaphore::new(ordered))),
        outbox: entries,
        outcome,
        progress: run.context.progress,
        stats: FetchStats::default(),
    };
    run.context.rt.block_on(async {
        let fetched = fetch.run(reader, zero);
        tokio::select! {
            // a failure or a request to stop drops what is in flight
            biased;
            () = failure.wait() => {}
            () = run.context.cancel.requested() => failure.set(Cancel::error()),
            result = fetched => { failure.note(result); }
        }
    });
    let Fetch { stats, outbox, .. } = fetch;
    drop(outbox);
    let mut open = OpenStats::default();
    for opener in openers {
        if let Some(stats) = failure.join("open", Some(opener)) {
            open.add(&stats);
        }
    }
    (stats, open)
}

fn openers<'scope, 'env: 'scope>(
    run: Run<'env>,
    failure: &'scope Failure,
    threads: &'scope Scope<'scope, 'env>,
    inbox: &Receiver<Sealed>,
    outbox: &Outbox,
    outcome: &Outcome,
) -> Vec<ScopedJoinHandle<'scope, OpenStats>> {
    let start = |_| {
        let (inbox, outbox, outcome) = (inbox.clone(), outbox.clone(), outcome.clone());
        spawn(threads, failure, "open", move || {
            let ctx = OpenContext {
                keys: run.repo.keys(),
                scope: run.scope,
                failure,
                outcome: &outcome,
                progress: run.context.progress,
            };
            open::run(&ctx, &inbox, &outbox)
        })
    };
    (0..run.limits.threads).filter_map(start).collect()
}

/// Every slot is home at the end of a run, or it is our mistake.
pub(crate) fn check_home(arena: &Arena) -> Result<()> {
    if arena.all_home() {
        return Ok(());
    }
    let detail = format!("{} of {} came back", arena.free_slots(), arena.slots());
    Err(Error::new(ErrorKind::Bug, "take all buffers back", detail))
}
