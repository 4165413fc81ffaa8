//! How long a request may take. Small ones have the client's own timeout; this module is for large
//! ones.
//!
//! A pack of 32 MiB takes minutes on a slow line, and a total timeout that allows for that would
//! let a dead network go unnoticed. So a long transfer is accompanied by small look-ups: while they
//! are answered the transfer may go on until its deadline, after which it is tried again on another
//! connection; once they fail, so does it.

use super::Store;
use super::fault::Fault;
use super::retry::RETRY_TIME;
use crate::error::ErrorKind;
use futures::future::{Either, select};
use object_store::{ObjectStore, ObjectStoreExt};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Tries for one transfer.
const TRIES: u32 = 3;

/// When a transfer is looked after, and when it counts as stuck.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryBudget {
    /// A transfer that takes longer than this is accompanied by a look-up, again and again.
    pub(super) look_up_every: Duration,
    /// First deadline of a transfer, beside the time for its bytes. All of it doubles with each
    /// try.
    pub(super) deadline: Duration,
    /// Bytes a second below which a connection counts as stuck.
    pub(super) slowest_bytes: u64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            look_up_every: Duration::from_secs(20),
            deadline: Duration::from_secs(60),
            slowest_bytes: 256 << 10,
        }
    }
}

enum Watched {
    Dead(object_store::Error),
    Stuck,
}

impl Store {
    /// Runs one idempotent request of `bytes` on the client that suits its size, again where its
    /// answer broke.
    pub(super) async fn with_retry<T, F, Fut>(
        &self,
        bytes: u64,
        request: F,
    ) -> object_store::Result<T>
    where
        F: Fn(Arc<dyn ObjectStore>) -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        self.with_retry_on([&self.small, &self.bulk], bytes, request).await
    }

    /// As [`with_retry`](Self::with_retry), on other clients: one for small requests, one for large ones.
    pub(super) async fn with_retry_on<T, F, Fut>(
        &self,
        clients: [&Arc<dyn ObjectStore>; 2],
        bytes: u64,
        request: F,
    ) -> object_store::Result<T>
    where
        F: Fn(Arc<dyn ObjectStore>) -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        // a large answer may take longer than that to break
        let time = if bytes < super::BULK_BYTES_MIN { RETRY_TIME } else { Duration::MAX };
        self.retry_within(time, || self.watched(clients, bytes, &request)).await
    }

    async fn watched<T, F, Fut>(
        &self,
        [small, bulk]: [&Arc<dyn ObjectStore>; 2],
        bytes: u64,
        request: &F,
    ) -> object_store::Result<T>
    where
        F: Fn(Arc<dyn ObjectStore>) -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        if bytes < super::BULK_BYTES_MIN {
            return request(Arc::clone(small)).await;
        }
        let Some(retry_budget) = self.retry_budget else {
            return request(Arc::clone(bulk)).await;
        };
        // half of the rate that was asked for is not stuck yet
        let slowest = self.slowest_limit().map_or(u64::MAX, |rate| (rate / 2).max(1));
        let for_bytes = Duration::from_secs(bytes / retry_budget.slowest_bytes.min(slowest));
        let mut deadline = retry_budget.deadline + for_bytes;
        for _ in 0..TRIES {
            let transfer = pin!(request(Arc::clone(bulk)));
            let watch = pin!(self.watch(retry_budget, deadline));
            match select(transfer, watch).await {
                Either::Left((result, _)) => return result,
                Either::Right((Watched::Dead(e), _)) => return Err(e),
                Either::Right((Watched::Stuck, _)) => deadline *= 2,
            }
        }
        Err(object_store::Error::Generic {
            store: "transfer",
            source: format!("{bytes} bytes did not get through in {TRIES} tries").into(),
        })
    }

    /// Ends when the store no longer answers small requests, or at the deadline.
    async fn watch(&self, retry_budget: RetryBudget, deadline: Duration) -> Watched {
        let mut waited = Duration::ZERO;
        while waited < deadline {
            tokio::time::sleep(retry_budget.look_up_every).await;
            waited += retry_budget.look_up_every;
            let Ok(path) = self.path("format") else { continue };
            super::count(&self.counters.heads);
            if let Err(e) = self.small.head(&path).await
                && Fault::of(&e).kind == ErrorKind::Unavailable
            {
                return Watched::Dead(e);
            }
        }
        Watched::Stuck
    }
}

/// Waits, where there is a timer to wait with.
pub(super) async fn pause(duration: Duration) {
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::time::sleep(duration).await;
    }
}
