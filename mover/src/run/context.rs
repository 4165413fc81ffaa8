//! Requests of a run that wait for nothing longer than the run is to go on.

use super::{Cancel, Progress};
use chunkstore::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long a run that has to stop tries to give a lease back: a store that does not answer must not
/// use up the time that is left, and the lease runs out by itself.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(500);

/// What every operation carries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunContext<'a> {
    pub(crate) rt: &'a Handle,
    pub(crate) cancel: &'a Arc<Cancel>,
    pub(crate) progress: &'a Arc<Progress>,
}

impl RunContext<'_> {
    /// Blocks until a request is answered, or until a stop is requested; then the request is
    /// dropped.
    pub(crate) fn wait<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.rt.block_on(self.cancel.unless_requested(request))
    }

    /// Blocks until a lease is given back, but not for long once a stop is requested.
    pub(crate) fn give_back(&self, finish: impl Future<Output = Vec<String>>) -> Vec<String> {
        if !self.cancel.cancelled() {
            return self.rt.block_on(finish);
        }
        let finish = async { tokio::time::timeout(GIVE_BACK_WITHIN, finish).await };
        self.rt.block_on(finish).unwrap_or_default()
    }
}
