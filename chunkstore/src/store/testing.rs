//! A store that does to its caller what real ones do: loses answers, refuses, forgets create-once,
//! stops for good.
//!
//! Every request is an operation named `"create leases/…"` (also `put`, `get`, `head`, `list`,
//! `delete`). Faults are scripted by the beginning of that name, each for one operation, or set as
//! a stop at the n-th change of the store.

mod locks;

pub(crate) use locks::LockServer;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What happens to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is done, and the answer says that the object existed before.
    ExistedAfterSuccess,
    /// Nothing is done, and the answer says that the object exists: S3's 409.
    Conflict,
    /// Nothing is done, no answer.
    LostBefore,
    /// It is done, no answer.
    LostAfter,
    /// Nothing is done, and no answer comes, ever.
    Hang,
    /// 403.
    Denied,
    /// 403, as S3 words it for what is locked.
    Locked,
    /// 400: what arrived is not what was signed.
    Mangled,
    /// The temporary file of a directory is gone before it has its name.
    Vanished,
}

/// As `object_store` words it.
#[derive(Debug)]
struct NotRenamed(std::io::Error);

impl fmt::Display for NotRenamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unable to rename file: {}", self.0)
    }
}

impl std::error::Error for NotRenamed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

type Action = Box<dyn FnOnce(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()> + Send>;

enum Step {
    Fault(Fault),
    /// Somebody else does this right before, or right after, the operation.
    Before(Action),
    After(Action),
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    change: u64,
    done: bool,
}

pub(crate) struct FaultyStore(Arc<Shared>);

struct Shared {
    inner: Arc<dyn ObjectStore>,
    script: Mutex<Vec<(String, Step)>>,
    log: Mutex<Vec<String>>,
    ignores_create_once: AtomicBool,
    changes: AtomicU64,
    stop: Mutex<Option<Stop>>,
    stopped: AtomicBool,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self(Arc::new(Shared {
            inner,
            script: Mutex::default(),
            log: Mutex::default(),
            ignores_create_once: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            stop: Mutex::new(None),
            stopped: AtomicBool::new(false),
        })))
    }

    /// The next operation whose name starts so suffers this.
    pub(crate) fn fault(&self, operation: &str, fault: Fault) {
        self.0.script.lock().unwrap().push((operation.to_owned(), Step::Fault(fault)));
    }

    /// Right before the next such operation somebody else does this.
    pub(crate) fn before<F>(&self, operation: &str, action: F)
    where
        F: FnOnce(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()> + Send + 'static,
    {
        self.0.script.lock().unwrap().push((operation.to_owned(), Step::Before(Box::new(action))));
    }

    /// Right after the next such operation somebody else does this.
    pub(crate) fn after<F>(&self, operation: &str, action: F)
    where
        F: FnOnce(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()> + Send + 'static,
    {
        self.0.script.lock().unwrap().push((operation.to_owned(), Step::After(Box::new(action))));
    }

    pub(crate) fn ignore_create_once(&self) {
        self.0.ignores_create_once.store(true, Ordering::SeqCst);
    }

    /// From the `change`-th change on (from 0) every operation fails; that change itself is still
    /// `done`, or is not.
    pub(crate) fn stop_at(&self, change: u64, done: bool) {
        *self.0.stop.lock().unwrap() = Some(Stop { change, done });
    }

    pub(crate) fn was_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::SeqCst)
    }

    /// Operations so far, and forgets them.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.log.lock().unwrap())
    }
}

impl Shared {
    fn enter(&self, operation: &str, at: &str) -> Result<(String, Option<Step>)> {
        let name = format!("{operation} {at}");
        if self.stopped.load(Ordering::SeqCst) {
            return Err(gone());
        }
        self.log.lock().unwrap().push(name.clone());
        let mut script = self.script.lock().unwrap();
        let found = script.iter().position(|(start, _)| name.starts_with(start));
        Ok((name, found.map(|i| script.remove(i).1)))
    }

    /// Runs one operation under the script.
    async fn run<T, F>(&self, operation: &str, at: &str, changes: bool, inner: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let (_, step) = self.enter(operation, at)?;
        if changes {
            let change = self.changes.fetch_add(1, Ordering::SeqCst);
            let stop = *self.stop.lock().unwrap();
            if let Some(stop) = stop
                && stop.change == change
            {
                if stop.done {
                    let _ = inner.await;
                }
                self.stopped.store(true, Ordering::SeqCst);
                return Err(gone());
            }
        }
        match step {
            None => inner.await,
            Some(Step::Before(action)) => {
                action(Arc::clone(&self.inner)).await;
                inner.await
            }
            Some(Step::After(action)) => {
                let result = inner.await;
                action(Arc::clone(&self.inner)).await;
                result
            }
            Some(Step::Fault(fault)) => {
                if fault == Fault::Hang {
                    std::future::pending::<()>().await;
                }
                if matches!(fault, Fault::ExistedAfterSuccess | Fault::LostAfter) {
                    let _ = inner.await;
                }
                Err(fault.error(at))
            }
        }
    }
}

impl Fault {
    fn error(self, at: &str) -> Error {
        let (path, source) = (at.to_owned(), "injected".into());
        match self {
            Self::ExistedAfterSuccess | Self::Conflict => Error::AlreadyExists { path, source },
            Self::LostBefore | Self::LostAfter | Self::Hang => {
                Error::Generic { store: "test", source }
            }
            Self::Denied => Error::PermissionDenied { path, source },
            Self::Locked => {
                let source = "Server returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code>\
                    <Message>Access Denied because object protected by object lock.</Message></Error>";
                Error::PermissionDenied { path, source: source.into() }
            }
            Self::Vanished => {
                let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
                Error::Generic { store: "LocalFileSystem", source: Box::new(NotRenamed(gone)) }
            }
            Self::Mangled => {
                let source = "Server returned non-2xx status code: 400 Bad Request: <Error>\
                    <Code>XAmzContentSHA256Mismatch</Code></Error>";
                Error::Generic { store: "S3", source: source.into() }
            }
        }
    }
}

fn gone() -> Error {
    Error::Generic { store: "test", source: "stopped".into() }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        let operation = if opts.mode == PutMode::Create { "create" } else { "put" };
        if self.0.ignores_create_once.load(Ordering::SeqCst) {
            opts.mode = PutMode::Overwrite;
        }
        let inner = self.0.inner.put_opts(location, payload, opts);
        self.0.run(operation, location.as_ref(), true, inner).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head { "head" } else { "get" };
        let inner = self.0.inner.get_opts(location, options);
        self.0.run(operation, location.as_ref(), false, inner).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let shared = Arc::clone(&self.0);
        let delete = move |path: Result<Path>| {
            let shared = Arc::clone(&shared);
            async move {
                let path = path?;
                let delete = shared.inner.delete(&path);
                shared.run("delete", path.as_ref(), true, delete).await.map(|()| path.clone())
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let shared = Arc::clone(&self.0);
        let prefix = prefix.cloned();
        let listing = async move {
            let at = prefix.as_ref().map_or("", |p| p.as_ref());
            let inner = async { Ok(shared.inner.list(prefix.as_ref())) };
            match shared.run("list", at, false, inner).await {
                Ok(listing) => listing,
                Err(e) => futures::stream::iter([Err(e)]).boxed(),
            }
        };
        futures::stream::once(listing).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.inner.copy_opts(from, to, options).await
    }
}
