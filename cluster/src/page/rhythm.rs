//! When a clock wants something, and since when it is owed.

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use croner::Cron;
use std::collections::HashMap;
use std::str::FromStr as _;

/// How much later than due a run may be good where its schedule says nothing.
pub(super) const LEEWAY: TimeDelta = TimeDelta::hours(1);

/// When something comes again, as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rhythm {
    pub(super) cron: String,
    pub(super) zone: Option<String>,
}

/// All rhythms at one moment: many schedules have the same one, and few claims are late.
#[derive(Debug)]
pub(super) struct Rhythms {
    now: DateTime<Utc>,
    read: HashMap<Rhythm, Option<Beat>>,
}

/// A readable rhythm, with its times around now.
#[derive(Debug)]
struct Beat {
    cron: Cron,
    zone: Tz,
    previous: Option<DateTime<Utc>>,
    next: Option<DateTime<Utc>>,
}

impl Beat {
    fn of(rhythm: &Rhythm, now: DateTime<Utc>) -> Option<Self> {
        let zone = Tz::from_str(rhythm.zone.as_deref().unwrap_or("UTC")).ok()?;
        let cron = Cron::from_str(&rhythm.cron).ok()?;
        let local = now.with_timezone(&zone);
        let previous = cron.find_previous_occurrence(&local, true).ok();
        let next = cron.find_next_occurrence(&local, false).ok();
        let utc = |at: Option<DateTime<Tz>>| at.map(|at| at.with_timezone(&Utc));
        Some(Self { previous: utc(previous), next: utc(next), cron, zone })
    }

    fn after(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let next = self.cron.find_next_occurrence(&at.with_timezone(&self.zone), false).ok()?;
        Some(next.with_timezone(&Utc))
    }
}

/// How something is that was to happen again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owed {
    /// The first moment that has been waited for since.
    pub(crate) since: DateTime<Utc>,
    /// Whether it is later than it may be.
    pub(crate) is_late: bool,
}

impl Rhythms {
    pub(super) fn new(now: DateTime<Utc>) -> Self {
        Self { now, read: HashMap::new() }
    }

    fn beat(&mut self, rhythm: &Rhythm) -> Option<&Beat> {
        if !self.read.contains_key(rhythm) {
            self.read.insert(rhythm.clone(), Beat::of(rhythm, self.now));
        }
        self.read[rhythm].as_ref()
    }

    /// Whether it can be read at all.
    pub(super) fn is_readable(&mut self, rhythm: &Rhythm) -> bool {
        self.beat(rhythm).is_some()
    }

    /// The first time after now.
    pub(super) fn next(&mut self, rhythm: &Rhythm) -> Option<DateTime<Utc>> {
        self.beat(rhythm)?.next
    }

    /// What is owed now, where the last good one was at `last`. `leeway` is how much later than due
    /// one may be good; the time until the next one is the most.
    pub(super) fn owed(
        &mut self,
        rhythm: &Rhythm,
        last: DateTime<Utc>,
        leeway: TimeDelta,
    ) -> Option<Owed> {
        let now = self.now;
        let beat = self.beat(rhythm)?;
        // Most have one of the last time, and looking for times takes long.
        if last <= now && beat.previous.is_some_and(|previous| previous <= last) {
            return Some(Owed { since: beat.next?, is_late: false });
        }
        let since = beat.after(last)?;
        let interval = beat.after(since)? - since;
        Some(Owed { since, is_late: now > since + leeway.min(interval) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a time")
    }

    fn rhythm(cron: &str, zone: Option<&str>) -> Rhythm {
        Rhythm { cron: cron.into(), zone: zone.map(str::to_owned) }
    }

    #[test]
    fn late_begins_an_hour_after_the_first_run_that_left_nothing() {
        let hourly = rhythm("0 * * * *", None);
        let last = at("2026-11-24T10:02:00Z");
        let late = |now: &str| Rhythms::new(at(now)).owed(&hourly, last, LEEWAY).expect("owed");
        assert!(!late("2026-11-24T10:59:00Z").is_late);
        assert!(!late("2026-11-24T12:00:00Z").is_late);
        let owed = late("2026-11-24T12:00:01Z");
        assert_eq!(owed, Owed { since: at("2026-11-24T11:00:00Z"), is_late: true });
    }

    #[test]
    fn a_short_rhythm_allows_no_more_than_itself() {
        let often = rhythm("*/5 * * * *", None);
        let mut rhythms = Rhythms::new(at("2026-11-24T10:10:01Z"));
        let owed = rhythms.owed(&often, at("2026-11-24T10:00:30Z"), LEEWAY);
        assert!(owed.expect("owed").is_late);
        let patient = TimeDelta::minutes(30);
        let daily = rhythm("@daily", None);
        let now = at("2026-11-25T00:29:00Z");
        let owed = Rhythms::new(now).owed(&daily, at("2026-11-24T00:10:00Z"), patient);
        assert!(!owed.expect("owed").is_late);
    }

    #[test]
    fn zones_count() {
        let morning = rhythm("0 3 * * *", Some("Europe/Berlin"));
        let next = Rhythms::new(at("2026-07-01T00:00:00Z")).next(&morning);
        assert_eq!(next, Some(at("2026-07-01T01:00:00Z")));
    }

    #[test]
    fn the_unreadable_is_owed_nothing() {
        for rhythm in [rhythm("every now and then", None), rhythm("@daily", Some("Middle/Earth"))] {
            let mut rhythms = Rhythms::new(at("2026-07-01T00:00:00Z"));
            assert!(!rhythms.is_readable(&rhythm));
            assert_eq!(rhythms.next(&rhythm), None);
            assert_eq!(rhythms.owed(&rhythm, at("2026-06-01T00:00:00Z"), LEEWAY), None);
        }
    }

    /// The short way says the same as the long one.
    #[test]
    fn nothing_is_late_that_has_the_last_run() {
        for cron in ["0 * * * *", "30 2 * * *", "*/7 3-5 * * 1", "0 4 29 2 *"] {
            let rhythm = rhythm(cron, Some("Europe/Berlin"));
            let now = at("2026-03-29T01:30:00Z");
            let mut rhythms = Rhythms::new(now);
            for minutes in [0, 1, 29, 61, 600, 10_000, 60_000] {
                let last = now - TimeDelta::minutes(minutes);
                let owed = rhythms.owed(&rhythm, last, LEEWAY).expect("owed");
                let since =
                    rhythms.beat(&rhythm).and_then(|beat| beat.after(last)).expect("a time");
                assert_eq!(owed.since, since, "{cron} {minutes}");
                assert!(!owed.is_late || since < now, "{cron} {minutes}");
            }
        }
    }
}
