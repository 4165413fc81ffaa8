//! Limits on the rate of transfers.
//!
//! One [`RateLimiter`] a direction is shared by all transfers: it is a line in virtual time that each of
//! them books. A transfer begins when what was booked before it has had its time, so the sum never
//! runs ahead of the rate by more than one transfer. Small reads are booked, but wait for each other
//! only. What leases and commits write never waits, small or not: a heartbeat or a manifest must not
//! queue behind packs.
//!
//! What is downloaded is read from the connection no faster than the rate, piece by piece
//! (`store/body.rs`), so the server is held back evenly. An upload can only be held back as a whole, since `object_store`
//! takes its body at once and has no hook in sending it: then smaller packs make the pace even.

use super::{BULK_BYTES_MIN, Store, retry_budget};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shorter pauses are put off until they add up: a timer may take so much longer that the rate
/// would be lost in them.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Time in which a line was idle that may be made up for: what timers and requests take.
const IDLE_SAVED: Duration = Duration::from_millis(50);

/// Smallest and largest read of a file that is paced.
const FILE_PIECE_MIN: u64 = 64 << 10;
const FILE_PIECE_MAX: u64 = 4 << 20;

/// Bytes a second that transfers may have; `None` has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferLimits {
    /// To the store.
    pub upload: Option<NonZeroU64>,
    /// From the store.
    pub download: Option<NonZeroU64>,
}

/// A line with a rate, in virtual time. Pure: it is told what time it is.
#[derive(Debug, Clone)]
pub struct RateLimiter {
    bytes_per_second: NonZeroU64,
    /// When all that was booked has had its time, since the start.
    free_at: Duration,
}

impl RateLimiter {
    /// A line that is free.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Self { bytes_per_second, free_at: Duration::ZERO }
    }

    /// Books `bytes` at `now`, a time since any fixed start; gives how long to wait before they may
    /// be moved. Of the time in which the line was idle only the last 50 ms are saved up.
    pub fn book(&mut self, now: Duration, bytes: u64) -> Duration {
        let wait = self.free_at.saturating_sub(now);
        let from = self.free_at.max(now.saturating_sub(IDLE_SAVED));
        self.free_at = from.saturating_add(time_for(bytes, self.bytes_per_second));
        wait
    }
}

/// What so many bytes take.
fn time_for(bytes: u64, bytes_per_second: NonZeroU64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.get());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A pace and the clock that it goes by, for all transfers of one direction.
#[derive(Debug)]
pub(super) struct Throttle {
    rate: NonZeroU64,
    begun: Instant,
    line: Mutex<Line>,
}

/// All transfers of one direction. Pure, as [`RateLimiter`] is.
#[derive(Debug)]
struct Line {
    all: RateLimiter,
    /// Small reads among themselves.
    small: RateLimiter,
}

impl Line {
    fn new(rate: NonZeroU64) -> Self {
        Self { all: RateLimiter::new(rate), small: RateLimiter::new(rate) }
    }

    /// Books a transfer; gives the pause to make before it begins.
    fn turn(&mut self, now: Duration, bytes: u64) -> Duration {
        let mut wait = self.all.book(now, bytes);
        if bytes < BULK_BYTES_MIN {
            wait = self.small.book(now, bytes);
        }
        worth_it(wait)
    }
}

/// What has come of one transfer. Pure, as [`RateLimiter`] is.
#[derive(Debug)]
struct Arriving {
    rate: NonZeroU64,
    bytes: u64,
}

impl Arriving {
    /// Some came, so long after the transfer has begun; gives the pause to make before more is
    /// taken: what has come is paid for.
    fn take(&mut self, elapsed: Duration, bytes: u64) -> Duration {
        self.bytes = self.bytes.saturating_add(bytes);
        worth_it(time_for(self.bytes, self.rate).saturating_sub(elapsed))
    }
}

fn worth_it(pause: Duration) -> Duration {
    if pause < PAUSE_MIN { Duration::ZERO } else { pause }
}

async fn pause(pause: Duration) {
    if !pause.is_zero() {
        retry_budget::pause(pause).await;
    }
}

/// Both directions.
#[derive(Debug, Clone, Default)]
pub(super) struct Throttles {
    pub(super) upload: Option<Arc<Throttle>>,
    pub(super) download: Option<Arc<Throttle>>,
}

impl Throttle {
    pub(super) fn new(rate: NonZeroU64) -> Arc<Self> {
        Arc::new(Self { rate, begun: Instant::now(), line: Mutex::new(Line::new(rate)) })
    }

    /// Books what does not wait: those that come after it wait the longer.
    pub(super) fn charge(&self, bytes: u64) {
        let now = self.begun.elapsed();
        self.line.lock().unwrap_or_else(PoisonError::into_inner).all.book(now, bytes);
    }

    /// Waits until a transfer of so many bytes may begin.
    pub(super) async fn turn(&self, bytes: u64) {
        let now = self.begun.elapsed();
        let wait = self.line.lock().unwrap_or_else(PoisonError::into_inner).turn(now, bytes);
        pause(wait).await;
    }

    /// Of a body, which is to be taken from the connection no faster than the rate.
    pub(super) fn pace(&self) -> Pace {
        Pace { begun: Instant::now(), arriving: Arriving { rate: self.rate, bytes: 0 } }
    }

    /// Bytes that are read from a file at once: as many as the shortest pause pays for. The stream
    /// that `object_store` makes of a file has pieces of 8 KiB, a call of another thread for each,
    /// and never ends if the file becomes shorter meanwhile.
    pub(super) fn piece(&self) -> u64 {
        let paid = u128::from(self.rate.get()) * PAUSE_MIN.as_nanos() / 1_000_000_000;
        u64::try_from(paid).unwrap_or(u64::MAX).clamp(FILE_PIECE_MIN, FILE_PIECE_MAX)
    }
}

/// How much of a body has come, since when.
#[derive(Debug)]
pub(super) struct Pace {
    begun: Instant,
    arriving: Arriving,
}

impl Pace {
    /// So many more bytes came: waits until they are paid for.
    pub(super) async fn came(&mut self, bytes: u64) {
        pause(self.arriving.take(self.begun.elapsed(), bytes)).await;
    }
}

impl Store {
    /// The same objects, with limits on the rate; they hold for this and its clones together.
    #[must_use]
    pub fn limited(mut self, limits: TransferLimits) -> Self {
        self.throttles = Throttles {
            upload: limits.upload.map(Throttle::new),
            download: limits.download.map(Throttle::new),
        };
        self
    }

    /// The limits that hold.
    pub fn limits(&self) -> TransferLimits {
        let rate = |throttle: &Option<Arc<Throttle>>| throttle.as_ref().map(|t| t.rate);
        TransferLimits {
            upload: rate(&self.throttles.upload),
            download: rate(&self.throttles.download),
        }
    }

    /// The slowest rate of the two that is asked for; a transfer at it is not stuck.
    pub(super) fn slowest_limit(&self) -> Option<u64> {
        let limits = self.limits();
        limits.upload.into_iter().chain(limits.download).map(NonZeroU64::get).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn a_transfer_waits_for_those_before_it_and_not_for_itself() {
        let mut pace = RateLimiter::new(NonZeroU64::new(10 * MIB).unwrap());
        assert_eq!(pace.book(seconds(0.0), 20 * MIB), seconds(0.0));
        assert_eq!(pace.book(seconds(0.0), 10 * MIB), seconds(2.0));
        assert_eq!(pace.book(seconds(0.5), 5 * MIB), seconds(2.5));
        assert_eq!(pace.book(seconds(3.5), MIB), seconds(0.0));
    }

    #[test]
    fn little_idle_time_is_saved_up() {
        let mut pace = RateLimiter::new(NonZeroU64::new(MIB).unwrap());
        assert_eq!(pace.book(seconds(3600.0), MIB), seconds(0.0));
        assert_eq!(pace.book(seconds(3600.0), MIB), seconds(1.0) - IDLE_SAVED);
    }

    /// Timers count milliseconds, and are late by one.
    fn paused(pause: Duration) -> Duration {
        if pause.is_zero() {
            return pause;
        }
        Duration::from_millis(u64::try_from(pause.as_micros().div_ceil(1000)).unwrap() + 1)
    }

    /// Transfers of `bytes` whose pieces, of `piece` bytes, are there at once, `together` at a
    /// time, each after a request of 2 ms; what of the limit they reach. In virtual time.
    fn share_reached(rate: NonZeroU64, bytes: u64, piece: u64, together: usize) -> f64 {
        let mut line = Line::new(rate);
        let mut clocks = vec![Duration::ZERO; together];
        let count = (8 * rate.get()).div_ceil(bytes).max(8);
        for _ in 0..count {
            let next = (0..together).min_by_key(|i| clocks[*i]).unwrap();
            let clock = &mut clocks[next];
            *clock += paused(line.turn(*clock, bytes)) + Duration::from_millis(2);
            let (begun, mut arriving) = (*clock, Arriving { rate, bytes: 0 });
            let mut left = if bytes < BULK_BYTES_MIN { 0 } else { bytes };
            while left > 0 {
                let some = piece.min(left);
                left -= some;
                *clock += paused(arriving.take(*clock - begun, some));
            }
        }
        let last = clocks.into_iter().max().unwrap();
        (count * bytes) as f64 / last.as_secs_f64() / rate.get() as f64
    }

    #[test]
    fn the_limit_is_reached_and_kept_to_whatever_the_pieces() {
        let shapes = [(8 * MIB, 8 << 10), (MIB, 64 << 10), (300_000, 4096), (60_000, 60_000)];
        for mib_per_second in [1, 10, 40, 400] {
            let rate = NonZeroU64::new(mib_per_second * MIB).unwrap();
            for ((bytes, piece), together) in shapes.into_iter().flat_map(|s| [(s, 1), (s, 16)]) {
                let share = share_reached(rate, bytes, piece, together);
                // what requests one after another reach of their own
                let possible = together as f64 * bytes as f64 / 0.002 / rate.get() as f64;
                let what = format!(
                    "{mib_per_second} MiB/s, {bytes} bytes in pieces of {piece}, {together} at once: {share}"
                );
                assert!(share >= 0.9 * possible.min(1.0), "{what}");
                assert!(share <= 1.1, "{what}");
            }
        }
    }

    #[test]
    fn any_number_of_transfers_at_once_keeps_to_the_rate_in_virtual_time() {
        let rate = 3 * MIB;
        let mut pace = RateLimiter::new(NonZeroU64::new(rate).unwrap());
        // four that each book the next one when theirs has begun
        let mut clocks = [Duration::ZERO; 4];
        let (mut moved, mut last) = (0, Duration::ZERO);
        for step in 0..400u64 {
            let next = (0..4).min_by_key(|i| clocks[*i]).unwrap();
            let bytes = (step * 7919) % (2 * MIB) + 1;
            clocks[next] += pace.book(clocks[next], bytes);
            last = last.max(clocks[next]);
            moved += bytes;
            let saved = IDLE_SAVED.as_secs_f64() * rate as f64;
            let allowed = last.as_secs_f64() * rate as f64 + 2.0 * MIB as f64 + saved;
            assert!((moved as f64) <= allowed + 1.0, "{moved} bytes after {last:?}");
        }
        let ideal = moved as f64 / rate as f64;
        assert!((last.as_secs_f64() - ideal).abs() < 1.0, "{last:?} for {ideal} s");
    }

    #[test]
    fn absurd_figures_do_not_overflow() {
        let mut pace = RateLimiter::new(NonZeroU64::MIN);
        assert_eq!(pace.book(Duration::MAX, u64::MAX), Duration::ZERO);
        assert_eq!(pace.book(Duration::ZERO, u64::MAX), Duration::MAX);
    }
}
