//! Events: one for each transition of an object, and none for what is told twice.

use super::Context;
use super::drills;
use super::metrics::Tally;
use super::task::Task;
use crate::api::ApiError;
use crate::engine::{self, Key, Kind, MANAGER};
use serde_json::{Value, json};

const MESSAGE_BYTES: usize = 1000;

/// Tells of a change of phase, if there is one.
pub(super) async fn transition(context: &Context, task: &Task, old: &Value, new: &Value) {
    let phase = |status: &Value| status["phase"].as_str().unwrap_or_default().to_owned();
    let (before, after) = (phase(old), phase(new));
    if before == after || after.is_empty() || after == "Pending" {
        return;
    }
    let message = new["message"].as_str().unwrap_or_default();
    let outcome = if after == "Completed" { Tally::Good } else { Tally::Failed };
    match (task.key.kind, after.as_str()) {
        (Kind::VolumeBackup | Kind::DataUpload, "Completed" | "Failed") => {
            context.metrics.backup_ended(outcome);
        }
        // A drill is counted with its command's end.
        (Kind::VolumeRestore, _) if task.object().is_some_and(|at| drills::is_drill(&at)) => {}
        (Kind::VolumeRestore | Kind::DataDownload, "Completed" | "Failed") => {
            context.metrics.restore_ended(outcome);
        }
        _ => {}
    }
    tell(context, task, after == "Failed", &after, message).await;
}

/// Writes an event about an object. One that cannot be written is missing, and that is all.
pub(crate) async fn tell(
    context: &Context,
    task: &Task,
    is_warning: bool,
    reason: &str,
    message: &str,
) {
    let namespace = task.key.namespace.as_deref().unwrap_or("default");
    let end = (0..=MESSAGE_BYTES.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
    let message = &message[..end.unwrap_or_default()];
    // What is told twice has the same name.
    let mut hash = blake3::Hasher::new();
    for part in [task.uid.as_str(), reason, message] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let hash = hash.finalize().to_hex();
    let short: String = task.key.name.chars().take(200).collect();
    let key = Key::new(Kind::Event, namespace, &format!("{short}.{}", &hash[..16]));
    let now = super::status::now(context);
    let metadata = json!({ "name": key.name, "namespace": namespace });
    let body = json!({
        "involvedObject": {
            "apiVersion": task.key.kind.api_version(),
            "kind": task.key.kind.word(),
            "namespace": task.key.namespace,
            "name": task.key.name,
            "uid": task.uid,
        },
        "type": if is_warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": message,
        "source": { "component": MANAGER },
        "reportingComponent": MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    match context.api.create(&engine::object(&key, metadata, body)).await {
        Ok(_) | Err(ApiError::Conflict(_)) => {}
        Err(why) => tracing::debug!("{}", crate::engine::Failure::from(why)),
    }
}
