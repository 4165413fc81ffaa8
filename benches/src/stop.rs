//! Ending early: a signal ends the child that is at work and makes the harness return, so that all
//! guards clean up.

use crate::failed;
use chunkstore::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The request to stop, and the child that it would end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    /// A child that has not been waited for yet, so that its number cannot be another process's.
    child: Mutex<Option<Pid>>,
}

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP stop the run.
    pub(crate) fn install() -> Result<Self> {
        let stop = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|e| failed("install signal handlers", e))?;
        let handler = stop.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || signals.forever().for_each(|_| handler.request()))
            .map_err(|e| failed("start a thread", e))?;
        Ok(stop)
    }

    fn request(&self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if let Some(child) = *self.child() {
            // it may have ended by itself
            let _ = kill_process(child, Signal::TERM);
        }
    }

    /// Names the child that a signal ends; `None` before it is waited for. One that was asked for
    /// too late is ended at once.
    pub(crate) fn set_child(&self, child: Option<Pid>) {
        *self.child() = child;
        if self.stopped() {
            self.request();
        }
    }

    /// Whether a signal came.
    pub(crate) fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }

    /// An error once a signal came.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped() {
            return Err(Error::new(ErrorKind::Cancelled, "stopped", "by a signal"));
        }
        Ok(())
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Pid>> {
        self.shared.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
