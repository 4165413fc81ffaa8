//! One watch for many subscribers: for each kind, over all namespaces or over those that we may
//! see. It is begun with the first subscription and ends when nobody listens any more.
//!
//! It dispatches events to whoever asked about the object, and has a ring of the latest; it has no
//! cache of objects. A subscriber reads by itself, and hears all that came after that: `topic.rs`
//! says why there is no gap. It decides nothing, and must not interpret an object beyond its name,
//! labels and version.
//!
//! Which selector the server gets (`selector.rs`):
//!
//! | question | watched by | why |
//! |---|---|---|
//! | one object | all of the kind, without a selector | whoever takes a label off would else make an object seem deleted |
//! | a Lease | the same, without `kube-node-lease` | heartbeats of nodes are most writes of a cluster, and a namespace never changes |
//! | a selection by labels | those that have these labels, of any value | pods of other people stay away, and leaving the selection is told as its watch alone would |
//! | a selection by fields that never change | all of the kind | |
//! | Secrets, other fields, labels that are only denied | a watch of its own | a Secret has no place in a ring, and the rest cannot be told without a cache |

mod event;
mod selector;
mod source;
#[cfg(test)]
mod tests;
mod topic;

use super::{Api, ApiError, Change, LimitSettings};
use crate::engine::{Key, Kind, Query, Selection};
use futures::stream::{BoxStream, StreamExt as _};
pub(crate) use selector::selector_of;
use selector::{Place, Wanted, route};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use topic::{Bounds, Subscription, Topic, lock};

/// So much waits for one subscriber at most.
const QUEUE_EVENTS: usize = 1024;
const QUEUE_BYTES: usize = 1 << 20;

/// How watches and requests are shared.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// Watches are over these alone; `None` is over all.
    pub namespaces: Option<BTreeSet<String>>,
    /// Recent events that are kept for each watch, so that a subscriber need not read twice.
    pub ring_bytes: usize,
    /// A watch that tells nothing for so long may be dead. The server sends a bookmark about each
    /// minute.
    pub silence: Duration,
    /// How many requests are sent.
    pub limit: LimitSettings,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            namespaces: None,
            ring_bytes: 2 << 20,
            silence: Duration::from_secs(150),
            limit: LimitSettings::default(),
        }
    }
}

/// An object in the form that events have: it names its kind, as items of lists do not, and lacks
/// the fields' writers, whom nobody asks for and who are half of many objects.
pub(super) fn trim(kind: Kind, object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        object["kind"] = kind.word().into();
        object["apiVersion"] = kind.api_version().into();
    }
}

/// The newest version that was read of each kind. A later list that is older is one of a server
/// that was set back.
#[derive(Debug, Default)]
struct Read(Mutex<BTreeMap<Kind, u128>>);

impl Read {
    fn of(&self, kind: Kind) -> Option<u128> {
        lock(&self.0).get(&kind).copied()
    }

    fn note(&self, kind: Kind, version: u128) {
        let mut all = lock(&self.0);
        let newest = all.entry(kind).or_default();
        *newest = version.max(*newest);
    }
}

type Topics = Mutex<BTreeMap<Place, Entry>>;

#[derive(Debug)]
struct Entry {
    topic: Arc<Mutex<Topic>>,
    task: AbortHandle,
}

/// The watches of an [`Api`] and all its clones.
pub(super) struct Hub {
    settings: HubSettings,
    /// It shares the limit and no hub.
    api: Api,
    topics: Arc<Topics>,
    read: Arc<Read>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        lock(&self.topics).values().for_each(|entry| entry.task.abort());
    }
}

impl Hub {
    pub(super) fn new(api: Api, settings: HubSettings) -> Self {
        Self { settings, api, topics: Arc::default(), read: Arc::default() }
    }

    /// An object or a list of this kind was read.
    pub(super) fn note(&self, kind: Kind, answer: &Value) {
        let version = answer["metadata"]["resourceVersion"].as_str();
        if let Some(version) = version.and_then(event::number) {
            self.read.note(kind, version);
        }
    }

    /// Where a question is watched, if it is here.
    fn place(&self, query: &Query) -> Option<(Place, Wanted)> {
        let (mut place, wanted) = route(query)?;
        if let Some(namespaces) = &self.settings.namespaces
            && place.kind.resource().namespaced
        {
            let (Query::One(Key { namespace, .. }) | Query::Many(Selection { namespace, .. })) =
                query;
            let namespace = namespace.as_ref().filter(|name| namespaces.contains(*name))?;
            place.namespace = Some(namespace.clone());
        }
        Some((place, wanted))
    }

    /// Whether a question is watched here, so that it needs no looks for watches that are dead.
    pub(super) fn serves(&self, query: &Query) -> bool {
        self.place(query).is_some()
    }

    /// Whether it is watched just now.
    pub(super) fn is_live(&self, query: &Query) -> bool {
        self.place(query).is_some_and(|(place, _)| {
            lock(&self.topics).get(&place).is_some_and(|entry| lock(&entry.topic).is_live())
        })
    }

    /// Changes since a version, if the question is watched here.
    ///
    /// # Errors
    ///
    /// It is not watched now: the server refuses, or does not answer.
    pub(super) fn watch(
        &self,
        query: &Query,
        version: Option<&str>,
    ) -> Option<Result<BoxStream<'static, Change>, ApiError>> {
        let (place, wanted) = self.place(query)?;
        let mut topics = lock(&self.topics);
        if topics.get(&place).is_some_and(|entry| lock(&entry.topic).is_past()) {
            topics.remove(&place);
        }
        let entry = topics.entry(place).or_insert_with_key(|place| self.begin(place.clone()));
        Some(Subscription::begin(&entry.topic, wanted, version).map(|changes| changes.boxed()))
    }

    fn begin(&self, place: Place) -> Entry {
        let labelled = !place.labels.is_empty();
        let ring_bytes = self.settings.ring_bytes;
        let bounds = Bounds { ring_bytes, queue_events: QUEUE_EVENTS, queue_bytes: QUEUE_BYTES };
        let topic = Arc::new(Mutex::new(Topic::new(bounds, labelled)));
        let topics = Arc::downgrade(&self.topics);
        let of = place.clone();
        let leave = move || leave(&topics, &of);
        let source = source::Source {
            api: self.api.clone(),
            place,
            silence: self.settings.silence,
            topic: Arc::clone(&topic),
            read: Arc::clone(&self.read),
        };
        Entry { topic, task: tokio::spawn(source.run(leave)).abort_handle() }
    }
}

/// Forgets a watch that nobody listens to; whether it did.
fn leave(topics: &Weak<Topics>, place: &Place) -> bool {
    let Some(topics) = topics.upgrade() else { return true };
    let mut topics = lock(&topics);
    let is_idle = topics.get(place).is_none_or(|entry| lock(&entry.topic).subscribers() == 0);
    if is_idle {
        topics.remove(place);
    }
    is_idle
}
