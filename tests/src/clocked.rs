//! An object store in memory with a clock of its own, which a test sets forward, and which may
//! ignore create-once.

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use chunkstore::testkit::{Answer, Hook, HookedStore, Request};
use futures::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetResult, ObjectMeta, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A store in memory with a clock.
pub type ClockedStore = HookedStore<Clocked>;

/// See the module.
#[derive(Debug)]
pub struct Clocked {
    inner: Arc<InMemory>,
    clock: Arc<Clock>,
    ignores_create_once: AtomicBool,
}

#[derive(Debug, Default)]
struct Clock {
    /// Seconds since the epoch.
    now: AtomicI64,
    written: Mutex<HashMap<Path, i64>>,
}

impl Clock {
    fn set(&self, meta: ObjectMeta) -> ObjectMeta {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = written.get(&meta.location).copied().unwrap_or(0);
        let last_modified: DateTime<Utc> = DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
        ObjectMeta { last_modified, ..meta }
    }
}

impl Clocked {
    /// Over these objects, which count as written at the beginning of time.
    pub fn over(inner: InMemory) -> Arc<ClockedStore> {
        Self::at(inner, Clock::default())
    }

    fn at(inner: InMemory, clock: Clock) -> Arc<ClockedStore> {
        let (inner, ignores_create_once) = (Arc::new(inner), AtomicBool::new(false));
        let store = Arc::clone(&inner);
        HookedStore::new(store, Self { inner, clock: Arc::new(clock), ignores_create_once })
    }

    /// A copy of all objects and of the clock.
    pub fn fork(&self) -> Arc<ClockedStore> {
        let now = AtomicI64::new(self.clock.now.load(Ordering::SeqCst));
        let written = self.clock.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self::at(self.inner.fork(), Clock { now, written: Mutex::new(written) })
    }

    /// Sets the clock forward.
    pub fn advance(&self, seconds: i64) {
        self.clock.now.fetch_add(seconds, Ordering::SeqCst);
    }

    /// From now on a create writes over what exists.
    pub fn ignore_create_once(&self) {
        self.ignores_create_once.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl Hook for Clocked {
    async fn request(&self, mut request: Request) -> Result<Answer> {
        if self.ignores_create_once.load(Ordering::SeqCst) {
            request.overwrite();
        }
        let path = request.path().clone();
        Ok(match request.pass().await? {
            Answer::Put(put) => {
                let now = self.clock.now.load(Ordering::SeqCst);
                let mut written = self.clock.written.lock().unwrap_or_else(PoisonError::into_inner);
                written.insert(path, now);
                Answer::Put(put)
            }
            Answer::Got(got) => {
                let meta = self.clock.set(got.meta.clone());
                Answer::Got(GetResult { meta, ..got })
            }
            Answer::Listed(listed) => {
                let clock = Arc::clone(&self.clock);
                Answer::Listed(listed.map(move |meta| meta.map(|meta| clock.set(meta))).boxed())
            }
            Answer::Done => Answer::Done,
        })
    }
}
