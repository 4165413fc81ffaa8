//! Cron from minute to minute: slow, plain, and made of nothing that the program uses but the
//! time zones themselves.

use chrono::{DateTime, Datelike as _, Duration, NaiveDateTime, Timelike as _, Utc};
use chrono_tz::Tz;
use std::collections::BTreeSet;

/// A pattern as sets. None is `*`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pattern {
    pub(crate) minutes: Option<BTreeSet<u32>>,
    pub(crate) hours: Option<BTreeSet<u32>>,
    pub(crate) days: Option<BTreeSet<u32>>,
    pub(crate) months: Option<BTreeSet<u32>>,
    pub(crate) weekdays: Option<BTreeSet<u32>>,
}

fn text(field: &Option<BTreeSet<u32>>) -> String {
    let all = field.as_ref().map(|set| set.iter().map(u32::to_string).collect::<Vec<_>>());
    all.map_or("*".into(), |all| all.join(","))
}

impl Pattern {
    pub(crate) fn text(&self) -> String {
        let fields = [&self.minutes, &self.hours, &self.days, &self.months, &self.weekdays];
        fields.map(text).join(" ")
    }

    fn shows(&self, wall: NaiveDateTime) -> bool {
        let has = |field: &Option<BTreeSet<u32>>, value| {
            field.as_ref().is_none_or(|set| set.contains(&value))
        };
        let weekday = wall.weekday().num_days_from_sunday();
        let weekday_meant = has(&self.weekdays, weekday)
            || (weekday == 0 && self.weekdays.as_ref().is_some_and(|set| set.contains(&7)));
        let day_meant = has(&self.days, wall.day());
        let date_meant = match (&self.days, &self.weekdays) {
            (Some(_), Some(_)) => day_meant || weekday_meant,
            _ => day_meant && weekday_meant,
        };
        has(&self.minutes, wall.minute())
            && has(&self.hours, wall.hour())
            && has(&self.months, wall.month())
            && date_meant
    }

    /// When it is due after `after` and until `until`. The model looks at the two days before too,
    /// to know what the clock has shown already.
    pub(crate) fn due(
        &self,
        zone: Tz,
        after: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Vec<DateTime<Utc>> {
        let is_repeated = self.minutes.is_none() || self.hours.is_none();
        let minute = Duration::minutes(1);
        let mut now = after - Duration::days(2);
        now -= Duration::seconds(now.timestamp().rem_euclid(60));
        let mut shown = now.with_timezone(&zone).naive_local();
        let mut due = Vec::new();
        while now < until {
            now += minute;
            let wall = now.with_timezone(&zone).naive_local();
            let is_due = if is_repeated {
                self.shows(wall)
            } else {
                // All that the clock shows for the first time, or has jumped over.
                let mut new = wall;
                let mut any = false;
                while new > shown {
                    any |= self.shows(new);
                    new -= minute;
                }
                any
            };
            shown = shown.max(wall);
            if is_due && now > after && now <= until {
                due.push(now);
            }
        }
        due
    }
}
