//! Restores for claims that are there and wait: killed, doubled and cancelled at each write, and with
//! claims that are deleted, made anew or given another volume in the middle. Nothing but the data of
//! the backup is ever bound to the claim, and nobody else's claim gets it.

use super::answers::{drive_refused, writes};
use super::orders::Draw;
use super::pause::drive_until;
use super::*;
use serde_json::Value;

/// A filesystem or not, where the Jobs run, and whether the class waits for a consumer.
type Form = (bool, &'static str, bool);

const FORMS: [Form; 5] = [
    (true, NAMESPACE, false),
    (true, "mover-system", true),
    (false, NAMESPACE, true),
    (false, "mover-system", false),
    (false, "mover-system", true),
];

fn claim_key() -> Key {
    Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db-restored")
}

fn make_claim(fake: &mut Fake, (filesystem, _, waits): Form) -> String {
    let mode = if filesystem { "Filesystem" } else { "Block" };
    let notes = match waits {
        true => json!({ "volume.kubernetes.io/selected-node": "node7" }),
        false => json!({}),
    };
    fake.create(&json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db-restored", "namespace": NAMESPACE, "annotations": notes },
        "spec": {
            "volumeMode": mode,
            "storageClassName": CLASS,
            "accessModes": ["ReadWriteOnce"],
            "volumeAttributesClassName": "gold",
            "dataSourceRef": { "apiGroup": "mover.dev", "kind": "VolumeRestore", "name": "db" },
        },
        "status": { "phase": "Pending" },
    }));
    Meta::of(&fake.objects[&claim_key()]).uid
}

fn request(uid: &str, (filesystem, jobs_in, waits): Form) -> Request {
    let Request::Restore(mut restore) = restore_request("old", filesystem, jobs_in) else {
        unreachable!("it is a restore")
    };
    restore.populate = Some(Populate {
        uid: uid.into(),
        selected_node: waits.then(|| "node7".into()),
        attributes_class: Some("gold".into()),
    });
    Request::Restore(restore)
}

fn start(form: Form) -> (Fake, Anchor) {
    let mut fake = shop(form.0);
    fake.faults.waits_for_consumer = form.2;
    fake.repository.insert("old".into(), DATA.into());
    let uid = make_claim(&mut fake, form);
    settle(&mut fake);
    let anchor = begin(&mut fake, "first", &request(&uid, form));
    (fake, anchor)
}

fn volume_of(fake: &Fake) -> Option<Value> {
    let name = fake.get(&claim_key())?["spec"]["volumeName"].as_str()?;
    fake.get(&Key::wide(Kind::PersistentVolume, name)).cloned()
}

/// The claim is the user's own, with the data.
fn assert_populated(fake: &mut Fake, anchor: &Anchor, form: Form, about: &str) {
    assert_clean(fake, anchor, 1, 0);
    assert_restored(fake, form.0);
    let meta = Meta::of(&fake.objects[&claim_key()]);
    assert!(!meta.labels.contains_key("mover.dev/owner"), "{about}");
    assert_eq!(meta.annotations["pv.kubernetes.io/bind-completed"], "yes", "{about}");
    let volume = volume_of(fake).expect("its volume");
    assert_eq!(volume["spec"]["claimRef"]["uid"], meta.uid.as_str(), "{about}");
    assert_eq!(volume["spec"]["volumeAttributesClassName"], "gold", "{about}");
    assert_eq!(volume["status"]["phase"], "Bound", "{about}");
    let node = if form.2 { json!("node7") } else { Value::Null };
    assert_eq!(volume["spec"]["nodeAffinity"], node, "{about}");
}

/// The claim has no volume, or the one that was proved; no other claim is promised that one.
fn assert_not_populated(fake: &mut Fake, anchor: &Anchor, outcome: &Outcome, about: &str) {
    settle(fake);
    assert_eq!(fake.left(), Vec::<String>::new(), "{about}: {outcome:?} {:#?}", fake.written);
    assert_eq!(fake.storage["vol-db"], DATA, "{about}");
    if let Some(volume) = volume_of(fake) {
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().expect("a handle");
        let foreign = handle == "vol-foreign";
        assert!(foreign || fake.storage[handle] == DATA, "{about}: {:#?}", fake.written);
    }
    for (key, volume) in fake.of_kind(Kind::PersistentVolume) {
        if ["pv-db", "pv-foreign"].contains(&key.name.as_str()) {
            continue;
        }
        let holder = &volume["spec"]["claimRef"];
        assert!(holder["uid"].is_string(), "{about}: anybody may have {key}: {volume}");
        // It was proved before: it stays, and is named.
        let handed = fake.get(&anchor.key).expect("it stays")["data"]["handover"].is_string();
        assert!(handed, "{about}: {key} is left {:#?}", fake.written);
        assert!(
            outcome.message.contains(&key.to_string())
                || outcome.left.iter().any(|left| left.contains(&key.to_string())),
            "{about}: {outcome:?} does not name {key}"
        );
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain", "{about}");
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().expect("a handle");
        assert_eq!(fake.storage[handle], DATA, "{about}");
    }
}

#[test]
fn a_claim_that_waits_has_the_data_in_every_form() {
    for form in FORMS {
        for retains in [false, true] {
            let (mut fake, anchor) = start(form);
            fake.faults.retains = retains;
            let uid = Meta::of(&fake.objects[&claim_key()]).uid;
            let outcome = drive(&mut fake, &anchor);
            assert_eq!(outcome.exit_code, 0, "{outcome:?}");
            assert_populated(&mut fake, &anchor, form, "");
            assert_eq!(Meta::of(&fake.objects[&claim_key()]).uid, uid, "nobody made it anew");
        }
    }
}

#[test]
fn killed_before_and_after_each_write_it_ends_well() {
    for form in FORMS {
        for done in [false, true] {
            for at in 0.. {
                let (mut fake, anchor) = start(form);
                let ended = drive_until(&mut fake, &anchor, at, done);
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{form:?} {done} {at}");
                assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
                assert_populated(&mut fake, &anchor, form, &about);
                if ended {
                    assert!(at > 8, "{about}");
                    break;
                }
            }
        }
    }
}

#[test]
fn each_write_may_be_done_twice() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        let mut seen = Observed::default();
        let mut end = None;
        while end.is_none() {
            seen.set_now(fake.now);
            if let Err(Stop::Next(Next::Do(step))) = plan(&anchor, &seen) {
                fake.execute(&step, &mut seen.clone());
                fake.execute(&step, &mut seen);
                continue;
            }
            end = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds its outcome");
        }
        assert_eq!(end.map(|end| end.exit_code), Some(0));
        assert_populated(&mut fake, &anchor, form, "");
    }
}

#[test]
fn cancelled_after_each_write_nothing_is_left() {
    for form in FORMS {
        for at in 0.. {
            let (mut fake, anchor) = start(form);
            let ended = drive_until(&mut fake, &anchor, at, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let outcome = drive(&mut fake, &anchor);
            let about = format!("{form:?} {at}: {outcome:?}");
            if outcome.exit_code == 0 {
                assert_populated(&mut fake, &anchor, form, &about);
            } else {
                assert_eq!(outcome.exit_code, 143, "{about}");
                assert_clean(&mut fake, &anchor, 0, 0);
                assert_eq!(fake.objects[&claim_key()]["status"]["phase"], "Pending", "{about}");
            }
            if ended {
                break;
            }
        }
    }
}

#[test]
fn two_drivers_populate_a_claim_once() {
    for seed in 0..300 {
        let mut draw = Draw(seed);
        let form = FORMS[usize::try_from(draw.below(5)).expect("few")];
        let (mut fake, anchor) = start(form);
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
        assert_populated(&mut fake, &anchor, form, &format!("seed {seed}"));
    }
}

/// The user deletes the claim at any moment, and may make another of its name.
#[test]
fn a_claim_that_is_deleted_or_made_anew_ends_it() {
    for form in FORMS {
        for anew in [false, true] {
            for at in 0.. {
                let (mut fake, anchor) = start(form);
                if drive_until(&mut fake, &anchor, at, true) {
                    break;
                }
                let before = Meta::of(&fake.objects[&claim_key()]).uid;
                fake.delete(&claim_key(), &before);
                while fake.get(&claim_key()).is_some() {
                    assert!(fake.tick(), "{:#?}", fake.written);
                }
                let other = anew.then(|| make_claim(&mut fake, form));
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{form:?} {anew} {at}: {outcome:?}");
                // It was bound, and so the user's own volume that went with it.
                assert!([0, 2].contains(&outcome.exit_code), "{about}");
                if outcome.exit_code == 0 {
                    let data = fake.get(&anchor.key).expect("it stays")["data"].clone();
                    assert!(data["outcome"].is_string(), "{about}");
                    continue;
                }
                assert_not_populated(&mut fake, &anchor, &outcome, &about);
                if let Some(other) = other {
                    let found = &fake.objects[&claim_key()];
                    assert_eq!(Meta::of(found).uid, other, "{about}");
                    assert_eq!(found["status"]["phase"], "Pending", "{about}: {found}");
                    // It is populated by its own operation.
                    let second = begin(&mut fake, "second", &request(&other, form));
                    assert_eq!(drive(&mut fake, &second).exit_code, 0, "{about}");
                    settle(&mut fake);
                    assert_restored(&fake, form.0);
                }
            }
        }
    }
}

/// Somebody reserves another volume for the claim at any moment, also while ours is reserved for it.
#[test]
fn a_claim_that_gets_another_volume_ends_it() {
    for form in FORMS {
        for by_controller in [false, true] {
            for at in 0.. {
                let (mut fake, anchor) = start(form);
                if drive_until(&mut fake, &anchor, at, true) {
                    break;
                }
                if by_controller {
                    for (key, _) in fake.of_kind(Kind::PersistentVolume) {
                        let notes = json!({ "pv.kubernetes.io/bound-by-controller": "yes" });
                        if key.name != "pv-db" && !key.name.starts_with("mover-") {
                            fake.change(&key, &json!({ "metadata": { "annotations": notes } }));
                        }
                    }
                }
                reserve_another(&mut fake, form);
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{form:?} {at}: {outcome:?}");
                let name = fake.objects[&claim_key()]["spec"]["volumeName"].clone();
                if name != "pv-foreign" {
                    assert_eq!(outcome.exit_code, 0, "{about}");
                    assert_populated_beside(&mut fake, form, &about);
                    continue;
                }
                assert_eq!(outcome.exit_code, 2, "{about}");
                assert!(outcome.message.contains("has another volume: pv/pv-foreign"), "{about}");
                assert_not_populated(&mut fake, &anchor, &outcome, &about);
                a_new_claim_gets_nothing(&mut fake, form, &about);
            }
        }
    }
}

fn reserve_another(fake: &mut Fake, form: Form) {
    let uid = Meta::of(&fake.objects[&claim_key()]).uid;
    fake.storage.insert("vol-foreign".into(), "what somebody else had".into());
    fake.create(&json!({
        "kind": "PersistentVolume",
        // Before ours in the order of names.
        "metadata": { "name": "pv-foreign" },
        "spec": {
            "csi": { "driver": DRIVER, "volumeHandle": "vol-foreign" },
            "volumeMode": if form.0 { "Filesystem" } else { "Block" },
            "volumeAttributesClassName": "gold",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "namespace": NAMESPACE, "name": "db-restored", "uid": uid },
        },
    }));
}

fn assert_populated_beside(fake: &mut Fake, form: Form, about: &str) {
    settle(fake);
    assert_eq!(fake.left(), Vec::<String>::new(), "{about}");
    assert_restored(fake, form.0);
}

/// The user makes the claim anew: no volume of the restore that failed comes to it by its name.
fn a_new_claim_gets_nothing(fake: &mut Fake, form: Form, about: &str) {
    let uid = Meta::of(&fake.objects[&claim_key()]).uid;
    fake.delete(&claim_key(), &uid);
    settle(fake);
    make_claim(fake, form);
    settle(fake);
    let found = &fake.objects[&claim_key()];
    assert_eq!(found["status"]["phase"], "Pending", "{about}: {found} {:#?}", fake.written);
}

/// A driver is paused before each write. Another one ends the restore, and the user deletes the claim
/// with its volume: the first one makes nothing anew.
#[test]
fn a_late_driver_makes_nothing_anew() {
    for form in FORMS {
        for at in 0.. {
            let (mut fake, anchor) = start(form);
            let mut late = Observed::default();
            let mut made = 0;
            let mut ended = false;
            while made < at && !ended {
                late.set_now(fake.now);
                made += usize::from(matches!(plan(&anchor, &late), Err(Stop::Next(Next::Do(_)))));
                ended = turn(&mut fake, &anchor, &mut late).expect("an outcome").is_some();
            }
            if ended {
                assert!(at > 5);
                break;
            }
            assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
            settle(&mut fake);
            let uid = Meta::of(&fake.objects[&claim_key()]).uid;
            fake.delete(&claim_key(), &uid);
            settle(&mut fake);
            fake.now += Duration::from_secs(60);
            while turn(&mut fake, &anchor, &mut late).expect("an outcome").is_none() {}
            settle(&mut fake);
            assert_eq!(fake.left(), Vec::<String>::new(), "{at}: {:#?}", fake.written);
            assert_eq!(fake.of_kind(Kind::PersistentVolume).len(), 1, "{at}: {:#?}", fake.written);
        }
    }
}

#[test]
fn whatever_write_is_refused_the_rest_is_removed() {
    for form in FORMS {
        let (fake, anchor) = start(form);
        for refused in writes(&fake, &anchor) {
            let mut fake = fake.clone();
            let outcome = drive_refused(&mut fake, &anchor, &refused);
            settle(&mut fake);
            let said = format!("{outcome:?}");
            assert!(said.contains(&format!("{refused}: no right")), "{refused}: {said}");
            let stays = refused.strip_prefix("delete ").unwrap_or("nothing");
            let left: Vec<String> = fake.left().into_iter().filter(|left| left != stays).collect();
            assert!(left.is_empty() || stays.starts_with("job/"), "{refused}: {left:?} {said}");
            // No volume without an owner: a restored one is named.
            let handed = fake.objects[&anchor.key]["data"]["handover"].is_string();
            let volumes = fake.storage.keys().filter(|name| name.starts_with("vol-")).count();
            let held = stays.starts_with("job/") || stays.starts_with("pvc/");
            assert!(volumes == 1 || handed || held, "{refused}: {said}");
            if handed && volumes > 1 && !matches!(&outcome, Ok(outcome) if outcome.exit_code == 0) {
                let named = said.contains("the restored volume is pv/");
                assert!(named || said.contains("is complete"), "{refused}: {said}");
            }
        }
    }
}

/// The volume is never bound: that is given up after its own time, not after the claim's, which has
/// waited since before the restore.
#[test]
fn a_binding_that_never_comes_is_an_error_and_the_volume_is_kept() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        fake.now += Duration::from_secs(100_000);
        let mut seen = Observed::default();
        seen.set_now(fake.now);
        let mut end = None;
        while end.is_none() {
            let handed = fake.objects[&anchor.key]["data"]["handover"].is_string();
            fake.faults.volume_never_bound = handed;
            end = turn(&mut fake, &anchor, &mut seen).expect("an outcome");
        }
        let end = end.expect("it has ended");
        assert_eq!(end.exit_code, 1, "{end:?}");
        assert!(end.message.contains("is being bound to pv/"), "{end:?}");
        fake.faults.volume_never_bound = false;
        assert_not_populated(&mut fake, &anchor, &end, "");
        assert_eq!(fake.objects[&claim_key()]["status"]["phase"], "Pending");
        // The next try succeeds.
        let uid = Meta::of(&fake.objects[&claim_key()]).uid;
        let second = begin(&mut fake, "second", &request(&uid, form));
        assert_eq!(drive(&mut fake, &second).exit_code, 0);
        settle(&mut fake);
        assert_restored(&fake, form.0);
    }
}

/// A claim that the request does not fit is left alone.
#[test]
fn a_claim_of_another_mode_or_with_a_volume_is_not_populated() {
    for form in FORMS {
        let (fake, _) = start(form);
        let uid = Meta::of(&fake.objects[&claim_key()]).uid;
        let mode = if form.0 { "Block" } else { "Filesystem" };
        for (patch, said) in [
            (json!({ "spec": { "volumeMode": mode } }), "is of mode"),
            (json!({ "spec": { "volumeName": "pv-x" } }), "has another volume: pv/pv-x"),
            (json!({ "metadata": { "deletionTimestamp": "now" } }), "is being deleted"),
            (json!({ "status": { "phase": "Lost" } }), "is Lost"),
        ] {
            let mut fake = fake.clone();
            let held = json!({ "metadata": { "finalizers": ["shop/keeps-it"] } });
            fake.change(&claim_key(), &held);
            fake.change(&claim_key(), &patch);
            let second = begin(&mut fake, "second", &request(&uid, form));
            let outcome = drive(&mut fake, &second);
            assert_eq!(outcome.exit_code, 2, "{outcome:?}");
            assert!(outcome.message.contains(said), "{outcome:?}");
            assert_clean(&mut fake, &second, 0, 0);
            assert!(fake.of_kind(Kind::Job).is_empty());
        }
    }
}

/// Whatever the operation made is deleted by somebody at any moment: the claim is never bound to
/// other data.
#[test]
fn an_object_that_somebody_deletes_is_an_error_and_never_other_data() {
    let kinds = [Kind::PersistentVolumeClaim, Kind::PersistentVolume, Kind::Job, Kind::Pod];
    for form in FORMS {
        for kind in kinds {
            for at in 1.. {
                let (mut fake, anchor) = start(form);
                let ended = drive_until(&mut fake, &anchor, at, true);
                for (key, object) in fake.of_kind(kind) {
                    if !["db", "pv-db", "db-restored"].contains(&key.name.as_str()) {
                        fake.delete(&key, &Meta::of(&object).uid);
                    }
                }
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{form:?} {kind:?} {at}: {outcome:?}");
                settle(&mut fake);
                assert_eq!(fake.left(), Vec::<String>::new(), "{about}");
                if let Some(volume) = volume_of(&fake) {
                    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().expect("one");
                    assert_eq!(fake.storage.get(handle).map(String::as_str), Some(DATA), "{about}");
                }
                if ended {
                    break;
                }
            }
        }
    }
}
