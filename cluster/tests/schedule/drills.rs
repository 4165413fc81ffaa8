//! Drills: when, of which claim, and what is known of them.

use super::at;
use super::world::spec;
use chrono::{DateTime, Duration, Utc};
use mover_cluster::kinds::{BackupScheduleSpec, CronTimes, Drill};
use mover_cluster::schedule::{
    Candidate, DrillPlan, DrillRecord, DrillState, Mark, Schedule, Since, drill_name,
};
use std::collections::BTreeSet;

fn weekly() -> BackupScheduleSpec {
    let mut spec = spec("0 * * * *", "UTC");
    let at = CronTimes { cron: "0 4 * * SUN".into(), time_zone: Some("Europe/Berlin".into()) };
    spec.drill = Some(Drill { at, ..Drill::default() });
    spec
}

fn schedule<'a>(spec: &'a BackupScheduleSpec, mark: Option<&'a Mark>) -> Schedule<'a> {
    let since = Since { created: at("2026-05-01T00:00:00Z"), changed: None };
    Schedule { name: "nightly", uid: "u", since, spec, mark }
}

fn candidates(names: &[&str]) -> Vec<Candidate> {
    let of = |name: &&str| Candidate {
        claim: (*name).into(),
        uid: format!("uid-of-{name}"),
        backup: format!("nightly-202605010900-{name}"),
    };
    names.iter().map(of).collect()
}

fn record(due: DateTime<Utc>, of: &Candidate, state: DrillState) -> DrillRecord {
    DrillRecord {
        name: drill_name("nightly", due),
        scheduled: Some(due.to_rfc3339()),
        claim: (of.claim.clone(), of.uid.clone()),
        backup: of.backup.clone(),
        ended: (state != DrillState::UnderWay).then_some(due + Duration::minutes(9)),
        state,
        message: "exit code 3".into(),
    }
}

fn plan(
    schedule: &Schedule<'_>,
    records: &[DrillRecord],
    of: &[Candidate],
    now: &str,
) -> DrillPlan {
    schedule.plan_drills(records, of, &BTreeSet::new(), at(now)).expect("a plan")
}

#[test]
fn a_drill_begins_when_it_is_due_and_goes_round_the_claims() {
    let spec = weekly();
    let schedule = schedule(&spec, None);
    let all = candidates(&["a", "b", "c", "d", "e"]);
    let mut records: Vec<DrillRecord> = Vec::new();
    let mut drilled = Vec::new();
    let mut now = at("2026-05-01T00:10:00Z");
    while drilled.len() < 11 {
        let plan = plan(&schedule, &records, &all, &now.to_rfc3339());
        if let Some(new) = plan.begin {
            assert_eq!(new.due.format("%a %H:%M").to_string(), "Sun 02:00", "summer in Berlin");
            assert_eq!(now - new.due, Duration::zero(), "looked again at the right time");
            drilled.push(new.of.claim.clone());
            records.push(record(new.due, &new.of, DrillState::Passed));
            records.drain(..records.len().saturating_sub(1));
        }
        now = plan.look.filter(|look| *look > now).unwrap_or(now + Duration::hours(1));
    }
    let first: BTreeSet<&String> = drilled[..5].iter().collect();
    assert_eq!(first.len(), 5, "each has its turn: {drilled:?}");
    assert_eq!(drilled[..5], drilled[5..10], "in the same order");
    // A claim that is gone, and new ones, do not stop the round.
    let other = candidates(&["x", "y", "b"]);
    let mut round = BTreeSet::new();
    for week in 0..3 {
        let due = at("2026-08-30T02:00:00Z") + Duration::weeks(week);
        let new = plan(&schedule, &records, &other, &due.to_rfc3339()).begin.expect("it is due");
        round.insert(new.of.claim.clone());
        records = vec![record(due, &new.of, DrillState::Passed)];
    }
    assert_eq!(round.len(), 3);
}

#[test]
fn a_drill_waits_for_a_good_backup_and_is_missing_until_then() {
    let spec = weekly();
    let schedule = schedule(&spec, None);
    let before = plan(&schedule, &[], &[], "2026-05-02T00:00:00Z");
    let verdict = schedule.drilled(&before, &[], at("2026-05-02T00:00:00Z")).expect("drills");
    assert_eq!((verdict.status, verdict.reason), ("Unknown", "NoDrillYet"));
    let none = plan(&schedule, &[], &[], "2026-05-03T02:10:00Z");
    assert_eq!((&none.begin, none.open), (&None, Some(at("2026-05-03T02:00:00Z"))));
    assert_eq!(none.look, Some(at("2026-05-03T02:30:01Z")), "when it is late");
    let verdict = schedule.drilled(&none, &[], at("2026-05-03T02:10:00Z")).expect("drills");
    assert_eq!(verdict.status, "Unknown", "not late yet");
    let late = plan(&schedule, &[], &[], "2026-05-03T02:30:01Z");
    let verdict = schedule.drilled(&late, &[], at("2026-05-03T02:30:01Z")).expect("drills");
    assert_eq!((verdict.status, verdict.reason), ("False", "DrillMissed"));
    assert!(verdict.message.contains("no claim has a good backup"), "{}", verdict.message);
    // Three days later there is one.
    let then = plan(&schedule, &[], &candidates(&["a"]), "2026-05-06T00:00:00Z");
    assert_eq!(then.begin.expect("it").name, "mover-drill-nightly-202605030200");
}

#[test]
fn a_drill_that_failed_is_bad_until_one_passes() {
    let spec = weekly();
    let schedule = schedule(&spec, None);
    let of = candidates(&["a"]);
    let first = record(at("2026-05-03T02:00:00Z"), &of[0], DrillState::Failed);
    let now = "2026-05-04T00:00:00Z";
    let verdict = |records: &[DrillRecord], now: &str| {
        let plan = plan(&schedule, records, &of, now);
        assert_eq!(plan.begin, None);
        schedule.drilled(&plan, records, at(now)).expect("drills")
    };
    let failed = verdict(std::slice::from_ref(&first), now);
    assert_eq!((failed.status, failed.reason), ("False", "DrillFailed"));
    assert!(failed.message.ends_with("exit code 3"), "{}", failed.message);
    let due = at("2026-05-10T02:00:00Z");
    let running = [first.clone(), record(due, &of[0], DrillState::UnderWay)];
    assert_eq!(verdict(&running, "2026-05-10T02:10:00Z").reason, "DrillFailed");
    let passed = [first, record(due, &of[0], DrillState::Passed)];
    assert_eq!(verdict(&passed, "2026-05-10T02:10:00Z").status, "True");
    // One that does not end holds up the next one, and that is told.
    let stuck = [record(due, &of[0], DrillState::UnderWay)];
    let late = verdict(&stuck, "2026-05-17T02:40:00Z");
    assert_eq!((late.status, late.reason), ("False", "DrillMissed"));
    assert!(
        late.message.contains("mover-drill-nightly-202605100200 has not ended"),
        "{}",
        late.message
    );
}

/// A clock was ten years ahead while one drill ran.
#[test]
fn a_drill_of_a_clock_that_was_ahead_hides_no_later_one() {
    let spec = weekly();
    let schedule = schedule(&spec, None);
    let all = candidates(&["a", "b", "c"]);
    let far = record(at("2036-05-04T02:00:00Z"), &all[0], DrillState::Passed);
    let mut records = vec![far.clone()];
    let mut drilled = BTreeSet::new();
    for week in 0..3 {
        let due = at("2026-05-03T02:00:00Z") + Duration::weeks(week);
        let new = plan(&schedule, &records, &all, &due.to_rfc3339()).begin.expect("it is due");
        drilled.insert(new.of.claim.clone());
        records.push(record(due, &new.of, DrillState::Failed));
        let now = due + Duration::hours(1);
        let then = plan(&schedule, &records, &all, &now.to_rfc3339());
        let verdict = schedule.drilled(&then, &records, now).expect("drills");
        assert_eq!((verdict.status, verdict.reason), ("False", "DrillFailed"));
        assert_eq!(schedule.last_drill(&records, now), records.last());
    }
    assert_eq!(drilled.len(), 3, "each has its turn");
    assert_eq!(schedule.last_drill(&[far], at("2026-05-03T02:00:00Z")), None);
}

#[test]
fn no_drill_is_made_twice_or_while_the_schedule_rests() {
    let mut spec = weekly();
    let of = candidates(&["a"]);
    let now = "2026-05-03T02:00:01Z";
    let (begun, mark) = {
        let schedule = schedule(&spec, None);
        let begun = plan(&schedule, &[], &of, now).begin.expect("it is due");
        // Its record was deleted by a user at once: the process knows it, and later the mark does.
        let known = BTreeSet::from([begun.due]);
        let again = schedule.plan_drills(&[], &of, &known, at(now)).expect("a plan");
        assert_eq!(again.begin, None);
        let backups = schedule.plan(&[], &[], &BTreeSet::new(), at(now)).expect("a plan");
        (begun, schedule.mark(&backups, &again).expect("a new mark"))
    };
    assert_eq!(mark.drills.until, begun.due);
    assert_eq!(plan(&schedule(&spec, Some(&mark)), &[], &of, now).begin, None);
    // Drills that come by another pattern are due from the change on.
    spec.drill.as_mut().expect("it").at.cron = "0 * * * *".into();
    let mut changed = schedule(&spec, Some(&mark));
    changed.since.changed = Some(at("2026-05-05T10:30:00Z"));
    assert_eq!(plan(&changed, &[], &of, "2026-05-05T10:31:00Z").begin, None);
    let next = plan(&changed, &[], &of, "2026-05-05T11:00:00Z").begin.expect("it is due");
    assert_eq!(next.due, at("2026-05-05T11:00:00Z"));
    let mut rests = spec.clone();
    rests.suspend = true;
    let idle = plan(&schedule(&rests, Some(&mark)), &[], &of, "2026-06-05T11:00:00Z");
    assert_eq!((idle.begin, idle.next), (None, None));
    spec.drill = None;
    let none = schedule(&spec, None);
    let idle = plan(&none, &[], &of, now);
    assert_eq!(idle.begin, None);
    assert_eq!(none.drilled(&idle, &[], at(now)), None);
}
