//! An object store of which one operation fails, once, in a chosen way; or which has no room left
//! below some prefixes.

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
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
#[derive(Clone)]
pub struct FailingStore(Arc<Inner>);

struct Inner {
    inner: Arc<dyn ObjectStore>,
    at: Option<(u64, Failure)>,
    full: &'static [&'static str],
    operations: AtomicU64,
    hit: Mutex<Option<String>>,
}

impl fmt::Debug for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailingStore({})", self.0.inner)
    }
}

impl FailingStore {
    /// Operation `at` (from 0) fails, if it can fail so.
    pub fn new(inner: Arc<dyn ObjectStore>, at: Option<(u64, Failure)>) -> Arc<Self> {
        Arc::new(Self(Arc::new(Inner {
            inner,
            at,
            full: &[],
            operations: AtomicU64::new(0),
            hit: Mutex::default(),
        })))
    }

    /// No object can be written below these prefixes of the repository.
    pub fn full(inner: Arc<dyn ObjectStore>, below: &'static [&'static str]) -> Arc<Self> {
        let (operations, hit) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Self(Arc::new(Inner { inner, at: None, full: below, operations, hit })))
    }

    /// Operations that were asked for.
    pub fn operations(&self) -> u64 {
        self.0.operations.load(Ordering::SeqCst)
    }

    /// The last operation that failed: `get repo/format`.
    pub fn hit(&self) -> Option<String> {
        self.0.hit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Inner {
    /// How this operation fails.
    fn fate(&self, what: &str, path: &str, writes: bool) -> Option<Failure> {
        let n = self.operations.fetch_add(1, Ordering::SeqCst);
        let fails = match self.at {
            Some((at, failure)) if at == n && failure.fits(writes) => Some(failure),
            _ => None,
        };
        let kind = path.split('/').nth(1).unwrap_or_default();
        let full =
            (writes && what == "put" && self.full.contains(&kind)).then_some(Failure::StorageFull);
        let fails = fails.or(full);
        if fails.is_some() {
            let mut hit = self.hit.lock().unwrap_or_else(PoisonError::into_inner);
            *hit = Some(format!("{what} {path}"));
        }
        fails
    }

    async fn run<T>(
        &self,
        what: &str,
        path: &str,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.fate(what, path, what == "put") {
            None => operation.await,
            Some(failure) => {
                if failure == Failure::TimeoutAfterSuccess {
                    let _ = operation.await;
                }
                Err(failure.error(path))
            }
        }
    }
}

impl fmt::Display for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailingStore({})", self.0.inner)
    }
}

#[async_trait]
impl ObjectStore for FailingStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let put = self.0.inner.put_opts(path, payload, opts);
        self.0.run("put", path.as_ref(), put).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (operation, implementer) = ("multipart".into(), "FailingStore".into());
        Err(Error::NotImplemented { operation, implementer })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let what = if options.head { "head" } else { "get" };
        self.0.run(what, path.as_ref(), self.0.inner.get_opts(path, options)).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = Arc::clone(&self.0);
        paths
            .then(move |path| {
                let store = Arc::clone(&store);
                async move {
                    let path = path?;
                    let delete = store.inner.delete(&path);
                    store.run("delete", path.as_ref(), delete).await.map(|()| path.clone())
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (Arc::clone(&self.0), prefix.cloned());
        stream::once(async move {
            let path = prefix.as_ref().map_or("", |p| p.as_ref());
            let list = async { Ok(store.inner.list(prefix.as_ref())) };
            match store.run("list", path, list).await {
                Ok(list) => list,
                Err(e) => stream::once(async { Err(e) }).boxed(),
            }
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.inner.copy_opts(from, to, options).await
    }
}
