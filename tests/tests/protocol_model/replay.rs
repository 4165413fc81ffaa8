//! Recorded runs of the code are paths of the model.
//!
//! Every request of real backups, forgets, restores and collections is written down (`record`),
//! in the order of its effect, and followed in the model (`play`). So the steps of the code,
//! their order, and what they find and leave are those that were searched. `names` says which
//! real object is which one of the model.

mod names;
mod play;
mod record;

use crate::steps::Step;
use chunkstore::format::names::{AttemptName, pack_key};
use chunkstore::testkit::HookedStore;
use chunkstore::{
    ChunkRef, Encryption, Error, PackId, Repository, Result, VolumeMap,
    map::{PageAt, ReadLimits, Visitor, reach},
    repository::DamagedSet,
};
use mover_engine::ops::backup::BackupOptions;
use mover_engine::run::Cancel;
use names::RealPlace;
use play::{Played, Recording, Stage};
use record::{Log, RecordingStore, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tests::{
    BesideStore, Clocked, ClockedStore, Death, DyingStore, Rng, Vault, VaultParams, write_extents,
};

const CHUNK: usize = 4096;
/// Longer than any lease here.
const LONG: i64 = 3600;

/// What happens to one repository, and all that was asked of it.
#[derive(Clone)]
struct Tale {
    vault: Arc<Vault>,
    objects: Arc<ClockedStore>,
    log: Vec<Request>,
    maps: BTreeMap<AttemptName, BTreeSet<RealPlace>>,
    /// Runs that may alternate, and whether they came to their end.
    acts: Vec<(Vec<usize>, bool)>,
    /// Packs of chunks that were lost, each before one of these acts.
    lost: Vec<(usize, PackId)>,
    runs: usize,
}

#[derive(Default)]
struct Places(BTreeSet<RealPlace>);

impl Visitor for Places {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        let at = &at.page.location;
        Ok(self.0.insert((at.pack, at.entry, at.index)))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        let at = &chunk.location;
        self.0.insert((at.pack, at.entry, at.index));
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        Err(error)
    }
}

/// What a backup refers to, as its pages say it.
async fn map_of(repo: &Repository, map: VolumeMap) -> BTreeSet<RealPlace> {
    let mut places = Places::default();
    reach(repo, &[map], ReadLimits::default(), &mut places).await.unwrap();
    places.0
}

impl Tale {
    fn new(name: &str, checkpoint_bytes: Option<u64>) -> Self {
        let params = VaultParams {
            chunk_bytes: u32::try_from(CHUNK).unwrap(),
            entry_chunks: 4,
            page_fanout: 16,
            encryption: Encryption::Aes256Gcm,
        };
        let vault = Vault::new(name, params).with_a_volume_that_changes();
        let vault = match checkpoint_bytes {
            Some(every) => vault.with_checkpoints(every),
            None => vault,
        };
        let objects = Clocked::over(vault.memory().fork());
        let (log, maps, acts, lost) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        Self { vault: Arc::new(vault), objects, log, maps, acts, lost, runs: 0 }
    }

    /// The same tale so far, to be told to another end.
    fn fork(&self) -> Self {
        Self { objects: self.objects.fork(), ..self.clone() }
    }

    fn image(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.vault.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// What happens is recorded, as the next runs, which may alternate.
    fn act<R>(
        &mut self,
        runs: usize,
        ends: bool,
        happens: impl FnOnce(&[Arc<HookedStore<RecordingStore>>]) -> R,
    ) -> R {
        let log = Log::default();
        let numbers: Vec<usize> = (self.runs..self.runs + runs).collect();
        let store = |run: &usize| RecordingStore::new(self.objects.clone(), *run, &log);
        let stores: Vec<_> = numbers.iter().map(store).collect();
        let result = happens(&stores);
        self.runs += runs;
        self.acts.push((numbers, ends));
        self.log.extend(log.try_lock().unwrap().drain(..));
        self.learn_maps();
        result
    }

    /// What was committed meanwhile.
    fn learn_maps(&mut self) {
        let repo = self.vault.open(self.objects.clone()).unwrap();
        let (entries, problems) = self.vault.block_on(repo.list_backups(None)).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        for entry in entries {
            let name = entry.manifest.name();
            let map = VolumeMap::of(&repo, &entry.manifest).unwrap();
            self.maps.entry(name).or_insert_with(|| self.vault.block_on(map_of(&repo, map)));
        }
    }

    fn backup(&mut self, id: &str, image: &Path, list: Option<(&str, &Path)>) {
        let vault = Arc::clone(&self.vault);
        self.act(1, true, |s| vault.backup(s[0].clone(), image, id, list)).unwrap();
    }

    fn forget(&mut self, id: &str) {
        let vault = Arc::clone(&self.vault);
        self.act(1, true, |s| vault.forget(s[0].clone(), id)).unwrap();
    }

    fn collect(&mut self) {
        let vault = Arc::clone(&self.vault);
        self.act(1, true, |s| vault.collect(s[0].clone(), false)).unwrap();
    }

    fn read(&mut self, id: &str) {
        let (vault, target) = (Arc::clone(&self.vault), self.vault.path("read.img"));
        let _ = fs::remove_file(&target); // of an earlier call
        self.act(1, true, |s| vault.restore_leased(s[0].clone(), id, &target)).unwrap();
    }

    /// A pack of chunks is lost without anybody's doing.
    fn lose(&mut self, pack: PackId) {
        let repo = self.vault.open(self.objects.clone()).unwrap();
        self.vault.block_on(repo.store().delete(&pack_key(&pack))).unwrap();
        self.lost.push((self.acts.len(), pack));
    }

    /// Records a pack as damaged, as a check does.
    fn record(&mut self, pack: PackId) {
        let vault = Arc::clone(&self.vault);
        let mut damaged = DamagedSet::default();
        damaged.insert(pack, None);
        self.act(1, true, |s| {
            let repo = vault.open(s[0].clone()).unwrap();
            vault.block_on(repo.put_damage(&damaged)).unwrap();
        });
    }

    /// Follows all of it in the model.
    fn replay(&self) -> Played {
        let repo = self.vault.open(self.objects.clone()).unwrap();
        let recording = Recording { repo: &repo, requests: &self.log, maps: &self.maps };
        let mut stage = Stage::new(recording);
        for (at, (runs, ends)) in self.acts.iter().enumerate() {
            let lost = self.lost.iter().filter(|(before, _)| *before == at);
            lost.for_each(|(_, pack)| stage.lose(pack));
            stage.act(runs, *ends);
        }
        stage.played
    }
}

fn told(what: &str, played: &Played) {
    let Played { steps, parts, kinds } = played;
    println!("{what}: {steps} steps of {} kinds, {parts} looks within steps", kinds.len());
}

/// Backups `one` and `two`, which shares some chunks of it; `one` is forgotten. A pack of it is
/// mostly dead.
fn with_garbage(name: &str) -> (Tale, PathBuf, Vec<u8>) {
    let mut tale = Tale::new(name, None);
    let mut rng = Rng::new(29);
    let shared = rng.bytes(10 * CHUNK);
    let image = |tale: &Tale, file: &str, mut content: Vec<u8>, of_shared: usize| {
        content.extend(&shared[..of_shared * CHUNK]);
        (tale.image(file, &content), content)
    };
    let (first, _) = image(&tale, "one.img", rng.bytes(40 * CHUNK), 10);
    let (second, content) = image(&tale, "two.img", rng.bytes(20 * CHUNK), 5);
    tale.backup("one", &first, None);
    tale.backup("two", &second, None);
    tale.forget("one");
    (tale, first, content)
}

#[test]
fn a_life_is_a_path() {
    let (mut tale, _, mut content) = with_garbage("replay-life");
    content[3 * CHUNK..4 * CHUNK].fill(7);
    let third = tale.image("three.img", &content);
    let list = tale.vault.path("three.json");
    write_extents(&tale.vault.path("two.img"), &third, &list);
    tale.backup("three", &third, Some(("two", list.as_path())));
    tale.collect();
    tale.read("two");
    tale.forget("two");
    tale.collect();
    tale.read("three");
    tale.forget("three");
    tale.collect();
    tale.collect();
    let played = tale.replay();
    told("a life", &played);
    for step in [
        Step::ReadStub,
        Step::PutCopy,
        Step::CreateStub,
        Step::DeletePack,
        Step::DeleteStub,
        Step::DeleteManifest,
        Step::PutMovedSegment,
        Step::DeleteOldSegments,
        Step::LookAtReusedPack,
        Step::LookAtParent,
    ] {
        assert!(played.kinds.contains(&step), "it had no \"{}\"", step.words());
    }
}

#[test]
fn damage_that_is_recorded_healed_and_done_with_is_a_path() {
    let mut tale = Tale::new("replay-damage", None);
    let mut content = Rng::new(37).bytes(40 * CHUNK);
    let first = tale.image("one.img", &content);
    tale.backup("one", &first, None);
    let (_, one) = tale.maps.first_key_value().unwrap();
    let places: Vec<RealPlace> = one.iter().copied().collect();
    // pages have entries of one, chunks of four
    let of_chunks = places.iter().find(|(_, _, index)| *index > 0).unwrap().0;
    tale.lose(of_chunks);
    tale.record(of_chunks);
    content[3 * CHUNK..4 * CHUNK].fill(7);
    let second = tale.image("two.img", &content);
    let list = tale.vault.path("two.json");
    write_extents(&first, &second, &list);
    tale.backup("two", &second, Some(("one", list.as_path())));
    tale.collect();
    tale.read("two");
    tale.forget("one");
    tale.collect();
    let played = tale.replay();
    told("damage", &played);
    for step in [Step::RecordDamage, Step::ReadDamage, Step::ReadDamageToSweep, Step::DeleteDamage]
    {
        assert!(played.kinds.contains(&step), "it had no \"{}\"", step.words());
    }
}

#[test]
fn a_killed_run_and_the_next_one_are_a_path() {
    let tale = Tale::new("replay-resumed", Some(400 << 10));
    let image = tale.image("v.img", &Rng::new(31).bytes(150 * CHUNK));
    let vault = Arc::clone(&tale.vault);
    // killed at the second checkpoint; read slowly, so that there is time for two
    let death = Some(Death { change: 3, done: true });
    let slow = NonZeroU64::new(1 << 20);
    let mut killed = None;
    for _ in 0..50 {
        let mut fork = tale.fork();
        let died = fork.act(1, false, |s| {
            let dying = DyingStore::below(s[0].clone(), "leases", death);
            let options = BackupOptions { limit_read: slow, ..vault.options(&image, "b", None) };
            vault.run(dying, &options, &Cancel::new()).result.is_err()
        });
        if died {
            killed = Some(fork);
            break;
        }
    }
    let mut tale = killed.expect("some run made two checkpoints");
    tale.backup("b", &image, None);
    tale.objects.advance(LONG);
    tale.collect();
    tale.read("b");
    let played = tale.replay();
    told("killed and resumed", &played);
    for step in [Step::PutCheckpoint, Step::ReadCheckpoint, Step::PutAdoptedLease] {
        assert!(played.kinds.contains(&step), "it had no \"{}\"", step.words());
    }
}

#[test]
fn a_dead_writer_and_its_burial_are_a_path() {
    let (mut tale, first, _) = with_garbage("replay-dead");
    let vault = Arc::clone(&tale.vault);
    // its lease, which was asked for once more, and a pack are there
    let death = Some(Death { change: 2, done: true });
    tale.act(1, false, |s| {
        let dying = DyingStore::new(s[0].clone(), death);
        vault.backup(dying, &first, "dead", None).unwrap_err();
    });
    tale.collect();
    tale.objects.advance(LONG);
    tale.collect();
    tale.collect();
    let played = tale.replay();
    told("a dead writer", &played);
    assert!(
        played.kinds.contains(&Step::BuryWithFence) || played.kinds.contains(&Step::CreateFence)
    );
}

/// A collection, twice, before each request of a backup that takes up garbage: paths of the
/// model, all of them.
fn beside(name: &str, aged: i64) -> BTreeSet<Step> {
    let (start, first, _) = with_garbage(name);
    let (mut all, mut paths) = (Played::default(), 0);
    for at in 0.. {
        let mut tale = start.fork();
        let vault = Arc::clone(&tale.vault);
        let clock = Arc::clone(&tale.objects);
        let requests = tale.act(3, true, |s| {
            let (second, third) = (s[1].clone(), s[2].clone());
            let collects = Arc::clone(&vault);
            let store = BesideStore::new(s[0].clone(), at, move || {
                clock.advance(aged);
                collects.collect(second, false).unwrap();
                clock.advance(aged);
                collects.collect(third, false).unwrap();
            });
            vault.backup(store.clone(), &first, "again", None).unwrap();
            store.requests()
        });
        if requests <= at {
            break;
        }
        let played = tale.replay();
        all.steps += played.steps;
        all.parts += played.parts;
        all.kinds.extend(played.kinds);
        paths += 1;
    }
    told(&format!("{paths} paths, {name}"), &all);
    all.kinds
}

#[test]
fn collections_between_any_two_requests_of_a_backup_are_paths() {
    let kinds = beside("replay-beside", 0);
    assert!(kinds.contains(&Step::LookAtReusedPack));
}

#[test]
fn a_backup_that_is_fenced_between_any_two_requests_is_a_path() {
    let kinds = beside("replay-fenced", LONG);
    for step in [Step::BuryWithFence, Step::LookForFence, Step::LookAtOwnPack] {
        assert!(kinds.contains(&step), "there was no \"{}\"", step.words());
    }
}

#[test]
fn every_step_has_a_name_of_its_own() {
    let words: BTreeSet<&str> = Step::ALL.iter().map(|s| s.words()).collect();
    assert_eq!(words.len(), Step::ALL.len());
}
