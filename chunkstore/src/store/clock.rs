//! How far this machine's clock is off, by what a store's answers say.
//!
//! Signed requests carry the time, and a store refuses those that are more than some minutes off; a
//! token that is not good yet, or not any more by the other clock, is refused too. Every answer has
//! the store's time in its `Date`, and S3 repeats it in the body of the one refusal that is about
//! time. It is noted of refusals only, and only to say what is to be done: nothing is decided by
//! it.

use super::Store;
use super::fault::Fault;
use crate::error::Error;
use chrono::{DateTime, Utc};
use object_store::client::HttpResponse;
use std::sync::atomic::{AtomicI64, Ordering};

/// Less than any store makes anything of.
const OFF_SECONDS_MIN: u64 = 300;
const UNKNOWN: i64 = i64::MIN;

/// The store's time less ours in seconds, as the last refusal has it.
#[derive(Debug)]
pub(super) struct ClockOffset(AtomicI64);

impl Default for ClockOffset {
    fn default() -> Self {
        Self(AtomicI64::new(UNKNOWN))
    }
}

impl ClockOffset {
    /// Looks at the `Date` of a refusal.
    pub(super) fn note(&self, answer: &HttpResponse) {
        if !matches!(answer.status().as_u16(), 400 | 401 | 403) {
            return;
        }
        let date = answer.headers().get("date").and_then(|value| value.to_str().ok());
        if let Some(date) = date.and_then(|text| DateTime::parse_from_rfc2822(text).ok()) {
            self.0.store(offset_seconds(date.to_utc(), Utc::now()), Ordering::Relaxed);
        }
    }

    fn get(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|seconds| *seconds != UNKNOWN)
    }
}

impl Store {
    /// The error of a fault. If a clock may be why, it says how far ours is off.
    pub(super) fn failed(&self, fault: Fault, context: String, e: object_store::Error) -> Error {
        let said = fault.server_time.map(|time| offset_seconds(time, Utc::now()));
        let offset = said.or_else(|| self.counters.clock.get()).filter(|_| fault.may_be_clock);
        let error = fault.into_error(context, e);
        match offset.and_then(hint_of) {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

fn offset_seconds(theirs: DateTime<Utc>, ours: DateTime<Utc>) -> i64 {
    (theirs - ours).num_seconds()
}

/// `None`: the clocks agree well enough.
fn hint_of(offset_seconds: i64) -> Option<String> {
    let off = offset_seconds.unsigned_abs();
    if off < OFF_SECONDS_MIN {
        return None;
    }
    let side = if offset_seconds < 0 { "ahead of" } else { "behind" };
    Some(format!(
        "this machine's clock is {} {side} the store's: set the one that is wrong (a pod has its node's), then run the same \
         command again",
        time_span(off)
    ))
}

/// A span of time for people, to about a hundredth.
pub fn time_span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match days {
        0 if minutes < 2 => format!("{seconds} s"),
        0 if hours < 2 => format!("{minutes} min"),
        0 => format!("{hours} h {} min", minutes % 60),
        1 => format!("{hours} h"),
        _ => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_and_which_way() {
        assert_eq!(hint_of(0), None);
        assert_eq!(hint_of(-299), None);
        let hint = hint_of(-300).unwrap();
        assert!(hint.contains("clock is 5 min ahead of the store's"), "{hint}");
        let hint = hint_of(3 * 3600 + 125).unwrap();
        assert!(hint.contains("clock is 3 h 2 min behind the store's"), "{hint}");
        assert!(hint_of(i64::MIN).is_some());
        for (seconds, text) in [
            (119, "119 s"),
            (120, "2 min"),
            (7199, "119 min"),
            (7200, "2 h 0 min"),
            (90_000, "25 h"),
        ] {
            assert_eq!(time_span(seconds), text);
        }
        assert_eq!(time_span(400 * 86400), "400 days");
    }
}
