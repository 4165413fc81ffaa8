//! Finalizers: our marks on objects that may not go before something was removed.

use super::Context;
use super::task::Task;
use crate::api::ApiError;
use crate::engine::{Failure, Meta};
use serde_json::json;

/// Puts a mark on the object of a task.
///
/// # Errors
///
/// The API's; one of a change that came before is tried again.
pub(crate) async fn put(context: &Context, task: &Task, mark: &str) -> Result<(), Failure> {
    change(context, task, |marks| {
        let is_new = !marks.iter().any(|name| name == mark);
        if is_new {
            marks.push(mark.to_owned());
        }
        is_new
    })
    .await
}

/// Takes a mark off the object of a task.
///
/// # Errors
///
/// The same.
pub(crate) async fn take_off(context: &Context, task: &Task, mark: &str) -> Result<(), Failure> {
    change(context, task, |marks| {
        let before = marks.len();
        marks.retain(|name| name != mark);
        marks.len() != before
    })
    .await
}

async fn change(
    context: &Context,
    task: &Task,
    change: impl Fn(&mut Vec<String>) -> bool,
) -> Result<(), Failure> {
    let mut object = task.object().map(|object| (*object).clone());
    // What was told may be old: then it is read.
    loop {
        let Some(found) = object else { return Ok(()) };
        let Meta { uid, resource_version, mut finalizers, .. } = Meta::of(&found);
        if uid != task.uid || !change(&mut finalizers) {
            return Ok(());
        }
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        match context.api.patch(&task.key, (&uid, Some(&resource_version)), &patch).await {
            Ok(written) => {
                let is_gone = Meta::of(&written).deletion_timestamp.is_some()
                    && Meta::of(&written).finalizers.is_empty();
                if !is_gone {
                    context.objects.wrote(written);
                }
                return Ok(());
            }
            Err(ApiError::Conflict(_)) => object = context.api.get(&task.key).await?,
            Err(ApiError::Absent(_)) => return Ok(()),
            Err(why) => return Err(why.into()),
        }
    }
}
