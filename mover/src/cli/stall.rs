//! Ends a run in which nothing moves any more: a device or a store that neither answers nor fails.
//!
//! One thread looks at the counters of the operation every so often. What counts as movement is any
//! change of them, of the phase, of what has come of a changed-block list, or of the requests to the store, but not those that a lease's
//! heartbeat makes by itself. When nothing has changed for the given time, it asks the operation to
//! stop, as SIGTERM does, so that a checkpoint is kept; the error that the run ends with then is
//! this one, which is worth another try. What does not even stop is ended by force. The thread
//! waits on one channel only, whose sender is dropped to end it.

use super::output::Output;
use super::signals;
use super::sizes::show_seconds;
use crate::run::{Cancel, Counter, Progress};
use chunkstore::{Error, ErrorKind, RequestCounts, Result, Store};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many looks there are in the time that is allowed.
const LOOKS: u32 = 20;

/// What was seen of an operation at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    counters: [u64; 11],
    phase: u8,
    requests: u64,
}

impl Seen {
    /// `about_locks`: requests about single objects' locks, which are all that a run makes while it
    /// locks what a backup needs.
    fn of(progress: &Progress, requests: RequestCounts, about_locks: u64) -> Self {
        let p = progress;
        let counters = [
            &p.total_bytes,
            &p.done_bytes,
            &p.read_bytes,
            &p.zero_bytes,
            &p.unchanged_bytes,
            &p.reused_bytes,
            &p.new_bytes,
            &p.stored_bytes,
            &p.uploaded_bytes,
            &p.written_bytes,
            // what is endless there has an end of its own
            &p.listed,
        ];
        let RequestCounts { gets, creates, lists, deletes, .. } = requests;
        Self {
            counters: counters.map(Counter::get),
            phase: progress.phase() as u8,
            // a heartbeat looks its lease up and puts it again
            requests: gets + creates + lists + deletes + about_locks,
        }
    }
}

/// Since when nothing has changed. Pure: it is told what time it is.
#[derive(Debug)]
struct Stillness {
    last: Seen,
    since: Instant,
}

impl Stillness {
    fn see(&mut self, now: Instant, seen: Seen) -> Duration {
        if seen != self.last {
            *self = Self { last: seen, since: now };
        }
        now.saturating_duration_since(self.since)
    }
}

/// Whether a run was ended because nothing moved.
#[derive(Debug, Default)]
pub(crate) struct Stalled(AtomicBool);

impl Stalled {
    /// Puts the stall in the place of the stop that it asked for.
    pub(crate) fn explain(&self, done: Result<()>, limit: Option<Duration>) -> Result<()> {
        let limit = limit.filter(|_| self.0.load(Ordering::SeqCst));
        match (done, limit) {
            (Err(e), Some(limit)) if e.kind() == ErrorKind::Cancelled => {
                Err(error(limit).caused_by(e))
            }
            (done, _) => done,
        }
    }
}

fn error(limit: Duration) -> Error {
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

/// The thread that looks, until it is dropped.
#[derive(Debug)]
pub(crate) struct StallWatch {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is looked at, and what is done about it.
pub(crate) struct Watched {
    pub(crate) progress: Arc<Progress>,
    pub(crate) store: Store,
    pub(crate) cancel: Arc<Cancel>,
    pub(crate) stalled: Arc<Stalled>,
    pub(crate) output: Arc<Output>,
}

impl StallWatch {
    /// Looks from now on; without a limit, never.
    pub(crate) fn start(limit: Option<Duration>, watched: Watched) -> Self {
        let Some(limit) = limit else { return Self { done: None, thread: None } };
        let (done, ended) = bounded::<()>(0);
        let watch = move || watch(limit, &watched, &ended);
        // without a thread nobody looks, and nothing else is lost
        let thread = std::thread::Builder::new().name("stall".into()).spawn(watch).ok();
        Self { done: Some(done), thread }
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(limit: Duration, watched: &Watched, ended: &Receiver<()>) {
    let store = &watched.store;
    let look = || Seen::of(&watched.progress, store.counts(), store.requests_about_locks());
    let mut stillness = Stillness { last: look(), since: Instant::now() };
    loop {
        if ended.recv_timeout(limit / LOOKS) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        if watched.cancel.cancelled() {
            // somebody else asked it to stop, and sees to it that it does
            return;
        }
        if stillness.see(Instant::now(), look()) >= limit {
            break;
        }
    }
    watched.stalled.0.store(true, Ordering::SeqCst);
    watched.cancel.request();
    if ended.recv_timeout(signals::STOP_WITHIN) == Err(RecvTimeoutError::Timeout) {
        signals::end_by_force(&watched.output, error(limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_movement_starts_the_time_anew() {
        let progress = Progress::new();
        let counts = RequestCounts::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stillness = Stillness { last: Seen::of(&progress, counts, 0), since: start };
        let still = |s: &mut Stillness, seconds, counts| {
            s.see(at(seconds), Seen::of(&progress, counts, 0)).as_secs()
        };
        assert_eq!(still(&mut stillness, 7, counts), 7);
        progress.read_bytes.add(1);
        assert_eq!(still(&mut stillness, 8, counts), 0);
        progress.set_phase(crate::run::Phase::Finishing);
        assert_eq!(still(&mut stillness, 9, counts), 0);
        progress.listed.add(1);
        assert_eq!(still(&mut stillness, 9, counts), 0);
        // a heartbeat is no movement
        let beat = RequestCounts { heads: 3, puts: 2, ..counts };
        assert_eq!(still(&mut stillness, 12, beat), 3);
        assert_eq!(still(&mut stillness, 13, RequestCounts { gets: 1, ..beat }), 0);
        // a lock is
        let locking = Seen::of(&progress, RequestCounts { gets: 1, ..beat }, 1);
        assert_eq!(stillness.see(at(15), locking), Duration::ZERO);
    }

    #[test]
    fn only_a_stop_becomes_a_stall() {
        let limit = Some(Duration::from_secs(60));
        let stalled = Stalled(AtomicBool::new(true));
        let kind = |e: Error| stalled.explain(Err(e), limit).unwrap_err().kind();
        assert_eq!(kind(Cancel::error()), ErrorKind::Unavailable);
        assert_eq!(kind(Error::new(ErrorKind::Corrupt, "c", "d")), ErrorKind::Corrupt);
        let calm = Stalled::default();
        assert_eq!(
            calm.explain(Err(Cancel::error()), limit).unwrap_err().kind(),
            ErrorKind::Cancelled
        );
    }
}
