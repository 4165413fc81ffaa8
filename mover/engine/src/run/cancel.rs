//! The request to stop: an operation asks for it at each unit of work, which is one atomic load.

use super::quota::Bound;
use chunkstore::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often a wait looks at the flag.
const POLL: Duration = Duration::from_millis(100);

/// Why a run is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A signal, or the wish of a caller.
    Requested,
    /// Nothing has moved for this time.
    Stalled(Duration),
    /// A bound that the user has set.
    Bound(Bound),
}

/// The request to stop: set once, never taken back.
#[derive(Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    since: OnceLock<Instant>,
    reason: OnceLock<StopReason>,
    wake: Notify,
}

impl Cancel {
    /// Not requested.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Asks the operation to stop and wakes who awaits [`Self::wait`].
    pub fn request(&self) {
        self.request_for(StopReason::Requested);
    }

    /// Asks it to stop for a reason, which counts unless somebody else has asked before.
    pub fn request_for(&self, reason: StopReason) {
        let reason = if self.cancelled() { StopReason::Requested } else { reason };
        self.reason.get_or_init(|| reason);
        self.since.get_or_init(Instant::now);
        self.flag.store(true, Ordering::SeqCst);
        self.wake.notify_waiters();
    }

    /// Why it was requested, if it was.
    pub fn reason(&self) -> Option<StopReason> {
        self.cancelled().then(|| *self.reason.get_or_init(|| StopReason::Requested))
    }

    /// The bound that it was requested for, if it was for one.
    pub fn bound(&self) -> Option<Bound> {
        match self.reason() {
            Some(StopReason::Bound(bound)) => Some(bound),
            _ => None,
        }
    }

    /// Whether it was requested.
    pub fn cancelled(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// When it was requested; `None` in the moment in which only a signal handler knows.
    pub fn since(&self) -> Option<Instant> {
        self.since.get().copied()
    }

    /// An error of kind `Cancelled` once it was requested: for `cancel.check()?` between units of
    /// work.
    pub fn check(&self) -> Result<()> {
        if self.cancelled() { Err(Self::error()) } else { Ok(()) }
    }

    /// The error that [`Self::check`] gives.
    pub fn error() -> Error {
        Error::new(ErrorKind::Cancelled, "stopped", "on request")
            .hint("run the same command again to go on")
    }

    /// Ready once it was requested; for `select!` beside a store operation. Needs nobody's clock.
    pub async fn wait(&self) {
        let woken = self.wake.notified();
        let mut woken = std::pin::pin!(woken);
        // registered before the flag is looked at, so a request between the two is not missed
        woken.as_mut().enable();
        if !self.flag.load(Ordering::SeqCst) {
            woken.await;
        }
    }

    /// Waits for `work`, or until a stop is requested, by whatever means; then `work` is dropped.
    pub async fn unless_requested<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.requested() => Err(Self::error()),
            done = work => done,
        }
    }

    /// Ready once it was requested, also where a signal handler has set the flag and can wake nobody.
    pub(crate) async fn requested(&self) {
        let poll = async {
            while !self.cancelled() {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::select! {
            () = self.wait() => {}
            () = poll => {}
        }
    }

    /// The flag itself, for a signal handler: setting it is all that a handler may do.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_fails_after_a_request_only() {
        let cancel = Cancel::new();
        assert!(cancel.check().is_ok());
        cancel.request();
        assert_eq!(cancel.check().unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn waiting_ends_before_and_after_a_request() {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let cancel = Cancel::new();
        let waiter = Arc::clone(&cancel);
        let task = rt.spawn(async move { waiter.wait().await });
        cancel.request();
        rt.block_on(task).unwrap();
        rt.block_on(cancel.wait());
    }
}
