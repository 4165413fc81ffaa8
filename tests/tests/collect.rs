//! Garbage collection of real backups: killed at every change, with everything else between any two of its requests, and
//! between any two requests of everything else.
//!
//! Throughout: what is committed and not forgotten restores bit for bit; after two more collections nothing is left that
//! nobody refers to. What is left is found by a walk of its own, not by the collector's.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{
    ChunkRef, Encryption, Error, ErrorKind, Location, Moved, PackId, PageAt, ReadLimits,
    Repository, Result, SegmentIndex, SegmentLayout, SegmentOpener, Visitor, VolumeMap, names,
    reach,
};
use object_store::ObjectStore;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{BesideStore, ClockedStore, Death, DyingStore, Rng, Vault, VaultParams};

/// Bytes of a chunk.
const CHUNK: usize = 4096;
/// Longer than any lease of these tests.
const LONG: i64 = 3600;

/// A vault, and images with what they hold. Some share chunks.
struct World {
    vault: Vault,
    images: Vec<(PathBuf, Vec<u8>)>,
}

/// What is committed: ids of backups and numbers of images.
type Committed<'a> = &'a [(&'a str, usize)];

impl World {
    fn new(name: &str) -> Arc<Self> {
        let mut rng = Rng::new(23);
        let params = VaultParams {
            chunk_bytes: u32::try_from(CHUNK).unwrap(),
            entry_chunks: 4,
            page_fanout: 16,
            encryption: Encryption::Aes256Gcm,
        };
        let vault = Vault::new(name, params);
        let shared = rng.bytes(10 * CHUNK);
        let mut image = |own: usize, of_shared: usize| {
            let mut content = rng.bytes(own * CHUNK);
            content.extend(&shared[..of_shared * CHUNK]);
            content
        };
        let contents = [image(40, 10), image(30, 0), image(20, 5), image(15, 0)];
        let write = |(n, content): (usize, Vec<u8>)| {
            let path = vault.path(&format!("image{n}"));
            fs::write(&path, &content).unwrap();
            (path, content)
        };
        let images = contents.into_iter().enumerate().map(write).collect();
        Arc::new(Self { vault, images })
    }

    /// The empty repository.
    fn start(&self) -> Arc<ClockedStore> {
        ClockedStore::new(self.vault.memory().fork())
    }

    fn backup(&self, objects: Arc<dyn ObjectStore>, id: &str, image: usize) -> Result<()> {
        self.vault.backup(objects, &self.images[image].0, id, None).map(|_| ())
    }

    /// Backups `one` of image 0, `two` of image 1, `three` of image 2; `one` is forgotten. A pack of it is mostly dead.
    fn with_garbage(&self) -> Arc<ClockedStore> {
        let objects = self.start();
        self.backup(objects.clone(), "one", 0).unwrap();
        self.backup(objects.clone(), "two", 1).unwrap();
        self.backup(objects.clone(), "three", 2).unwrap();
        self.vault.forget(objects.clone(), "one").unwrap();
        objects
    }

    fn check(&self, objects: &Arc<ClockedStore>, committed: Committed<'_>, when: &str) {
        for (id, image) in committed {
            let restored = self.vault.restored(objects.clone(), id);
            let restored = restored.unwrap_or_else(|e| panic!("{when}: {id}: {e}"));
            assert!(restored == self.images[*image].1, "{when}: {id} is another");
        }
    }

    /// Two collections, after all leases have run out: all is there, and nothing else is.
    fn settle(&self, objects: &Arc<ClockedStore>, committed: Committed<'_>, when: &str) {
        self.check(objects, committed, when);
        for _ in 0..2 {
            objects.advance(LONG);
            self.vault.collect(objects.clone(), false).unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        self.check(objects, committed, when);
        let repo = self.vault.open(objects.clone()).unwrap();
        self.vault.block_on(expect_clean(&repo, committed.len(), when));
    }
}

/// A chunk or page: pack, entry, index.
type Place = (PackId, u32, u16);

#[derive(Default)]
struct Places(BTreeSet<Place>);

impl Places {
    fn insert(&mut self, at: &Location) -> bool {
        self.0.insert((at.pack, at.entry, at.index))
    }
}

impl Visitor for Places {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        Ok(self.insert(&at.page.location))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.insert(&chunk.location);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Follows stubs by hand; gives the packs that all lies in, and those that stubs are needed of.
async fn resolve(
    repo: &Repository,
    mut places: BTreeSet<Place>,
    stored: &BTreeSet<PackId>,
) -> (BTreeSet<PackId>, BTreeSet<PackId>) {
    let mut stubs = BTreeMap::new();
    let mut packs = BTreeSet::new();
    while let Some((pack, entry, index)) = places.pop_first() {
        if stored.contains(&pack) {
            packs.insert(pack);
            continue;
        }
        if let std::collections::btree_map::Entry::Vacant(vacant) = stubs.entry(pack) {
            let key = names::moved_key(&pack);
            let bytes = repo.store().get(&key).await.unwrap();
            vacant.insert(Moved::decode(repo.keys(), repo.id(), &key, &bytes).unwrap());
        }
        let to = stubs[&pack].find(entry, index).unwrap();
        places.insert((to.pack, to.entry, to.index));
    }
    (packs, stubs.into_keys().collect())
}

/// Every object is one that something refers to, or one of those that stay for ever.
async fn expect_clean(repo: &Repository, backups: usize, when: &str) {
    let (entries, problems) = repo.list_backups(None).await.unwrap();
    assert!(problems.is_empty() && entries.len() == backups, "{when}: {entries:?} {problems:?}");
    let maps: Vec<_> = entries.iter().map(|b| VolumeMap::of(repo, &b.manifest).unwrap()).collect();
    let mut places = Places::default();
    reach(repo, &maps, ReadLimits::default(), &mut places).await.unwrap();
    let keys: Vec<_> = repo.store().list("").await.unwrap();
    let stored = keys.iter().filter_map(|l| names::parse_pack_key(&l.key).ok()).collect();
    let (packs, stubs) = resolve(repo, places.0, &stored).await;
    assert_eq!(stored, packs, "{when}: packs");
    let moved = keys.iter().filter_map(|l| names::parse_moved_key(&l.key).ok()).collect();
    assert_eq!(stubs, moved, "{when}: stubs");
    for listed in keys {
        let key = listed.key.as_str();
        if let Ok(id) = names::parse_segment_key(key) {
            let bytes = repo.store().get(key).await.unwrap();
            let opener = SegmentOpener::new(repo.keys(), repo.keys().encryption(), &id);
            let trailer = &bytes[bytes.len() - 64..];
            let layout = SegmentLayout::decode("s", bytes.len() as u64, trailer).unwrap();
            let at = layout.index();
            let at = usize::try_from(at.start).unwrap()..usize::try_from(at.end).unwrap();
            let plain = opener.open_index(&layout, &bytes[at]).unwrap();
            let index = SegmentIndex::decode("s", &layout, &plain).unwrap();
            assert!(index.packs().all(|pack| stored.contains(&pack)), "{when}: {key}");
        } else if let Ok((_, object)) = names::parse_gc_key(key) {
            // a fence has nothing behind its kind
            let stays = object == names::GcObject::Verdict || listed.size_bytes <= 64 + 1 + 16;
            assert!(stays, "{when}: {key} is left");
        } else if key.starts_with("backups/") {
            let name = names::parse_manifest_key(key).unwrap();
            let is_backup = entries.iter().any(|b| b.manifest.name() == name);
            assert!(is_backup || listed.size_bytes < 300, "{when}: {key} is left");
        } else {
            let kind = key.split('/').next().unwrap();
            let stays = ["format", "keys", "forgotten", "packs", "moved"].contains(&kind);
            assert!(stays, "{when}: {key} is left");
        }
    }
}

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
    let dying = DyingStore::new(start.clone(), Some(Death { change: 4, done: false }));
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

/// `first` runs on a store that lets `second` happen before each of its requests, one after another.
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
    assert!(e.hint_text().is_some_and(|hint| hint.contains("--exclusive")), "{e}");
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

/// The keys below a prefix.
fn keys_below(repo: &Repository, world: &World, prefix: &str) -> Vec<String> {
    let listed = world.vault.block_on(repo.store().list(prefix)).unwrap();
    listed.into_iter().map(|l| l.key).collect()
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
        let keys = keys_below(&repo, &world, "gc");
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

/// A backup `again` that has taken up what a collection condemned meanwhile, which waits for it; both have let go.
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
        // the reader is no blocker of the collection that is undecided: only what that one has recorded protects it
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

/// What a life does to the repository that it has in mind.
struct Life {
    world: Arc<World>,
    objects: Arc<ClockedStore>,
    rng: Rng,
    pool: Vec<Vec<u8>>,
    alive: Vec<(String, Vec<u8>)>,
    steps: u64,
    rewritten: u64,
}

impl Life {
    /// A volume of new chunks, and of some that others have had: packs die in part, and what is left of them moves again
    /// and again.
    fn image(&mut self) -> Vec<u8> {
        let mut content = self.rng.bytes(CHUNK * 25);
        for _ in 0..self.rng.below(8) {
            let at = self.rng.below(self.pool.len() as u64);
            content.extend(&self.pool[usize::try_from(at).unwrap()]);
        }
        content
    }

    fn step(&mut self) {
        self.steps += 1;
        let objects = self.objects.clone();
        match self.rng.below(10) {
            0..4 => {
                let (content, id) = (self.image(), format!("b{}", self.steps));
                let image = self.world.vault.path("life.img");
                fs::write(&image, &content).unwrap();
                let death = Death { change: self.rng.below(8), done: self.rng.once_in(2) };
                let death = self.rng.once_in(5).then_some(death);
                let dying = DyingStore::new(objects, death);
                let done = self.world.vault.backup(dying, &image, &id, None);
                let there = self.world.vault.restored(self.objects.clone(), &id);
                assert!(done.is_err() || there.is_ok(), "{id}");
                self.alive.extend(there.is_ok().then_some((id, content)));
            }
            4..7 if self.alive.len() > 2 => {
                let at = self.rng.below(self.alive.len() as u64);
                let (id, _) = self.alive.swap_remove(usize::try_from(at).unwrap());
                self.world.vault.forget(objects, &id).unwrap();
            }
            7 => self.objects.advance(LONG),
            _ => {
                let death = Death { change: self.rng.below(20), done: self.rng.once_in(2) };
                let death = self.rng.once_in(3).then_some(death);
                let done = self.world.vault.collect(DyingStore::new(objects, death), false);
                self.rewritten += done.map_or(0, |done| done.rewritten_packs);
            }
        }
    }

    fn check(&self, when: &str) {
        for (id, content) in &self.alive {
            let restored = self.world.vault.restored(self.objects.clone(), id);
            assert!(restored.unwrap_or_else(|e| panic!("{when}: {id}: {e}")) == *content, "{when}");
        }
    }
}

#[test]
fn a_life_of_backups_forgets_collections_and_deaths_keeps_what_counts() {
    let world = World::new("collect-life");
    let mut rng = Rng::new(5);
    let (mut rewritten, mut stubs) = (0, 0);
    for life in 0..6 {
        let mut rng = rng.fork();
        let pool = (0..12).map(|_| rng.bytes(CHUNK)).collect();
        let (objects, alive) = (world.start(), Vec::new());
        let mut life_of =
            Life { world: world.clone(), objects, rng, pool, alive, steps: 0, rewritten: 0 };
        for step in 0..60 {
            life_of.step();
            if step % 6 == 5 {
                life_of.check(&format!("life {life}, step {step}"));
            }
        }
        for _ in 0..2 {
            life_of.objects.advance(LONG);
            world.vault.collect(life_of.objects.clone(), false).unwrap();
        }
        life_of.check(&format!("life {life}, end"));
        let repo = world.vault.open(life_of.objects.clone()).unwrap();
        let (count, when) = (life_of.alive.len(), format!("life {life}"));
        world.vault.block_on(expect_clean(&repo, count, &when));
        let left = world.vault.block_on(repo.store().list("moved")).unwrap().len();
        println!(
            "life {life}: {count} backups, {} packs rewritten, {left} stubs",
            life_of.rewritten
        );
        rewritten += life_of.rewritten;
        stubs += left;
    }
    assert!(rewritten > 0 && stubs > 0, "nothing was ever moved");
}
