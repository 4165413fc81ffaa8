//! All that is known of the cluster. Times are those of one process, never compared with a clock
//! of the cluster: so a clock that is off ends no operation too early.

use super::object::{Key, Kind, Query, Selection};
use super::parts::EXPLAIN_AFTER;
use super::payload::Payload;
use super::step::{Failure, Lock, LockState, Next, Planned, Step, Stop, exit};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use text::Text;

mod heard;
mod text;

/// An answer is old after that.
const FRESH: Duration = Duration::from_secs(5);
/// Another operation of the same claim is waited for so long, unless somebody says otherwise.
const TURN: Duration = Duration::from_secs(600);
/// All answers are, together.
const REFRESHED: Duration = Duration::from_secs(30);

/// What every object has.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Meta {
    pub name: String,
    pub namespace: Option<String>,
    pub uid: String,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub deletion_timestamp: Option<String>,
    pub finalizers: Vec<String>,
    pub creation_timestamp: Option<String>,
}

impl Meta {
    /// Of an object of the API.
    pub fn of(object: &Value) -> Self {
        object
            .get("metadata")
            .and_then(|metadata| serde_json::from_value(metadata.clone()).ok())
            .unwrap_or_default()
    }
}

/// An object as the plan reads it.
#[derive(Debug, Clone)]
pub struct Object<T> {
    /// Which one.
    pub key: Key,
    /// What every object has.
    pub meta: Meta,
    /// What the plan reads of it.
    pub body: T,
}

#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Absent,
    Object(Text),
    Many(Vec<Text>),
    Refused(Failure),
}

#[derive(Debug, Clone)]
struct Known {
    answer: Answer,
    changed: Duration,
    /// When it was last told.
    told: Duration,
    /// The number of that answer among all.
    number: u64,
    /// It is to be read again before anything follows from it.
    stale: bool,
    /// Of a list.
    version: Option<String>,
}

/// All that is known of the cluster.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    now: Duration,
    known: BTreeMap<Query, Known>,
    /// Answers until now.
    answers: u64,
    /// By uid.
    first_seen: BTreeMap<String, Duration>,
    /// Uids of objects that were there and are not: none of them comes back.
    gone: BTreeSet<String>,
    /// How many of a name those were.
    lost: BTreeMap<Key, u32>,
    /// Writes that the API refuses, and would again.
    refused: Vec<(Step, Failure)>,
    /// Objects whose creation was refused and not granted since: since when, and when last.
    unmade: BTreeMap<Key, (Duration, Duration)>,
    /// When all was last forgotten.
    refreshed: Option<Duration>,
    /// Something was waited for since then.
    waited: bool,
    /// When the last wait was over: what was told since then was told as soon as it could be.
    idle_until: Duration,
    /// Names this process among the drivers of an operation.
    driver: String,
    lock: Option<Lock>,
    /// Bytes that this process holds, to be handed over.
    payload: Option<Payload>,
    /// How long this process waits for another operation's end, if that is not the usual time.
    turn: Option<Duration>,
}

impl Observed {
    /// The same, known by the driver of this name.
    #[must_use]
    pub fn named(self, driver: String) -> Self {
        Self { driver, ..self }
    }

    /// Names this process among the drivers of an operation.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// The lock that this process holds, or has held last.
    pub fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// Whether applications hold still for this process.
    pub(super) fn holds_still(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.state == LockState::Held)
    }

    /// The lock is this one now.
    pub fn set_lock(&mut self, lock: Lock) {
        self.lock = Some(lock);
    }

    /// Bytes that this process holds.
    pub(super) fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// This process holds these bytes, to be handed over.
    pub fn set_payload(&mut self, payload: Payload) {
        self.payload = Some(payload);
    }

    /// How long this process waits for another operation of the same claim to end.
    pub fn turn(&self) -> Duration {
        self.turn.unwrap_or(TURN)
    }

    /// It waits so long. That is no part of what is asked for, so it stands in no record.
    pub fn set_turn(&mut self, turn: Duration) {
        self.turn = Some(turn);
    }

    /// The time of this process, which only grows.
    pub fn set_now(&mut self, now: Duration) {
        assert!(now >= self.now, "time goes back");
        self.now = now;
    }

    /// An object is this one now, or there is none.
    pub fn set_object(&mut self, key: Key, object: Option<Value>) {
        if let Some(object) = &object {
            self.note(object);
            self.unmade.remove(&key);
        }
        let object = object.as_ref().map(Text::of);
        for (query, known) in &mut self.known {
            let (Query::Many(of), Answer::Many(many)) = (query, &mut known.answer) else {
                continue;
            };
            if of.kind != key.kind {
                continue;
            }
            let is_it = |other: &Text| {
                other.name() == key.name && other.namespace() == key.namespace.as_deref()
            };
            if let Some(at) = many.iter().position(is_it) {
                match &object {
                    Some(object) => many[at] = object.clone(),
                    None => drop(many.remove(at)),
                }
                known.changed = self.now;
            }
        }
        let query = Query::from(key.clone());
        if let Some(Known { answer: Answer::Object(before), .. }) = self.known.get(&query) {
            let before = before.uid();
            let other = object.as_ref().is_none_or(|object| object.uid() != before);
            if other && self.gone.insert(before.to_owned()) {
                *self.lost.entry(key).or_default() += 1;
            }
        }
        self.set(query, object.map_or(Answer::Absent, Answer::Object));
    }

    /// The same, as of the version of a list.
    pub fn set_listed(&mut self, key: Key, object: Option<Value>, version: Option<String>) {
        let query = Query::from(key.clone());
        self.set_object(key, object);
        if let Some(known) = self.known.get_mut(&query) {
            known.version = version;
        }
    }

    /// It was read. So it is there, even if it was gone before: a server that is set back to an
    /// older state has what was removed since.
    fn note(&mut self, object: &Value) {
        let uid = Meta::of(object).uid;
        self.gone.remove(&uid);
        if object["spec"]["nodeName"].is_string() {
            self.first_seen.entry(on_node(&uid)).or_insert(self.now);
        }
        self.first_seen.entry(uid).or_insert(self.now);
    }

    /// These are all objects of a selection, as of a version.
    pub fn set_list(&mut self, selection: Selection, objects: Vec<Value>, version: Option<String>) {
        objects.iter().for_each(|object| self.note(object));
        let query = Query::from(selection);
        self.set(query.clone(), Answer::Many(objects.iter().map(Text::of).collect()));
        if let Some(known) = self.known.get_mut(&query) {
            known.version = version;
        }
    }

    /// One object of a selection is this one now, or is gone. The others are not looked at: they
    /// may be many, and each of them is told of.
    fn set_member(&mut self, selection: &Selection, object: Value, gone: bool) {
        let object = Text::of(&object);
        let uid = object.uid().to_owned();
        let Some(known) = self.known.get_mut(&Query::Many(selection.clone())) else { return };
        let Answer::Many(many) = &mut known.answer else { return };
        let at = many.iter().position(|other| other.uid() == uid);
        let before = at.map(|at| many.remove(at));
        if before.as_ref() != Some(&object).filter(|_| !gone) {
            known.changed = self.now;
        }
        if !gone {
            many.insert(at.unwrap_or(many.len()), object);
            self.first_seen.entry(uid).or_insert(self.now);
        }
        self.answers += 1;
        (known.told, known.number, known.stale) = (self.now, self.answers, false);
    }

    /// The API refuses to have this read, and would again.
    pub fn set_refused(&mut self, query: Query, why: Failure) {
        self.set(query, Answer::Refused(why));
    }

    /// The API refuses this write, and would again. What is known of the object stays: it is still
    /// to be removed.
    pub fn refuse(&mut self, step: Step, why: Failure) {
        if let Step::Create(_) = &step {
            self.unmade.entry(step.key()).or_insert((self.now, self.now)).1 = self.now;
        }
        self.refused.retain(|(other, _)| !other.is_like(&step));
        self.refused.push((step, why));
    }

    /// Why the API refuses such a write, if it did.
    pub(super) fn refusal(&self, step: &Step) -> Option<&Failure> {
        self.refused.iter().find(|(other, _)| other.is_like(step)).map(|(_, why)| why)
    }

    /// How many objects of this name were there and went.
    pub(super) fn lost(&self, key: &Key) -> u32 {
        self.lost.get(key).copied().unwrap_or_default()
    }

    /// For how long its creation has been refused, and how long ago that was last told.
    pub(super) fn unmade(&self, key: &Key) -> Option<(Duration, Duration)> {
        let (since, told) = self.unmade.get(key)?;
        Some((self.now.saturating_sub(*since), self.now.saturating_sub(*told)))
    }

    /// Changes of an object that the API refuses.
    pub(super) fn refused_changes(&self, key: &Key) -> impl Iterator<Item = &Value> {
        self.refused.iter().filter_map(move |(step, _)| match step {
            Step::Patch { key: of, patch, .. } if of == key => Some(patch),
            _ => None,
        })
    }

    /// A plan's part, which has failed where it asks for a write that was refused.
    pub(crate) fn settle<T>(&self, planned: Planned<T>) -> Planned<T> {
        match planned {
            Err(Stop::Next(Next::Do(step))) => match self.refusal(&step) {
                Some(why) => Err(why.clone().into()),
                None => Err(Stop::Next(Next::Do(step))),
            },
            other => other,
        }
    }

    /// What was known of it may be old.
    pub fn forget(&mut self, query: &Query) {
        if let Some(known) = self.known.get_mut(query) {
            known.stale = true;
        }
    }

    /// The same of all that is known.
    pub fn forget_all(&mut self) {
        self.known.values_mut().for_each(|known| known.stale = true);
        self.refused.clear();
        self.refreshed = Some(self.now);
        self.waited = false;
    }

    /// Something was waited for until now: what was read before is not of one moment with what
    /// comes.
    pub fn waited(&mut self) {
        self.waited = true;
        self.idle_until = self.now;
        // Nobody watches events: a reason that comes late is found by another look.
        for (query, known) in &mut self.known {
            let of_events = matches!(query, Query::Many(of) if of.kind == Kind::Event);
            known.stale |= of_events && self.now.saturating_sub(known.told) >= EXPLAIN_AFTER;
        }
    }

    /// Whether all that is known was read not long ago.
    pub(crate) fn is_fresh(&self) -> bool {
        // However long the server took for that.
        let soon = |then| !self.waited || self.now.saturating_sub(then) <= REFRESHED;
        self.refreshed.is_some_and(soon)
    }

    fn set(&mut self, query: Query, answer: Answer) {
        let changed = self.now;
        self.answers += 1;
        let number = self.answers;
        match self.known.get_mut(&query) {
            Some(known) if known.answer == answer => {
                (known.told, known.stale, known.version) = (changed, false, None);
                known.number = number;
            }
            known => {
                let told = changed;
                let new = Known { answer, changed, told, number, stale: false, version: None };
                match known {
                    Some(known) => *known = new,
                    None => drop(self.known.insert(query, new)),
                }
            }
        }
    }

    /// The version from which changes of this are to be told, if it is known.
    pub fn version(&self, query: &Query) -> Option<String> {
        let known = self.known.get(query).filter(|known| !known.stale)?;
        match &known.answer {
            Answer::Object(object) if known.version.is_none() => Some(object.version().to_owned()),
            _ => known.version.clone(),
        }
    }

    /// Whether it is known.
    pub fn knows(&self, query: &Query) -> bool {
        self.known.get(query).is_some_and(|known| !known.stale)
    }

    fn answer(&self, query: Query) -> Planned<&Answer> {
        let known = self.known.get(&query).filter(|known| !known.stale);
        match known.map(|known| &known.answer) {
            None => Err(Stop::Next(Next::Read(query))),
            Some(Answer::Refused(why)) => Err(Stop::Failure(why.clone())),
            Some(answer) => Ok(answer),
        }
    }

    /// An object, if there is one.
    pub fn find<T: DeserializeOwned>(&self, key: &Key) -> Planned<Option<Object<T>>> {
        match self.answer(key.clone().into())? {
            Answer::Object(object) => parse(key.clone(), object).map(Some),
            _ => Ok(None),
        }
    }

    /// The same as it stands in the API.
    pub fn raw(&self, key: &Key) -> Planned<Option<Value>> {
        match self.answer(key.clone().into())? {
            Answer::Object(object) => Ok(Some(object.value())),
            _ => Ok(None),
        }
    }

    /// Objects of a selection.
    pub fn list<T: DeserializeOwned>(&self, selection: &Selection) -> Planned<Vec<Object<T>>> {
        let Answer::Many(many) = self.answer(selection.clone().into())? else {
            return Ok(Vec::new());
        };
        let one = |object: &Text| {
            let namespace = object.namespace().map(str::to_owned);
            parse(Key { kind: selection.kind, namespace, name: object.name().to_owned() }, object)
        };
        many.iter().map(one).collect()
    }

    /// How long ago this process first saw the object.
    pub fn age(&self, uid: &str) -> Duration {
        self.first_seen.get(uid).map_or(Duration::ZERO, |seen| self.now.saturating_sub(*seen))
    }

    /// Asks again, unless that was just done: nothing is given up on upon an old answer.
    ///
    /// # Errors
    ///
    /// The read, which comes first.
    pub(crate) fn confirm(&self, query: &Query) -> Planned<()> {
        match self.known.get(query) {
            Some(known)
                if !known.stale
                    && (self.now.saturating_sub(known.told) <= FRESH
                        || known.told > self.idle_until) =>
            {
                Ok(())
            }
            _ => Err(Stop::Next(Next::Read(query.clone()))),
        }
    }

    /// Asks again, unless that was told after the other: what is seen of two may never have been
    /// true at once, and of some one cannot be as it is seen once the other was.
    ///
    /// # Errors
    ///
    /// The read, which comes first.
    pub(crate) fn after(&self, query: &Query, other: &Query) -> Planned<()> {
        let number = |query| self.known.get(query).map(|known| known.number);
        match number(query) > number(other) {
            true => Ok(()),
            false => Err(Stop::Next(Next::Read(query.clone()))),
        }
    }

    /// For how long the answer has been the same.
    pub fn unchanged(&self, query: &Query) -> Duration {
        self.known.get(query).map_or(Duration::ZERO, |known| self.now.saturating_sub(known.changed))
    }
}

/// By this in the place of its uid, [`Observed::age`] is that of a pod since it has a node.
pub(super) fn on_node(uid: &str) -> String {
    format!("{uid} on a node")
}

/// Which object a text of the API is.
///
/// # Panics
///
/// For one of a kind that we do not make.
pub fn key_of(object: &Value) -> Key {
    let kind = Kind::ALL.into_iter().find(|kind| object["kind"] == kind.word().as_str());
    let Meta { name, namespace, .. } = Meta::of(object);
    Key { kind: kind.expect("an object of ours has a kind"), namespace, name }
}

fn parse<T: DeserializeOwned>(key: Key, object: &Text) -> Planned<Object<T>> {
    match object.body() {
        Ok(body) => Ok(Object { meta: object.meta(), body, key }),
        Err(why) => Err(Failure::new(
            exit::USAGE,
            format!("{key} is not as its kind is known to this program: {why}"),
        )
        .into()),
    }
}
