//! What goes wrong in a cluster: each ends with a message that names the object, and with nothing
//! left.

use super::fake::Faults;
use super::*;
use mover_cluster::engine::Step;

fn fails(faults: Faults, code: u8, said: &str) -> String {
    let mut hint = String::new();
    for jobs_in in [NAMESPACE, "mover-system"] {
        let mut fake = shop(true);
        fake.faults = faults.clone();
        let request = backup_request(&fake, true, jobs_in, true);
        let anchor = begin(&mut fake, "first", &request);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, code, "{outcome:?}");
        assert!(outcome.message.contains(said), "{outcome:?}");
        hint = outcome.hint.unwrap_or_default();
        fake.faults = Faults::default();
        assert_clean(&mut fake, &anchor, 0, 0);
        // The next try succeeds.
        let again = begin(&mut fake, "again", &request);
        assert_eq!(drive(&mut fake, &again).exit_code, 0);
    }
    hint
}

#[test]
fn a_snapshot_that_is_never_ready() {
    let faults = Faults { snapshot_never_ready: true, ..Faults::default() };
    fails(faults, 1, "-1 in namespace shop is not ready");
}

#[test]
fn an_error_of_the_driver_is_quoted() {
    let faults = Faults { snapshot_error: Some("array is full".into()), ..Faults::default() };
    fails(faults, 1, "array is full");
}

#[test]
fn a_volume_that_is_never_bound() {
    fails(Faults { volume_never_bound: true, ..Faults::default() }, 1, "is not bound");
}

#[test]
fn a_pod_that_never_begins() {
    fails(Faults { pod_never_begins: true, ..Faults::default() }, 1, "has not begun");
}

#[test]
fn the_program_s_own_words_and_exit_code() {
    let message = json!({ "state": "failed", "message": "the bucket says no", "hint": "ask it" });
    let faults = Faults { pod_fails: Some((4, message.to_string())), ..Faults::default() };
    fails(faults, 4, "the bucket says no");
}

/// A lookup has no termination message: its log is one.
#[test]
fn the_last_line_of_a_log_says_why() {
    let line = json!({ "type": "error", "message": "no backup of that volume", "hint": "list" });
    let log = format!("{{\"type\":\"progress\"}}\nnot JSON\n{line}\n");
    let faults = Faults { pod_fails: Some((2, log)), ..Faults::default() };
    fails(faults, 2, "no backup of that volume");
}

#[test]
fn a_pod_that_ends_without_words() {
    let faults = Faults { pod_fails: Some((137, String::new())), ..Faults::default() };
    assert_eq!(fails(faults, 1, "failed"), "run the same command again");
}

/// Who reads of a number alone would try the same again, for ever.
#[test]
fn a_pod_that_the_kernel_killed_for_its_memory() {
    // It writes beforehand what it may not be able to say later.
    let said =
        json!({ "state": "failed", "message": "ended from outside", "hint": "if it is memory" });
    let faults = Faults {
        pod_fails: Some((137, said.to_string())),
        out_of_memory: true,
        ..Faults::default()
    };
    let hint = fails(faults.clone(), 1, "failed: OOMKilled: ended from outside");
    assert!(hint.contains("`memory` in the Repository's ConfigMap"), "{hint}");
    // Its successor is still far away when the time is over.
    let faults = Faults { jobs_stand_still: true, ..faults };
    let hint = fails(faults, 1, "has ended (OOMKilled), and job/mover-");
    assert!(hint.contains("`memory` in the Repository's ConfigMap"), "{hint}");
}

#[test]
fn a_snapshot_status_that_leads_elsewhere() {
    let faults = Faults { foreign_content: true, ..Faults::default() };
    let mut fake = shop(true);
    fake.faults = faults;
    let request = backup_request(&fake, true, NAMESPACE, true);
    let anchor = begin(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 4, "{outcome:?}");
    assert!(outcome.message.contains("the content of another snapshot"), "{outcome:?}");
    assert!(fake.repository.is_empty());
    settle(&mut fake);
    assert_eq!(fake.left(), Vec::<String>::new());
}

#[test]
fn a_result_that_went_with_its_pod_is_asked_for_again() {
    for lost in 1..=2 {
        let mut fake = shop(true);
        fake.faults.pods_lost = lost;
        let request = backup_request(&fake, true, NAMESPACE, false);
        let anchor = begin(&mut fake, "first", &request);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        assert_clean(&mut fake, &anchor, 0, 0);
    }
    fails(Faults { pods_lost: 3, ..Faults::default() }, 1, "the pod of each was gone");
}

/// Objects of our names that somebody made before us.
#[test]
fn names_that_are_taken_are_an_error_and_stay() {
    let kinds = [Kind::VolumeSnapshot, Kind::PersistentVolumeClaim, Kind::Job];
    for kind in kinds {
        let mut fake = shop(true);
        let request = backup_request(&fake, true, NAMESPACE, false);
        let anchor = begin(&mut fake, "first", &request);
        let key = match kind {
            Kind::VolumeSnapshot => anchor.snapshot(1),
            Kind::Job => anchor.job(NAMESPACE, 1),
            _ => anchor.volume(NAMESPACE),
        };
        fake.create(&json!({
            "kind": kind.word(),
            "metadata": { "name": key.name, "namespace": NAMESPACE },
            "spec": { "volumeName": "pv-db" },
            "status": { "conditions": [], "phase": "Bound" },
        }));
        // No controller is asked about what it does not know.
        let outcome = loop {
            let mut seen = Observed::default();
            if let Some(outcome) = turn_without_cluster(&mut fake, &anchor, &mut seen) {
                break outcome;
            }
        };
        assert_eq!(outcome.exit_code, 2, "{outcome:?}");
        assert!(outcome.message.contains("does not belong to this operation"), "{outcome:?}");
        assert!(fake.get(&key).is_some(), "{key} stays");
    }
}

fn turn_without_cluster(fake: &mut Fake, anchor: &Anchor, seen: &mut Observed) -> Option<Outcome> {
    for _ in 0..200 {
        match plan(anchor, seen) {
            Ok(outcome) => return Some(outcome),
            Err(Stop::Failure(why)) => panic!("{why}"),
            Err(Stop::Next(Next::Refresh)) => seen.forget_all(),
            Err(Stop::Next(next @ (Next::Quiesce(..) | Next::Resume(_)))) => panic!("{next:?}"),
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, seen),
            Err(Stop::Next(Next::Do(step))) => fake.execute(&step, seen),
            Err(Stop::Next(Next::Wait(wait))) => {
                fake.now += wait.time;
                seen.set_now(fake.now);
            }
        }
    }
    panic!("it does not end");
}

/// The target's name is taken while the data is written: it is an error, and that claim stays.
#[test]
fn a_target_that_appears_meanwhile_stays_as_it_is() {
    for filesystem in [true, false] {
        let mut fake = shop(filesystem);
        fake.repository.insert("old".into(), DATA.into());
        let request = restore_request("old", filesystem, NAMESPACE);
        let anchor = begin(&mut fake, "first", &request);
        let mut seen = Observed::default();
        while fake.of_kind(Kind::Job).is_empty() {
            assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None));
        }
        fake.create(&json!({
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": "db-restored", "namespace": NAMESPACE },
            "spec": { "volumeMode": "Block", "storageClassName": CLASS, "volumeName": "nothing" },
        }));
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 2, "{outcome:?}");
        assert!(
            outcome.message.contains("db-restored in namespace shop exists already"),
            "{outcome:?}"
        );
        assert_clean(&mut fake, &anchor, 0, 0);
    }
}

/// A volume that stays attached is not handed over: it is retained and named.
#[test]
fn a_volume_that_is_never_detached_is_kept_and_named() {
    for filesystem in [true, false] {
        let mut fake = shop(filesystem);
        fake.repository.insert("old".into(), DATA.into());
        fake.faults.never_detached = true;
        let request = restore_request("old", filesystem, NAMESPACE);
        let anchor = begin(&mut fake, "first", &request);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 1, "{outcome:?}");
        assert!(outcome.message.contains("still attached to node node1"), "{outcome:?}");
        assert!(outcome.message.contains("of reclaim policy Retain"), "{outcome:?}");
        assert!(
            fake.storage.values().filter(|data| *data == DATA).count() == 2,
            "the data is there"
        );
    }
}

/// A class that retains keeps no volume of ours, and the restored one as it keeps all others.
#[test]
fn a_class_that_retains_leaves_no_volumes_behind() {
    for filesystem in [true, false] {
        let mut fake = shop(filesystem);
        fake.faults.retains = true;
        let request = backup_request(&fake, filesystem, NAMESPACE, false);
        let first = begin(&mut fake, "first", &request);
        assert_eq!(drive(&mut fake, &first).exit_code, 0);
        assert_clean(&mut fake, &first, 0, 0);
        let request = restore_request(&first.uid, filesystem, NAMESPACE);
        let second = begin(&mut fake, "second", &request);
        assert_eq!(drive(&mut fake, &second).exit_code, 0);
        assert_clean(&mut fake, &second, 1, 0);
        assert_restored(&fake, filesystem);
        fake.faults.pod_fails = Some((1, String::new()));
        let request = backup_request(&fake, filesystem, NAMESPACE, false);
        let third = begin(&mut fake, "third", &request);
        assert_eq!(drive(&mut fake, &third).exit_code, 1);
        assert_clean(&mut fake, &third, 1, 0);
    }
}

/// Whoever may write ConfigMaps has nobody do anything by them.
#[test]
fn an_anchor_that_somebody_changed_is_not_followed() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, true);
    let anchor = begin(&mut fake, "first", &request);
    let Request::Backup(mut other) = request.clone() else { panic!("it is a backup") };
    other.repository.key_secret = "a-secret-of-another".into();
    let other = Request::Backup(other);
    fake.change(&anchor.key, &json!({ "data": { "request": other.text() } }));
    let mut seen = Observed::default();
    fake.read(&anchor.key.clone().into(), &mut seen);
    let written = fake.written.clone();
    for mandate in [Mandate::Request(&request), Mandate::Removal] {
        let outcome = engine::plan(&anchor, mandate, &seen);
        match (mandate, outcome) {
            (Mandate::Request(_), Err(Stop::Failure(why))) => assert_eq!(why.exit_code, 4, "{why}"),
            // To remove what has its uid is all that follows: no Lease, no snapshot, no Job.
            (Mandate::Removal, Err(Stop::Next(Next::Do(step)))) => {
                let Step::Patch { key, patch, .. } = *step else { panic!("{step:?}") };
                assert_eq!(key, anchor.key);
                assert!(patch["data"]["outcome"].as_str().expect("it").contains("cancelled"));
            }
            (_, other) => panic!("{other:?}"),
        }
    }
    // A hand-over is only what its own driver wrote, and of another namespace is nothing.
    let forged = json!({ "data": { "handover": "{}", "request": request.text() } });
    fake.change(&anchor.key, &forged);
    let Request::Restore(mut restore) = restore_request("old", true, "mover-system") else {
        panic!("it is a restore")
    };
    restore.namespace = "kube-system".into();
    let text = Request::Restore(restore).text();
    fake.change(&anchor.key, &json!({ "data": { "request": text } }));
    fake.read(&anchor.key.clone().into(), &mut seen);
    let outcome = engine::plan(&anchor, Mandate::Removal, &seen);
    assert!(matches!(outcome, Err(Stop::Failure(why)) if why.exit_code == 4));
    assert_eq!(fake.written, written);
}

/// The record says that another volume was written: that one itself says otherwise.
#[test]
fn a_volume_that_was_not_ours_is_not_handed_over() {
    let mut fake = shop(true);
    fake.repository.insert("old".into(), DATA.into());
    let request = restore_request("old", true, NAMESPACE);
    let anchor = begin(&mut fake, "first", &request);
    let stolen = Meta::of(&fake.objects[&Key::wide(Kind::PersistentVolume, "pv-db")]).uid;
    let hand_over = json!({ "summary": {}, "old": "pv-db", "oldUid": stolen, "policy": "Delete" });
    fake.change(&anchor.key, &json!({ "data": { "handover": hand_over.to_string() } }));
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 4, "{outcome:?}");
    let volume = &fake.objects[&Key::wide(Kind::PersistentVolume, "pv-db")];
    assert_eq!(volume["spec"]["claimRef"]["name"], "db");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
}
