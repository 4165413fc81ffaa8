//! A cluster in memory: an API with versions, uids and preconditions, the controllers that matter
//! to an operation, and a storage whose volumes hold one word of data.
//!
//! It is no proof of how Kubernetes behaves (the tests on a real one are), but every order of
//! events, every crash and every second driver can be tried on it.

mod alone;
mod controllers;
mod groups;
mod programs;
mod snapshots;

pub(crate) use alone::Alone;
pub(crate) use programs::HALF;

use mover_cluster::engine::{
    Failure, Key, Kind, LockState, Meta, OWNER, Observed, Payload, Query, ROLE, Selection, Step,
    exit,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const DRIVER: &str = "test.csi.mover";
pub(crate) const CLASS: &str = "fast";

/// What the controllers and the program in the pods do otherwise than they should.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Faults {
    pub(crate) snapshot_never_ready: bool,
    pub(crate) snapshot_error: Option<String>,
    /// The driver has no list of snapshots: one by a handle is taken as there.
    pub(crate) lists_nothing: bool,
    /// The storage has room for so many.
    pub(crate) snapshots_max: Option<usize>,
    pub(crate) volume_never_bound: bool,
    /// Exit code and message of every pod.
    pub(crate) pod_fails: Option<(i64, String)>,
    /// It was the kernel that ended them, for their memory.
    pub(crate) out_of_memory: bool,
    /// No Job ends, and none makes another pod.
    pub(crate) jobs_stand_still: bool,
    pub(crate) pod_never_begins: bool,
    /// The first so many pods are gone before anybody reads how they ended.
    pub(crate) pods_lost: u32,
    /// A group gets no further than to be bound.
    pub(crate) group_never_taken: bool,
    /// A group has no snapshot of this claim.
    pub(crate) member_missing: Option<String>,
    /// The content names another snapshot.
    pub(crate) foreign_content: bool,
    pub(crate) never_detached: bool,
    /// So often is a claim of the user refused when it is made.
    pub(crate) claims_refused: u32,
    /// The garbage collector deletes claims of an owner that is gone.
    pub(crate) owner_gone: bool,
    /// The class makes a volume only once a node is chosen for it.
    pub(crate) waits_for_consumer: bool,
    /// The class retains its volumes.
    pub(crate) retains: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fake {
    pub(crate) objects: BTreeMap<Key, Value>,
    /// Data of volumes and snapshots, by handle.
    pub(crate) storage: BTreeMap<String, String>,
    /// Data of backups, by id.
    pub(crate) repository: BTreeMap<String, String>,
    /// Objects that went with backups, by id.
    pub(crate) attached: BTreeMap<String, Vec<u8>>,
    pub(crate) faults: Faults,
    pub(crate) alone: Alone,
    /// Most snapshots of all namespaces, and how many were counted last.
    pub(crate) quota: Option<(usize, usize)>,
    counts_at: Duration,
    counter: u64,
    pub(crate) now: Duration,
    /// The application writes all the time: a snapshot without its lock is torn.
    pub(crate) writes: bool,
    /// An application writes a number to `db`, then the same one to `log`, whenever anything happens.
    pub(crate) pair: Option<u64>,
    /// For which attempt the application holds still, and until when.
    pub(crate) lock: Option<(u32, Duration)>,
    /// Objects that a new driver holds.
    pub(crate) payload: Option<Payload>,
    /// Every write that the API took, for reading by people.
    pub(crate) written: Vec<String>,
}

/// How the API answers a write.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Object(Option<Value>),
    Absent,
    Conflict,
    Refused,
}

impl Fake {
    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Each thing that happens has a second of its own.
    pub(crate) fn time(&self) -> String {
        let begin = chrono::DateTime::from_timestamp(1_735_689_600, 0).expect("a time");
        let now = begin + self.now + Duration::from_secs(self.counter);
        now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    pub(crate) fn of_kind(&self, kind: Kind) -> Vec<(Key, Value)> {
        let of = |(key, value): (&Key, &Value)| (key.clone(), value.clone());
        self.objects.iter().filter(|(key, _)| key.kind == kind).map(of).collect()
    }

    fn select(&self, selection: &Selection) -> Vec<Value> {
        let wanted: Vec<(&str, &str)> = selection
            .labels
            .split(',')
            .filter(|text| !text.is_empty())
            .map(|text| text.split_once('=').expect("a label has a value"))
            .collect();
        let fits = |key: &Key, object: &Value| {
            let labels = Meta::of(object).labels;
            key.kind == selection.kind
                && (selection.namespace.is_none() || selection.namespace == key.namespace)
                && wanted
                    .iter()
                    .all(|(name, value)| labels.get(*name).map(String::as_str) == Some(*value))
        };
        self.objects.iter().filter(|(key, at)| fits(key, at)).map(|(_, at)| at.clone()).collect()
    }

    pub(crate) fn create(&mut self, object: &Value) -> Answer {
        let key = mover_cluster::api::key_of(object);
        if self.objects.contains_key(&key) {
            return Answer::Conflict;
        }
        let number = self.next();
        let mut object = object.clone();
        object["metadata"]["uid"] = format!("uid-{number}").into();
        object["metadata"]["resourceVersion"] = number.to_string().into();
        object["metadata"]["creationTimestamp"] = self.time().into();
        self.written.push(format!("create {key}"));
        self.objects.insert(key, object.clone());
        Answer::Object(Some(object))
    }

    fn patch(&mut self, key: &Key, uid: &str, version: &str, patch: &Value) -> Answer {
        let Some(found) = self.objects.get(key) else { return Answer::Absent };
        let meta = Meta::of(found);
        if meta.uid != uid || version != meta.resource_version {
            return Answer::Conflict;
        }
        self.written.push(format!("patch {key} {patch}"));
        self.change(key, patch);
        Answer::Object(self.objects.get(key).cloned())
    }

    /// A change by a controller, or by anybody.
    pub(crate) fn change(&mut self, key: &Key, patch: &Value) {
        let number = self.next();
        let object = self.objects.get_mut(key).expect("it exists");
        merge(object, patch);
        object["metadata"]["resourceVersion"] = number.to_string().into();
    }

    pub(crate) fn delete(&mut self, key: &Key, uid: &str) -> Answer {
        let Some(found) = self.objects.get(key) else { return Answer::Absent };
        if Meta::of(found).uid != uid {
            return Answer::Conflict;
        }
        self.written.push(format!("delete {key}"));
        let waits = matches!(
            key.kind,
            Kind::Job
                | Kind::PersistentVolumeClaim
                | Kind::PersistentVolume
                | Kind::VolumeSnapshot
                | Kind::VolumeSnapshotContent
                | Kind::VolumeGroupSnapshot
                | Kind::VolumeGroupSnapshotContent
        );
        if !waits {
            self.objects.remove(key);
            return Answer::Object(None);
        }
        self.change(key, &json!({ "metadata": { "deletionTimestamp": "now" } }));
        Answer::Object(self.objects.get(key).cloned())
    }

    pub(crate) fn execute(&mut self, step: &Step, seen: &mut Observed) {
        let (key, answer) = match step {
            Step::Create(object) => {
                let key = mover_cluster::api::key_of(object);
                let answer = if key.name == "db" && self.faults.claims_refused > 0 {
                    self.faults.claims_refused -= 1;
                    Answer::Refused
                } else if key.kind == Kind::VolumeSnapshot
                    && self.quota.is_some_and(|(most, used)| used >= most)
                    && self.get(&key).is_none()
                {
                    Answer::Refused
                } else {
                    self.create(object)
                };
                if let (Some((_, used)), Answer::Object(_), Kind::VolumeSnapshot) =
                    (&mut self.quota, &answer, key.kind)
                {
                    *used += 1;
                }
                (key, answer)
            }
            Step::Fill(object, part) => {
                let mut whole = object.clone();
                whole["data"] = part.data();
                (mover_cluster::api::key_of(object), self.create(&whole))
            }
            Step::Patch { key, uid, version, patch } => {
                (key.clone(), self.patch(key, uid, version, patch))
            }
            Step::Delete { key, uid } => (key.clone(), self.delete(key, uid)),
            Step::DeleteVersion { key, uid, version } => {
                let found = self.get(key).map(|found| Meta::of(found).resource_version);
                let answer = match found.is_some_and(|found| found != *version) {
                    true => Answer::Conflict,
                    false => self.delete(key, uid),
                };
                (key.clone(), answer)
            }
        };
        match answer {
            Answer::Object(object) => seen.set_object(key, object),
            Answer::Absent => seen.set_object(key, None),
            Answer::Conflict => seen.forget(&key.into()),
            Answer::Refused => {
                let why = Failure::new(exit::DENIED, format!("create {key}: exceeded quota"));
                seen.refuse(step.clone(), why);
            }
        }
    }

    pub(crate) fn read(&self, query: &Query, seen: &mut Observed) {
        match query {
            Query::One(key) => seen.set_object(key.clone(), self.get(key).cloned()),
            // No label has a blank in it.
            Query::Many(selection) if selection.labels.contains(' ') => {
                let why = Failure::new(exit::USAGE, "list claims: unable to parse the labels");
                seen.set_refused(query.clone(), why);
            }
            Query::Many(selection) => {
                seen.set_list(selection.clone(), self.select(selection), None);
            }
        }
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_some_and(|(_, until)| self.now < until)
    }

    pub(crate) fn is_locked_by(&self, seen: &Observed) -> bool {
        let held = seen.lock().filter(|lock| lock.state == LockState::Held);
        self.is_locked() && held.map(|lock| lock.attempt) == self.lock.map(|(attempt, _)| attempt)
    }

    /// What an operation made and has not removed, by its label.
    pub(crate) fn left(&self) -> Vec<String> {
        let ours = |(key, object): (&Key, &Value)| {
            let labels = Meta::of(object).labels;
            let role = labels.get(ROLE).map(String::as_str);
            let stays = matches!(role, Some("base" | "retained" | "target"))
                || key.kind == Kind::PersistentVolume;
            (labels.contains_key(OWNER) && !stays).then(|| key.to_string())
        };
        self.objects.iter().filter_map(ours).collect()
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}
