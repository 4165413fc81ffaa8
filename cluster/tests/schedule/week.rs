//! Weeks of many claims.

use super::model::Pattern;
use super::world::{Controller, World, doubles, seconds, spec};
use super::{Draw, at};
use chrono::{DateTime, Duration, Utc};
use chrono_tz::Tz;
use std::collections::{BTreeMap, BTreeSet};

type Times = BTreeSet<DateTime<Utc>>;

/// For each claim, when its runs were due.
fn made(world: &World) -> BTreeMap<String, Times> {
    let mut all: BTreeMap<String, Times> = BTreeMap::new();
    for made in &world.made {
        let claim = made.run.claim.clone().expect("one claim each");
        all.entry(claim).or_default().insert(made.run.due);
    }
    all
}

fn hourly() -> Pattern {
    Pattern { minutes: Some(BTreeSet::from([0])), ..Pattern::default() }
}

/// A week of an hourly schedule of 500 claims, each of which begins within ten minutes.
fn week(zone: &str, begin: &str, down: Option<(i64, i64)>) -> (World, Times) {
    let (begin, tz) = (at(begin), zone.parse::<Tz>().expect("a zone"));
    let end = begin + Duration::days(7);
    let mut spec = spec("0 * * * *", zone);
    spec.jitter_seconds = Some(600);
    let mut world = World::new(spec, 500, begin);
    let mut controller = Controller::default();
    let mut now = begin;
    while now <= end + Duration::minutes(30) {
        world.pass(now);
        let minutes = (now - begin).num_minutes();
        if down.is_none_or(|(from, until)| minutes < from || minutes >= until) {
            controller.refresh(&world);
            controller.act(&mut world, now, u64::MAX);
        } else {
            controller.crash();
        }
        now += Duration::minutes(10);
    }
    let due = hourly().due(tz, begin, end).into_iter().collect();
    (world, due)
}

fn holds(zone: &str, begin: &str, times: usize) {
    let (world, due) = week(zone, begin, None);
    assert_eq!(due.len(), times, "{zone}: the model");
    assert_eq!(doubles(&world).len(), 0, "{zone}: doubled");
    let made = made(&world);
    assert_eq!(made.len(), 500);
    for (claim, times) in made {
        let times: Times = times.into_iter().filter(|time| due.last() >= Some(time)).collect();
        assert_eq!(times, due, "{zone}: {claim}");
    }
    for made in &world.made {
        let late = made.when - made.run.due;
        assert!(late >= Duration::zero() && late <= Duration::minutes(20), "{made:?}");
    }
    assert_eq!(world.mark.expect("a mark").missed, 0);
    assert!(world.runs.len() <= 500 * 5, "history is kept short: {}", world.runs.len());
}

#[test]
fn a_week_of_500_claims_when_berlin_puts_its_clock_forward() {
    holds("Europe/Berlin", "2026-03-25T00:30:00Z", 7 * 24);
}

#[test]
fn a_week_of_500_claims_when_new_york_puts_its_clock_back() {
    holds("America/New_York", "2026-10-29T00:30:00Z", 7 * 24);
}

#[test]
fn a_week_of_500_claims_when_lord_howe_puts_its_clock_half_an_hour_back() {
    // The clock shows 01:30 to 02:00 twice, so two of its hours are half an hour further apart.
    holds("Australia/Lord_Howe", "2027-04-01T00:10:00Z", 7 * 24 - 1);
}

#[test]
fn a_week_of_500_claims_with_a_leap_day() {
    holds("UTC", "2028-02-26T00:30:00Z", 7 * 24);
}

#[test]
fn after_hours_without_a_controller_the_newest_run_alone_is_caught_up_on() {
    // Down from 20:30 until 02:40: six runs were due, and the last one may still begin.
    let (world, mut due) = week("Europe/Berlin", "2026-03-25T00:30:00Z", Some((1_200, 1_570)));
    assert_eq!(doubles(&world).len(), 0);
    for hour in 21..24 {
        assert!(due.remove(&at(&format!("2026-03-25T{hour}:00:00Z"))));
    }
    for hour in 0..2 {
        assert!(due.remove(&at(&format!("2026-03-26T0{hour}:00:00Z"))));
    }
    for (claim, times) in made(&world) {
        let times: Times = times.into_iter().filter(|time| due.last() >= Some(time)).collect();
        assert_eq!(times, due, "{claim}");
    }
    assert_eq!(world.mark.expect("a mark").missed, 5);
}

/// What happened in a week of accidents.
struct Story {
    world: World,
    /// When a controller looked, planned and did all of it, with the claims that were busy then.
    good: Vec<(DateTime<Utc>, BTreeSet<String>)>,
    rests: Vec<(DateTime<Utc>, DateTime<Utc>)>,
    end: DateTime<Utc>,
}

const SKEW_SECONDS: i64 = 120;
const STALE_SECONDS: i64 = 600;

/// Two controllers in turns as they are drawn, with what else may happen to them.
fn story(seed: u64, cron: &str, zone: &str, begin: &str, steps: bool) -> Story {
    let mut draw = Draw(seed);
    let begin = at(begin);
    let end = begin + Duration::days(3);
    let mut spec = spec(cron, zone);
    spec.jitter_seconds = draw.one_in(2).then_some(900);
    spec.history = Some(1 + u32::try_from(draw.below(3)).expect("small"));
    let mut world = World::new(spec, 4, begin);
    world.takes = seconds(&mut draw, 1_500);
    let skew = |draw: &mut Draw| seconds(draw, 240) - Duration::seconds(SKEW_SECONDS);
    let mut two = [(); 2].map(|()| (Controller::default(), begin, begin));
    two[0].0.ahead = skew(&mut draw);
    let (mut good, mut rests) = (Vec::new(), Vec::<(DateTime<Utc>, DateTime<Utc>)>::new());
    let mut now = begin;
    while now < end {
        now += seconds(&mut draw, 240);
        world.pass(now);
        let which = usize::try_from(draw.below(2)).expect("small");
        let (controller, seen, away) = &mut two[which];
        if draw.one_in(150) {
            *away = now + seconds(&mut draw, 6 * 3_600);
            controller.crash();
        }
        if draw.one_in(300) {
            let rest = !world.spec.suspend;
            world.change(now, |spec| spec.suspend = rest);
            match rest {
                true => rests.push((now, end)),
                false => rests.last_mut().expect("it rests").1 = now,
            }
        }
        if steps && draw.one_in(40) {
            controller.ahead = seconds(&mut draw, 6 * 3_600) - Duration::hours(3);
        }
        if now < *away {
            continue;
        }
        let refreshed = draw.one_in(2) || now - *seen > Duration::seconds(STALE_SECONDS);
        if refreshed {
            controller.refresh(&world);
            *seen = now;
        }
        let requests = if draw.one_in(4) { draw.below(6) } else { u64::MAX };
        let busy = world.runs.values().filter(|run| world.ends.contains_key(&run.name));
        let busy: BTreeSet<String> = busy.filter_map(|run| run.claim.clone()).collect();
        controller.act(&mut world, now, requests);
        if refreshed && requests == u64::MAX && !world.spec.suspend {
            good.push((now, busy));
        }
        // A user deletes what is settled, as soon as both know that.
        let settled = world.mark.as_ref().map(|mark| mark.backups.until);
        if draw.one_in(20) {
            let mut old = world.made.iter().filter(|made| Some(made.run.due) <= settled);
            if let Some(name) = old.next_back().map(|made| made.run.name.clone()) {
                two.iter_mut().for_each(|(controller, seen, _)| {
                    controller.refresh(&world);
                    *seen = now;
                });
                world.delete(&name);
            }
        }
    }
    Story { world, good, rests, end }
}

/// What must hold of a story without steps of clocks.
fn check(story: &Story, due: &[DateTime<Utc>], what: &str) -> (usize, usize) {
    let jitter = i64::from(story.world.spec.jitter_seconds.unwrap_or_default());
    let made = made(&story.world);
    for made in &story.world.made {
        let late = (made.when - made.run.due).num_seconds();
        assert!(due.contains(&made.run.due), "{what}: not due: {made:?}");
        assert!(late >= -SKEW_SECONDS, "{what}: too early: {made:?}");
        assert!(late <= 3_600 + jitter + SKEW_SECONDS, "{what}: too late: {made:?}");
        for (from, until) in &story.rests {
            let margin = Duration::seconds(STALE_SECONDS + SKEW_SECONDS);
            let rested = made.when > *from + margin
                && made.run.due <= *until - Duration::seconds(SKEW_SECONDS)
                && made.run.due > *from;
            assert!(!rested, "{what}: it rested from {from} until {until}: {made:?}");
        }
    }
    let (mut looked, mut skipped) = (0, 0);
    for (at, time) in due.iter().enumerate() {
        let next = due.get(at + 1).copied().unwrap_or(story.end);
        let begin = *time + Duration::seconds(jitter + SKEW_SECONDS);
        let end =
            (*time + Duration::seconds(3_600)).min(next) - Duration::seconds(3 * SKEW_SECONDS);
        let near = |(from, until): &(DateTime<Utc>, DateTime<Utc>)| {
            *from < next && *until + Duration::hours(1) > *time
        };
        if story.rests.iter().any(near) {
            skipped += 1;
            continue;
        }
        for claim in &story.world.claims {
            let may = |(good, busy): &&(DateTime<Utc>, BTreeSet<String>)| {
                *good >= begin && *good <= end && !busy.contains(&claim.name)
            };
            if story.good.iter().find(may).is_some() {
                looked += 1;
                let has = made.get(&claim.name).is_some_and(|times| times.contains(time));
                assert!(has, "{what}: {} has no run of {time}", claim.name);
            }
        }
    }
    (looked, skipped)
}

const PLACES: [(&str, &str, &str); 4] = [
    ("0 * * * *", "Europe/Berlin", "2026-03-28T03:10:00Z"),
    ("30 1,2,3,14 * * *", "America/New_York", "2026-10-31T00:10:00Z"),
    ("45 * * * *", "Australia/Lord_Howe", "2027-04-02T10:00:00Z"),
    ("15 */2 * * *", "UTC", "2028-02-28T00:00:00Z"),
];

fn pattern(cron: &str) -> Pattern {
    let set = |text: &str| match text {
        "*" => None,
        "*/2" => Some((0..24).step_by(2).collect()),
        list => Some(list.split(',').map(|at| at.parse().expect("a number")).collect()),
    };
    let fields: Vec<&str> = cron.split(' ').collect();
    Pattern { minutes: set(fields[0]), hours: set(fields[1]), ..Pattern::default() }
}

#[test]
fn two_controllers_in_any_order_miss_none_that_could_begin_and_double_none() {
    let (mut looked, mut rested) = (0, 0);
    for seed in 0..24 {
        let (cron, zone, begin) = PLACES[usize::try_from(seed).expect("small") % PLACES.len()];
        let what = format!("seed {seed}, {cron} in {zone}");
        let story = story(seed, cron, zone, begin, false);
        assert_eq!(doubles(&story.world), Vec::<&super::world::Made>::new(), "{what}");
        let tz: Tz = zone.parse().expect("a zone");
        let margin = Duration::seconds(SKEW_SECONDS);
        let due = match cron {
            // The model takes a step in the hours for a list: this zone has no changes.
            "15 */2 * * *" => pattern(cron).due(Tz::UTC, at(begin), story.end + margin),
            _ => pattern(cron).due(tz, at(begin), story.end + margin),
        };
        let (some, rests) = check(&story, &due, &what);
        looked += some;
        rested += rests;
    }
    assert!(looked > 1_000, "the stories had runs that had to be there: {looked}");
    assert!(rested > 100, "and schedules that rested: {rested}");
}

#[test]
fn clocks_that_step_double_nothing() {
    let mut runs = 0;
    for seed in 1_000..1_024 {
        let (cron, zone, begin) = PLACES[usize::try_from(seed).expect("small") % PLACES.len()];
        let story = story(seed, cron, zone, begin, true);
        assert_eq!(
            doubles(&story.world),
            Vec::<&super::world::Made>::new(),
            "seed {seed}, {cron} in {zone}"
        );
        runs += story.world.made.len();
    }
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn a_clock_that_is_years_ahead_makes_no_burst_and_holds_up_nothing() {
    let begin = at("2026-05-01T00:30:00Z");
    let mut world = World::new(spec("0 * * * *", "UTC"), 20, begin);
    let mut two = [Controller::default(), Controller::default()];
    let mut now = begin;
    while now < begin + Duration::days(2) {
        now += Duration::minutes(4);
        world.pass(now);
        // Two hours with a clock of another decade.
        let is_off = now > begin + Duration::hours(10) && now < begin + Duration::hours(12);
        two[0].ahead = if is_off { Duration::days(4_000) } else { Duration::zero() };
        for controller in &mut two {
            controller.refresh(&world);
            controller.act(&mut world, now, u64::MAX);
        }
    }
    assert_eq!(doubles(&world).len(), 0);
    let due: Times = hourly().due(Tz::UTC, begin, now).into_iter().collect();
    for (claim, times) in made(&world) {
        let (ours, ahead): (Times, Times) = times.into_iter().partition(|time| *time <= now);
        assert_eq!(ours, due, "{claim}");
        assert!((1..=3).contains(&ahead.len()), "{claim}: one for each hour that it was off");
    }
    let settled = world.mark.expect("a mark").backups.until;
    assert!(settled <= now, "the mark is of the right clock again: {settled}");
}
