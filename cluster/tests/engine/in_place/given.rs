//! Restores whose last steps fail when the claim has its data: what is left to do is done by the next
//! command, and nobody writes to the volume again.

use super::*;
use mover_cluster::engine::{Failure, RESTORED, Step};

const LATER: &str = "what the shop wrote after the restore";

/// Whether a write sets the policy of the user's volume back.
fn is_last(write: &Step) -> bool {
    match write {
        Step::Patch { key, patch, .. } => {
            *key == volume_key() && patch["metadata"]["annotations"][ENDED].is_string()
        }
        _ => false,
    }
}

/// Drives while the API refuses the last write on the volume.
fn drive_refused(fake: &mut Fake, anchor: &Anchor, form: Form) -> Outcome {
    let mut seen = Observed::default();
    for _ in 0..3000 {
        seen.set_now(fake.now);
        if let Err(Stop::Next(Next::Do(write))) = plan(anchor, &seen)
            && is_last(&write)
        {
            seen.refuse(*write, Failure::new(4, "no right"));
            continue;
        }
        if let Some(outcome) = step(fake, anchor, &mut seen, form) {
            return outcome;
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

/// A restore whose last write is refused; and then the application writes.
fn given(form: Form) -> Fake {
    let (mut fake, anchor) = start(form);
    let outcome = drive_refused(&mut fake, &anchor, form);
    assert_eq!(outcome.exit_code, 4, "{outcome:?}");
    assert!(
        outcome.message.contains("pvc/db in namespace shop has the restored data"),
        "{outcome:?}"
    );
    assert!(outcome.hint.is_some_and(|hint| hint.contains("writes nothing")));
    settle(&mut fake, form);
    assert_eq!(fake.objects[&claim_key()]["status"]["phase"], "Bound");
    assert_eq!(fake.storage["vol-db"], DATA);
    fake.storage.insert("vol-db".into(), LATER.into());
    fake
}

fn exchanged() -> impl Iterator<Item = Form> {
    FORMS.into_iter().filter(|form| !is_direct(*form))
}

#[test]
fn a_claim_that_has_its_data_is_not_written_by_the_next_run() {
    for form in exchanged() {
        let mut fake = given(form);
        let request = request(&fake, form);
        let next = begin(&mut fake, "next", &request);
        let outcome = drive(&mut fake, &next, form);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        assert_eq!(outcome.summary["completed_earlier"], "c1/shop/db@old", "{outcome:?}");
        assert_as_before(&mut fake, &next, form, LATER);
        // Whoever asks once more gets a new restore.
        heals_as(&mut fake, form, "third");
    }
}

/// The same where the restore before was of another backup.
#[test]
fn a_run_for_another_backup_says_that_it_wrote_nothing() {
    for form in exchanged() {
        let mut fake = given(form);
        let notes = json!({ "metadata": { "annotations": { RESTORED: "c1/shop/db@older" } } });
        fake.change(&volume_key(), &notes);
        let request = request(&fake, form);
        let next = begin(&mut fake, "next", &request);
        let outcome = drive(&mut fake, &next, form);
        assert_eq!(outcome.exit_code, 1, "{outcome:?}");
        for said in ["the data of c1/shop/db@older", "nothing was written"] {
            assert!(outcome.message.contains(said), "{outcome:?}");
        }
        assert_as_before(&mut fake, &next, form, LATER);
        heals_as(&mut fake, form, "third");
    }
}

/// Killed before and after each of its writes it still writes nothing to the volume.
#[test]
fn the_run_that_completes_it_may_be_killed() {
    for form in exchanged() {
        for writes in 0.. {
            let mut fake = given(form);
            let request = request(&fake, form);
            let next = begin(&mut fake, "next", &request);
            let ended = drive_until(&mut fake, &next, form, writes, true);
            assert_eq!(drive(&mut fake, &next, form).exit_code, 0);
            assert_as_before(&mut fake, &next, form, LATER);
            if ended {
                break;
            }
        }
    }
}

/// The claim got its volume, and nobody said for a long time that it is bound.
#[test]
fn a_claim_that_is_bound_late_is_not_written_either() {
    for form in exchanged() {
        let (mut fake, anchor) = start(form);
        let mut seen = Observed::default();
        let outcome = loop {
            let claim_ref = &fake.objects[&volume_key()]["spec"]["claimRef"]["uid"];
            let claim = fake.get(&claim_key()).map(|claim| &claim["metadata"]["uid"]);
            fake.faults.volume_never_bound =
                claim == Some(claim_ref) && fake.objects[&anchor.key]["data"]["jobs"].is_string();
            if let Some(outcome) = step(&mut fake, &anchor, &mut seen, form) {
                break outcome;
            }
        };
        assert_eq!(outcome.exit_code, 1, "{outcome:?}");
        assert!(outcome.message.contains("has the restored data"), "{outcome:?}");
        fake.faults.volume_never_bound = false;
        settle(&mut fake, form);
        fake.storage.insert("vol-db".into(), LATER.into());
        let request = request(&fake, form);
        let next = begin(&mut fake, "next", &request);
        assert_eq!(drive(&mut fake, &next, form).exit_code, 0);
        assert_as_before(&mut fake, &next, form, LATER);
    }
}

/// Its pods are no hindrance, as nothing is written.
#[test]
fn a_claim_that_has_its_data_may_be_in_use() {
    for form in exchanged() {
        let mut fake = given(form);
        pods::pod(&mut fake, "db-0", ("StatefulSet", "db"));
        settle(&mut fake, form);
        assert_eq!(targets::ask(&fake).map(|target| target.place.volume), Ok("pv-db".into()));
        let request = request(&fake, form);
        let next = begin(&mut fake, "next", &request);
        assert_eq!(drive(&mut fake, &next, form).exit_code, 0);
        assert_eq!(fake.storage["vol-db"], LATER);
        let policy = &fake.objects[&volume_key()]["spec"]["persistentVolumeReclaimPolicy"];
        assert_eq!(policy, "Delete");
        assert!(targets::ask(&fake).is_err(), "now it is in use");
    }
}

/// Another restore fails before it writes: the volume is no less half written for that.
#[test]
fn a_restore_that_ends_early_does_not_call_a_half_written_volume_whole() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        fake.faults.pod_fails = Some((3, "{}".into()));
        assert_eq!(drive(&mut fake, &anchor, form).exit_code, 3);
        let request = request(&fake, form);
        let second = begin(&mut fake, "second", &request);
        let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
        fake.change(&second.key, &cancel);
        let outcome = drive(&mut fake, &second, form);
        assert!(fake.objects[&second.key]["data"]["jobs"].is_null());
        assert!(outcome.message.contains("may be half written"), "{outcome:?}");
        assert!(!outcome.message.contains("nothing was written"), "{outcome:?}");
    }
}
