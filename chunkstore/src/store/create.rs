//! Create-once with a certain answer.
//!
//! What the stores and `object_store` 0.14 do with `PutMode::Create`:
//! - S3 and Azure send `If-None-Match: *`, GCS `x-goog-if-generation-match: 0`; a directory uses
//!   `link(2)`. A taken key is 412, 304 or `EEXIST`: `AlreadyExists`.
//! - 5xx answers and connections that break before an answer are retried inside, so *our own
//!   success can come back as `AlreadyExists`*. A timeout is not retried: the outcome is unknown.
//! - S3 answers 409 to a create that ran into another request for the key; nothing is written, and
//!   it comes back as `AlreadyExists` too.
//!
//! So after `AlreadyExists` or an unknown outcome the object is read and compared. Every record
//! carries a fresh random salt: equal bytes are our own write. Absent means that nothing was
//! written: the next try, a bounded number of times. A try that is still under way somewhere cannot
//! harm: it carries the same bytes.

use super::fault::Fault;
use super::retry::RETRY_TIME;
use super::{Store, retry_budget};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{GC_BYTES_MAX, RECORD_CLEAR_BYTES_MAX, RECORD_HEADER_BYTES, TAG_BYTES};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::time::{Duration, Instant};

/// Create requests for one object before giving up.
const TRIES: u32 = 8;
/// Pause after the first try that left nothing behind; doubles with each, up to the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Largest object that is created once: a record of the garbage collection.
const BYTES_MAX: u64 =
    (GC_BYTES_MAX + RECORD_CLEAR_BYTES_MAX + RECORD_HEADER_BYTES + TAG_BYTES) as u64;

/// What became of [`Store::create`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// Created by this call, and the store said so.
    Now,
    /// The object is there with our very bytes; the store's answer to the write was lost or said
    /// otherwise.
    Ours,
    /// Another object was there first; its content.
    Taken(Bytes),
}

/// What one bare create request says about the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// It refused to create what exists.
    Refused,
    /// It wrote over what exists.
    WroteOver,
    /// It did not let us try.
    Denied,
}

impl Store {
    /// Writes an object if there is none, and finds out what happened. `bytes` must be unlike any
    /// other writer's (a record with its random salt is). An error of kind `Unavailable` leaves
    /// open whether the object was or will be written.
    pub fn create<'a>(&'a self, key: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<Created>> {
        Box::pin(async move {
            let path = self.path(key)?;
            let mut last = None;
            for attempt in 0..TRIES {
                match self.create_once(key, &path, &bytes).await {
                    Ok(()) => return Ok(Created::Now),
                    Err(e) => {
                        let fault = Fault::of(&e).of_place();
                        if fault.kind != ErrorKind::AlreadyExists && !fault.outcome_unknown {
                            return Err(self.failed(fault, self.context("create", key), e));
                        }
                        let unreachable = fault.unreachable;
                        let error = self.failed(fault, self.context("create", key), e);
                        if unreachable {
                            // the object cannot be looked up either: one clear error now, not another
                            // minute from now
                            return Err(error);
                        }
                        last = Some(error);
                    }
                }
                match self.fetch(key, BYTES_MAX, bytes.len() as u64).await {
                    Ok(Some(found)) if found == bytes => return Ok(Created::Ours),
                    Ok(Some(found)) => return Ok(Created::Taken(found)),
                    Ok(None) => tracing::debug!(key, attempt, "create left nothing behind"),
                    Err(e) => {
                        return Err(e.within(format!("find out whether {key} was created")));
                    }
                }
                if attempt + 1 < TRIES {
                    pause_after(attempt).await;
                }
            }
            let last = last.unwrap_or_else(|| {
                Error::new(ErrorKind::Bug, self.context("create", key), "not tried at all")
            });
            Err(Error::new(
                ErrorKind::Unavailable,
                self.context("create", key),
                format!("the store neither wrote the object nor has it, {TRIES} times over"),
            )
            .caused_by(last))
        })
    }

    /// A create request for an object that is known to exist, with its bytes: harmless whatever the
    /// store does. What it answers to a second try is the same, so lost answers do not matter.
    pub(crate) fn probe_create<'a>(
        &'a self,
        key: &'a str,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<Probe>> {
        Box::pin(async move {
            let path = self.path(key)?;
            let (begun, mut attempt) = (Instant::now(), 0);
            loop {
                let Err(e) = self.retry(|| self.create_once(key, &path, &bytes)).await else {
                    return Ok(Probe::WroteOver);
                };
                let fault = Fault::of(&e);
                attempt += 1;
                match fault.kind {
                    ErrorKind::AlreadyExists => return Ok(Probe::Refused),
                    ErrorKind::Denied => return Ok(Probe::Denied),
                    _ if fault.outcome_unknown
                        && !fault.unreachable
                        && attempt < TRIES
                        && begun.elapsed() < RETRY_TIME =>
                    {
                        pause_after(attempt - 1).await;
                    }
                    _ => return Err(self.failed(fault, self.context("create again", key), e)),
                }
            }
        })
    }
}

async fn pause_after(attempt: u32) {
    retry_budget::pause((PAUSE * 2u32.pow(attempt)).min(PAUSE_MAX)).await;
}
