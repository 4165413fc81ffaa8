//! An object store that stops at a chosen request, lets somebody else do something whole, and goes
//! on: every order of two operations in which one of them happens between two requests of the
//! other.

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

type Meanwhile = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Clone)]
pub struct BesideStore(Arc<Inner>);

struct Inner {
    inner: Arc<dyn ObjectStore>,
    at: u64,
    requests: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl fmt::Debug for BesideStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BesideStore({})", self.0.inner)
    }
}

impl BesideStore {
    /// Right before request `at` (from 0) `meanwhile` happens, on a thread of its own.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        at: u64,
        meanwhile: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let meanwhile: Mutex<Option<Meanwhile>> = Mutex::new(Some(Box::new(meanwhile)));
        Arc::new(Self(Arc::new(Inner { inner, at, requests: AtomicU64::new(0), meanwhile })))
    }

    /// Requests that were made.
    pub fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::SeqCst)
    }
}

impl Inner {
    async fn request(&self) {
        if self.requests.fetch_add(1, Ordering::SeqCst) != self.at {
            return;
        }
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
}

impl fmt::Display for BesideStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BesideStore({})", self.0.inner)
    }
}

#[async_trait]
impl ObjectStore for BesideStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.0.request().await;
        self.0.inner.put_opts(path, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (operation, implementer) = ("multipart".into(), "BesideStore".into());
        Err(Error::NotImplemented { operation, implementer })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.request().await;
        self.0.inner.get_opts(path, options).await
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
                    store.request().await;
                    store.inner.delete(&path).await?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (Arc::clone(&self.0), prefix.cloned());
        stream::once(async move {
            store.request().await;
            store.inner.list(prefix.as_ref())
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.request().await;
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.request().await;
        self.0.inner.copy_opts(from, to, options).await
    }
}
