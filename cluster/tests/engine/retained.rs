//! Snapshots that stay by count and age, and as bases: which of them are there after each backup,
//! however it was killed, doubled or cancelled.

use super::orders::Draw;
use super::pause::drive_until;
use super::*;
use mover_cluster::engine::{RETAINED, ROLE, Retain, SOURCE};
use serde_json::Value;

pub(crate) fn keeping(fake: &Fake, base: bool, count: Option<u32>, days: Option<u32>) -> Request {
    let Request::Backup(mut backup) = backup_request(fake, true, NAMESPACE, base) else {
        unreachable!("it is a backup")
    };
    backup.retain = Some(Retain { count, days });
    Request::Backup(backup)
}

/// Backs the claim up; the name of its snapshot.
pub(crate) fn back_up(fake: &mut Fake, name: &str, request: &Request) -> String {
    let anchor = begin(fake, name, request);
    let outcome = drive(fake, &anchor);
    assert_eq!(outcome.exit_code, 0, "{outcome:?} {:#?}", fake.written);
    settle(fake);
    assert_eq!(fake.left(), Vec::<String>::new(), "{:#?}", fake.written);
    anchor.snapshot(1).name
}

/// A snapshot that is there: its name, its role and whether it is retained.
pub(crate) type There = (String, String, bool);

/// All of them, in the order of their names.
pub(crate) fn staying(fake: &Fake) -> Vec<There> {
    let one = |(key, object): (Key, Value)| {
        let labels = Meta::of(&object).labels;
        (key.name, labels[ROLE].clone(), labels.get(RETAINED).is_some_and(|text| text == "true"))
    };
    let mut all: Vec<_> = fake.of_kind(Kind::VolumeSnapshot).into_iter().map(one).collect();
    all.sort();
    // That of the storage goes with it, and stays with it.
    let stored = fake.storage.keys().filter(|name| name.starts_with("snap-")).count();
    assert_eq!(stored, all.len(), "{:?} {all:?}", fake.storage);
    all
}

fn assert_stay(fake: &Fake, wanted: impl IntoIterator<Item = (String, &'static str, bool)>) {
    let mut wanted: Vec<There> = wanted
        .into_iter()
        .map(|(name, role, retained)| (name, role.to_owned(), retained))
        .collect();
    wanted.sort();
    assert_eq!(staying(fake), wanted, "{:#?}", fake.written);
}

#[test]
fn the_oldest_beyond_the_count_go() {
    for base in [true, false] {
        let mut fake = shop(true);
        let request = keeping(&fake, base, Some(3), None);
        let mut made = Vec::new();
        for number in 0..6 {
            made.push(back_up(&mut fake, &format!("b{number}"), &request));
            let newest = made.len() - 1;
            let role = |at: usize| if base && at == newest { "base" } else { "retained" };
            let kept = made.len().saturating_sub(3)..made.len();
            assert_stay(&fake, kept.map(|at| (made[at].clone(), role(at), true)));
        }
    }
}

#[test]
fn those_that_are_too_old_go() {
    let mut fake = shop(true);
    let request = keeping(&fake, false, None, Some(7));
    let day = Duration::from_secs(24 * 3600);
    let mut made = Vec::new();
    for (name, days) in [("a", 0), ("b", 3), ("c", 3), ("d", 3)] {
        fake.now += day * days;
        made.push(back_up(&mut fake, name, &request));
    }
    // Of days 0, 3, 6 and 9 the first is older than day 2.
    assert_stay(&fake, made[1..].iter().map(|name| (name.clone(), "retained", true)));
    // Without a bound all of them stay.
    fake.now += day * 365;
    let request = keeping(&fake, false, None, None);
    made.push(back_up(&mut fake, "e", &request));
    assert_stay(&fake, made[1..].iter().map(|name| (name.clone(), "retained", true)));
}

/// Each goes only when neither the next backup nor the count needs it.
#[test]
fn a_base_and_a_retained_one_do_not_take_each_other_along() {
    let mut fake = shop(true);
    let request = keeping(&fake, true, Some(1), None);
    let first = back_up(&mut fake, "first", &request);
    let request = keeping(&fake, false, Some(1), None);
    let second = back_up(&mut fake, "second", &request);
    assert_stay(&fake, [(first, "base", false), (second.clone(), "retained", true)]);
    let request = backup_request(&fake, true, NAMESPACE, true);
    let third = back_up(&mut fake, "third", &request);
    assert_stay(&fake, [(second, "retained", true), (third, "base", false)]);
    // One without either leaves them.
    let request = backup_request(&fake, true, NAMESPACE, false);
    back_up(&mut fake, "fourth", &request);
    assert_eq!(staying(&fake).len(), 2);
}

/// Of another repository, or made by hand: none of them is counted.
#[test]
fn snapshots_of_other_backups_stay() {
    let mut fake = shop(true);
    let request = keeping(&fake, false, Some(1), None);
    let first = back_up(&mut fake, "first", &request);
    let Request::Backup(mut elsewhere) = request.clone() else { unreachable!() };
    elsewhere.repository.url = "s3://other/x".into();
    let second = back_up(&mut fake, "second", &Request::Backup(elsewhere));
    let labels = Meta::of(&fake.objects[&Key::new(Kind::VolumeSnapshot, NAMESPACE, &first)]).labels;
    fake.create(&json!({
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": "by-hand", "namespace": NAMESPACE,
            "labels": { ROLE: "retained", RETAINED: "true", SOURCE: labels[SOURCE] },
            "annotations": { "mover.dev/base-of": "c1/shop/db in s3://bucket/prefix" },
        },
        "spec": { "source": { "persistentVolumeClaimName": "db" } },
    }));
    settle(&mut fake);
    let third = back_up(&mut fake, "third", &request);
    assert_stay(&fake, ["by-hand".into(), second, third].map(|name| (name, "retained", true)));
}

/// A shop with one snapshot of each sort, and the next backup: it is a base and retained, and two of
/// the older ones go, one of them as a base.
fn start() -> (Fake, Anchor) {
    let mut fake = shop(true);
    let request = keeping(&fake, true, Some(2), None);
    back_up(&mut fake, "a", &request);
    let request = keeping(&fake, false, None, None);
    back_up(&mut fake, "b", &request);
    back_up(&mut fake, "c", &request);
    let request = keeping(&fake, true, Some(2), None);
    let anchor = begin(&mut fake, "first", &request);
    (fake, anchor)
}

fn ended() -> Vec<There> {
    let (mut fake, anchor) = start();
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    settle(&mut fake);
    let all = staying(&fake);
    let mut roles: Vec<(&str, bool)> = all.iter().map(|at| (at.1.as_str(), at.2)).collect();
    roles.sort_unstable();
    assert_eq!(roles, [("base", true), ("retained", true)], "{all:?}");
    all
}

#[test]
fn killed_before_and_after_each_write_the_same_ones_stay() {
    let wanted = ended();
    for done in [false, true] {
        for at in 0.. {
            let (mut fake, anchor) = start();
            let ended = drive_until(&mut fake, &anchor, at, done);
            let outcome = drive(&mut fake, &anchor);
            assert_eq!(outcome.exit_code, 0, "{outcome:?}");
            settle(&mut fake);
            assert_eq!(fake.left(), Vec::<String>::new(), "{done} {at}");
            assert_eq!(staying(&fake), wanted, "{done} {at}: {:#?}", fake.written);
            if ended {
                assert!(at > 8);
                break;
            }
        }
    }
}

#[test]
fn a_backup_that_fails_or_is_cancelled_takes_none_along() {
    let (fake, _) = start();
    let there = staying(&fake);
    for at in 0.. {
        let (mut fake, anchor) = start();
        let ended = drive_until(&mut fake, &anchor, at, true);
        let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
        fake.change(&anchor.key, &cancel);
        let outcome = drive(&mut fake, &anchor);
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "{at}");
        match outcome.exit_code {
            0 => assert_eq!(staying(&fake).len(), 2, "{at}"),
            _ => assert_eq!(staying(&fake), there, "{at}: {:#?}", fake.written),
        }
        if ended {
            break;
        }
    }
    let (mut fake, anchor) = start();
    fake.faults.pod_fails = Some((4, "{}".into()));
    assert_eq!(drive(&mut fake, &anchor).exit_code, 4);
    settle(&mut fake);
    assert_eq!(staying(&fake), there);
}

#[test]
fn two_drivers_leave_the_same_ones() {
    let wanted = ended();
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let (mut fake, anchor) = start();
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
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(staying(&fake), wanted, "seed {seed}: {:#?}", fake.written);
    }
}

/// A driver is paused before each write; another ends its operation, and two more backups follow. What
/// the late one does then takes none of theirs along.
#[test]
fn a_late_driver_takes_none_of_the_next_ones_along() {
    for at in 0.. {
        let (mut fake, anchor) = start();
        let mut late = Observed::default();
        let mut made = 0;
        let mut over = false;
        while made < at && !over {
            late.set_now(fake.now);
            made += usize::from(matches!(plan(&anchor, &late), Err(Stop::Next(Next::Do(_)))));
            over = turn(&mut fake, &anchor, &mut late).expect("an outcome").is_some();
        }
        if over {
            break;
        }
        assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
        let request = keeping(&fake, true, Some(3), None);
        back_up(&mut fake, "second", &request);
        back_up(&mut fake, "third", &request);
        let there = staying(&fake);
        assert_eq!(there.len(), 3);
        fake.now += Duration::from_secs(60);
        while turn(&mut fake, &anchor, &mut late).expect("an outcome").is_none() {}
        settle(&mut fake);
        assert_eq!(staying(&fake), there, "{at}: {:#?}", fake.written);
    }
}

/// Whoever may only remove looks at an operation that has ended well: what stays of it stays.
#[test]
fn a_removal_after_a_good_end_leaves_what_stays() {
    for base in [true, false] {
        let mut fake = shop(true);
        let request = keeping(&fake, base, Some(2), None);
        let anchor = begin(&mut fake, "first", &request);
        assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
        settle(&mut fake);
        let there = staying(&fake);
        assert_eq!(there.len(), 1);
        let mut seen = Observed::default();
        loop {
            match engine::plan(&anchor, Mandate::Removal, &seen) {
                Ok(outcome) => break assert_eq!(outcome.exit_code, 0),
                Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
                Err(other) => panic!("nothing is to be done: {other:?}"),
            }
        }
        assert_eq!(staying(&fake), there);
    }
}

/// The labels are those by which the snapshots are found again.
#[test]
fn what_stays_is_found_by_its_claim() {
    let mut fake = shop(true);
    let request = keeping(&fake, false, Some(2), None);
    let name = back_up(&mut fake, "first", &request);
    let found = &fake.objects[&Key::new(Kind::VolumeSnapshot, NAMESPACE, &name)];
    let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db");
    let meta = Meta::of(found);
    assert_eq!(meta.labels[SOURCE], Meta::of(&fake.objects[&claim]).uid);
    assert_eq!(meta.annotations["mover.dev/base-of"], "c1/shop/db in s3://bucket/prefix");
    assert!(found["metadata"]["ownerReferences"].is_null(), "it outlives its anchor");
}
