//! Our own objects as a command makes them and follows them to their end. The controller does the
//! work; a command that is interrupted ends nothing.

use crate::api::{Api, Change};
use crate::engine::{self, Failure, Key, Kind, MANAGER, Meta, Query, Repository, exit};
use crate::kinds::Phase;
use crate::ops::operation::random_text;
use futures::StreamExt as _;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const RANDOM_CHARS: usize = 5;
/// An object that nobody has taken up by then has no controller.
const TAKEN_UP: Duration = Duration::from_secs(20);
/// A watch that ends, or an API server that is away, is asked again after so long.
const AGAIN: Duration = Duration::from_secs(2);
/// It is given up after so many times in a row.
const AGAIN_MOST: u32 = 60;

/// Whether a Repository is an object of our kind: then a controller looks after it.
///
/// # Errors
///
/// See [`crate::api::ApiError`].
pub async fn is_object(api: &Api, repository: &Repository) -> Result<bool, Failure> {
    let key = Key::new(Kind::Repository, &repository.namespace, &repository.name);
    match api.get(&key).await {
        Ok(found) => Ok(found.is_some()),
        // Whoever may not read them was told of a ConfigMap.
        Err(crate::api::ApiError::Refused(_)) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// Makes an object of ours, with a name that begins so and that no other has.
///
/// # Errors
///
/// See [`crate::api::ApiError`].
pub async fn make(
    api: &Api,
    kind: Kind,
    namespace: &str,
    begins: &str,
    spec: &impl Serialize,
) -> Result<(Key, String), Failure> {
    make_labelled(api, kind, namespace, begins, &BTreeMap::new(), spec).await
}

/// The same with labels.
///
/// # Errors
///
/// See [`crate::api::ApiError`].
pub async fn make_labelled(
    api: &Api,
    kind: Kind,
    namespace: &str,
    begins: &str,
    labels: &BTreeMap<String, String>,
    spec: &impl Serialize,
) -> Result<(Key, String), Failure> {
    let begins: String = begins.chars().take(200).collect();
    let key = Key::new(kind, namespace, &format!("{begins}-{}", random_text(RANDOM_CHARS)?));
    let mut labels = labels.clone();
    labels.insert("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
    let metadata = json!({ "name": key.name, "namespace": namespace, "labels": labels });
    let made = api.create(&engine::object(&key, metadata, json!({ "spec": spec }))).await?;
    Ok((key, Meta::of(&made).uid))
}

/// Follows an object until it has ended; as it is then.
///
/// # Errors
///
/// It is gone, nobody takes it up, or the API server is away for long.
pub async fn follow(
    api: &Api,
    key: &Key,
    uid: &str,
    mut tell: impl FnMut(&str),
) -> Result<Value, Failure> {
    let query = Query::One(key.clone());
    let begun = tokio::time::Instant::now();
    let mut failures = 0;
    loop {
        let object = match api.get(key).await {
            Ok(Some(object)) if Meta::of(&object).uid == uid => object,
            Ok(_) => {
                let what = format!("{key} was deleted before it had ended");
                return Err(Failure::new(exit::RETRYABLE, what));
            }
            Err(why) if failures < AGAIN_MOST => {
                failures += 1;
                tracing::warn!("{}; it is tried again", Failure::from(why));
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(why) => return Err(why.into()),
        };
        failures = 0;
        if let Some(ended) = told(object.clone(), &mut tell) {
            return Ok(ended);
        }
        let version = Meta::of(&object).resource_version;
        let Ok(mut changes) = api.watch(&query, Some(&version)).await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut is_taken_up = object["status"].is_object();
        loop {
            let change = match is_taken_up {
                true => changes.next().await,
                false => match tokio::time::timeout_at(begun + TAKEN_UP, changes.next()).await {
                    Ok(change) => change,
                    Err(_) => return Err(nobody(key, TAKEN_UP)),
                },
            };
            match change {
                Some(Change::Set(object)) => {
                    is_taken_up |= object["status"].is_object();
                    if let Some(ended) = told(object, &mut tell) {
                        return Ok(ended);
                    }
                }
                Some(Change::Gone(_) | Change::Missed | Change::Over) | None => break,
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

pub(super) fn nobody(key: &Key, time: Duration) -> Failure {
    let seconds = time.as_secs();
    let what = format!("no controller has taken {key} up within {seconds} s");
    Failure::new(exit::RETRYABLE, what).hint(
        "it stays, and begins once one runs: kubectl get pods -A -l app.kubernetes.io/component=controller",
    )
}

/// The object, if it has ended.
fn told(object: Value, tell: &mut impl FnMut(&str)) -> Option<Value> {
    let status = &object["status"];
    let phase = serde_json::from_value(status["phase"].clone()).unwrap_or(Phase::Pending);
    if matches!(phase, Phase::Completed | Phase::Failed) {
        return Some(object);
    }
    if let Some(message) = status["message"].as_str().filter(|text| !text.is_empty()) {
        tell(message);
    }
    None
}

/// The exit code of an object that has ended.
pub fn exit_code(object: &Value) -> u8 {
    let status = &object["status"];
    if status["phase"] == "Completed" {
        return 0;
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let reason =
        conditions.filter(|at| at["type"] == "Complete").find_map(|at| at["reason"].as_str());
    match reason {
        Some("Unusable") => exit::USAGE,
        Some("Damaged") => exit::INTEGRITY,
        Some("Denied") => exit::DENIED,
        Some("Cancelled" | "Deleted") => exit::CANCELLED,
        Some("Degraded") => 5,
        Some("BoundReached" | "DeadlineExceeded") => 6,
        Some("Bug") => exit::BUG,
        _ => exit::RETRYABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_follows_from_the_reason() {
        let object = |phase: &str, reason: &str| json!({ "status": { "phase": phase, "conditions": [{ "type": "Complete", "reason": reason }] } });
        assert_eq!(exit_code(&object("Completed", "Complete")), 0);
        assert_eq!(exit_code(&object("Failed", "Denied")), exit::DENIED);
        assert_eq!(exit_code(&object("Failed", "Failed")), exit::RETRYABLE);
        assert_eq!(exit_code(&json!({ "status": { "phase": "Failed" } })), exit::RETRYABLE);
    }
}
