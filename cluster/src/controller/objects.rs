//! The objects of our kinds, the records and the claims that name a restore, as they were last told.
//!
//! One watch for each kind and namespace keeps them. What is read here may be a moment old: whoever
//! decides to make something makes it by a given name, and reads again where that is taken.

use super::serve::Shown;
use super::velero;
use crate::api::{Api, Change};
use crate::engine::{
    FOR, Failure, GROUP, Key, Kind, Meta, POPULATE, Query, STATE, Selection, key_of,
};
use crate::page::Known;
use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt as _;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MOST: Duration = Duration::from_secs(30);

/// What is watched.
pub(crate) const WATCHED: [Kind; 6] = [
    Kind::Repository,
    Kind::VolumeBackup,
    Kind::VolumeRestore,
    Kind::BackupSchedule,
    Kind::ConfigMap,
    Kind::PersistentVolumeClaim,
];

/// What is watched in Velero's namespace.
pub(crate) const OF_VELERO: [Kind; 2] = [Kind::DataUpload, Kind::DataDownload];

/// How an object is kept. A tree takes nine times the memory of its text, and what has ended is as
/// good as never looked at: a cluster has thousands of DataUploads and of records, of all backups that
/// are there.
#[derive(Debug)]
enum Kept {
    Tree(Rc<Value>),
    Text(Box<str>),
}

impl Kept {
    fn of(object: &Rc<Value>) -> Self {
        match has_ended(object) {
            true => Self::Text(object.to_string().into()),
            false => Self::Tree(Rc::clone(object)),
        }
    }

    fn object(&self) -> Rc<Value> {
        match self {
            Self::Tree(object) => Rc::clone(object),
            Self::Text(json) => Rc::new(serde_json::from_str(json).expect("it was written by us")),
        }
    }
}

/// Whether nothing follows for it, of those that are only ever read by their names.
fn has_ended(object: &Value) -> bool {
    match object["kind"].as_str() {
        Some("ConfigMap") => object["metadata"]["labels"][STATE] == "ended",
        Some("DataUpload" | "DataDownload") => velero::is_over(object),
        _ => false,
    }
}

#[derive(Debug, Default)]
struct State {
    all: BTreeMap<Key, Kept>,
    /// Records by the uid of the object that they are for.
    records: BTreeMap<String, BTreeSet<Key>>,
    /// When a watch of each kind and namespace last told that it lives.
    heard: BTreeMap<(Kind, Option<String>), Instant>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Objects {
    state: RefCell<State>,
    /// Counts changes of each kind.
    changes: BTreeMap<Kind, watch::Sender<u64>>,
    /// What the page and the metrics tell.
    shown: Shown,
    /// Who begins tasks, and tells them.
    told: RefCell<Option<UnboundedSender<Changed>>>,
}

/// An object that changed, and how it was before.
#[derive(Debug)]
pub(crate) struct Changed {
    /// Which one.
    pub(crate) key: Key,
    /// Its uid.
    pub(crate) uid: String,
    /// For a record: the uid of the object that it is for.
    pub(crate) for_uid: Option<String>,
}

impl Default for Objects {
    fn default() -> Self {
        let changes = WATCHED.into_iter().map(|kind| (kind, watch::Sender::new(0))).collect();
        Self {
            state: RefCell::default(),
            changes,
            shown: Shown::default(),
            told: RefCell::default(),
        }
    }
}

impl Objects {
    /// An object.
    pub(crate) fn get(&self, key: &Key) -> Option<Rc<Value>> {
        self.state.borrow().all.get(key).map(Kept::object)
    }

    /// All of a kind, in the order of their names.
    pub(crate) fn all(&self, kind: Kind) -> Vec<Rc<Value>> {
        let state = self.state.borrow();
        state.all.iter().filter(|(key, _)| key.kind == kind).map(|(_, at)| at.object()).collect()
    }

    /// The records for the object of a uid.
    pub(crate) fn records(&self, uid: &str) -> Vec<Rc<Value>> {
        let state = self.state.borrow();
        let keys = state.records.get(uid).into_iter().flatten();
        keys.filter_map(|key| state.all.get(key).map(Kept::object)).collect()
    }

    /// Counts changes of a kind: whoever depends on all its objects waits for the next one.
    pub(crate) fn changes(&self, kind: Kind) -> watch::Receiver<u64> {
        self.changes[&kind].subscribe()
    }

    /// What the page and the metrics tell.
    pub(crate) fn shown(&self) -> Shown {
        Arc::clone(&self.shown)
    }

    /// Says how old that may be: as old as the last word of the quietest watch.
    pub(crate) fn show_age(&self, now: DateTime<Utc>) {
        let silence = self.state.borrow().heard.values().map(Instant::elapsed).max();
        if let Some(silence) = silence.and_then(|at| TimeDelta::from_std(at).ok()) {
            self.show(|known| known.heard(now - silence));
        }
    }

    fn show(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.shown.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whoever begins tasks hears of each change.
    pub(crate) fn tell_by(&self, told: UnboundedSender<Changed>) {
        *self.told.borrow_mut() = Some(told);
    }

    /// A write has answered with this object. Its watch will tell nothing new of it, so its task is
    /// told here, and begun where it is new.
    pub(crate) fn wrote(&self, object: Value) {
        if let Some(changed) = self.set(object)
            && let Some(told) = &*self.told.borrow()
        {
            let _ = told.send(changed);
        }
    }

    /// An object is this one now.
    pub(crate) fn set(&self, object: Value) -> Option<Changed> {
        let key = key_of(&object);
        let meta = Meta::of(&object);
        let mut state = self.state.borrow_mut();
        let before = state.all.get(&key).map(|before| Meta::of(&before.object()));
        if let Some(before) = &before {
            let is_older = match (
                before.resource_version.parse::<u64>(),
                meta.resource_version.parse::<u64>(),
            ) {
                (Ok(known), Ok(told)) => told <= known,
                _ => before.resource_version == meta.resource_version,
            };
            if is_older {
                return None;
            }
        }
        let for_uid = meta.labels.get(FOR).cloned();
        if let Some(of) = &for_uid {
            state.records.entry(of.clone()).or_default().insert(key.clone());
        }
        let object = Rc::new(without_noise(object));
        state.all.insert(key.clone(), Kept::of(&object));
        drop(state);
        // Of claims only those that name a restore are known here, so nothing is told of them: all
        // others would count as gone.
        if key.kind != Kind::PersistentVolumeClaim {
            self.show(|known| known.set(&object));
        }
        self.count(key.kind);
        Some(Changed { key, uid: meta.uid, for_uid })
    }

    /// An object is gone.
    pub(crate) fn remove(&self, key: &Key) -> Option<Changed> {
        let mut state = self.state.borrow_mut();
        let before = Meta::of(&state.all.remove(key)?.object());
        let for_uid = before.labels.get(FOR).cloned();
        if let Some(of) = &for_uid
            && let Some(keys) = state.records.get_mut(of)
        {
            keys.remove(key);
            if keys.is_empty() {
                state.records.remove(of);
            }
        }
        drop(state);
        self.show(|known| {
            known.remove(&key.kind.word(), key.namespace.as_deref().unwrap_or_default(), &key.name);
        });
        self.count(key.kind);
        Some(Changed { key: key.clone(), uid: before.uid, for_uid })
    }

    fn count(&self, kind: Kind) {
        if let Some(changes) = self.changes.get(&kind) {
            changes.send_modify(|count| *count += 1);
        }
    }

    fn heard(&self, kind: Kind, namespace: Option<&str>) {
        let key = (kind, namespace.map(str::to_owned));
        self.state.borrow_mut().heard.insert(key, Instant::now());
    }

    /// One that was told as gone, or as none of ours: another one of its name stays.
    fn gone(&self, object: &Value) -> Option<Changed> {
        let key = key_of(object);
        let is_known =
            self.get(&key).is_some_and(|known| Meta::of(&known).uid == Meta::of(object).uid);
        if is_known { self.remove(&key) } else { None }
    }

    /// Takes a whole list over, as of a version; what it lacks of the same namespace is gone. What was
    /// written since stays: the list is older, and the watch that follows tells what becomes of it.
    fn replace(
        &self,
        selection: &Selection,
        listed: Vec<Value>,
        version: Option<&str>,
    ) -> Vec<Changed> {
        let is_later = |known: &Value| {
            let known = Meta::of(known).resource_version.parse::<u64>().ok();
            let listed = version.and_then(|version| version.parse::<u64>().ok());
            known.zip(listed).is_some_and(|(known, listed)| known > listed)
        };
        let found: BTreeSet<Key> = listed.iter().map(key_of).collect();
        let gone: Vec<Key> = {
            let state = self.state.borrow();
            let of = |(key, known): &(&Key, &Kept)| {
                key.kind == selection.kind
                    && selection
                        .namespace
                        .as_ref()
                        .is_none_or(|at| key.namespace.as_ref() == Some(at))
                    && !found.contains(*key)
                    && !is_later(&known.object())
            };
            state.all.iter().filter(of).map(|(key, _)| key.clone()).collect()
        };
        let gone = gone.iter().filter_map(|key| self.remove(key));
        let mut changed: Vec<Changed> = gone.collect();
        for object in listed {
            // One that was made anew under its name has two tasks to tell.
            let key = key_of(&object);
            let known = self.get(&key);
            if known.as_deref().is_some_and(is_later) {
                continue;
            }
            if known.is_some_and(|known| Meta::of(&known).uid != Meta::of(&object).uid) {
                changed.extend(self.remove(&key));
            }
            changed.extend(self.set(object));
        }
        changed
    }
}

/// Who wrote which field is as large as the object, and of no use here.
fn without_noise(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// Whether a claim asks for one of our restores, or has a mark of ours to be taken off; and whether
/// data of Velero's is ours to move.
fn is_wanted(object: &Value) -> bool {
    match object["kind"].as_str() {
        Some("PersistentVolumeClaim") => {}
        Some("DataUpload" | "DataDownload") => {
            return object["spec"]["datamover"] == velero::DATA_MOVER;
        }
        _ => return true,
    }
    let source = &object["spec"]["dataSourceRef"];
    let ours = source["apiGroup"] == GROUP && source["kind"] == "VolumeRestore";
    ours || Meta::of(object).finalizers.iter().any(|name| name == POPULATE)
}

fn selection(kind: Kind, namespace: Option<&str>) -> Selection {
    let labels = if kind == Kind::ConfigMap { FOR.to_owned() } else { String::new() };
    Selection { namespace: namespace.map(str::to_owned), labels, ..Selection::all(kind) }
}

/// Reads all objects of a kind, and then their changes, for ever. `tell` hears of each change.
pub(crate) async fn follow(
    api: &Api,
    objects: &Objects,
    kind: Kind,
    namespace: Option<&str>,
    ready: watch::Sender<bool>,
    tell: impl Fn(Changed),
) {
    let selection = selection(kind, namespace);
    let mut pause = RETRY_FIRST;
    loop {
        let begun = Instant::now();
        match once(api, objects, &selection, &ready, &tell).await {
            Ok(()) => {}
            Err(why) => tracing::warn!("{why}; it is tried again"),
        }
        // A watch that lived for a while ended by its own time.
        if begun.elapsed() > RETRY_MOST {
            pause = RETRY_FIRST;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MOST);
    }
}

async fn once(
    api: &Api,
    objects: &Objects,
    selection: &Selection,
    ready: &watch::Sender<bool>,
    tell: &impl Fn(Changed),
) -> Result<(), Failure> {
    let kind = selection.kind;
    let namespace = selection.namespace.as_deref();
    let (listed, version) = api.list(selection).await?;
    let typed = |mut object: Value| {
        // Members of a list do not name their kind.
        object["kind"] = kind.word().into();
        object["apiVersion"] = kind.api_version().into();
        object
    };
    let listed = listed.into_iter().map(typed).filter(is_wanted).collect();
    for changed in objects.replace(selection, listed, version.as_deref()) {
        tell(changed);
    }
    objects.heard(kind, namespace);
    ready.send_replace(true);
    let query = Query::Many(selection.clone());
    let mut changes = api.watch(&query, version.as_deref()).await.map_err(Failure::from)?;
    while let Some(change) = changes.next().await {
        objects.heard(kind, namespace);
        let changed = match change {
            Change::Set(object) if is_wanted(&object) => objects.set(object),
            Change::Set(object) | Change::Gone(object) => objects.gone(&object),
            Change::Missed | Change::Over => return Ok(()),
        };
        if let Some(changed) = changed {
            tell(changed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
