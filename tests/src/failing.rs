//! An object store of which one operation fails, once, in a chosen way; or which has no room left
//! below some prefixes.

use async_trait::async_trait;
use chunkstore::testkit::{Answer, Hook, HookedStore, Request};
use object_store::{Error, ObjectStore, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How one operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The object, or for a write the bucket, is not there. A store that says so of what is there
    /// lies.
    NotFound,
    /// It is done, and no answer comes.
    TimeoutAfterSuccess,
    /// Of a write: refused, as if its condition did not hold. Nothing is done.
    Precondition,
    /// Of a write: no room. Nothing is done.
    StorageFull,
    /// Nothing is done, and no answer comes.
    Timeout,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::NotFound,
        Self::TimeoutAfterSuccess,
        Self::Precondition,
        Self::StorageFull,
        Self::Timeout,
    ];

    /// Whether an operation can fail so.
    fn fits(self, writes: bool) -> bool {
        writes || !matches!(self, Self::Precondition | Self::StorageFull)
    }

    fn error(self, path: &str) -> Error {
        let (path, source) = (path.to_owned(), "injected".into());
        match self {
            Self::NotFound => Error::NotFound { path, source },
            Self::Precondition => Error::Precondition { path, source },
            Self::StorageFull => no_room(),
            Self::TimeoutAfterSuccess | Self::Timeout => {
                Error::Generic { store: "test", source: "no answer in time".into() }
            }
        }
    }
}

fn no_room() -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
    Error::Generic { store: "test", source: Box::new(source) }
}

/// See the module.
#[derive(Debug, Default)]
pub struct FailingStore {
    at: Option<(u64, Failure)>,
    full: &'static [&'static str],
    operations: AtomicU64,
    hit: Mutex<Option<String>>,
}

impl FailingStore {
    /// Operation `at` (from 0) fails, if it can fail so.
    pub fn new(inner: Arc<dyn ObjectStore>, at: Option<(u64, Failure)>) -> Arc<HookedStore<Self>> {
        HookedStore::new(inner, Self { at, ..Self::default() })
    }

    /// No object can be written below these prefixes of the repository.
    pub fn full(
        inner: Arc<dyn ObjectStore>,
        below: &'static [&'static str],
    ) -> Arc<HookedStore<Self>> {
        HookedStore::new(inner, Self { full: below, ..Self::default() })
    }

    /// Operations that were asked for.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    /// The last operation that failed: `get repo/format`.
    pub fn hit(&self) -> Option<String> {
        self.hit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How this operation fails.
    fn fate(&self, request: &Request) -> Option<Failure> {
        let n = self.operations.fetch_add(1, Ordering::SeqCst);
        let writes = request.verb().writes();
        let fails = self.at.filter(|(at, failure)| *at == n && failure.fits(writes));
        let kind = request.path().as_ref().split('/').nth(1).unwrap_or_default();
        let full = (writes && self.full.contains(&kind)).then_some(Failure::StorageFull);
        let fate = fails.map(|(_, failure)| failure).or(full);
        if fate.is_some() {
            let mut hit = self.hit.lock().unwrap_or_else(PoisonError::into_inner);
            *hit = Some(request.name());
        }
        fate
    }
}

#[async_trait]
impl Hook for FailingStore {
    async fn request(&self, request: Request) -> Result<Answer> {
        let Some(failure) = self.fate(&request) else { return request.pass().await };
        let error = failure.error(request.path().as_ref());
        match failure {
            Failure::TimeoutAfterSuccess => request.pass_but(error).await,
            _ => Err(error),
        }
    }
}
