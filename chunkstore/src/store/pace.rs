//! Limits on the rate of transfers.
//!
//! One [`Pace`] a direction is shared by all transfers: it is a line in virtual time that each of
//! them books. A transfer begins when what was booked before it has had its time, so the sum never
//! runs ahead of the rate by more than one transfer. Small requests are booked, but never wait, nor
//! does what leases and commits write, small or not: a heartbeat or a manifest must not queue
//! behind packs.
//!
//! What is downloaded is read from the connection no faster than the rate, piece by piece, so the
//! server is held back evenly. An upload can only be held back as a whole, since `object_store`
//! takes its body at once and has no hook in sending it: then smaller packs make the pace even.

use super::{BULK_BYTES_MIN, Store, patience};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::GetResult;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
pub struct Pace {
    bytes_per_second: NonZeroU64,
    /// When all that was booked has had its time, since the start.
    free_at: Duration,
}

impl Pace {
    /// A line that is free.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Self { bytes_per_second, free_at: Duration::ZERO }
    }

    /// Books `bytes` at `now`, a time since any fixed start; gives how long to wait before they may
    /// be moved. Time in which the line was idle is not saved up.
    pub fn book(&mut self, now: Duration, bytes: u64) -> Duration {
        let wait = self.free_at.saturating_sub(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(now).saturating_add(takes);
        wait
    }
}

/// A pace and the clock that it goes by, for all transfers of one direction.
#[derive(Debug)]
pub(super) struct Throttle {
    rate: NonZeroU64,
    begun: Instant,
    pace: Mutex<Pace>,
}

/// Both directions.
#[derive(Debug, Clone, Default)]
pub(super) struct Throttles {
    pub(super) upload: Option<Arc<Throttle>>,
    pub(super) download: Option<Arc<Throttle>>,
}

impl Throttle {
    fn new(rate: NonZeroU64) -> Arc<Self> {
        Arc::new(Self { rate, begun: Instant::now(), pace: Mutex::new(Pace::new(rate)) })
    }

    /// Books what does not wait: those that come after it wait the longer.
    pub(super) fn charge(&self, bytes: u64) -> Duration {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.book(self.begun.elapsed(), bytes)
    }

    /// Waits until a transfer of so many bytes may begin.
    pub(super) async fn turn(&self, bytes: u64) {
        let wait = self.charge(bytes);
        if bytes >= BULK_BYTES_MIN && !wait.is_zero() {
            patience::pause(wait).await;
        }
    }

    /// The whole body, taken from the connection no faster than the rate.
    async fn body(&self, result: GetResult) -> object_store::Result<Bytes> {
        let expected = result.range.end.saturating_sub(result.range.start);
        if expected < BULK_BYTES_MIN {
            return result.bytes().await;
        }
        let begun = Instant::now();
        let mut pace = Pace::new(self.rate);
        let mut whole = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        let mut pieces = result.into_stream();
        while let Some(piece) = pieces.try_next().await? {
            // what has come is paid for before more is taken
            pace.book(begun.elapsed(), piece.len() as u64);
            whole.extend_from_slice(&piece);
            let wait = pace.book(begun.elapsed(), 0);
            if !wait.is_zero() {
                patience::pause(wait).await;
            }
        }
        Ok(whole.into())
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

    /// A body, at the pace that is allowed.
    pub(super) async fn body(
        download: Option<&Throttle>,
        result: GetResult,
    ) -> object_store::Result<Bytes> {
        match download {
            Some(throttle) => throttle.body(result).await,
            None => result.bytes().await,
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
        let mut pace = Pace::new(NonZeroU64::new(10 * MIB).unwrap());
        assert_eq!(pace.book(seconds(0.0), 20 * MIB), seconds(0.0));
        assert_eq!(pace.book(seconds(0.0), 10 * MIB), seconds(2.0));
        assert_eq!(pace.book(seconds(0.5), 5 * MIB), seconds(2.5));
        assert_eq!(pace.book(seconds(3.5), MIB), seconds(0.0));
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut pace = Pace::new(NonZeroU64::new(MIB).unwrap());
        assert_eq!(pace.book(seconds(3600.0), MIB), seconds(0.0));
        assert_eq!(pace.book(seconds(3600.0), MIB), seconds(1.0));
    }

    #[test]
    fn any_number_of_transfers_at_once_keeps_to_the_rate_in_virtual_time() {
        let rate = 3 * MIB;
        let mut pace = Pace::new(NonZeroU64::new(rate).unwrap());
        // four that each book the next one when theirs has begun
        let mut clocks = [Duration::ZERO; 4];
        let (mut moved, mut last) = (0, Duration::ZERO);
        for step in 0..400u64 {
            let next = (0..4).min_by_key(|i| clocks[*i]).unwrap();
            let bytes = (step * 7919) % (2 * MIB) + 1;
            clocks[next] += pace.book(clocks[next], bytes);
            last = last.max(clocks[next]);
            moved += bytes;
            let allowed = last.as_secs_f64() * rate as f64 + 2.0 * MIB as f64;
            assert!((moved as f64) <= allowed + 1.0, "{moved} bytes after {last:?}");
        }
        let ideal = moved as f64 / rate as f64;
        assert!((last.as_secs_f64() - ideal).abs() < 1.0, "{last:?} for {ideal} s");
    }

    #[test]
    fn absurd_figures_do_not_overflow() {
        let mut pace = Pace::new(NonZeroU64::MIN);
        assert_eq!(pace.book(Duration::MAX, u64::MAX), Duration::ZERO);
        assert_eq!(pace.book(Duration::ZERO, u64::MAX), Duration::MAX);
    }
}
