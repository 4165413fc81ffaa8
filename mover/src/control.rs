//! What the command line and a running operation share: progress counters, the request to stop, the
//! memory budget.
//!
//! An operation adds to [`Progress`] and asks [`Cancel`] at each unit of work; whoever started it
//! reads the one and sets the other. Neither ever blocks an operation: the counters are relaxed
//! atomics (they are shown, nothing is decided by them), and asking whether to stop is one atomic
//! load. Nothing here knows signals, terminals or settings.

use crate::quota::Bound;
use chunkstore::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// A counter that many threads add to and one reads to show it.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Replaces the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an operation is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Opening things, looking for a parent, reading a changed-block list, planning.
    #[default]
    Planning,
    /// Moving data.
    Moving,
    /// Comparing what was written, or what is stored.
    Verifying,
    /// Flushing a device, writing the last packs, the segment and the manifest.
    Finishing,
}

impl Phase {
    /// One word for a person.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Moving => "moving",
            Self::Verifying => "verifying",
            Self::Finishing => "finishing",
        }
    }
}

/// How far an operation is. All counts are bytes of the volume unless said otherwise.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    /// What the plan says is to be gone through; 0 while it is not known.
    pub total_bytes: Counter,
    /// How much of `total_bytes` is done, whatever came of it.
    pub done_bytes: Counter,
    /// Read from the device, or from the store by a restore.
    pub read_bytes: Counter,
    /// Found to be zero, or known to be zero without reading.
    pub zero_bytes: Counter,
    /// Equal to the parent's, or not touched because the list does not name it.
    pub unchanged_bytes: Counter,
    /// Stored before, by this run or another backup.
    pub reused_bytes: Counter,
    /// Not stored before.
    pub new_bytes: Counter,
    /// `new_bytes` after compression and sealing.
    pub stored_bytes: Counter,
    /// Bytes that the store has confirmed.
    pub uploaded_bytes: Counter,
    /// Written to a target by a restore.
    pub written_bytes: Counter,
    /// Pieces of a changed-block list that have come, and chunks of an existing file that were
    /// looked at before it may be overwritten; no bytes, and shown to nobody.
    pub listed: Counter,
}

impl mover_changes::Movement for Progress {
    fn moved(&self) {
        self.listed.add(1);
    }
}

impl Progress {
    /// All counters zero.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Says what is being done now.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// What is being done now.
    pub fn phase(&self) -> Phase {
        const ALL: [Phase; 4] =
            [Phase::Planning, Phase::Moving, Phase::Verifying, Phase::Finishing];
        let now = self.phase.load(Ordering::Relaxed);
        ALL.into_iter().find(|p| *p as u8 == now).unwrap_or_default()
    }
}

/// The request to stop: set once, never taken back.
#[derive(Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    since: OnceLock<Instant>,
    because: OnceLock<Bound>,
    wake: Notify,
}

impl Cancel {
    /// Not requested.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Asks the operation to stop and wakes who awaits [`Self::wait`].
    pub fn request(&self) {
        self.since.get_or_init(Instant::now);
        self.flag.store(true, Ordering::SeqCst);
        self.wake.notify_waiters();
    }

    /// Asks it to stop since a bound was reached, unless somebody else has asked before.
    pub fn request_at(&self, bound: Bound) {
        if !self.cancelled() {
            self.because.get_or_init(|| bound);
        }
        self.request();
    }

    /// The bound that it was requested for, if it was for one.
    pub fn bound(&self) -> Option<Bound> {
        self.because.get().copied()
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

    /// The flag itself, for a signal handler: setting it is all that a handler may do.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

/// The one bound on memory from which every other is derived (mapped files apart).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryBudget {
    /// All of it, in bytes.
    pub total_bytes: u64,
}

impl MemoryBudget {
    /// That an operation cannot do with it; `context` says where that was found out, and why an
    /// operation needs so much.
    pub(crate) fn too_little(self, context: &str, operation: &str, least_bytes: u64) -> Error {
        let detail = format!("{} bytes are too little for {operation}", self.total_bytes);
        let needed = TooLittleMemory { least_bytes };
        Error::new(ErrorKind::Usage, context, detail)
            .caused_by(needed)
            .hint(format!("use --memory {}MiB or more", needed.least_mib()))
    }
}

/// The cause of a [`MemoryBudget::too_little`], for whoever knows where the budget came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLittleMemory {
    /// The least budget that will do.
    pub(crate) least_bytes: u64,
}

impl TooLittleMemory {
    /// It, if that is why `error` has arisen.
    pub(crate) fn cause_of(error: &Error) -> Option<Self> {
        std::error::Error::source(error)?.downcast_ref().copied()
    }

    pub(crate) fn least_mib(self) -> u64 {
        self.least_bytes.div_ceil(1 << 20)
    }
}

impl std::fmt::Display for TooLittleMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it needs {} MiB", self.least_mib())
    }
}

impl std::error::Error for TooLittleMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_comes_back() {
        let progress = Progress::new();
        assert_eq!(progress.phase(), Phase::Planning);
        for phase in [Phase::Moving, Phase::Verifying, Phase::Finishing, Phase::Planning] {
            progress.set_phase(phase);
            assert_eq!(progress.phase(), phase);
        }
    }

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
