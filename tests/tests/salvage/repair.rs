//! Backups that a repair makes whole: they stay so, whatever becomes of the other copy, of the
//! repair, and of a second one beside it.

use crate::world::{BOTH, Objects, World};
use chunkstore::format::names::{forgotten_key, manifest_key};
use chunkstore::{BackupId, VolumeName};
use mover_engine::ops::check::ReadData;
use std::sync::Arc;
use tests::{BesideStore, Death, DyingStore};

fn key_of(attempt: u32) -> String {
    manifest_key(&VolumeName::new("v").unwrap(), &BackupId::new("one").unwrap(), attempt)
}

fn forgotten(attempt: u32) -> String {
    forgotten_key(&VolumeName::new("v").unwrap(), &BackupId::new("one").unwrap(), attempt)
}

fn has(world: &World, objects: &Objects, key: &str) -> bool {
    world.vault.keys(objects, "").contains(&format!("repo/{key}"))
}

/// Everything that is garbage goes, and no collection is left half done.
fn collect(world: &World, objects: &Objects) {
    for _ in 0..3 {
        let done = world.vault.collect(Arc::clone(objects), false).unwrap();
        assert!(done.waiting.is_empty(), "{done:?}");
    }
}

#[test]
fn a_repaired_backup_outlives_the_backup_that_it_was_repaired_from() {
    for encryption in BOTH {
        let world = World::new("salvage-repair", encryption);
        for (what, damage) in world.damages() {
            let objects = world.fork();
            let before = world.vault.open(objects.clone()).unwrap();
            let before = world.vault.block_on(before.find_backup("v@one")).unwrap();
            damage(&world, &objects);
            let report = world.check(&objects, ReadData::All, true);
            assert_eq!(report.repaired.backups, 1, "{what}: {report:?}");
            assert!(report.lost.is_empty() && report.elsewhere.is_empty(), "{what}: {report:?}");
            let after = world.vault.open(objects.clone()).unwrap();
            let after = world.vault.block_on(after.find_backup("v@one")).unwrap();
            let same =
                chunkstore::Manifest { attempt: before.attempt, map: before.map, ..after.clone() };
            assert_eq!(same, before, "{what}");
            assert_eq!(after.attempt, 1);
            assert_eq!(after.map.root.unwrap().id, before.map.root.unwrap().id, "{what}");
            world.is_whole(&objects, what);
            collect(&world, &objects);
            world.is_whole(&objects, what);
            world.forget(&objects, "w@other");
            collect(&world, &objects);
            world.is_whole(&objects, what);
            assert_eq!(world.attempts(&objects), [("one".to_owned(), 1)], "{what}");
            // a run that is repeated finds that it is done
            let image = world.vault.path("v.img");
            let again = world.vault.backup(objects.clone(), &image, "one", None);
            assert!(again.is_ok(), "{what}: {again:?}");
            world.forget(&objects, "v@one");
            assert_eq!(world.attempts(&objects), [], "{what}");
        }
    }
}

#[test]
fn a_repair_that_is_killed_at_any_change_leaves_one_backup_and_the_next_one_ends_it() {
    let world = World::new("salvage-killed", BOTH[1]);
    let start = world.fork();
    world.flip_entry(&start, &world.chunk_at("v@one", 5));
    let mut both = 0;
    for at in 0.. {
        let mut died = false;
        for done in [false, true] {
            let objects: Objects = fork_of(&world, &start);
            let dying = DyingStore::new(objects.clone(), Some(Death { change: at, done }));
            let _ = world.vault.check(dying.clone(), ReadData::All, true);
            died |= dying.dead();
            let when = format!("change {at}, done: {done}");
            let listed = world.attempts(&objects);
            assert_eq!(listed.len(), 2, "{when}: {listed:?}");
            let restored = world.vault.restored(objects.clone(), "one").unwrap();
            assert!(restored == world.content, "{when}");
            if has(&world, &objects, &key_of(1)) && !has(&world, &objects, &forgotten(0)) {
                both += 1;
                // forgotten as it stands, it is gone
                let forgets = fork_of(&world, &objects);
                world.forget(&forgets, "v@one");
                assert_eq!(world.attempts(&forgets), [("other".to_owned(), 0)], "{when}");
            }
            world.check(&objects, ReadData::All, true);
            world.is_whole(&objects, &when);
            assert!(has(&world, &objects, &forgotten(0)), "{when}");
            assert_eq!(world.attempts(&objects)[0], ("one".to_owned(), 1), "{when}");
        }
        if !died {
            assert!(at > 4, "it made only {at} changes");
            break;
        }
    }
    assert!(both > 0, "no death came between the commit and the forgetting");
}

/// Of two operations one happens before each request of the other.
fn before_each(
    world: &Arc<World>,
    second: impl Fn(&World, &Objects) + Clone + Send + 'static,
    then: impl Fn(&World, &Objects, &str),
) {
    let start = world.fork();
    world.flip_entry(&start, &world.chunk_at("v@one", 5));
    for at in 0.. {
        let objects = fork_of(world, &start);
        let (beside, there, second) = (Arc::clone(world), objects.clone(), second.clone());
        let store = BesideStore::new(objects.clone(), at, move || second(&beside, &there));
        let done = world.vault.check(store.clone(), ReadData::All, true);
        if store.requests() <= at {
            println!("before each of {at} requests of a repair");
            return;
        }
        // what a collection or a forget took away meanwhile may end it
        if let Err(e) = &done {
            assert!(e.kind() != chunkstore::ErrorKind::Bug, "at {at}: {e}");
        }
        then(world, &objects, &format!("at request {at}"));
    }
}

#[test]
fn two_repairs_at_once_make_one_backup() {
    let world = Arc::new(World::new("salvage-two", BOTH[1]));
    before_each(
        &world,
        |world, objects| drop(world.check(objects, ReadData::All, true)),
        |world, objects, when| {
            world.check(objects, ReadData::All, true);
            world.is_whole(objects, when);
            let listed = world.attempts(objects);
            assert_eq!(listed, [("one".to_owned(), 1), ("other".to_owned(), 0)], "{when}");
        },
    );
}

#[test]
fn a_repair_beside_which_the_other_copy_is_forgotten_and_collected_is_never_wrong() {
    let world = Arc::new(World::new("salvage-collected", BOTH[1]));
    before_each(
        &world,
        |world, objects| {
            world.forget(objects, "w@other");
            let _ = world.vault.collect(Arc::clone(objects), false);
            let _ = world.vault.collect(Arc::clone(objects), false);
        },
        |world, objects, when| {
            // leases that were in the way have ended
            let _ = world.vault.collect(Arc::clone(objects), false);
            let _ = world.vault.collect(Arc::clone(objects), false);
            let [(_, attempt)] = world.attempts(objects)[..] else { panic!("{when}") };
            // repaired in time it is whole for good; else it has lost what it had lost
            if attempt > 0 {
                world.is_whole(objects, when);
            } else {
                let report = world.check(objects, ReadData::All, false);
                assert_eq!(report.lost.len(), 1, "{when}: {report:?}");
            }
        },
    );
}

/// A copy of objects that are themselves a copy.
fn fork_of(world: &World, objects: &Objects) -> Objects {
    use object_store::{ObjectStoreExt, path::Path};
    let copy = object_store::memory::InMemory::new();
    for key in world.vault.keys(objects, "") {
        let path = Path::from(key);
        world.vault.block_on(async {
            let bytes = objects.get(&path).await.unwrap().bytes().await.unwrap();
            copy.put(&path, bytes.into()).await.unwrap();
        });
    }
    Arc::new(copy)
}

/// An attempt that cannot be read, beside one that can, takes nothing from anybody: neither a
/// repaired one that was damaged since, nor the one that it was made of.
#[test]
fn an_attempt_that_cannot_be_read_beside_one_that_can_is_no_loss_and_goes() {
    let world = World::new("salvage-unreadable", BOTH[0]);
    let entry = world.damages()[0].1;
    for unreadable in [0, 1] {
        let what = format!("attempt {unreadable} is unreadable");
        let objects = world.fork();
        if unreadable == 0 {
            entry(&world, &objects);
            assert_eq!(world.check(&objects, ReadData::All, true).repaired.backups, 1);
            world.delete(&objects, &forgotten(0));
        } else {
            world.copy(&objects, &key_of(0), &key_of(1));
        }
        world.change(&objects, &key_of(unreadable), |bytes| bytes[20] ^= 1);
        let readable = 1 - unreadable;
        let listed = world.attempts(&objects);
        assert!(listed.contains(&("one".to_owned(), readable)), "{what}: {listed:?}");
        assert!(world.vault.restored(objects.clone(), "one").unwrap() == world.content, "{what}");
        let report = world.check(&objects, ReadData::Nothing, false);
        assert!(report.lost.is_empty() && report.findings_count == 1, "{what}: {report:?}");
        let report = world.check(&objects, ReadData::Nothing, true);
        assert_eq!(report.repaired.superseded, 1, "{what}: {report:?}");
        assert!(has(&world, &objects, &forgotten(unreadable)), "{what}");
        assert!(!has(&world, &objects, &forgotten(readable)), "{what}");
        // the same run again finds that it is done
        let image = world.vault.path("v.img");
        let again = || world.vault.backup(objects.clone(), &image, "one", None);
        assert!(again().is_ok(), "{what}: {:?}", again());
        collect(&world, &objects);
        world.is_whole(&objects, &what);
        assert!(again().is_ok(), "{what}: {:?}", again());
        if unreadable == 1 {
            // a later repair does not commit where an attempt was forgotten
            entry(&world, &objects);
            assert_eq!(world.check(&objects, ReadData::All, true).repaired.backups, 1);
            assert!(has(&world, &objects, &key_of(2)) && !has(&world, &objects, &key_of(1)));
            collect(&world, &objects);
            world.is_whole(&objects, &what);
        }
        world.forget(&objects, "v@one");
        assert!(!world.attempts(&objects).iter().any(|(id, _)| id == "one"), "{what}");
    }
}
