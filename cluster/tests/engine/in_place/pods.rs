//! Pods that use the claim, before a restore and in the middle of it; and claims that others make.

use super::*;
use mover_cluster::engine::{Failure, without_pods};

pub(super) fn pod(fake: &mut Fake, name: &str, owner: (&str, &str)) -> Key {
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "db" } }]);
    fake.create(&json!({
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": { "pod-template-hash": "7f9c" },
            "ownerReferences": [{ "kind": owner.0, "name": owner.1 }],
        },
        "spec": { "claim": "db", "volumes": volumes },
        "status": { "phase": "Pending" },
    }));
    Key::new(Kind::Pod, NAMESPACE, name)
}

fn why(owner: (&str, &str)) -> Failure {
    let mut fake = cluster(FORMS[0]);
    pod(&mut fake, "db-0", owner);
    let mut seen = Observed::default();
    loop {
        match without_pods(&seen, &claim_key(), None) {
            Ok(()) => panic!("a pod uses it"),
            Err(Stop::Failure(why)) => return why,
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_owner_of_a_pod_is_named_with_the_next_step() {
    for (owner, of, hint) in [
        (("StatefulSet", "db"), "statefulset/db", "-n shop scale statefulset/db --replicas 0"),
        (("ReplicaSet", "web-7f9c"), "deployment/web", "-n shop scale deployment/web --replicas 0"),
        (("ReplicaSet", "web"), "replicaset/web", "-n shop scale replicaset/web --replicas 0"),
        (("Job", "copy"), "job/copy", "have job/copy end its pods"),
    ] {
        let why = why(owner);
        assert_eq!(why.exit_code, 2);
        let said = format!("pod/db-0 of {of} uses pvc/db in namespace shop");
        assert!(why.message.contains(&said), "{why:?}");
        assert!(why.hint.as_ref().is_some_and(|text| text.contains(hint)), "{why:?}");
    }
}

/// A pod's own volume has a claim that it does not name.
#[test]
fn an_ephemeral_volume_is_used_by_its_pod() {
    let mut fake = cluster(FORMS[0]);
    fake.create(&json!({
        "kind": "Pod",
        "metadata": { "name": "d", "namespace": NAMESPACE },
        "spec": { "volumes": [{ "name": "b", "ephemeral": { "volumeClaimTemplate": {} } }] },
    }));
    let mut seen = Observed::default();
    let pods = mover_cluster::engine::Selection::labelled(Kind::Pod, NAMESPACE, "");
    fake.read(&pods.into(), &mut seen);
    let of = |name: &str| Key::new(Kind::PersistentVolumeClaim, NAMESPACE, name);
    assert!(without_pods(&seen, &of("d-b"), None).is_err());
    assert_eq!(without_pods(&seen, &of("db"), None), Ok(()));
}

#[test]
fn a_pod_that_uses_the_claim_is_a_refusal_and_nothing_is_changed() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        let key = pod(&mut fake, "db-0", ("StatefulSet", "db"));
        settle(&mut fake, form);
        let before = (fake.objects[&claim_key()].clone(), fake.objects[&volume_key()].clone());
        let outcome = drive(&mut fake, &anchor, form);
        assert_eq!(outcome.exit_code, 2, "{outcome:?}");
        assert!(outcome.message.contains("pod/db-0 of statefulset/db uses pvc/db"), "{outcome:?}");
        let after = (fake.objects[&claim_key()].clone(), fake.objects[&volume_key()].clone());
        assert_eq!(before, after);
        fake.objects.remove(&key);
        assert_ended(&mut fake, &anchor, form, &outcome);
    }
}

/// A volume that is attached is waited for, and then refused.
#[test]
fn a_volume_that_stays_attached_is_a_refusal() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        fake.faults.never_detached = true;
        fake.create(&json!({
            "kind": "VolumeAttachment", "metadata": { "name": "attachment-pv-db" },
            "spec": { "nodeName": "node1", "source": { "persistentVolumeName": "pv-db" } },
        }));
        let outcome = drive(&mut fake, &anchor, form);
        assert!(outcome.message.contains("pv/pv-db is attached to node node1"), "{outcome:?}");
        fake.faults.never_detached = false;
        assert_ended(&mut fake, &anchor, form, &outcome);
    }
}

/// A pod appears after each write. It runs with the old data or with the restored, or it waits; and
/// once it is gone, the next restore ends well.
#[test]
fn a_pod_that_appears_in_the_middle_has_no_half_of_it() {
    for form in FORMS {
        for writes in 0.. {
            let (mut fake, anchor) = start(form);
            let ended = drive_until(&mut fake, &anchor, form, writes, true);
            let is_named = |fake: &Fake| !fake.objects[&anchor.key]["data"]["jobs"].is_null();
            let was_named = is_named(&fake);
            let has_ended = Meta::of(&fake.objects[&volume_key()]).annotations.contains_key(ENDED);
            let was_there = claim_that_stays(&fake);
            let key = pod(&mut fake, "db-0", ("StatefulSet", "db"));
            let outcome = drive(&mut fake, &anchor, form);
            let about = format!("{form:?} {writes}: {outcome:?} {:#?}", fake.written);
            let named = is_named(&fake);
            assert!(was_named || !named || !is_direct(form), "it was there before: {about}");
            assert!(was_there.is_none() || was_there == claim_that_stays(&fake), "{about}");
            let mixed = is_direct(form) && was_named && !has_ended;
            assert!(!mixed || outcome.exit_code != 0, "it wrote as well: {about}");
            settle(&mut fake, form);
            let runs = fake.objects[&key]["status"]["phase"] == "Running";
            let data = fake.storage["vol-db"].clone();
            if outcome.exit_code == 0 {
                assert_eq!(data, DATA, "{about}");
            } else if !named {
                assert_eq!(data, OLD, "{about}");
            } else {
                assert!(is_direct(form) || !runs, "{about}");
                let volume = &fake.objects[&volume_key()];
                assert!(volume["metadata"]["annotations"][HALF_WRITTEN].is_string(), "{about}");
            }
            fake.objects.remove(&key);
            settle(&mut fake, form);
            heals(&mut fake, form);
            if ended {
                break;
            }
        }
    }
}

/// The uid of the claim, if that is the first one and is not being deleted.
fn claim_that_stays(fake: &Fake) -> Option<String> {
    let first = Meta::of(&cluster(FORMS[0]).objects[&claim_key()]).uid;
    let meta = Meta::of(fake.get(&claim_key())?);
    (meta.uid == first && meta.deletion_timestamp.is_none()).then_some(meta.uid)
}

/// A pod of ours that outlives its Job may still write: the claim is not given back before it ends.
#[test]
fn a_pod_of_a_job_that_somebody_deleted_is_waited_for() {
    let form = (false, NAMESPACE);
    let (mut fake, anchor) = start(form);
    let key = pod(&mut fake, "orphan", ("Job", "gone"));
    let labels = json!({ "metadata": { "labels": { "mover.dev/owner": anchor.uid } } });
    fake.change(&key, &labels);
    fake.change(&key, &json!({ "status": { "phase": "Running" } }));
    let outcome = drive(&mut fake, &anchor, form);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("the Job's pod goes away from pvc/db"), "{outcome:?}");
    fake.objects.remove(&key);
    settle(&mut fake, form);
    assert_ended(&mut fake, &anchor, form, &outcome);
}

/// Somebody makes a claim of that name in the moment when there is none: it is not touched, and the
/// volume is retained.
#[test]
fn a_claim_that_others_make_in_the_middle_stays_and_so_does_the_data() {
    for form in FORMS.into_iter().filter(|form| !is_direct(*form)) {
        let mut tried = 0;
        for writes in 0.. {
            let (mut fake, anchor) = start(form);
            let ended = drive_until(&mut fake, &anchor, form, writes, true);
            settle(&mut fake, form);
            if ended {
                break;
            }
            if fake.get(&claim_key()).is_some() {
                continue;
            }
            tried += 1;
            let mode = if form.0 { "Filesystem" } else { "Block" };
            fake.create(&json!({
                "kind": "PersistentVolumeClaim",
                "metadata": { "name": "db", "namespace": NAMESPACE },
                "spec": { "volumeMode": mode, "storageClassName": CLASS },
            }));
            settle(&mut fake, form);
            let made = fake.objects[&claim_key()].clone();
            let outcome = drive(&mut fake, &anchor, form);
            assert_ne!(outcome.exit_code, 0, "{outcome:?}");
            assert!(outcome.left.iter().any(|left| left.contains("is in pv/pv-db")), "{outcome:?}");
            assert_eq!(fake.objects[&claim_key()], made);
            assert_eq!(fake.storage["vol-db"], OLD);
            // Nobody needs it: the next restore goes on from there.
            fake.delete(&claim_key(), &Meta::of(&made).uid);
            settle(&mut fake, form);
            fake.storage.retain(|name, _| name == "vol-db");
            fake.objects
                .retain(|key, _| key.kind != Kind::PersistentVolume || *key == volume_key());
            heals(&mut fake, form);
        }
        assert!(tried > 0, "there is a moment without a claim");
    }
}

/// A volume that is another claim's is never taken, whatever the claim says.
#[test]
fn a_volume_of_another_claim_is_not_taken() {
    for form in FORMS {
        let mut fake = cluster(form);
        let claim_ref = json!({ "spec": { "claimRef": { "uid": "another" } } });
        fake.change(&volume_key(), &claim_ref);
        let request = request(&fake, form);
        let anchor = begin(&mut fake, "first", &request);
        let before = fake.objects[&volume_key()].clone();
        let mut seen = Observed::default();
        let outcome = loop {
            if let Some(outcome) = turn(&mut fake, &anchor, &mut seen).expect("an outcome") {
                break outcome;
            }
        };
        assert_eq!(outcome.exit_code, 4, "{outcome:?}");
        assert!(outcome.message.contains("is not the volume of pvc/db"), "{outcome:?}");
        assert_eq!(fake.objects[&volume_key()]["spec"], before["spec"]);
        assert_eq!(fake.storage["vol-db"], OLD);
    }
}

/// A quota still counts the claim that was deleted: its creation is tried again. If that does not
/// help, the message says where the data is, and the next restore goes on from there.
#[test]
fn a_claim_whose_creation_is_refused_is_tried_again() {
    for form in FORMS.into_iter().filter(|form| !is_direct(*form)) {
        for (refused, good) in [(1, true), (20, true), (1000, false)] {
            let (mut fake, anchor) = start(form);
            fake.faults.claims_refused = refused;
            let outcome = drive(&mut fake, &anchor, form);
            assert_eq!(outcome.exit_code == 0, good, "{refused}: {outcome:?}");
            if good {
                assert_as_before(&mut fake, &anchor, form, DATA);
                continue;
            }
            assert!(outcome.message.contains("exceeded quota"), "{outcome:?}");
            assert!(outcome.left.iter().any(|left| left.contains("is in pv/pv-db")), "{outcome:?}");
            settle(&mut fake, form);
            assert_eq!(fake.storage["vol-db"], OLD);
            fake.faults.claims_refused = 0;
            heals(&mut fake, form);
        }
    }
}

/// The owner of the claim is gone, so the garbage collector deletes each one that is made again. That
/// ends, and the data stays.
#[test]
fn a_claim_that_is_deleted_each_time_is_not_made_for_ever() {
    for form in FORMS.into_iter().filter(|form| !is_direct(*form)) {
        let (mut fake, anchor) = start(form);
        for writes in 0.. {
            (fake, _) = start(form);
            assert!(!drive_until(&mut fake, &anchor, form, writes, true), "it is deleted once");
            settle(&mut fake, form);
            if fake.get(&claim_key()).is_none() {
                break;
            }
        }
        fake.faults.owner_gone = true;
        let outcome = drive(&mut fake, &anchor, form);
        assert_eq!(outcome.exit_code, 1, "{outcome:?}");
        assert!(outcome.message.contains("is deleted each time it is made"), "{outcome:?}");
        assert!(fake.storage.contains_key("vol-db"));
        // As the hint says.
        let text = Meta::of(&fake.objects[&volume_key()]).annotations[HELD].clone();
        let mut record: Value = serde_json::from_str(&text).expect("a record");
        record["metadata"]["ownerReferences"] = Value::Null;
        let notes = json!({ "metadata": { "annotations": { HELD: record.to_string() } } });
        fake.change(&volume_key(), &notes);
        let request = request(&fake, form);
        let next = begin(&mut fake, "next", &request);
        assert_eq!(drive(&mut fake, &next, form).exit_code, 0);
        assert_eq!(fake.storage["vol-db"], DATA);
        assert_eq!(fake.objects[&claim_key()]["status"]["phase"], "Bound");
    }
}

/// A pod has the claim while it is written, and has ended before the Job.
#[test]
fn a_pod_that_comes_and_goes_while_the_claim_is_written_is_noticed() {
    let form = (false, NAMESPACE);
    let (mut fake, anchor) = start(form);
    let mut seen = Observed::default();
    while fake.storage["vol-db"] != HALF {
        step(&mut fake, &anchor, &mut seen, form);
    }
    let key = pod(&mut fake, "db-0", ("StatefulSet", "db"));
    for _ in 0..2 {
        step(&mut fake, &anchor, &mut seen, form);
    }
    fake.objects.remove(&key);
    let outcome = drive(&mut fake, &anchor, form);
    assert_eq!(outcome.exit_code, 2, "{outcome:?}");
    assert!(outcome.message.contains("and did while it was written"), "{outcome:?}");
    assert!(outcome.message.contains("may be half written"), "{outcome:?}");
    heals(&mut fake, form);
}
