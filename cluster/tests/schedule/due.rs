//! One schedule, step by step.

use super::at;
use super::world::{Controller, World, claim, doubles, spec};
use chrono::{Duration, Timelike as _};
use mover_cluster::kinds::BackupSource;
use mover_cluster::schedule::{
    Around, Cron, Mark, NewRun, Run, Schedule, State, Stream, Timing, due, run_name,
};
use std::collections::BTreeSet;

fn names(world: &World) -> Vec<&str> {
    world.made.iter().map(|made| made.run.name.as_str()).collect()
}

/// Looks and acts at a time.
fn turn(world: &mut World, controller: &mut Controller, time: &str) {
    world.pass(at(time));
    controller.refresh(world);
    controller.act(world, at(time), u64::MAX);
}

fn hourly(claims: usize) -> World {
    World::new(spec("0 * * * *", "UTC"), claims, at("2026-05-01T08:30:00Z"))
}

#[test]
fn a_run_that_its_user_deleted_is_not_made_again() {
    let mut world = hourly(1);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:00:05Z");
    assert_eq!(names(&world), ["nightly-202605010900-data-0"]);
    world.delete("nightly-202605010900-data-0");
    // The same process knows it, though the mark was not written before.
    turn(&mut world, &mut one, "2026-05-01T09:00:20Z");
    // Another one, which begins later, has the mark.
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:00:40Z");
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:59:40Z");
    assert_eq!(world.made.len(), 1);
    turn(&mut world, &mut Controller::default(), "2026-05-01T10:00:00Z");
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_run_of_one_claim_has_no_suffix_and_one_of_a_group_has_none_either() {
    let mut world = hourly(2);
    world.spec.template.spec.source =
        BackupSource { pvc: Some("data-1".into()), ..BackupSource::default() };
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:10:00Z");
    assert_eq!(names(&world), ["nightly-202605010900"]);
    assert_eq!(world.made[0].run.claim.as_deref(), Some("data-1"));
    let mut world = hourly(2);
    world.spec.template.spec.source.group = Some(true);
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:10:00Z");
    assert_eq!(names(&world), ["nightly-202605010900"]);
    assert_eq!(world.made[0].run.claim, None);
}

#[test]
fn another_pattern_is_not_due_at_times_before_it_was_written() {
    let mut world = hourly(1);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:00:05Z");
    world.change(at("2026-05-01T09:30:00Z"), |spec| spec.cron = "15 * * * *".into());
    turn(&mut world, &mut one, "2026-05-01T09:31:00Z");
    assert_eq!(world.made.len(), 1, "09:15 was before the change");
    turn(&mut world, &mut one, "2026-05-01T10:15:00Z");
    assert_eq!(names(&world)[1..], ["nightly-202605011015-data-0"]);
    // A change that no controller saw: what came due after it is caught up on.
    world.change(at("2026-05-01T10:30:00Z"), |spec| spec.cron = "45 * * * *".into());
    turn(&mut world, &mut Controller::default(), "2026-05-01T11:20:00Z");
    assert_eq!(names(&world)[2..], ["nightly-202605011045-data-0"]);
    assert_eq!(world.mark.expect("a mark").missed, 0);
}

#[test]
fn what_is_missed_while_it_rests_is_not_caught_up_on() {
    let mut world = hourly(1);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:00:05Z");
    world.change(at("2026-05-01T09:30:00Z"), |spec| spec.suspend = true);
    turn(&mut world, &mut one, "2026-05-01T09:31:00Z");
    turn(&mut world, &mut one, "2026-05-01T10:01:00Z");
    world.change(at("2026-05-01T10:30:00Z"), |spec| spec.suspend = false);
    turn(&mut world, &mut one, "2026-05-01T10:31:00Z");
    assert_eq!(world.made.len(), 1, "10:00 came while it rested");
    turn(&mut world, &mut one, "2026-05-01T11:00:01Z");
    assert_eq!(names(&world)[1..], ["nightly-202605011100-data-0"]);
    assert_eq!(world.mark.expect("a mark").missed, 0);
}

#[test]
fn a_schedule_of_an_old_name_begins_anew() {
    let mut world = hourly(1);
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:00:05Z");
    // Made anew: its runs are those that it owns, and the old mark is gone with the old object.
    world.runs.clear();
    world.mark = None;
    world.since.created = at("2026-05-01T09:00:30Z");
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:01:00Z");
    assert_eq!(world.made.len(), 1, "09:00 was before it was made");
    turn(&mut world, &mut Controller::default(), "2026-05-01T10:00:00Z");
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_new_claim_has_its_first_run_at_the_next_time() {
    let mut world = hourly(1);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:00:05Z");
    world.claims.push(claim("later", at("2026-05-01T09:10:00Z")));
    turn(&mut world, &mut one, "2026-05-01T09:11:00Z");
    assert_eq!(world.made.len(), 1);
    turn(&mut world, &mut one, "2026-05-01T10:00:00Z");
    assert!(names(&world).contains(&"nightly-202605011000-later"));
    // An old claim that the selector chooses from now on: times until now are settled.
    world.claims.push(claim("older", at("2026-01-01T00:00:00Z")));
    turn(&mut world, &mut one, "2026-05-01T10:01:00Z");
    turn(&mut world, &mut one, "2026-05-01T10:02:00Z");
    assert_eq!(world.made.len(), 3);
    turn(&mut world, &mut one, "2026-05-01T11:00:00Z");
    assert_eq!(world.made.len(), 6);
}

#[test]
fn a_run_waits_for_the_one_before_it() {
    let mut world = hourly(1);
    world.takes = Duration::minutes(150);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:00:00Z");
    for time in ["2026-05-01T10:00:01Z", "2026-05-01T10:59:00Z", "2026-05-01T11:20:00Z"] {
        turn(&mut world, &mut one, time);
        assert_eq!(world.made.len(), 1, "{time}");
    }
    // It ends at 11:30. The run of 10:00 is missed for good, and that of 11:00 may begin.
    turn(&mut world, &mut one, "2026-05-01T11:31:00Z");
    assert_eq!(names(&world)[1..], ["nightly-202605011100-data-0"]);
    assert_eq!(world.mark.as_ref().expect("a mark").missed, 1);
}

#[test]
fn a_run_that_may_not_begin_any_more_is_missed() {
    let mut world = World::new(spec("0 9 * * *", "UTC"), 2, at("2026-05-01T08:30:00Z"));
    world.spec.starting_deadline_seconds = Some(600);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:10:01Z");
    assert_eq!(world.made.len(), 0);
    assert_eq!(world.mark.as_ref().expect("a mark").missed, 1);
    turn(&mut world, &mut one, "2026-05-01T12:00:00Z");
    assert_eq!(world.mark.as_ref().expect("a mark").missed, 1, "counted once");
    turn(&mut world, &mut one, "2026-05-02T09:10:00Z");
    assert_eq!(world.made.len(), 2, "the last second");
}

#[test]
fn the_share_of_the_jitter_is_the_claims_own_and_below_the_period() {
    let cron = Cron::parse("*/10 * * * *", None).expect("it");
    let timing = Timing { cron, jitter_seconds: 86_400, deadline_seconds: Some(3_600) };
    let mut shares = BTreeSet::new();
    let moments = |from: &str| -> Vec<_> {
        let moment = |second| at(from) + Duration::seconds(second);
        (0..600).map(|second| Around::new(&timing.cron, moment(second))).collect()
    };
    let times =
        ["2026-05-01T09:00:00Z", "2026-05-01T09:30:00Z"].map(|from| (at(from), moments(from)));
    let before = Around::new(&timing.cron, at("2026-05-01T08:59:00Z"));
    for number in 0..200 {
        let stream = Stream {
            id: format!("claim-{number}"),
            since: at("2026-05-01T08:55:00Z"),
            ..Stream::default()
        };
        let begins = |(begin, moments): &(_, Vec<Around>)| {
            let second =
                moments.iter().position(|at| due(&timing, at, &stream).run == Some(*begin));
            let second = second.unwrap_or_else(|| panic!("{number} begins before the next one"));
            i64::try_from(second).expect("small")
        };
        let share = begins(&times[0]);
        assert_eq!(begins(&times[1]), share, "always the same");
        // The time to look again is that at which it begins.
        let look = due(&timing, &before, &stream).look;
        assert_eq!(look, Some(at("2026-05-01T09:00:00Z") + Duration::seconds(share)));
        shares.insert(share);
    }
    assert!(shares.len() > 120, "they are spread: {}", shares.len());
    assert!(shares.first() < Some(&30) && shares.last() > Some(&570), "{shares:?}");
}

#[test]
fn names_are_short_and_each_ones_own() {
    let due = at("2026-05-01T09:00:00Z");
    assert_eq!(run_name("db", due, None), "db-202605010900");
    assert_eq!(run_name("db", due, Some("data-0")), "db-202605010900-data-0");
    let (long, longer) = ("s".repeat(200), "c".repeat(253));
    let mut all = BTreeSet::new();
    for schedule in
        ["db", &long, &"s".repeat(201), &format!("{}.{}", "x".repeat(38), "y".repeat(60))]
    {
        for claim in [None, Some(longer.as_str()), Some("data-0"), Some(&longer[1..])] {
            for minutes in 0..3 {
                let name = run_name(schedule, due + Duration::minutes(minutes), claim);
                assert!(name.len() <= 63, "{name}");
                let ends = name.ends_with(|c: char| c.is_ascii_alphanumeric());
                assert!(ends && !name.contains("..") && !name.contains(".-"), "{name}");
                assert!(name.contains(&format!("-20260501090{minutes}")), "{name}");
                assert!(all.insert(name), "each has its own");
            }
        }
    }
}

#[test]
fn a_run_without_its_note_is_known_by_its_name() {
    let mut world = hourly(3);
    let mut one = Controller::default();
    turn(&mut world, &mut one, "2026-05-01T09:00:05Z");
    world.mark = None;
    for (at, run) in world.runs.values_mut().enumerate() {
        run.scheduled = [None, Some("yesterday"), Some("2026-05-01T07:00:00Z")][at].map(Into::into);
    }
    world.version += 1;
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:20:00Z");
    assert_eq!(doubles(&world).len(), 0);
    assert_eq!(world.made.len(), 3);
}

#[test]
fn a_mark_that_somebody_else_wrote_says_nothing() {
    for text in ["", "{}", "null", "[]", "{\"backups\":{\"until\":\"soon\"}}"] {
        assert_eq!(Mark::parse(text), None, "{text}");
    }
    let mut world = hourly(1);
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:00:05Z");
    let mark = world.mark.clone().expect("a mark");
    assert_eq!(Mark::parse(&mark.text()), Some(mark.clone()));
    // One that is far ahead is of a wrong clock, or of somebody who wants no backups: they come.
    let mut far = mark;
    far.backups.until = at("2226-05-01T09:00:05Z");
    world.mark = Some(far);
    turn(&mut world, &mut Controller::default(), "2026-05-01T10:00:05Z");
    assert_eq!(world.made.len(), 2);
}

#[test]
fn health_tells_claims_that_have_no_backup_in_time() {
    let mut world = hourly(2);
    world.spec.starting_deadline_seconds = Some(600);
    let health = |world: &World, now: &str| {
        let runs: Vec<Run> = world.runs.values().cloned().collect();
        let spec = world.spec.clone();
        let schedule =
            Schedule { name: "nightly", uid: "u", since: world.since, spec: &spec, mark: None };
        schedule.health(&world.claims, &runs, at(now)).expect("a spec")
    };
    let early = health(&world, "2026-05-01T09:05:00Z");
    assert_eq!((early.up_to_date.status, early.newest_good), ("True", None));
    let late = health(&world, "2026-05-01T09:10:01Z");
    assert_eq!((late.up_to_date.status, late.up_to_date.reason), ("False", "Behind"));
    assert!(late.up_to_date.message.contains("data-0, data-1"), "{}", late.up_to_date.message);
    turn(&mut world, &mut Controller::default(), "2026-05-01T09:01:00Z");
    world.pass(at("2026-05-01T09:04:00Z"));
    let good = health(&world, "2026-05-01T09:10:01Z");
    assert_eq!((good.up_to_date.status, good.claims), ("True", 2));
    assert_eq!(good.newest_good, Some(at("2026-05-01T09:01:00Z")));
    let behind = health(&world, "2026-05-01T10:10:01Z");
    assert_eq!(behind.up_to_date.reason, "Behind");
    // Cuts of a clock that is ahead say nothing of the time until then.
    let mut ahead = world.clone();
    for run in ahead.runs.values_mut() {
        run.state = State::Good { cut: at("2226-05-01T09:01:00Z") };
    }
    assert_eq!(health(&ahead, "2026-05-01T10:10:01Z").up_to_date.reason, "Behind");
    // A last run that failed is told at once.
    let run = world.runs.get_mut("nightly-202605010900-data-1").expect("it");
    run.state = State::Failed;
    let failed = health(&world, "2026-05-01T09:09:00Z");
    assert_eq!((failed.up_to_date.status, failed.up_to_date.reason), ("False", "LastRunFailed"));
    assert!(failed.up_to_date.message.ends_with(": data-1"), "{}", failed.up_to_date.message);
    assert_eq!(failed.newest_good, None, "one of them has none");
    world.spec.suspend = true;
    assert_eq!(health(&world, "2026-05-01T19:09:00Z").up_to_date.status, "Unknown");
    world.spec.suspend = false;
    world.claims.clear();
    assert_eq!(health(&world, "2026-05-01T09:09:00Z").up_to_date.reason, "NoClaims");
}

/// A schedule of single claims became one of a group, or the other way round.
#[test]
fn of_a_claims_run_and_a_groups_the_later_one_counts() {
    let mut world = hourly(2);
    world.spec.starting_deadline_seconds = Some(600);
    let run = |claim: Option<&str>, time: &str, state: State| Run {
        name: format!("nightly-{time}-{}", claim.unwrap_or("group")),
        claim: claim.map(str::to_owned),
        scheduled: None,
        created: at(time),
        state,
    };
    let good = |claim, time: &str| run(claim, time, State::Good { cut: at(time) });
    let health = |runs: &[Run], now: &str| {
        let (spec, since) = (&world.spec, world.since);
        let schedule = Schedule { name: "nightly", uid: "u", since, spec, mark: None };
        schedule.health(&world.claims, runs, at(now)).expect("a spec")
    };
    let (old, new) = ("2026-05-01T09:00:00Z", "2026-05-03T09:00:00Z");
    let to_group = [good(Some("data-0"), old), good(Some("data-1"), old), good(None, new)];
    let found = health(&to_group, "2026-05-03T09:30:00Z");
    assert_eq!((found.up_to_date.status, found.newest_good), ("True", Some(at(new))));
    let to_each = [good(None, old), good(Some("data-0"), new), good(Some("data-1"), new)];
    let found = health(&to_each, "2026-05-03T09:30:00Z");
    assert_eq!((found.up_to_date.status, found.newest_good), ("True", Some(at(new))));
}

#[test]
fn a_known_run_of_another_claim_does_not_count() {
    let world = hourly(2);
    let schedule =
        Schedule { name: "nightly", uid: "u", since: world.since, spec: &world.spec, mark: None };
    let due = at("2026-05-01T09:00:00Z");
    let known = BTreeSet::from([NewRun { name: "x".into(), claim: Some("data-0".into()), due }]);
    let plan = schedule.plan(&world.claims, &[], &known, due.with_second(5).expect("it"));
    let create = plan.expect("a plan").create;
    assert_eq!(create.len(), 1);
    assert_eq!(create[0].claim.as_deref(), Some("data-1"));
}
