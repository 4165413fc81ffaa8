//! How a run is ended from outside: SIGINT and SIGTERM, a deadline, a stall.
//!
//! One thread waits for all of them. The first asks the operation to stop, with its reason, so that
//! a checkpoint is kept; an operation that does not stop in the time that a Job is given is ended by
//! force. A second signal ends the process at once. The signal handlers only set flags and write to
//! a pipe; the thread waits on nothing that an operation holds, and ends when it is dropped.
//!
//! A call that hangs in the kernel, in a device that does not answer, cannot be ended: then all is
//! said in time, and the kernel lets go of the process when the device answers.

mod stall;

use super::exit::{CANCELLED, exit_code};
use super::output::Output;
use super::termination;
use chunkstore::{Error, ErrorKind, Result, Store};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use mover_engine::run::quota::Bound;
use mover_engine::run::{Cancel, Progress, StopReason};
use mover_engine::sizes::show_seconds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use stall::Watched;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A Job is killed some time after SIGTERM, ten seconds at the least; what it can still say has to
/// be said before, twice [`LAST_WORDS`] long.
const STOP_WITHIN: Duration = Duration::from_millis(9300);
/// How long somebody has to read them.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// As long for the kubelet's file where nobody is about to kill the process: a slow disk may be the
/// very reason of the stop.
const LAST_MESSAGE: Duration = Duration::from_secs(2);

/// The thread that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    cancel: Arc<Cancel>,
    output: Arc<Output>,
    /// A signal has come: a stop for another reason is no signal.
    signalled: Arc<AtomicBool>,
    wake: UnixStream,
    /// What a kubelet is told, and what a user is.
    speakers: [Speaker; 2],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    deadline: Option<Instant>,
    watched: Option<Watched>,
    /// When the operation was seen to be asked to stop.
    stopping: Option<Instant>,
    /// When the first signal was seen: whatever has asked before, it is the first one.
    signal: Option<Instant>,
}

/// Something that an operation is held to, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    release: fn(&mut State),
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.release)(&mut self.shared.state());
    }
}

impl Supervisor {
    /// From now on signals go to `cancel`.
    pub(crate) fn start(cancel: &Arc<Cancel>, output: &Arc<Output>) -> Result<Self> {
        let failed = |e| Error::caused(ErrorKind::Bug, "install the signal handlers", e);
        let (sleeper, wake) = UnixStream::pair().map_err(failed)?;
        for end in [&sleeper, &wake] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        let signalled = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            // in this order: the first signal finds the flag down, any later one finds it up; the
            // pipe is last, so that whoever wakes finds both
            let (second, first) = (i32::from(CANCELLED), Arc::clone(&signalled));
            let shutdown = signal_hook::flag::register_conditional_shutdown(signal, second, first);
            shutdown.map_err(failed)?;
            for flag in [Arc::clone(&signalled), cancel.flag()] {
                signal_hook::flag::register(signal, flag).map_err(failed)?;
            }
            let wake = wake.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, wake).map_err(failed)?;
        }
        let shared = Arc::new(Shared {
            cancel: Arc::clone(cancel),
            output: Arc::clone(output),
            signalled,
            wake,
            speakers: [speaker("message").map_err(failed)?, speaker("words").map_err(failed)?],
            state: Mutex::default(),
        });
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("supervise".into())
            .spawn(move || seen.run(&sleeper))
            .map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks an operation to stop after this time, until what is given is dropped.
    pub(crate) fn deadline(&self, after: Option<Duration>) -> Held {
        self.hold(
            |state| state.deadline = None,
            |state, now| {
                state.deadline = after.and_then(|after| now.checked_add(after));
            },
        )
    }

    /// Asks an operation to stop once nothing of it has moved for this time, until what is given is
    /// dropped.
    pub(crate) fn watch(
        &self,
        limit: Option<Duration>,
        progress: &Arc<Progress>,
        store: &Store,
    ) -> Held {
        self.hold(
            |state| state.watched = None,
            |state, now| {
                state.watched = limit.map(|limit| Watched::new(limit, progress, store, now));
            },
        )
    }

    fn hold(&self, release: fn(&mut State), set: impl FnOnce(&mut State, Instant)) -> Held {
        set(&mut self.shared.state(), Instant::now());
        self.shared.wake();
        Held { shared: Arc::clone(&self.shared), release }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // a full pipe wakes as well
        let _ = (&self.wake).write(&[0]);
    }

    fn run(&self, sleeper: &UnixStream) {
        loop {
            let until = {
                let mut state = self.state();
                if state.ended {
                    return;
                }
                self.step(&mut state, Instant::now())
            };
            match until {
                Step::Force(reason) => {
                    let hurried = self.state().signal.is_some();
                    let patience = if hurried { LAST_WORDS } else { LAST_MESSAGE };
                    end_by_force(self, too_slow(reason), patience)
                }
                Step::Signalled => drop(aside(&self.speakers[0], termination::stopping)),
                Step::Sleep(until) => sleep(sleeper, until),
            }
        }
    }

    /// What is due, and when to look again.
    fn step(&self, state: &mut State, now: Instant) -> Step {
        if state.signal.is_none() && self.signalled.load(Ordering::SeqCst) {
            state.signal = Some(now);
            // a handler has set the flag, and can wake nobody
            self.cancel.request();
            return Step::Signalled;
        }
        if state.stopping.is_none() && !self.cancel.cancelled() {
            let stalled = state.watched.as_mut().and_then(|watched| watched.look(now));
            let late = state.deadline.is_some_and(|deadline| now >= deadline);
            match (late, stalled) {
                (true, _) => self.cancel.request_for(StopReason::Bound(Bound::Deadline)),
                (false, Some(limit)) => self.cancel.request_for(StopReason::Stalled(limit)),
                (false, None) => {
                    let next = state.watched.as_ref().map(Watched::next);
                    return Step::Sleep([state.deadline, next].into_iter().flatten().min());
                }
            }
        }
        let since = *state.stopping.get_or_insert(now);
        let reason = self.cancel.reason().unwrap_or(StopReason::Requested);
        // what has ended in time is held to nothing any more
        let held = match reason {
            StopReason::Requested => false,
            StopReason::Stalled(_) => state.watched.is_some(),
            StopReason::Bound(_) => state.deadline.is_some(),
        };
        let of_reason = held.then_some((since, reason));
        let of_signal = state.signal.map(|at| (at, StopReason::Requested));
        let first = [of_reason, of_signal].into_iter().flatten().min_by_key(|(at, _)| *at);
        match first.map(|(at, reason)| (at + STOP_WITHIN, reason)) {
            None => Step::Sleep(None),
            Some((at, reason)) if now >= at => Step::Force(reason),
            Some((at, _)) => Step::Sleep(Some(at)),
        }
    }
}

enum Step {
    Sleep(Option<Instant>),
    /// The first signal is to be said.
    Signalled,
    Force(StopReason),
}

/// Sleeps until a time, or until somebody writes to the pipe.
fn sleep(sleeper: &UnixStream, until: Option<Instant>) {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    // an error is a signal, or wakes too early: the caller looks again
    let _ = poll(&mut [PollFd::new(sleeper, PollFlags::IN)], timeout.as_ref());
    let mut drained = [0; 64];
    let mut sleeper = sleeper;
    while sleeper.read(&mut drained).is_ok_and(|n| n == drained.len()) {}
}

/// The error of an operation that does not stop.
fn too_slow(reason: StopReason) -> Error {
    match reason {
        StopReason::Requested => {
            Error::new(ErrorKind::Cancelled, "stopped", "what was in flight took too long")
                .hint("run the same command again to go on")
        }
        StopReason::Stalled(limit) => stalled(limit),
        StopReason::Bound(bound) => reached(bound)
            .hint("what was in flight took too long; run the same command again to go on"),
    }
}

fn stalled(limit: Duration) -> Error {
    let still = show_seconds(limit.as_secs());
    Error::new(
        ErrorKind::Unavailable,
        "wait for the device or the store",
        format!("nothing moved for {still}"),
    )
    .hint(
        "look at both, then run the same command again; --stall-timeout changes how long is waited",
    )
}

fn reached(bound: Bound) -> Error {
    Error::new(ErrorKind::Limit, "stopped", format!("{bound} is reached"))
}

/// Ends the process in the place of an operation that does not end. It waits for nobody who may
/// hang: a kubelet is told first, and a log that nobody reads is given up. If the operation has
/// said meanwhile how it ended, that counts. `patience`: how long the kubelet's file may take.
fn end_by_force(shared: &Shared, error: Error, patience: Duration) -> ! {
    let (output, [message, words]) = (&shared.output, &shared.speakers);
    let code = exit_code(error.kind());
    if let Err(code) = output.begin_exit(code) {
        // who has claimed it is saying it
        let _ = crossbeam_channel::after(LAST_WORDS).recv();
        std::process::exit(i32::from(code));
    }
    output.remember(&error);
    // who would read a warning may be what is waited for
    let ended = output.ended();
    let told = aside(message, move || drop(termination::end(code, &ended)));
    let _ = told.recv_timeout(patience);
    let told = Arc::clone(output);
    let said = aside(words, move || told.show_error(&error));
    let _ = said.recv_timeout(LAST_WORDS);
    std::process::exit(i32::from(code))
}

/// Does what may hang for good beside everything else; what is given hears of its end.
fn aside(speaker: &Speaker, work: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (done, ended) = bounded::<()>(1);
    let work = move || {
        work();
        let _ = done.send(());
    };
    // it lives as long as the supervisor does
    let _ = speaker.send(Box::new(work));
    ended
}

/// A thread that is there before it is needed: a process that may have no thread more, or that hangs,
/// can still say why it ends.
type Speaker = Sender<Box<dyn FnOnce() + Send>>;

fn speaker(name: &str) -> std::io::Result<Speaker> {
    let (speaker, works) = unbounded::<Box<dyn FnOnce() + Send>>();
    let body = move || works.into_iter().for_each(|work| work());
    std::thread::Builder::new().name(name.into()).spawn(body)?;
    Ok(speaker)
}

/// Puts the reason of a stop in the place of the error that it led to: the stop itself, where nobody
/// closer to the work has said more, or a server that was not waited for any longer.
pub(crate) fn explain(done: Result<()>, cancel: &Cancel) -> Result<()> {
    let (Err(e), Some(reason)) = (&done, cancel.reason()) else { return done };
    let broke = matches!(e.kind(), ErrorKind::Device | ErrorKind::Unavailable);
    let stopped = e.kind() == ErrorKind::Cancelled;
    let instead = match reason {
        _ if !broke && !stopped => return done,
        StopReason::Requested if stopped => return done,
        StopReason::Requested => Cancel::error(),
        StopReason::Stalled(limit) => stalled(limit),
        StopReason::Bound(bound) => {
            reached(bound).hint("run the same command again, with more time")
        }
    };
    done.map_err(|e| instead.caused_by(e))
}

#[cfg(test)]
mod tests;
