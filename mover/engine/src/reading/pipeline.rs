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
use super::fetch::{Fetch, FetchStats, Planned, ZeroBox};
use super::limits::{Limits, READS_MAX, READS_START};
use super::open::{self, OpenContext, OpenStats, Outbox, Outcome, Sealed};
use super::plan::{PlanScope, ReadShape, Want};
use super::salvage::mend;
use super::stream::{self, StreamContext, Streamed};
use super::write::{self, WriteContext, Written};
use crate::run::concurrency::Gate;
use crate::run::failure::Failure;
use crate::run::threads::spawn;
use crate::run::{Cancel, RunContext};
use crate::volume::device::Target;
use crate::volume::io::{Arena, Engine};
use chunkstore::salvage::Salvage;
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
    pub(crate) salvage: &'a Arc<Salvage>,
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

impl ReadingFigures {
    fn add(&mut self, other: Self) {
        self.fetch.add(&other.fetch);
        self.open.add(&other.open);
        self.written = other.written;
        self.streamed.bytes += other.streamed.bytes;
        self.streamed.zero_bytes += other.streamed.zero_bytes;
        self.streamed.waited_for_output += other.streamed.waited_for_output;
    }
}

/// What is read.
pub(super) enum What {
    /// All that a map says; zeros go where it is said.
    Map(Box<MapReader>, ZeroBox),
    /// Chunks at known places.
    Wants(Vec<Want>),
}

/// Runs all stages to the end. An error is the first one that any of them met.
pub(crate) fn run(run: Run<'_>, reader: MapReader, to: Destination<'_>) -> Result<ReadingFigures> {
    let mut figures = ReadingFigures::default();
    run_into(run, reader, to, &mut figures).map(|()| figures)
}

/// The same, with what was done added up also where it failed.
pub(super) fn run_into(
    run: Run<'_>,
    reader: MapReader,
    to: Destination<'_>,
    figures: &mut ReadingFigures,
) -> Result<()> {
    let failure = Failure::default();
    let done = std::thread::scope(|threads| match to {
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
            let stops = skip.is_none();
            let damage = skip.unwrap_or_default();
            let what = What::Map(Box::new(reader), zero);
            let outcome = Outcome::Checked(Arc::clone(&damage));
            let (fetch, mut open) = middle(run, &failure, threads, what, outbox.clone(), outcome);
            mend(run, &failure, threads, &outbox, &damage, (&fetch, &mut open));
            drop(outbox);
            if let Some(first) = damage.take_first_if(stops) {
                failure.set(first);
            }
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
            let outcome = match &skip {
                Some(damage) => Outcome::Zeroed(Arc::clone(damage), pieces.clone()),
                None => Outcome::Restored,
            };
            let outbox = Outbox::Ordered(pieces);
            let what = What::Map(Box::new(reader), zero);
            let (fetch, open) = middle(run, &failure, threads, what, outbox, outcome);
            if let Some(damage) = skip {
                damage.lose(damage.take_waiting(), run.scope);
            }
            let streamed = failure.join("output", writer).unwrap_or_default();
            ReadingFigures { fetch, open, streamed, ..ReadingFigures::default() }
        }
        Destination::Check(damage) => {
            let outcome = Outcome::Checked(Arc::clone(&damage));
            let what = What::Map(Box::new(reader), ZeroBox::Counted);
            let (fetch, mut open) = middle(run, &failure, threads, what, Outbox::Nowhere, outcome);
            let figures = (&fetch, &mut open);
            mend(run, &failure, threads, &Outbox::Nowhere, &damage, figures);
            ReadingFigures { fetch, open, ..ReadingFigures::default() }
        }
    });
    figures.add(done);
    failure.into_result()
}

/// The network and the openers. When it returns, nothing more goes into the outbox and its senders
/// are gone.
pub(super) fn middle<'scope, 'env: 'scope>(
    run: Run<'env>,
    failure: &'scope Failure,
    threads: &'scope Scope<'scope, 'env>,
    what: What,
    outbox: Outbox,
    outcome: Outcome,
) -> (FetchStats, OpenStats) {
    let (entries, inbox) = unbounded();
    let openers = openers(run, failure, threads, &inbox, &outbox, &outcome);
    drop((inbox, outbox));
    let ordered = run.limits.ordered_bytes as usize;
    run.repo.store().keep_buffers(run.limits.kept_bytes);
    let fetch = Fetch {
        repo: run.repo,
        scope: run.scope,
        shape: ReadShape { gap_bytes: GAP_BYTES, read_bytes_max: run.limits.read_bytes_max },
        leaves_per_window: run.limits.leaves_per_window,
        salvage: run.salvage,
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
        let fetched = async {
            match what {
                What::Map(reader, zero) => fetch.run(*reader, zero).await,
                What::Wants(wants) => {
                    let (plans, planned) = mpsc::channel(1);
                    // there is room for one
                    let _ = plans.try_send(Planned { jobs: fetch.jobs(wants), ordered: None });
                    drop(plans);
                    fetch.read(planned).await
                }
            }
        };
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
