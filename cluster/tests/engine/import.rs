//! Snapshots of the storage that are brought into a cluster, and those that go: with each step the last
//! one of a driver, and with whatever else has the names.

use super::retained::{back_up, keeping};
use super::*;
use mover_cluster::engine::{
    Discard, DiscardFrom, Failure, IMPORTED, Import, Imported, discard_snapshot, discardable,
    import, withdraw,
};

const HANDLE: &str = "snap-of-old";

/// A storage that has a snapshot of which this cluster knows nothing.
fn storage() -> Fake {
    let mut fake = shop(true);
    fake.storage.insert(HANDLE.into(), DATA.into());
    fake.written.clear();
    fake
}

fn request() -> Import {
    Import {
        namespace: NAMESPACE.into(),
        name: "db-12345678".into(),
        driver: DRIVER.into(),
        handle: HANDLE.into(),
        mode: Some("Filesystem".into()),
        snapshot_class: Some("snaps".into()),
        annotations: BTreeMap::from([("secret".to_owned(), "name".to_owned())]),
        of: "old/shop/db@12345678-1".into(),
        wait_seconds: 60,
        run: "one".into(),
    }
}

/// Drives a plan to its end, or until so many steps are done.
fn drive_plan<T>(
    fake: &mut Fake,
    plan: impl Fn(&Observed) -> Planned<T>,
    most: usize,
) -> Option<Result<T, Failure>> {
    let mut seen = Observed::default();
    seen.set_now(fake.now);
    let mut did = 0;
    for _ in 0..500 {
        seen.set_now(fake.now);
        let next = match plan(&seen) {
            Ok(done) => return Some(Ok(done)),
            Err(Stop::Failure(why)) => return Some(Err(why)),
            Err(Stop::Next(next)) => next,
        };
        match next {
            Next::Read(query) => fake.read(&query, &mut seen),
            Next::Do(step) => {
                if did == most {
                    return None;
                }
                did += 1;
                fake.execute(&step, &mut seen);
            }
            Next::Refresh => seen.forget_all(),
            Next::Wait(wait) => {
                if !fake.tick() {
                    fake.now += wait.time;
                }
                seen.set_now(fake.now);
                seen.waited();
                wait.on.iter().for_each(|query| fake.read(query, &mut seen));
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

fn brought(fake: &mut Fake, request: &Import) -> Result<Imported, Failure> {
    drive_plan(fake, |seen| import(request, seen), usize::MAX).expect("it ends")
}

fn snapshot_key() -> Key {
    Key::new(Kind::VolumeSnapshot, NAMESPACE, &request().name)
}

fn decided(fake: &mut Fake, key: &Key, removal: DiscardFrom) -> Result<Discard, Failure> {
    drive_plan(fake, |seen| discardable(seen, key, removal), 0).expect("it writes nothing")
}

fn said(leaves: bool) -> DiscardFrom {
    if leaves { DiscardFrom::Leave } else { DiscardFrom::InStorage }
}

fn of_snapshots(fake: &Fake) -> usize {
    fake.of_kind(Kind::VolumeSnapshot).len() + fake.of_kind(Kind::VolumeSnapshotContent).len()
}

#[test]
fn a_snapshot_of_the_storage_is_brought_in_and_goes_as_asked() {
    for leaves in [true, false] {
        let mut fake = storage();
        let done = brought(&mut fake, &request()).expect("it is there");
        assert!(done.size.is_some(), "{done:?}");
        let content = fake.get(&done.content).expect("it was made");
        assert_eq!(content["spec"]["deletionPolicy"], "Retain");
        assert_eq!(content["spec"]["sourceVolumeMode"], "Filesystem");
        assert_eq!(content["metadata"]["annotations"]["secret"], "name");
        // Once more changes nothing.
        let written = fake.written.len();
        assert_eq!(brought(&mut fake, &request()), Ok(done));
        assert_eq!(fake.written.len(), written);

        let of = decided(&mut fake, &snapshot_key(), said(leaves)).expect("it is ours");
        assert_eq!(of.handle.as_deref(), Some(HANDLE));
        drive_plan(&mut fake, |seen| discard_snapshot(&of, seen), usize::MAX).unwrap().unwrap();
        assert_eq!(of_snapshots(&fake), 0, "{:#?}", fake.objects);
        assert_eq!(fake.storage.contains_key(HANDLE), leaves);
    }
}

/// Each step is the last one of a command; the next command does the rest.
#[test]
fn a_command_that_dies_is_run_again() {
    for steps in 0..3 {
        let mut fake = storage();
        let first = drive_plan(&mut fake, |seen| import(&request(), seen), steps);
        assert_eq!(first.is_none(), steps < 2, "an import writes twice");
        brought(&mut fake, &request()).expect("it goes on");
        assert_eq!(of_snapshots(&fake), 2);
    }
    for (leaves, writes) in [(true, 2), (false, 3)] {
        for steps in 0..=writes {
            let mut fake = storage();
            brought(&mut fake, &request()).expect("it is there");
            let of = decided(&mut fake, &snapshot_key(), said(leaves)).expect("it is ours");
            let first = drive_plan(&mut fake, |seen| discard_snapshot(&of, seen), steps);
            assert_eq!(first.is_none(), steps < writes, "{:#?}", fake.written);
            drive_plan(&mut fake, |seen| discard_snapshot(&of, seen), usize::MAX).unwrap().unwrap();
            assert_eq!(of_snapshots(&fake), 0, "{:#?}", fake.objects);
            assert_eq!(fake.storage.contains_key(HANDLE), leaves);
        }
    }
}

#[test]
fn one_that_the_storage_has_no_more_is_said_and_leaves_nothing() {
    let mut fake = storage();
    fake.storage.remove(HANDLE);
    let why = brought(&mut fake, &request()).expect_err("it is gone");
    assert!(why.message.contains("can not find snapshot snap-of-old"), "{why:?}");
    let hint = why.hint.expect("the next step");
    assert!(hint.contains("kubectl mover restore old/shop/db@12345678-1"), "{hint}");
    drive_plan(&mut fake, |seen| withdraw(&request(), seen), usize::MAX).unwrap().unwrap();
    assert_eq!(of_snapshots(&fake), 0, "{:#?}", fake.objects);
}

/// A driver that lists nothing has each snapshot: nobody looked.
#[test]
fn a_driver_that_lists_nothing_proves_nothing() {
    let mut fake = storage();
    fake.faults.lists_nothing = true;
    fake.storage.remove(HANDLE);
    let done = brought(&mut fake, &request()).expect("it is taken as there");
    assert_eq!(done.size, None);
}

#[test]
fn what_the_cluster_has_is_imported_by_nobody() {
    let mut fake = storage();
    brought(&mut fake, &request()).expect("it is there");
    let before = fake.objects.clone();
    // The same for another namespace, by another name, and of another backup.
    for other in [
        Import { namespace: "other".into(), ..request() },
        Import { name: "other".into(), ..request() },
        Import { of: "old/shop/db@other".into(), ..request() },
    ] {
        let why = brought(&mut fake, &other).expect_err("it is there");
        assert_eq!(why.exit_code, engine::exit::USAGE, "{why:?}");
        assert_eq!(fake.objects, before, "{why:?}");
        let other = Import { run: "another".into(), ..other };
        drive_plan(&mut fake, |seen| withdraw(&other, seen), usize::MAX).unwrap().unwrap();
        assert_eq!(fake.objects, before, "what is another's stays");
    }
    // One that was taken here, too.
    let mut fake = shop(true);
    let backup = keeping(&fake, true, None, None);
    let name = back_up(&mut fake, "first", &backup);
    let handle = fake.storage.keys().find(|name| name.starts_with("snap-")).expect("one").clone();
    let why = brought(&mut fake, &Import { handle, ..request() }).expect_err("it is there");
    assert!(why.message.contains(&format!("volumesnapshot/{name} in namespace shop")), "{why:?}");
    // Another driver may use the same name.
    let handle = fake.storage.keys().find(|name| name.starts_with("snap-")).expect("one").clone();
    let other = Import { handle, driver: "other".into(), ..request() };
    brought(&mut fake, &other).expect("it is another snapshot");
}

#[test]
fn a_name_that_is_taken_stays_as_it_is() {
    let mut fake = storage();
    fake.create(&json!({
        "kind": "VolumeSnapshot",
        "metadata": { "name": snapshot_key().name, "namespace": NAMESPACE },
        "spec": { "source": { "persistentVolumeClaimName": "db" } },
    }));
    settle(&mut fake);
    let before = fake.objects.clone();
    let why = brought(&mut fake, &request()).expect_err("the name is taken");
    assert!(why.hint.expect("a hint").contains("--name"));
    drive_plan(&mut fake, |seen| withdraw(&request(), seen), usize::MAX).unwrap().unwrap();
    assert_eq!(fake.objects, before);
    // And it is not ours to delete.
    let why =
        decided(&mut fake, &snapshot_key(), DiscardFrom::InStorage).expect_err("it is somebody's");
    assert_eq!(why.exit_code, engine::exit::DENIED, "{why:?}");
}

#[test]
fn one_that_was_kept_goes_with_that_of_the_storage() {
    let mut fake = shop(true);
    let backup = keeping(&fake, true, Some(2), None);
    let name = back_up(&mut fake, "first", &backup);
    let key = Key::new(Kind::VolumeSnapshot, NAMESPACE, &name);
    let of = decided(&mut fake, &key, DiscardFrom::Unsaid).expect("it was kept");
    drive_plan(&mut fake, |seen| discard_snapshot(&of, seen), usize::MAX).unwrap().unwrap();
    assert_eq!(of_snapshots(&fake), 0);
    assert!(!fake.storage.keys().any(|name| name.starts_with("snap-")), "{:?}", fake.storage);
    let why = decided(&mut fake, &key, DiscardFrom::Unsaid).expect_err("it is gone");
    assert!(why.message.contains("does not exist"), "{why:?}");
}

/// Whoever may write a status must not have another snapshot deleted.
#[test]
fn a_content_of_another_snapshot_is_not_deleted() {
    let mut fake = storage();
    brought(&mut fake, &request()).expect("it is there");
    fake.create(&json!({
        "kind": "VolumeSnapshot",
        "metadata": { "name": "mine", "namespace": "other", "annotations": { IMPORTED: "any" } },
        "spec": { "source": { "persistentVolumeClaimName": "db" } },
    }));
    let mine = Key::new(Kind::VolumeSnapshot, "other", "mine");
    let content = fake.of_kind(Kind::VolumeSnapshotContent)[0].0.name.clone();
    fake.change(&mine, &json!({ "status": { "boundVolumeSnapshotContentName": content } }));
    let why = decided(&mut fake, &mine, DiscardFrom::InStorage).expect_err("it is another's");
    assert_eq!(why.exit_code, engine::exit::DENIED, "{why:?}");
}

/// Another cluster may have it, and another content may be at work with it.
#[test]
fn what_others_may_need_stays_in_the_storage() {
    let mut fake = storage();
    brought(&mut fake, &request()).expect("it is there");
    let why =
        decided(&mut fake, &snapshot_key(), DiscardFrom::Unsaid).expect_err("it was imported");
    assert!(why.hint.expect("both ways").contains("--in-storage"));
    let second = json!({
        "kind": "VolumeSnapshotContent",
        "metadata": { "name": "second" },
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain", "source": { "snapshotHandle": HANDLE },
            "volumeSnapshotRef": { "namespace": "other", "name": "theirs" },
        },
    });
    fake.create(&second);
    let why = decided(&mut fake, &snapshot_key(), DiscardFrom::InStorage).expect_err("two have it");
    assert!(why.message.contains("volumesnapshotcontent/second"), "{why:?}");
    decided(&mut fake, &snapshot_key(), DiscardFrom::Leave).expect("the storage keeps it");
    fake.objects.remove(&Key::wide(Kind::VolumeSnapshotContent, "second"));
    let content = fake.of_kind(Kind::VolumeSnapshotContent)[0].0.clone();
    fake.change(&content, &json!({ "status": { "volumeGroupSnapshotHandle": "group" } }));
    let why = decided(&mut fake, &snapshot_key(), DiscardFrom::InStorage).expect_err("of a group");
    assert!(why.message.contains("group snapshot group"), "{why:?}");
}

/// Where the storage is to keep a snapshot, its content stays when somebody deletes the other object.
#[test]
fn a_content_that_leads_nowhere_is_made_anew_or_named() {
    let mut fake = storage();
    brought(&mut fake, &request()).expect("it is there");
    fake.objects.remove(&snapshot_key());
    for name in [request().name, "other".to_owned()] {
        let again = Import { name: name.clone(), run: "another".into(), ..request() };
        brought(&mut fake, &again).expect("it is brought in again");
        assert_eq!(of_snapshots(&fake), 2, "{:#?}", fake.objects);
        fake.objects.remove(&Key::new(Kind::VolumeSnapshot, NAMESPACE, &name));
    }
    // One that is not ours stays, and is named.
    let mut fake = shop(true);
    let backup = keeping(&fake, true, None, None);
    let name = back_up(&mut fake, "first", &backup);
    let handle = fake.storage.keys().find(|name| name.starts_with("snap-")).expect("one").clone();
    fake.objects.remove(&Key::new(Kind::VolumeSnapshot, NAMESPACE, &name));
    let before = fake.objects.clone();
    let why = brought(&mut fake, &Import { handle, ..request() }).expect_err("it leads nowhere");
    assert!(
        why.hint.expect("a hint").contains("kubectl delete volumesnapshotcontent snapcontent-")
    );
    assert_eq!(fake.objects, before);
}

/// A deletion would reach the storage by now.
#[test]
fn one_that_is_to_be_deleted_is_neither_taken_over_nor_taken_back() {
    let mut fake = storage();
    brought(&mut fake, &request()).expect("it is there");
    let content = fake.of_kind(Kind::VolumeSnapshotContent)[0].0.clone();
    fake.change(&content, &json!({ "spec": { "deletionPolicy": "Delete" } }));
    let why = brought(&mut fake, &request()).expect_err("it is being deleted");
    assert_eq!(why.exit_code, engine::exit::RETRYABLE, "{why:?}");
    drive_plan(&mut fake, |seen| withdraw(&request(), seen), usize::MAX).unwrap().unwrap();
    assert_eq!(of_snapshots(&fake), 2);
    assert!(fake.storage.contains_key(HANDLE));
}
