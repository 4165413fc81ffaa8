//! An object store in memory with a clock of its own, which a test sets forward, and which may
//! ignore create-once.

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use futures::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
#[derive(Debug)]
pub struct ClockedStore {
    inner: InMemory,
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

impl ClockedStore {
    /// Over these objects, which count as written at the beginning of time.
    pub fn new(inner: InMemory) -> Arc<Self> {
        let ignores_create_once = AtomicBool::new(false);
        Arc::new(Self { inner, clock: Arc::default(), ignores_create_once })
    }

    /// A copy of all objects and of the clock.
    pub fn fork(&self) -> Arc<Self> {
        let fork = Self::new(self.inner.fork());
        fork.clock.now.store(self.clock.now.load(Ordering::SeqCst), Ordering::SeqCst);
        let written = self.clock.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *fork.clock.written.lock().unwrap_or_else(PoisonError::into_inner) = written;
        fork
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

impl fmt::Display for ClockedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockedStore")
    }
}

#[async_trait]
impl ObjectStore for ClockedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        if self.ignores_create_once.load(Ordering::SeqCst) {
            opts.mode = PutMode::Overwrite;
        }
        let done = self.inner.put_opts(path, payload, opts).await?;
        let now = self.clock.now.load(Ordering::SeqCst);
        let mut written = self.clock.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(path.clone(), now);
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (operation, implementer) = ("multipart".into(), "ClockedStore".into());
        Err(Error::NotImplemented { operation, implementer })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let got = self.inner.get_opts(path, options).await?;
        let meta = self.clock.set(got.meta.clone());
        Ok(GetResult { meta, ..got })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let clock = Arc::clone(&self.clock);
        self.inner.list(prefix).map(move |meta| meta.map(|meta| clock.set(meta))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
