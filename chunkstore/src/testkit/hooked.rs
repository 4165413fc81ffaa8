//! An object store that hands each request to a hook, which decides what becomes of it.
//!
//! A hook holds a [`Request`] until it passes it on to the store behind, and the [`Answer`] until
//! it returns it. So it may do something first or afterwards, refuse, lose the answer of what was
//! done, never answer, or answer otherwise. This is the only wrapper of an object store in the
//! tests: a new fault is a new hook.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// The bytes of an object, or a range of them.
    Get,
    /// An object without its bytes.
    Head,
    /// The objects below a prefix.
    List,
    /// A put that fails if the object exists.
    Create,
    /// Any other put.
    Put,
    /// One object's deletion.
    Delete,
    /// A copy within the store.
    Copy,
}

impl Verb {
    /// In lower case: `get`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Create => "create",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::Copy => "copy",
        }
    }

    /// Whether it writes an object.
    pub fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Put)
    }

    /// Whether the store is another one afterwards.
    pub fn changes(self) -> bool {
        self.writes() || matches!(self, Self::Delete | Self::Copy)
    }
}

/// Decides what becomes of requests.
#[async_trait]
pub trait Hook: Send + Sync + 'static {
    /// Answers a request: at its simplest with [`Request::pass`].
    async fn request(&self, request: Request) -> Result<Answer>;
}

/// A request that waits for its hook.
#[derive(Debug)]
pub struct Request {
    path: Path,
    what: What,
    store: Arc<dyn ObjectStore>,
}

#[derive(Debug)]
enum What {
    Get(GetOptions),
    Put(PutPayload, PutOptions),
    Delete,
    List,
    Copy(Path, CopyOptions),
}

/// What a request came to.
pub enum Answer {
    /// Of [`Verb::Get`] and [`Verb::Head`].
    Got(GetResult),
    /// Of [`Verb::Put`] and [`Verb::Create`].
    Put(PutResult),
    /// Of [`Verb::List`].
    Listed(BoxStream<'static, Result<ObjectMeta>>),
    /// Of [`Verb::Delete`] and [`Verb::Copy`].
    Done,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Got(got) => f.debug_tuple("Got").field(&got.meta).finish(),
            Self::Put(put) => f.debug_tuple("Put").field(put).finish(),
            Self::Listed(_) => f.write_str("Listed"),
            Self::Done => f.write_str("Done"),
        }
    }
}

impl Request {
    /// What it asks for.
    pub fn verb(&self) -> Verb {
        match &self.what {
            What::Get(options) if options.head => Verb::Head,
            What::Get(_) => Verb::Get,
            What::Put(_, options) if options.mode == PutMode::Create => Verb::Create,
            What::Put(..) => Verb::Put,
            What::Delete => Verb::Delete,
            What::List => Verb::List,
            What::Copy(..) => Verb::Copy,
        }
    }

    /// The object; of a listing its prefix.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `get repo/format`.
    pub fn name(&self) -> String {
        format!("{} {}", self.verb().name(), self.path)
    }

    /// The range that a get asks for; `None` asks for all.
    pub fn range(&self) -> Option<&GetRange> {
        match &self.what {
            What::Get(options) => options.range.as_ref(),
            _ => None,
        }
    }

    /// What a put writes.
    pub fn body(&self) -> Bytes {
        match &self.what {
            What::Put(payload, _) => payload.iter().flat_map(|part| part.to_vec()).collect(),
            _ => Bytes::new(),
        }
    }

    /// The store behind, which no hook watches.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Makes a create an ordinary put: for a store that ignores create-once.
    pub fn overwrite(&mut self) {
        if let What::Put(_, options) = &mut self.what {
            options.mode = PutMode::Overwrite;
        }
    }

    /// Does it. A listing is begun; its objects come with the stream.
    pub async fn pass(self) -> Result<Answer> {
        let Self { path, what, store } = self;
        match what {
            What::Get(options) => store.get_opts(&path, options).await.map(Answer::Got),
            What::Put(payload, options) => {
                store.put_opts(&path, payload, options).await.map(Answer::Put)
            }
            What::Delete => store.delete(&path).await.map(|()| Answer::Done),
            What::List => Ok(Answer::Listed(store.list(Some(&path)))),
            What::Copy(to, options) => {
                store.copy_opts(&path, &to, options).await.map(|()| Answer::Done)
            }
        }
    }

    /// Does it, and loses the answer to it.
    pub async fn pass_but(self, answer: Error) -> Result<Answer> {
        let _ = self.pass().await;
        Err(answer)
    }

    /// Neither does it nor answers, ever.
    pub async fn never(self) -> Result<Answer> {
        std::future::pending().await
    }
}

/// See the module. It shows what its hook shows.
pub struct HookedStore<H> {
    store: Arc<dyn ObjectStore>,
    hook: Arc<H>,
}

impl<H: Hook> HookedStore<H> {
    /// Over `store`.
    pub fn new(store: Arc<dyn ObjectStore>, hook: H) -> Arc<Self> {
        Arc::new(Self { store, hook: Arc::new(hook) })
    }

    fn asked(&self, path: &Path, what: What) -> Request {
        Request { path: path.clone(), what, store: Arc::clone(&self.store) }
    }

    fn refused(operation: &str) -> Error {
        Error::NotImplemented { operation: operation.into(), implementer: "HookedStore".into() }
    }
}

impl<H> Deref for HookedStore<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.hook
    }
}

impl<H> fmt::Display for HookedStore<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookedStore({})", self.store)
    }
}

impl<H> fmt::Debug for HookedStore<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookedStore({})", self.store)
    }
}

fn other(answer: &Answer) -> Error {
    let source = format!("the hook answers another request: {answer:?}").into();
    Error::Generic { store: "HookedStore", source }
}

#[async_trait]
impl<H: Hook> ObjectStore for HookedStore<H> {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.hook.request(self.asked(path, What::Put(payload, options))).await? {
            Answer::Put(put) => Ok(put),
            answer => Err(other(&answer)),
        }
    }

    /// Refused: a repository needs none, and a hook would not see its parts.
    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Self::refused("multipart"))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        match self.hook.request(self.asked(path, What::Get(options))).await? {
            Answer::Got(got) => Ok(got),
            answer => Err(other(&answer)),
        }
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (store, hook) = (Arc::clone(&self.store), Arc::clone(&self.hook));
        let delete = move |path: Result<Path>| {
            let (store, hook) = (Arc::clone(&store), Arc::clone(&hook));
            async move {
                let path = path?;
                hook.request(Request { path: path.clone(), what: What::Delete, store }).await?;
                Ok(path)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let hook = Arc::clone(&self.hook);
        let request = self.asked(&prefix.cloned().unwrap_or_default(), What::List);
        let listing = async move {
            match hook.request(request).await {
                Ok(Answer::Listed(listed)) => listed,
                Ok(answer) => stream::iter([Err(other(&answer))]).boxed(),
                Err(e) => stream::iter([Err(e)]).boxed(),
            }
        };
        stream::once(listing).flatten().boxed()
    }

    /// Refused: a repository needs none.
    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Self::refused("list with a delimiter"))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        match self.hook.request(self.asked(from, What::Copy(to.clone(), options))).await? {
            Answer::Done => Ok(()),
            answer => Err(other(&answer)),
        }
    }
}
