//! One step of a plan, done.

use super::{Api, ApiError};
use crate::engine::{Failure, Kind, OBJECTS, Observed, ROLE, Step, exit};
use serde_json::Value;

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It was made or refused: the plan goes on from what is known then.
    Settled,
    /// Somebody else came before: it is to be decided anew.
    Contended,
}

/// Nobody but a pod needs the bytes that an operation has handed over: they are not kept, and so
/// appear nowhere.
pub(super) fn forget_parts(kind: Kind, answer: &mut Value) {
    if kind != Kind::Secret {
        return;
    }
    let forget = |object: &mut Value| {
        if object["metadata"]["labels"][ROLE] == OBJECTS
            && let Some(members) = object.as_object_mut()
        {
            members.remove("data");
        }
    };
    match answer.get_mut("items").and_then(Value::as_array_mut) {
        Some(items) => items.iter_mut().for_each(forget),
        None => forget(answer),
    }
}

impl Api {
    /// Does one step of a plan, and remembers how things are then.
    ///
    /// # Errors
    ///
    /// What may pass.
    pub async fn execute(&self, step: &Step, seen: &mut Observed) -> Result<Written, Failure> {
        let key = step.key();
        let answer = match step {
            Step::Create(object) => self.create(object).await.map(Some),
            Step::Fill(object, part) => {
                let mut whole = object.clone();
                whole["data"] = part.data();
                self.create(&whole).await.map(Some)
            }
            Step::Patch { key, uid, version, patch } => {
                self.patch(key, (uid, Some(version)), patch).await.map(Some)
            }
            Step::Delete { key, uid } => self.delete(key, uid).await,
            Step::DeleteVersion { key, uid, version } => {
                self.delete_version(key, uid, Some(version)).await
            }
        };
        match answer {
            Ok(object) => seen.set_object(key, object),
            Err(ApiError::Absent(_)) if !matches!(step, Step::Create(_) | Step::Fill(..)) => {
                seen.set_object(key, None);
            }
            Err(ApiError::Conflict(_)) => {
                seen.forget(&key.into());
                return Ok(Written::Contended);
            }
            Err(ApiError::Absent(_)) => {
                let what = format!("create {key}: its namespace or its kind does not exist");
                seen.refuse(step.clone(), Failure::new(exit::USAGE, what));
            }
            Err(ApiError::Refused(why)) => seen.refuse(step.clone(), why),
            Err(ApiError::Unavailable(why) | ApiError::Expired(why)) => return Err(why),
        }
        Ok(Written::Settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_bytes_of_parts_are_not_kept() {
        let secret = |role: &str| json!({ "metadata": { "labels": { ROLE: role } }, "data": { "part": "c2VjcmV0" } });
        let mut part = secret(OBJECTS);
        forget_parts(Kind::Secret, &mut part);
        assert!(part["data"].is_null(), "{part}");
        let mut list = json!({ "items": [secret(OBJECTS), secret("key")] });
        forget_parts(Kind::Secret, &mut list);
        assert!(list["items"][0]["data"].is_null() && list["items"][1]["data"].is_object());
    }
}
