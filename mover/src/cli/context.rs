//! What every command works with: settings, output, the runtime, the request to stop.

use super::metrics::{RunFacts, Server, Telemetry, push};
use super::output::Output;
use super::settings::Settings;
use super::supervision::Supervisor;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::run::Cancel;
pub(crate) use mover_engine::run::{host, tool};
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
    pub(crate) supervisor: Supervisor,
    pub(crate) telemetry: Arc<Telemetry>,
    runtime: Option<Runtime>,
}

impl Context {
    pub(crate) fn new(
        settings: Settings,
        output: Arc<Output>,
        cancel: Arc<Cancel>,
        supervisor: Supervisor,
        command: &'static str,
    ) -> Self {
        let resources = &settings.resources;
        let telemetry = Telemetry::new(RunFacts {
            command,
            memory_bytes: resources.memory.total_bytes,
            memory_limit_bytes: resources.cgroup.memory_bytes,
            threads: resources.threads.unwrap_or(resources.cores) as u64,
        });
        Self { settings, output, cancel, supervisor, telemetry, runtime: None }
    }

    /// Starts the runtime; commands that touch no store do without.
    pub(crate) fn start_runtime(&mut self) -> Result<()> {
        let cores = self.settings.resources.cores;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads((cores / 4).clamp(NETWORK_THREADS_MIN, NETWORK_THREADS_MAX))
            .thread_name("network")
            .enable_all()
            .build()
            .map_err(|e| Error::caused(ErrorKind::Unavailable, "start the network threads", e))?;
        self.runtime = Some(runtime);
        Ok(())
    }

    /// Answers scrapes from now on, if that was asked for.
    pub(crate) fn serve_metrics(&self) -> Result<Option<Server>> {
        let address = self.settings.report.metrics_addr;
        address.map(|at| Server::start(self.runtime()?, at, &self.telemetry)).transpose()
    }

    /// Tells the numbers of the end to whoever wants them. It changes nothing about the end.
    pub(crate) fn report_end(&self, exit_code: u8, server: Option<&Server>) {
        self.telemetry.end(exit_code, self.output.ended().summary);
        let (Ok(runtime), report) = (self.runtime(), &self.settings.report) else { return };
        if let Some(gateway) = &report.push_gateway
            && let Err(e) = runtime.block_on(push(gateway, &self.telemetry))
        {
            self.output.warn(&e.to_string());
        }
        // a Job that was stopped has no time left
        if let Some(server) = server.filter(|_| !self.cancel.cancelled()) {
            server.linger(runtime, report.metrics_linger);
        }
    }

    /// For operations, which block on it themselves.
    pub(crate) fn runtime(&self) -> Result<&tokio::runtime::Handle> {
        let missing = || Error::new(ErrorKind::Bug, "use the runtime", "it was not started");
        self.runtime.as_ref().map(Runtime::handle).ok_or_else(missing)
    }

    /// Runs a request to its end, or until the user wants to stop.
    pub(crate) fn block_on<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime()?.block_on(self.cancel.unless_requested(request))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN);
        }
    }
}
