//! Makes objects of a file again: owners first, with the uids that they have now.
//!
//! Each object is created by its name. A name that is taken is looked at: the same object counts as
//! made, and another one is left as it is, and named, or becomes the saved one. So the command goes on
//! where it was killed. An object is the same if all that it says stands there. For an update it is
//! the same if nothing has to be changed: the change that would be written decides.
//! Owners that come later are added as soon as they are there, and only to objects that were made with
//! the note [`OWNERS_LATER`]: an owner that is deleted takes them with it, so nothing that was there
//! before may get one.

use super::archive::Archive;
use super::change::{change, is_within};
use super::discovery::{Served, discover};
use super::late::LateOwners;
use super::objects_file::ObjectsFile;
use super::place::Place;
use crate::api::{Api, ApiError, FIELD_MANAGER};
use crate::engine::{Failure, exit};
use crate::manifest::{Item, ItemKind, NamespaceMap, OWNERS_LATER, left_out, ready, stored};
use http::Method;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

/// A definition is served after so long, or not at all.
const SERVED: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(250);
/// Somebody else may change an object that gets an owner, so often.
pub(super) const CONTENDED: u32 = 10;

/// What became of an object, or would.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remade {
    /// It was made, or would be.
    Created,
    /// It is there as it would be made.
    Same,
    /// Another one of its name is there, and stays as it is.
    Differs,
    /// Another one of its name is there, and says what was saved now, or would.
    Updated,
    /// A claim, which got labels and annotations that it lacked, or would; so many others stay as they are.
    Marked(usize),
    /// A claim that is not there.
    Missing,
    /// A claim that no restore made, and that lacks labels or annotations, or has others.
    Foreign,
    /// A claim that could not be looked at or changed, where claims are ignored.
    Ignored(String),
    /// One of its name is being deleted.
    Going,
    /// It cannot be made.
    Refused(String),
}

impl Remade {
    /// As people and plans have it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Created => "create",
            Self::Same => "exists",
            Self::Differs => "differs",
            Self::Updated => "update",
            Self::Marked(_) => "label",
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Ignored(_) => "ignored",
            Self::Going | Self::Refused(_) => "refused",
        }
    }
}

/// An object of the file, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemadeObject {
    /// Its kind, name and namespace, where it goes.
    pub object: String,
    /// What became of it.
    pub what: Remade,
}

/// Which objects are updated that have the name of one, and are others. Those of the cluster stay as
/// they are: other namespaces need them, too.
#[derive(Debug, Clone, Default)]
pub enum Updates {
    /// None.
    #[default]
    None,
    /// All of namespaces.
    All,
    /// Of these those that were looked at, as people have them.
    These(BTreeSet<String>),
}

/// How objects are made.
#[derive(Debug, Clone, Default)]
pub struct Remaking {
    /// Where namespaces go.
    pub namespaces: NamespaceMap,
    /// Nothing is written: what would be made.
    pub dry_run: bool,
    /// What becomes of other objects.
    pub updates: Updates,
    /// Objects are made whatever claims there are.
    pub ignore_claims: bool,
}

pub(super) struct Maker<'a> {
    pub(super) api: &'a Api,
    pub(super) how: &'a Remaking,
    served: Served,
    /// Uids in the file, and those of this cluster.
    pub(super) uids: HashMap<String, String>,
    /// Uids in the file of all that it makes.
    coming: HashSet<String>,
    /// Paths of what would be there by now.
    planned: HashSet<String>,
    /// Objects whose owners come later.
    pub(super) late: LateOwners,
}

/// Makes all objects of a file, in their order.
///
/// # Errors
///
/// A file that is damaged, a namespace that is mapped and not in it, or an API server that is away.
/// An object that is refused stops no other.
pub async fn remake(
    api: &Api,
    file: &ObjectsFile,
    how: &Remaking,
    tell: &dyn Fn(&str),
) -> Result<Vec<RemadeObject>, Failure> {
    // One that was cut or changed makes nothing at all.
    Archive::check(file)?;
    let mut archive = Archive::open(file)?;
    let spaces: BTreeSet<&String> = archive.manifest.scope.namespaces.iter().collect();
    let unknown = how.namespaces.0.keys().find(|of| !spaces.contains(of));
    if let Some(name) = unknown {
        let what = format!("--namespace-map {name}: {file} has no such namespace");
        let all: Vec<&str> = spaces.iter().map(|name| name.as_str()).collect();
        return Err(Failure::new(exit::USAGE, what).hint(format!("it has {}", all.join(", "))));
    }
    let mut maker = Maker {
        api,
        how,
        served: discover(api).await?,
        uids: HashMap::new(),
        coming: (archive.manifest.items.iter())
            .filter(|item| item.left_out.is_none())
            .map(|item| item.uid.to_string())
            .collect(),
        planned: HashSet::new(),
        late: LateOwners::default(),
    };
    let mut all = maker.claims(&archive.manifest).await?;
    let claims = all.len();
    let most = archive.count;
    while let Some((at, object)) = archive.next_object()? {
        let item = &archive.manifest.items[at as usize];
        if left_out(&item.of.group, &item.of.kind, &object).is_some() {
            // A file of an older program, which left out less.
            maker.coming.remove(&*item.uid);
            continue;
        }
        let made = maker.one(item, object).await?;
        tell(&format!("{} of {most}: {}", all.len() - claims + 1, made.object));
        all.push(made);
    }
    for (object, why) in maker.give_late_owners().await? {
        if let Some(made) = all.iter_mut().rfind(|made| made.object == object) {
            made.what = Remade::Refused(format!("it has no owner yet: {why}"));
        }
    }
    Ok(all)
}

impl Maker<'_> {
    async fn one(&mut self, item: &Item, object: Value) -> Result<RemadeObject, Failure> {
        let owners = object["metadata"]["ownerReferences"].clone();
        let (object, absent) =
            ready(&item.of, object, &self.how.namespaces, |old| self.uids.get(old).cloned());
        let mut late = owners.as_array().cloned().unwrap_or_default();
        late.retain(|owner| {
            let uid = owner["uid"].as_str().unwrap_or_default();
            uid != &*item.uid && self.coming.contains(uid) && absent.iter().any(|old| old == uid)
        });
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let of = (*item.of).clone();
        let place = Place { of, namespace: text("namespace"), name: text("name") };
        let shown = place.shown();
        let what = match self.how.dry_run {
            true => self.look(&place, &object).await?,
            false => self.make(&place, &object, !late.is_empty()).await?,
        };
        let Fate { what, uid, is_early } = match what {
            Ok(fate) => fate,
            Err(why) => Remade::Refused(why.to_string()).into(),
        };
        if let Some(uid) = uid.filter(|_| !item.uid.is_empty()) {
            self.uids.insert(item.uid.to_string(), uid);
            self.owner_is_there(&item.uid).await?;
        }
        if what == Remade::Created {
            self.planned.insert(place.path());
            if place.of.kind == "CustomResourceDefinition" && !self.how.dry_run {
                self.established(&place).await?;
            }
        }
        if is_early {
            // Made by an earlier run, which had not all of its owners.
            late = owners.as_array().cloned().unwrap_or_default();
            late.retain(|owner| {
                let uid = owner["uid"].as_str().unwrap_or_default();
                uid != &*item.uid && self.coming.contains(uid)
            });
        }
        // The note of one that was made early says whose it is, whatever it has become.
        let is_ours = is_early && what != Remade::Going;
        let is_there = matches!(what, Remade::Created | Remade::Same | Remade::Updated);
        if !late.is_empty() && (is_there || is_ours) {
            self.owners_come_later(place, late);
        }
        Ok(RemadeObject { object: shown, what })
    }

    /// What is there, if anything is.
    pub(super) async fn found(&self, place: &Place) -> Result<Option<Value>, ApiError> {
        let asked = place.asked("read", "get");
        match self.api.request(Method::GET, &place.path(), &[], None, asked).await {
            Ok(object) => Ok(Some(object)),
            Err(ApiError::Absent(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// What would become of it.
    async fn look(&self, place: &Place, object: &Value) -> Result<Result<Fate, Failure>, Failure> {
        let found = match self.found(place).await {
            Ok(found) => found,
            Err(ApiError::Refused(why)) => return Ok(Err(why)),
            Err(why) => return Err(why.into()),
        };
        match found {
            Some(found) => Ok(Ok(self.compared(place, object, &found))),
            None => Ok(match self.is_served(place) {
                true => Ok(Remade::Created.into()),
                false => Err(unserved(place)),
            }),
        }
    }

    /// Whether its kind is there, or would be by then.
    fn is_served(&self, place: &Place) -> bool {
        let ItemKind { group, kind, .. } = &place.of;
        let definition =
            format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", place.of.full());
        self.served.find(group, kind).is_some() || self.planned.contains(&definition)
    }

    async fn make(
        &self,
        place: &Place,
        object: &Value,
        has_late: bool,
    ) -> Result<Result<Fate, Failure>, Failure> {
        let path = place.of.path(&place.namespace);
        let mut new = object.clone();
        if has_late {
            new["metadata"]["annotations"][OWNERS_LATER] = "true".into();
        }
        let body = serde_json::to_vec(&new).expect("JSON");
        let query = [("fieldManager", FIELD_MANAGER)];
        let sent = Some(("application/json", body));
        let asked = place.asked("create", "create");
        match self.api.request(Method::POST, &path, &query, sent, asked).await {
            Ok(made) => Ok(Ok(Fate { uid: uid(&made), ..Remade::Created.into() })),
            Err(ApiError::Conflict(why)) => self.taken(place, object, why).await,
            Err(ApiError::Absent(why)) if self.is_served(place) => Ok(Err(why)),
            Err(ApiError::Absent(_)) => Ok(Err(unserved(place))),
            Err(ApiError::Refused(why)) => Ok(Err(why)),
            Err(ApiError::Unavailable(why)) if by_webhook(&why) => Ok(Err(waits_for_webhook(why))),
            Err(why) => Err(why.into()),
        }
    }

    /// Its name is taken.
    async fn taken(
        &self,
        place: &Place,
        object: &Value,
        why: Failure,
    ) -> Result<Result<Fate, Failure>, Failure> {
        let mut last = None;
        for _ in 0..CONTENDED {
            // It was there a moment ago, and goes: the next run makes it.
            let Some(found) = self.found(place).await? else { return Ok(Err(why)) };
            let fate = self.compared(place, object, &found);
            if fate.what != Remade::Updated {
                return Ok(Ok(fate));
            }
            let Some(mut patch) = self.change(place, object, &found) else { return Ok(Ok(fate)) };
            for name in ["uid", "resourceVersion"] {
                patch["metadata"][name] = found["metadata"][name].clone();
            }
            let body = serde_json::to_vec(&patch).expect("JSON");
            let sent = Some(("application/merge-patch+json", body));
            let query = [("fieldManager", FIELD_MANAGER)];
            let asked = place.asked("update", "patch");
            // What owns others is there, whether it is as it was saved or not.
            let refused =
                |why: Failure| Fate { what: Remade::Refused(why.to_string()), ..fate.clone() };
            match self.api.request(Method::PATCH, &place.path(), &query, sent, asked).await {
                Ok(now) => {
                    let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
                    return Ok(Ok(match self.is_it(place, object, &now) {
                        false => refused(unkept(place)),
                        // The server sets what was to go, as a default.
                        true if version(&now) == version(&found) => {
                            Fate { what: Remade::Same, ..fate }
                        }
                        true => fate,
                    }));
                }
                // Somebody changed it meanwhile, or it is gone.
                Err(ApiError::Conflict(_) | ApiError::Absent(_)) => {
                    last = Some(refused(contended(place)));
                }
                Err(ApiError::Refused(why)) => return Ok(Ok(refused(why))),
                Err(ApiError::Unavailable(why)) if by_webhook(&why) => {
                    return Ok(Ok(refused(waits_for_webhook(why))));
                }
                Err(why) => return Err(why.into()),
            }
        }
        Ok(last.ok_or_else(|| contended(place)))
    }

    /// What becomes of an object that has the name.
    fn compared(&self, place: &Place, object: &Value, found: &Value) -> Fate {
        let is_early = found["metadata"]["annotations"].get(OWNERS_LATER).is_some();
        let fate = |what, uid| Fate { what, uid, is_early };
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return fate(Remade::Going, None);
        }
        let is_meant = match &self.how.updates {
            Updates::None => false,
            Updates::All => true,
            Updates::These(all) => all.contains(&place.shown()),
        };
        let what = match (is_meant && !place.namespace.is_empty(), self.is_it(place, object, found))
        {
            (true, _) if self.change(place, object, found).is_some() => Remade::Updated,
            (true, _) | (false, true) => Remade::Same,
            (false, false) => Remade::Differs,
        };
        fate(what, uid(found))
    }

    /// Whether all that an object says stands in the one that is there.
    fn is_it(&self, place: &Place, object: &Value, found: &Value) -> bool {
        is_within(&without_owners(object), &here(place, found))
    }

    /// What makes of the object that is there the one that was saved.
    fn change(&self, place: &Place, object: &Value, found: &Value) -> Option<Value> {
        change(&without_owners(object), &here(place, found))
    }

    /// Objects of a new kind can be made once its definition is served.
    async fn established(&self, place: &Place) -> Result<(), Failure> {
        let end = Instant::now() + SERVED;
        loop {
            let found = self.found(place).await?.unwrap_or_default();
            let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            if conditions.any(|at| at["type"] == "Established" && at["status"] == "True") {
                return Ok(());
            }
            if Instant::now() >= end {
                let what = format!("definition {} is not served after 60 s", place.name);
                let hint = format!("kubectl describe crd {} says why", place.name);
                return Err(Failure::new(exit::RETRYABLE, what).hint(hint));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// What became of an object, with what follows for others.
#[derive(Debug, Clone)]
struct Fate {
    what: Remade,
    /// Of the one that is there.
    uid: Option<String>,
    /// It was made before its owners.
    is_early: bool,
}

impl From<Remade> for Fate {
    fn from(what: Remade) -> Self {
        Self { what, uid: None, is_early: false }
    }
}

/// The object that is there, as one that is made: in its own namespace already, and with whatever
/// owners it has.
fn here(place: &Place, found: &Value) -> Value {
    let found = stored(&place.of, found.clone());
    without_owners(&ready(&place.of, found, &NamespaceMap::default(), |_| None).0)
}

fn without_owners(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("ownerReferences");
    }
    object
}

pub(super) fn contended(place: &Place) -> Failure {
    let what = format!("{}/{} is changed all the time", place.of.full(), place.name);
    Failure::new(exit::RETRYABLE, what).hint("run the same command again")
}

fn unkept(place: &Place) -> Failure {
    let what =
        format!("{}/{} was written, and is not as it was saved", place.of.full(), place.name);
    Failure::new(exit::USAGE, what).hint("a webhook or a controller of the cluster changes it")
}

fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}

fn unserved(place: &Place) -> Failure {
    let what = format!("this cluster does not serve {} of {}", place.of.full(), place.of.version);
    Failure::new(exit::USAGE, what)
}

/// Whether the server could not ask a webhook. It says that with the code of an error of its own, and
/// the webhook may well be one of what is restored: its workload comes after what it is asked about.
fn by_webhook(why: &Failure) -> bool {
    why.message.contains("failed calling webhook")
        || why.message.contains("failed to call webhook")
        || why.message.contains("conversion webhook for")
}

fn waits_for_webhook(why: Failure) -> Failure {
    why.hint("run the same command again once what serves that webhook is up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_is_away_is_told_from_a_server_that_is() {
        let of = |text: &str| by_webhook(&Failure::new(crate::engine::exit::RETRYABLE, text));
        assert!(of(
            "cannot create x: 500: Internal error occurred: failed calling webhook \"v.example.com\": \
             failed to call webhook: Post \"https://w.db.svc:443/v\": dial tcp: no endpoints"
        ));
        assert!(of(
            "cannot create x: 500: conversion webhook for db.example.com/v2, Kind=Db failed: Post"
        ));
        assert!(!of("cannot create x: 500: Internal error occurred: etcdserver: leader changed"));
    }
}
