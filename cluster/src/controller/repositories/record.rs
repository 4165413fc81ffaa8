//! What was done for a Repository: a ConfigMap of ours beside it, which decides about what is due.
//!
//! It is named by the Repository's uid and sealed: one that others changed counts as empty, and all
//! that follows is that some work is done once more. A run stands in it before its Job is made, so
//! of two controllers that find different times due one wins, by the version. It is over once its
//! end stands there, and then its Job goes.

use crate::engine::{
    ConfigMap, FOR, Failure, Key, Kind, MANAGER, Meta, Object, ROLE, SEAL, Step, object,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const MEMBER: &str = "record";

/// Marks a text as written by the controller, for this ConfigMap.
pub type Sealer<'a> = &'a dyn Fn(&Key, &str) -> String;

/// What was done, by the lanes of the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// By the name of the lane.
    pub lanes: BTreeMap<String, Done>,
    /// The newest check that found damage, until one finds none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<Ended>,
}

/// What was done in one lane.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Done {
    /// When the run was due that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<DateTime<Utc>>,
    /// The newest that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Ended>,
    /// The newest that ended well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good: Option<Ended>,
    /// How many ended badly since.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// When it was due.
    pub due: DateTime<Utc>,
    /// When it ended.
    pub at: DateTime<Utc>,
    /// As of `mover`.
    pub exit_code: u8,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What the program said of itself.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub summary: Value,
    /// Generation of the Repository's spec at that time.
    #[serde(default)]
    pub generation: i64,
}

impl Ended {
    /// What to show of it.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.clone(),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Record {
    /// Where the record of a Repository is.
    #[must_use]
    pub fn key(namespace: &str, uid: &str) -> Key {
        Key::new(Kind::ConfigMap, namespace, &format!("mover-maintenance-{uid}"))
    }

    /// What a ConfigMap says, if the seal is ours.
    #[must_use]
    pub fn read(found: &Object<ConfigMap>, seal: Sealer<'_>) -> Option<Self> {
        let text = found.body.data.get(MEMBER)?;
        let sealed = found.meta.annotations.get(SEAL)?;
        if *sealed != seal(&found.key, text) {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("its keys are texts")
    }

    /// A new one, beside the object that it is for.
    #[must_use]
    pub fn create(&self, key: &Key, of: &Meta, reference: &Value, seal: Sealer<'_>) -> Step {
        let text = self.text();
        let metadata = json!({
            "name": key.name,
            "namespace": key.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": MANAGER,
                ROLE: crate::engine::MAINTENANCE,
                FOR: of.uid,
            },
            "annotations": { SEAL: seal(key, &text) },
            "ownerReferences": [reference],
        });
        Step::Create(object(key, metadata, json!({ "data": { MEMBER: text } })))
    }

    /// The change of one that is there.
    #[must_use]
    pub fn change(&self, key: &Key, meta: &Meta, seal: Sealer<'_>) -> Step {
        let text = self.text();
        let annotations = json!({ SEAL: seal(key, &text) });
        let patch = json!({ "metadata": { "annotations": annotations }, "data": { MEMBER: text } });
        Step::change(key, meta, patch)
    }

    /// What was done in a lane.
    #[must_use]
    pub fn lane(&self, name: &str) -> Done {
        self.lanes.get(name).cloned().unwrap_or_default()
    }

    /// A run is under way.
    pub fn begin(&mut self, lane: &str, due: DateTime<Utc>) {
        self.lanes.entry(lane.to_owned()).or_default().running = Some(due);
    }

    /// A run is over.
    pub fn end(&mut self, lane: &str, ended: Ended) {
        let done = self.lanes.entry(lane.to_owned()).or_default();
        done.running = None;
        match ended.exit_code {
            0 => {
                done.failures = 0;
                done.good = Some(ended.clone());
            }
            _ => done.failures = done.failures.saturating_add(1),
        }
        if lane == super::lanes::CHECK {
            match ended.exit_code {
                0 => self.damage = None,
                crate::engine::exit::INTEGRITY => self.damage = Some(ended.clone()),
                // One that could not look says nothing about the damage before.
                _ => {}
            }
        }
        done.last = Some(ended);
    }
}

/// A failure as the end of a run.
#[must_use]
pub fn failed(why: Failure, due: DateTime<Utc>, at: DateTime<Utc>, generation: i64) -> Ended {
    let Failure { exit_code, message, hint } = why;
    Ended { due, at, exit_code, message, hint, summary: Value::Null, generation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn ended(exit_code: u8) -> Ended {
        Ended {
            due: DateTime::UNIX_EPOCH,
            at: DateTime::UNIX_EPOCH,
            exit_code,
            message: "said".into(),
            hint: None,
            summary: Value::Null,
            generation: 1,
        }
    }

    #[test]
    fn damage_stays_until_a_check_finds_none() {
        let mut record = Record::default();
        record.end("gc", ended(3));
        assert_eq!(record.damage, None, "a collection says nothing about it");
        record.end("check", ended(3));
        record.end("check", ended(1));
        assert_eq!(record.damage.as_ref().map(|at| at.exit_code), Some(3), "it could not look");
        assert_eq!(record.lane("check").failures, 2);
        record.end("check", ended(0));
        assert_eq!((record.damage.clone(), record.lane("check").failures), (None, 0));
    }

    #[test]
    fn a_record_that_others_changed_counts_for_nothing() {
        let seal = |key: &Key, text: &str| format!("{key} {}", text.len());
        let key = Record::key("shop", "u1");
        let mut record = Record::default();
        record.end("gc", ended(0));
        let Step::Create(made) =
            record.create(&key, &Meta { uid: "u1".into(), ..Meta::default() }, &Value::Null, &seal)
        else {
            panic!("it is made");
        };
        let body: ConfigMap = serde_json::from_value(made.clone()).expect("a ConfigMap");
        let mut found = Object { key, meta: Meta::of(&made), body };
        assert_eq!(Record::read(&found, &seal), Some(record));
        found.body.data = BTreeMap::from([(MEMBER.to_owned(), "{}".to_owned())]);
        assert_eq!(Record::read(&found, &seal), None);
    }
}
