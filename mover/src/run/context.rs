//! Requests of a run that wait for nothing longer than the run is to go on.

use super::{Cancel, Progress};
use chunkstore::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long a run that has to stop still waits for what should be ended well: the time that is left
/// must not go to a store that does not answer.
const SOON: Duration = Duration::from_millis(500);

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

    /// Blocks until a request is answered, and for a moment longer than a stop is requested: for what
    /// a stop alone is no reason to give up, such as a lease that is being taken. Then the request is
    /// dropped.
    pub(crate) fn wait_a_moment<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.rt.block_on(self.soon(request)).unwrap_or_else(|| Err(Cancel::error()))
    }

    /// Blocks until a lease is given back; once a stop is requested only for a moment, for the lease
    /// runs out by itself.
    pub(crate) fn give_back(&self, finish: impl Future<Output = Vec<String>>) -> Vec<String> {
        self.rt.block_on(self.soon(finish)).unwrap_or_default()
    }

    async fn soon<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let over = async {
            self.cancel.requested().await;
            tokio::time::sleep(SOON).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = over => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[test]
    fn a_stop_ends_a_wait_at_once_and_a_last_request_soon() {
        let rt = tokio::runtime::Builder::new_multi_thread();
        let rt = { rt }.worker_threads(1).enable_time().build().unwrap();
        let (cancel, progress) = (Cancel::new(), Progress::new());
        let run = RunContext { rt: rt.handle(), cancel: &cancel, progress: &progress };
        let asked = Arc::clone(&cancel);
        // the stop comes while the wait is under way
        let finish = async {
            asked.request();
            pending::<Vec<String>>().await
        };
        assert_eq!(run.give_back(finish), Vec::<String>::new());
        assert!(run.wait(pending::<Result<()>>()).is_err());
        assert!(run.wait_a_moment(pending::<Result<()>>()).is_err());
        // what is answered is taken, though a stop was requested before
        assert_eq!(run.wait_a_moment(async { Ok(7) }).unwrap(), 7);
        assert_eq!(run.give_back(async { vec!["late".to_owned()] }), ["late"]);
        assert!(run.wait(async { Ok(7) }).is_err());
    }
}
