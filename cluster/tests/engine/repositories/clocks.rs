//! Clocks that are put forward and back, and controllers that were away.

use super::*;

#[test]
fn nights_that_were_missed_are_made_up_for_once() {
    let mut world = world(spec());
    lone(&mut world, hours(24));
    world.fake.now += hours(24 * 5);
    lone(&mut world, hours(1));
    world.assert_clean("five nights");
    assert_eq!(world.ran()["gc"], 2);
    assert_eq!(world.ran()["check"], 2);
}

#[test]
fn a_clock_that_is_put_back_by_hours_does_no_run_twice() {
    for back in [1, 12, 24] {
        let mut world = world(spec());
        lone(&mut world, hours(24));
        world.skew = TimeDelta::hours(-back);
        lone(&mut world, hours(u64::try_from(back).expect("small")));
        world.assert_clean(&format!("back by {back}"));
        assert_eq!(world.ran()["gc"], 1, "back by {back}");
        lone(&mut world, hours(24));
        assert_eq!(world.ran()["gc"], 2, "back by {back}");
        world.assert_clean(&format!("back by {back}, and a day"));
    }
}

/// A clock that was years ahead, and is right again, stops nothing.
#[test]
fn a_clock_that_was_far_ahead_stops_nothing() {
    let mut world = world(spec());
    lone(&mut world, hours(24));
    world.skew = TimeDelta::days(4000);
    lone(&mut world, hours(1));
    assert_eq!(world.ran()["gc"], 2, "what it missed, as it believes");
    world.skew = TimeDelta::zero();
    lone(&mut world, hours(1));
    let healed = world.ran()["gc"];
    assert!(healed <= 3, "one more at most: {healed}");
    lone(&mut world, hours(48));
    assert_eq!(world.ran()["gc"], healed + 2);
    assert_eq!(world.fake.of_kind(Kind::Job), []);
}

#[test]
fn failures_that_may_pass_are_tried_again_with_longer_pauses() {
    let mut world = world(spec());
    world.fake.alone.ends.insert("gc".into(), (1, "the store is away".into()));
    lone(&mut world, hours(24));
    assert_eq!(world.ran()["gc"], 4, "one, and three more");
    assert_eq!(world.ran()["forget"], 1, "that went well");
    let (status, reason, message) = world.condition("Collected");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "GcFailed"));
    assert!(message.contains("the store is away; look"), "{message}");
    world.assert_clean("failures");
    // What does not pass waits for its next time.
    world.fake.alone.ends.insert("gc".into(), (4, "denied".into()));
    lone(&mut world, hours(24));
    assert_eq!(world.ran()["gc"], 5);
}

#[test]
fn a_repository_that_cannot_be_opened_is_tried_until_it_can_and_at_once_after_a_change() {
    let mut world = world(spec());
    world.fake.alone.ends.insert("init".into(), (4, "access denied".into()));
    lone(&mut world, hours(5));
    let tried = world.ran()["init"];
    assert!((5..10).contains(&tried), "{tried}");
    assert_eq!(world.ran().len(), 1, "nothing else is tried: {:?}", world.ran());
    world.fake.alone.ends.insert("init".into(), (0, json!({ "repository_id": "abc" })));
    let change =
        json!({ "metadata": { "generation": 2 }, "spec": { "env": { "AWS_REGION": "x" } } });
    world.fake.change(&key(), &change);
    lone(&mut world, Duration::from_secs(60));
    assert_eq!(world.condition("Ready").0, "True");
    world.assert_clean("after a change");
}
