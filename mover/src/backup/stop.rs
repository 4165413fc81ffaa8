//! The first real error of a run, kept while the other stages end.

use crate::control::Cancel;
use chunkstore::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by all stages. A stage that fails says so here and returns, which closes its channels; the others see a closed
/// channel, which is no error of theirs, and return too.
#[derive(Debug)]
pub(crate) struct Stop {
    stopped: AtomicBool,
    first: Mutex<Option<Error>>,
    cancel: Arc<Cancel>,
}

impl Stop {
    pub(crate) fn new(cancel: &Arc<Cancel>) -> Self {
        Self {
            stopped: AtomicBool::new(false),
            first: Mutex::new(None),
            cancel: Arc::clone(cancel),
        }
    }

    /// Keeps the error if it is the first one.
    pub(crate) fn fail(&self, error: Error) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether stages should end now.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.cancel.cancelled()
    }

    /// Runs a stage; its error is kept.
    pub(crate) fn guard<T>(&self, stage: impl FnOnce() -> Result<T>) -> Option<T> {
        stage().map_err(|e| self.fail(e)).ok()
    }

    /// The first error, once all stages have ended. A cancelled run is `Cancelled`, whatever broke meanwhile.
    pub(crate) fn take(&self) -> Result<()> {
        self.cancel.check()?;
        match self.first.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(e) => Err(e),
            None if self.stopped.load(Ordering::Acquire) => {
                Err(Error::new(ErrorKind::Bug, "end the run", "a stage stopped without an error"))
            }
            None => Ok(()),
        }
    }
}
