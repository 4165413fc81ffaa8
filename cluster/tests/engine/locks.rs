//! Snapshots under a lock: the data of a snapshot that was not taken under it is torn, and no
//! backup of it is ever called a good one.

use super::orders::Draw;
use super::*;

fn locked_shop(on_timeout: OnTimeout) -> (Fake, Request) {
    let mut fake = shop(true);
    fake.writes = true;
    let request = hooked(backup_request(&fake, true, NAMESPACE, true), on_timeout);
    (fake, request)
}

#[test]
fn the_lock_is_held_until_the_snapshot_is_taken_and_no_longer() {
    let (mut fake, request) = locked_shop(OnTimeout::Fail);
    let anchor = begin(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    assert_eq!(fake.repository[&anchor.uid], DATA);
    assert!(!fake.is_locked());
    assert_clean(&mut fake, &anchor, 0, 1);
}

#[test]
fn a_snapshot_that_takes_longer_than_the_lock_fails_the_backup() {
    let (mut fake, request) = locked_shop(OnTimeout::Fail);
    fake.faults.snapshot_error = Some("busy".into());
    let anchor = begin(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("did not hold still until"), "{outcome:?}");
    assert!(!fake.is_locked());
    assert!(fake.repository.is_empty());
    fake.faults.snapshot_error = None;
    assert_clean(&mut fake, &anchor, 0, 0);
}

/// Drivers that die at each request, whether their lock ends with them or lives until its own end:
/// what is called good was taken under a lock, and in the end nothing is locked.
#[test]
fn a_driver_that_dies_under_its_lock_leaves_no_torn_backup() {
    for lock_dies in [true, false] {
        for turns in 0..60 {
            let (mut fake, request) = locked_shop(OnTimeout::Fail);
            let anchor = begin(&mut fake, "first", &request);
            let mut seen = Observed::default().named("one".into());
            for _ in 0..turns {
                if turn(&mut fake, &anchor, &mut seen).expect("the anchor holds it").is_some() {
                    break;
                }
            }
            if lock_dies {
                fake.lock = None;
            }
            let outcome = drive(&mut fake, &anchor);
            let about = format!("{lock_dies} {turns}: {outcome:?} {:#?}", fake.written);
            assert_eq!(outcome.exit_code, 0, "{about}");
            assert_eq!(fake.repository[&anchor.uid], DATA, "{about}");
            assert!(!fake.is_locked(), "{about}");
            assert_clean(&mut fake, &anchor, 0, 1);
        }
    }
}

#[test]
fn two_drivers_never_lock_at_once_and_never_take_a_torn_snapshot() {
    for seed in 0..300 {
        let mut draw = Draw(seed);
        let (mut fake, request) = locked_shop(OnTimeout::Fail);
        let anchor = begin(&mut fake, "first", &request);
        let mut names = 0;
        let mut fresh = || {
            names += 1;
            Observed::default().named(format!("driver {names}"))
        };
        let mut drivers = [fresh(), fresh()];
        let mut ends: [Option<Outcome>; 2] = [None, None];
        for _ in 0..8000 {
            let which = usize::try_from(draw.below(2)).expect("0 or 1");
            if draw.below(60) == 0 && ends[which].is_none() {
                let held = fake.is_locked_by(&drivers[which]);
                drivers[which] = fresh();
                if held && draw.below(2) == 0 {
                    fake.lock = None;
                }
            }
            if draw.below(3) == 0 {
                fake.tick();
            }
            if ends[which].is_none() {
                ends[which] = turn(&mut fake, &anchor, &mut drivers[which])
                    .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }
            if ends.iter().all(Option::is_some) {
                break;
            }
        }
        for end in ends {
            let end = end.unwrap_or_else(|| panic!("seed {seed}: {:#?}", fake.written));
            // Cut off three times it gives up.
            assert!(end.exit_code <= 1, "seed {seed}: {end:?}");
        }
        if let Some(data) = fake.repository.get(&anchor.uid) {
            assert_eq!(data, DATA, "seed {seed}: {:#?}", fake.written);
        }
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "seed {seed}: {:#?}", fake.written);
    }
}

/// As it was asked for: the snapshot of a running application, and the reason on the snapshot.
#[test]
fn a_lock_that_ends_too_early_may_be_gone_on_without() {
    let (mut fake, request) = locked_shop(OnTimeout::Continue);
    let anchor = begin(&mut fake, "first", &request);
    let mut seen = Observed::default().named("one".into());
    let mut end = None;
    for _ in 0..500 {
        // The application is killed by somebody while it holds still.
        fake.lock = None;
        end = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds it");
        if end.is_some() {
            break;
        }
    }
    let end = end.expect("it ends");
    assert_eq!(end.exit_code, 0, "{end:?}");
    let snapshot = fake.get(&anchor.snapshot(1)).expect("the base stays");
    let said = Meta::of(snapshot).annotations["mover.dev/quiesced"].clone();
    assert_eq!(said, "its time was over");
}
