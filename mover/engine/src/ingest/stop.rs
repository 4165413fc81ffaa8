//! The first real error of a run, kept while the other stages end.

use crate::run::Cancel;
use crate::run::quota::{Bound, Meter};
use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::{SendTimeoutError, Sender};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often a stage that waits for another looks whether it should end.
pub(crate) const STOP_POLL: Duration = Duration::from_millis(100);

/// Shared by all stages. A stage that fails says so here and returns, which closes its channels;
/// the others see a closed channel, which is no error of theirs, and return too.
///
/// There are two ways to end without an error: in a hurry, when somebody asks for it, and at
/// leisure, when a bound on bytes or requests is reached: then nothing new is begun, and what is
/// sealed is stored however long that takes.
#[derive(Debug)]
pub(crate) struct Stop {
    failed: AtomicBool,
    limit_reached: OnceLock<Bound>,
    meter: Option<Arc<Meter>>,
    since: OnceLock<Instant>,
    first: Mutex<Option<Error>>,
    cancel: Arc<Cancel>,
}

impl Stop {
    pub(crate) fn new(cancel: &Arc<Cancel>, meter: Option<Arc<Meter>>) -> Self {
        Self {
            failed: AtomicBool::new(false),
            limit_reached: OnceLock::new(),
            meter,
            since: OnceLock::new(),
            first: Mutex::new(None),
            cancel: Arc::clone(cancel),
        }
    }

    /// Keeps the error if it is the first one.
    pub(crate) fn fail(&self, error: Error) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Keeps the error that `trouble` ends with, if it does before what is given is dropped.
    pub(crate) fn fail_when(
        self: &Arc<Self>,
        runtime: &tokio::runtime::Handle,
        trouble: impl Future<Output = Error> + Send + 'static,
    ) -> JoinSet<()> {
        let stop = Arc::clone(self);
        let mut watch = JoinSet::new();
        watch.spawn_on(async move { stop.fail(trouble.await) }, runtime);
        watch
    }

    /// Counts what the run sends, where that is bounded.
    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.meter.as_deref()
    }

    /// A bound is reached: nothing more is begun.
    pub(crate) fn limit_reached(&self, bound: Bound) {
        self.limit_reached.get_or_init(|| bound);
        self.meter().inspect(|meter| meter.reach(bound));
    }

    /// Whether stages should end now.
    pub(crate) fn stopping(&self) -> bool {
        self.abort_now() || self.limit_reached.get().is_some()
    }

    /// Whether they should end without waiting for the store.
    pub(crate) fn abort_now(&self) -> bool {
        let hurried = self.failed.load(Ordering::Acquire) || self.cancel.cancelled();
        if hurried {
            self.since();
        }
        hurried
    }

    /// Since when the run should hurry: since the request, or since the first stage saw that it
    /// should; now, if none has.
    pub(crate) fn since(&self) -> Instant {
        *self.since.get_or_init(|| self.cancel.since().unwrap_or_else(Instant::now))
    }

    /// Waits for a request of a stage that is not on the async runtime. A request to stop ends the
    /// wait: a slow store must not use up the little time that is left then.
    pub(crate) fn block_on<T>(
        &self,
        runtime: &tokio::runtime::Handle,
        request: impl Future<Output = T>,
    ) -> Result<T> {
        let answered = self.cancel.unless_requested(async { Ok(request.await) });
        runtime.block_on(answered).inspect_err(|_| {
            self.since();
        })
    }

    /// Hands on what another stage may take late, or never once it has ended. False: the run is
    /// over.
    pub(crate) fn send<T>(&self, to: &Sender<T>, mut value: T) -> bool {
        while !self.stopping() {
            match to.send_timeout(value, STOP_POLL) {
                Ok(()) => return true,
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(_)) => return false,
            }
        }
        false
    }

    /// Runs a stage; its error is kept.
    pub(crate) fn guard<T>(&self, stage: impl FnOnce() -> Result<T>) -> Option<T> {
        stage().map_err(|e| self.fail(e)).ok()
    }

    /// The first error, once all stages have ended. A cancelled run is `Cancelled`, whatever broke
    /// meanwhile.
    pub(crate) fn take(&self) -> Result<()> {
        self.cancel.check()?;
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (first, self.limit_reached.get()) {
            (Some(e), _) => Err(e),
            (None, Some(bound)) => Err(reached(*bound)),
            (None, None) if self.failed.load(Ordering::Acquire) => {
                Err(Error::new(ErrorKind::Bug, "end the run", "a stage stopped without an error"))
            }
            (None, None) => Ok(()),
        }
    }
}

/// The error of a run that has kept to a bound; who knows more puts another one in its place.
pub(crate) fn reached(bound: Bound) -> Error {
    Error::new(ErrorKind::Limit, "stopped", format!("{bound} is reached"))
        .hint("run the same command again to go on")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    /// A read that fails while the feeder waits for a ticket, which only comes back in order, would
    /// otherwise leave all of them waiting for each other.
    #[test]
    fn who_waits_to_hand_on_hears_of_a_failure() {
        let stop = Stop::new(&Cancel::new(), None);
        let (to, from) = bounded(1);
        assert!(stop.send(&to, 1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stop.send(&to, 2));
            stop.fail(Error::new(ErrorKind::Device, "read", "it fails"));
            assert!(!waiting.join().unwrap());
        });
        assert_eq!(from.try_recv(), Ok(1));
        assert!(from.try_recv().is_err());
    }

    #[test]
    fn nobody_left_to_take_it_ends_the_wait() {
        let stop = Stop::new(&Cancel::new(), None);
        let (to, from) = bounded::<u8>(0);
        drop(from);
        assert!(!stop.send(&to, 1));
    }
}
