//! An object store that stops at a chosen request, lets somebody else do something whole, and goes
//! on: every order of two operations in which one of them happens between two requests of the
//! other.

use async_trait::async_trait;
use chunkstore::testkit::{Answer, Hook, HookedStore, Request};
use object_store::{ObjectStore, Result};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// See the module.
pub struct BesideStore {
    at: u64,
    requests: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl fmt::Debug for BesideStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BesideStore").field("at", &self.at).finish_non_exhaustive()
    }
}

impl BesideStore {
    /// Right before request `at` (from 0) `meanwhile` happens, on a thread of its own.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        at: u64,
        meanwhile: impl FnOnce() + Send + 'static,
    ) -> Arc<HookedStore<Self>> {
        let meanwhile: Mutex<Option<Meanwhile>> = Mutex::new(Some(Box::new(meanwhile)));
        HookedStore::new(inner, Self { at, requests: AtomicU64::new(0), meanwhile })
    }

    /// Requests that were made.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Hook for BesideStore {
    async fn request(&self, request: Request) -> Result<Answer> {
        if self.requests.fetch_add(1, Ordering::SeqCst) == self.at {
            let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(meanwhile) = meanwhile {
                let (done, wait) = tokio::sync::oneshot::channel();
                std::thread::spawn(move || {
                    meanwhile();
                    let _ = done.send(());
                });
                wait.await.expect("what happens meanwhile ends well");
            }
        }
        request.pass().await
    }
}
