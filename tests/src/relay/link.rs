//! One direction of a line that many connections share.

use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What may be booked ahead of the line, as a router's queue holds it: timers wake a millisecond
/// late, and the line must not run dry meanwhile.
const QUEUE: Duration = Duration::from_millis(5);
/// What a piece takes of the line, at most: connections take turns that often.
const TURN: Duration = Duration::from_millis(2);
/// Bounds of a piece.
const QUANTUM_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=64 << 10;

/// How one direction of a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// From one end to the other.
    pub delay: Duration,
    /// Payload of all connections together; `None` has no limit.
    pub bytes_per_second: Option<u64>,
}

/// Virtual time of a line: when all that was booked has left it.
#[derive(Debug)]
pub(super) struct RateLimiter {
    nanos_per_mib: u128,
    free_at: Instant,
}

impl RateLimiter {
    pub(super) fn new(bytes_per_second: Option<u64>, now: Instant) -> Self {
        let nanos_per_mib = bytes_per_second
            .map_or(0, |rate| (1_000_000_000_u128 << 20).div_ceil(u128::from(rate.max(1))));
        Self { nanos_per_mib, free_at: now }
    }

    /// How much is booked ahead.
    pub(super) fn ahead(&self, now: Instant) -> Duration {
        self.free_at.saturating_duration_since(now)
    }

    /// Books bytes that are there at `now`; gives when the last of them leaves. A line that was
    /// idle has saved nothing up.
    pub(super) fn book(&mut self, now: Instant, bytes: usize) -> Instant {
        let nanos = (self.nanos_per_mib * bytes as u128).div_ceil(1 << 20);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(now) + takes;
        self.free_at
    }
}

/// One direction, shared.
#[derive(Debug)]
pub(super) struct Link {
    delay: Duration,
    quantum_bytes: usize,
    /// Held while waiting for the line: the lock is fair, so connections take turns.
    pace: Mutex<RateLimiter>,
}

impl Link {
    pub(super) fn new(options: LinkOptions) -> Self {
        let rate = options.bytes_per_second.unwrap_or(u64::MAX);
        let of_a_turn = u128::from(rate) * TURN.as_millis() / 1000;
        let (least, most) = (*QUANTUM_BYTES.start(), *QUANTUM_BYTES.end());
        let quantum = u64::try_from(of_a_turn).unwrap_or(u64::MAX).clamp(least, most);
        Self {
            delay: options.delay,
            quantum_bytes: usize::try_from(quantum).expect("64 KiB fit"),
            pace: Mutex::new(RateLimiter::new(options.bytes_per_second, Instant::now())),
        }
    }

    /// From one end to the other.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    /// Most bytes that may be booked at once.
    pub(super) fn quantum_bytes(&self) -> usize {
        self.quantum_bytes
    }

    /// Waits for a turn on the line; gives when these bytes arrive at its other end.
    pub(super) async fn admit(&self, bytes: usize) -> Instant {
        let mut pace = self.pace.lock().await;
        let ahead = pace.ahead(Instant::now());
        if ahead > QUEUE {
            tokio::time::sleep(ahead - QUEUE).await;
        }
        pace.book(Instant::now(), bytes) + self.delay
    }
}
