//! Restores whose volume begins as a snapshot that the storage still has.

use super::pause::drive_until;
use super::*;
use mover_cluster::engine::{BASE_OF, Kept, KeptSnapshot, exit};
use serde_json::Value;

fn snapshot() -> Key {
    Key::new(Kind::VolumeSnapshot, NAMESPACE, "kept")
}

/// A snapshot of the claim that stayed, with this data, and the request of a restore that begins as it.
pub(super) fn from_snapshot(fake: &mut Fake, request: Request, data: &str) -> Request {
    let key = snapshot();
    fake.create(&json!({
        "kind": "VolumeSnapshot",
        "metadata": { "name": key.name, "namespace": key.namespace },
        "spec": { "source": { "persistentVolumeClaimName": "db" } },
    }));
    while fake.tick() {}
    let found = fake.get(&content_of(fake)).expect("its content");
    let handle = found["status"]["snapshotHandle"].as_str().expect("a handle").to_owned();
    fake.storage.insert(handle.clone(), data.to_owned());
    let Request::Restore(mut restore) = request else { panic!("no restore") };
    let of = format!("{} in {}", restore.volume, restore.repository.url);
    fake.change(&key, &json!({ "metadata": { "annotations": { BASE_OF: of } } }));
    restore.kept = Some(Kept::Snapshot(KeptSnapshot {
        name: key.name,
        driver: DRIVER.into(),
        handle,
        class: Some("snaps".into()),
    }));
    Request::Restore(restore)
}

fn content_of(fake: &Fake) -> Key {
    let found = fake.get(&snapshot()).expect("the snapshot");
    let name = found["status"]["boundVolumeSnapshotContentName"].as_str().expect("a content");
    Key::wide(Kind::VolumeSnapshotContent, name)
}

/// Until its Job is made: what the volume is made of, and the arguments of the program.
fn begins(fake: &mut Fake, anchor: &Anchor) -> (Value, Vec<Value>) {
    let mut seen = Observed::default();
    while fake.of_kind(Kind::Job).is_empty() {
        assert_eq!(turn(fake, anchor, &mut seen), Ok(None), "{:#?}", fake.written);
    }
    let job = &fake.of_kind(Kind::Job)[0].1;
    let arguments = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let arguments = arguments.expect("arguments").clone();
    let claim = anchor.volume(job["metadata"]["namespace"].as_str().expect("a namespace"));
    (fake.get(&claim).expect("the volume")["spec"]["dataSource"].clone(), arguments)
}

fn restore(filesystem: bool, jobs_in: &str, data: &str) -> (Fake, Request) {
    let mut fake = shop(filesystem);
    fake.repository.insert("old".into(), DATA.into());
    let request = restore_request("old", filesystem, jobs_in);
    let request = from_snapshot(&mut fake, request, data);
    (fake, request)
}

#[test]
fn the_volume_begins_as_the_snapshot_and_is_compared_with_the_backup() {
    for filesystem in [true, false] {
        for jobs_in in [NAMESPACE, "mover-system"] {
            for data in [DATA, "other"] {
                let (mut fake, request) = restore(filesystem, jobs_in, data);
                let its_own = fake.get(&content_of(&fake)).expect("its content").clone();
                let anchor = begin(&mut fake, "first", &request);
                let (source, arguments) = begins(&mut fake, &anchor);
                assert_eq!(source["kind"], "VolumeSnapshot", "{source}");
                assert!(arguments.contains(&json!("--differential")), "{arguments:?}");
                let outcome = drive(&mut fake, &anchor);
                assert_eq!(outcome.exit_code, 0, "{outcome:?}");
                assert_clean(&mut fake, &anchor, 1, 1);
                assert_restored(&fake, filesystem);
                let after = fake.get(&content_of(&fake)).expect("its content");
                assert_eq!(*after, its_own, "the user's own content is not touched");
            }
        }
    }
}

/// All that makes the snapshot another one, or none: the data then comes from the bucket.
#[test]
fn without_a_snapshot_that_serves_all_comes_from_the_bucket() {
    type Change = fn(&mut Fake);
    let changes: [(&str, Change); 10] = [
        ("gone", |fake| {
            let uid = Meta::of(fake.get(&snapshot()).expect("it")).uid;
            fake.delete(&snapshot(), &uid);
        }),
        ("its content is gone", |fake| {
            let content = content_of(fake);
            fake.objects.remove(&content);
        }),
        ("not ready", |fake| {
            fake.change(&snapshot(), &json!({ "status": { "readyToUse": false } }));
        }),
        ("another one of the storage", |fake| {
            let content = content_of(fake);
            fake.change(&content, &json!({ "status": { "snapshotHandle": "snap-of-others" } }));
        }),
        ("the content of somebody else", |fake| {
            let content = content_of(fake);
            let back = json!({ "volumeSnapshotRef": { "uid": "of-others" } });
            fake.change(&content, &json!({ "spec": back }));
        }),
        ("of a backup elsewhere", |fake| {
            let of = json!({ BASE_OF: "c1/shop/db in s3://another" });
            fake.change(&snapshot(), &json!({ "metadata": { "annotations": of } }));
        }),
        ("of a size that nobody knows", |fake| {
            let content = content_of(fake);
            fake.change(&content, &json!({ "status": { "restoreSize": 0 } }));
        }),
        ("larger than the backup", |fake| {
            let content = content_of(fake);
            fake.change(&content, &json!({ "status": { "restoreSize": (1_u64 << 30) + 1 } }));
        }),
        ("lost by the storage", |fake| {
            fake.storage.retain(|name, _| !name.starts_with("snap-"));
        }),
        ("of another driver", |fake| {
            let content = content_of(fake);
            fake.change(&content, &json!({ "spec": { "driver": "other.csi" } }));
        }),
    ];
    for (about, change) in changes {
        let (mut fake, request) = restore(true, "mover-system", "other");
        fake.faults.snapshot_never_ready = about == "not ready";
        change(&mut fake);
        let anchor = begin(&mut fake, "first", &request);
        let (source, arguments) = begins(&mut fake, &anchor);
        assert_eq!(source, Value::Null, "{about}");
        assert!(!arguments.contains(&json!("--differential")), "{about}: {arguments:?}");
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
        assert_restored(&fake, true);
        assert_eq!(fake.left(), Vec::<String>::new(), "{about}");
        let why = outcome.summary["from_bucket"].as_str();
        assert!(why.is_some_and(|why| why.contains("volumesnapshot")), "{about}: {outcome:?}");
        assert!(fake.now < Duration::from_secs(300), "{about}: it took {:?}", fake.now);
    }
}

/// Whoever writes to the bucket may say of a device that it was a filesystem. The content alone says
/// whether a kernel may parse what is made of it.
#[test]
fn the_mark_of_a_mode_is_that_of_the_snapshot() {
    for filesystem in [true, false] {
        let (mut fake, request) = restore(filesystem, "mover-system", DATA);
        let Request::Restore(mut asked) = request else { panic!("no restore") };
        asked.filesystem = Some("ext4".into());
        let anchor = begin(&mut fake, "first", &Request::Restore(asked));
        begins(&mut fake, &anchor);
        let handed = fake.get(&anchor.handed_content()).expect("it was handed over");
        let mode = if filesystem { "Filesystem" } else { "Block" };
        assert_eq!(handed["spec"]["sourceVolumeMode"], mode);
        let marks = Meta::of(handed).annotations;
        assert_eq!(marks.contains_key(mover_cluster::engine::MODE_CHANGE), filesystem, "{marks:?}");
    }
}

/// The snapshot went after the command began, so it finds none when it is run again: it is the same
/// command all the same, and goes on by its record.
#[test]
fn the_same_command_goes_on_whatever_snapshot_it_finds() {
    let (mut fake, request) = restore(true, "mover-system", DATA);
    let anchor = begin(&mut fake, "first", &request);
    begins(&mut fake, &anchor);
    let again = request.clone().without_snapshot("it is gone");
    assert!(again.is_same(&request) && request.is_same(&again) && again != request);
    let mut seen = Observed::default();
    let end = loop {
        seen.set_now(fake.now);
        match engine::plan(&anchor, Mandate::Request(&again), &seen) {
            Ok(end) => break end,
            Err(Stop::Failure(why)) => panic!("{why}"),
            Err(Stop::Next(_)) => {}
        }
        turn(&mut fake, &anchor, &mut seen).expect("it goes on");
    };
    assert_eq!(end.exit_code, 0, "{end:?}");
    assert_restored(&fake, true);
    let Request::Restore(mut other) = request.clone() else { panic!("no restore") };
    other.kept = None;
    assert!(!request.is_same(&Request::Restore(other)), "it was asked for without one");
}

/// The name of what is handed over is taken: nothing of others is used or removed, and the data comes
/// from the bucket.
#[test]
fn a_name_that_is_taken_is_left_alone() {
    let (mut fake, request) = restore(false, "mover-system", "other");
    let anchor = begin(&mut fake, "first", &request);
    let key = anchor.handed_content();
    fake.create(&json!({ "kind": "VolumeSnapshotContent", "metadata": { "name": key.name } }));
    let (source, _) = begins(&mut fake, &anchor);
    assert_eq!(source, Value::Null);
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    assert_restored(&fake, false);
    assert!(fake.get(&key).is_some());
}

/// An older program knows no comparison, and says so by the code of bad usage: that is no last word.
#[test]
fn an_older_program_is_no_end() {
    let (mut fake, request) = restore(true, "mover-system", DATA);
    let message = json!({ "message": "unexpected argument '--differential' found" });
    fake.faults.pod_fails = Some((i64::from(exit::USAGE), message.to_string()));
    let anchor = begin(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, exit::RETRYABLE, "{outcome:?}");
    assert!(outcome.hint.is_some_and(|hint| hint.contains("preferSnapshot")));
}

/// A storage that makes no volume of it: the failure says the way around it, and nothing is left.
#[test]
fn a_volume_that_is_never_made_of_it_says_how_to_go_on() {
    let (mut fake, request) = restore(true, NAMESPACE, DATA);
    fake.faults.volume_never_bound = true;
    let anchor = begin(&mut fake, "first", &request);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, exit::RETRYABLE, "{outcome:?}");
    assert!(outcome.hint.clone().unwrap_or_default().contains("--prefer-snapshot"), "{outcome:?}");
    assert_clean(&mut fake, &anchor, 0, 1);
    // The next attempt of an object is one without it.
    assert_eq!(request.without_snapshot("it failed").snapshot(), None);
}

/// Gone between the writes of the hand-over: never a claim with other data.
#[test]
fn a_snapshot_that_goes_meanwhile_is_no_end() {
    for writes in 1.. {
        let (mut fake, request) = restore(true, "mover-system", "other");
        let anchor = begin(&mut fake, "first", &request);
        let ended = drive_until(&mut fake, &anchor, writes, true);
        if let Some(found) = fake.get(&snapshot()) {
            let uid = Meta::of(found).uid;
            let content = content_of(&fake);
            fake.change(&content, &json!({ "spec": { "deletionPolicy": "Delete" } }));
            fake.delete(&snapshot(), &uid);
        }
        let outcome = drive(&mut fake, &anchor);
        settle(&mut fake);
        assert_eq!(fake.left(), Vec::<String>::new(), "{writes}: {outcome:?}");
        match outcome.exit_code {
            0 => assert_restored(&fake, true),
            exit::RETRYABLE => {
                assert_eq!(fake.storage.keys().filter(|at| at.starts_with("vol-")).count(), 1)
            }
            _ => panic!("{writes}: {outcome:?}"),
        }
        if ended {
            assert!(writes > 5);
            break;
        }
    }
}
