//! The first error of a run, and the signal to stop that goes with it.
//!
//! Every stage reports here and goes on draining its inbox without working, so that no neighbour
//! waits for a stage that has given up. Only the first error is kept: the later ones are its
//! consequences.

use chunkstore::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Failure {
    failed: AtomicBool,
    first: Mutex<Option<Error>>,
    wake: Notify,
}

impl Failure {
    /// Keeps the error if it is the first, and tells everyone to stop.
    pub(crate) fn set(&self, error: Error) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.failed.swap(true, Ordering::AcqRel) {
            *first = Some(error);
        }
        drop(first);
        self.wake.notify_one();
    }

    /// For results that end a stage.
    pub(crate) fn note<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.set(e)).ok()
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Ends once there is a failure. One task at a time waits here: the driver.
    pub(crate) async fn wait(&self) {
        while !self.failed() {
            self.wake.notified().await;
        }
    }

    /// The first error, if there was one.
    pub(crate) fn into_result(self) -> Result<()> {
        match self.first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// What a thread ended with. A panic is our own mistake.
    pub(crate) fn join<T>(
        &self,
        stage: &str,
        thread: Option<ScopedJoinHandle<'_, T>>,
    ) -> Option<T> {
        let bug = |_| {
            let context = format!("run the {stage} stage");
            self.set(Error::new(ErrorKind::Bug, context, "its thread panicked"));
        };
        thread?.join().map_err(bug).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_wins() {
        let failure = Failure::default();
        assert!(!failure.failed());
        failure.set(Error::new(ErrorKind::Device, "write", "first"));
        failure.set(Error::new(ErrorKind::Bug, "write", "second"));
        assert!(failure.failed());
        assert_eq!(failure.into_result().unwrap_err().kind(), ErrorKind::Device);
    }
}
