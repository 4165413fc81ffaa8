//! An object store that dies at a chosen change, before or after it is done, and answers nothing
//! from then on: what a process that is killed there leaves behind.

use async_trait::async_trait;
use chunkstore::testkit::{Answer, Hook, HookedStore, Request};
use object_store::path::Path;
use object_store::{Error, ObjectStore, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The moment of death: at the `change`-th change (from 0), before or after it takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// Which put, create or delete.
    pub change: u64,
    /// Whether that change is still done.
    pub done: bool,
}

/// See the module.
#[derive(Debug)]
pub struct DyingStore {
    death: Option<Death>,
    /// Only changes of objects below it count.
    below: &'static str,
    changes: AtomicU64,
    dead: AtomicBool,
}

impl DyingStore {
    /// Over `inner`; `None` never dies, and counts.
    pub fn new(inner: Arc<dyn ObjectStore>, death: Option<Death>) -> Arc<HookedStore<Self>> {
        Self::below(inner, "", death)
    }

    /// As [`Self::new`], but only changes of objects below a prefix of the repository count, such
    /// as `leases`.
    pub fn below(
        inner: Arc<dyn ObjectStore>,
        below: &'static str,
        death: Option<Death>,
    ) -> Arc<HookedStore<Self>> {
        let (changes, dead) = (AtomicU64::new(0), AtomicBool::new(false));
        HookedStore::new(inner, Self { death, below, changes, dead })
    }

    /// Changes that were asked for.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether it has died.
    pub fn dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn counts(&self, path: &Path) -> bool {
        let below = path.parts().nth(1);
        self.below.is_empty() || below.is_some_and(|part| part.as_ref() == self.below)
    }
}

#[async_trait]
impl Hook for DyingStore {
    async fn request(&self, request: Request) -> Result<Answer> {
        if self.dead() {
            return Err(gone());
        }
        if !request.verb().changes() || !self.counts(request.path()) {
            return request.pass().await;
        }
        let change = self.changes.fetch_add(1, Ordering::SeqCst);
        match self.death {
            Some(death) if death.change == change => {
                self.dead.store(true, Ordering::SeqCst);
                if death.done { request.pass_but(gone()).await } else { Err(gone()) }
            }
            _ => request.pass().await,
        }
    }
}

/// A refusal that nothing retries: a killed process hears nothing either, but a test must not wait
/// for that.
fn gone() -> Error {
    Error::PermissionDenied { path: "dead".into(), source: "the store died".into() }
}
