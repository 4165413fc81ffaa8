//! What is owed now, of many things that come again.

use crate::schedule::{Beat, Cron, Owed};
use chrono::{DateTime, TimeDelta, Utc};
use std::collections::HashMap;

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

impl Rhythms {
    pub(super) fn new(now: DateTime<Utc>) -> Self {
        Self { now, read: HashMap::new() }
    }

    fn beat(&mut self, rhythm: &Rhythm) -> Option<&Beat> {
        if !self.read.contains_key(rhythm) {
            let cron = Cron::parse(&rhythm.cron, rhythm.zone.as_deref()).ok();
            self.read.insert(rhythm.clone(), cron.map(|cron| Beat::new(cron, self.now)));
        }
        self.read[rhythm].as_ref()
    }

    /// Whether it can be read at all.
    pub(super) fn is_readable(&mut self, rhythm: &Rhythm) -> bool {
        self.beat(rhythm).is_some()
    }

    /// The first time after now.
    pub(super) fn next(&mut self, rhythm: &Rhythm) -> Option<DateTime<Utc>> {
        self.beat(rhythm)?.next()
    }

    /// What is owed now, where the last good one was at `last`.
    pub(super) fn owed(
        &mut self,
        rhythm: &Rhythm,
        last: DateTime<Utc>,
        leeway: TimeDelta,
    ) -> Option<Owed> {
        self.beat(rhythm)?.owed(last, leeway)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::LEEWAY;

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

    /// As the schedule itself takes them: `croner` alone leaves such a night out.
    #[test]
    fn a_time_that_the_clock_jumps_over_is_due() {
        let twice = rhythm("0 2,14 * * *", Some("Europe/Berlin"));
        let last = at("2026-03-28T13:00:10Z");
        let owed = Rhythms::new(at("2026-03-29T02:30:00Z")).owed(&twice, last, LEEWAY);
        assert_eq!(owed, Some(Owed { since: at("2026-03-29T01:00:00Z"), is_late: true }));
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
                let parsed = Cron::parse(cron, Some("Europe/Berlin")).expect("a pattern");
                let since = parsed.next_after(last).expect("a time");
                assert_eq!(owed.since, since, "{cron} {minutes}");
                assert!(!owed.is_late || since < now, "{cron} {minutes}");
            }
        }
    }
}
