//! SIGINT and SIGTERM: the first asks the operation to stop, the second ends the process at once.
//!
//! The handler itself only sets flags. One thread waits for signals, wakes what is asleep in a
//! store operation, and ends the process when a stop takes longer than a Job is given. It waits on
//! nothing that an operation holds, and ends when it is dropped.
//!
//! What cannot be ended is a call that hangs in the kernel, in a device that does not answer: then
//! all is said in time, and the kernel lets go of the process when the device answers.

use super::exit::{CANCELLED, exit_code};
use super::output::Output;
use super::termination;
use crate::run::Cancel;
use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

/// A Job is killed some time after SIGTERM; what it can still say has to be said before.
pub(super) const STOP_WITHIN: Duration = Duration::from_millis(9500);
/// How long somebody has to read them.
const LAST_WORDS: Duration = Duration::from_millis(300);

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
        // a stop that something else asked for is no signal
        let signalled = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            // in this order: the first signal finds the flag down, any later one finds it up
            let second = i32::from(CANCELLED);
            let first = Arc::clone(&signalled);
            signal_hook::flag::register_conditional_shutdown(signal, second, first)
                .map_err(failed)?;
            for flag in [Arc::clone(&signalled), cancel.flag()] {
                signal_hook::flag::register(signal, flag).map_err(failed)?;
            }
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

fn watch(mut signals: Signals, cancel: &Cancel, output: &Arc<Output>, ended: &Receiver<()>) {
    if signals.forever().next().is_none() {
        return;
    }
    cancel.request();
    termination::stopping();
    if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(STOP_WITHIN) {
        let stopped =
            Error::new(ErrorKind::Cancelled, "stopped", "what was in flight took too long");
        end_by_force(output, stopped.hint("run the same command again to go on"));
    }
}

/// Ends the process in the place of an operation that does not end. It waits for nobody who may
/// hang: a kubelet is told first, and a log that nobody reads is given up. If the operation has
/// said meanwhile how it ended, that counts.
pub(super) fn end_by_force(output: &Arc<Output>, error: Error) -> ! {
    let code = exit_code(error.kind());
    if let Err(code) = output.claim_end(code) {
        // who has claimed it is saying it
        let _ = crossbeam_channel::after(LAST_WORDS).recv();
        std::process::exit(i32::from(code));
    }
    output.remember(&error);
    // who would read a warning may be what is waited for
    let _ = termination::end(code, &output.ended());
    let (said, heard) = bounded::<()>(1);
    let speaker = Arc::clone(output);
    let speak = move || {
        speaker.show_error(&error);
        let _ = said.send(());
    };
    if std::thread::Builder::new().name("last-words".into()).spawn(speak).is_ok() {
        let _ = heard.recv_timeout(LAST_WORDS);
    }
    std::process::exit(i32::from(code))
}

/// Puts the stop in the place of what broke because of it: a server that was not waited for any
/// longer, say.
pub(crate) fn explain(done: Result<()>, cancel: &Cancel) -> Result<()> {
    match done {
        Err(e)
            if cancel.cancelled()
                && matches!(e.kind(), ErrorKind::Device | ErrorKind::Unavailable) =>
        {
            Err(Cancel::error().caused_by(e))
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::Environment;

    /// The second signal ends the process, and with it this test.
    #[test]
    fn a_stop_at_a_bound_is_no_signal() {
        let cancel = Cancel::new();
        let output = Output::new(crate::cli::settings::json_only(&Environment::default()));
        let watch = SignalWatch::install(&cancel, &output).unwrap();
        cancel.request_at(crate::run::quota::Bound::Deadline);
        // told after the others, in the same order
        let seen = Arc::<AtomicBool>::default();
        signal_hook::flag::register(SIGTERM, Arc::clone(&seen)).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        while !seen.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(watch);
        assert_eq!(cancel.bound(), Some(crate::run::quota::Bound::Deadline));
    }

    #[test]
    fn only_what_breaks_after_a_stop_is_one() {
        let failed = |kind| Err(Error::new(kind, "read 7 bytes", "no answer"));
        let kind = |kind, cancel: &Cancel| explain(failed(kind), cancel).unwrap_err().kind();
        let cancel = Cancel::new();
        assert_eq!(kind(ErrorKind::Device, &cancel), ErrorKind::Device);
        cancel.request();
        assert_eq!(kind(ErrorKind::Device, &cancel), ErrorKind::Cancelled);
        assert_eq!(kind(ErrorKind::Unavailable, &cancel), ErrorKind::Cancelled);
        assert_eq!(kind(ErrorKind::Corrupt, &cancel), ErrorKind::Corrupt);
        let text = explain(failed(ErrorKind::Device), &cancel).unwrap_err().to_string();
        assert!(text.contains("stopped: on request: read 7 bytes: no answer"), "{text}");
        assert!(explain(Ok(()), &cancel).is_ok());
    }
}
