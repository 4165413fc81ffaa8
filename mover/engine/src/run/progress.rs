//! How far an operation is: counters that it adds to and others read. They are shown, and nothing
//! of the data is decided by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A counter that many threads add to and one reads to show it.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Replaces the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an operation is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Opening things, looking for a parent, reading a changed-block list, planning.
    #[default]
    Planning,
    /// Moving data.
    Moving,
    /// Comparing what was written, or what is stored.
    Verifying,
    /// Flushing a device, writing the last packs, the segment and the manifest.
    Finishing,
}

impl Phase {
    /// One word for a person.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Moving => "moving",
            Self::Verifying => "verifying",
            Self::Finishing => "finishing",
        }
    }
}

/// How far an operation is. All counts are bytes of the volume unless said otherwise.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    /// What the plan says is to be gone through; 0 while it is not known.
    pub total_bytes: Counter,
    /// How much of `total_bytes` is done, whatever came of it.
    pub done_bytes: Counter,
    /// Read from the device, or from the store by a restore.
    pub read_bytes: Counter,
    /// Found to be zero, or known to be zero without reading.
    pub zero_bytes: Counter,
    /// Equal to the parent's, or not touched because the list does not name it.
    pub unchanged_bytes: Counter,
    /// Stored before, by this run or another backup.
    pub reused_bytes: Counter,
    /// Not stored before.
    pub new_bytes: Counter,
    /// `new_bytes` after compression and sealing.
    pub stored_bytes: Counter,
    /// Bytes that the store has confirmed.
    pub uploaded_bytes: Counter,
    /// Written to a target by a restore.
    pub written_bytes: Counter,
    /// Pieces of a changed-block list that have come, and chunks of an existing file that were
    /// looked at before it may be overwritten; no bytes, and shown to nobody.
    pub listed: Counter,
}

impl mover_changes::Movement for Progress {
    fn moved(&self) {
        self.listed.add(1);
    }
}

impl Progress {
    /// All counters zero.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Says what is being done now.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// What is being done now.
    pub fn phase(&self) -> Phase {
        const ALL: [Phase; 4] =
            [Phase::Planning, Phase::Moving, Phase::Verifying, Phase::Finishing];
        let now = self.phase.load(Ordering::Relaxed);
        ALL.into_iter().find(|p| *p as u8 == now).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_comes_back() {
        let progress = Progress::new();
        assert_eq!(progress.phase(), Phase::Planning);
        for phase in [Phase::Moving, Phase::Verifying, Phase::Finishing, Phase::Planning] {
            progress.set_phase(phase);
            assert_eq!(progress.phase(), phase);
        }
    }
}
