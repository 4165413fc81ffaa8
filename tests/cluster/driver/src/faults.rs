//! Misbehaviour on demand: a JSON file that is read anew at each call. No file, no misbehaviour.
//!
//! ```json
//! [
//!   {"fault": "refuse", "call": "Probe", "code": "UNAVAILABLE", "id": "a", "times": 3},
//!   {"fault": "delay", "call": "CreateSnapshot", "ms": 5000, "about": "snapshot-"},
//!   {"fault": "unready", "ms": 8000, "then": "INTERNAL"},
//!   {"fault": "tracker", "kind": "omits", "every": 2}
//! ]
//! ```
//!
//! The README beside this package lists all of them. A file that cannot be parsed, or names a call
//! that there is none of, refuses every call: a misspelt fault would otherwise be a test that
//! proves nothing.

mod tracker;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tonic::{Code, Status};

pub(crate) use tracker::{Bent, Tracker};

/// All calls that a fault may name.
const CALLS: [&str; 30] = [
    "ControllerExpandVolume",
    "ControllerGetCapabilities",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "CreateSnapshot",
    "CreateVolume",
    "CreateVolumeGroupSnapshot",
    "DeleteSnapshot",
    "DeleteVolume",
    "DeleteVolumeGroupSnapshot",
    "GetCapacity",
    "GetMetadataAllocated",
    "GetMetadataDelta",
    "GetPluginCapabilities",
    "GetPluginInfo",
    "GetSnapshot",
    "GetVolumeGroupSnapshot",
    "GroupControllerGetCapabilities",
    "ListSnapshots",
    "ListVolumes",
    "NodeExpandVolume",
    "NodeGetCapabilities",
    "NodeGetInfo",
    "NodeGetVolumeStats",
    "NodePublishVolume",
    "NodeStageVolume",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
    "Probe",
    "ValidateVolumeCapabilities",
];

/// Whether a fault may name a call.
pub(crate) fn is_call(name: &str) -> bool {
    CALLS.contains(&name)
}

/// One kind of misbehaviour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case", deny_unknown_fields)]
enum Fault {
    /// A call fails.
    Refuse { call: String, code: Name },
    /// A call is carried out, and its answer lost.
    LoseAnswer { call: String, code: Name },
    /// A call begins late.
    Delay { call: String, ms: u64 },
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

impl Fault {
    /// The call that it names, if its kind does.
    fn call(&self) -> Option<&str> {
        match self {
            Self::Refuse { call, .. }
            | Self::LoseAnswer { call, .. }
            | Self::Delay { call, .. } => Some(call),
            _ => None,
        }
    }

    /// Whether it is about single requests or snapshots, which can be told apart and counted.
    const fn is_limitable(&self) -> bool {
        !matches!(self, Self::Vanish { .. } | Self::NoLists | Self::RoundUp { .. })
    }
}

/// One entry of the file.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    fault: Fault,
    /// How often it strikes, counted under its id from the start of the driver; or always.
    limit: Option<(String, u64)>,
    /// A text that the request, or the snapshot, must have.
    about: Option<String>,
}

impl Entry {
    fn parse(mut fields: Map<String, Value>) -> Result<Self, String> {
        let mut take = |name: &str| fields.remove(name);
        let (id, times, about) = (take("id"), take("times"), take("about"));
        let fault: Fault =
            serde_json::from_value(Value::Object(fields)).map_err(|e| e.to_string())?;
        let text = |value: Option<Value>, name: &str| match value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("{name} is no text: {other}")),
        };
        let (id, about) = (text(id, "id")?, text(about, "about")?);
        let limit = match (id, times.map(|times| times.as_u64().ok_or(times))) {
            (_, Some(Err(times))) => return Err(format!("times is no number: {times}")),
            (None, Some(Ok(_))) => return Err("times are counted by an id: give one".to_owned()),
            (Some(id), Some(Ok(times))) => Some((id, times)),
            (_, None) => None,
        };
        if let Some(call) = fault.call().filter(|call| !is_call(call)) {
            return Err(format!("no call {call}"));
        }
        if !fault.is_limitable() && (limit.is_some() || about.is_some()) {
            return Err(format!("times and about mean nothing to {fault:?}"));
        }
        Ok(Self { fault, limit, about })
    }
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
    struck: Struck,
}

/// Strikes by the ids of entries.
type Struck = Arc<Mutex<BTreeMap<String, u64>>>;

/// What the file says at the moment of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Active {
    entries: Vec<Entry>,
    struck: Struck,
}

impl Faults {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file, struck: Struck::default() }
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
        let entries = parse(&bytes).map_err(|error| {
            Status::internal(format!("parse the faults {}: {error}: mend it", file.display()))
        })?;
        Ok(Active { entries, struck: Arc::clone(&self.struck) })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let entries: Vec<Map<String, Value>> =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let numbered = entries.into_iter().zip(1_u32..);
    let entries = numbered.map(|(fields, number)| {
        Entry::parse(fields).map_err(|error| format!("entry {number}: {error}"))
    });
    let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
    let mut ids = BTreeSet::new();
    for (id, _) in entries.iter().filter_map(|entry| entry.limit.as_ref()) {
        if !ids.insert(id) {
            return Err(format!("two entries have the id {id}"));
        }
    }
    Ok(entries)
}

impl Active {
    /// Whether an entry strikes a request, or a snapshot, of this text; it is counted then.
    fn strikes(&self, entry: &Entry, text: &str) -> bool {
        if entry.about.as_ref().is_some_and(|about| !text.contains(about.as_str())) {
            return false;
        }
        let Some((id, times)) = &entry.limit else { return true };
        let mut struck = self.struck.lock().unwrap_or_else(PoisonError::into_inner);
        let count = struck.entry(id.clone()).or_default();
        let strikes = *count < *times;
        *count += u64::from(strikes);
        strikes
    }

    /// The error that a call is to have before it does anything.
    pub(crate) fn refusal(&self, call: &str, request: &str) -> Option<Status> {
        let refuse = |entry: &Entry| match &entry.fault {
            Fault::Refuse { call: named, code } if named == call => {
                self.strikes(entry, request).then_some(code.0)
            }
            _ => None,
        };
        let code = self.entries.iter().find_map(refuse)?;
        Some(Status::new(code, format!("{call} fails by order of the faults file")))
    }

    /// The error that a call is to have instead of its answer.
    pub(crate) fn loss(&self, call: &str, request: &str) -> Option<Status> {
        let lose = |entry: &Entry| match &entry.fault {
            Fault::LoseAnswer { call: named, code } if named == call => {
                self.strikes(entry, request).then_some(code.0)
            }
            _ => None,
        };
        let code = self.entries.iter().find_map(lose)?;
        Some(Status::new(code, format!("the answer of {call} is lost by order of the faults file")))
    }

    pub(crate) fn delay(&self, call: &str, request: &str) -> Duration {
        let delay = |entry: &Entry| match &entry.fault {
            Fault::Delay { call: named, ms } if named == call => {
                self.strikes(entry, request).then(|| Duration::from_millis(*ms))
            }
            _ => None,
        };
        self.entries.iter().filter_map(delay).sum()
    }

    /// Whether a snapshot of this text that was taken at `taken` is ready.
    pub(crate) fn ready(
        &self,
        text: &str,
        taken: SystemTime,
        now: SystemTime,
    ) -> Result<bool, Status> {
        let age = now.duration_since(taken).unwrap_or_default();
        for entry in &self.entries {
            let Fault::Unready { ms, then } = &entry.fault else { continue };
            let waits = ms.is_none_or(|ms| age < Duration::from_millis(ms));
            if waits && self.strikes(entry, text) {
                return Ok(false);
            }
            if let Some(code) = then.filter(|_| !waits && self.strikes(entry, text)) {
                let text = "the snapshot fails by order of the faults file";
                return Err(Status::new(code.0, text));
            }
        }
        Ok(true)
    }

    pub(crate) fn vanishes(&self, id: &str, name: &str) -> bool {
        let mut prefixes = self.entries.iter().filter_map(|entry| match &entry.fault {
            Fault::Vanish { snapshot } => Some(snapshot.as_str()),
            _ => None,
        });
        prefixes.any(|prefix| id.starts_with(prefix) || name.starts_with(prefix))
    }

    pub(crate) fn lists(&self) -> bool {
        !self.entries.iter().any(|entry| entry.fault == Fault::NoLists)
    }

    /// The multiple that sizes have, of which the usual one is a divisor.
    pub(crate) fn grain(&self, usual: u64) -> u64 {
        let bytes = self.entries.iter().find_map(|entry| match &entry.fault {
            Fault::RoundUp { bytes } => Some(*bytes),
            _ => None,
        });
        bytes.unwrap_or(usual).checked_next_multiple_of(usual).unwrap_or(usual).max(usual)
    }

    /// Whether lists of blocks are offered: not if they are gone for everybody and for good.
    pub(crate) fn tracks(&self) -> bool {
        let gone = |entry: &Entry| {
            let always = entry.limit.is_none() && entry.about.is_none();
            always && entry.fault == Fault::Tracker(Tracker::Gone)
        };
        !self.entries.iter().any(gone)
    }

    /// What is wrong with the list that a request asks for.
    pub(crate) fn tracker(&self, request: &str) -> Option<&Tracker> {
        self.entries.iter().find_map(|entry| match &entry.fault {
            Fault::Tracker(kind) => self.strikes(entry, request).then_some(kind),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
