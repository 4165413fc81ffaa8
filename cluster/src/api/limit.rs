//! How many requests go to the API server: a bucket of tokens and a cap of requests in flight, both
//! shared by all clones of an `Api`, both first come, first served.
//!
//! A request takes its place among those in flight first, and then its token. So a server that
//! answers slowly does not let tokens pile up in requests that are then sent all at once. Whoever
//! gives up waiting takes nothing: neither a place nor a token. An urgent request, of a driver that
//! holds an application still, waits for nobody; its token is owed, and the others wait for it.
//!
//! It must not know what a request is about.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Queue, OwnedSemaphorePermit, Semaphore};

/// How many requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSettings {
    /// Requests per second, in the long run.
    pub per_second: u32,
    /// Requests at once, after a pause.
    pub burst: u32,
    /// Requests without an answer yet.
    pub in_flight: u32,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self { per_second: 40, burst: 50, in_flight: 32 }
    }
}

/// Tokens, counted in the time that they take to come.
#[derive(Debug)]
struct Bucket {
    /// Until one more token has come.
    each: Duration,
    most: Duration,
    /// Tokens that are there, or the time until the debt is paid.
    credit: Duration,
    debt: Duration,
    at: Instant,
}

impl Bucket {
    fn new(settings: LimitSettings, now: Instant) -> Self {
        let each = Duration::from_secs(1) / settings.per_second.max(1);
        let most = each * settings.burst.max(1);
        Self { each, most, credit: most, debt: Duration::ZERO, at: now }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let paid = passed.min(self.debt);
        self.debt -= paid;
        self.credit = self.credit.saturating_add(passed - paid).min(self.most);
    }

    /// Takes a token, or says how long until there is one.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        match self.credit.checked_sub(self.each) {
            Some(left) => {
                self.credit = left;
                Ok(())
            }
            None => Err(self.debt + self.each - self.credit),
        }
    }

    /// Takes one that may not be there yet.
    fn owe(&mut self, now: Instant) {
        self.fill(now);
        let owed = self.each.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(self.each);
        self.debt += owed;
    }
}

/// What all requests go through.
#[derive(Debug)]
pub(super) struct Limit {
    bucket: Mutex<Bucket>,
    /// Held by the one that waits for the next token; the others stand in line for it.
    turn: Queue<()>,
    places: Arc<Semaphore>,
}

/// A request that may be sent; it ends with the answer.
#[derive(Debug)]
pub(super) struct Permit {
    _place: Option<OwnedSemaphorePermit>,
}

impl Limit {
    pub(super) fn new(settings: LimitSettings) -> Self {
        let places = usize::try_from(settings.in_flight.max(1)).unwrap_or(usize::MAX);
        Self {
            bucket: Mutex::new(Bucket::new(settings, Instant::now())),
            turn: Queue::new(()),
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
        }
    }

    fn bucket<T>(&self, act: impl FnOnce(&mut Bucket) -> T) -> T {
        act(&mut self.bucket.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until one more request may be sent.
    pub(super) async fn permit(&self) -> Permit {
        // Nobody closes it.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let _turn = self.turn.lock().await;
        while let Err(wait) = self.bucket(|bucket| bucket.take(Instant::now())) {
            tokio::time::sleep(wait).await;
        }
        Permit { _place: place }
    }

    /// One that cannot wait: it counts all the same.
    pub(super) fn urgent(&self) -> Permit {
        self.bucket(|bucket| bucket.owe(Instant::now()));
        Permit { _place: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;
    use futures::stream::FuturesUnordered;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    proptest! {
        /// In any time there are no more than burst and rate allow, urgent ones included, but for
        /// those that are owed still; and whoever waits as long as is said gets a token.
        #[test]
        fn no_time_has_more_requests_than_its_tokens(
            steps in prop::collection::vec((0_u64..400, 0_u8..4), 1..300),
            per_second in 1_u32..100,
            burst in 1_u32..20,
        ) {
            let settings = LimitSettings { per_second, burst, in_flight: 1 };
            let start = Instant::now();
            let mut now = start;
            let mut bucket = Bucket::new(settings, start);
            let each = SECOND / per_second;
            let mut granted = 0_u32;
            for (wait, kind) in steps {
                now += Duration::from_millis(wait);
                if kind == 0 {
                    bucket.owe(now);
                    granted += 1;
                } else {
                    let said = bucket.take(now);
                    if let Err(wait) = said {
                        prop_assert!(bucket.take(now + wait - Duration::from_nanos(1)).is_err());
                        now += wait;
                        prop_assert_eq!(bucket.take(now), Ok(()));
                    }
                    granted += 1;
                }
                let most = each * burst + (now - start) + bucket.debt;
                prop_assert!(each * granted <= most, "{granted} in {:?}", now - start);
            }
        }
    }

    #[test]
    fn an_idle_bucket_holds_one_burst_and_no_more() {
        let start = Instant::now();
        let settings = LimitSettings { per_second: 50, burst: 100, in_flight: 1 };
        let mut bucket = Bucket::new(settings, start);
        let later = start + 3600 * SECOND;
        assert_eq!((0..1000).filter(|_| bucket.take(later).is_ok()).count(), 100);
        assert_eq!(bucket.take(later), Err(Duration::from_millis(20)));
        // A clock that goes back gives nothing, and takes nothing.
        assert_eq!(bucket.take(start), Err(Duration::from_millis(20)));
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn who_comes_first_is_served_first_and_none_is_left() {
        let settings = LimitSettings { per_second: 2000, burst: 1, in_flight: 3 };
        block_on(async {
            let limit = Limit::new(settings);
            // Answers may come in any order; requests go out in theirs.
            let served = std::cell::RefCell::new(Vec::new());
            let one = async |number: usize| {
                let permit = limit.permit().await;
                served.borrow_mut().push(number);
                // The answer takes its time.
                tokio::task::yield_now().await;
                drop(permit);
            };
            let all: FuturesUnordered<_> = (0..200).map(one).collect();
            all.collect::<Vec<()>>().await;
            assert_eq!(*served.borrow(), (0..200).collect::<Vec<_>>());
        });
    }

    #[test]
    fn no_more_are_in_flight_than_may_be() {
        let settings = LimitSettings { per_second: 1_000_000, burst: 1000, in_flight: 4 };
        block_on(async {
            let limit = Limit::new(settings);
            let mut held: Vec<Permit> = Vec::new();
            for _ in 0..4 {
                held.push(limit.permit().await);
            }
            let mut fifth = Box::pin(limit.permit());
            assert!(futures::poll!(fifth.as_mut()).is_pending());
            // Whoever cannot wait does not.
            let urgent = limit.urgent();
            assert!(futures::poll!(fifth.as_mut()).is_pending());
            held.pop();
            drop((fifth.await, urgent));
        });
    }

    /// One that gives up while it waits for its token holds up nobody.
    #[test]
    fn whoever_gives_up_takes_nothing() {
        // A token in an hour, and one that is there.
        let settings = LimitSettings { per_second: 1, burst: 1, in_flight: 2 };
        block_on(async {
            let limit = Limit::new(settings);
            drop(limit.permit().await);
            for _ in 0..100 {
                let mut waits = Box::pin(limit.permit());
                assert!(futures::poll!(waits.as_mut()).is_pending());
            }
            assert_eq!(limit.places.available_permits(), 2);
            assert!(limit.turn.try_lock().is_ok());
            assert!(limit.bucket(|bucket| bucket.debt).is_zero());
        });
    }
}
