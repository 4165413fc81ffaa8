//! One operation between any two requests of another.

use crate::world::{LONG, World};
use chunkstore::{ErrorKind, Result};
use object_store::ObjectStore;
use std::fs;
use std::sync::Arc;
use tests::{BesideStore, ClockedStore};

/// `first` runs on a store that lets `second` happen before each of its requests, one after
/// another.
fn between_any_two(
    start: &Arc<ClockedStore>,
    first: impl Fn(Arc<dyn ObjectStore>) -> Result<()>,
    second: impl Fn(Arc<ClockedStore>) + Clone + Send + 'static,
    then: impl Fn(Arc<ClockedStore>, Result<()>, &str),
) -> u64 {
    for at in 0.. {
        let objects = start.fork();
        let (second, beside) = (second.clone(), objects.clone());
        let store = BesideStore::new(objects.clone(), at, move || second(beside));
        let result = first(store.clone());
        if store.requests() <= at {
            assert!(at > 10, "it made only {at} requests");
            return at;
        }
        then(objects, result, &format!("at request {at}"));
    }
    unreachable!()
}

#[test]
fn a_backup_that_takes_up_garbage_is_safe_from_a_collection_at_any_moment() {
    for (name, aged) in [("beside", 0), ("fenced", LONG)] {
        let world = World::new(&format!("collect-{name}"));
        let start = world.with_garbage();
        let (first, second) = (world.clone(), world.clone());
        let requests = between_any_two(
            &start,
            |store| first.backup(store, "again", 0),
            move |objects| {
                // of a backup that seems dead the lease is removed, and it is fenced
                objects.advance(aged);
                second.vault.collect(objects.clone(), false).unwrap();
                objects.advance(aged);
                second.vault.collect(objects, false).unwrap();
            },
            |objects, result, when| {
                result.unwrap_or_else(|e| panic!("{name} {when}: {e}"));
                let committed = [("two", 1), ("three", 2), ("again", 0)];
                world.settle(&objects, &committed, &format!("{name} {when}"));
            },
        );
        println!("{name}: two collections before each of {requests} requests of a backup");
    }
}

#[test]
fn a_collection_beside_which_garbage_is_taken_up_spares_it_at_any_moment() {
    let world = World::new("collect-rescue");
    let start = world.with_garbage();
    let (first, second) = (world.clone(), world.clone());
    let requests = between_any_two(
        &start,
        |store| first.vault.collect(store, false).map(|_| ()),
        move |objects| second.backup(objects, "again", 0).unwrap(),
        |objects, result, when| {
            result.unwrap_or_else(|e| panic!("{when}: {e}"));
            world.settle(&objects, &[("two", 1), ("three", 2), ("again", 0)], when);
        },
    );
    println!("a backup before each of {requests} requests of a collection");
}

#[test]
fn a_collection_beside_which_more_is_forgotten_and_collected_ends_well() {
    let world = World::new("collect-two");
    let start = world.with_garbage();
    let (first, second) = (world.clone(), world.clone());
    let requests = between_any_two(
        &start,
        |store| first.vault.collect(store, false).map(|_| ()),
        move |objects| {
            second.vault.forget(objects.clone(), "three").unwrap();
            second.vault.collect(objects.clone(), false).unwrap();
            objects.advance(LONG);
            second.vault.collect(objects, false).unwrap();
        },
        |objects, result, when| {
            // taken for dead it says so, and nothing else
            if let Err(e) = result {
                assert_eq!(e.kind(), ErrorKind::Fenced, "{when}: {e}");
            }
            world.settle(&objects, &[("two", 1)], when);
        },
    );
    println!("a forget and two collections before each of {requests} requests of a collection");
}

#[test]
fn what_is_being_read_stays_until_it_was_read() {
    let world = World::new("collect-reader");
    let start = world.with_garbage();
    let target = world.vault.path("read.img");
    let (first, second, file) = (world.clone(), world.clone(), target.clone());
    let requests = between_any_two(
        &start,
        |store| {
            let _ = fs::remove_file(&file);
            first.vault.restore_leased(store, "three", &file)
        },
        move |objects| {
            second.vault.forget(objects.clone(), "three").unwrap();
            second.vault.collect(objects.clone(), false).unwrap();
            second.vault.collect(objects, false).unwrap();
        },
        |objects, result, when| {
            match result {
                Ok(()) => assert!(fs::read(&target).unwrap() == world.images[2].1, "{when}"),
                // before it was confirmed under the lease
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::Forgotten | ErrorKind::NotFound),
                    "{when}: {e}"
                ),
            }
            world.settle(&objects, &[("two", 1)], when);
        },
    );
    println!("a forget and two collections before each of {requests} requests of a restore");
}

/// A backup `again` that has taken up what a collection condemned meanwhile, which waits for it;
/// both have let go.
fn taken_up_and_undecided(world: &Arc<World>) -> Arc<ClockedStore> {
    let start = world.with_garbage();
    for at in 0.. {
        let objects = start.fork();
        let (second, beside) = (world.clone(), objects.clone());
        let store = BesideStore::new(objects.clone(), at, move || {
            second.vault.collect(beside, false).unwrap();
        });
        world.backup(store.clone(), "again", 0).unwrap();
        assert!(store.requests() > at, "nowhere does a backup take up what is condemned");
        let swept = world.vault.collect(objects.fork(), false).unwrap();
        if swept.rescued_packs > 0 {
            println!("condemned before request {at}: {} packs are in use", swept.rescued_packs);
            return objects;
        }
    }
    unreachable!()
}

#[test]
fn who_reads_what_was_taken_up_and_forgotten_again_is_not_swept_away_beneath() {
    let world = World::new("collect-recorded");
    let start = taken_up_and_undecided(&world);
    let target = world.vault.path("read.img");
    let (first, second, file) = (world.clone(), world.clone(), target.clone());
    let requests = between_any_two(
        &start,
        |store| {
            let _ = fs::remove_file(&file);
            first.vault.restore_leased(store, "again", &file)
        },
        // the reader is no blocker of the collection that is undecided: only what that one has
        // recorded protects it
        move |objects| {
            second.vault.forget(objects.clone(), "again").unwrap();
            second.vault.collect(objects, false).unwrap();
        },
        |objects, result, when| {
            match result {
                Ok(()) => assert!(fs::read(&target).unwrap() == world.images[0].1, "{when}"),
                // before it was confirmed under the lease
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::Forgotten | ErrorKind::NotFound),
                    "{when}: {e}"
                ),
            }
            world.settle(&objects, &[("two", 1), ("three", 2)], when);
        },
    );
    println!("a forget and a sweep before each of {requests} requests of a restore");
}
