//! How long a request may take. Small ones have the client's own timeout; this module is for large ones.
//!
//! A pack of 32 MiB takes minutes on a slow line, and a total timeout that allows for that would let a dead network go
//! unnoticed. So a long transfer is accompanied by small look-ups: while they are answered the transfer may go on until
//! its deadline, after which it is tried again on another connection; once they fail, so does it.

use super::Store;
use super::fault::Fault;
use crate::error::ErrorKind;
use futures::future::{Either, select};
use object_store::{ObjectStore, ObjectStoreExt};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A transfer that takes longer than this is accompanied by a look-up, again and again.
const LOOK_UP_EVERY: Duration = Duration::from_secs(20);
/// First deadline of a transfer: this long, and a second more for each `SLOWEST_BYTES`. Doubles with each try.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes a second below which a connection counts as stuck.
const SLOWEST_BYTES: u64 = 256 << 10;
/// Tries for one transfer.
const TRIES: u32 = 3;

enum Watched {
    Dead(object_store::Error),
    Stuck,
}

impl Store {
    /// Runs one idempotent request of `bytes` on the client that suits its size.
    pub(super) async fn patient<T, F, Fut>(&self, bytes: u64, request: F) -> object_store::Result<T>
    where
        F: Fn(Arc<dyn ObjectStore>) -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        if bytes < super::BULK_BYTES_MIN {
            return request(Arc::clone(&self.small)).await;
        }
        if !self.watched {
            return request(Arc::clone(&self.bulk)).await;
        }
        let mut deadline = DEADLINE + Duration::from_secs(bytes / SLOWEST_BYTES);
        for _ in 0..TRIES {
            let transfer = pin!(request(Arc::clone(&self.bulk)));
            let watch = pin!(self.watch(deadline));
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
    async fn watch(&self, deadline: Duration) -> Watched {
        let mut waited = Duration::ZERO;
        while waited < deadline {
            tokio::time::sleep(LOOK_UP_EVERY).await;
            waited += LOOK_UP_EVERY;
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
