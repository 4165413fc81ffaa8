//! Every operation of a backup, a forget, a collection and a restore fails once, in every way; and
//! a store that is full.
//!
//! What is asked for is done and right, or ends with an error that is the world's fault; what is
//! committed restores; the same command works afterwards; and two collections later nothing is left
//! that nobody refers to.

use crate::world::{Committed, World};
use chunkstore::{ErrorKind, Result};
use object_store::ObjectStore;
use std::fs;
use std::sync::Arc;
use tests::{ClockedStore, FailingStore, Failure};

/// `first` runs on a store of which one operation fails, for every operation and every way.
fn fails_everywhere(
    start: &Arc<ClockedStore>,
    name: &str,
    first: impl Fn(Arc<dyn ObjectStore>) -> Result<()>,
    then: impl Fn(&Arc<ClockedStore>, Result<()>, &str),
) {
    let (mut operations, mut failed, mut survived) = (0, 0, 0);
    for failure in Failure::ALL {
        for at in 0.. {
            let objects = start.fork();
            let store = FailingStore::new(objects.clone(), Some((at, failure)));
            let result = first(store.clone());
            if store.operations() <= at {
                operations = operations.max(at);
                break;
            }
            let Some(hit) = store.hit() else { continue };
            let when = format!("{name}: {failure:?} at {at}, {hit}");
            match &result {
                Ok(()) => survived += 1,
                Err(e) => {
                    failed += 1;
                    let text = e.to_string();
                    assert!(e.kind() != ErrorKind::Bug && text.len() > 30, "{when}: {text}");
                }
            }
            then(&objects, result, &when);
        }
    }
    println!("{name}: {operations} operations; {failed} failures were errors, {survived} were not");
    assert!(operations > 3 && failed > 0, "{name}: {operations}, {failed}");
}

#[test]
fn a_backup_of_which_any_operation_fails_can_be_run_again() {
    let world = World::new("failing-backup");
    fails_everywhere(
        &world.with_garbage(),
        "backup",
        |store| world.backup(store, "again", 0),
        |objects, result, when| {
            world.check(objects, &[("two", 1), ("three", 2)], when);
            if result.is_err() {
                world.backup(objects.clone(), "again", 0).unwrap_or_else(|e| panic!("{when}: {e}"));
            }
            world.settle(objects, &[("two", 1), ("three", 2), ("again", 0)], when);
        },
    );
}

#[test]
fn a_forget_of_which_any_operation_fails_can_be_run_again() {
    let world = World::new("failing-forget");
    fails_everywhere(
        &world.with_garbage(),
        "forget",
        |store| world.vault.forget(store, "three"),
        |objects, result, when| {
            world.check(objects, &[("two", 1)], when);
            if result.is_err()
                && let Err(e) = world.vault.forget(objects.clone(), "three")
            {
                // it was done, and only its answer was lost
                let gone = matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Forgotten);
                assert!(gone, "{when}: {e}");
            }
            world.settle(objects, &[("two", 1)], when);
        },
    );
}

#[test]
fn a_collection_of_which_any_operation_fails_loses_nothing() {
    let world = World::new("failing-collection");
    fails_everywhere(
        &world.with_garbage(),
        "gc",
        |store| world.vault.collect(store, false).map(|_| ()),
        |objects, _, when| world.settle_later(objects, &[("two", 1), ("three", 2)], when),
    );
}

#[test]
fn a_restore_of_which_any_operation_fails_is_right_or_an_error() {
    let world = World::new("failing-restore");
    let target = world.vault.path("read.img");
    fails_everywhere(
        &world.with_garbage(),
        "restore",
        |store| {
            let _ = fs::remove_file(&target);
            world.vault.restore_leased(store, "three", &target)
        },
        |objects, result, when| {
            if result.is_ok() {
                assert!(fs::read(&target).unwrap() == world.images[2].1, "{when}");
            }
            world.settle(objects, &[("two", 1), ("three", 2)], when);
        },
    );
}

/// Nothing can be written there: packs cannot be copied nor segments replaced, and what is wholly
/// dead goes all the same.
#[test]
fn a_full_store_is_collected_as_far_as_that_needs_no_room() {
    const LEFT: Committed<'_> = &[("two", 1), ("three", 2)];
    let world = World::new("full-store");
    let start = world.with_garbage();
    let usual = world.vault.collect(start.fork(), false).unwrap();
    let full: [&[&str]; 3] = [&["packs"], &["dedup"], &["packs", "dedup"]];
    for full in full {
        let objects = start.fork();
        let store = FailingStore::full(objects.clone(), full);
        let done = world.vault.collect(store.clone(), false).unwrap();
        let when = format!("no room in {full:?}");
        println!("{when}: {done:?}");
        assert!(store.hit().is_some(), "{when}: it wrote nothing there");
        // the pages of what was forgotten, and where there is room the pack that is mostly dead
        let rewritten = if full.contains(&"packs") { 0 } else { usual.rewritten_packs };
        assert_eq!(done.rewritten_packs, rewritten, "{when}");
        assert_eq!(done.deleted_packs, usual.deleted_packs - 1 + rewritten, "{when}");
        world.check(&objects, LEFT, &when);
        // with room again it is done like any other
        world.settle_later(&objects, LEFT, &when);
    }
}
