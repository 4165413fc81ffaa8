//! A quota, or a storage without room, refuses a new snapshot: one older one goes for it, and no more.

use super::pause::drive_until;
use super::retained::{back_up, keeping, staying};
use super::*;

/// A shop with a base and three more that are retained; the names of all, the oldest first.
fn full() -> (Fake, Vec<String>) {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, true);
    let mut made = vec![back_up(&mut fake, "base", &request)];
    let request = keeping(&fake, false, None, None);
    made.extend(["a", "b", "c"].map(|name| back_up(&mut fake, name, &request)));
    (fake, made)
}

fn names(fake: &Fake) -> Vec<String> {
    staying(fake).into_iter().map(|(name, ..)| name).collect()
}

/// The second oldest has gone, as the oldest is a base.
fn assert_one_went(fake: &mut Fake, made: &[String], anchor: &Anchor, about: &str) {
    settle(fake);
    assert_eq!(fake.left(), Vec::<String>::new(), "{about}");
    let there = names(fake);
    for (number, name) in made.iter().enumerate() {
        let stays = there.contains(name);
        assert_eq!(stays, number != 1, "{about}: {number} {there:?} {:#?}", fake.written);
    }
    assert_eq!(there.len(), made.len(), "{about}: {there:?}");
    assert_eq!(fake.repository[&anchor.uid], DATA, "{about}");
}

fn over_quota(mut fake: Fake) -> Fake {
    fake.quota = Some((4, 4));
    fake
}

fn without_room(mut fake: Fake) -> Fake {
    fake.faults.snapshots_max = Some(4);
    fake
}

#[test]
fn the_oldest_retained_one_that_is_no_base_goes_first() {
    for prepare in [over_quota, without_room] {
        for hook in [false, true] {
            let (fake, made) = full();
            let mut fake = prepare(fake);
            let mut request = keeping(&fake, false, None, None);
            if hook {
                fake.writes = true;
                request = hooked(request, OnTimeout::Fail);
            }
            let anchor = begin(&mut fake, "first", &request);
            let outcome = drive(&mut fake, &anchor);
            assert_eq!(outcome.exit_code, 0, "{hook}: {outcome:?} {:#?}", fake.written);
            assert_one_went(&mut fake, &made, &anchor, &format!("{hook}"));
            assert!(!fake.is_locked());
        }
    }
}

/// A backup that retains nothing itself makes room as well.
#[test]
fn any_backup_of_the_claim_makes_room() {
    for prepare in [over_quota, without_room] {
        let (fake, made) = full();
        let mut fake = prepare(fake);
        let request = backup_request(&fake, true, NAMESPACE, false);
        let anchor = begin(&mut fake, "first", &request);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        settle(&mut fake);
        let there = names(&fake);
        let stay = [0, 2, 3].iter().all(|at| there.contains(&made[*at]));
        assert!(stay && there.len() == 3, "{there:?}");
    }
}

#[test]
fn as_many_go_as_have_to() {
    for prepare in [over_quota, without_room] {
        let (fake, made) = full();
        let mut fake = prepare(fake);
        fake.quota = fake.quota.map(|_| (3, 4));
        fake.faults.snapshots_max = fake.faults.snapshots_max.map(|_| 3);
        let request = keeping(&fake, false, None, None);
        let anchor = begin(&mut fake, "first", &request);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        settle(&mut fake);
        let there = names(&fake);
        assert!(there.contains(&made[0]) && there.contains(&made[3]), "{there:?}");
        assert_eq!(there.len(), 3, "{there:?}");
    }
}

#[test]
fn killed_before_and_after_each_write_no_second_one_goes() {
    for prepare in [over_quota, without_room] {
        for done in [false, true] {
            for at in 0.. {
                let (fake, made) = full();
                let mut fake = prepare(fake);
                let request = keeping(&fake, false, None, None);
                let anchor = begin(&mut fake, "first", &request);
                let ended = drive_until(&mut fake, &anchor, at, done);
                let outcome = drive(&mut fake, &anchor);
                assert_eq!(outcome.exit_code, 0, "{done} {at}: {outcome:?}");
                assert_one_went(&mut fake, &made, &anchor, &format!("{done} {at}"));
                if ended {
                    assert!(at > 8);
                    break;
                }
            }
        }
    }
}

/// Bases and what somebody else has are no room: the refusal is told as it is.
#[test]
fn a_base_does_not_go_for_it() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, true);
    let base = back_up(&mut fake, "base", &request);
    for hook in [false, true] {
        let mut fake = fake.clone();
        fake.quota = Some((1, 1));
        let mut request = keeping(&fake, false, None, None);
        if hook {
            request = hooked(request, OnTimeout::Fail);
        }
        let anchor = begin(&mut fake, "first", &request);
        let outcome = drive(&mut fake, &anchor);
        assert_ne!(outcome.exit_code, 0, "{outcome:?}");
        assert!(!fake.is_locked());
        settle(&mut fake);
        assert_eq!(names(&fake), std::slice::from_ref(&base));
        assert!(outcome.message.contains("exceeded quota"), "{outcome:?}");
    }
    fake.faults.snapshots_max = Some(1);
    let request = keeping(&fake, false, None, None);
    let anchor = begin(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("the pool has no room"), "{outcome:?}");
    settle(&mut fake);
    assert_eq!(names(&fake), [base]);
}

/// Another refusal is none for want of room: nothing goes.
#[test]
fn a_refusal_of_another_sort_takes_none_along() {
    let (mut fake, made) = full();
    fake.faults.snapshot_error = Some("the array is away".into());
    let request = keeping(&fake, false, None, None);
    let anchor = begin(&mut fake, "first", &request);
    assert_eq!(drive(&mut fake, &anchor).exit_code, 1);
    fake.faults.snapshot_error = None;
    settle(&mut fake);
    assert_eq!(names(&fake).len(), made.len());
    let second = begin(&mut fake, "second", &request);
    let refused = format!("create {}", second.snapshot(1));
    let outcome = super::answers::drive_refused(&mut fake, &second, &refused);
    assert!(format!("{outcome:?}").contains("no right"), "{outcome:?}");
    settle(&mut fake);
    assert_eq!(names(&fake).len(), made.len());
}

/// The application does not hold still while room is made in a quota.
#[test]
fn the_lock_is_let_go_of_before_room_is_made() {
    let (fake, _) = full();
    let mut fake = over_quota(fake);
    let request = hooked(keeping(&fake, false, None, None), OnTimeout::Fail);
    let anchor = begin(&mut fake, "first", &request);
    let mut seen = Observed::default();
    let mut went = 0;
    loop {
        seen.set_now(fake.now);
        if let Err(Stop::Next(Next::Do(step))) = plan(&anchor, &seen)
            && let engine::Step::Delete { key, .. } = &*step
            && key.kind == Kind::VolumeSnapshot
        {
            went += 1;
            assert!(!fake.is_locked(), "{key} goes while the application holds still");
        }
        if let Some(end) = turn(&mut fake, &anchor, &mut seen).expect("an outcome") {
            assert_eq!(end.exit_code, 0, "{end:?}");
            assert_eq!(went, 1);
            return;
        }
    }
}
