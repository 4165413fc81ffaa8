//! Whoever comes late: after the next operation has begun, with another wish, or on a server that is
//! slow.

use super::*;
use mover_cluster::ops::restore::goes_on;

/// The first step that has to do with an object of this kind, which is not done yet.
fn step_about(
    fake: &mut Fake,
    anchor: &Anchor,
    kind: Kind,
    is_it: fn(&engine::Step) -> bool,
) -> engine::Step {
    let mut seen = Observed::default();
    for _ in 0..500 {
        if let Err(Stop::Next(Next::Do(step))) = plan(anchor, &seen)
            && step.key().kind == kind
            && is_it(&step)
        {
            return *step;
        }
        assert_eq!(turn(fake, anchor, &mut seen), Ok(None), "it has ended");
    }
    panic!("no such step");
}

/// The next operation takes the Lease over, which keeps its uid.
#[test]
fn a_lease_that_was_taken_over_is_not_deleted() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, true);
    let first = begin(&mut fake, "first", &request);
    let late = step_about(&mut fake, &first, Kind::Lease, |step| {
        matches!(step, engine::Step::Delete { .. } | engine::Step::DeleteVersion { .. })
    });
    // The command is gone, and so is its record.
    fake.delete(&first.key, &first.uid);
    let second = begin(&mut fake, "second", &request);
    let mut seen = Observed::default();
    let holder = |fake: &Fake| {
        let of = |(_, lease): &(Key, serde_json::Value)| lease["spec"]["holderIdentity"].clone();
        fake.of_kind(Kind::Lease).first().map(of)
    };
    while holder(&fake) != Some(second.uid.clone().into()) {
        assert_eq!(turn(&mut fake, &second, &mut seen), Ok(None));
    }
    fake.execute(&late, &mut Observed::default());
    assert_eq!(holder(&fake), Some(second.uid.clone().into()), "{:#?}", fake.written);
    assert_eq!(drive(&mut fake, &second).exit_code, 0);
}

/// Each request takes so long that all of them together take minutes.
#[test]
fn a_failure_is_saved_on_a_server_that_is_slow() {
    let mut fake = shop(true);
    fake.faults.snapshot_never_ready = true;
    let request = backup_request(&fake, true, NAMESPACE, true);
    let anchor = begin(&mut fake, "first", &request);
    let mut seen = Observed::default();
    for _ in 0..3000 {
        fake.now += Duration::from_secs(20);
        if let Some(outcome) = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds it") {
            assert_eq!(outcome.exit_code, 1, "{outcome:?}");
            return;
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

/// `latest` is another backup by now, and the Repository's image another one: it is the same
/// restore. Its record lies where others may write, so nothing more is taken from it.
#[test]
fn a_restore_that_hands_over_is_the_same_whatever_latest_is_now() {
    let Request::Restore(stored) = restore_request("old", true, "vault") else { unreachable!() };
    let mut place = repository("vault");
    place.image = "another:2".into();
    place.cluster = "c1".into();
    place.allow_mode_change = true;
    let to = (NAMESPACE, "db-restored");
    goes_on(&stored, "m", ("db@latest", false), &place, to).expect("the same");
    goes_on(&stored, "m", ("c1/shop/db@2026-11-22", false), &place, to).expect("the same");
    goes_on(&stored, "m", ("other@latest", false), &place, to).expect_err("another volume");
    goes_on(&stored, "m", ("db@latest", true), &place, to).expect_err("in place");
    goes_on(&stored, "m", ("db@latest", false), &place, (NAMESPACE, "x")).expect_err("to another");
    let elsewhere = Repository { url: "s3://other/x".into(), ..place.clone() };
    goes_on(&stored, "m", ("db@latest", false), &elsewhere, to).expect_err("another repository");
    place.allow_mode_change = false;
    goes_on(&stored, "m", ("db@latest", false), &place, to).expect_err("no filesystem");
}
