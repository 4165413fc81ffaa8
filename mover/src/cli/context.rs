//! What every command works with: settings, output, the runtime, the request to stop.

use super::output::Output;
use super::settings::Settings;
use crate::control::Cancel;
use chunkstore::{Error, ErrorKind, Result};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Threads that speak to the store, at least: one waits for the network while another encrypts.
const NETWORK_THREADS_MIN: usize = 2;
/// At most: beyond it more threads only take the cores from those that seal.
const NETWORK_THREADS_MAX: usize = 8;
/// How long requests that nobody waits for any more may hold up the end of the process.
const SHUTDOWN: Duration = Duration::from_millis(500);

/// One run of the program.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) output: Arc<Output>,
    pub(crate) cancel: Arc<Cancel>,
    runtime: Option<Runtime>,
}

impl Context {
    pub(crate) fn new(settings: Settings, output: Arc<Output>, cancel: Arc<Cancel>) -> Self {
        Self { settings, output, cancel, runtime: None }
    }

    /// Starts the runtime; commands that touch no store do without.
    pub(crate) fn start_runtime(&mut self) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads((cores / 4).clamp(NETWORK_THREADS_MIN, NETWORK_THREADS_MAX))
            .thread_name("network")
            .enable_all()
            .build()
            .map_err(|e| {
                Error::new(ErrorKind::Unavailable, "start the network threads", "").caused_by(e)
            })?;
        self.runtime = Some(runtime);
        Ok(())
    }

    /// For operations, which block on it themselves.
    pub(crate) fn runtime(&self) -> Result<&tokio::runtime::Handle> {
        let missing = || Error::new(ErrorKind::Bug, "use the runtime", "it was not started");
        self.runtime.as_ref().map(Runtime::handle).ok_or_else(missing)
    }

    /// Runs a request to its end, or until the user wants to stop.
    pub(crate) fn block_on<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime()?.block_on(async {
            tokio::select! {
                result = request => result,
                () = self.cancel.wait() => Err(Cancel::error()),
            }
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN);
        }
    }
}

/// Program and version, as they stand in what is stored.
pub(crate) fn tool() -> String {
    format!("mover {}", env!("CARGO_PKG_VERSION"))
}

/// Name of this machine or pod.
pub(crate) fn host() -> String {
    // the kernel's own answer; a name that cannot be had is not worth a failure
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
