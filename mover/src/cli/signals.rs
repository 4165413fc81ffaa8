//! SIGINT and SIGTERM: the first asks the operation to stop, the second ends the process at once.
//!
//! The handler itself only sets flags. One thread waits for signals, wakes what is asleep in a
//! store operation, and ends the process when a stop takes longer than a Job is given. It waits on
//! nothing that an operation holds, and ends when it is dropped.

use super::exit::CANCELLED;
use super::output::Output;
use super::termination;
use crate::control::Cancel;
use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A Job is killed some time after SIGTERM; what it can still say has to be said before.
pub(super) const STOP_WITHIN: Duration = Duration::from_millis(9500);

/// The handlers' thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct SignalWatch {
    handle: Handle,
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SignalWatch {
    /// From now on the signals go to `cancel`.
    pub(crate) fn install(cancel: &Arc<Cancel>, output: &Arc<Output>) -> Result<Self> {
        let failed = |e| Error::new(ErrorKind::Bug, "install the signal handlers", "").caused_by(e);
        for signal in [SIGINT, SIGTERM] {
            // in this order: the first signal finds the flag down, any later one finds it up
            let second = i32::from(CANCELLED);
            signal_hook::flag::register_conditional_shutdown(signal, second, cancel.flag())
                .map_err(failed)?;
            signal_hook::flag::register(signal, cancel.flag()).map_err(failed)?;
        }
        let signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let handle = signals.handle();
        let (done, ended) = bounded::<()>(0);
        let (cancel, output) = (Arc::clone(cancel), Arc::clone(output));
        let thread = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || watch(signals, &cancel, &output, &ended))
            .map_err(failed)?;
        Ok(Self { handle, done: Some(done), thread: Some(thread) })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.done = None;
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(mut signals: Signals, cancel: &Cancel, output: &Output, ended: &Receiver<()>) {
    if signals.forever().next().is_none() {
        return;
    }
    cancel.request();
    if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(STOP_WITHIN) {
        output.error(
            &Error::new(ErrorKind::Cancelled, "stopped", "what was in flight took too long")
                .hint("run the same command again to go on"),
        );
        termination::end(CANCELLED, &output.ended());
        std::process::exit(i32::from(CANCELLED));
    }
}
