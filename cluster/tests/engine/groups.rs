//! Backups of several claims at one moment: what is called good holds the numbers of one moment, and
//! nothing of a group is left behind, whoever dies at whichever write.

use super::orders::Draw;
use super::pause::drive_until;
use super::*;
use mover_cluster::engine::{Retain, Step};

mod ends;

/// Two claims of one application, which writes to `db` first and then to `log`.
pub(crate) fn pair(filesystem: bool) -> Fake {
    let mut fake = shop(filesystem);
    let mode = if filesystem { "Filesystem" } else { "Block" };
    fake.storage.insert("vol-log".into(), "0".into());
    fake.storage.insert("vol-db".into(), "0".into());
    fake.create(&json!({
        "kind": "PersistentVolume",
        "metadata": { "name": "pv-log" },
        "spec": {
            "csi": { "driver": DRIVER, "volumeHandle": "vol-log", "fsType": "ext4" },
            "volumeMode": mode,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": { "namespace": NAMESPACE, "name": "log" },
        },
        "status": { "phase": "Available" },
    }));
    fake.create(&json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "log", "namespace": NAMESPACE },
        "spec": { "volumeName": "pv-log", "volumeMode": mode, "storageClassName": CLASS },
    }));
    settle(&mut fake);
    for name in ["db", "log"] {
        let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, name);
        fake.change(&claim, &json!({ "metadata": { "labels": { "app": "shop" } } }));
    }
    fake.pair = Some(0);
    fake
}

/// How the snapshots are taken: of the whole group, with or without a lock, or of each claim under one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Group,
    Locked,
    Single,
}

const WAYS: [Way; 3] = [Way::Group, Way::Locked, Way::Single];

fn group_of(fake: &Fake, way: Way, filesystem: bool, jobs_in: &str, keep_base: bool) -> Group {
    let Request::Backup(db) = backup_request(fake, filesystem, jobs_in, keep_base) else {
        unreachable!()
    };
    let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "log");
    let uid = Meta::of(fake.get(&claim).expect("the claim")).uid;
    let log = Backup {
        source: ClaimRef { name: "log".into(), uid, ..db.source.clone() },
        volume_handle: "vol-log".into(),
        volume: "c1/shop/log".into(),
        ..(*db).clone()
    };
    let locked = hooked(Request::Backup(db.clone()), OnTimeout::Fail);
    let Request::Backup(locked) = locked else { unreachable!() };
    Group {
        namespace: NAMESPACE.into(),
        selector: BTreeMap::from([("app".into(), "shop".into())]),
        class: (way != Way::Single).then(|| "groups".into()),
        members: vec![*db, log],
        hooks: if way == Way::Group { Vec::new() } else { locked.hook.into_iter().collect() },
        limits: Limits::default(),
    }
}

/// A group of both claims, all at one moment.
pub(crate) fn two_claims(fake: &Fake) -> Group {
    group_of(fake, Way::Group, true, "mover-system", true)
}

fn start(way: Way, filesystem: bool, jobs_in: &str, keep_base: bool) -> (Fake, Anchor) {
    let mut fake = pair(filesystem);
    // What is not taken under the lock is torn where there is one.
    let group = group_of(&fake, way, filesystem, jobs_in, keep_base);
    let anchor = begin(&mut fake, "first", &Request::Group(Box::new(group)));
    (fake, anchor)
}

fn forms() -> Vec<(Way, bool, &'static str, bool)> {
    vec![
        (Way::Group, true, NAMESPACE, true),
        (Way::Group, true, "mover-system", true),
        (Way::Group, false, NAMESPACE, false),
        (Way::Locked, false, "mover-system", true),
        (Way::Locked, true, NAMESPACE, false),
        (Way::Single, true, NAMESPACE, true),
    ]
}

/// Groups that overlap take their claims in one order, whatever order they were asked for in: else each
/// might wait for the other.
#[test]
fn groups_that_overlap_wait_for_each_other_in_one_order() {
    let mut fake = pair(true);
    let group = two_claims(&fake);
    let turned = Group { members: group.members.iter().rev().cloned().collect(), ..group.clone() };
    let [first, second] = [("first", group), ("second", turned)]
        .map(|(name, group)| begin(&mut fake, name, &Request::Group(Box::new(group))));
    let mut seen = observed(&fake);
    while fake.of_kind(Kind::Lease).is_empty() {
        assert_eq!(turn(&mut fake, &first, &mut seen), Ok(None));
    }
    let mut other = observed(&fake);
    let why = waits_for(&mut fake, &second, &mut other);
    assert!(why.contains("first in namespace shop is at work"), "{why}");
    assert_eq!(fake.of_kind(Kind::Lease).len(), 1, "it holds one of them");
    for anchor in [&first, &second] {
        let outcome = drive(&mut fake, anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        assert_one_moment(&fake, anchor, "one after the other");
    }
}

/// Both members are of one moment: the application writes to `db` before it writes to `log`.
fn assert_one_moment(fake: &Fake, anchor: &Anchor, about: &str) {
    let number = |member: u32| -> u64 {
        let data = fake.repository.get(&anchor.of_member(member).id());
        data.unwrap_or_else(|| panic!("{about}: no backup {member}")).parse().expect(about)
    };
    let (db, log) = (number(1), number(2));
    assert!(db == log || db == log + 1, "{about}: {db} and {log} {:#?}", fake.written);
}

/// Nothing of the operation is left but groups and snapshots that stay.
fn assert_gone(fake: &mut Fake, anchor: &Anchor, snapshots: usize, about: &str) {
    settle(fake);
    assert_eq!(fake.left(), Vec::<String>::new(), "{about} {:#?}", fake.written);
    let held = fake.get(&anchor.key).expect("the anchor stays");
    assert_eq!(Meta::of(held).labels[STATE], "ended", "{about}");
    let count = |prefix: &str| fake.storage.keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(count("vol-"), 2, "{about}: {:?} {:#?}", fake.storage, fake.written);
    assert_eq!(count("snap-"), snapshots, "{about}: {:?} {:#?}", fake.storage, fake.written);
    // With a policy that retains, objects would stay where the storage has nothing any more.
    let groups = fake.of_kind(Kind::VolumeGroupSnapshot).len();
    let is_member = |(key, _): &&(Key, serde_json::Value)| key.name.contains("-vol-");
    let contents = fake.of_kind(Kind::VolumeSnapshotContent);
    let members = contents.iter().filter(is_member).count();
    assert_eq!(members, groups * 2, "{about}: {:#?}", fake.written);
    let of_groups = fake.of_kind(Kind::VolumeGroupSnapshotContent);
    assert_eq!(of_groups.len(), groups, "{about} {of_groups:#?} {:#?}", fake.written);
    assert!(!fake.is_locked(), "{about}");
}

#[test]
fn a_group_in_every_form_and_the_base_before_goes_as_a_group() {
    for (way, filesystem, jobs_in, keep_base) in forms() {
        let (mut fake, anchor) = start(way, filesystem, jobs_in, keep_base);
        let about = format!("{way:?} {filesystem} {jobs_in} {keep_base}");
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
        assert_eq!(outcome.left, Vec::<String>::new(), "{about}");
        assert_one_moment(&fake, &anchor, &about);
        let snapshots = if keep_base { 2 } else { 0 };
        assert_gone(&mut fake, &anchor, snapshots, &about);
        let group = group_of(&fake, way, filesystem, jobs_in, keep_base);
        let second = begin(&mut fake, "second", &Request::Group(Box::new(group)));
        let outcome = drive(&mut fake, &second);
        assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
        assert_one_moment(&fake, &second, &about);
        assert_gone(&mut fake, &second, snapshots, &about);
        let groups = fake.of_kind(Kind::VolumeGroupSnapshot);
        assert_eq!(groups.len(), usize::from(keep_base && way != Way::Single), "{about}");
        assert!(groups.iter().all(|(key, _)| *key == second.group(1)), "{about}: {groups:?}");
    }
}

#[test]
fn without_a_class_it_is_said_that_the_snapshots_are_single_ones() {
    let (mut fake, anchor) = start(Way::Single, true, NAMESPACE, false);
    let outcome = drive(&mut fake, &anchor);
    let said = outcome.summary["warnings"][0].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("no VolumeGroupSnapshotClass"), "{outcome:?}");
    assert!(!fake.written.iter().any(|text| text.contains("create volumegroupsnapshot/")));
    let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, false);
    assert!(drive(&mut fake, &anchor).summary["warnings"].is_null());
}

#[test]
fn killed_before_and_after_each_write_a_group_ends_well() {
    for (way, filesystem, jobs_in, keep_base) in forms() {
        for done in [false, true] {
            for writes in 0.. {
                let (mut fake, anchor) = start(way, filesystem, jobs_in, keep_base);
                fake.writes = way == Way::Locked;
                let ended = drive_until(&mut fake, &anchor, writes, done);
                // The lock of a dead driver ends with its connection, or by its own time.
                if writes.is_multiple_of(2) {
                    fake.lock = None;
                }
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{way:?} {filesystem} {jobs_in} {keep_base} {done} {writes}");
                assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
                assert_one_moment(&fake, &anchor, &about);
                assert_gone(&mut fake, &anchor, if keep_base { 2 } else { 0 }, &about);
                if ended {
                    assert!(writes > 15, "{about}: a group writes more than that");
                    break;
                }
            }
        }
    }
}

#[test]
fn cancelled_after_each_write_nothing_of_a_group_is_left() {
    for (way, filesystem, jobs_in, keep_base) in forms() {
        for writes in 0.. {
            let (mut fake, anchor) = start(way, filesystem, jobs_in, keep_base);
            let ended = drive_until(&mut fake, &anchor, writes, true);
            fake.lock = None;
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let outcome = drive(&mut fake, &anchor);
            let about = format!("{way:?} {filesystem} {jobs_in} {keep_base} {writes}: {outcome:?}");
            assert!([0, 143].contains(&outcome.exit_code), "{about}");
            let stays = outcome.exit_code == 0 && keep_base;
            assert_gone(&mut fake, &anchor, if stays { 2 } else { 0 }, &about);
            if ended {
                break;
            }
        }
    }
}

/// Whoever may only remove finds nothing to go on with, at any moment before the end.
#[test]
fn a_removal_after_each_write_leaves_nothing_of_a_group() {
    for way in WAYS {
        for writes in 0.. {
            let (mut fake, anchor) = start(way, true, NAMESPACE, true);
            let ended = drive_until(&mut fake, &anchor, writes, true);
            fake.lock = None;
            let mut seen = Observed::default();
            for _ in 0..2000 {
                seen.set_now(fake.now);
                match engine::plan(&anchor, Mandate::Removal, &seen) {
                    Ok(_) => break,
                    Err(Stop::Failure(why)) => panic!("{why}"),
                    Err(Stop::Next(Next::Refresh)) => seen.forget_all(),
                    Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
                    Err(Stop::Next(Next::Do(step))) => fake.execute(&step, &mut seen),
                    Err(Stop::Next(Next::Wait(wait))) => {
                        if !fake.tick() {
                            fake.now += wait.time;
                        }
                        seen.set_now(fake.now);
                        seen.waited();
                        wait.on.iter().for_each(|query| fake.read(query, &mut seen));
                    }
                    Err(Stop::Next(next)) => panic!("{next:?}"),
                }
            }
            // Its outcome may have been written before: then the group stays or goes as a whole.
            settle(&mut fake);
            let groups = fake.of_kind(Kind::VolumeGroupSnapshot).len();
            let singles = fake.storage.keys().filter(|name| name.starts_with("snap-")).count();
            let snapshots = if way == Way::Single { singles } else { groups * 2 };
            assert_gone(&mut fake, &anchor, snapshots, &format!("{way:?} {writes}"));
            if ended {
                break;
            }
        }
    }
}

#[test]
fn each_write_of_a_group_may_be_done_twice() {
    for (way, filesystem, jobs_in, keep_base) in forms() {
        let (mut fake, anchor) = start(way, filesystem, jobs_in, keep_base);
        let mut seen = Observed::default();
        let mut end = None;
        for _ in 0..2000 {
            if end.is_some() {
                break;
            }
            seen.set_now(fake.now);
            if let Err(Stop::Next(Next::Do(step))) = plan(&anchor, &seen) {
                let mut lost: Observed = seen.clone();
                fake.execute(&step, &mut lost);
                let again: &Step = &step;
                fake.execute(again, &mut seen);
                continue;
            }
            end = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds its outcome");
        }
        assert_eq!(end.map(|end| end.exit_code), Some(0), "{way:?} {:#?}", fake.written);
        assert_gone(&mut fake, &anchor, if keep_base { 2 } else { 0 }, &format!("{way:?}"));
    }
}

#[test]
fn two_drivers_of_one_group_are_one_operation() {
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let all = forms();
        let at = usize::try_from(draw.below(all.len() as u64)).expect("few");
        let (way, filesystem, jobs_in, keep_base) = all[at];
        // Single snapshots without a lock are nobody's request. Of those a late driver may remove
        // some that were to stay.
        if way == Way::Single {
            continue;
        }
        let (mut fake, anchor) = start(way, filesystem, jobs_in, keep_base);
        fake.writes = way == Way::Locked;
        let mut names = 0;
        let mut fresh = || {
            names += 1;
            Observed::default().named(format!("driver {names}"))
        };
        let mut drivers = [fresh(), fresh()];
        let mut ends: [Option<Outcome>; 2] = [None, None];
        for _ in 0..12_000 {
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
        let about = format!("seed {seed} {way:?} {jobs_in} {keep_base}");
        let mut good = false;
        for end in ends {
            let end = end.unwrap_or_else(|| panic!("{about}: {:#?}", fake.written));
            // Cut off three times under a lock it gives up.
            assert!(end.exit_code <= u8::from(way != Way::Group), "{about}: {end:?}");
            good = end.exit_code == 0;
        }
        if good {
            assert_one_moment(&fake, &anchor, &about);
        }
        // Of single snapshots a late driver may leave a content, which `sweep` finds.
        if way == Way::Group {
            assert_gone(&mut fake, &anchor, if good && keep_base { 2 } else { 0 }, &about);
        }
    }
}
