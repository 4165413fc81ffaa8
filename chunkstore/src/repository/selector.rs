//! Which backup of a volume a text means: values in, values out.
//!
//! Behind `VOLUME@` stand `latest`, an id or the beginning of one, the name of a snapshot, or the
//! beginning of a time. A text that means two backups, each in another way, is refused; `id:`,
//! `snapshot:` and `time:` before it say which way is meant.

use super::BackupEntry;
use crate::error::{Error, ErrorKind, Result};
use chrono::{DateTime, Months, NaiveDateTime, TimeDelta, Utc};

/// The least that counts as the beginning of an id: what is shorter fits another one tomorrow.
pub(super) const ID_PREFIX_MIN: usize = 4;

/// What stands behind `VOLUME@`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted<'a> {
    /// The newest.
    Latest,
    /// An id, or the beginning of one.
    Id(&'a str),
    /// Of a snapshot.
    Snapshot(&'a str),
    /// Of a time.
    Time(TimePrefix),
    /// Whatever it fits.
    Any(&'a str),
}

/// One way to understand a text, and the backups that it means in that way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meaning<'a> {
    pub(super) way: Way,
    /// By the beginning of an id these may be several.
    pub(super) backups: Vec<&'a BackupEntry>,
}

/// How a text is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Id,
    IdPrefix,
    Snapshot,
    Time,
}

impl Way {
    /// What its mark is, to write it without doubt.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Id | Self::IdPrefix => "id:",
            Self::Snapshot => "snapshot:",
            Self::Time => "time:",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Id => "as an id",
            Self::IdPrefix => "as the beginning of an id",
            Self::Snapshot => "as a snapshot",
            Self::Time => "as a time",
        }
    }
}

impl<'a> Wanted<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        if text == "latest" {
            return Ok(Self::Latest);
        }
        if let Some(id) = text.strip_prefix(Way::Id.mark()) {
            return Ok(Self::Id(id));
        }
        if let Some(name) = text.strip_prefix(Way::Snapshot.mark()) {
            return Ok(Self::Snapshot(name));
        }
        match text.strip_prefix(Way::Time.mark()) {
            Some(time) => Ok(Self::Time(TimePrefix::parse(time)?)),
            None => Ok(Self::Any(text)),
        }
    }

    /// All ways to understand it that lead to backups of `backups`, which are those of one volume.
    pub(super) fn meanings<'b>(&self, backups: &'b [BackupEntry]) -> Vec<Meaning<'b>> {
        let newest = |way, fits: &dyn Fn(&BackupEntry) -> bool| {
            let fitting = backups.iter().filter(|b| fits(b));
            let backups = fitting.max_by(|a, b| a.manifest.order().cmp(&b.manifest.order()));
            Meaning { way, backups: backups.into_iter().collect() }
        };
        let snapshot = |name: &str| {
            newest(Way::Snapshot, &|b| b.manifest.snapshot.id.as_deref() == Some(name))
        };
        let time = |prefix: TimePrefix| newest(Way::Time, &|b| prefix.contains(b.time()));
        let found = match *self {
            Self::Latest => vec![newest(Way::Time, &|_| true)],
            Self::Id(id) => vec![by_id(backups, id)],
            Self::Snapshot(name) => vec![snapshot(name)],
            Self::Time(prefix) => vec![time(prefix)],
            Self::Any(text) => {
                let id = by_id(backups, text);
                let mut of_snapshot = snapshot(text);
                // the backup of this very name was made of the snapshot, as a Job names both
                if id.way == Way::Id
                    && id.backups.iter().any(|b| b.manifest.snapshot.id.as_deref() == Some(text))
                {
                    of_snapshot.backups.clear();
                }
                let of_time = TimePrefix::parse(text).ok().map(time);
                [id, of_snapshot].into_iter().chain(of_time).collect()
            }
        };
        found.into_iter().filter(|meaning| !meaning.backups.is_empty()).collect()
    }
}

/// The backup of that id, or else all whose ids begin so.
fn by_id<'b>(backups: &'b [BackupEntry], id: &str) -> Meaning<'b> {
    let having = |fits: &dyn Fn(&str) -> bool| {
        backups.iter().filter(|b| fits(b.manifest.backup_id.as_str())).collect::<Vec<_>>()
    };
    let exact = having(&|known| known == id);
    if !exact.is_empty() {
        return Meaning { way: Way::Id, backups: exact };
    }
    let backups =
        if id.len() < ID_PREFIX_MIN { Vec::new() } else { having(&|known| known.starts_with(id)) };
    Meaning { way: Way::IdPrefix, backups }
}

/// The beginning of a time in UTC, such as `2026-11-22T14`: all moments whose text begins so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePrefix {
    /// The first of them.
    pub start: DateTime<Utc>,
    /// The first one behind them.
    pub end: DateTime<Utc>,
}

impl TimePrefix {
    /// `2026-11`, `2026-11-22`, `2026-11-22T14`, `2026-11-22T14:05`, and on to milliseconds; a space
    /// may stand for the `T`. In UTC, unless a difference such as `+01:00` follows.
    pub fn parse(text: &str) -> Result<Self> {
        Self::read(text).ok_or_else(|| {
            let context = format!("read time {text:?}");
            Error::new(ErrorKind::Usage, context, "it is no time")
                .hint("write it like 2026-11-22, 2026-11-22T14 or 2026-11-22T14:05Z, in UTC")
        })
    }

    fn read(text: &str) -> Option<Self> {
        if !text.is_ascii() {
            return None;
        }
        let (local, east_minutes) = without_zone(text)?;
        let mut local = local.to_owned();
        if local.as_bytes().get(10) == Some(&b' ') {
            local.replace_range(10..11, "T");
        }
        let second = TimeDelta::seconds(1);
        // a text that stops anywhere else means nothing; parsing checks the rest
        let (rest, length) = match local.len() {
            7 => ("-01T00:00:00", None),
            10 => ("T00:00:00", Some(TimeDelta::days(1))),
            13 => (":00:00", Some(TimeDelta::hours(1))),
            16 => (":00", Some(TimeDelta::minutes(1))),
            19 => ("", Some(second)),
            20..=29 => ("", Some(TimeDelta::milliseconds(1))),
            _ => return None,
        };
        local.push_str(rest);
        let digits = local.bytes().take(19).zip("0000-00-00T00:00:00".bytes());
        if digits.into_iter().any(|(b, form)| b.is_ascii_digit() != (form == b'0')) {
            return None;
        }
        let start = NaiveDateTime::parse_from_str(&local, "%Y-%m-%dT%H:%M:%S%.f").ok()?.and_utc();
        let end = match length {
            Some(length) => start.checked_add_signed(length)?,
            None => start.checked_add_months(Months::new(1))?,
        };
        let east = TimeDelta::minutes(east_minutes);
        Some(Self { start: start.checked_sub_signed(east)?, end: end.checked_sub_signed(east)? })
    }

    /// Whether a moment is one of them.
    pub fn contains(&self, time: DateTime<Utc>) -> bool {
        (self.start..self.end).contains(&time)
    }
}

/// What stands before `Z` or a difference, and the minutes by which that is ahead of UTC.
fn without_zone(text: &str) -> Option<(&str, i64)> {
    if let Some(local) = text.strip_suffix(['Z', 'z']) {
        return Some((local, 0));
    }
    let Some((local, zone)) = text.len().checked_sub(6).map(|at| text.split_at(at)) else {
        return Some((text, 0));
    };
    // the last part of a date is no difference
    let (Some(sign), true) = (zone.strip_prefix(['+', '-']), local.len() >= 13) else {
        return Some((text, 0));
    };
    let Some((hours, minutes)) = sign.split_once(':') else { return Some((text, 0)) };
    if !hours.bytes().chain(minutes.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let east = hours * 60 + minutes;
    (minutes < 60 && hours < 24)
        .then_some((local, if zone.starts_with('-') { -east } else { east }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn the_beginning_of_a_time_is_a_span() {
        for (text, start, end) in [
            ("2026-11", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2024-02-29", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"),
            ("2026-11-22Z", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"),
            ("2026-12-31T23", "2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z"),
            ("2026-11-22T14:05Z", "2026-11-22T14:05:00Z", "2026-11-22T14:06:00Z"),
            ("2026-11-22 14:05:10Z", "2026-11-22T14:05:10Z", "2026-11-22T14:05:11Z"),
            ("2026-11-22T14:05:10.250Z", "2026-11-22T14:05:10.250Z", "2026-11-22T14:05:10.251Z"),
            ("2026-11-22T14:05+01:30", "2026-11-22T12:35:00Z", "2026-11-22T12:36:00Z"),
            ("2026-11-22T14-02:00", "2026-11-22T16:00:00Z", "2026-11-22T17:00:00Z"),
        ] {
            let span = TimePrefix::parse(text).unwrap();
            assert_eq!((span.start, span.end), (time(start), time(end)), "{text}");
            assert!(span.contains(span.start) && !span.contains(span.end));
        }
        for text in [
            "",
            "2026",
            "2026-1",
            "2026-11-2",
            "2026-13",
            "2025-02-29",
            "2026-11-22T",
            "2026-11-22T24",
            "2026-11-22T14:5",
            "2026-11-22T14:05:1",
            "2026-11-22x14",
            "+026-11-22",
            "2026-11-22T14:05+25:00",
            "2026-11-22T14:05:10.",
            "2026-11-22T14:05+-1:00",
            "zweitausend",
            "２０２６-11-22",
        ] {
            assert!(TimePrefix::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn marks_say_which_way_is_meant() {
        for (text, wanted) in [
            ("latest", Wanted::Latest),
            ("id:latest", Wanted::Id("latest")),
            ("snapshot:id:x", Wanted::Snapshot("id:x")),
            ("time:2026-11", Wanted::Time(TimePrefix::parse("2026-11").unwrap())),
            ("2026-11", Wanted::Any("2026-11")),
        ] {
            assert_eq!(Wanted::parse(text).unwrap(), wanted, "{text}");
        }
        assert!(Wanted::parse("time:yesterday").is_err());
    }
}
