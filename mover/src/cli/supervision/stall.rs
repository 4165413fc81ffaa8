//! Stillness: since when nothing of an operation has moved.
//!
//! Movement is counted where it happens: the operation's progress counts its steps, and its store
//! the requests that it makes, without those that a heartbeat makes by itself. Pure: it is told the
//! time.

use chunkstore::Store;
use mover_engine::run::Progress;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many looks there are in the time that is allowed.
const LOOKS: u32 = 20;

/// An operation that is looked at.
#[derive(Debug)]
pub(super) struct Watched {
    limit: Duration,
    progress: Arc<Progress>,
    store: Store,
    /// All movement at the last look.
    last: u64,
    /// When that was seen first.
    since: Instant,
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
        let last = movement(&progress, &store);
        Self { limit, progress, store, last, since: now, next: now + limit / LOOKS }
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
        (self.still(now) >= self.limit).then_some(self.limit)
    }

    fn still(&mut self, now: Instant) -> Duration {
        let seen = movement(&self.progress, &self.store);
        if seen != self.last {
            (self.last, self.since) = (seen, now);
        }
        now.saturating_duration_since(self.since)
    }
}

fn movement(progress: &Progress, store: &Store) -> u64 {
    progress.movement().wrapping_add(store.movement())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover_engine::run::Phase;
    use object_store::memory::InMemory;
    use object_store::path::Path;

    #[tokio::test]
    async fn any_movement_starts_the_time_anew() {
        let (progress, start) = (Progress::new(), Instant::now());
        let store = Store::new(Arc::new(InMemory::new()), Path::default(), "memory:///");
        let mut watched = Watched::new(Duration::from_secs(20), &progress, &store, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut still = |seconds| watched.still(at(seconds)).as_secs();
        assert_eq!(still(7), 7);
        progress.read_bytes.add(1);
        assert_eq!(still(8), 0);
        progress.set_phase(Phase::Finishing);
        assert_eq!(still(9), 0);
        progress.moved();
        assert_eq!(still(10), 0);
        // a heartbeat is no movement, whatever it asks for
        let background = store.in_background();
        background.put("lease", "a beat").await.unwrap();
        background.head("lease").await.unwrap();
        background.get("lease").await.unwrap();
        background.list("").await.unwrap();
        background.create("another", "a beat".into()).await.unwrap();
        background.delete("another").await.unwrap();
        assert_eq!(still(13), 3);
        // a request of the operation is
        store.head("lease").await.unwrap();
        assert_eq!(still(14), 0);
        assert_eq!(watched.look(at(33)), None);
        assert_eq!(watched.look(at(34)), Some(Duration::from_secs(20)));
    }
}
