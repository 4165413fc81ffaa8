//! Misbehaviour on demand: a JSON file that is read anew at each call. No file, no misbehaviour.
//!
//! ```json
//! [
//!   {"fault": "refuse", "call": "NodePublishVolume", "code": "UNAVAILABLE", "times": 3},
//!   {"fault": "delay", "call": "CreateSnapshot", "ms": 5000, "about": "snapshot-"},
//!   {"fault": "unready", "ms": 8000, "then": "INTERNAL"},
//!   {"fault": "tracker", "kind": "omits", "every": 2}
//! ]
//! ```
//!
//! The README beside this package lists all of them. A file that cannot be parsed refuses every call:
//! a fault with a misspelt name would otherwise be a test that proves nothing.

use crate::extents::Range;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tonic::{Code, Status};

/// One kind of misbehaviour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Fault {
    /// A call fails: `times` times, or always.
    Refuse { call: String, code: Name, times: Option<u64>, about: Option<String> },
    /// A call is carried out, and its answer lost: `times` times, or always.
    LoseAnswer { call: String, code: Name, times: Option<u64>, about: Option<String> },
    /// A call begins late.
    Delay { call: String, ms: u64, about: Option<String> },
    /// Snapshots are not ready until so long after they were taken, or ever; instead of becoming
    /// ready they may fail.
    Unready { ms: Option<u64>, then: Option<Name> },
    /// Snapshots whose id or name begins so are removed from the storage behind everybody's back.
    Vanish { snapshot: String },
    /// Neither volumes nor snapshots can be listed. Callers that ask for capabilities are told.
    NoLists,
    /// Sizes of new and grown volumes are multiples of this.
    RoundUp { bytes: u64 },
    /// Lists of blocks are wrong, or cannot be had.
    Tracker(Tracker),
}

/// What is wrong with the lists of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Tracker {
    /// There is no such service.
    Gone,
    /// It answers with an error.
    Refuses { code: Name },
    /// It says that nothing is in use, or has changed.
    Empty,
    /// It leaves out every so-many-th range.
    Omits { every: usize },
    /// It names places that lie so many bytes behind the right ones.
    Shifts { bytes: u64 },
    /// It ends with an error after so many ranges.
    BreaksOff { after: usize },
    /// It ends well after so many ranges, as if there were no more.
    Truncates { after: usize },
}

/// A status code by its name in the protocol, such as `FAILED_PRECONDITION`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Name(pub(crate) Code);

impl Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name(self.0))
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let code = (1..17).map(Code::from_i32).find(|code| name(*code) == text);
        code.map(Name).ok_or_else(|| serde::de::Error::custom(format!("no status code {text}")))
    }
}

/// The name of a status code.
pub(crate) fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The file, and how often each of its limited faults has struck.
#[derive(Debug)]
pub(crate) struct Faults {
    file: Option<PathBuf>,
    struck: Mutex<BTreeMap<String, u64>>,
}

/// What the file says at the moment of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Active(Vec<Fault>);

impl Faults {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file, struck: Mutex::default() }
    }

    pub(crate) fn read(&self) -> Result<Active, Status> {
        let Some(file) = &self.file else { return Ok(Active::default()) };
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Active::default());
            }
            Err(error) => {
                return Err(Status::internal(format!(
                    "read the faults {}: {error}",
                    file.display()
                )));
            }
        };
        serde_json::from_slice(&bytes).map(Active).map_err(|error| {
            Status::internal(format!("parse the faults {}: {error}: mend it", file.display()))
        })
    }

    /// The error that a call is to have before it does anything.
    pub(crate) fn refusal(&self, active: &Active, call: &str, request: &str) -> Option<Status> {
        let refuse = |fault: &Fault| match fault {
            Fault::Refuse { call: c, code, times, about } if c == call => {
                self.strikes(fault, *times, about.as_deref(), request).then_some(code.0)
            }
            _ => None,
        };
        let code = active.0.iter().find_map(refuse)?;
        Some(Status::new(code, format!("{call} fails by order of the faults file")))
    }

    /// The error that a call is to have instead of its answer.
    pub(crate) fn loss(&self, active: &Active, call: &str, request: &str) -> Option<Status> {
        let lose = |fault: &Fault| match fault {
            Fault::LoseAnswer { call: c, code, times, about } if c == call => {
                self.strikes(fault, *times, about.as_deref(), request).then_some(code.0)
            }
            _ => None,
        };
        let code = active.0.iter().find_map(lose)?;
        Some(Status::new(code, format!("the answer of {call} is lost by order of the faults file")))
    }

    fn strikes(
        &self,
        fault: &Fault,
        times: Option<u64>,
        about: Option<&str>,
        request: &str,
    ) -> bool {
        if about.is_some_and(|about| !request.contains(about)) {
            return false;
        }
        let Some(times) = times else { return true };
        // The text of a fault is its identity: a file that says more later begins to count anew.
        let key = serde_json::to_string(fault).unwrap_or_default();
        let mut struck = self.struck.lock().unwrap_or_else(PoisonError::into_inner);
        let count = struck.entry(key).or_default();
        *count += 1;
        *count <= times
    }
}

impl Active {
    pub(crate) fn delay(&self, call: &str, request: &str) -> Duration {
        let delay = |fault: &Fault| match fault {
            Fault::Delay { call: c, ms, about } if c == call => {
                let meant = about.as_ref().is_none_or(|about| request.contains(about.as_str()));
                meant.then(|| Duration::from_millis(*ms))
            }
            _ => None,
        };
        self.0.iter().filter_map(delay).sum()
    }

    /// Whether a snapshot that was taken at `taken` is ready.
    pub(crate) fn ready(&self, taken: SystemTime, now: SystemTime) -> Result<bool, Status> {
        let age = now.duration_since(taken).unwrap_or_default();
        for fault in &self.0 {
            let Fault::Unready { ms, then } = fault else { continue };
            if ms.is_none_or(|ms| age < Duration::from_millis(ms)) {
                return Ok(false);
            }
            if let Some(code) = then {
                let text = "the snapshot fails by order of the faults file";
                return Err(Status::new(code.0, text));
            }
        }
        Ok(true)
    }

    pub(crate) fn vanishes(&self, id: &str, name: &str) -> bool {
        let mut prefixes = self.0.iter().filter_map(|fault| match fault {
            Fault::Vanish { snapshot } => Some(snapshot.as_str()),
            _ => None,
        });
        prefixes.any(|prefix| id.starts_with(prefix) || name.starts_with(prefix))
    }

    pub(crate) fn lists(&self) -> bool {
        !self.0.contains(&Fault::NoLists)
    }

    /// The multiple that sizes have, of which the usual one is a divisor.
    pub(crate) fn grain(&self, usual: u64) -> u64 {
        let bytes = self.0.iter().find_map(|fault| match fault {
            Fault::RoundUp { bytes } => Some(*bytes),
            _ => None,
        });
        bytes.unwrap_or(usual).checked_next_multiple_of(usual).unwrap_or(usual).max(usual)
    }

    pub(crate) fn tracker(&self) -> Option<&Tracker> {
        self.0.iter().find_map(|fault| match fault {
            Fault::Tracker(kind) => Some(kind),
            _ => None,
        })
    }
}

impl Tracker {
    /// A right list made what this tracker says, and the error that it ends with.
    pub(crate) fn bend(&self, ranges: Vec<Range>, size: u64) -> (Vec<Range>, Option<Status>) {
        let few = |count: usize| ranges.iter().copied().take(count).collect::<Vec<_>>();
        match self {
            Self::Gone => {
                let text = "this driver knows no SnapshotMetadata, by order of the faults file";
                (Vec::new(), Some(Status::unimplemented(text)))
            }
            Self::Refuses { code } => {
                let text = "the tracker refuses by order of the faults file";
                (Vec::new(), Some(Status::new(code.0, text)))
            }
            Self::Empty => (Vec::new(), None),
            Self::Omits { every } => {
                let kept = ranges.into_iter().zip(1_usize..);
                let every = (*every).max(1);
                (kept.filter(|(_, n)| n % every != 0).map(|(range, _)| range).collect(), None)
            }
            Self::Shifts { bytes } => {
                let shift = |range: &Range| {
                    let start = range.start.saturating_add(*bytes);
                    let end = (start + range.bytes).min(size);
                    (start < end).then(|| Range { start, bytes: end - start })
                };
                (ranges.iter().filter_map(shift).collect(), None)
            }
            Self::BreaksOff { after } => {
                let text = "the list breaks off by order of the faults file";
                (few(*after), Some(Status::unavailable(text)))
            }
            Self::Truncates { after } => (few(*after), None),
        }
    }
}

#[cfg(test)]
mod tests;
