//! Stillness: since when nothing of an operation has moved.
//!
//! Movement is any change of its counters, of its phase, of the list of changed blocks that comes
//! in, and of the number of requests to the store, but for those that a lease's heartbeat makes by
//! itself. Pure: it is told the time.

use chunkstore::{Store, store::RequestCounts};
use mover_engine::run::{Counter, Progress};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many looks there are in the time that is allowed.
const LOOKS: u32 = 20;

/// What was seen of an operation at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    counters: [u64; 11],
    phase: u8,
    requests: u64,
}

impl Seen {
    /// `about_locks`: requests about single objects' locks, which are all that a run makes while it
    /// locks what a backup needs.
    fn of(progress: &Progress, requests: RequestCounts, about_locks: u64) -> Self {
        let p = progress;
        let counters = [
            &p.total_bytes,
            &p.done_bytes,
            &p.read_bytes,
            &p.zero_bytes,
            &p.unchanged_bytes,
            &p.reused_bytes,
            &p.new_bytes,
            &p.stored_bytes,
            &p.uploaded_bytes,
            &p.written_bytes,
            // what is endless there has an end of its own
            &p.listed,
        ];
        let RequestCounts { gets, creates, lists, deletes, .. } = requests;
        Self {
            counters: counters.map(Counter::get),
            phase: progress.phase() as u8,
            // a heartbeat looks its lease up and puts it again
            requests: gets + creates + lists + deletes + about_locks,
        }
    }
}

/// Since when nothing has changed.
#[derive(Debug)]
struct Stillness {
    last: Seen,
    since: Instant,
}

impl Stillness {
    fn see(&mut self, now: Instant, seen: Seen) -> Duration {
        if seen != self.last {
            *self = Self { last: seen, since: now };
        }
        now.saturating_duration_since(self.since)
    }
}

/// An operation that is looked at.
#[derive(Debug)]
pub(super) struct Watched {
    limit: Duration,
    progress: Arc<Progress>,
    store: Store,
    stillness: Stillness,
    next: Instant,
}

impl Watched {
    pub(super) fn new(
        limit: Duration,
        progress: &Arc<Progress>,
        store: &Store,
        now: Instant,
    ) -> Self {
        let (progress, store) = (Arc::clone(progress), store.clone());
        let last = Seen::of(&progress, store.counts(), store.requests_about_locks());
        let stillness = Stillness { last, since: now };
        Self { limit, progress, store, stillness, next: now + limit / LOOKS }
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Looks, if it is time to; the time without movement that is too long, if it is.
    pub(super) fn look(&mut self, now: Instant) -> Option<Duration> {
        if now < self.next {
            return None;
        }
        self.next = now + self.limit / LOOKS;
        let (counts, locks) = (self.store.counts(), self.store.requests_about_locks());
        let still = self.stillness.see(now, Seen::of(&self.progress, counts, locks));
        (still >= self.limit).then_some(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_movement_starts_the_time_anew() {
        let progress = Progress::new();
        let counts = RequestCounts::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stillness = Stillness { last: Seen::of(&progress, counts, 0), since: start };
        let still = |s: &mut Stillness, seconds, counts| {
            s.see(at(seconds), Seen::of(&progress, counts, 0)).as_secs()
        };
        assert_eq!(still(&mut stillness, 7, counts), 7);
        progress.read_bytes.add(1);
        assert_eq!(still(&mut stillness, 8, counts), 0);
        progress.set_phase(mover_engine::run::Phase::Finishing);
        assert_eq!(still(&mut stillness, 9, counts), 0);
        progress.listed.add(1);
        assert_eq!(still(&mut stillness, 9, counts), 0);
        // a heartbeat is no movement
        let beat = RequestCounts { heads: 3, puts: 2, ..counts };
        assert_eq!(still(&mut stillness, 12, beat), 3);
        assert_eq!(still(&mut stillness, 13, RequestCounts { gets: 1, ..beat }), 0);
        // a lock is
        let locking = Seen::of(&progress, RequestCounts { gets: 1, ..beat }, 1);
        assert_eq!(stillness.see(at(15), locking), Duration::ZERO);
    }
}
