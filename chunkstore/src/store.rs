//! Access to the objects of one repository: names, counts and explains every request.
//!
//! A [`Store`] is an `ObjectStore` with a prefix. All other modules name objects by their key
//! relative to the repository (`docs/format.md`, section 2) and get errors that say which object of
//! which repository, of what kind, and what to do next. It caches nothing and decides nothing about
//! the content of objects.
//!
//! - [`create`](Store::create) is the only primitive that coordination rests on; `store/create.rs`
//!   says what it makes of lost answers.
//! - `store/body.rs` reads bodies into buffers that were used before.
//! - `store/counts.rs` counts requests and bytes.
//! - `store/fault.rs` turns the errors of `object_store` into ours, `store/clock.rs` knows whether
//!   a clock is why.
//! - `store/lock.rs` locks objects against deletion, where the store can.
//! - `store/opened.rs` reads what is to be opened a second time where it does not open.
//! - `store/retry.rs` bounds, counts and spaces the tries of a request, `store/health.rs` those of
//!   all requests to a server that does not answer.
//! - `store/rate_limiter.rs` limits the rate of transfers.
//! - `store/leftovers.rs` removes what killed writers leave in a directory.
//! - `store/place.rs` reads URLs, `store/url.rs` opens them. Such a store has two clients: an
//!   impatient one for small requests and one for packs and large ranges, watched by
//!   `store/retry_budget.rs`, so that a dead network is noticed but a slow one is not mistaken for it.
//!
//! Each request is a future on the heap: what waits for one is no larger for it, nor is the stack
//! of the thread that polls it.

mod body;
mod clock;
mod counts;
mod create;
mod fault;
mod health;
mod leftovers;
mod lock;
mod opened;
mod place;
mod rate_limiter;
mod retry;
mod retry_budget;
mod url;

#[cfg(test)]
mod tests;

pub use clock::time_span;
pub use counts::{RequestCounts, SentBytes};
pub use create::Created;
pub(crate) use create::Probe;
#[cfg(test)]
pub(crate) use lock::LockServer;
pub use lock::{Inherited, ObjectLock, RetainMode, RetainPolicy, Retention};
pub(crate) use lock::{Kept, Retained};
pub use place::directory_of;
pub use rate_limiter::{RateLimiter, TransferLimits};
pub use url::{StoreOptions, open_url, open_url_with};

use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use counts::{Counters, add, count};
use fault::Fault;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use retry_budget::RetryBudget;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests from this size on go through the client for large bodies.
const BULK_BYTES_MIN: u64 = 256 << 10;
/// What a whole object of unknown size is taken to have when its deadline is set.
const LARGE_OBJECT_BYTES: u64 = 64 << 20;
/// Objects in one page of a listing, as all stores have it.
const LIST_PAGE: u64 = 1000;

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Relative to the repository.
    pub key: String,
    /// Size of the object.
    pub size_bytes: u64,
    /// By the store's clock.
    pub last_modified: DateTime<Utc>,
}

/// The objects of one repository. Clones share the connections and the counts.
#[derive(Clone)]
pub struct Store {
    /// For small requests: gives up and tries again quickly.
    small: Arc<dyn ObjectStore>,
    /// For packs and large ranges.
    bulk: Arc<dyn ObjectStore>,
    /// How long requests are watched; not at all where no network lies between.
    retry_budget: Option<RetryBudget>,
    /// For what is to be locked, if anything is.
    retaining: Option<lock::RetainingClients>,
    /// Asks for locks and sets them, where the store has such requests.
    lock: Option<Arc<lock::LockClient>>,
    throttles: rate_limiter::Throttles,
    /// Where it is one.
    directory: Option<Arc<std::path::Path>>,
    prefix: Path,
    url: Arc<str>,
    counters: Arc<Counters>,
    buffers: Arc<body::Buffers>,
    /// Whether its requests are of something that goes on by itself, and no movement.
    in_background: bool,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Store {
    /// Objects below `prefix` of `store`; `url` is what messages call it.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, url: impl Into<String>) -> Self {
        Self {
            bulk: Arc::clone(&store),
            small: store,
            retry_budget: None,
            retaining: None,
            lock: None,
            throttles: rate_limiter::Throttles::default(),
            directory: None,
            prefix,
            url: url.into().into(),
            counters: Arc::default(),
            buffers: Arc::default(),
            in_background: false,
        }
    }

    /// Of the memory that large bodies are read into, so many bytes at most are kept for the next
    /// ones, from now on, here and in clones; what is being read is not in them. None at first.
    pub fn keep_buffers(&self, bytes: u64) {
        self.buffers.keep(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Bytes that are kept of it now.
    pub fn kept_buffer_bytes(&self) -> u64 {
        self.buffers.kept_bytes() as u64
    }

    /// What messages call this place.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A whole object of any size. [`get_at_most`](Self::get_at_most) is for objects whose kind has
    /// a limit.
    pub async fn get(&self, key: &str) -> Result<Bytes> {
        self.get_at_most(key, u64::MAX).await
    }

    /// A whole object; one larger than `bytes_max` is refused before it is read.
    pub async fn get_at_most(&self, key: &str, bytes_max: u64) -> Result<Bytes> {
        self.get_opt_at_most(key, bytes_max).await?.ok_or_else(|| self.absent(key))
    }

    /// A whole object, `None` where there is none.
    pub async fn get_opt(&self, key: &str) -> Result<Option<Bytes>> {
        self.get_opt_at_most(key, u64::MAX).await
    }

    /// As [`get_at_most`](Self::get_at_most), `None` where there is no object.
    pub async fn get_opt_at_most(&self, key: &str, bytes_max: u64) -> Result<Option<Bytes>> {
        self.fetch(key, bytes_max, bytes_max.min(LARGE_OBJECT_BYTES)).await
    }

    /// `expected_bytes` sets the pace: how long it may take.
    fn fetch<'a>(
        &'a self,
        key: &'a str,
        bytes_max: u64,
        expected_bytes: u64,
    ) -> BoxFuture<'a, Result<Option<Bytes>>> {
        Box::pin(async move {
            self.count(&self.counters.gets);
            let path = self.path(key)?;
            let download = self.throttles.download.clone();
            let fetch = |store: Arc<dyn ObjectStore>| {
                let (path, download) = (path.clone(), download.clone());
                let buffers = &self.buffers;
                async move {
                    let result = store.get_opts(&path, GetOptions::default()).await?;
                    let size = result.meta.size;
                    if size > bytes_max {
                        return Ok((size, Bytes::new()));
                    }
                    if let Some(throttle) = &download {
                        throttle.charge(size);
                    }
                    Ok((size, body::read(buffers, download.as_deref(), result).await?))
                }
            };
            match self.with_retry(expected_bytes, fetch).await {
                Ok((size, _)) if size > bytes_max => {
                    let detail =
                        format!("the object has {size} bytes, {bytes_max} are the most allowed");
                    Err(Error::new(ErrorKind::Corrupt, self.context("read", key), detail))
                }
                Ok((size, bytes)) if bytes.len() as u64 == size => Ok(Some(bytes)),
                Ok((size, bytes)) => Err(self.cut_short(key, size, bytes.len() as u64)),
                Err(e) => self.absent_or_err("read", key, e),
            }
        })
    }

    /// A byte range of an object: exactly that many bytes, or an error. An absent object is
    /// `NotFound`, one that ends before the range does is `Corrupt`.
    pub fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let wanted = range.end.saturating_sub(range.start);
            if wanted == 0 {
                return Ok(Bytes::new());
            }
            self.count(&self.counters.gets);
            let path = self.path(key)?;
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                ..GetOptions::default()
            };
            let download = self.throttles.download.clone();
            if let Some(throttle) = &download {
                throttle.turn(wanted).await;
            }
            let fetch = |store: Arc<dyn ObjectStore>| {
                let (path, options, download) = (path.clone(), options.clone(), download.clone());
                let buffers = &self.buffers;
                async move {
                    let result = store.get_opts(&path, options).await?;
                    body::read(buffers, download.as_deref(), result).await
                }
            };
            match self.with_retry(wanted, fetch).await {
                Ok(bytes) if bytes.len() as u64 == wanted => Ok(bytes),
                Ok(bytes) => Err(self.cut_short(key, range.end, range.start + bytes.len() as u64)),
                Err(e) => {
                    let fault = Fault::of(&e);
                    // stores word "beyond the end" in as many ways as there are stores; the size
                    // tells
                    if fault.kind == ErrorKind::Unavailable
                        && fault.answered
                        && let Ok(Some(meta)) = self.head(key).await
                        && meta.size < range.end
                    {
                        return Err(self.cut_short(key, range.end, meta.size));
                    }
                    Err(self.failed(fault, self.context("read", key), e))
                }
            }
        })
    }

    /// Writes an object, over any that is there. For keys that only the caller uses. It counts for
    /// a limit on the rate, but does not wait: a lease with a checkpoint may be large, and its
    /// heartbeat must not queue behind packs.
    pub async fn put(&self, key: &str, payload: impl Into<PutPayload>) -> Result<()> {
        let payload = payload.into();
        if let Some(throttle) = &self.throttles.upload {
            throttle.charge(payload.content_length() as u64);
        }
        add(&self.counters.sent_at_once, payload.content_length());
        self.put_now(key, payload).await
    }

    /// As [`put`](Self::put), but waits for its turn where the rate is limited. For packs and
    /// segments.
    pub async fn put_in_turn(&self, key: &str, payload: impl Into<PutPayload>) -> Result<()> {
        let payload = payload.into();
        if let Some(throttle) = &self.throttles.upload {
            throttle.turn(payload.content_length() as u64).await;
        }
        add(&self.counters.sent_in_turn, payload.content_length());
        self.put_now(key, payload).await
    }

    fn put_now<'a>(&'a self, key: &'a str, payload: PutPayload) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.count(&self.counters.puts);
            let path = self.path(key)?;
            let begun = AtomicBool::new(false);
            let send = |store: Arc<dyn ObjectStore>| {
                if begun.swap(true, Ordering::Relaxed) {
                    add(&self.counters.sent_again, payload.content_length());
                }
                let (path, payload) = (path.clone(), payload.clone());
                async move { store.put_opts(&path, payload, PutOptions::default()).await }
            };
            let clients = self.clients_for(key);
            match self.with_retry_on(clients, payload.content_length() as u64, send).await {
                Ok(_) => Ok(()),
                Err(e) => Err(self.put_failed(key, e)),
            }
        })
    }

    /// Size and time of an object, `None` where there is none.
    pub fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<ObjectMeta>>> {
        Box::pin(async move {
            self.count(&self.counters.heads);
            let path = self.path(key)?;
            match self.retry(|| self.small.head(&path)).await {
                Ok(meta) => Ok(Some(meta)),
                Err(e) => self.absent_or_err("look up", key, e),
            }
        })
    }

    /// All objects below a prefix of whole path segments (`""` is the repository itself), in no
    /// certain order.
    pub fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move {
            let path = self.path(prefix)?;
            let listing = || async {
                let mut found = Vec::new();
                let mut stream = self.small.list(Some(&path));
                let result = loop {
                    match stream.try_next().await {
                        Ok(Some(meta)) => found.extend(self.listed(meta)),
                        Ok(None) => break Ok(()),
                        Err(e) => break Err(e),
                    }
                };
                let pages = (found.len() as u64).div_ceil(LIST_PAGE).max(1);
                self.count_many(&self.counters.lists, pages);
                result.map(|()| found)
            };
            self.retry(listing).await.map_err(|e| self.list_failed(prefix, e))
        })
    }

    /// Whether there is any object below a prefix; reads at most one page of the listing.
    pub fn any<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            self.count(&self.counters.lists);
            let path = self.path(prefix)?;
            let first = || async { self.small.list(Some(&path)).try_next().await };
            match self.retry(first).await {
                Ok(first) => Ok(first.is_some()),
                Err(e) => Err(self.list_failed(prefix, e)),
            }
        })
    }

    /// Deletes an object; deleting none is fine.
    pub fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.count(&self.counters.deletes);
            let path = self.path(key)?;
            match self.retry(|| self.small.delete(&path)).await {
                Ok(()) => Ok(()),
                Err(e) => self.absent_or_err::<()>("delete", key, e).map(|_| ()),
            }
        })
    }

    /// As [`delete`](Self::delete), with the store's own error.
    fn try_delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<object_store::Result<()>>> {
        Box::pin(async move {
            self.count(&self.counters.deletes);
            let path = self.path(key)?;
            Ok(match self.retry(|| self.small.delete(&path)).await {
                Err(e) if Fault::of(&e).kind == ErrorKind::NotFound => Ok(()),
                result => result,
            })
        })
    }

    /// Deletes many objects, as many with one request as the store can; those that are not there
    /// are fine.
    pub async fn delete_all(&self, keys: Vec<String>) -> Result<()> {
        if !self.delete_many(&keys).await? {
            // not all stores know requests for many; and one by one it is known which it was
            for key in &keys {
                self.delete(key).await?;
            }
        }
        Ok(())
    }

    /// False: something could not be deleted.
    fn delete_many<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            self.count_many(&self.counters.deletes, keys.len() as u64);
            let paths = keys.iter().map(|key| self.path(key)).collect::<Result<Vec<Path>>>()?;
            let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
            let mut answers = self.small.delete_stream(paths);
            let mut failed = false;
            while let Some(answer) = answers.next().await {
                failed |= answer.is_err_and(|e| Fault::of(&e).kind != ErrorKind::NotFound);
            }
            Ok(!failed)
        })
    }

    /// One create request, nothing made of its answer.
    fn create_once<'a>(
        &'a self,
        key: &'a str,
        path: &'a Path,
        bytes: &'a Bytes,
    ) -> BoxFuture<'a, object_store::Result<()>> {
        Box::pin(async move {
            self.count(&self.counters.creates);
            if let Some(throttle) = &self.throttles.upload {
                throttle.charge(bytes.len() as u64);
            }
            add(&self.counters.sent_at_once, bytes.len());
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let client = self.clients_for(key)[0];
            client.put_opts(path, PutPayload::from(bytes.clone()), options).await.map(|_| ())
        })
    }

    /// What writes an object: the small and the bulk client.
    fn clients_for(&self, key: &str) -> [&Arc<dyn ObjectStore>; 2] {
        match &self.retaining {
            Some(clients) if lock::is_retained(key) => [&clients.small, &clients.bulk],
            _ => [&self.small, &self.bulk],
        }
    }

    fn path(&self, key: &str) -> Result<Path> {
        let whole = match (self.prefix.as_ref(), key) {
            (prefix, "") => prefix.to_owned(),
            ("", key) => key.to_owned(),
            (prefix, key) => format!("{prefix}/{key}"),
        };
        Path::parse(&whole).map_err(|e| {
            Error::new(ErrorKind::Usage, self.context("use", key), "not an object key").caused_by(e)
        })
    }

    fn listed(&self, meta: ObjectMeta) -> Option<Listed> {
        let whole = meta.location.as_ref();
        let prefix = self.prefix.as_ref();
        let key = if prefix.is_empty() {
            whole
        } else {
            whole.strip_prefix(prefix)?.strip_prefix('/')?
        };
        Some(Listed {
            key: key.to_owned(),
            size_bytes: meta.size,
            last_modified: meta.last_modified,
        })
    }

    /// "read packs/ab/… in s3://bucket/prefix"
    pub(crate) fn context(&self, verb: &str, key: &str) -> String {
        format!("{verb} {key} in {}", self.url)
    }

    fn list_failed(&self, prefix: &str, e: object_store::Error) -> Error {
        let context = self.context("list", &format!("{}/", prefix.trim_end_matches('/')));
        self.failed(Fault::of(&e).of_place(), context, e)
    }

    /// For writes, where "not found" can only mean the place as a whole.
    fn put_failed(&self, key: &str, e: object_store::Error) -> Error {
        self.failed(Fault::of(&e).of_place(), self.context("write", key), e)
    }

    fn absent_or_err<T>(&self, verb: &str, key: &str, e: object_store::Error) -> Result<Option<T>> {
        let fault = Fault::of(&e);
        if fault.kind == ErrorKind::NotFound && !fault.place_absent {
            return Ok(None);
        }
        Err(self.failed(fault, self.context(verb, key), e))
    }

    pub(crate) fn absent(&self, key: &str) -> Error {
        Error::new(ErrorKind::NotFound, self.context("read", key), "there is no such object")
    }

    fn cut_short(&self, key: &str, expected: u64, found: u64) -> Error {
        let detail = format!("the object ends at byte {found}, expected at least {expected}");
        Error::new(ErrorKind::Corrupt, self.context("read", key), detail)
    }
}
