//! Since when something is owed that comes again, and whether it is late: how much time it has is one
//! rule for the status, the page and the metrics.

use super::cron::Cron;
use crate::kinds::BackupScheduleSpec;
use chrono::{DateTime, TimeDelta, Utc};

/// How much later than due something may be good where nothing else is said.
pub const LEEWAY: TimeDelta = TimeDelta::hours(1);

/// How much later than due a run of a schedule may be good.
#[must_use]
pub fn leeway(spec: &BackupScheduleSpec) -> TimeDelta {
    let seconds = |number: u32| TimeDelta::seconds(number.into());
    let begins = spec.starting_deadline_seconds.map_or(LEEWAY, seconds);
    begins + seconds(spec.jitter_seconds.unwrap_or_default())
}

/// How something is that was to happen again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    /// The first moment that has been waited for since.
    pub since: DateTime<Utc>,
    /// Whether it is later than it may be.
    pub is_late: bool,
}

/// A pattern of cron, with its times around a moment.
#[derive(Debug)]
pub struct Beat {
    cron: Cron,
    now: DateTime<Utc>,
    previous: Option<DateTime<Utc>>,
    next: Option<DateTime<Utc>>,
}

impl Beat {
    /// Of a pattern, at a moment.
    #[must_use]
    pub fn new(cron: Cron, now: DateTime<Utc>) -> Self {
        Self { previous: cron.last_until(now), next: cron.next_after(now), cron, now }
    }

    /// The first time after the moment.
    #[must_use]
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.next
    }

    /// What is owed, where the last good one was at `last`. `leeway` is how much later than due one
    /// may be good; the time until the next one is the most. `None` if it is never due again.
    #[must_use]
    pub fn owed(&self, last: DateTime<Utc>, leeway: TimeDelta) -> Option<Owed> {
        // Most have one of the last time, and looking for times takes long.
        if last <= self.now && self.previous.is_some_and(|previous| previous <= last) {
            return Some(Owed { since: self.next?, is_late: false });
        }
        let since = self.cron.next_after(last)?;
        let interval = self.cron.next_after(since).map_or(leeway, |after| after - since);
        Some(Owed { since, is_late: self.now > since + leeway.min(interval) })
    }
}
