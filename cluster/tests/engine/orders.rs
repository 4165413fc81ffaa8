//! Backups and restores that go well, and two drivers at once.

use super::*;

#[test]
fn a_backup_and_a_restore_in_every_form() {
    for filesystem in [true, false] {
        for jobs_in in [NAMESPACE, "mover-system"] {
            for keep_base in [true, false] {
                let mut fake = shop(filesystem);
                let request = backup_request(&fake, filesystem, jobs_in, keep_base);
                let first = begin(&mut fake, "first", &request);
                let outcome = drive(&mut fake, &first);
                assert_eq!(outcome.exit_code, 0, "{outcome:?}");
                assert_eq!(outcome.left, Vec::<String>::new());
                assert_eq!(fake.repository[&first.uid], DATA);
                assert_clean(&mut fake, &first, 0, usize::from(keep_base));

                let second = begin(&mut fake, "second", &request);
                assert_eq!(drive(&mut fake, &second).exit_code, 0);
                // The base before goes when there is a new one.
                assert_clean(&mut fake, &second, 0, usize::from(keep_base));

                let request = restore_request(&first.uid, filesystem, jobs_in);
                let third = begin(&mut fake, "third", &request);
                let outcome = drive(&mut fake, &third);
                assert_eq!(outcome.exit_code, 0, "{outcome:?}");
                assert_clean(&mut fake, &third, 1, usize::from(keep_base));
                assert_restored(&fake, filesystem);
            }
        }
    }
}

#[test]
fn the_mark_that_lets_a_mode_change_is_gone_once_the_volume_is_bound() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, true);
    let anchor = begin(&mut fake, "first", &request);
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    for (key, content) in fake.of_kind(Kind::VolumeSnapshotContent) {
        let notes = Meta::of(&content).annotations;
        assert!(!notes.contains_key(mover_cluster::engine::MODE_CHANGE), "{key}");
    }
}

/// A small generator: what is drawn follows from the seed alone.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Two drivers of one operation, each with what it knows, in any order of turns; now and then one
/// of them begins anew.
#[test]
fn two_drivers_of_one_operation_are_one_operation() {
    for seed in 0..400 {
        let mut draw = Draw(seed);
        let filesystem = draw.below(2) == 0;
        let jobs_in = if draw.below(2) == 0 { NAMESPACE } else { "mover-system" };
        let mut fake = shop(filesystem);
        let backup = draw.below(2) == 0;
        let request = if backup {
            backup_request(&fake, filesystem, jobs_in, draw.below(2) == 0)
        } else {
            fake.repository.insert("old".into(), DATA.into());
            let request = restore_request("old", filesystem, jobs_in);
            match draw.below(2) == 0 {
                true => super::kept::from_snapshot(&mut fake, request, "other"),
                false => request,
            }
        };
        let anchor = begin(&mut fake, "first", &request);
        let mut drivers = [Observed::default(), Observed::default()];
        let mut ends = [None, None];
        for _ in 0..6000 {
            let which = usize::try_from(draw.below(2)).expect("0 or 1");
            if draw.below(50) == 0 {
                drivers[which] = Observed::default();
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
        for end in &ends {
            let end = end.as_ref().unwrap_or_else(|| panic!("seed {seed}: {:#?}", fake.written));
            assert_eq!(end.exit_code, 0, "seed {seed}: {end:?} {:#?}", fake.written);
        }
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "seed {seed}: {:#?}", fake.written);
        if backup {
            assert_eq!(fake.repository[&anchor.uid], DATA, "seed {seed}");
        } else {
            assert_restored(&fake, filesystem);
        }
    }
}

/// Two operations on one claim: one of them waits for the other, says for whom, and is made then.
#[test]
fn of_two_backups_of_one_claim_one_waits_until_the_other_has_ended() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, false);
    let first = begin(&mut fake, "first", &request);
    let second = begin(&mut fake, "second", &request);
    let (mut one, mut two) = (observed(&fake), observed(&fake));
    waits_for(&mut fake, &first, &mut one);
    let why = waits_for(&mut fake, &second, &mut two);
    assert!(
        why.contains("first in namespace shop is at work on pvc/db in namespace shop"),
        "{why}"
    );
    assert!(why.contains("kubectl mover cancel first -n shop"), "{why}");
    // It has made nothing meanwhile.
    assert!(!fake.written.iter().any(|line| line.contains(&second.uid)), "{:#?}", fake.written);
    for anchor in [&first, &second] {
        let outcome = drive(&mut fake, anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    }
    assert_clean(&mut fake, &second, 0, 0);
    // Who does not want to wait is told at once.
    let third = begin(&mut fake, "third", &request);
    let fourth = begin(&mut fake, "fourth", &request);
    let (mut one, mut two) = (observed(&fake), observed(&fake));
    two.set_turn(Duration::ZERO);
    waits_for(&mut fake, &third, &mut one);
    let now = fake.now;
    let mut end = None;
    while end.is_none() {
        end = turn(&mut fake, &fourth, &mut two).expect("the anchor holds it");
    }
    assert_eq!(fake.now, now);
    assert!(end.expect("it has ended").message.contains("third in namespace shop is at work"));
}

/// One that does not end is given up on.
#[test]
fn of_two_backups_of_one_claim_one_waits_its_turn() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, false);
    let first = begin(&mut fake, "first", &request);
    let second = begin(&mut fake, "second", &request);
    let (mut one, mut two) = (Observed::default(), Observed::default());
    // The first has its Lease by then.
    for _ in 0..4 {
        assert_eq!(turn(&mut fake, &first, &mut one), Ok(None));
    }
    let mut end = None;
    while end.is_none() {
        end = turn(&mut fake, &second, &mut two).expect("the anchor holds it");
    }
    let end = end.expect("it has ended");
    assert_eq!(end.exit_code, 1);
    assert!(end.message.contains("first in namespace shop is at work"), "{end:?}");
    let outcome = drive(&mut fake, &first);
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    assert_clean(&mut fake, &first, 0, 0);
}

/// Its operation is gone: whoever comes next takes the Lease over.
#[test]
fn a_lease_of_an_operation_that_is_gone_is_taken_over() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, false);
    let first = begin(&mut fake, "first", &request);
    let mut seen = Observed::default();
    for _ in 0..4 {
        assert_eq!(turn(&mut fake, &first, &mut seen), Ok(None));
    }
    assert_eq!(fake.of_kind(Kind::Lease).len(), 1);
    fake.delete(&first.key, &first.uid);
    let second = begin(&mut fake, "second", &request);
    let outcome = drive(&mut fake, &second);
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    assert_eq!(fake.of_kind(Kind::Lease).len(), 0);
}
