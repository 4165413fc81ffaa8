//! Less usual ways of a collection, killed at every change: what a resumed backup left, segments
//! that are put together, a damaged pack that should be rewritten, and several generations that
//! wait at once.

use crate::world::{CHUNK, Committed, LONG, World, keys_below};
use chunkstore::format::names;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use tests::{ClockedStore, Death, DyingStore, Rng};

/// `run` dies before and after each of its changes; gives how many there are.
fn dies_everywhere(
    start: &Arc<ClockedStore>,
    run: impl Fn(Arc<dyn ObjectStore>),
    then: impl Fn(Arc<ClockedStore>, &str),
) -> u64 {
    let count = DyingStore::new(start.fork(), None);
    run(count.clone());
    for change in 0..count.changes() {
        for done in [false, true] {
            let death = Death { change, done };
            let objects = start.fork();
            run(DyingStore::new(objects.clone(), Some(death)));
            then(objects, &format!("{death:?}"));
        }
    }
    count.changes()
}

#[test]
fn a_resumed_backup_killed_at_any_change_leaves_nothing_behind() {
    const KEPT: Committed<'_> = &[("two", 1)];
    let mut rng = Rng::new(29);
    let contents = [rng.bytes(3 << 20), rng.bytes(30 * CHUNK)];
    let world = World::of("collect-resumed", contents, Some(512 << 10));
    let start = world.start();
    world.backup(start.clone(), "two", 1).unwrap();
    // how many checkpoints a run makes depends on how its threads are scheduled: some make none
    let left = (0..50).find_map(|_| {
        let objects = start.fork();
        // the lease is made and asked for once more; a checkpoint writes it again
        let death = Death { change: 2, done: true };
        let dying = DyingStore::below(objects.clone(), "leases", Some(death));
        world.backup(dying, "big", 0).err()?;
        let options = world.vault.options(&world.images[0].0, "big", None);
        let again = world.vault.run(objects.fork(), &options, &mover_engine::run::Cancel::new());
        again.result.unwrap().resumed.map(|_| objects)
    });
    let left = left.expect("no run made a checkpoint");
    let changes = dies_everywhere(
        &left,
        |store| drop(world.backup(store, "big", 0)),
        |objects, when| {
            world.check(&objects, KEPT, when);
            // given up for good: all of it is garbage, unless it was committed
            let gone = objects.fork();
            match world.vault.restored(gone.clone(), "big") {
                Ok(_) => world.settle(&gone, &[("two", 1), ("big", 0)], when),
                Err(_) => world.settle(&gone, KEPT, when),
            }
            world.backup(objects.clone(), "big", 0).unwrap();
            world.settle(&objects, &[("two", 1), ("big", 0)], when);
        },
    );
    println!("a resumed backup killed before and after each of {changes} changes");
}

#[test]
fn a_collection_that_puts_segments_together_survives_any_death() {
    const KEPT: Committed<'_> = &[("b", 1), ("d", 3)];
    let mut rng = Rng::new(37);
    let (one, other) = (rng.bytes(5 * CHUNK), rng.bytes(5 * CHUNK));
    let mut image = |own: usize, shared: &[u8]| [&rng.bytes(own * CHUNK), shared].concat();
    let contents = [image(40, &one), image(20, &one), image(40, &other), image(20, &other)];
    let world = World::of("collect-merge", contents, None);
    let start = world.start();
    for (image, id) in ["a", "b", "c", "d"].iter().enumerate() {
        world.backup(start.clone(), id, image).unwrap();
    }
    world.vault.forget(start.clone(), "a").unwrap();
    world.vault.forget(start.clone(), "c").unwrap();
    let whole = start.fork();
    let before = keys_below(&world, &whole, "dedup").len();
    let done = world.vault.collect(whole.clone(), false).unwrap();
    println!("{done:?}");
    // those of `a` and `c`, of which what `b` and `d` share is left, become one
    assert_eq!((done.rewritten_packs, done.replaced_segments), (2, 2));
    assert_eq!(keys_below(&world, &whole, "dedup").len(), before - 1);
    // it leads to what was moved
    let again = world.vault.backup(whole, &world.images[0].0, "a2", None).unwrap();
    assert_eq!(again.reused_bytes, 5 * CHUNK as u64);
    let changes = dies_everywhere(
        &start,
        |store| drop(world.vault.collect(store, false)),
        |objects, when| {
            world.check(&objects, KEPT, when);
            world.backup(objects.clone(), "a2", 0).unwrap();
            world.settle(&objects, &[("b", 1), ("d", 3), ("a2", 0)], when);
        },
    );
    println!("a collection that merges segments killed before and after each of {changes} changes");
}

#[test]
fn eight_small_segments_become_one_wherever_that_dies() {
    let mut rng = Rng::new(43);
    let contents: Vec<_> = (0..8).map(|_| rng.bytes(3 * CHUNK)).collect();
    let world = World::of("collect-eight", contents, None);
    let start = world.start();
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for (image, id) in ids.iter().enumerate() {
        world.backup(start.clone(), id, image).unwrap();
    }
    let kept: Vec<(&str, usize)> = ids.iter().copied().zip(0..).collect();
    let changes = dies_everywhere(
        &start,
        |store| drop(world.vault.collect(store, false)),
        |objects, when| {
            world.settle(&objects, &kept, when);
            // fewer than eight are left as they are
            assert!(keys_below(&world, &objects, "dedup").len() <= 8, "{when}");
            let again = world.vault.backup(objects, &world.images[7].0, "again", None).unwrap();
            assert_eq!(again.new_bytes, 0, "{when}");
        },
    );
    println!("a merge of eight segments killed before and after each of {changes} changes");
}

#[test]
fn a_damaged_pack_is_not_rewritten_and_hinders_nothing_else() {
    let world = World::new("collect-damaged");
    let objects = world.with_garbage();
    // the one that would be rewritten: what lives of it is what `three` shares
    let rewritten = {
        let fork = objects.fork();
        world.vault.collect(fork.clone(), false).unwrap();
        let stubs = keys_below(&world, &fork, "moved");
        names::pack_key(&names::parse_stub_key(&stubs[0]).unwrap())
    };
    let path = object_store::path::Path::from(format!("repo/{rewritten}"));
    let sound = world.vault.block_on(async { objects.get(&path).await?.bytes().await }).unwrap();
    // its shared chunks are at the end of the image, before the directory
    let damaged = (0..sound.len()).rev().step_by(97).find_map(|at| {
        let mut bytes = sound.to_vec();
        bytes[at] ^= 1;
        let fork = objects.fork();
        world.vault.block_on(fork.put(&path, bytes.clone().into())).unwrap();
        // a chunk of `three`, not the end of the pack
        world.vault.restored(fork, "three").is_err().then_some(bytes)
    });
    let damaged = damaged.expect("some byte of it matters");
    world.vault.block_on(objects.put(&path, damaged.into())).unwrap();
    let done = world.vault.collect(objects.clone(), false).unwrap();
    println!("{done:?}");
    // the pages of what was forgotten went, the damaged one stays as it is
    assert_eq!((done.deleted_packs, done.deleted_manifests), (1, 1), "{done:?}");
    assert!(keys_below(&world, &objects, "packs").contains(&rewritten));
    assert!(keys_below(&world, &objects, "moved").is_empty());
    world.check(&objects, &[("two", 1)], "damaged");
    world.vault.restored(objects.clone(), "three").unwrap_err();
    // brought back from a copy it is as it was
    world.vault.block_on(objects.put(&path, sound.into())).unwrap();
    world.settle(&objects, &[("two", 1), ("three", 2)], "mended");
}

#[test]
fn four_generations_wait_and_no_more_and_all_end() {
    const KEPT: Committed<'_> = &[("kept", 5)];
    let mut rng = Rng::new(41);
    let contents: Vec<_> = (0..7).map(|_| rng.bytes(20 * CHUNK)).collect();
    let world = World::of("collect-waiting", contents, None);
    let objects = world.start();
    world.backup(objects.clone(), "kept", 5).unwrap();
    // somebody is at work all the while
    let death = Death { change: 0, done: false };
    let dying = DyingStore::below(objects.clone(), "backups", Some(death));
    world.backup(dying, "dead", 6).unwrap_err();
    for (image, waiting) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)] {
        let id = format!("b{image}");
        world.backup(objects.clone(), &id, image).unwrap();
        world.vault.forget(objects.clone(), &id).unwrap();
        let done = world.vault.collect(objects.clone(), false).unwrap();
        assert_eq!((done.waiting.len(), done.deleted_packs), (waiting, 0), "{done:?}");
        world.check(&objects, KEPT, &id);
    }
    let lists = |objects: &Arc<ClockedStore>| {
        let keys = keys_below(&world, objects, "gc");
        keys.iter().filter(|key| key.ends_with("condemned")).count()
    };
    assert_eq!(lists(&objects), 4);
    // the lease has run out: one collection sweeps all four, wherever it dies
    objects.advance(LONG);
    let whole = objects.fork();
    let done = world.vault.collect(whole.clone(), false).unwrap();
    println!("{done:?}");
    assert!(done.waiting.is_empty() && done.deleted_packs >= 10, "{done:?}");
    assert_eq!(lists(&whole), 0);
    let changes = dies_everywhere(
        &objects,
        |store| drop(world.vault.collect(store, false)),
        |objects, when| world.settle(&objects, KEPT, when),
    );
    println!("four generations killed before and after each of {changes} changes");
}
