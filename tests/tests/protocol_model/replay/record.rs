//! An object store that writes down every request, and what came of it, in the order in which
//! they took effect.

use async_trait::async_trait;
use bytes::Bytes;
use chunkstore::testkit::{self, Answer, Hook, HookedStore, Verb};
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, Result};
use std::sync::Arc;
use tokio::sync::Mutex;

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
#[derive(Debug)]
pub(super) struct RecordingStore {
    run: usize,
    log: Log,
}

fn below(path: &Path) -> String {
    path.as_ref().strip_prefix("repo").unwrap_or(path.as_ref()).trim_start_matches('/').to_owned()
}

impl RecordingStore {
    pub(super) fn new(
        inner: Arc<dyn ObjectStore>,
        run: usize,
        log: &Log,
    ) -> Arc<HookedStore<Self>> {
        HookedStore::new(inner, Self { run, log: Arc::clone(log) })
    }
}

#[async_trait]
impl Hook for RecordingStore {
    async fn request(&self, request: testkit::Request) -> Result<Answer> {
        let mut log = self.log.lock().await;
        let (verb, key, body) = (request.verb(), below(request.path()), request.body());
        let mut noted = Request { run: self.run, verb, key, found: true, body, listed: Vec::new() };
        if verb.changes() {
            noted.found = request.store().head(request.path()).await.is_ok();
            log.push(noted);
            return request.pass().await;
        }
        let mut answer = request.pass().await;
        noted.found = !matches!(answer, Err(Error::NotFound { .. }));
        if let Ok(Answer::Listed(listed)) = answer {
            let listed: Vec<ObjectMeta> = listed.try_collect().await?;
            noted.listed = listed.iter().map(|meta| below(&meta.location)).collect();
            answer = Ok(Answer::Listed(stream::iter(listed.into_iter().map(Ok)).boxed()));
        }
        log.push(noted);
        answer
    }
}
