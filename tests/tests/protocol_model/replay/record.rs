//! An object store that writes down every request, and what came of it, in the order in which
//! they took effect.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use std::fmt;
use std::sync::Arc;
use tokio::sync::Mutex;

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Head,
    List,
    Create,
    Put,
    Delete,
}

/// A request and its answer.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// Whose it is: a number that the test gives.
    pub(super) run: usize,
    pub(super) verb: Verb,
    /// Below the repository.
    pub(super) key: String,
    /// The object was there before.
    pub(super) found: bool,
    /// What was written.
    pub(super) body: Bytes,
    /// What was listed.
    pub(super) listed: Vec<String>,
}

/// The log of several processes. A request holds it while it is done, so the order is the order
/// of effects.
pub(super) type Log = Arc<Mutex<Vec<Request>>>;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct RecordingStore {
    inner: Arc<dyn ObjectStore>,
    run: usize,
    log: Log,
}

fn below(path: &Path) -> String {
    path.as_ref().strip_prefix("repo").unwrap_or(path.as_ref()).trim_start_matches('/').to_owned()
}

impl RecordingStore {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, run: usize, log: &Log) -> Arc<Self> {
        Arc::new(Self { inner, run, log: Arc::clone(log) })
    }

    fn request(&self, verb: Verb, path: &Path, found: bool) -> Request {
        let (key, body, listed) = (below(path), Bytes::new(), Vec::new());
        Request { run: self.run, verb, key, found, body, listed }
    }
}

impl fmt::Display for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for RecordingStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let mut log = self.log.lock().await;
        let found = self.inner.head(path).await.is_ok();
        let verb = if opts.mode == PutMode::Create { Verb::Create } else { Verb::Put };
        let mut request = self.request(verb, path, found);
        request.body = payload.iter().flat_map(|part| part.to_vec()).collect();
        log.push(request);
        self.inner.put_opts(path, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (operation, implementer) = ("multipart".into(), "RecordingStore".into());
        Err(Error::NotImplemented { operation, implementer })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut log = self.log.lock().await;
        let verb = if options.head { Verb::Head } else { Verb::Get };
        let result = self.inner.get_opts(path, options).await;
        log.push(self.request(verb, path, !matches!(result, Err(Error::NotFound { .. }))));
        result
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        paths
            .then(move |path| {
                let this = this.clone();
                async move {
                    let path = path?;
                    let mut log = this.log.lock().await;
                    let found = this.inner.head(&path).await.is_ok();
                    log.push(this.request(Verb::Delete, &path, found));
                    this.inner.delete(&path).await?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        stream::once(async move {
            let mut log = this.log.lock().await;
            let listed: Vec<ObjectMeta> = this.inner.list(Some(&prefix)).try_collect().await?;
            let mut request = this.request(Verb::List, &prefix, true);
            request.listed = listed.iter().map(|meta| below(&meta.location)).collect();
            log.push(request);
            Ok::<_, Error>(stream::iter(listed.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
