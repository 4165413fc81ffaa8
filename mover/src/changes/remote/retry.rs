//! How often, and after what wait, a server is asked again.
//!
//! A try that brought something new starts the count anew: a list of any length gets through a
//! server that ends each stream early. Without progress the number of tries is small, since what
//! looks like a passing failure may be permanent.

use std::time::Duration;

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
    /// A server that says nothing for this long has failed.
    pub idle_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries_max: 6,
            internal_tries_max: 3,
            wait_first_ms: 500,
            wait_max_ms: 30_000,
            idle_ms: 60_000,
        }
    }
}

impl RetryPolicy {
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
}
