use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).expect("a time").to_utc()
}

fn ended(due: &str, exit_code: u8) -> Ended {
    Ended {
        due: at(due),
        at: at(due) + TimeDelta::minutes(2),
        exit_code,
        message: String::new(),
        hint: None,
        summary: Value::Null,
        generation: 1,
    }
}

fn after(due: &str, exit_code: u8, failures: u32) -> Done {
    let last = ended(due, exit_code);
    let good = (exit_code == 0).then(|| last.clone());
    Done { running: None, last: Some(last), good, failures }
}

const MADE: &str = "2026-01-01T00:00:00Z";

#[test]
fn pauses_after_failures_grow_and_end() {
    let cron = Cron::parse("0 1 * * *", None).expect("a pattern");
    let due = |failures, now| {
        regular(&after("2026-02-01T01:00:00Z", 1, failures), Some(&cron), at(MADE), at(now))
    };
    assert_eq!(due(1, "2026-02-01T01:02:30Z").now, None);
    assert_eq!(due(1, "2026-02-01T01:02:30Z").next, Some(at("2026-02-01T01:03:00Z")));
    assert_eq!(due(1, "2026-02-01T01:03:10Z").now, Some(at("2026-02-01T01:03:00Z")));
    assert_eq!(due(2, "2026-02-01T01:06:59Z").now, None);
    assert_eq!(due(2, "2026-02-01T01:07:00Z").now, Some(at("2026-02-01T01:07:00Z")));
    assert_eq!(due(4, "2026-02-01T20:00:00Z").now, None, "it was tried often enough");
    assert_eq!(due(4, "2026-02-02T01:00:00Z").now, Some(at("2026-02-02T01:00:00Z")));
    let denied = after("2026-02-01T01:00:00Z", 4, 1);
    assert_eq!(regular(&denied, Some(&cron), at(MADE), at("2026-02-01T20:00:00Z")).now, None);
}

#[test]
fn a_repository_is_opened_at_once_and_once() {
    let now = at("2026-02-01T00:00:30Z");
    assert_eq!(init(&Done::default(), 1, now).now, Some(at("2026-02-01T00:00:00Z")));
    assert_eq!(init(&after(MADE, 0, 0), 2, now), Due::default());
    // A change of the spec may be the mend; its Job has another name than the one before.
    let failed = after("2026-02-01T00:00:00Z", 4, 1);
    assert_eq!(init(&failed, 2, now).now, Some(at("2026-02-01T00:01:00Z")));
    assert_eq!(init(&failed, 1, now).now, None);
    let often = after("2026-02-01T00:00:00Z", 4, 99);
    assert_eq!(init(&often, 1, now).next, Some(at("2026-02-01T01:02:00Z")), "each hour, for ever");
}

#[test]
fn copies_follow_the_times_of_their_schedules() {
    let cron = [Cron::parse("0 4 * * *", None).expect("a pattern")];
    let done = |due| after(due, 0, 0);
    let look = |done: &Done, now| copy(done, &cron, 30, at(now)).now;
    assert_eq!(look(&Done::default(), "2026-02-01T12:10:00Z"), Some(at("2026-02-01T11:30:00Z")));
    let first = done("2026-02-01T03:30:00Z");
    assert_eq!(look(&first, "2026-02-01T04:29:00Z"), None);
    assert_eq!(look(&first, "2026-02-01T04:30:00Z"), Some(at("2026-02-01T04:30:00Z")));
    let last = done("2026-02-01T09:30:00Z");
    assert_eq!(look(&last, "2026-02-01T20:00:00Z"), None, "nothing can be new");
    assert_eq!(look(&last, "2026-02-02T04:40:00Z"), Some(at("2026-02-02T04:30:00Z")));
    // Without any schedule that runs they are looked for once a day.
    let rest = |now| copy(&last, &[], 30, at(now)).now;
    assert_eq!(rest("2026-02-02T09:29:00Z"), None);
    assert_eq!(rest("2026-02-02T09:30:00Z"), Some(at("2026-02-02T09:30:00Z")));
}

#[test]
fn short_names_are_short() {
    assert_eq!(short(GC), "gc");
    assert!([INIT, SYNC, FORGET, GC, CHECK].iter().all(|lane| short(lane).len() <= 7));
    assert_eq!(short("copy-far").len(), 7);
    assert_ne!(short("copy-far"), short("copy-near"));
}

proptest! {
    /// Whatever the clock does, no time of a lane comes twice, as long as it is within a day.
    #[test]
    fn no_time_comes_twice(
        steps in proptest::collection::vec((-600_i64..2000, 0_u8..3), 1..200),
        minute in 0_u32..60,
    ) {
        let cron = Cron::parse(&format!("{minute} */3 * * *"), None).expect("a pattern");
        let mut now = at("2026-02-01T00:00:30Z");
        let mut furthest = now;
        let mut done = Done::default();
        let mut seen = std::collections::BTreeSet::new();
        for (minutes, code) in steps {
            now = (now + TimeDelta::minutes(minutes)).max(furthest - TimeDelta::hours(20));
            furthest = furthest.max(now);
            let due = regular(&done, Some(&cron), at("2026-01-31T12:00:00Z"), now);
            let Some(due) = due.now else { continue };
            prop_assert!(due <= now || done.last.as_ref().is_some_and(|last| due > last.due), "{due} {now}");
            prop_assert!(seen.insert(due), "{due} comes twice");
            let last = Ended { at: now, ..ended("2026-01-01T00:00:00Z", code) };
            let last = Ended { due, ..last };
            done.failures = if code == 0 { 0 } else { done.failures + 1 };
            done.last = Some(last);
        }
    }
}
