//! The whole pipeline, killed at every change of the store, before and after it.
//!
//! What was committed before restores; the run that was killed is either committed and right, or
//! absent; running it again succeeds and restores.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::Encryption;
use object_store::memory::InMemory;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tests::{Death, DyingStore, Rng, Vault, VaultParams, changed_extents, extents_json};

/// Every death of a run from `world`'s state: what was there restores, the run is whole or absent,
/// a rerun succeeds.
fn die_everywhere(
    world: &Vault,
    start: &Arc<InMemory>,
    before: &[(&str, &[u8])],
    image: &Path,
    id: &str,
    list: Option<(&str, &Path)>,
) {
    let content = fs::read(image).unwrap();
    let counting = DyingStore::new(fork(start), None);
    world.backup(counting.clone(), image, id, list).unwrap();
    let changes = counting.changes();
    assert!(changes >= 4, "lease, packs, manifest, lease again: {changes}");
    for change in 0..changes {
        for done in [false, true] {
            let memory = fork(start);
            let death = Death { change, done };
            let dying = DyingStore::new(memory.clone(), Some(death));
            let result = world.backup(dying.clone(), image, id, list);
            // the order of concurrent uploads may differ a little, so not every number need come up
            assert!(dying.dead() || result.is_ok(), "{death:?}: {result:?}");
            for (old, want) in before {
                assert_eq!(world.restored(memory.clone(), old).unwrap(), *want, "{death:?}");
            }
            if let Ok(bytes) = world.restored(memory.clone(), id) {
                assert_eq!(bytes, content, "{death:?}");
            }
            world.backup(memory.clone(), image, id, list).unwrap();
            assert_eq!(world.restored(memory, id).unwrap(), content, "{death:?}: after a rerun");
        }
    }
    println!("{id}: killed before and after each of {changes} changes");
}

fn fork(memory: &InMemory) -> Arc<InMemory> {
    Arc::new(memory.fork())
}

/// What is there when a run dies once its first checkpoint is written.
fn killed(world: &Vault, image: &Path, id: &str, list: Option<(&str, &Path)>) -> Arc<InMemory> {
    // the lease is made and asked for once more; a checkpoint writes it again
    let death = Death { change: 2, done: true };
    // how many checkpoints a run makes depends on how its threads are scheduled: some make none
    for _ in 0..50 {
        let memory = world.fork();
        let dying = DyingStore::below(memory.clone(), "leases", Some(death));
        if world.backup(dying, image, id, list).is_err() {
            let again = world.backup(fork(&memory), image, id, list).unwrap();
            let resumed = again.resumed.expect("the killed run left a checkpoint");
            println!("{id}: killed, gone on with at {}%", resumed.percent);
            return memory;
        }
    }
    panic!("no run made a checkpoint");
}

#[test]
fn a_run_killed_at_any_change_leaves_what_was_committed_and_can_be_run_again() {
    let mut rng = Rng::new(11);
    let world = Vault::new(
        "crash",
        VaultParams {
            chunk_bytes: 4096,
            entry_chunks: 16,
            page_fanout: 16,
            encryption: Encryption::Aes256Gcm,
        },
    )
    .with_checkpoints(512 << 10)
    .with_a_volume_that_changes();
    let image = world.path("v.img");
    let mut content = rng.bytes(3 << 20);
    content[100_000..900_000].fill(0);
    fs::write(&image, &content).unwrap();
    die_everywhere(&world, &world.fork(), &[], &image, "full", None);
    let left = killed(&world, &image, "full", None);
    die_everywhere(&world, &left, &[], &image, "full", None);

    world.backup(world.memory(), &image, "full", None).unwrap();
    let old = world.path("old.img");
    fs::copy(&image, &old).unwrap();
    let before = content.clone();
    let patch = rng.bytes(1_500_000);
    content[70_000..1_570_000].copy_from_slice(&patch);
    content.extend(rng.bytes(5000));
    fs::write(&image, &content).unwrap();
    let list = world.path("list.json");
    let extents = changed_extents(&old, &image, 512);
    fs::write(&list, extents_json(content.len() as u64, "delta", &extents).to_string()).unwrap();
    let (before, list) = ([("full", &before[..])], Some(("full", &*list)));
    die_everywhere(&world, &world.fork(), &before, &image, "delta", list);
    let left = killed(&world, &image, "delta", list);
    die_everywhere(&world, &left, &before, &image, "delta", list);
}
