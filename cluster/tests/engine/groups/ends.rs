//! Groups that cannot be made, or not as they were asked for.

use super::*;

fn fails(change: impl Fn(&mut Fake, &Anchor), way: Way) -> (Fake, Anchor, Outcome) {
    let (mut fake, anchor) = start(way, true, NAMESPACE, true);
    change(&mut fake, &anchor);
    let outcome = drive(&mut fake, &anchor);
    (fake, anchor, outcome)
}

fn claim_of(name: &str) -> Key {
    Key::new(Kind::PersistentVolumeClaim, NAMESPACE, name)
}

#[test]
fn a_group_that_is_not_made_in_time_says_what_its_status_says() {
    type Fault = (&'static str, fn(&mut Fake));
    let faults: [Fault; 4] = [
        ("volumegroupsnapshot/", |fake| fake.faults.group_never_taken = true),
        ("is not ready", |fake| fake.faults.snapshot_never_ready = true),
        ("the pool is full", |fake| fake.faults.snapshot_error = Some("the pool is full".into())),
        ("has no snapshot of pvc/log", |fake| fake.faults.member_missing = Some("log".into())),
    ];
    for (text, fault) in faults {
        for way in [Way::Group, Way::Locked] {
            let (mut fake, anchor, outcome) = fails(|fake, _| fault(fake), way);
            let about = format!("{text} {way:?}: {outcome:?}");
            assert_eq!(outcome.exit_code, 1, "{about}");
            let is_late = outcome.message.contains("did not hold still until");
            assert!(outcome.message.contains(text) || way == Way::Locked && is_late, "{about}");
            assert_eq!(fake.repository.len(), 0, "{about}");
            assert_gone(&mut fake, &anchor, 0, &about);
        }
    }
}

/// A claim that gets the labels after they were looked at is no member, and one that loses them is one.
#[test]
fn a_group_of_other_claims_than_were_asked_for_is_no_backup() {
    let joins = |fake: &mut Fake, _: &Anchor| {
        fake.storage.insert("vol-new".into(), "0".into());
        fake.create(&json!({
            "kind": "PersistentVolume",
            "metadata": { "name": "pv-new" },
            "spec": {
                "csi": { "driver": DRIVER, "volumeHandle": "vol-new" },
                "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": { "namespace": NAMESPACE, "name": "new" },
            },
        }));
        fake.create(&json!({
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": "new", "namespace": NAMESPACE, "labels": { "app": "shop" } },
            "spec": { "volumeName": "pv-new", "volumeMode": "Filesystem", "storageClassName": CLASS },
        }));
        settle(fake);
    };
    let (mut fake, anchor, outcome) = fails(joins, Way::Group);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("pvc/new has joined the group"), "{outcome:?}");
    fake.storage.remove("vol-new");
    assert_gone(&mut fake, &anchor, 0, "joined");

    let leaves = |fake: &mut Fake, _: &Anchor| {
        fake.change(&claim_of("log"), &json!({ "metadata": { "labels": { "app": null } } }));
    };
    let (mut fake, anchor, outcome) = fails(leaves, Way::Group);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("pvc/log has left the group"), "{outcome:?}");
    assert_gone(&mut fake, &anchor, 0, "left");
}

#[test]
fn a_pending_claim_with_the_labels_is_named() {
    let pending = |fake: &mut Fake, _: &Anchor| {
        fake.faults.volume_never_bound = true;
        fake.create(&json!({
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": "new", "namespace": NAMESPACE, "labels": { "app": "shop" } },
            "spec": { "volumeMode": "Filesystem", "storageClassName": CLASS },
        }));
    };
    let (mut fake, anchor, outcome) = fails(pending, Way::Group);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("the PVC new is not yet bound"), "{outcome:?}");
    assert_gone(&mut fake, &anchor, 0, "pending");
}

/// Objects of the names that the operation would give, made by somebody before: none is adopted, none
/// is deleted.
#[test]
fn names_that_are_taken_end_a_group() {
    for taken in [0, 1] {
        let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, true);
        let key = match taken {
            0 => anchor.group(1),
            _ => anchor.of_member(2).volume(NAMESPACE),
        };
        fake.create(&json!({
            "kind": key.kind.word(),
            "metadata": { "name": key.name, "namespace": NAMESPACE },
            "spec": {
                "source": { "selector": { "matchLabels": { "app": "other" } } },
                "dataSource": { "name": "none" },
            },
        }));
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 2, "{outcome:?}");
        assert!(outcome.message.contains("does not belong to this operation"), "{outcome:?}");
        assert!(fake.get(&key).is_some(), "{:#?}", fake.written);
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "{:#?}", fake.written);
    }
}

/// Whoever may write a status must not lead to other data: of another group, or of another moment.
#[test]
fn what_somebody_wrote_into_a_status_is_not_believed() {
    // The group names the content of another one.
    let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, true);
    let other = json!({
        "kind": "VolumeGroupSnapshotContent",
        "metadata": { "name": "foreign" },
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain",
            "source": { "volumeHandles": ["vol-db", "vol-log"] },
            "volumeGroupSnapshotRef": { "namespace": NAMESPACE, "name": "theirs", "uid": "1" },
        },
    });
    fake.create(&other);
    let mut seen = Observed::default();
    while fake.get(&anchor.group(1)).is_none() {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None));
    }
    let status = json!({ "boundVolumeGroupSnapshotContentName": "foreign" });
    fake.change(&anchor.group(1), &json!({ "status": status }));
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 4, "{outcome:?}");
    assert!(outcome.message.contains("content of another group"), "{outcome:?}");
    let foreign = Key::wide(Kind::VolumeGroupSnapshotContent, "foreign");
    assert_eq!(fake.objects[&foreign]["spec"]["deletionPolicy"], "Retain");

    // A real snapshot of the claim, of another moment, says that it is a member.
    let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, true);
    let key = Key::new(Kind::VolumeSnapshot, NAMESPACE, "a-before");
    fake.create(&json!({
        "kind": "VolumeSnapshot",
        "metadata": { "name": key.name, "namespace": NAMESPACE },
        "spec": { "source": { "persistentVolumeClaimName": "log" } },
    }));
    settle(&mut fake);
    for _ in 0..40 {
        fake.pair = fake.pair.map(|writes| writes + 2);
    }
    let status = json!({ "volumeGroupSnapshotName": anchor.group(1).name });
    fake.change(&key, &json!({ "status": status }));
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    assert_one_moment(&fake, &anchor, "tampered");
    assert!(fake.get(&key).is_some(), "it is somebody's: {:#?}", fake.written);
}

/// The Job of one member fails: the others are backed up all the same, and the whole has failed.
#[test]
fn what_becomes_of_one_member_ends_no_other() {
    let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, true);
    // Its volume is never made: its name is somebody's.
    let key = anchor.of_member(1).job(NAMESPACE, 1);
    let mut seen = Observed::default();
    while fake.get(&anchor.of_member(1).volume(NAMESPACE)).is_none() {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None));
    }
    fake.create(
        &json!({ "kind": "Job", "metadata": { "name": key.name, "namespace": NAMESPACE } }),
    );
    fake.faults.jobs_stand_still = false;
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 2, "{outcome:?}");
    assert!(outcome.message.contains("1 of 2 claims"), "{outcome:?}");
    assert!(outcome.summary["members"][0]["failed"].is_string(), "{outcome:?}");
    assert_eq!(outcome.summary["members"][1]["backup_id"], anchor.of_member(2).id());
    assert!(fake.repository.contains_key(&anchor.of_member(2).id()));
}

/// Somebody deletes what the operation made, at any moment: it ends, and what is called good is of one
/// moment.
#[test]
fn an_object_of_a_group_that_somebody_deletes_is_an_error_and_never_other_data() {
    for way in [Way::Group, Way::Single] {
        for kind in [
            Kind::VolumeGroupSnapshot,
            Kind::VolumeSnapshot,
            Kind::PersistentVolumeClaim,
            Kind::Job,
            Kind::Lease,
        ] {
            for writes in 1.. {
                let (mut fake, anchor) = start(way, true, NAMESPACE, true);
                let ended = drive_until(&mut fake, &anchor, writes, true);
                fake.lock = None;
                for (key, object) in fake.of_kind(kind) {
                    if !["db", "log"].contains(&key.name.as_str()) {
                        fake.delete(&key, &Meta::of(&object).uid);
                    }
                }
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{way:?} {kind:?} {writes}: {outcome:?}");
                settle(&mut fake);
                assert_eq!(fake.left(), Vec::<String>::new(), "{about} {:#?}", fake.written);
                if outcome.exit_code == 0 {
                    assert_one_moment(&fake, &anchor, &about);
                }
                if ended {
                    break;
                }
            }
        }
    }
}

/// By count, as groups: the oldest goes with all its members.
#[test]
fn groups_that_stay_by_count_go_as_groups() {
    for keep_base in [false, true] {
        let mut fake = pair(true);
        let mut anchors = Vec::new();
        for name in ["one", "two", "three", "four"] {
            let mut group = group_of(&fake, Way::Group, true, NAMESPACE, keep_base);
            for member in &mut group.members {
                member.retain = Some(Retain { count: Some(2), days: None });
            }
            let anchor = begin(&mut fake, name, &Request::Group(Box::new(group)));
            let outcome = drive(&mut fake, &anchor);
            assert_eq!(outcome.exit_code, 0, "{outcome:?}");
            settle(&mut fake);
            anchors.push(anchor);
        }
        let last = anchors.last().expect("four").clone();
        assert_gone(&mut fake, &last, 4, "two groups");
        let names: Vec<Key> =
            fake.of_kind(Kind::VolumeGroupSnapshot).into_iter().map(|(key, _)| key).collect();
        for anchor in &anchors[2..] {
            assert!(names.contains(&anchor.group(1)), "{names:?}");
        }
        // Of the bases there is one of each claim.
        let is_base =
            |(_, at): &(Key, serde_json::Value)| Meta::of(at).labels["mover.dev/role"] == "base";
        let bases = fake.of_kind(Kind::VolumeSnapshot).iter().filter(|at| is_base(at)).count();
        assert_eq!(bases, if keep_base { 2 } else { 0 });
    }
}

/// The backup of one claim alone leaves the group whole, of which it has its base.
#[test]
fn a_backup_of_one_member_alone_deletes_no_member() {
    let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, true);
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    let single = backup_request(&fake, true, NAMESPACE, true);
    let single = begin(&mut fake, "single", &single);
    assert_eq!(drive(&mut fake, &single).exit_code, 0);
    settle(&mut fake);
    let members = fake.of_kind(Kind::VolumeSnapshot);
    assert_eq!(members.len(), 3, "{members:#?}");
    assert!(members.iter().all(|(_, at)| at["metadata"]["deletionTimestamp"].is_null()));
    // The next group replaces both.
    let group = group_of(&fake, Way::Group, true, NAMESPACE, true);
    let third = begin(&mut fake, "third", &Request::Group(Box::new(group)));
    assert_eq!(drive(&mut fake, &third).exit_code, 0);
    assert_gone(&mut fake, &third, 2, "the next group");
}

/// A claim that is gone needs no base: the group that had it goes with the next one of the others.
#[test]
fn a_group_of_a_claim_that_is_gone_is_replaced_all_the_same() {
    let (mut fake, anchor) = start(Way::Group, true, NAMESPACE, true);
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    settle(&mut fake);
    for there in [true, false] {
        let mut group = group_of(&fake, Way::Group, true, NAMESPACE, true);
        if there {
            fake.change(&claim_of("log"), &json!({ "metadata": { "labels": { "app": null } } }));
        } else {
            let uid = Meta::of(&fake.objects[&claim_of("log")]).uid;
            fake.delete(&claim_of("log"), &uid);
            settle(&mut fake);
        }
        group.members.truncate(1);
        let name = format!("next-{there}");
        let next = begin(&mut fake, &name, &Request::Group(Box::new(group)));
        let outcome = drive(&mut fake, &next);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        settle(&mut fake);
        let stays = fake.get(&anchor.group(1)).is_some();
        assert_eq!(stays, there, "{:#?}", fake.written);
        fake.pair = None;
        if !there {
            break;
        }
    }
}
