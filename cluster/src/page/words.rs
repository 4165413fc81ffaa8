//! Ages, times and sizes, for people.

use crate::drive::show_bytes;
use chrono::{DateTime, TimeDelta, Utc};

/// How long, in one unit, or two where the first is small.
pub(super) fn span(of: TimeDelta) -> String {
    let seconds = of.num_seconds().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, of: &str| match (large, small) {
        (5.., _) | (_, 0) => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {of}"),
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{minutes} min"),
        3_600..86_400 => two(hours, "h", minutes % 60, "min"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

/// `3 h ago`, or `in 3 h`.
pub(super) fn when(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    match now - at {
        ago if ago.num_seconds() < 0 => format!("in {}", span(-ago)),
        ago => format!("{} ago", span(ago)),
    }
}

/// `14 Nov 12:05`; with the year where it is not that of `now`.
pub(super) fn moment(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let form = if at.format("%Y").to_string() == now.format("%Y").to_string() {
        "%-d %b %H:%M"
    } else {
        "%-d %b %Y %H:%M"
    };
    at.format(form).to_string()
}

/// As programs read it.
pub(super) fn exact(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A number of bytes that came from outside.
pub(super) fn size(bytes: i64) -> String {
    show_bytes(u64::try_from(bytes).unwrap_or_default())
}

/// `1 volume`, `2 volumes`.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        for (seconds, text) in [
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_599, "59 min"),
            (3_600, "1 h"),
            (7_500, "2 h 5 min"),
            (90_000, "1 d 1 h"),
            (86_399, "23 h"),
            (431_999, "4 d 23 h"),
            (1_000_000, "11 d"),
        ] {
            assert_eq!(span(TimeDelta::seconds(seconds)), text);
        }
    }

    #[test]
    fn moments_have_a_year_where_it_matters() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().expect("a time");
        let now = at("2026-11-24T10:00:00Z");
        assert_eq!(moment(at("2026-11-04T07:05:09Z"), now), "4 Nov 07:05");
        assert_eq!(moment(at("2025-11-04T07:05:09Z"), now), "4 Nov 2025 07:05");
        assert_eq!(when(at("2026-11-24T09:00:00Z"), now), "1 h ago");
        assert_eq!(when(at("2026-11-24T11:30:00Z"), now), "in 1 h 30 min");
        assert_eq!(exact(now), "2026-11-24T10:00:00Z");
    }
}
