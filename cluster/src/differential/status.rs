//! What stands in the status of each DifferentialSnapshot: whether its list can be had, and where.
//! Nothing is decided by it: the server looks at the objects at each request.

use super::Shared;
use super::subject::{Trouble, of_object};
use crate::api::Change;
use crate::engine::{Failure, Key, Kind, Meta, Query, Selection, key_of};
use crate::kinds::DifferentialSnapshotStatus;
use futures::StreamExt as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Something that is not ready is looked at again after so long.
const PENDING: Duration = Duration::from_secs(5);
/// A failure may have passed: a driver has a service by now.
const FAILURE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(30);

/// Objects that are looked at again, and when.
type Due = BTreeMap<Key, (Instant, Value)>;

/// Looks after the objects of a namespace, or of all of them, for ever.
pub(super) async fn follow(shared: &Shared, namespace: Option<String>) {
    let mut pause = RETRY_FIRST;
    loop {
        let begun = Instant::now();
        if let Err(why) = Box::pin(once(shared, namespace.clone())).await {
            tracing::warn!("{why}; it is tried again");
        }
        // A watch that lived for a while ended by its own time.
        if begun.elapsed() > RETRY_MOST {
            pause = RETRY_FIRST;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MOST);
    }
}

async fn once(shared: &Shared, namespace: Option<String>) -> Result<(), Failure> {
    let api = &shared.api;
    let selection = Selection { namespace, ..Selection::all(Kind::DifferentialSnapshot) };
    let (listed, version) = api.list(&selection).await?;
    let mut due = Due::new();
    for object in listed {
        look(shared, typed(object), &mut due).await;
    }
    let mut changes = api.watch(&Query::Many(selection), version.as_deref()).await?;
    let mut tick = tokio::time::interval(TICK);
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            _ = tick.tick() => {
                let now = Instant::now();
                let (ready, later): (Due, Due) =
                    std::mem::take(&mut due).into_iter().partition(|(_, (at, _))| *at <= now);
                due = later;
                let ready: Vec<Value> = ready.into_values().map(|(_, object)| object).collect();
                for object in ready {
                    look(shared, object, &mut due).await;
                }
                continue;
            }
        };
        match change {
            Some(Change::Set(object)) => look(shared, typed(object), &mut due).await,
            Some(Change::Gone(object)) => drop(due.remove(&key_of(&typed(object)))),
            Some(Change::Missed | Change::Over) | None => return Ok(()),
        }
    }
}

/// Members of a list do not name their kind.
fn typed(mut object: Value) -> Value {
    object["kind"] = Kind::DifferentialSnapshot.word().into();
    object["apiVersion"] = Kind::DifferentialSnapshot.api_version().into();
    object
}

/// What its status should be, and when it is looked at again.
async fn wanted(shared: &Shared, object: &Value) -> (DifferentialSnapshotStatus, Option<Duration>) {
    let Meta { namespace, name, .. } = Meta::of(object);
    let state = |state: &str| Some(state.to_owned());
    match of_object(&shared.api, object).await {
        Ok(_) => {
            let namespace = namespace.unwrap_or_default();
            let url = Some(format!("{}/{namespace}/{name}", shared.url));
            (DifferentialSnapshotStatus { state: state("Success"), error: None, url }, None)
        }
        Err(Trouble::Pending(why) | Trouble::Unavailable(why)) => {
            let status = DifferentialSnapshotStatus { error: Some(why), ..Default::default() };
            (status, Some(PENDING))
        }
        Err(Trouble::Failure(why)) => {
            let (state, error) = (state("Failure"), Some(why));
            (DifferentialSnapshotStatus { state, error, url: None }, Some(FAILURE))
        }
        Err(Trouble::Absent) => (DifferentialSnapshotStatus::default(), None),
    }
}

async fn look(shared: &Shared, object: Value, due: &mut Due) {
    let key = key_of(&object);
    let Meta { uid, deletion_timestamp, .. } = Meta::of(&object);
    due.remove(&key);
    if deletion_timestamp.is_some() {
        return;
    }
    let (status, again) = Box::pin(wanted(shared, &object)).await;
    let is: DifferentialSnapshotStatus =
        serde_json::from_value(object["status"].clone()).unwrap_or_default();
    let mut again = again;
    if status != is {
        let DifferentialSnapshotStatus { state, error, url } = status;
        let patch = json!({ "status": { "state": state, "error": error, "url": url } });
        if let Err(why) = shared.api.patch_status(&key, &uid, &patch).await {
            tracing::warn!("{}; it is tried again", Failure::from(why));
            again = Some(again.unwrap_or(PENDING));
        }
    }
    if let Some(again) = again {
        due.insert(key, (Instant::now() + again, object));
    }
}
