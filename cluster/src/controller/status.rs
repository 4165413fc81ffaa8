//! The status of an object: conditions, and how it is written. Nothing reads a decision from it.

use super::objects::OF_VELERO;
use super::task::Task;
use super::{Context, events, velero};
use crate::api::ApiError;
use crate::engine::{Failure, Meta, exit};
use crate::kinds::Condition;
use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// A status is written no more often.
const EACH: Duration = Duration::from_secs(2);

/// The time as the API writes it.
pub(crate) fn now(context: &Context) -> String {
    (context.clock)().to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// How a condition is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Is {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows yet.
    Unknown,
}

/// Sets a condition; its time changes with its status alone.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    (is, reason): (Is, &str),
    message: &str,
    (generation, now): (i64, &str),
) {
    let status = match is {
        Is::True => "True",
        Is::False => "False",
        Is::Unknown => "Unknown",
    };
    let new = Condition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: now.into(),
    };
    match conditions.iter_mut().find(|known| known.kind == kind) {
        Some(known) => {
            let since = match known.status == new.status {
                true => std::mem::take(&mut known.last_transition_time),
                false => new.last_transition_time.clone(),
            };
            *known = Condition { last_transition_time: since, ..new };
        }
        None => conditions.push(new),
    }
}

/// Generation of the object that a task is of.
pub(crate) fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or_default()
}

/// Writes a status where it is another than the object has.
///
/// # Errors
///
/// The API's; an object that is gone needs none.
pub(crate) async fn write(
    context: &Context,
    task: &Task,
    status: &impl Serialize,
) -> Result<(), Failure> {
    let Some(object) = task.object() else { return Ok(()) };
    let mut status = serde_json::to_value(status).expect("its keys are texts");
    // A merge patch takes a member away that is null, and leaves one that is missing. In Velero's
    // objects Velero has members of its own.
    if !is_of_velero(task)
        && let (Some(new), Some(old)) = (status.as_object_mut(), object["status"].as_object())
    {
        for name in old.keys() {
            new.entry(name).or_insert(Value::Null);
        }
    }
    write_part(context, task, &status).await
}

/// Says why an object's task does not go on. Where that may not pass, it counts as failed.
pub(crate) async fn trouble(context: &Context, task: &Task, why: &Failure) {
    let mut status = json!({ "message": why.to_string() });
    // Velero goes on from an end, and ours may be one that passes.
    if !is_of_velero(task) && matches!(why.exit_code, exit::INTEGRITY | exit::BUG) {
        status["phase"] = "Failed".into();
    }
    if let Err(why) = write_part(context, task, &status).await {
        tracing::debug!("{}: {why}", task.key);
    }
}

async fn write_part(context: &Context, task: &Task, part: &Value) -> Result<(), Failure> {
    let Some(object) = task.object() else { return Ok(()) };
    let mut after = object["status"].clone();
    merge(&mut after, part);
    if after == object["status"] {
        return Ok(());
    }
    let patch = json!({ "status": part });
    if is_of_velero(task) {
        return write_whole(context, task, object, &patch).await;
    }
    match context.api.patch_status(&task.key, &task.uid, &patch).await {
        Ok(written) => {
            events::transition(context, task, &object["status"], &written["status"]).await;
            context.objects.wrote(written);
            Ok(())
        }
        Err(ApiError::Absent(_) | ApiError::Conflict(_)) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

/// The same for an object without a subresource for its status. An end stays, whoever wrote it: each
/// write is upon the version that it was decided by.
async fn write_whole(
    context: &Context,
    task: &Task,
    mut known: Rc<Value>,
    patch: &Value,
) -> Result<(), Failure> {
    loop {
        let meta = Meta::of(&known);
        if meta.uid != task.uid || velero::is_over(&known) {
            return Ok(());
        }
        let at = (meta.uid.as_str(), Some(meta.resource_version.as_str()));
        match context.api.patch(&task.key, at, patch).await {
            Ok(written) => {
                events::transition(context, task, &known["status"], &written["status"]).await;
                context.objects.wrote(written);
                return Ok(());
            }
            Err(ApiError::Conflict(_)) => match context.api.get(&task.key).await? {
                Some(found) => {
                    context.objects.wrote(found.clone());
                    known = Rc::new(found);
                }
                None => return Ok(()),
            },
            Err(ApiError::Absent(_)) => return Ok(()),
            Err(why) => return Err(why.into()),
        }
    }
}

fn is_of_velero(task: &Task) -> bool {
    OF_VELERO.contains(&task.key.kind)
}

/// RFC 7396, for one level of members and whatever they hold.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.remove(name)),
            value => merge(target.entry(name).or_insert(Value::Null), value),
        }
    }
}

/// A status that changes while something goes on: the newest is written, at a pace.
#[derive(Debug)]
pub(crate) struct Live<T> {
    newest: RefCell<Option<T>>,
    changed: Notify,
}

impl<T: Serialize + Clone> Live<T> {
    pub(crate) fn new() -> Self {
        Self { newest: RefCell::new(None), changed: Notify::new() }
    }

    /// It is this one now.
    pub(crate) fn set(&self, status: T) {
        *self.newest.borrow_mut() = Some(status);
        self.changed.notify_one();
    }

    /// Writes it whenever it changes, for ever. What cannot be written is only shown too late.
    pub(crate) async fn write(&self, context: &Context, task: &Task) {
        loop {
            self.changed.notified().await;
            let newest = self.newest.borrow_mut().take();
            if let Some(newest) = newest
                && let Err(why) = Box::pin(write(context, task, &newest)).await
            {
                tracing::debug!("{}: {why}", task.key);
            }
            tokio::time::sleep(EACH).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut all = Vec::new();
        set(&mut all, "Ready", (Is::False, "Waits"), "one", (1, "t1"));
        set(&mut all, "Ready", (Is::False, "Waits"), "two", (2, "t2"));
        assert_eq!((all[0].message.as_str(), all[0].last_transition_time.as_str()), ("two", "t1"));
        set(&mut all, "Ready", (Is::True, "Done"), "", (2, "t3"));
        assert_eq!(all[0].last_transition_time, "t3");
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn a_merge_takes_away_what_is_null() {
        let mut target = json!({ "a": 1, "b": { "c": 1, "d": 2 } });
        merge(&mut target, &json!({ "a": null, "b": { "c": 3 } }));
        assert_eq!(target, json!({ "b": { "c": 3, "d": 2 } }));
    }
}
