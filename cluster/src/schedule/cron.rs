//! When a pattern of cron is due, in a time zone whose clock is put forward and back.
//!
//! `croner` reads the pattern and judges dates. It does not place the times: it takes each pattern
//! of several hours for one that repeats, and so leaves `0 2,14 * * *` out in a night in which the
//! clock jumps over two. The rules here are those of the cron of Unix:
//!
//! - Minute or hour begin with `*`: due at each minute at which the clock shows such a time. A time
//!   that is jumped over is not due, and one that comes twice is due twice.
//! - Else, the times are fixed: one that is jumped over is due right after the jump, once for all
//!   of them, and one that comes twice is due the first time.
//!
//! A day is due if its day of the month or its weekday is meant, where both are given.

use crate::kinds;
use chrono::{
    DateTime, Datelike as _, Duration, MappedLocalTime, NaiveDate, NaiveDateTime, TimeZone as _,
    Utc,
};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds, Year};
use std::fmt;

/// After so many days each date has come on each weekday, leap years included.
const CALENDAR_DAYS: i64 = 41 * 366;
/// More than any clock was ever put forward or back, the date line included.
const JUMP_MAX_HOURS: i64 = 26;
const MONTHS: &[&str] =
    &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "L"];
/// The five fields: name, words, and how one is written.
const FIELDS: [(&str, &[&str], &str); 5] = [
    ("minute", &[], "write 0 to 59, a list 0,30, a range 0-10, or a step */15"),
    ("hour", &[], "write 0 to 23, a list 1,13, a range 8-18, or a step */6"),
    ("day of the month", &["L", "W", "LW"], "write 1 to 31, a list, a range, a step, or L"),
    ("month", MONTHS, "write 1 to 12, JAN to DEC, a list, a range, or a step"),
    ("day of the week", WEEKDAYS, "write 0 to 7, SUN to SAT, a list, a range, a step, or MON#1"),
];

/// A pattern or a time zone that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadCron {
    /// `cron` or `timeZone`.
    pub field: &'static str,
    /// Names the value and its fault.
    pub message: String,
    /// The next step.
    pub hint: String,
}

impl fmt::Display for BadCron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.field, self.message, self.hint)
    }
}

impl std::error::Error for BadCron {}

/// How often the times of a day come that a clock shows twice, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    /// As often as the clock shows them.
    Repeated,
    /// Once.
    Fixed,
}

/// A pattern of cron in a time zone.
#[derive(Debug, Clone)]
pub struct Cron {
    pattern: croner::Cron,
    minutes: Vec<u16>,
    hours: Vec<u16>,
    zone: Tz,
    times: Times,
}

impl Cron {
    /// Reads five fields, or `@daily` and the like. Without a zone the times are those of UTC.
    ///
    /// # Errors
    ///
    /// The field that is wrong, with a next step.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Cron, BadCron> {
        let zone = match zone {
            None => Tz::UTC,
            Some(name) => name.parse().map_err(|_| BadCron {
                field: "timeZone",
                message: format!("{name} is no time zone of the IANA database"),
                hint: "write a name such as Europe/Berlin, or leave it away for UTC".into(),
            })?,
        };
        let written = full(text)?;
        let fields: Vec<&str> = written.split_whitespace().collect();
        check_fields(&fields)?;
        let pattern = read(&fields.join(" ")).map_err(|why| bad(text, &why.to_string(), FORM))?;
        let starred = fields[0].starts_with('*') || fields[1].starts_with('*');
        let cron = Cron {
            minutes: pattern.pattern.minutes.values(),
            hours: pattern.pattern.hours.values(),
            pattern,
            zone,
            times: if starred { Times::Repeated } else { Times::Fixed },
        };
        let first = NaiveDate::from_ymd_opt(2000, 1, 1).unwrap_or_default();
        let mut dates = first.iter_days().take(usize::try_from(CALENDAR_DAYS).unwrap_or_default());
        if !dates.any(|date| cron.has(date)) {
            let why = "no such date ever comes";
            return Err(bad(text, why, "name a day that its month has, such as L for the last"));
        }
        Ok(cron)
    }

    /// Reads what an object says.
    ///
    /// # Errors
    ///
    /// As [`Cron::parse`].
    pub fn of(at: &kinds::CronTimes) -> Result<Cron, BadCron> {
        Cron::parse(&at.cron, at.time_zone.as_deref())
    }

    /// The first time that it is due after `time`. A pattern that a zone's clock never shows again
    /// has none.
    #[must_use]
    pub fn next_after(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut found = None;
        let first = self.date(time) - Duration::days(2);
        for date in first.iter_days().take(usize::try_from(CALENDAR_DAYS).unwrap_or_default()) {
            let here = self.due_on(date).into_iter().find(|due| *due > time);
            match (found, here) {
                // The clock may have gone back over midnight: the next date has the earlier one.
                (Some(earlier), here) => return here.into_iter().chain([earlier]).min(),
                (None, here) => found = here,
            }
        }
        found
    }

    /// The last time that it was due until `time`, which counts.
    #[must_use]
    pub fn last_until(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut found = None;
        let mut date = self.date(time) + Duration::days(2);
        for _ in 0..CALENDAR_DAYS {
            let here = self.due_on(date).into_iter().rfind(|due| *due <= time);
            match (found, here) {
                (Some(later), here) => return here.into_iter().chain([later]).max(),
                (None, here) => found = here,
            }
            date = date.pred_opt()?;
        }
        found
    }

    /// The times that it is due after `after` and until `until`, the oldest first; of more than 366
    /// days, those of the last ones.
    #[must_use]
    pub fn between(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let after = after.max(until - Duration::days(366));
        if after >= until {
            return Vec::new();
        }
        let last = self.date(until) + Duration::days(2);
        let days = (self.date(after) - Duration::days(2)).iter_days().take_while(|at| *at <= last);
        let is_in = |due: &DateTime<Utc>| *due > after && *due <= until;
        let mut all: Vec<_> = days.flat_map(|date| self.due_on(date)).filter(is_in).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The date that a clock of its zone shows.
    fn date(&self, time: DateTime<Utc>) -> NaiveDate {
        time.with_timezone(&self.zone).date_naive()
    }

    fn has(&self, date: NaiveDate) -> bool {
        let weekday = croner::Weekday::from_days_from_sunday(date.weekday().num_days_from_sunday());
        let pattern = &self.pattern.pattern;
        pattern.month_match(date.month()).unwrap_or_default()
            && pattern.day_match(date.year(), date.month(), date.day(), weekday).unwrap_or_default()
    }

    /// The times due that belong to a date, in their order.
    fn due_on(&self, date: NaiveDate) -> Vec<DateTime<Utc>> {
        if !self.has(date) {
            return Vec::new();
        }
        let mut all = Vec::new();
        for hour in &self.hours {
            for minute in &self.minutes {
                let Some(shown) = date.and_hms_opt((*hour).into(), (*minute).into(), 0) else {
                    continue;
                };
                match self.zone.from_local_datetime(&shown) {
                    MappedLocalTime::Single(time) => all.push(time.to_utc()),
                    MappedLocalTime::Ambiguous(one, other) => {
                        all.push(one.min(other).to_utc());
                        if self.times == Times::Repeated {
                            all.push(one.max(other).to_utc());
                        }
                    }
                    MappedLocalTime::None if self.times == Times::Fixed => {
                        all.push(self.after_jump(shown));
                    }
                    MappedLocalTime::None => (),
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The first whole minute after a jump over `shown`.
    fn after_jump(&self, shown: NaiveDateTime) -> DateTime<Utc> {
        let start = shown.and_utc() - Duration::hours(JUMP_MAX_HOURS);
        let is_after = |minutes: i64| {
            (start + Duration::minutes(minutes)).with_timezone(&self.zone).naive_local() > shown
        };
        let (mut before, mut after) = (0, 2 * JUMP_MAX_HOURS * 60);
        while after - before > 1 {
            let middle = i64::midpoint(before, after);
            match is_after(middle) {
                true => after = middle,
                false => before = middle,
            }
        }
        start + Duration::minutes(after)
    }
}

const FORM: &str = "write five fields: minute, hour, day of the month, month, day of the week";

fn bad(text: &str, why: &str, hint: &str) -> BadCron {
    BadCron { field: "cron", message: format!("`{text}`: {why}"), hint: hint.into() }
}

/// The five fields of a short form.
fn full(text: &str) -> Result<&str, BadCron> {
    Ok(match text.trim() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        other if other.starts_with('@') => {
            let hint = "write @hourly, @daily, @weekly, @monthly or @yearly, or five fields";
            return Err(bad(text, "there is no such short form", hint));
        }
        other => other,
    })
}

/// Finds the field that is wrong, each beside four that are not.
fn check_fields(fields: &[&str]) -> Result<(), BadCron> {
    let text = fields.join(" ");
    if fields.len() != FIELDS.len() {
        let why = match fields.len() {
            6 => "six fields, and there are no seconds in it".to_owned(),
            other => format!("{other} fields instead of five"),
        };
        return Err(bad(&text, &why, FORM));
    }
    for (at, (name, words, hint)) in FIELDS.into_iter().enumerate() {
        let field = fields[at];
        let mut alone = ["*"; FIELDS.len()];
        alone[at] = field;
        let upper = field.to_ascii_uppercase();
        let mut named = upper.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        let is_known = named.all(|word| words.contains(&word)) && !field.contains('+');
        let is_whole = field.split(',').all(|part| !part.is_empty());
        if !is_known || !is_whole || read(&alone.join(" ")).is_err() {
            return Err(bad(&text, &format!("`{field}` is no {name}"), hint));
        }
    }
    Ok(())
}

fn read(text: &str) -> Result<croner::Cron, croner::errors::CronError> {
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build().parse(text)
}
