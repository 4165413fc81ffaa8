//! An object store that dies at a chosen change, before or after it is done, and answers nothing
//! from then on: what a process that is killed there leaves behind.

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
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
    inner: Arc<dyn ObjectStore>,
    death: Option<Death>,
    /// Only changes of objects below it count.
    below: &'static str,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    changes: AtomicU64,
    dead: AtomicBool,
}

impl DyingStore {
    /// Over `inner`; `None` never dies, and counts.
    pub fn new(inner: Arc<dyn ObjectStore>, death: Option<Death>) -> Arc<Self> {
        Arc::new(Self { inner, death, below: "", state: Arc::default() })
    }

    /// As [`Self::new`], but only changes of objects below a prefix of the repository count, such
    /// as `leases`.
    pub fn below(
        inner: Arc<dyn ObjectStore>,
        below: &'static str,
        death: Option<Death>,
    ) -> Arc<Self> {
        Arc::new(Self { inner, death, below, state: Arc::default() })
    }

    /// Changes that were asked for.
    pub fn changes(&self) -> u64 {
        self.state.changes.load(Ordering::SeqCst)
    }

    /// Whether it has died.
    pub fn dead(&self) -> bool {
        self.state.dead.load(Ordering::SeqCst)
    }

    fn alive(&self) -> Result<()> {
        if self.dead() { Err(gone()) } else { Ok(()) }
    }

    /// Whether the change that is about to happen is done, and whether its caller hears of it.
    fn change(&self, path: &Path) -> (bool, bool) {
        if self.dead() {
            return (false, false);
        }
        let is_below = |path: &Path| path.parts().nth(1).is_some_and(|p| p.as_ref() == self.below);
        if !self.below.is_empty() && !is_below(path) {
            return (true, true);
        }
        let n = self.state.changes.fetch_add(1, Ordering::SeqCst);
        match self.death {
            Some(death) if death.change == n => {
                self.state.dead.store(true, Ordering::SeqCst);
                (death.done, false)
            }
            _ => (true, true),
        }
    }
}

/// A refusal that nothing retries: a killed process hears nothing either, but a test must not wait
/// for that.
fn gone() -> Error {
    Error::PermissionDenied { path: "dead".into(), source: "the store died".into() }
}

impl fmt::Display for DyingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DyingStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for DyingStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let (done, heard) = self.change(path);
        let result =
            if done { self.inner.put_opts(path, payload, opts).await } else { Err(gone()) };
        if heard { result } else { Err(gone()) }
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented {
            operation: "multipart".into(),
            implementer: "DyingStore".into(),
        })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.alive()?;
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = Self {
            inner: Arc::clone(&self.inner),
            death: self.death,
            below: self.below,
            state: Arc::clone(&self.state),
        };
        paths
            .then(move |path| {
                let (done, heard) = path.as_ref().map_or((true, true), |path| this.change(path));
                let inner = Arc::clone(&this.inner);
                async move {
                    let path = path?;
                    if done {
                        inner.delete(&path).await?;
                    }
                    if heard { Ok(path) } else { Err(gone()) }
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.alive() {
            Ok(()) => self.inner.list(prefix),
            Err(e) => stream::once(async { Err(e) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.alive()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.alive()?;
        self.inner.copy_opts(from, to, options).await
    }
}
