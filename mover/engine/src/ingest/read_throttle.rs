//! The rate at which a backup reads its source at most: `--limit-read`.

use super::stop::STOP_POLL;
use chunkstore::store::RateLimiter;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Whoever reads waits here for its turn. Without a limit nobody waits.
#[derive(Debug)]
pub(crate) struct ReadThrottle {
    begun: Instant,
    limiter: Option<Mutex<RateLimiter>>,
}

impl ReadThrottle {
    pub(crate) fn new(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self {
            begun: Instant::now(),
            limiter: bytes_per_second.map(|rate| Mutex::new(RateLimiter::new(rate))),
        }
    }

    /// Waits until so many bytes may be read; false as soon as `over` says that nobody needs them
    /// any more.
    pub(crate) fn wait(&self, bytes: u64, over: impl Fn() -> bool) -> bool {
        let Some(limiter) = &self.limiter else { return true };
        let now = self.begun.elapsed();
        let wait = limiter.lock().unwrap_or_else(PoisonError::into_inner).book(now, bytes);
        let until = now.saturating_add(wait);
        while !over() {
            let left = until.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return true;
            }
            std::thread::park_timeout(left.min(STOP_POLL));
        }
        false
    }
}
