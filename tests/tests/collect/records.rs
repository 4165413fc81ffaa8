//! Records of damage: they go when nothing that they name counts any more, and never before
//! somebody could need them.

use crate::world::{CHUNK, LONG, World, keys_below};
use chunkstore::{
    Location, PackId, VolumeMap,
    format::names,
    map::{PageAt, ReadLimits, Visitor, reach},
    repository::DamagedSet,
};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{BesideStore, ClockedStore, Rng, write_extents};

/// Where the chunks of a backup are.
#[derive(Default)]
struct Chunks(Vec<Location>);

impl Visitor for Chunks {
    fn page(&mut self, _: &PageAt) -> chunkstore::Result<bool> {
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, _: u64, at: &chunkstore::ChunkRef) -> chunkstore::Result<()> {
        self.0.push(at.location);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: chunkstore::Error) -> chunkstore::Result<()> {
        Err(error)
    }
}

fn chunks(world: &World, objects: &Arc<ClockedStore>, id: &str) -> Vec<Location> {
    let repo = world.vault.open(objects.clone()).unwrap();
    world.vault.block_on(async {
        let manifest = repo.find_backup(&format!("v@{id}")).await.unwrap();
        let map = VolumeMap::of(&repo, &manifest).unwrap();
        let mut chunks = Chunks::default();
        reach(&repo, &[map], ReadLimits::default(), &mut chunks).await.unwrap();
        chunks.0
    })
}

fn record(world: &World, objects: &Arc<ClockedStore>, pack: PackId, entry: Option<u32>) {
    let repo = world.vault.open(objects.clone()).unwrap();
    let mut damaged = DamagedSet::default();
    damaged.insert(pack, entry);
    world.vault.block_on(repo.put_damage(&damaged)).unwrap();
}

fn lose(world: &World, objects: &Arc<ClockedStore>, pack: &PackId) {
    let repo = world.vault.open(objects.clone()).unwrap();
    world.vault.block_on(repo.store().delete(&names::pack_key(pack))).unwrap();
}

fn records(world: &World, objects: &Arc<ClockedStore>) -> usize {
    keys_below(world, objects, "damaged").len()
}

#[test]
fn a_record_stays_while_its_pack_or_a_backup_that_needs_it_is_there() {
    let world = World::new("collect-records");
    let objects = world.start();
    world.backup(objects.clone(), "one", 0).unwrap();
    world.backup(objects.clone(), "two", 1).unwrap();
    let [of_one, of_two] = ["one", "two"].map(|id| chunks(&world, &objects, id)[0]);
    // one is lost, of the other an entry is damaged
    lose(&world, &objects, &of_one.pack);
    record(&world, &objects, of_one.pack, None);
    record(&world, &objects, of_two.pack, Some(of_two.entry));
    let collect = || world.vault.collect(objects.clone(), false).unwrap();
    assert_eq!((collect().deleted_records, records(&world, &objects)), (0, 2));
    // the pages of the first go, and with them what knew the lost pack
    world.vault.forget(objects.clone(), "one").unwrap();
    assert_eq!((collect().deleted_records, records(&world, &objects)), (1, 1));
    world.vault.forget(objects.clone(), "two").unwrap();
    assert_eq!(collect().deleted_records, 1);
    world.settle(&objects, &[], "all forgotten");
}

#[test]
fn a_record_of_what_was_left_behind_by_a_rewrite_goes_though_the_stub_stays() {
    let world = World::new("collect-records-moved");
    let objects = world.with_garbage();
    let of_three = chunks(&world, &objects, "three");
    // the pack that is mostly dead, and an entry of it that only the forgotten backup knew
    let fork = objects.fork();
    world.vault.collect(fork.clone(), false).unwrap();
    let stubs = keys_below(&world, &fork, "moved");
    let moved = names::parse_stub_key(&stubs[0]).unwrap();
    assert!(of_three.iter().any(|at| at.pack == moved));
    let unused = (0..).find(|n| of_three.iter().all(|at| (at.pack, at.entry) != (moved, *n)));
    record(&world, &objects, moved, unused);
    let needed = of_three.iter().find(|at| at.pack == moved).unwrap().entry;
    record(&world, &objects, moved, Some(needed));
    let done = world.vault.collect(objects.clone(), false).unwrap();
    assert_eq!((done.rewritten_packs, done.deleted_records), (1, 1), "{done:?}");
    assert_eq!((keys_below(&world, &objects, "moved").len(), records(&world, &objects)), (1, 1));
    world.check(&objects, &[("two", 1), ("three", 2)], "moved");
}

#[test]
fn an_outdated_record_alone_is_reason_enough_to_collect_once() {
    let world = World::new("collect-records-alone");
    let objects = world.start();
    world.backup(objects.clone(), "two", 1).unwrap();
    record(&world, &objects, PackId::from_bytes([7; 32]), None);
    let done = world.vault.collect(objects.clone(), false).unwrap();
    assert_eq!((done.deleted_records, done.condemned_packs), (1, 0), "{done:?}");
    let verdicts = keys_below(&world, &objects, "gc");
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    world.vault.collect(objects.clone(), false).unwrap();
    assert_eq!(keys_below(&world, &objects, "gc"), verdicts);
    world.settle(&objects, &[("two", 1)], "alone");
}

/// A backup that inherits from one of which a pack is lost, and does not know; meanwhile the loss
/// is recorded, and its parent forgotten and collected. The child of that backup has to find the
/// record, and stores again what is lost.
#[test]
fn who_began_before_a_record_keeps_it_for_those_who_come_after() {
    let mut rng = Rng::new(47);
    let mut content = rng.bytes(60 * CHUNK);
    let world = World::of("collect-records-beside", [content.clone()], None);
    let start = world.start();
    world.backup(start.clone(), "one", 0).unwrap();
    let lost = chunks(&world, &start, "one")[20].pack;
    let mut image = |n: u8| -> (PathBuf, Vec<u8>) {
        content[CHUNK] = n;
        let path = world.vault.path(&format!("image-{n}"));
        fs::write(&path, &content).unwrap();
        (path, content.clone())
    };
    let (second, third) = (image(1), image(2));
    let (to_second, to_third) = (world.vault.path("1.json"), world.vault.path("2.json"));
    write_extents(&world.images[0].0, &second.0, &to_second);
    write_extents(&second.0, &third.0, &to_third);
    let (mut unaware, mut waited) = (0, 0);
    for at in 0.. {
        let (objects, when) = (start.fork(), format!("at request {at}"));
        let (beside, others) = (objects.clone(), Arc::clone(&world));
        let store = BesideStore::new(objects.clone(), at, move || {
            lose(&others, &beside, &lost);
            record(&others, &beside, lost, None);
            others.vault.forget(beside.clone(), "one").unwrap();
            others.vault.collect(beside.clone(), false).unwrap();
            others.vault.collect(beside, false).unwrap();
        });
        let list = Some(("one", to_second.as_path()));
        let made = world.vault.backup(store.clone(), &second.0, "two", list);
        if store.requests() <= at {
            break;
        }
        if made.is_err() {
            // its parent was gone, or its pages, before it was relied upon
            continue;
        }
        waited += usize::from(records(&world, &objects) > 0);
        unaware += usize::from(world.vault.restored(objects.clone(), "two").is_err());
        let list = Some(("two", to_third.as_path()));
        world
            .vault
            .backup(objects.clone(), &third.0, "three", list)
            .unwrap_or_else(|e| panic!("{when}: {e}"));
        let restored = world.vault.restored(objects.clone(), "three");
        assert!(restored.unwrap_or_else(|e| panic!("{when}: {e}")) == third.1, "{when}");
        world.vault.forget(objects.clone(), "two").unwrap();
        for _ in 0..2 {
            objects.advance(LONG);
            world.vault.collect(objects.clone(), false).unwrap();
        }
        assert_eq!(records(&world, &objects), 0, "{when}");
    }
    println!("{unaware} backups did not know, {waited} records were kept for their children");
    assert!(unaware > 0 && waited >= unaware);
}
