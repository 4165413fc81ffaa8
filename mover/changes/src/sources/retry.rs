//! How often, and after what wait, a server is asked again.
//!
//! A try that brought something new starts the count anew: a list of any length gets through a
//! server that ends each stream early. Without progress the number of tries is small, since what
//! looks like a passing failure may be permanent. It is smaller still for a server that nobody has
//! reached yet: an address that is wrong is far more likely then than a server that is away. The
//! first failure is said at once, and those that follow are counted aloud.

use chunkstore::Error;
use std::time::{Duration, Instant};

/// Longest wait while a server was never reached.
const START_WAIT: Duration = Duration::from_secs(3);

/// Bounds on asking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries without progress before giving up.
    pub tries_max: u32,
    /// The same for failures that are likely to be permanent.
    pub internal_tries_max: u32,
    /// Wait behind the first failure; doubled each time.
    pub wait_first_ms: u64,
    /// Longest wait, also where a server asks for more.
    pub wait_max_ms: u64,
    /// A server that was never reached is given up after this time.
    pub start_ms: u64,
    /// A server that says nothing for this long has failed.
    pub idle_ms: u64,
    /// One that goes on answering and says nothing new has failed after this long.
    pub nothing_new_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries_max: 6,
            internal_tries_max: 3,
            wait_first_ms: 500,
            wait_max_ms: 30_000,
            start_ms: 15_000,
            idle_ms: 60_000,
            nothing_new_ms: 60_000 * Self::NOTHING_NEW_FOR,
        }
    }
}

impl RetryPolicy {
    /// Answers without anything new may come for so many times the longest silence.
    pub const NOTHING_NEW_FOR: u64 = 10;

    /// Wait behind failure number `failures` (from 1) without progress; `asked` is what the server
    /// wants.
    pub(crate) fn wait(&self, failures: u32, asked: Option<Duration>) -> Duration {
        let doubled = 1u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
        let own = Duration::from_millis(self.wait_first_ms.saturating_mul(doubled));
        asked
            .unwrap_or(own)
            .max(own.min(Duration::from_millis(self.wait_first_ms)))
            .min(Duration::from_millis(self.wait_max_ms))
    }

    pub(crate) fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }

    pub(crate) fn nothing_new(&self) -> Duration {
        Duration::from_millis(self.nothing_new_ms)
    }
}

/// How patient a list still is with its server.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    policy: RetryPolicy,
    /// What to call the server.
    name: String,
    since: Instant,
    reached: bool,
    /// Since something new came.
    failures: u32,
    /// Something new came since the last failure.
    fresh: bool,
    /// What failed was said since.
    said: bool,
}

impl RetryBudget {
    pub(crate) fn new(policy: RetryPolicy, name: String) -> Self {
        let (since, reached, failures) = (Instant::now(), false, 0);
        Self { policy, name, since, reached, failures, fresh: false, said: false }
    }

    /// The server is there.
    pub(crate) fn reached(&mut self) {
        self.reached = true;
    }

    /// Whether it was never reached, and has not failed yet.
    pub(crate) fn is_at_start(&self) -> bool {
        !self.reached && self.failures == 0
    }

    /// Something new came.
    pub(crate) fn progress(&mut self) {
        (self.reached, self.failures, self.fresh, self.said) = (true, 0, true, false);
    }

    /// How long to wait behind a failure before asking again, or the error that ends it. `asked` is
    /// what the server wants.
    pub(crate) fn after(
        &mut self,
        error: Error,
        tries_max: u32,
        asked: Option<Duration>,
    ) -> Result<Duration, Error> {
        self.after_at(self.since.elapsed(), error, tries_max, asked)
    }

    fn after_at(
        &mut self,
        elapsed: Duration,
        error: Error,
        tries_max: u32,
        asked: Option<Duration>,
    ) -> Result<Duration, Error> {
        if tries_max == 0 {
            return Err(error);
        }
        self.failures += 1;
        let mut wait = self.policy.wait(self.failures, asked);
        let mut over = self.failures >= tries_max;
        if !self.reached {
            wait = wait.min(START_WAIT);
            over |= elapsed + wait > Duration::from_millis(self.policy.start_ms);
        }
        if over {
            return Err(self.counted(error));
        }
        let next = self.failures + 1;
        match (std::mem::take(&mut self.fresh), self.said) {
            // servers end long lists early as a matter of course
            (true, _) => tracing::info!("{error}; asked again"),
            (false, false) => {
                self.said = true;
                tracing::warn!("{error}; asked again, {tries_max} times in all");
            }
            (false, true) => tracing::warn!("{}: try {next} of {tries_max}", self.name),
        }
        Ok(wait)
    }

    fn counted(&self, error: Error) -> Error {
        let times = format!("it was asked {} times without progress", self.failures);
        match error.hint_text() {
            Some(hint) => {
                let hint = format!("{times}; {hint}");
                error.hint(hint)
            }
            None => error.hint(times),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_follow_the_server() {
        let policy = RetryPolicy::default();
        let ms = |failures, asked| policy.wait(failures, asked).as_millis();
        assert_eq!(
            [1, 2, 3, 7, 8, 200].map(|n| ms(n, None)),
            [500, 1000, 2000, 30_000, 30_000, 30_000]
        );
        assert_eq!(ms(1, Some(Duration::from_secs(7))), 7000);
        assert_eq!(ms(1, Some(Duration::from_secs(3600))), 30_000);
        assert_eq!(ms(3, Some(Duration::ZERO)), 500);
    }

    #[test]
    fn a_server_that_was_never_reached_is_given_up_sooner() {
        let error = || Error::new(chunkstore::ErrorKind::Unavailable, "ask", "no").hint("look");
        let policy = RetryPolicy { tries_max: 1000, ..RetryPolicy::default() };
        let start = Duration::from_millis(policy.start_ms);
        let tries = |policy: RetryPolicy, reached: bool, asked| {
            let mut retries = RetryBudget::new(policy, "x".into());
            if reached {
                retries.reached();
            }
            let mut elapsed = Duration::ZERO;
            for tries in 1.. {
                match retries.after_at(elapsed, error(), policy.tries_max, asked) {
                    Ok(wait) => elapsed += wait,
                    Err(error) => return (tries, elapsed, error.to_string()),
                }
            }
            unreachable!("it ends")
        };
        let (count, elapsed, words) = tries(policy, false, None);
        assert!((5..10).contains(&count) && elapsed <= start, "{count} in {elapsed:?}");
        assert_eq!(words, format!("ask: no; it was asked {count} times without progress; look"));
        assert_eq!(tries(policy, true, None).0, 1000);
        // one that is there and wants an hour each time
        let hour = Some(Duration::from_secs(3600));
        let (count, elapsed, _) = tries(RetryPolicy::default(), true, hour);
        assert_eq!((count, elapsed.as_secs()), (6, 5 * 30));
        let mut retries = RetryBudget::new(policy, "x".into());
        retries.progress();
        assert!(retries.after_at(start * 2, error(), 2, None).is_ok(), "its list goes on");
        assert!(retries.after_at(start * 2, error(), 2, None).is_err());
        retries.progress();
        assert!(retries.after_at(start * 2, error(), 2, None).is_ok(), "counted anew");
        assert!(retries.after_at(start, error(), 0, None).is_err(), "of no use");
    }
}
