//! Owners that are made after what they own: those of circles, and custom resources with settings.
//!
//! An object gets such an owner as soon as that is there: whoever looks after the owner may act at once,
//! and take what nobody owns for somebody else's. An object that is
//! refused one is told, and a later run gives it.

use super::place::Place;
use super::restore::{CONTENDED, Maker, contended};
use crate::api::{ApiError, FIELD_MANAGER};
use crate::engine::Failure;
use crate::manifest::OWNERS_LATER;
use http::Method;
use serde_json::{Value, json};
use std::collections::HashMap;

/// What waits for its owners.
#[derive(Debug, Default)]
pub(super) struct LateOwners {
    /// Objects, and their owners that are still to be given, with the uids of the file.
    objects: Vec<(Place, Vec<Value>)>,
    /// Which of them wait for an owner, by its uid in the file.
    waiting: HashMap<String, Vec<usize>>,
    /// Objects that were refused one.
    refused: Vec<(String, Failure)>,
}

impl Maker<'_> {
    /// An object was made before these owners.
    pub(super) fn owners_come_later(&mut self, place: Place, owners: Vec<Value>) {
        if self.how.dry_run {
            return;
        }
        let at = self.late.objects.len();
        for owner in &owners {
            let uid = owner["uid"].as_str().unwrap_or_default();
            self.late.waiting.entry(uid.to_owned()).or_default().push(at);
        }
        self.late.objects.push((place, owners));
    }

    /// An object is there now, whose uid in the file this is: what waits for it gets it.
    pub(super) async fn owner_is_there(&mut self, old: &str) -> Result<(), Failure> {
        for at in self.late.waiting.remove(old).unwrap_or_default() {
            self.give(at).await?;
        }
        Ok(())
    }

    /// What is still to be given; which objects did not get their owners.
    pub(super) async fn give_late_owners(&mut self) -> Result<Vec<(String, Failure)>, Failure> {
        for at in 0..self.late.objects.len() {
            self.give(at).await?;
        }
        Ok(std::mem::take(&mut self.late.refused))
    }

    async fn give(&mut self, at: usize) -> Result<(), Failure> {
        let (place, owners) = &mut self.late.objects[at];
        let (place, owners) = (place.clone(), std::mem::take(owners));
        let (mut here, mut rest) = (Vec::new(), Vec::new());
        for mut owner in owners {
            match self.uids.get(owner["uid"].as_str().unwrap_or_default()) {
                Some(new) => {
                    owner["uid"] = new.as_str().into();
                    here.push(owner);
                }
                None => rest.push(owner),
            }
        }
        if !here.is_empty()
            && let Err(why) = self.own(&place, &here, rest.is_empty()).await?
        {
            self.late.refused.push((place.shown(), why));
            return Ok(());
        }
        self.late.objects[at].1 = rest;
        Ok(())
    }

    async fn own(
        &self,
        place: &Place,
        owners: &[Value],
        are_all: bool,
    ) -> Result<Result<(), Failure>, Failure> {
        for _ in 0..CONTENDED {
            let found = match self.found(place).await {
                Ok(found) => found,
                Err(ApiError::Refused(why)) => return Ok(Err(why)),
                Err(why) => return Err(why.into()),
            };
            let Some(found) = found else { return Ok(Ok(())) };
            if found["metadata"]["annotations"].get(OWNERS_LATER).is_none() {
                return Ok(Ok(()));
            }
            let old = found["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let is_new = |owner: &&Value| !old.iter().any(|of| of["uid"] == owner["uid"]);
            let new: Vec<Value> = owners.iter().filter(is_new).cloned().collect();
            let all = [old, new].concat();
            let note = match are_all {
                true => json!({ OWNERS_LATER: null }),
                false => json!({}),
            };
            let patch = json!({ "metadata": {
                "uid": found["metadata"]["uid"],
                "resourceVersion": found["metadata"]["resourceVersion"],
                "ownerReferences": all,
                "annotations": note,
            }});
            let body = serde_json::to_vec(&patch).expect("JSON");
            let sent = Some(("application/merge-patch+json", body));
            let query = [("fieldManager", FIELD_MANAGER)];
            let asked = place.asked("give an owner to", "patch");
            match self.api.request(Method::PATCH, &place.path(), &query, sent, asked).await {
                Ok(_) | Err(ApiError::Absent(_)) => return Ok(Ok(())),
                Err(ApiError::Conflict(_)) => {}
                Err(ApiError::Refused(why)) => return Ok(Err(why)),
                Err(why) => return Err(why.into()),
            }
        }
        Ok(Err(contended(place)))
    }
}
