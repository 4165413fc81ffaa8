//! BackupSchedules as a command makes and finds them. The controller does the work.

use super::objects;
use super::repository::kind;
use crate::api::{Api, ApiError};
use crate::drive::Driver;
use crate::engine::{
    self, Failure, Key, Kind, MANAGER, Meta, Observed, Planned, Selection, Wait, exit,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// A controller says something of a schedule at once; one that was just installed has to begin.
const TAKEN_UP: Duration = Duration::from_secs(60);

/// Refuses where the cluster does not know the kind.
///
/// # Errors
///
/// It does not, or the server did not answer.
pub async fn known(api: &Api) -> Result<(), Failure> {
    if kind::installed(api).await? {
        return Ok(());
    }
    let what = "schedules need the controller, which is not installed in this cluster";
    Err(Failure::new(exit::USAGE, what).hint("kubectl mover install --apply --wait"))
}

/// Makes a schedule; its uid. One that is there stays as it is.
///
/// # Errors
///
/// There is one of that name, or the API refuses it.
pub async fn make(api: &Api, key: &Key, spec: &impl Serialize) -> Result<String, Failure> {
    let labels = json!({ "app.kubernetes.io/managed-by": MANAGER });
    let metadata = json!({ "name": key.name, "namespace": key.namespace, "labels": labels });
    let object = engine::object(key, metadata, json!({ "spec": spec }));
    match api.create(&object).await {
        Ok(made) => Ok(Meta::of(&made).uid),
        Err(ApiError::Conflict(_)) => {
            let namespace = key.namespace.as_deref().unwrap_or_default();
            let name = &key.name;
            Err(Failure::new(exit::USAGE, format!("there is a {key} already")).hint(format!(
                "kubectl edit backupschedule {name} -n {namespace}, or take another name"
            )))
        }
        Err(why) => Err(why.into()),
    }
}

/// A schedule by its name, as it is now.
///
/// # Errors
///
/// There is none.
pub async fn find(api: &Api, namespace: &str, name: &str) -> Result<(Key, Value), Failure> {
    known(api).await?;
    let key = Key::new(Kind::BackupSchedule, namespace, name);
    match api.get(&key).await? {
        Some(found) => Ok((key, found)),
        None => {
            let what = format!("there is no schedule {name} in namespace {namespace}");
            Err(Failure::new(exit::USAGE, what).hint("kubectl mover schedule list -A"))
        }
    }
}

/// All schedules of a namespace, or of all.
///
/// # Errors
///
/// See [`ApiError`].
pub async fn list(api: &Api, namespace: Option<&str>) -> Result<Vec<Value>, Failure> {
    let namespace = namespace.map(str::to_owned);
    let selection = Selection { namespace, ..Selection::all(Kind::BackupSchedule) };
    Ok(api.list(&selection).await?.0)
}

/// Waits until the controller has read a schedule.
///
/// # Errors
///
/// It cannot be meant, or nobody reads it.
pub async fn taken_up(
    api: &Api,
    key: &Key,
    uid: &str,
    tell: impl FnMut(&Wait),
) -> Result<(), Failure> {
    Driver::new(api, Observed::default()).run(|seen| is_taken_up(key, uid, seen), None, tell).await
}

fn is_taken_up(key: &Key, uid: &str, seen: &Observed) -> Planned<()> {
    let Some(found) = seen.find::<Value>(key)?.filter(|found| found.meta.uid == uid) else {
        return Err(Failure::new(exit::RETRYABLE, format!("{key} was deleted")).into());
    };
    let conditions = found.body["status"]["conditions"].as_array().into_iter().flatten();
    // One of an earlier spec says nothing about this one.
    let ready = conditions
        .filter(|at| at["observedGeneration"] == found.body["metadata"]["generation"])
        .find(|at| at["type"] == "Ready");
    let text = |at: &Value, name: &str| at[name].as_str().unwrap_or_default().to_owned();
    match ready.map(|at| (text(at, "status"), text(at, "reason"), text(at, "message"))) {
        Some((status, ..)) if status == "True" => return Ok(()),
        Some((_, reason, said)) if reason == "Unusable" => {
            return Err(Failure::new(exit::USAGE, format!("{key} is not ready: {said}"))
                .hint(format!(
                    "correct it by kubectl edit, or remove it: kubectl mover schedule remove {}",
                    key.name
                ))
                .into());
        }
        _ => {}
    }
    let age = seen.age(&found.meta.uid);
    if age >= TAKEN_UP {
        return Err(objects::nobody(key, TAKEN_UP).into());
    }
    let why = format!("{key} waits for the controller");
    Err(Wait::new(vec![key.clone().into()], why, TAKEN_UP - age).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_taken_up_once_the_controller_says_so_of_this_spec() {
        let key = Key::new(Kind::BackupSchedule, "shop", "hourly");
        let look = |uid: &str, generation: i64, (status, reason): (&str, &str), age: u64| {
            let condition = json!({
                "type": "Ready", "status": status, "reason": reason, "message": "minute 61",
                "observedGeneration": generation,
            });
            let object = json!({
                "metadata": { "name": "hourly", "namespace": "shop", "uid": "u", "generation": 1 },
                "status": { "conditions": [condition] },
            });
            let mut seen = Observed::default();
            seen.set_object(key.clone(), Some(object));
            seen.set_now(Duration::from_secs(age));
            is_taken_up(&key, uid, &seen)
        };
        let scheduled = ("True", "Scheduled");
        look("u", 1, scheduled, 0).expect("it is");
        let waits = |planned: &Planned<()>| {
            matches!(planned, Err(engine::Stop::Next(engine::Next::Wait(_))))
        };
        assert!(waits(&look("u", 0, scheduled, 0)), "of the spec before");
        assert!(waits(&look("u", 1, ("False", "CannotBegin"), 0)), "that may pass");
        for (uid, generation, condition, age, said) in [
            ("u", 0, scheduled, 60, "no controller has taken"),
            ("u", 1, ("False", "Unusable"), 0, "minute 61"),
            ("other", 1, scheduled, 0, "was deleted"),
        ] {
            let Err(engine::Stop::Failure(why)) = look(uid, generation, condition, age) else {
                panic!("it is no end");
            };
            assert!(why.message.contains(said), "{why}");
        }
    }
}
