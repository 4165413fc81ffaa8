//! Threads of stages.

use super::failure::Failure;
use chunkstore::{Error, ErrorKind};
use std::thread::{Scope, ScopedJoinHandle};

/// Cores that this process may use; 1 where nobody says.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts a thread of a stage. Where the system has none left, that is the failure of the run.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    threads: &'scope Scope<'scope, '_>,
    failure: &Failure,
    stage: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    let started = std::thread::Builder::new().name(stage.into()).spawn_scoped(threads, body);
    failure.note(started.map_err(|e| {
        let context = format!("start a thread for the {stage} stage");
        Error::caused(ErrorKind::Unavailable, context, e)
    }))
}
