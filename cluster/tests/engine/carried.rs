//! Objects that go with a backup: in Secrets for as long as it runs, whatever becomes of it.

use super::pause::drive_until;
use super::*;
use mover_cluster::engine::{JobSpec, Payload, carried, held};
use serde_json::Value;

/// Two parts.
fn payload(of: u8) -> Payload {
    let bytes = vec![of; 1_000_000];
    let digest = blake3::hash(&bytes).to_hex().to_string();
    Payload::new(bytes, digest)
}

fn with(payload: &Payload, request: Request) -> Request {
    request.with_objects(Some(&carried(payload, "all".into()).expect("few bytes")))
}

const PLACES: [&str; 2] = [NAMESPACE, "mover-system"];

fn start(jobs_in: &str) -> (Fake, Anchor) {
    let mut fake = shop(true);
    let request = with(&payload(1), backup_request(&fake, true, jobs_in, true));
    fake.payload = Some(payload(1));
    let anchor = begin(&mut fake, "first", &request);
    (fake, anchor)
}

fn secrets(fake: &Fake) -> Vec<(Key, Value)> {
    fake.of_kind(Kind::Secret)
}

fn all_of(of: &Payload) -> Vec<u8> {
    (1..=of.parts()).flat_map(|number| of.part_bytes(number).to_vec()).collect()
}

#[test]
fn objects_are_in_secrets_before_there_is_a_snapshot_and_gone_at_the_end() {
    for jobs_in in PLACES {
        let (mut fake, anchor) = start(jobs_in);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        assert_clean(&mut fake, &anchor, 0, 1);
        assert_eq!(fake.attached[&anchor.uid], all_of(&payload(1)));
        assert!(secrets(&fake).is_empty());
        let at = |what: &str| {
            let found = fake.written.iter().position(|line| line.contains(what));
            found.unwrap_or_else(|| panic!("{what}: {:#?}", fake.written))
        };
        let second = format!("create secret/mover-{}-objects-2 in namespace {jobs_in}", anchor.uid);
        assert!(at(&second) < at("create volumesnapshot/"), "{:#?}", fake.written);
        // Where the bytes are, and nowhere else.
        let record = fake.get(&anchor.key).expect("the anchor").to_string();
        assert!(record.len() < 10_000, "{record}");
    }
}

#[test]
fn killed_before_and_after_each_write_the_same_command_hands_the_rest_over() {
    for jobs_in in PLACES {
        for done in [false, true] {
            for writes in 0.. {
                let (mut fake, anchor) = start(jobs_in);
                let ended = drive_until(&mut fake, &anchor, writes, done);
                let outcome = drive(&mut fake, &anchor);
                assert_eq!(outcome.exit_code, 0, "{jobs_in} {done} {writes}: {outcome:?}");
                assert_clean(&mut fake, &anchor, 0, 1);
                assert_eq!(fake.attached[&anchor.uid], all_of(&payload(1)), "{writes}");
                if ended {
                    assert!(writes > 9, "{writes}: there are two more of them at each end");
                    break;
                }
            }
        }
    }
}

/// Whoever comes after it has read other objects, or none: it goes on with those that are there, or
/// the operation ends. Nothing is left.
#[test]
fn killed_after_each_write_another_command_ends_what_it_cannot_go_on_with() {
    let (mut gone_on, mut ended_early) = (0, 0);
    for jobs_in in PLACES {
        for other in [None, Some(payload(2))] {
            for writes in 0.. {
                let (mut fake, anchor) = start(jobs_in);
                let ended = drive_until(&mut fake, &anchor, writes, true);
                fake.payload = other.clone();
                let outcome = drive(&mut fake, &anchor);
                let good = outcome.exit_code == 0;
                if good {
                    assert_eq!(fake.attached[&anchor.uid], all_of(&payload(1)), "{writes}");
                    gone_on += 1;
                } else {
                    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
                    assert!(outcome.message.contains("-objects-"), "{outcome:?}");
                    ended_early += 1;
                }
                assert_clean(&mut fake, &anchor, 0, usize::from(good));
                if ended {
                    break;
                }
            }
        }
    }
    assert!(gone_on > 4 && ended_early > 4, "{gone_on} {ended_early}");
}

#[test]
fn cancelled_after_each_write_no_secret_is_left() {
    for jobs_in in PLACES {
        for writes in 0.. {
            let (mut fake, anchor) = start(jobs_in);
            let ended = drive_until(&mut fake, &anchor, writes, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            // Whoever ends it may be another command.
            fake.payload = None;
            let outcome = drive(&mut fake, &anchor);
            assert!([0, 143].contains(&outcome.exit_code), "{jobs_in} {writes}: {outcome:?}");
            assert_clean(&mut fake, &anchor, 0, usize::from(outcome.exit_code == 0));
            assert!(secrets(&fake).is_empty());
            if ended {
                break;
            }
        }
    }
}

/// A Job that fails, and a Secret that somebody deletes or changes at any moment.
#[test]
fn whatever_becomes_of_it_nothing_is_left_and_no_other_objects_are_kept() {
    let mut refused = 0;
    for changes in [false, true] {
        for writes in 1.. {
            let (mut fake, anchor) = start("mover-system");
            let ended = drive_until(&mut fake, &anchor, writes, true);
            for (key, secret) in secrets(&fake) {
                match changes {
                    true => fake.change(&key, &json!({ "data": { "part": "b3RoZXI=" } })),
                    false => drop(fake.delete(&key, &Meta::of(&secret).uid)),
                }
            }
            fake.payload = None;
            let outcome = drive(&mut fake, &anchor);
            settle(&mut fake);
            assert_eq!(fake.left(), Vec::<String>::new(), "{changes} {writes}: {outcome:?}");
            if let Some(kept) = fake.attached.get(&anchor.uid) {
                assert_eq!(*kept, all_of(&payload(1)), "{changes} {writes}");
            }
            refused += u32::from(outcome.message.contains("its bytes are others"));
            if ended {
                break;
            }
        }
    }
    assert!(refused > 2, "{refused}");
    let (mut fake, anchor) = start(NAMESPACE);
    fake.faults.pod_fails = Some((2, "{\"message\": \"no such feature\"}".into()));
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 2, "{outcome:?}");
    assert_clean(&mut fake, &anchor, 0, 0);
}

#[test]
fn a_name_that_somebody_has_is_not_taken() {
    let (mut fake, anchor) = start("mover-system");
    let name = format!("mover-{}-objects-2", anchor.uid);
    fake.create(&json!({
        "kind": "Secret",
        "metadata": { "name": name, "namespace": "mover-system" },
        "data": { "mine": "eA==" },
    }));
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 2, "{outcome:?}");
    assert!(outcome.message.contains("does not belong to this operation"), "{outcome:?}");
    assert_clean(&mut fake, &anchor, 0, 0);
    let stays = secrets(&fake);
    assert_eq!(stays.len(), 1);
    assert_eq!(stays[0].1["data"]["mine"], "eA==");
}

/// One of them has the objects, and the other one none: together they are one operation. It ends well,
/// unless the one that has them does nothing for a minute.
#[test]
fn two_drivers_of_which_one_has_the_objects() {
    let mut well = 0;
    for seed in 0..60 {
        let mut draw = super::orders::Draw(seed);
        let (mut fake, anchor) = start(PLACES[usize::try_from(draw.below(2)).expect("0 or 1")]);
        let mut drivers = [observed(&fake), Observed::default()];
        let mut ends: [Option<Outcome>; 2] = [None, None];
        for _ in 0..6000 {
            let which = usize::try_from(draw.below(2)).expect("0 or 1");
            if ends[which].is_none() {
                ends[which] = turn(&mut fake, &anchor, &mut drivers[which]).expect("an outcome");
            }
        }
        let codes = ends.map(|end| end.expect("both end").exit_code);
        assert!([[0, 0], [1, 1]].contains(&codes), "{seed}: {codes:?} {:#?}", fake.written);
        let good = codes == [0, 0];
        assert_clean(&mut fake, &anchor, 0, usize::from(good));
        if good {
            assert_eq!(fake.attached[&anchor.uid], all_of(&payload(1)));
            well += 1;
        }
    }
    assert!(well > 20, "{well}");
}

/// Each claim of a group has the objects, out of the same Secrets.
#[test]
fn each_backup_of_a_group_has_the_objects() {
    let request = |fake: &Fake| {
        let group = super::groups::two_claims(fake);
        with(&payload(1), Request::Group(Box::new(group)))
    };
    for writes in 0.. {
        let mut fake = super::groups::pair(true);
        fake.payload = Some(payload(1));
        let request = request(&fake);
        let anchor = begin(&mut fake, "first", &request);
        let ended = drive_until(&mut fake, &anchor, writes, true);
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{writes}: {outcome:?}");
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "{writes}");
        assert!(secrets(&fake).is_empty(), "{writes}");
        for member in 1..=2 {
            let id = anchor.of_member(member).id();
            assert_eq!(fake.attached[&id], all_of(&payload(1)), "{writes}");
        }
        if ended {
            break;
        }
    }
}

/// A request of the version before has no word of it, and one of another size is no request.
#[test]
fn requests_without_objects_are_read_and_impossible_ones_refused() {
    let fake = shop(true);
    let bare = backup_request(&fake, true, NAMESPACE, true);
    assert!(!bare.text().contains("objects"), "{}", bare.text());
    assert_eq!(Request::parse(&bare.text()).expect("as before"), bare);
    let whole = with(&payload(1), bare.clone());
    assert_eq!(Request::parse(&whole.text()).expect("with objects"), whole);
    assert_eq!(whole.clone().with_objects(None), bare);
    for parts in [0, 38, u32::MAX] {
        let mut fake = shop(true);
        let mut objects = whole.objects().expect("objects").clone();
        objects.parts = parts;
        let anchor = begin(&mut fake, "first", &bare.clone().with_objects(Some(&objects)));
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 2, "{outcome:?}");
        assert_clean(&mut fake, &anchor, 0, 0);
    }
}

/// The pod that objects are read out of runs until it is removed, or for its time.
#[test]
fn a_pod_that_is_held_is_waited_for_and_ends_by_itself() {
    let owner = Anchor::new(Key::new(Kind::ConfigMap, NAMESPACE, "mover-objects-x"), "u".into());
    let repository = repository(NAMESPACE);
    let spec = JobSpec::of(&repository, vec!["serve".into()]);
    let mut fake = Fake::default();
    let mut seen = Observed::default();
    let next = |fake: &Fake, seen: &mut Observed| loop {
        match held(&owner, &spec, 900, seen) {
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, seen),
            other => return other,
        }
    };
    let Err(Stop::Next(Next::Do(step))) = next(&fake, &mut seen) else { panic!("no Job") };
    fake.execute(&step, &mut seen);
    let (key, job) = fake.of_kind(Kind::Job).remove(0);
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 900);
    assert!(job["spec"]["ttlSecondsAfterFinished"].is_number());
    assert!(job["metadata"]["ownerReferences"].is_null());
    let labels = json!({ "batch.kubernetes.io/job-name": key.name, "mover.dev/owner": "u" });
    let pod = json!({
        "kind": "Pod",
        "metadata": { "name": "p", "namespace": NAMESPACE, "labels": labels },
        "status": { "phase": "Pending" },
    });
    fake.create(&pod);
    let pod = Key::new(Kind::Pod, NAMESPACE, "p");
    seen = Observed::default();
    let waits = next(&fake, &mut seen);
    assert!(matches!(waits, Err(Stop::Next(Next::Wait(_)))), "{waits:?}");
    let running = json!({ "status": { "containerStatuses": [{ "state": { "running": {} } }] } });
    fake.change(&pod, &running);
    seen = Observed::default();
    assert_eq!(next(&fake, &mut seen).expect("it runs").key, pod);
    let failed = json!({ "status": { "conditions": [{ "type": "Failed", "status": "True" }] } });
    fake.change(&key, &failed);
    seen = Observed::default();
    assert!(matches!(next(&fake, &mut seen), Err(Stop::Failure(_))));
}

#[test]
fn the_pod_has_all_parts_in_one_volume_and_the_job_their_digest() {
    let (mut fake, anchor) = start("mover-system");
    let mut seen = observed(&fake);
    while fake.of_kind(Kind::Job).is_empty() {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None));
    }
    let job = fake.of_kind(Kind::Job)[0].1.clone();
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let args = container["args"].to_string();
    assert!(args.contains("\"--attach=objects=/etc/mover/objects\""), "{args}");
    let digest = payload(1).digest().to_owned();
    assert!(args.contains(&format!("\"--attach-digest=objects=blake3:{digest}\"")), "{args}");
    let volumes = pod["volumes"].as_array().expect("volumes");
    let of = volumes.iter().find(|at| at["name"] == "objects").expect("a volume");
    let one = |number: u32| {
        let name = format!("mover-{}-objects-{number}", anchor.uid);
        let path = format!("part-{number:03}");
        json!({ "secret": { "name": name, "items": [{ "key": "part", "path": path }] } })
    };
    assert_eq!(of["projected"]["sources"], json!([one(1), one(2)]));
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mount = mounts.iter().find(|at| at["name"] == "objects").expect("a mount");
    assert_eq!(mount["readOnly"], true);
    for (_, secret) in secrets(&fake) {
        let meta = Meta::of(&secret);
        assert_eq!(meta.labels["mover.dev/owner"], anchor.uid);
        assert_eq!(meta.annotations["mover.dev/anchor"], format!("{NAMESPACE}/first"));
    }
}
