//! What an operation does next: a read, a write, or a wait.

use super::object::{Key, Query};
use super::observed::{Meta, key_of};
use super::payload::PayloadPart;
use super::request::Hook;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// This has to be known first.
    Read(Query),
    /// All of it has to be read again: it looks like a failure, and may be old.
    Refresh,
    /// One write. It may be done twice: names are given beforehand, and changes name what they
    /// change.
    Do(Box<Step>),
    /// Have the applications hold still, all at once, for this attempt of whom this Lease names.
    Quiesce(Vec<Hook>, u32, Key),
    /// Let them go on; the uids of the snapshots that were seen to be taken while they held still.
    Resume(Option<String>),
    /// Nothing to do until one of these changes, or until the time is over.
    Wait(Box<Wait>),
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Makes this object.
    Create(Value),
    /// Makes this Secret, with bytes that only this driver has: they are put in when it is sent.
    Fill(Value, PayloadPart),
    /// Changes the object by a merge patch, if it is still of this version: a change that was
    /// decided upon an older one is never made.
    Patch {
        /// Which object.
        key: Key,
        /// Its uid.
        uid: String,
        /// Its `resourceVersion`.
        version: String,
        /// A merge patch (RFC 7396).
        patch: Value,
    },
    /// Deletes the object, if it is still of this version.
    DeleteVersion {
        /// Which object.
        key: Key,
        /// Its uid.
        uid: String,
        /// Its `resourceVersion`.
        version: String,
    },
    /// Deletes the object, if it is still the one of this uid. What it owns goes with it.
    Delete {
        /// Which object.
        key: Key,
        /// Its uid.
        uid: String,
    },
}

impl Step {
    /// Whether it is the same write, be it upon another version of the object.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Patch { key, uid, patch, .. },
                Self::Patch { key: other_key, uid: other_uid, patch: other_patch, .. },
            ) => (key, uid, patch) == (other_key, other_uid, other_patch),
            (
                Self::DeleteVersion { key, uid, .. },
                Self::DeleteVersion { key: other_key, uid: other_uid, .. },
            ) => (key, uid) == (other_key, other_uid),
            _ => self == other,
        }
    }

    /// Which object it writes.
    pub fn key(&self) -> Key {
        match self {
            Self::Create(object) | Self::Fill(object, _) => key_of(object),
            Self::Patch { key, .. }
            | Self::Delete { key, .. }
            | Self::DeleteVersion { key, .. } => key.clone(),
        }
    }

    /// The deletion of an object as it was observed.
    pub(super) fn delete_seen(key: &Key, meta: &Meta) -> Self {
        let Meta { uid, resource_version: version, .. } = meta.clone();
        Self::DeleteVersion { key: key.clone(), uid, version }
    }

    /// A change of an object as it was observed.
    pub fn change(key: &Key, meta: &Meta, patch: Value) -> Self {
        let Meta { uid, resource_version: version, .. } = meta.clone();
        Self::Patch { key: key.clone(), uid, version, patch }
    }
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// What may change.
    pub on: Vec<Query>,
    /// For people: what is missing, and why as far as known.
    pub why: String,
    /// After so long the plan may be another one without any change.
    pub time: Duration,
    /// A pod that runs `mover`, whose log says how far it is.
    pub pod: Option<Key>,
    /// Bytes that `mover` has moved, and all that it will, once it says so.
    pub moved: Option<(u64, u64)>,
}

impl Wait {
    /// For what no pod tells.
    pub fn new(on: Vec<Query>, why: String, time: Duration) -> Self {
        Self { on, why, time, pod: None, moved: None }
    }
}

/// The lock that this process holds, or has held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// For which attempt.
    pub attempt: u32,
    /// How it is.
    pub state: LockState,
}

/// How a lock is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockState {
    /// It holds.
    Held,
    /// It was let go of when it was asked to; the uids of the snapshots that were taken by then.
    Released(Option<String>),
    /// It could not be had, or did not live until it was let go of.
    Broken(String),
}

/// How an operation ended, as its anchor says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// As of `mover`: 0 is success.
    pub exit_code: u8,
    /// For people.
    pub message: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What the Job said of itself in its termination message.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub summary: Value,
    /// What could not be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// Exit codes, those of `mover`: `docs/reference.md`, "Exit codes".
pub mod exit {
    /// It may work when it is tried again, unchanged.
    pub const RETRYABLE: u8 = 1;
    /// What was asked for cannot be done.
    pub const USAGE: u8 = 2;
    /// Stored data is damaged or gone.
    pub const INTEGRITY: u8 = 3;
    /// A right, a key or a credential is missing.
    pub const DENIED: u8 = 4;
    /// A mistake of this program.
    pub const BUG: u8 = 70;
    /// A stop was asked for.
    pub const CANCELLED: u8 = 143;
}

/// Why an operation cannot go on.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// See [`exit`].
    pub exit_code: u8,
    /// Names the object, and what is wrong with it.
    pub message: String,
    /// The next step.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(exit_code: u8, message: impl Into<String>) -> Self {
        Self { exit_code, message: message.into(), hint: None }
    }

    /// With the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        let Failure { exit_code, message, hint } = failure;
        Self { exit_code, message, hint, summary: Value::Null, left: Vec::new() }
    }
}

/// Why a plan goes no further: something comes first, or it has failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    /// This comes first.
    Next(Next),
    /// It cannot go on.
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Step> for Stop {
    fn from(step: Step) -> Self {
        Self::Next(Next::Do(Box::new(step)))
    }
}

impl From<Wait> for Stop {
    fn from(wait: Wait) -> Self {
        Self::Next(Next::Wait(Box::new(wait)))
    }
}

/// A part of a plan.
pub type Planned<T> = Result<T, Stop>;

/// The same, where a wait is also for a change of this.
pub(super) fn also_on<T>(planned: Planned<T>, query: Query) -> Planned<T> {
    match planned {
        Err(Stop::Next(Next::Wait(mut wait))) => {
            wait.on.push(query);
            Err((*wait).into())
        }
        other => other,
    }
}
