//! A writer that was taken for dead and is not: it finds out at its next beat or checkpoint, not
//! only at the commit.
//!
//! It was suspended, or cut off from the store, for longer than its lease time; a collector has
//! taken its key and removed its lease. From then on nothing keeps what it stores: each collection
//! condemns it, waits for nobody, and deletes it. To go on until the commit would be to store all
//! of it in vain, and to do that again under a new lease. So it takes the new lease now, and begins
//! anew under it: what the search of the protocol knows as a writer that ends there, and another one
//! that begins (`docs/protocol.md`). What was stored before counts for nothing but dedup, where the
//! condemned lists that are read under the new lease leave it.

use super::{Writer, backup_at};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::ManifestRecord;
use futures::future::BoxFuture;
use std::sync::Arc;

impl Writer {
    /// Ends, with the error of a pass that is to end for it, when the lease is found gone while
    /// nobody has committed this backup. [`begin_anew`](Self::begin_anew) is next.
    ///
    /// Where a fellow under the same lease has committed, it does not end: the commit finds that.
    pub fn taken_for_dead(&self) -> impl Future<Output = Error> + Send + 'static {
        let (mut lost, retry_pause) = (self.lease.lost(), self.lease.retry_pause());
        let (repo, name) = (Arc::clone(self.lease.background()), self.name());
        async move {
            while lost.wait_for(|lost| *lost).await.is_ok() {
                match backup_at(&repo, &name).await {
                    Ok(None) => {
                        tracing::warn!(
                            "{name}: this run was taken for dead, as it gave no sign of life for too long"
                        );
                        let context = format!("make backup {name}");
                        return Error::new(ErrorKind::Fenced, context, "it was taken for dead")
                            .hint("run it again");
                    }
                    Ok(Some(_)) => break,
                    // not to ask again would be to store all the rest with nothing that keeps it
                    Err(e) => {
                        tracing::warn!(
                            "{name}: the lease is gone, and the store does not say why yet: {e}"
                        );
                        tokio::time::sleep(retry_pause).await;
                    }
                }
            }
            // committed by a fellow, or its owner has ended first
            std::future::pending().await
        }
    }

    /// A new lease, the next attempt where a collector took this one, and steps 2 and 3 under them.
    /// All of the work is to be done again. Gives the reason.
    pub fn begin_anew<'a>(&'a mut self) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let there = self.repo.read_manifest(&self.name()).await?;
            let fenced = matches!(there, Some(ManifestRecord::Fence { .. }));
            self.carried.clear();
            self.locked = None;
            let parent_gone = self.resume(fenced, &[]).await?;
            let reason = "it was taken for dead, so what it had stored may be gone";
            Ok(parent_gone.unwrap_or_else(|| format!("{}: {reason}", self.name())))
        })
    }
}
