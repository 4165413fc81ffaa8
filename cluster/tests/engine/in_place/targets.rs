//! What a restore in place finds of its claim: the same at each moment of an operation, so that the
//! same command goes on with it; and volumes that are half written, for backups and `doctor`.

use super::*;
use mover_cluster::engine::{Detached, Failure, Level, Target, target};

pub(super) fn ask(fake: &Fake) -> Result<Target, Failure> {
    ask_with(fake, Detached::Seen)
}

fn ask_with(fake: &Fake, detached: Detached) -> Result<Target, Failure> {
    let mut seen = Observed::default();
    loop {
        match target(&seen, &claim_key(), detached) {
            Ok(found) => return Ok(found),
            Err(Stop::Failure(why)) => return Err(why),
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn refused(fake: &Fake, code: u8, said: &str) {
    let why = ask(fake).expect_err("it is refused");
    assert_eq!(why.exit_code, code, "{why:?}");
    assert!(why.message.contains(said), "{why:?}");
}

#[test]
fn the_same_command_finds_the_same_volume_at_each_moment() {
    for form in FORMS {
        let (mut fake, anchor) = start(form);
        let first = ask(&fake).expect("a volume");
        assert_eq!(first.place.volume, "pv-db");
        assert_eq!((first.is_filesystem, first.capacity.as_str()), (form.0, "1Gi"));
        let mut seen = Observed::default();
        while step(&mut fake, &anchor, &mut seen, form).is_none() {
            assert_eq!(ask(&fake), Ok(first.clone()), "{:#?}", fake.written);
        }
        assert_eq!(ask(&fake), Ok(first));
    }
}

#[test]
fn a_claim_that_cannot_be_restored_in_place() {
    let mut fake = cluster(FORMS[0]);
    fake.change(&volume_key(), &json!({ "spec": { "claimRef": { "uid": "another" } } }));
    refused(&fake, 4, "pv/pv-db is not the volume of pvc/db");
    let mut fake = cluster(FORMS[0]);
    fake.change(&volume_key(), &json!({ "spec": { "csi": null, "nfs": { "server": "a" } } }));
    refused(&fake, 2, "is of type nfs");
    let mut fake = cluster(FORMS[0]);
    fake.change(&claim_key(), &json!({ "metadata": { "deletionTimestamp": "now" } }));
    refused(&fake, 2, "is being deleted");
    let mut fake = cluster(FORMS[0]);
    fake.objects.remove(&volume_key());
    refused(&fake, 2, "names pv/pv-db, which is gone");
    fake.change(
        &claim_key(),
        &json!({ "spec": { "volumeName": null }, "status": { "phase": "Pending" } }),
    );
    refused(&fake, 2, "is Pending, not Bound");
    fake.objects.remove(&claim_key());
    refused(&fake, 2, "there is no pvc/db");
    // A record that is another claim's leads nowhere.
    let (mut fake, anchor) = start(FORMS[0]);
    drive_until(&mut fake, &anchor, FORMS[0], 4, true);
    let text = fake.objects[&volume_key()]["metadata"]["annotations"][HELD].clone();
    let text = text.as_str().expect("a record").replace("\"name\":\"db\"", "\"name\":\"other\"");
    fake.change(&volume_key(), &json!({ "metadata": { "annotations": { HELD: text } } }));
    refused(&fake, 4, "is held for another claim");
}

/// A driver without attachments does not tell whether a node has the volume.
#[test]
fn a_driver_without_attachments_is_refused_unless_somebody_has_looked() {
    for form in FORMS {
        let mut fake = cluster(form);
        let driver = json!({
            "kind": "CSIDriver", "metadata": { "name": fake::DRIVER }, "spec": {},
        });
        fake.create(&driver);
        assert!(ask(&fake).is_ok(), "it has them where nothing is said");
        let key = Key::wide(Kind::CSIDriver, fake::DRIVER);
        fake.change(&key, &json!({ "spec": { "attachRequired": true } }));
        assert!(ask(&fake).is_ok());
        fake.change(&key, &json!({ "spec": { "attachRequired": false } }));
        let why = ask(&fake).expect_err("nobody knows");
        assert_eq!(why.exit_code, 2);
        assert!(why.message.contains("nothing tells whether a node still has pv/pv-db"), "{why:?}");
        let hint = why.hint.expect("how to look");
        for said in ["pv-db", "vol-db", "--assume-detached"] {
            assert!(hint.contains(said), "{hint}");
        }
        assert!(ask_with(&fake, Detached::Assumed).is_ok());
    }
}

fn half_written(form: Form) -> Fake {
    let (mut fake, anchor) = start(form);
    fake.faults.pod_fails = Some((3, "{}".into()));
    assert_eq!(drive(&mut fake, &anchor, form).exit_code, 3);
    fake.faults = Faults::default();
    settle(&mut fake, form);
    fake
}

#[test]
fn half_a_volume_is_no_backup() {
    let form = (false, NAMESPACE);
    let mut fake = half_written(form);
    let request = backup_request(&fake, false, NAMESPACE, false);
    let anchor = begin(&mut fake, "backup", &request);
    let outcome = drive(&mut fake, &anchor, form);
    assert_eq!(outcome.exit_code, 3, "{outcome:?}");
    assert!(outcome.message.contains("restore shop/first began to write pv/pv-db"), "{outcome:?}");
    assert!(outcome.hint.is_some_and(|hint| hint.contains("--to pvc/db --in-place")));
    assert_eq!(fake.of_kind(Kind::VolumeSnapshot), Vec::new());
    heals(&mut fake, form);
    let anchor = begin(&mut fake, "again", &request);
    assert_eq!(drive(&mut fake, &anchor, form).exit_code, 0);
    assert_eq!(fake.repository[&anchor.uid], DATA);
}

/// A backup and a restore of one claim, in any order of turns: what is backed up is of one state.
#[test]
fn a_backup_and_a_restore_in_place_are_never_at_once() {
    let form = (false, NAMESPACE);
    let mut both = [0, 0];
    for seed in 0..300 {
        let mut draw = Draw(seed);
        let (mut fake, restore) = start(form);
        let request = backup_request(&fake, false, NAMESPACE, false);
        let backup = begin(&mut fake, "backup", &request);
        let operations = [&restore, &backup];
        let mut drivers = [Observed::default(), Observed::default()];
        let mut ends = [None, None];
        while ends.iter().any(Option::is_none) {
            let which = usize::try_from(draw.below(2)).expect("0 or 1");
            if draw.below(3) == 0 {
                fake.tick();
            }
            if ends[which].is_none() {
                let seen = &mut drivers[which];
                ends[which] = step(&mut fake, operations[which], seen, form);
            }
        }
        let good = ends.map(|end| end.expect("it has ended").exit_code == 0);
        match (good[1], fake.repository.get(&backup.uid)) {
            (true, Some(data)) => assert!([OLD, DATA].contains(&data.as_str()), "{seed}: {data}"),
            (done, data) => assert!(!done && data.is_none(), "{seed}"),
        }
        for (count, good) in both.iter_mut().zip(good) {
            *count += u32::from(good);
        }
        assert!(good[0] || good[1], "{seed}: one has its turn");
    }
    assert!(both.iter().all(|count| *count > 20), "each has its turn: {both:?}");
}

#[test]
fn doctor_names_a_volume_that_is_half_written() {
    for form in FORMS {
        let fake = half_written(form);
        let question = mover_cluster::engine::Question {
            namespace: NAMESPACE.into(),
            claims: vec![(NAMESPACE.into(), "db".into())],
            ..mover_cluster::engine::Question::default()
        };
        let mut seen = Observed::default();
        let found = loop {
            match mover_cluster::engine::doctor(&seen, &question) {
                Ok(found) => break found,
                Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
                Err(other) => panic!("{other:?}"),
            }
        };
        let it = found.iter().find(|at| at.message.contains("may be half written"));
        let it = it.unwrap_or_else(|| panic!("{form:?}: {found:#?}"));
        assert_eq!(it.level, Level::Error);
        assert!(it.hint.as_ref().is_some_and(|hint| hint.contains("--in-place")));
    }
}
