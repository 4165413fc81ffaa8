//! What goes wrong on the way between a client and a server that speak HTTP, chosen from a seed.
//!
//! The n-th request that arrives meets what the seed says for the n-th. Requests of several
//! connections arrive in an order of their own, so a seed repeats a run closely, not exactly; what
//! a run met is in its counts.

use crate::{Recorded, Rng};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One way in which a request fails, or is made to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Up to 0.4 s before anything happens.
    Latency,
    /// No answer; after some time the connection ends.
    Stall,
    /// The connection is reset: before the request is taken in, in the middle of it, or in the
    /// middle of the answer.
    Reset,
    /// 500 with an error body, nothing done.
    ServerError,
    /// 503 `SlowDown` with `Retry-After: 1`, nothing done.
    SlowDown,
    /// The connection ends properly in the middle of the answer.
    Truncated,
    /// One byte of the answer's body is another.
    Corrupted,
    /// A PUT, POST or DELETE is done, and its answer lost; other requests are reset.
    LostAnswer,
    /// The connection to the server ends properly in the middle of the request's body; what it says
    /// to that comes back.
    TruncatedUpload,
    /// One byte of the request's body is another.
    CorruptedUpload,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Latency,
        Self::Stall,
        Self::Reset,
        Self::ServerError,
        Self::SlowDown,
        Self::Truncated,
        Self::Corrupted,
        Self::LostAnswer,
        Self::TruncatedUpload,
        Self::CorruptedUpload,
    ];

    /// Whether it hits what is sent to be stored: a server notices only if it compares.
    pub fn is_of_uploads(self) -> bool {
        matches!(self, Self::TruncatedUpload | Self::CorruptedUpload)
    }
}

/// Which faults, and how often.
#[derive(Debug, Clone)]
pub struct FaultOptions {
    /// Where they come from.
    pub seed: u64,
    /// Of a hundred requests.
    pub percent: u64,
    /// One of these each time.
    pub kinds: Vec<FaultKind>,
    /// Only requests with this in method, target and range; all with "".
    pub only: &'static str,
    /// How long a stalled connection stays open.
    pub stall: Duration,
}

/// What a relay does with requests from some moment on.
#[derive(Debug, Clone)]
pub enum Mood {
    /// What the seed says.
    Seeded,
    /// None is handed on, and each gets this answer.
    Answers(Recorded),
    /// None is handed on or answered.
    Silent,
}

/// What passed a relay with faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests that arrived.
    pub requests: u64,
    /// Of the request that came most often (same method, target and range): how often.
    pub most_alike: u64,
    /// Which one that was.
    pub most_alike_name: String,
    /// Requests that met a fault, by kind, ascending.
    pub met: Vec<(FaultKind, u64)>,
}

/// One request's fate, and the dice for its details.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) kind: Option<FaultKind>,
    pub(super) dice: Rng,
    pub(super) mood: Mood,
}

/// Chooses, and counts.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) options: FaultOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    requests: u64,
    alike: HashMap<String, u64>,
    met: HashMap<FaultKind, u64>,
    mood: Mood,
}

impl Faults {
    pub(super) fn new(options: FaultOptions) -> Self {
        let rng = Rng::seeded(options.seed);
        let (alike, met) = (HashMap::new(), HashMap::new());
        let state = State { rng, requests: 0, alike, met, mood: Mood::Seeded };
        Self { options, state: Mutex::new(state) }
    }

    pub(super) fn set(&self, mood: Mood) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).mood = mood;
    }

    /// For the request that has just arrived.
    pub(super) fn next(&self, name: String, has_body: bool) -> Fate {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.requests += 1;
        let meant = name.contains(self.options.only);
        *state.alike.entry(name).or_default() += 1;
        let mut dice = state.rng.fork();
        let kinds = &self.options.kinds;
        let hit = !kinds.is_empty() && dice.below(100) < self.options.percent;
        let kind = hit.then(|| {
            let at = dice.below(kinds.len() as u64);
            kinds[usize::try_from(at).expect("there are few")]
        });
        let kind = kind.filter(|kind| meant && (has_body || !kind.is_of_uploads()));
        if let Some(kind) = kind {
            *state.met.entry(kind).or_default() += 1;
        }
        Fate { kind, dice, mood: state.mood.clone() }
    }

    pub(super) fn counts(&self) -> FaultCounts {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let most = state.alike.iter().max_by_key(|(_, n)| **n);
        let mut met: Vec<_> = state.met.iter().map(|(kind, n)| (*kind, *n)).collect();
        met.sort_unstable();
        FaultCounts {
            requests: state.requests,
            most_alike: most.map_or(0, |(_, n)| *n),
            most_alike_name: most.map_or_else(String::new, |(name, _)| name.clone()),
            met,
        }
    }
}
