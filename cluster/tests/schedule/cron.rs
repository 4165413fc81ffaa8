//! Patterns: what they mean, and which are refused.

use super::model::Pattern;
use super::{Draw, at};
use chrono::{DateTime, Duration, Utc};
use chrono_tz::Tz;
use mover_cluster::schedule::Cron;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Zones, and moments near which their clocks are changed.
const CHANGES: &[(&str, &str)] = &[
    ("UTC", "2024-02-28T23:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    // Half an hour.
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("Australia/Lord_Howe", "2027-04-03T15:00:00Z"),
    // At midnight, to and fro.
    ("America/Havana", "2026-03-08T05:00:00Z"),
    ("America/Havana", "2026-11-01T05:00:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
    ("America/Sao_Paulo", "2018-02-18T02:00:00Z"),
    // Back over midnight, a minute after it.
    ("America/Goose_Bay", "2010-11-07T03:01:00Z"),
    ("America/Goose_Bay", "2010-03-14T03:31:00Z"),
    // Two hours.
    ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
    ("Antarctica/Troll", "2026-10-25T01:00:00Z"),
    // A whole day is left out.
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
    // Three hours, for good.
    ("Antarctica/Casey", "2018-03-11T04:00:00Z"),
    ("Africa/Casablanca", "2026-02-15T02:00:00Z"),
    ("Asia/Kathmandu", "2026-12-31T18:15:00Z"),
];

fn due(text: &str, zone: &str, after: &str, until: &str) -> Vec<String> {
    let cron = Cron::parse(text, Some(zone)).unwrap_or_else(|why| panic!("{why}"));
    let all = cron.between(at(after), at(until));
    all.iter().map(|due| due.format("%d %H:%M").to_string()).collect()
}

#[test]
fn fixed_times_that_are_jumped_over_come_right_after_the_jump() {
    // In Berlin 02:00 becomes 03:00 at 01:00 UTC.
    let night = |text| due(text, "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T10:00:00Z");
    assert_eq!(night("30 2 * * *"), ["29 01:00"]);
    assert_eq!(night("0,30 2 * * *"), ["29 01:00"], "once for all of them");
    assert_eq!(night("0 2,9 * * *"), ["29 01:00", "29 07:00"], "several hours are fixed times too");
    assert_eq!(night("0 2,3 * * *"), ["29 01:00"], "three o'clock comes right after the jump");
    assert_eq!(night("30 1,4 * * *"), ["29 00:30", "29 02:30"], "the others stay as they are");
    assert!(night("*/30 2 * * *").is_empty(), "nothing but what the clock shows");
    assert_eq!(night("0 */2 * * *").len(), 5, "four o'clock and later");
    assert_eq!(night("0 * * * *").len(), 11, "each hour that there was");
}

#[test]
fn fixed_times_that_come_twice_come_once() {
    // In Berlin 03:00 becomes 02:00 at 01:00 UTC.
    let night = |text| due(text, "Europe/Berlin", "2026-10-24T23:00:00Z", "2026-10-25T05:00:00Z");
    assert_eq!(night("30 2 * * *"), ["25 00:30"]);
    assert_eq!(night("0 1,2,3 * * *"), ["25 00:00", "25 02:00"]);
    assert_eq!(
        night("0 * * * *"),
        ["25 00:00", "25 01:00", "25 02:00", "25 03:00", "25 04:00", "25 05:00"]
    );
    assert_eq!(night("30 */2 * * *"), ["25 00:30", "25 01:30", "25 03:30"]);
}

#[test]
fn half_an_hour_is_put_forward_and_back_on_lord_howe_island() {
    let zone = "Australia/Lord_Howe";
    let spring = |text| due(text, zone, "2026-10-03T13:00:00Z", "2026-10-03T18:00:00Z");
    assert_eq!(spring("15 2 * * *"), ["03 15:30"]);
    assert_eq!(spring("0 * * * *"), ["03 13:30", "03 14:30", "03 16:00", "03 17:00", "03 18:00"]);
    let autumn = |text| due(text, zone, "2027-04-03T13:00:00Z", "2027-04-03T17:00:00Z");
    assert_eq!(autumn("45 1 * * *"), ["03 14:45"]);
    assert_eq!(autumn("45 * * * *"), ["03 13:45", "03 14:45", "03 15:15", "03 16:15"]);
}

#[test]
fn leap_days_come_in_leap_years() {
    let leap = Cron::parse("0 12 29 2 *", None).expect("a date");
    assert_eq!(leap.next_after(at("2024-03-01T00:00:00Z")), Some(at("2028-02-29T12:00:00Z")));
    assert_eq!(leap.next_after(at("2097-01-01T00:00:00Z")), Some(at("2104-02-29T12:00:00Z")));
    assert_eq!(leap.last_until(at("2028-02-29T11:59:59Z")), Some(at("2024-02-29T12:00:00Z")));
    assert_eq!(leap.last_until(at("2028-02-29T12:00:00Z")), Some(at("2028-02-29T12:00:00Z")));
    let last = Cron::parse("0 0 L 2 *", None).expect("a date");
    assert_eq!(last.next_after(at("2027-03-01T00:00:00Z")), Some(at("2028-02-29T00:00:00Z")));
}

#[test]
fn short_forms_are_what_they_stand_for() {
    let next = |text| Cron::parse(text, None).expect("it").next_after(at("2026-05-14T10:20:30Z"));
    assert_eq!(next("@hourly"), Some(at("2026-05-14T11:00:00Z")));
    assert_eq!(next("@daily"), Some(at("2026-05-15T00:00:00Z")));
    assert_eq!(next("@midnight"), Some(at("2026-05-15T00:00:00Z")));
    assert_eq!(next("@weekly"), Some(at("2026-05-17T00:00:00Z")));
    assert_eq!(next("@monthly"), Some(at("2026-06-01T00:00:00Z")));
    assert_eq!(next("@yearly"), Some(at("2027-01-01T00:00:00Z")));
    assert_eq!(next("@annually"), next("@yearly"));
    assert_eq!(next("0 9 * jun-aug MON#1"), Some(at("2026-06-01T09:00:00Z")));
    assert_eq!(next("0 9 13 * FRI"), Some(at("2026-05-15T09:00:00Z")), "either of both");
}

#[test]
fn a_refusal_names_the_field_and_the_next_step() {
    for (text, zone, words) in [
        ("0 0 30 2 *", None, "cron: `0 0 30 2 *`: no such date ever comes: name a day"),
        ("0 0 31 4,6,9,11 *", None, "no such date ever comes"),
        ("0 0 * * L", None, "no such date ever comes"),
        ("0 0 0 * * *", None, "six fields, and there are no seconds in it: write five fields"),
        ("* * * *", None, "4 fields instead of five"),
        ("", None, "0 fields instead of five"),
        ("60 * * * *", None, "`60` is no minute: write 0 to 59"),
        ("0 24 * * *", None, "`24` is no hour"),
        ("0 0 0 * *", None, "`0` is no day of the month"),
        ("0 0 * 13 *", None, "`13` is no month"),
        ("0 0 * MON *", None, "`MON` is no month"),
        ("0 0 * * 8", None, "`8` is no day of the week"),
        ("0 0 * * JAN", None, "`JAN` is no day of the week"),
        ("0 0 * * +MON", None, "`+MON` is no day of the week"),
        ("MON * * * *", None, "`MON` is no minute"),
        ("0,,5 * * * *", None, "`0,,5` is no minute"),
        ("*/0 * * * *", None, "`*/0` is no minute"),
        ("5/10 * * * *", None, "`5/10` is no minute"),
        ("30-10 * * * *", None, "`30-10` is no minute"),
        ("-1 * * * *", None, "`-1` is no minute"),
        ("0 ١ * * *", None, "`١` is no hour"),
        ("@often", None, "there is no such short form: write @hourly"),
        ("@reboot", None, "there is no such short form"),
        ("0 0 * * *", Some("Europe/Berlln"), "timeZone: Europe/Berlln is no time zone of the IANA"),
        ("0 0 * * *", Some(""), "timeZone: "),
    ] {
        let why = Cron::parse(text, zone).expect_err(text).to_string();
        assert!(why.contains(words), "{text}: {why}");
    }
}

#[test]
fn a_pattern_that_is_due_each_minute_is_counted_within_bounds() {
    let each = Cron::parse("* * * * *", None).expect("it");
    let now = at("2030-01-01T00:00:00Z");
    assert_eq!(each.between(now - Duration::days(3), now).len(), 3 * 24 * 60);
    assert_eq!(each.between(at("1971-01-01T00:00:00Z"), now).len(), 366 * 24 * 60);
    assert!(each.between(now, now - Duration::days(1)).is_empty());
}

fn field(all: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Option<BTreeSet<u32>>> {
    proptest::option::weighted(0.7, proptest::collection::btree_set(all, 1..4))
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let days = proptest::option::weighted(0.2, proptest::collection::btree_set(1..=31_u32, 1..4));
    let week = proptest::option::weighted(0.2, proptest::collection::btree_set(0..=7_u32, 1..4));
    (field(0..=59), field(0..=4), days, week).prop_map(|(minutes, hours, days, weekdays)| Pattern {
        minutes,
        hours,
        days,
        weekdays,
        months: None,
    })
}

fn agrees(pattern: &Pattern, zone: &str, from: DateTime<Utc>, until: DateTime<Utc>) {
    let text = pattern.text();
    let tz: Tz = zone.parse().expect("a zone");
    let meant = pattern.due(tz, from, until);
    let cron = Cron::parse(&text, Some(zone)).unwrap_or_else(|why| panic!("{why}"));
    let what = format!("{text} in {zone} from {from} until {until}");
    assert_eq!(cron.between(from, until), meant, "between: {what}");
    let meant = &meant[..meant.len().min(25)];
    let mut backward = Vec::new();
    let mut last = meant.last().and_then(|last| cron.last_until(*last + Duration::seconds(59)));
    while let Some(due) = last.filter(|due| *due > from) {
        backward.insert(0, due);
        last = cron.last_until(due - Duration::seconds(1));
    }
    assert_eq!(backward, meant, "backward: {what}");
    let mut forward = Vec::new();
    let mut next = cron.next_after(from);
    while let Some(due) = next.filter(|due| *due <= until && forward.len() < meant.len()) {
        forward.push(due);
        next = cron.next_after(due);
    }
    assert_eq!(forward, meant, "forward: {what}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 250,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn patterns_agree_with_a_model_of_minutes_where_clocks_change(
        pattern in pattern(),
        change in 0..CHANGES.len(),
        before in 0..1_500_i64,
        seconds in 0..60_i64,
    ) {
        let (zone, moment) = CHANGES[change];
        let from = at(moment) - Duration::minutes(before) - Duration::seconds(seconds);
        agrees(&pattern, zone, from, from + Duration::minutes(2_600));
    }
}

#[test]
fn days_of_a_leap_year_agree_with_the_model() {
    for (seed, zone) in [(1, "Europe/Berlin"), (2, "Australia/Lord_Howe"), (3, "America/Havana")] {
        let mut draw = Draw(seed);
        let mut set = |end: u64, from: u32| -> Option<BTreeSet<u32>> {
            Some((0..2).map(|_| from + u32::try_from(draw.below(end)).expect("small")).collect())
        };
        let pattern = Pattern {
            minutes: set(60, 0),
            hours: set(4, 0),
            days: set(31, 1),
            months: None,
            weekdays: set(8, 0),
        };
        agrees(&pattern, zone, at("2023-12-01T00:00:00Z"), at("2024-11-30T00:00:00Z"));
    }
}
