//! A store that does to its caller what real ones do: loses answers, refuses, forgets create-once,
//! stops for good.
//!
//! Every request is an operation named `"create leases/…"` (also `put`, `get`, `head`, `list`,
//! `delete`). Faults are scripted by the beginning of that name, each for one operation, or set as
//! a stop at the n-th change of the store.

use super::hooked::{Answer, Hook, HookedStore, Request};
use async_trait::async_trait;
use futures::future::BoxFuture;
use object_store::{Error, ObjectStore, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What happens to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
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

/// See the module.
#[derive(Default)]
pub struct FaultyStore {
    script: Mutex<Vec<(String, Step)>>,
    log: Mutex<Vec<String>>,
    ignores_create_once: AtomicBool,
    changes: AtomicU64,
    stop: Mutex<Option<Stop>>,
    stopped: AtomicBool,
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl FaultyStore {
    /// Without a script it passes everything on to `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<HookedStore<Self>> {
        HookedStore::new(inner, Self::default())
    }

    /// The next operation whose name starts so suffers this.
    pub fn fault(&self, operation: &str, fault: Fault) {
        self.script.lock().unwrap().push((operation.to_owned(), Step::Fault(fault)));
    }

    /// Right before the next such operation somebody else does this.
    pub fn before<F>(&self, operation: &str, action: F)
    where
        F: FnOnce(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()> + Send + 'static,
    {
        self.script.lock().unwrap().push((operation.to_owned(), Step::Before(Box::new(action))));
    }

    /// Right after the next such operation somebody else does this.
    pub fn after<F>(&self, operation: &str, action: F)
    where
        F: FnOnce(Arc<dyn ObjectStore>) -> BoxFuture<'static, ()> + Send + 'static,
    {
        self.script.lock().unwrap().push((operation.to_owned(), Step::After(Box::new(action))));
    }

    /// From now on a create writes over what exists.
    pub fn ignore_create_once(&self) {
        self.ignores_create_once.store(true, Ordering::SeqCst);
    }

    /// From the `change`-th change on (from 0) every operation fails; that change itself is still
    /// `done`, or is not.
    pub fn stop_at(&self, change: u64, done: bool) {
        *self.stop.lock().unwrap() = Some(Stop { change, done });
    }

    /// Whether the stop has come.
    pub fn was_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Operations so far, and forgets them.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    /// Logs an operation, and takes what the script has for it.
    fn enter(&self, name: String) -> Option<Step> {
        let mut script = self.script.lock().unwrap();
        let found = script.iter().position(|(start, _)| name.starts_with(start));
        self.log.lock().unwrap().push(name);
        found.map(|i| script.remove(i).1)
    }
}

#[async_trait]
impl Hook for FaultyStore {
    async fn request(&self, mut request: Request) -> Result<Answer> {
        if self.stopped.load(Ordering::SeqCst) {
            return Err(gone());
        }
        let step = self.enter(request.name());
        if self.ignores_create_once.load(Ordering::SeqCst) {
            request.overwrite();
        }
        if request.verb().changes() {
            let change = self.changes.fetch_add(1, Ordering::SeqCst);
            let stop = *self.stop.lock().unwrap();
            if let Some(stop) = stop
                && stop.change == change
            {
                if stop.done {
                    let _ = request.pass().await;
                }
                self.stopped.store(true, Ordering::SeqCst);
                return Err(gone());
            }
        }
        match step {
            None => request.pass().await,
            Some(Step::Before(action)) => {
                action(Arc::clone(request.store())).await;
                request.pass().await
            }
            Some(Step::After(action)) => {
                let store = Arc::clone(request.store());
                let result = request.pass().await;
                action(store).await;
                result
            }
            Some(Step::Fault(fault)) => {
                let error = fault.error(request.path().as_ref());
                match fault {
                    Fault::Hang => request.never().await,
                    Fault::ExistedAfterSuccess | Fault::LostAfter => request.pass_but(error).await,
                    _ => Err(error),
                }
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
