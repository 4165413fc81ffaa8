//! Garbage collection of real backups: killed at every change, with everything else between any two
//! of its requests, and between any two requests of everything else.
//!
//! Throughout: what is committed and not forgotten restores bit for bit; after two more collections
//! nothing is left that nobody refers to. What is left is found by a walk of its own, not by the
//! collector's.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

mod beside;
mod failing;
mod life;
mod paths;
mod records;
mod world;

use chunkstore::{ErrorKind, format::names};
use std::collections::BTreeSet;
use tests::{Death, DyingStore, expect_clean};
use world::{CHUNK, Committed, LONG, World, keys_below};

#[test]
fn what_was_forgotten_goes_and_the_rest_stays() {
    let world = World::new("collect");
    let objects = world.with_garbage();
    let done = world.vault.collect(objects.clone(), false).unwrap();
    println!("{done:?}");
    // its pages are dead, and its chunks but for the five that another one shares
    assert_eq!((done.condemned_packs, done.rewritten_packs, done.deleted_packs), (1, 1, 2));
    assert!(done.deleted_bytes > 200_000 && done.copied_bytes < 30_000, "{done:?}");
    assert!(done.waiting.is_empty() && done.rescued_packs == 0, "{done:?}");
    assert_eq!(done.deleted_manifests, 1);
    world.settle(&objects, &[("two", 1), ("three", 2)], "after");
    // nothing is left to do: no list, no lease stays, and little is asked for
    let idle = world.vault.collect(objects.clone(), false).unwrap();
    println!("idle: {:?}", idle.requests);
    assert_eq!((idle.condemned_packs, idle.deleted_packs, idle.forgotten), (0, 0, 0));
    // a full circle: what was forgotten is stored again
    let image = &world.images[0].0;
    let again = world.vault.backup(objects.clone(), image, "again", None).unwrap();
    let shared = 5 * u64::try_from(CHUNK).unwrap();
    assert_eq!(again.reused_bytes, shared, "what was moved is found where it is");
    world.settle(&objects, &[("two", 1), ("three", 2), ("again", 0)], "again");
    // nothing leads through the stub any more when the last backup that knew the old place goes
    world.vault.forget(objects.clone(), "three").unwrap();
    world.settle(&objects, &[("two", 1), ("again", 0)], "without three");
    let repo = world.vault.open(objects).unwrap();
    assert!(world.vault.block_on(repo.store().list("moved")).unwrap().is_empty());
}

#[test]
fn a_collection_killed_at_any_change_loses_nothing_and_is_made_good() {
    let world = World::new("collect-killed");
    let start = world.with_garbage();
    // a run that died: packs and a lease, no backup
    let dying = DyingStore::new(start.clone(), Some(Death { change: 5, done: false }));
    world.backup(dying, "dead", 3).unwrap_err();
    // its lease has run out, and nobody else's
    start.advance(LONG);
    let count = DyingStore::new(start.fork(), None);
    let done = world.vault.collect(count.clone(), false).unwrap();
    let changes = count.changes();
    println!("{changes} changes, {done:?}");
    assert!(done.deleted_packs > 2 && done.rewritten_packs > 0 && changes > 10, "{done:?}");
    for change in 0..changes {
        for done in [false, true] {
            let death = Death { change, done };
            let objects = start.fork();
            let dying = DyingStore::new(objects.clone(), Some(death));
            // what it does of its own accord may fail quietly: a lease that is not given back
            let _ = world.vault.collect(dying.clone(), false);
            assert!(dying.dead(), "{death:?}");
            let when = format!("{death:?}");
            // a backup works at once, on what is left
            world.check(&objects, &[("two", 1), ("three", 2)], &when);
            world.backup(objects.clone(), "again", 0).unwrap();
            world.settle(&objects, &[("two", 1), ("three", 2), ("again", 0)], &when);
        }
    }
}

#[test]
fn a_forget_killed_at_its_only_change_is_done_or_not() {
    let world = World::new("forget-killed");
    let start = world.with_garbage();
    for done in [false, true] {
        let objects = start.fork();
        let dying = DyingStore::new(objects.clone(), Some(Death { change: 0, done }));
        world.vault.forget(dying, "three").unwrap_err();
        let left: Committed<'_> = if done { &[("two", 1)] } else { &[("two", 1), ("three", 2)] };
        world.settle(&objects, left, &format!("done: {done}"));
    }
}

#[test]
fn a_store_that_ignores_create_once_is_refused_unless_it_is_had_alone() {
    let world = World::new("collect-exclusive");
    let objects = world.with_garbage();
    // committed, but the lease was not given back
    let count = DyingStore::new(objects.fork(), None);
    world.backup(count.clone(), "four", 3).unwrap();
    let last = count.changes() - 1;
    let dying = DyingStore::new(objects.clone(), Some(Death { change: last, done: false }));
    world.backup(dying, "four", 3).unwrap();
    objects.ignore_create_once();
    let e = world.vault.collect(objects.clone(), false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("writes over"), "{e}");
    assert!(e.hint_text().is_some_and(|hint| hint.contains("exclusive")), "{e}");
    // its lease is young: it is waited for
    let done = world.vault.collect(objects.clone(), true).unwrap();
    assert_eq!((done.waiting.len(), done.deleted_packs), (1, 0), "{done:?}");
    objects.advance(LONG);
    let done = world.vault.collect(objects.clone(), true).unwrap();
    assert!(done.waiting.is_empty() && done.deleted_packs > 0, "{done:?}");
    world.check(&objects, &[("two", 1), ("three", 2), ("four", 3)], "alone");
    let repo = world.vault.open(objects.clone()).unwrap();
    world.vault.block_on(expect_clean(&repo, 3, "alone"));
}

#[test]
fn a_backup_that_cannot_be_read_ends_a_collection_and_deletes_nothing() {
    let world = World::new("collect-blind");
    let objects = world.with_garbage();
    let repo = world.vault.open(objects.clone()).unwrap();
    let keys = |prefix: &'static str| {
        let listed = world.vault.block_on(repo.store().list(prefix)).unwrap();
        listed.into_iter().map(|l| l.key).collect::<BTreeSet<_>>()
    };
    let manifest = world.vault.block_on(repo.find_backup("v@two")).unwrap();
    let root = names::pack_key(&manifest.map.root.unwrap().location.pack);
    let pack = world.vault.block_on(repo.store().get(&root)).unwrap();
    world.vault.block_on(repo.store().delete(&root)).unwrap();
    let before = keys("packs");
    let e = world.vault.collect(objects.clone(), false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Missing, "{e}");
    assert!(e.hint_text().is_some_and(|hint| hint.contains("nothing is deleted")), "{e}");
    assert_eq!(keys("packs"), before);
    world.vault.block_on(repo.store().put(&root, pack)).unwrap();

    // a lease that nobody can read may be anybody's
    let lease = "leases/00000000000000000000000000000000";
    world.vault.block_on(repo.store().put(lease, "rubbish")).unwrap();
    let e = world.vault.collect(objects.clone(), false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert!(e.hint_text().is_some_and(|hint| hint.contains("leases/0000")), "{e}");
    assert!(keys("packs").is_superset(&before));
    world.vault.block_on(repo.store().delete(lease)).unwrap();
    world.settle(&objects, &[("two", 1), ("three", 2)], "mended");
}

#[test]
fn a_backup_lost_under_an_undecided_collection_is_got_rid_of_by_forgetting_it() {
    let world = World::new("collect-lost");
    let start = world.with_garbage();
    let mut undecided = 0;
    for change in 0.. {
        let objects = start.fork();
        let death = Death { change, done: true };
        let dying = DyingStore::new(objects.clone(), Some(death));
        // what it does of its own accord may fail quietly
        let _ = world.vault.collect(dying.clone(), false);
        if !dying.dead() {
            break;
        }
        let repo = world.vault.open(objects.clone()).unwrap();
        let keys = keys_below(&world, &objects, "gc");
        if !keys.iter().any(|k| k.ends_with("condemned"))
            || keys.iter().any(|k| k.ends_with("verdict"))
        {
            continue;
        }
        undecided += 1;
        objects.advance(LONG);
        let manifest = world.vault.block_on(repo.find_backup("v@three")).unwrap();
        let root = names::pack_key(&manifest.map.root.unwrap().location.pack);
        world.vault.block_on(repo.store().delete(&root)).unwrap();
        let e = world.vault.collect(objects.clone(), false).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Missing, "{death:?}: {e}");
        assert!(e.hint_text().is_some_and(|hint| hint.contains("forget the backup")), "{e}");
        // and that helps
        world.vault.forget(objects.clone(), "three").unwrap();
        world.settle(&objects, &[("two", 1)], &format!("{death:?}"));
    }
    println!("{undecided} collections killed between their list and their verdict");
    assert!(undecided > 0);
}
