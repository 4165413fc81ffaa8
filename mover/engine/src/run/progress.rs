//! How far an operation is: counters that it adds to and others read. They are shown, and nothing
//! of the data is decided by them.
//!
//! Each step that gets on is movement, whatever it counts: a run whose movement stands still hangs.
//! Requests to the store are counted there (`Store::movement`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A counter that many threads add to and one reads to show it.
#[derive(Debug)]
pub struct Counter {
    value: AtomicU64,
    movement: Arc<AtomicU64>,
}

impl Counter {
    fn of(movement: &Arc<AtomicU64>) -> Self {
        Self { value: AtomicU64::new(0), movement: Arc::clone(movement) }
    }

    /// Adds `n`; movement unless that is nothing.
    pub fn add(&self, n: u64) {
        if n > 0 {
            self.value.fetch_add(n, Ordering::Relaxed);
            count(&self.movement);
        }
    }

    /// Replaces the value; movement if it is another one.
    pub fn set(&self, n: u64) {
        if self.value.swap(n, Ordering::Relaxed) != n {
            count(&self.movement);
        }
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

fn count(movement: &AtomicU64) {
    movement.fetch_add(1, Ordering::Relaxed);
}

/// What an operation is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Opening things, looking for a parent, reading a changed-block list, planning.
    #[default]
    Planning,
    /// Comparing a target with what is to be written.
    Comparing,
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
            Self::Comparing => "comparing",
            Self::Moving => "moving",
            Self::Verifying => "verifying",
            Self::Finishing => "finishing",
        }
    }
}

/// How far an operation is. All counts are bytes of the volume unless said otherwise.
#[derive(Debug)]
pub struct Progress {
    movement: Arc<AtomicU64>,
    phase: AtomicU8,
    /// Parts that go through bytes of their own, one after the other, such as a restore and its
    /// reading back; 0 counts as one.
    pub parts: Counter,
    /// Those of them that have ended.
    pub parts_done: Counter,
    /// What the plan says is to be gone through in this part; 0 while it is not known.
    pub total_bytes: Counter,
    /// How much of `total_bytes` is done, whatever came of it.
    pub done_bytes: Counter,
    /// Read from the device, or from the store by a restore.
    pub read_bytes: Counter,
    /// Found to be zero, or known to be zero without reading.
    pub zero_bytes: Counter,
    /// Equal to the parent's, not touched because the list does not name it, or on a target already.
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
    /// Sent to clients that are served.
    pub served_bytes: Counter,
    /// Reads of clients.
    pub served_reads: Counter,
    /// Time that these took, one after the other, in microseconds.
    pub served_micros: Counter,
    /// Requests of clients that failed.
    pub served_errors: Counter,
    /// Writes, zeros and trims of clients.
    pub served_changes: Counter,
    /// Bytes that clients wrote.
    pub served_written_bytes: Counter,
    /// Flushes of clients.
    pub served_flushes: Counter,
    /// Bytes of volumes that are in overlays.
    pub overlay_bytes: Counter,
    /// Volumes that are served.
    pub exports: Counter,
    /// Reads that wait for a store that does not answer.
    pub store_waits: Counter,
    /// Clients that are there.
    pub clients: Counter,
    /// Entries that were wanted, and kept or under way.
    pub cache_hits: Counter,
    /// Entries that came from the disk cache.
    pub disk_hits: Counter,
    /// Entries that were wanted, and not there.
    pub cache_misses: Counter,
}

/// A piece of a changed-block list has come. What is endless there has an end of its own.
impl mover_changes::Movement for Progress {
    fn moved(&self) {
        count(&self.movement);
    }
}

impl Default for Progress {
    fn default() -> Self {
        let movement = Arc::<AtomicU64>::default();
        let counter = || Counter::of(&movement);
        Self {
            phase: AtomicU8::new(Phase::default() as u8),
            parts: counter(),
            parts_done: counter(),
            total_bytes: counter(),
            done_bytes: counter(),
            read_bytes: counter(),
            zero_bytes: counter(),
            unchanged_bytes: counter(),
            reused_bytes: counter(),
            new_bytes: counter(),
            stored_bytes: counter(),
            uploaded_bytes: counter(),
            written_bytes: counter(),
            served_bytes: counter(),
            served_reads: counter(),
            served_micros: counter(),
            served_errors: counter(),
            served_changes: counter(),
            served_written_bytes: counter(),
            served_flushes: counter(),
            overlay_bytes: counter(),
            exports: counter(),
            store_waits: counter(),
            clients: counter(),
            cache_hits: counter(),
            disk_hits: counter(),
            cache_misses: counter(),
            movement,
        }
    }
}

impl Progress {
    /// All counters zero.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A step was done that no counter shows.
    pub fn moved(&self) {
        count(&self.movement);
    }

    /// Grows with each step that gets on: what a counter counts, a change of phase, and
    /// [`moved`](Self::moved).
    pub fn movement(&self) -> u64 {
        self.movement.load(Ordering::Relaxed)
    }

    /// Says what is being done now.
    pub fn set_phase(&self, phase: Phase) {
        if self.phase.swap(phase as u8, Ordering::Relaxed) != phase as u8 {
            count(&self.movement);
        }
    }

    /// Ends a part and begins the next, which goes through so many bytes.
    pub fn begin_part(&self, phase: Phase, total_bytes: u64) {
        self.parts_done.add(1);
        self.done_bytes.set(0);
        self.total_bytes.set(total_bytes);
        self.set_phase(phase);
    }

    /// What is being done now.
    pub fn phase(&self) -> Phase {
        const ALL: [Phase; 5] =
            [Phase::Planning, Phase::Comparing, Phase::Moving, Phase::Verifying, Phase::Finishing];
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
        for phase in
            [Phase::Comparing, Phase::Moving, Phase::Verifying, Phase::Finishing, Phase::Planning]
        {
            progress.set_phase(phase);
            assert_eq!(progress.phase(), phase);
        }
    }

    #[test]
    fn each_step_is_movement_and_nothing_else_is() {
        let progress = Progress::new();
        let mut last = 0;
        let mut steps = |expected: u64, step: &dyn Fn(&Progress)| {
            step(&progress);
            let now = progress.movement();
            assert_eq!(now - std::mem::replace(&mut last, now), expected);
        };
        let counters: [fn(&Progress) -> &Counter; 10] = [
            |p| &p.total_bytes,
            |p| &p.done_bytes,
            |p| &p.read_bytes,
            |p| &p.zero_bytes,
            |p| &p.unchanged_bytes,
            |p| &p.reused_bytes,
            |p| &p.new_bytes,
            |p| &p.stored_bytes,
            |p| &p.uploaded_bytes,
            |p| &p.written_bytes,
        ];
        for counter in counters {
            steps(1, &|p| counter(p).add(7));
            steps(0, &|p| counter(p).add(0));
            steps(0, &|p| counter(p).set(7));
            steps(1, &|p| counter(p).set(3));
            steps(0, &|p| assert_eq!(counter(p).get(), 3));
        }
        steps(1, &|p| p.set_phase(Phase::Moving));
        steps(0, &|p| p.set_phase(Phase::Moving));
        steps(1, &Progress::moved);
        steps(1, &<Progress as mover_changes::Movement>::moved);
    }
}
