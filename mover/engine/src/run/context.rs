//! Requests of a run that wait for nothing longer than the run is to go on.

use super::{Cancel, Progress};
use chunkstore::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long a run that has to stop still waits to give back a lease: the time that is left must not
/// go to a store that does not answer.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(500);
/// How long after the wish to stop a run may still begin, all its requests together: without a
/// beginning it cannot say what is stored, and a lease that is being made would stay.
const BEGIN_WITHIN: Duration = Duration::from_secs(3);

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

    /// Blocks until a request that leads to a lease is answered, or until 3 s after a stop was
    /// requested; then the request is dropped.
    pub(crate) fn wait_to_begin<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let begun = self.until_after_a_stop(request, |since| BEGIN_WITHIN.saturating_sub(since));
        self.rt.block_on(begun).unwrap_or_else(|| Err(Cancel::error()))
    }

    /// Blocks until a lease is given back; once a stop is requested only for a moment, for the lease
    /// runs out by itself.
    pub(crate) fn give_back(&self, finish: impl Future<Output = Vec<String>>) -> Vec<String> {
        let given = self.until_after_a_stop(finish, |_| GIVE_BACK_WITHIN);
        self.rt.block_on(given).unwrap_or_default()
    }

    /// Waits for `work`; once a stop is requested no longer than `left` says of the time since then.
    async fn until_after_a_stop<T>(
        &self,
        work: impl Future<Output = T>,
        left: impl Fn(Duration) -> Duration,
    ) -> Option<T> {
        let over = async {
            self.cancel.requested().await;
            let since = self.cancel.since().map_or(Duration::ZERO, |since| since.elapsed());
            tokio::time::sleep(left(since)).await;
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
        assert!(run.wait_to_begin(pending::<Result<()>>()).is_err());
        // what is answered is taken, though a stop was requested before
        assert_eq!(run.wait_to_begin(async { Ok(7) }).unwrap(), 7);
        assert_eq!(run.give_back(async { vec!["late".to_owned()] }), ["late"]);
        assert!(run.wait(async { Ok(7) }).is_err());
    }
}
