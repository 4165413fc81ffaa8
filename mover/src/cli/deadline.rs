//! Ends a run at its time: asks it to stop as SIGTERM does, so that a checkpoint is kept, and ends
//! it by force where it does not.
//!
//! One thread, which waits on one channel only, whose sender is dropped to end it.

use super::context::Context;
use super::output::Output;
use super::signals;
use crate::run::Cancel;
use crate::run::quota::Bound;
use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Deadline {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deadline {
    /// From now on; without one, never.
    pub(crate) fn start(ctx: &Context, after: Option<Duration>) -> Result<Self> {
        let Some(after) = after else { return Ok(Self { done: None, thread: None }) };
        let (done, ended) = bounded::<()>(0);
        let (cancel, output) = (Arc::clone(&ctx.cancel), Arc::clone(&ctx.output));
        let thread = std::thread::Builder::new()
            .name("deadline".into())
            .spawn(move || watch(after, &cancel, &output, &ended))
            .map_err(|e| {
                Error::new(ErrorKind::Unavailable, "keep to --deadline", "").caused_by(e)
            })?;
        Ok(Self { done: Some(done), thread: Some(thread) })
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(after: Duration, cancel: &Cancel, output: &Arc<Output>, ended: &Receiver<()>) {
    let within = |time| ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
    if within(after) || cancel.cancelled() {
        return;
    }
    cancel.request_at(Bound::Deadline);
    if !within(signals::STOP_WITHIN) {
        let reached = reached(Bound::Deadline)
            .hint("what was in flight took too long; run the same command again to go on");
        signals::end_by_force(output, reached);
    }
}

/// Puts the bound in the place of the stop that was asked for because of it, where nobody closer to
/// the work has.
pub(crate) fn explain(done: Result<()>, cancel: &Cancel) -> Result<()> {
    match (done, cancel.bound()) {
        (Err(e), Some(bound)) if e.kind() == ErrorKind::Cancelled => {
            Err(reached(bound).hint("run the same command again, with more time").caused_by(e))
        }
        (done, _) => done,
    }
}

fn reached(bound: Bound) -> Error {
    Error::new(ErrorKind::Limit, "stopped", format!("{bound} is reached"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stop_at_a_deadline_becomes_a_limit() {
        let kind = |e: Error, cancel: &Cancel| explain(Err(e), cancel).unwrap_err().kind();
        let cancel = Cancel::new();
        cancel.request();
        cancel.request_at(Bound::Deadline);
        assert_eq!(kind(Cancel::error(), &cancel), ErrorKind::Cancelled, "a signal was first");
        let cancel = Cancel::new();
        cancel.request_at(Bound::Deadline);
        assert_eq!(kind(Cancel::error(), &cancel), ErrorKind::Limit);
        assert_eq!(kind(Error::new(ErrorKind::Corrupt, "c", "d"), &cancel), ErrorKind::Corrupt);
    }
}
