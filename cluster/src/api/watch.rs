//! Changes of objects: of a watch that many share, or of one of its own.

use super::steps::forget_parts;
use super::{ANSWER, Api, ApiError, Asked, classify, path};
use crate::engine::{Query, Selection};
use futures::stream::{BoxStream, StreamExt as _};
use kube::api::{Request, WatchEvent, WatchParams};
use serde_json::Value;
use std::time::Duration;

/// A watch ends by itself after so long, and is begun again.
const WATCH: Duration = Duration::from_secs(280);

/// A change that a watch tells.
#[derive(Debug)]
pub enum Change {
    /// An object is this one now.
    Set(Value),
    /// It is gone.
    Gone(Value),
    /// Some changes may be lacking: what it is about is to be read again, after this was heard.
    /// Those after that reading come. Only shared watches tell it.
    Missed,
    /// The watch is over: what it was about is to be read again.
    Over,
}

impl Api {
    /// Changes since a version; the last one is [`Change::Over`]. A watch that is shared ends when
    /// it is dropped, or when the server does not have it.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub async fn watch(
        &self,
        query: &Query,
        version: Option<&str>,
    ) -> Result<BoxStream<'static, Change>, ApiError> {
        if let Some(changes) = self.hub.as_ref().and_then(|hub| hub.watch(query, version)) {
            return changes;
        }
        let (kind, namespace, labels, fields) = match query {
            Query::One(key) => (
                key.kind,
                key.namespace.clone(),
                String::new(),
                format!("metadata.name={}", key.name),
            ),
            Query::Many(Selection { kind, namespace, labels, fields }) => {
                (*kind, namespace.clone(), labels.clone(), fields.clone())
            }
        };
        let seconds = u32::try_from(WATCH.as_secs()).unwrap_or(u32::MAX);
        let mut parameters = WatchParams::default().timeout(seconds).disable_bookmarks();
        if !labels.is_empty() {
            parameters = parameters.labels(&labels);
        }
        if !fields.is_empty() {
            parameters = parameters.fields(&fields);
        }
        let asked = Asked::many("watch", kind, namespace.as_deref());
        let request = Request::new(path(kind, namespace.as_deref()))
            .watch(&parameters, version.unwrap_or(""))
            .map_err(|why| asked.unwritten(&why))?;
        let _permit = self.permit().await;
        let begun =
            tokio::time::timeout(ANSWER, self.client.request_events::<Value>(request)).await;
        let events = match begun {
            Ok(events) => events.map_err(|why| classify(why, &asked))?,
            Err(_) => return Err(asked.unanswered(ANSWER.as_secs())),
        };
        let changes = events.map(move |event| match event {
            Ok(WatchEvent::Added(mut object) | WatchEvent::Modified(mut object)) => {
                forget_parts(kind, &mut object);
                Change::Set(object)
            }
            Ok(WatchEvent::Deleted(object)) => Change::Gone(object),
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => Change::Over,
        });
        Ok(changes.chain(futures::stream::once(async { Change::Over })).boxed())
    }
}
