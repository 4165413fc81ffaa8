//! Snapshots that somebody else took and gave away, with records in the Repository's namespace.

use super::pause::drive_until;
use super::*;
use mover_cluster::engine::{
    ANCHOR, BASE_OF, GIVEN, Given, MANAGER, OWNER, ROLE, SOURCE, discard, is_given,
};
use serde_json::Value;

const VELERO: &str = "velero";

fn snapshot_key(name: &str) -> Key {
    Key::new(Kind::VolumeSnapshot, NAMESPACE, name)
}

/// A snapshot that Velero took, ready to be read. Its labels are those of the claim, and Velero's.
fn given(fake: &mut Fake, name: &str, labels: &Value) -> Given {
    let mut labels = labels.clone();
    labels["velero.io/backup-name"] = "nightly".into();
    let key = snapshot_key(name);
    fake.create(&json!({
        "kind": "VolumeSnapshot",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "source": { "persistentVolumeClaimName": "db" },
            "volumeSnapshotClassName": "snaps",
        },
    }));
    settle(fake);
    Given {
        name: name.into(),
        uid: Meta::of(fake.get(&key).expect("it was made")).uid,
        origin: None,
    }
}

fn request_of_given(fake: &Fake, filesystem: bool, keep_base: bool, given: &Given) -> Request {
    let request = backup_request(fake, filesystem, VELERO, keep_base);
    let Request::Backup(mut backup) = request else { unreachable!("it is a backup") };
    backup.given = Some(given.clone());
    Request::Backup(backup)
}

/// The record is where the Repository is.
fn begin_there(fake: &mut Fake, name: &str, request: &Request) -> Anchor {
    let key = Key::new(Kind::ConfigMap, VELERO, name);
    fake.create(&anchor(name, VELERO, "source", request));
    Anchor::new(key.clone(), Meta::of(fake.get(&key).expect("it was made")).uid)
}

fn start(filesystem: bool, keep_base: bool) -> (Fake, Anchor, Given) {
    let mut fake = shop(filesystem);
    let given = given(&mut fake, "velero-db-x", &json!({ "app": "db" }));
    let request = request_of_given(&fake, filesystem, keep_base, &given);
    let anchor = begin_there(&mut fake, "first", &request);
    (fake, anchor, given)
}

fn forms() -> [(bool, bool); 4] {
    [(true, true), (true, false), (false, true), (false, false)]
}

/// Drives the removal of a snapshot whose operation never had it.
fn drop_given(fake: &mut Fake, given: &Given) {
    let owner = Anchor::new(Key::new(Kind::DataUpload, VELERO, "upload"), "uid-of-upload".into());
    let mut seen = Observed::default();
    for _ in 0..50 {
        match discard(&seen, &owner, NAMESPACE, given) {
            Ok(()) => return settle(fake),
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
            Err(Stop::Next(Next::Do(step))) => fake.execute(&step, &mut seen),
            other => panic!("{other:?}"),
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

#[test]
fn it_is_backed_up_and_is_the_base_of_the_next() {
    for (filesystem, keep_base) in forms() {
        let (mut fake, first, given_first) = start(filesystem, keep_base);
        let outcome = drive(&mut fake, &first);
        assert_eq!(outcome.exit_code, 0, "{outcome:?} {:#?}", fake.written);
        assert_eq!(fake.repository[&first.uid], DATA);
        assert_clean(&mut fake, &first, 0, usize::from(keep_base));
        let found = fake.get(&snapshot_key("velero-db-x"));
        assert_eq!(found.is_some(), keep_base);
        if let Some(found) = found {
            let meta = Meta::of(found);
            assert!(is_given(&meta), "{found:#}");
            assert_eq!(meta.labels[ROLE], "base");
            assert_eq!(meta.labels["app"], "db", "what is not the giver's stays");
            assert!(!meta.labels.contains_key("velero.io/backup-name"), "{found:#}");
            assert_eq!(meta.annotations[GIVEN], given_first.uid);
        }
        // The base before goes, whoever took it.
        let given_second = given(&mut fake, "velero-db-y", &json!({}));
        let request = request_of_given(&fake, filesystem, keep_base, &given_second);
        let second = begin_there(&mut fake, "second", &request);
        assert_eq!(drive(&mut fake, &second).exit_code, 0);
        assert_clean(&mut fake, &second, 0, usize::from(keep_base));
        assert!(fake.get(&snapshot_key("velero-db-x")).is_none(), "{:#?}", fake.written);
    }
}

/// One that we took is the base of what Velero takes, and the other way round.
#[test]
fn bases_are_one_chain_whoever_took_them() {
    let (mut fake, first, _) = start(true, true);
    assert_eq!(drive(&mut fake, &first).exit_code, 0);
    let request = backup_request(&fake, true, VELERO, true);
    let second = begin(&mut fake, "second", &request);
    assert_eq!(drive(&mut fake, &second).exit_code, 0);
    assert_clean(&mut fake, &second, 0, 1);
    let third_given = given(&mut fake, "velero-db-z", &json!({}));
    let request = request_of_given(&fake, true, true, &third_given);
    let third = begin_there(&mut fake, "third", &request);
    assert_eq!(drive(&mut fake, &third).exit_code, 0);
    assert_clean(&mut fake, &third, 0, 1);
    let all = fake.of_kind(Kind::VolumeSnapshot);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].0.name, "velero-db-z");
}

#[test]
fn killed_before_and_after_each_write_the_same_command_ends_well() {
    for (filesystem, keep_base) in forms() {
        for done in [false, true] {
            for writes in 0.. {
                let (mut fake, anchor, _) = start(filesystem, keep_base);
                let ended = drive_until(&mut fake, &anchor, writes, done);
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{filesystem} {keep_base} {done} {writes}: {outcome:?}");
                assert_eq!(outcome.exit_code, 0, "{about}");
                assert_clean(&mut fake, &anchor, 0, usize::from(keep_base));
                assert_eq!(fake.repository[&anchor.uid], DATA, "{about}");
                if ended {
                    assert!(writes > 5, "{about}");
                    break;
                }
            }
        }
    }
}

#[test]
fn cancelled_after_each_write_nothing_is_left() {
    for (filesystem, keep_base) in forms() {
        for writes in 0.. {
            let (mut fake, anchor, given) = start(filesystem, keep_base);
            let ended = drive_until(&mut fake, &anchor, writes, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let outcome = drive(&mut fake, &anchor);
            let about = format!("{filesystem} {keep_base} {writes}: {outcome:?}");
            assert!([0, 143].contains(&outcome.exit_code), "{about}");
            // One that it never had is left to whoever drives its object.
            drop_given(&mut fake, &given);
            let base = usize::from(outcome.exit_code == 0 && keep_base);
            assert_clean(&mut fake, &anchor, 0, base);
            if ended {
                break;
            }
        }
    }
}

#[test]
fn one_that_was_made_anew_or_belongs_to_another_operation_is_not_taken() {
    let (mut fake, anchor, _) = start(true, true);
    let key = snapshot_key("velero-db-x");
    let uid = Meta::of(fake.get(&key).expect("it is there")).uid;
    fake.delete(&key, &uid);
    settle(&mut fake);
    let anew = given(&mut fake, "velero-db-x", &json!({}));
    let before = fake.get(&key).cloned();
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 1, "{outcome:?}");
    assert!(outcome.message.contains("made anew"), "{outcome:?}");
    assert_eq!(fake.get(&key).cloned(), before);
    // Two operations that have the same one: the second is refused, and the first has it.
    let request = request_of_given(&fake, true, true, &anew);
    let second = begin_there(&mut fake, "second", &request);
    assert_eq!(drive(&mut fake, &second).exit_code, 0);
    let before = fake.get(&key).cloned();
    let third = begin_there(&mut fake, "third", &request);
    let outcome = drive(&mut fake, &third);
    assert_eq!(outcome.exit_code, 2, "{outcome:?}");
    assert!(outcome.message.contains("was given to velero/second"), "{outcome:?}");
    assert_eq!(fake.get(&key).cloned(), before, "it is as it was");
}

/// A claim that was restored by us has labels of ours, and whoever takes a snapshot of it copies them.
#[test]
fn labels_that_were_copied_from_a_claim_make_no_snapshot_ours() {
    let mut fake = shop(true);
    let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db");
    let source = Meta::of(fake.get(&claim).expect("the claim")).uid;
    let copied = json!({
        "app.kubernetes.io/managed-by": MANAGER,
        OWNER: "another-operation", ROLE: "base", SOURCE: source,
    });
    let strangers = given(&mut fake, "velero-db-stranger", &copied);
    let key = snapshot_key(&strangers.name);
    let url = "c1/shop/db in s3://bucket/prefix";
    fake.change(&key, &json!({ "metadata": { "annotations": { BASE_OF: url } } }));
    let before = fake.get(&key).cloned();
    let mine = given(&mut fake, "velero-db-x", &copied);
    let request = request_of_given(&fake, true, true, &mine);
    let anchor = begin_there(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    assert_eq!(fake.get(&key).cloned(), before, "it is no base of ours, and stays");
    let found = fake.get(&snapshot_key("velero-db-x")).expect("the base");
    assert_eq!(Meta::of(found).labels[OWNER], anchor.uid);
    assert_eq!(Meta::of(found).annotations[ANCHOR], "velero/first");
}

/// With lists of changed blocks: what the Job of an operation is told to compare with.
fn base_of_job(fake: &Fake, anchor: &Anchor) -> Option<String> {
    let job = fake.get(&anchor.job(VELERO, 1)).expect("its Job");
    let args = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array().expect("some");
    let mut args = args.iter().filter_map(Value::as_str);
    args.find_map(|text| text.strip_prefix("--base-snapshot=")).map(str::to_owned)
}

fn with_changes(request: Request) -> Request {
    let Request::Backup(mut backup) = request else { unreachable!("it is a backup") };
    backup.changes = Some(engine::ChangesService {
        address: "changes:443".into(),
        audience: "changes".into(),
        ca: "-----BEGIN CERTIFICATE-----".into(),
    });
    Request::Backup(backup)
}

/// Drives until the Job is there, and from there to the end.
fn drive_and_see_base(fake: &mut Fake, anchor: &Anchor) -> (Option<String>, Outcome) {
    let mut seen = Observed::default();
    for _ in 0..2000 {
        if fake.get(&anchor.job(VELERO, 1)).is_some() {
            let base = base_of_job(fake, anchor);
            return (base, drive(fake, anchor));
        }
        turn(fake, anchor, &mut seen).expect("the anchor holds its outcome");
    }
    panic!("no Job: {:#?}", fake.written);
}

/// Velero takes a snapshot before its upload has its turn. Meanwhile another backup of the claim comes
/// and goes: no driver is asked for what changed since a later time, and the later one stays the base.
#[test]
fn one_that_waited_while_a_later_backup_was_made_is_compared_with_nothing_later() {
    let mut fake = shop(true);
    let early = given(&mut fake, "velero-db-early", &json!({}));
    let late = given(&mut fake, "velero-db-late", &json!({}));
    let request = with_changes(request_of_given(&fake, true, true, &late));
    let first = begin_there(&mut fake, "first", &request);
    let (base, outcome) = drive_and_see_base(&mut fake, &first);
    assert_eq!((base, outcome.exit_code), (None, 0), "{outcome:?}");
    let request = with_changes(request_of_given(&fake, true, true, &early));
    let second = begin_there(&mut fake, "second", &request);
    let (base, outcome) = drive_and_see_base(&mut fake, &second);
    assert_eq!((base, outcome.exit_code), (None, 0), "{outcome:?}");
    settle(&mut fake);
    assert!(fake.get(&snapshot_key("velero-db-early")).is_none(), "it is no base");
    assert!(fake.get(&snapshot_key("velero-db-late")).is_some(), "{:#?}", fake.written);
    assert_clean(&mut fake, &second, 0, 1);
    // The next one is compared with the newest.
    let next = given(&mut fake, "velero-db-next", &json!({}));
    let request = with_changes(request_of_given(&fake, true, true, &next));
    let third = begin_there(&mut fake, "third", &request);
    let (base, outcome) = drive_and_see_base(&mut fake, &third);
    assert_eq!((base.as_deref(), outcome.exit_code), (Some("velero-db-late"), 0), "{outcome:?}");
    assert_clean(&mut fake, &third, 0, 1);
    assert!(fake.get(&snapshot_key("velero-db-next")).is_some());
}

/// Records of others than the claim's namespace are for given snapshots alone.
#[test]
fn a_record_elsewhere_asks_for_no_snapshot_of_its_own() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, VELERO, true);
    let anchor = begin_there(&mut fake, "first", &request);
    let mut seen = Observed::default();
    let why = loop {
        match turn(&mut fake, &anchor, &mut seen) {
            Ok(None) => {}
            Ok(Some(outcome)) => panic!("{outcome:?}"),
            Err(why) => break why,
        }
    };
    assert!(why.contains("is about another namespace"), "{why}");
    // Nor one where neither the claim nor the Repository is.
    let other = given(&mut fake, "velero-db-x", &json!({}));
    let Request::Backup(mut backup) = request_of_given(&fake, true, true, &other) else {
        unreachable!("it is a backup")
    };
    backup.repository.namespace = "elsewhere".into();
    let anchor = begin_there(&mut fake, "second", &Request::Backup(backup));
    let mut seen = Observed::default();
    let next = std::iter::repeat_with(|| turn(&mut fake, &anchor, &mut seen));
    let why = next.take(20).find_map(Result::err).expect("a refusal");
    assert!(why.contains("is about another namespace"), "{why}");
}

#[test]
fn one_that_no_operation_had_is_removed_with_that_of_the_storage() {
    let mut fake = shop(true);
    let mine = given(&mut fake, "velero-db-x", &json!({}));
    let other = given(&mut fake, "velero-db-y", &json!({}));
    drop_given(&mut fake, &mine);
    assert!(fake.get(&snapshot_key("velero-db-x")).is_none());
    assert!(fake.get(&snapshot_key("velero-db-y")).is_some());
    assert_eq!(fake.storage.keys().filter(|name| name.starts_with("snap-")).count(), 1);
    // One of another uid stays.
    drop_given(&mut fake, &Given { uid: "another".into(), ..other.clone() });
    assert!(fake.get(&snapshot_key("velero-db-y")).is_some());
    // One that an operation has stays with it.
    let request = request_of_given(&fake, true, true, &other);
    let anchor = begin_there(&mut fake, "first", &request);
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    drop_given(&mut fake, &other);
    assert!(fake.get(&snapshot_key("velero-db-y")).is_some());
}
