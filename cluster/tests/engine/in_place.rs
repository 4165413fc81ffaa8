//! Restores onto the volume of a claim that exists: killed, doubled and cancelled at each write, two
//! drivers at once, and a pod that appears in the middle. At no moment has the claim a volume that
//! is half written without a mark, and nobody's data goes.

mod given;
mod late;
mod pods;
mod refused;
mod targets;

use super::fake::{Faults, HALF};
use super::orders::Draw;
use super::*;
use mover_cluster::engine::{CLAIMED, ENDED, HALF_WRITTEN, HELD, InPlace, Step};
use serde_json::Value;

const OLD: &str = "what the shop had before";

/// A filesystem or not, and where the Jobs run.
type Form = (bool, &'static str);

const FORMS: [Form; 4] =
    [(true, NAMESPACE), (true, "mover-system"), (false, NAMESPACE), (false, "mover-system")];

fn is_direct((filesystem, jobs_in): Form) -> bool {
    !filesystem && jobs_in == NAMESPACE
}

fn claim_key() -> Key {
    Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db")
}

fn volume_key() -> Key {
    Key::wide(Kind::PersistentVolume, "pv-db")
}

/// The shop, whose claim is somebody's, and a backup of other data.
fn cluster((filesystem, _): Form) -> Fake {
    let mut fake = shop(filesystem);
    fake.storage.insert("vol-db".into(), OLD.into());
    fake.repository.insert("old".into(), DATA.into());
    let notes = json!({ "team": "shop", "pv.kubernetes.io/bind-completed": "yes" });
    let metadata = json!({
        "labels": { "app": "db", "app.kubernetes.io/managed-by": "Helm" },
        "annotations": notes,
        "finalizers": ["kubernetes.io/pvc-protection"],
        "ownerReferences": [{ "kind": "StatefulSet", "name": "db", "uid": "1" }],
    });
    fake.change(&claim_key(), &json!({ "metadata": metadata }));
    fake.change(&volume_key(), &json!({ "spec": { "capacity": { "storage": "1Gi" } } }));
    fake
}

fn request(fake: &Fake, (filesystem, jobs_in): Form) -> Request {
    let Request::Restore(mut restore) = restore_request("old", filesystem, jobs_in) else {
        panic!("a restore")
    };
    restore.claim = "db".into();
    let uid = Meta::of(fake.get(&volume_key()).expect("the volume")).uid;
    restore.in_place = Some(InPlace { volume: "pv-db".into(), uid });
    Request::Restore(restore)
}

fn start(form: Form) -> (Fake, Anchor) {
    let mut fake = cluster(form);
    let request = request(&fake, form);
    let anchor = begin(&mut fake, "first", &request);
    (fake, anchor)
}

/// What has to be true at each moment.
fn check(fake: &Fake, form: Form) {
    let data = fake.storage.get("vol-db").unwrap_or_else(|| panic!("lost: {:#?}", fake.written));
    let volume = fake.get(&volume_key()).expect("the volume's object stays");
    let claim = fake.get(&claim_key());
    let bound = claim.is_some_and(|claim| {
        claim["status"]["phase"] == "Bound" && claim["spec"]["volumeName"] == "pv-db"
    });
    if data == HALF {
        let mark = volume["metadata"]["annotations"][HALF_WRITTEN].is_string();
        assert!(mark, "half written without a mark: {:#?}", fake.written);
        assert!(!bound || is_direct(form), "bound to half of it: {:#?}", fake.written);
    }
    if !bound || Meta::of(claim.expect("bound")).deletion_timestamp.is_some() {
        let policy = &volume["spec"]["persistentVolumeReclaimPolicy"];
        assert_eq!(policy, "Retain", "nobody holds it: {:#?}", fake.written);
    }
}

/// One turn, and the cluster after it.
fn step(fake: &mut Fake, anchor: &Anchor, seen: &mut Observed, form: Form) -> Option<Outcome> {
    let outcome = turn(fake, anchor, seen).expect("the anchor holds its outcome");
    check(fake, form);
    outcome
}

fn drive(fake: &mut Fake, anchor: &Anchor, form: Form) -> Outcome {
    let mut seen = Observed::default();
    seen.set_now(fake.now);
    for _ in 0..3000 {
        if let Some(outcome) = step(fake, anchor, &mut seen, form) {
            return outcome;
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

fn settle(fake: &mut Fake, form: Form) {
    while fake.tick() {
        check(fake, form);
    }
}

/// Until so many writes were made; whether it ended before. `done` says whether the last is made.
fn drive_until(fake: &mut Fake, anchor: &Anchor, form: Form, writes: usize, done: bool) -> bool {
    let Some((mut seen, step)) = pause(fake, anchor, form, writes) else { return true };
    if done {
        fake.execute(&step, &mut seen);
    }
    false
}

/// Drives until it is about to make its write of this number; that write, and what is known by then.
fn pause(fake: &mut Fake, anchor: &Anchor, form: Form, writes: usize) -> Option<(Observed, Step)> {
    super::pause::pause(fake, anchor, Observed::default(), writes, |fake| check(fake, form))
}

/// What is a user's of a claim.
fn shape(claim: &Value) -> Value {
    let mut annotations = claim["metadata"]["annotations"].clone();
    if let Some(notes) = annotations.as_object_mut() {
        notes.retain(|name, _| !name.starts_with("pv.kubernetes.io/"));
    }
    json!({
        "labels": claim["metadata"]["labels"],
        "annotations": annotations,
        "owners": claim["metadata"]["ownerReferences"],
        "spec": claim["spec"],
        "phase": claim["status"]["phase"],
    })
}

/// The claim and the volume are as they were, but for the data.
fn assert_as_before(fake: &mut Fake, anchor: &Anchor, form: Form, data: &str) {
    settle(fake, form);
    assert_eq!(fake.left(), Vec::<String>::new(), "{:#?}", fake.written);
    assert_eq!(fake.storage["vol-db"], data, "{:#?}", fake.written);
    assert_eq!(fake.storage.len(), 1, "{:?}", fake.storage);
    assert_eq!(fake.of_kind(Kind::PersistentVolume).len(), 1, "{:#?}", fake.written);
    let before = cluster(form);
    let claim = fake.get(&claim_key()).expect("the claim");
    assert_eq!(shape(claim), shape(&before.objects[&claim_key()]), "{:#?}", fake.written);
    let volume = fake.get(&volume_key()).expect("the volume");
    let mut spec = before.objects[&volume_key()]["spec"].clone();
    spec["claimRef"]["uid"] = claim["metadata"]["uid"].clone();
    assert_eq!(volume["spec"], spec, "{:#?}", fake.written);
    let notes = Meta::of(volume).annotations;
    for name in [HELD, HALF_WRITTEN] {
        assert!(!notes.contains_key(name), "{notes:?}");
    }
    assert!(!Meta::of(claim).annotations.contains_key(CLAIMED));
    assert_eq!(Meta::of(&fake.objects[&anchor.key]).labels[STATE], "ended");
}

/// It was restored, or nothing was written and all is as before, or it says that it is half written;
/// and then the next restore makes it whole.
fn assert_ended(fake: &mut Fake, anchor: &Anchor, form: Form, outcome: &Outcome) {
    if outcome.exit_code == 0 {
        return assert_as_before(fake, anchor, form, DATA);
    }
    let held = &fake.objects[&anchor.key]["data"];
    if held["jobs"].is_null() {
        assert!(outcome.message.contains("nothing was written"), "{outcome:?}");
        assert_eq!(outcome.left, Vec::<String>::new(), "{:#?}", fake.written);
        return assert_as_before(fake, anchor, form, OLD);
    }
    settle(fake, form);
    assert_eq!(fake.left(), Vec::<String>::new(), "{:#?}", fake.written);
    let volume = &fake.objects[&volume_key()];
    assert!(volume["metadata"]["annotations"][HALF_WRITTEN].is_string(), "{:#?}", fake.written);
    let said = if is_direct(form) { "has a mark" } else { "stays Pending" };
    assert!(outcome.message.contains(said), "{outcome:?}");
    assert!(outcome.hint.as_ref().is_some_and(|hint| hint.contains("same command")));
    heals(fake, form);
}

/// Another restore of the same makes it whole.
fn heals(fake: &mut Fake, form: Form) {
    heals_as(fake, form, "next");
}

fn heals_as(fake: &mut Fake, form: Form, name: &str) {
    let request = request(fake, form);
    let next = begin(fake, name, &request);
    let outcome = drive(fake, &next, form);
    assert_eq!(outcome.exit_code, 0, "{outcome:?} {:#?}", fake.written);
    assert_as_before(fake, &next, form, DATA);
}

#[test]
fn each_form_ends_as_it_was_with_the_data_of_the_backup() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        let outcome = drive(&mut fake, &anchor, form);
        assert_eq!(outcome.exit_code, 0, "{form:?}: {outcome:?}");
        assert_as_before(&mut fake, &anchor, form, DATA);
        let volume = Meta::of(&fake.objects[&volume_key()]);
        assert_eq!(volume.annotations["mover.dev/restored-from"], "c1/shop/db@old");
        assert_eq!(volume.annotations[ENDED], anchor.uid);
    }
}

#[test]
fn killed_before_and_after_each_write_the_same_command_ends_well() {
    for form in FORMS {
        for done in [false, true] {
            for writes in 0.. {
                let (mut fake, anchor) = start(form);
                let ended = drive_until(&mut fake, &anchor, form, writes, done);
                let outcome = drive(&mut fake, &anchor, form);
                assert_eq!(outcome.exit_code, 0, "{form:?} {done} {writes}: {outcome:?}");
                assert_as_before(&mut fake, &anchor, form, DATA);
                if ended {
                    assert!(writes > 8, "{form:?}: {writes}");
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
                check(&fake, form);
                continue;
            }
            end = step(&mut fake, &anchor, &mut seen, form);
        }
        assert_eq!(end.map(|end| end.exit_code), Some(0));
        assert_as_before(&mut fake, &anchor, form, DATA);
    }
}

#[test]
fn cancelled_after_each_write_all_is_given_back_or_the_next_restore_heals() {
    for form in FORMS {
        for writes in 0.. {
            let (mut fake, anchor) = start(form);
            let ended = drive_until(&mut fake, &anchor, form, writes, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let outcome = drive(&mut fake, &anchor, form);
            assert!([0, 143].contains(&outcome.exit_code), "{form:?} {writes}: {outcome:?}");
            assert_ended(&mut fake, &anchor, form, &outcome);
            if ended {
                break;
            }
        }
    }
}

/// A cancelled one whose removal is killed at each write is ended by the next command.
#[test]
fn a_removal_that_is_killed_is_gone_on_with() {
    for form in FORMS {
        for writes in 0.. {
            let (mut fake, anchor) = start(form);
            drive_until(&mut fake, &anchor, form, writes, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let mut over = false;
            for more in 0.. {
                let mut fake = fake.clone();
                let ended = drive_until(&mut fake, &anchor, form, more, true);
                let outcome = drive(&mut fake, &anchor, form);
                assert_ended(&mut fake, &anchor, form, &outcome);
                if ended {
                    over = more == 0;
                    break;
                }
            }
            if over {
                break;
            }
        }
    }
}

#[test]
fn two_drivers_are_one_operation() {
    for seed in 0..600 {
        let mut draw = Draw(seed);
        let form = FORMS[usize::try_from(draw.below(4)).expect("few")];
        let (mut fake, anchor) = start(form);
        let cancelled = draw.below(3) == 0;
        let mut drivers = [Observed::default(), Observed::default()];
        let mut ends = [None, None];
        for round in 0..8000 {
            let which = usize::try_from(draw.below(2)).expect("0 or 1");
            if draw.below(50) == 0 {
                drivers[which] = Observed::default();
            }
            if draw.below(3) == 0 {
                fake.tick();
                check(&fake, form);
            }
            if cancelled && round == 60 {
                let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "1" } } });
                fake.change(&anchor.key, &cancel);
            }
            if ends[which].is_none() {
                ends[which] = step(&mut fake, &anchor, &mut drivers[which], form);
            }
            if ends.iter().all(Option::is_some) {
                break;
            }
        }
        for end in &ends {
            let end = end.as_ref().unwrap_or_else(|| panic!("seed {seed}: {:#?}", fake.written));
            assert!(end.exit_code == 0 || cancelled, "seed {seed}: {end:?}");
        }
        let end = ends[0].clone().expect("it has ended");
        assert_ended(&mut fake, &anchor, form, &end);
    }
}

#[test]
fn only_what_differs_is_asked_of_the_program() {
    for (form, differential) in FORMS.into_iter().flat_map(|form| [(form, false), (form, true)]) {
        let mut fake = cluster(form);
        let Request::Restore(mut restore) = request(&fake, form) else { panic!("no restore") };
        restore.differential = differential;
        let anchor = begin(&mut fake, "first", &Request::Restore(restore));
        let mut seen = Observed::default();
        let mut jobs = Vec::new();
        while jobs.is_empty() {
            assert_eq!(step(&mut fake, &anchor, &mut seen, form), None);
            jobs = fake.of_kind(Kind::Job);
        }
        let pod = &jobs[0].1["spec"]["template"]["spec"];
        let arguments = pod["containers"][0]["args"].as_array().expect("arguments");
        assert_eq!(arguments.contains(&json!("--differential")), differential, "{arguments:?}");
        assert!(arguments.contains(&json!("--verify")), "{arguments:?}");
        assert_eq!(drive(&mut fake, &anchor, form).exit_code, 0);
    }
}

/// The program fails after it has begun to write.
#[test]
fn a_job_that_fails_leaves_a_mark_and_the_next_restore_heals() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        let message = json!({ "state": "failed", "message": "the bucket is gone" });
        fake.faults = Faults { pod_fails: Some((3, message.to_string())), ..Faults::default() };
        let outcome = drive(&mut fake, &anchor, form);
        assert_eq!(outcome.exit_code, 3, "{outcome:?}");
        assert_eq!(fake.storage["vol-db"], HALF);
        fake.faults = Faults::default();
        // A restore that is refused before it writes does not say that it is whole.
        let request = request(&fake, form);
        let refused = begin(&mut fake, "refused", &request);
        let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
        fake.change(&refused.key, &cancel);
        assert_eq!(drive(&mut fake, &refused, form).exit_code, 143);
        assert_ended(&mut fake, &anchor, form, &outcome);
    }
}

/// The same, cancelled after each write of the second restore.
#[test]
fn a_second_restore_that_is_cancelled_gives_no_half_written_volume_back() {
    for form in FORMS {
        let (mut failed, anchor) = start(form);
        failed.faults.pod_fails = Some((3, "{}".into()));
        assert_eq!(drive(&mut failed, &anchor, form).exit_code, 3);
        failed.faults = Faults::default();
        for writes in 0.. {
            let mut fake = failed.clone();
            let request = request(&fake, form);
            let second = begin(&mut fake, "second", &request);
            let ended = drive_until(&mut fake, &second, form, writes, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&second.key, &cancel);
            let outcome = drive(&mut fake, &second, form);
            if outcome.exit_code == 0 {
                assert_as_before(&mut fake, &second, form, DATA);
            } else {
                let volume = &fake.objects[&volume_key()];
                assert!(volume["metadata"]["annotations"][HALF_WRITTEN].is_string());
                heals(&mut fake, form);
            }
            if ended {
                break;
            }
        }
    }
}
