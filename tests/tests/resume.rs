//! Going on with a backup that was killed: how much is done again, when it must not be gone on
//! with, and two at once.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{BackupId, Compression, Encryption, ErrorKind};
use mover_engine::ingest::CompressionChoice;
use mover_engine::ops::backup::{BackupOptions, BackupOutcome, BackupSummary, ParentChoice};
use mover_engine::run::Cancel;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{Death, DyingStore, LoopDevice, Rng, Vault, VaultParams, extents_json};

const INTERVAL: u64 = 1 << 20;
const MIB: usize = 1 << 20;

fn vault(name: &str, checkpoint_bytes: u64) -> Vault {
    let params = VaultParams {
        chunk_bytes: 4096,
        entry_chunks: 16,
        page_fanout: 16,
        encryption: Encryption::Aes256Gcm,
    };
    Vault::new(name, params).with_checkpoints(checkpoint_bytes)
}

/// The lease is made and asked for once more; each checkpoint writes it again. Killed at the second
/// one.
const HALF_WAY: Death = Death { change: 3, done: true };
/// How many checkpoints a run makes depends on how its threads are scheduled: some runs end before
/// there are two.
const TRIES: usize = 50;

/// A world with an image.
struct Scene {
    vault: Vault,
    image: PathBuf,
    content: Vec<u8>,
}

impl Scene {
    fn new(name: &str, len: usize) -> Self {
        let vault = vault(name, INTERVAL);
        let content = Rng::new(23).bytes(len);
        let image = vault.path("v.img");
        fs::write(&image, &content).unwrap();
        Self { vault, image, content }
    }

    fn options(&self) -> BackupOptions {
        self.vault.options(&self.image, "b", None)
    }

    /// Killed when a part of it is done.
    fn killed(&self, options: &BackupOptions) -> Arc<InMemory> {
        for _ in 0..TRIES {
            let memory = self.vault.fork();
            let dying = DyingStore::below(memory.clone(), "leases", Some(HALF_WAY));
            if self.vault.run(dying, options, &Cancel::new()).result.is_err() {
                return memory;
            }
        }
        panic!("no run made two checkpoints");
    }

    /// Runs to the end, and restores what is there now.
    #[track_caller]
    fn completes(&self, memory: &Arc<InMemory>, options: &BackupOptions) -> BackupSummary {
        let done = self.vault.run(memory.clone(), options, &Cancel::new()).result.unwrap();
        let restored = self.vault.restored(memory.clone(), &done.backup_id).unwrap();
        assert_eq!(restored, fs::read(&self.image).unwrap());
        let objects: Arc<dyn ObjectStore> = memory.clone();
        assert_eq!(self.vault.keys(&objects, "backups").len(), 1, "one commit");
        done
    }
}

#[test]
fn a_run_killed_ten_times_reads_less_than_a_third_more() {
    const KILLS: u64 = 10;
    let vault = vault("ten-kills", 4 << 20);
    let mut rng = Rng::new(77);
    let mut content = rng.bytes(256 * MIB);
    content[20 * MIB..24 * MIB].fill(0);
    let image = vault.path("v.img");
    fs::write(&image, &content).unwrap();
    let counting = DyingStore::new(vault.fork(), None);
    let options = vault.options(&image, "b", None);
    let whole = vault.run(counting.clone(), &options, &Cancel::new()).read_bytes;
    let changes = counting.changes();

    let memory = vault.fork();
    let (mut total, mut kills) = (0, 0);
    loop {
        // the moments are spread over the run, so that each run is killed where the last one was
        // not; the first has written a checkpoint by then, as nobody goes on under a lease without
        // one, and it would stay until it has expired
        let most = 2 * changes / (KILLS + 4);
        let death = (kills < KILLS).then(|| {
            let change = rng.below(most);
            Death {
                change: if kills == 0 { change.max(most / 2) } else { change },
                done: rng.once_in(2),
            }
        });
        let dying = DyingStore::new(memory.clone(), death);
        let run = vault.run(dying, &options, &Cancel::new());
        total += run.read_bytes;
        match run.result {
            Ok(done) => {
                println!("{kills} kills, the last run went on at {:?}", done.resumed);
                break;
            }
            Err(_) => kills += 1,
        }
    }
    println!("read {whole} undisturbed, {total} with {kills} kills: {}%", total * 100 / whole);
    assert_eq!(kills, KILLS);
    assert!(total * 10 <= whole * 13, "{total} of {whole}");
    assert_eq!(vault.restored(memory.clone(), "b").unwrap(), content);
    let objects: Arc<dyn ObjectStore> = memory;
    assert!(vault.keys(&objects, "leases").is_empty());
}

#[test]
fn a_rerun_goes_on_under_the_same_lease_and_leaves_none() {
    let scene = Scene::new("same-lease", 16 * MIB);
    let memory = scene.killed(&scene.options());
    let objects: Arc<dyn ObjectStore> = memory.clone();
    let leases = scene.vault.keys(&objects, "leases");
    assert_eq!(leases.len(), 1);
    // stopped before it has done anything: the lease is still that of the first run
    let cancelled = Cancel::new();
    cancelled.request();
    let e = scene.vault.run(memory.clone(), &scene.options(), &cancelled).result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
    assert!(e.to_string().contains("% of backup b is stored"), "{e}");
    assert_eq!(scene.vault.keys(&objects, "leases"), leases);
    let done = scene.completes(&memory, &scene.options());
    let resumed = done.resumed.unwrap();
    assert_eq!(done.read_bytes + resumed.bytes, scene.content.len() as u64);
    assert!((1..100).contains(&resumed.percent), "{resumed:?}");
    assert!(scene.vault.keys(&objects, "leases").is_empty());
}

#[test]
fn what_does_not_change_the_result_may_differ() {
    let scene = Scene::new("other-ways", 16 * MIB);
    let memory = scene.killed(&scene.options());
    let other = BackupOptions {
        volume_changed: false,
        compression: CompressionChoice::Fixed(Compression::None),
        threads: Some(1),
        checkpoint_bytes: None,
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..scene.options()
    };
    assert!(scene.completes(&memory, &other).resumed.is_some());
}

#[test]
fn a_volume_that_has_grown_meanwhile_is_no_other() {
    let scene = Scene::new("grown-meanwhile", 16 * MIB);
    let options = BackupOptions { volume_changed: false, ..scene.options() };
    let memory = scene.killed(&options);
    let grown = scene.vault.path("grown.img");
    fs::write(&grown, [&scene.content[..], &vec![9; MIB]].concat()).unwrap();
    let next = BackupOptions { volume_changed: false, ..scene.vault.options(&grown, "c", None) };
    let run =
        |options: &BackupOptions| scene.vault.run(memory.clone(), options, &Cancel::new()).result;
    assert_eq!(run(&next).unwrap().warnings, [""; 0]);
    // what nobody has begun is of another disk
    let mut other = options.clone();
    other.backup_id = Some(BackupId::new("o").unwrap());
    other.snapshot.id = Some("o".to_owned());
    assert_eq!(run(&other).unwrap_err().kind(), ErrorKind::Usage);
    let done = run(&options).unwrap();
    assert!(done.resumed.is_some(), "{done:?}");
    let late = "backup c of ";
    assert!(done.warnings.iter().any(|w| w.contains(late) && w.contains("@latest")), "{done:?}");
    assert_eq!(scene.vault.restored(memory.clone(), "b").unwrap(), scene.content);
}

#[test]
fn what_is_asked_for_otherwise_is_done_anew() {
    let scene = Scene::new("other-plans", 16 * MIB);
    let killed = scene.killed(&scene.options());
    let list = scene.vault.path("list.json");
    let size = scene.content.len() as u64;
    fs::write(&list, extents_json(size, "allocated", &[0..4096, 4096..size]).to_string()).unwrap();
    let with_list = scene.vault.options(&scene.image, "b", Some(("b0", &list)));
    let snapshot = |id: &str| {
        let mut options = scene.options();
        options.snapshot.id = Some(id.to_owned());
        options
    };
    let plans = [
        ("a list", BackupOptions { base_snapshot: None, ..with_list }),
        ("no parent", BackupOptions { parent: ParentChoice::None, ..scene.options() }),
        ("another snapshot", snapshot("other")),
    ];
    for (what, options) in plans {
        let memory = Arc::new(killed.fork());
        let done = scene.completes(&memory, &options);
        assert!(done.resumed.is_none(), "{what}");
        assert!(done.warnings.iter().any(|w| w.contains("done again")), "{what}: {done:?}");
    }
    // another id is another backup, and none of its concern
    let options = BackupOptions { backup_id: Some(BackupId::new("c").unwrap()), ..scene.options() };
    let done = scene.completes(&Arc::new(killed.fork()), &options);
    assert!(done.resumed.is_none() && done.warnings.is_empty(), "{done:?}");
}

#[test]
fn another_size_or_another_content_is_done_anew() {
    let mut scene = Scene::new("other-bytes", 16 * MIB);
    let killed = scene.killed(&scene.options());
    let mut content = scene.content.clone();
    content[5000] ^= 1;
    for content in [content.clone(), content[..15 * MIB].to_vec(), [content, vec![9; 5]].concat()] {
        fs::write(&scene.image, &content).unwrap();
        scene.content = content;
        let done = scene.completes(&Arc::new(killed.fork()), &scene.options());
        assert!(done.resumed.is_none(), "{done:?}");
    }
}

#[test]
fn without_a_snapshot_only_what_was_not_written_to_is_gone_on_with() {
    let scene = Scene::new("no-snapshot", 16 * MIB);
    let mut options = scene.options();
    options.snapshot.id = None;
    let killed = scene.killed(&options);
    assert!(scene.completes(&Arc::new(killed.fork()), &options).resumed.is_some());
    let mut content = scene.content.clone();
    content[5000] ^= 1;
    fs::write(&scene.image, &content).unwrap();
    assert!(scene.completes(&Arc::new(killed.fork()), &options).resumed.is_none());
    // nor a backup that nobody can name again
    options.backup_id = None;
    let memory = scene.vault.fork();
    let death = Death { change: 0, done: false };
    let dying = DyingStore::below(memory.clone(), "backups", Some(death));
    scene.vault.run(dying, &options, &Cancel::new()).result.unwrap_err();
    assert!(scene.completes(&memory, &options).resumed.is_none());
}

#[test]
fn a_device_that_was_written_to_is_read_anew() {
    tests::require_root!();
    let scene = Scene::new("live-device", 16 * MIB);
    let device = LoopDevice::attach(&scene.image);
    let mut options = scene.options();
    options.source = device.path().to_owned();
    options.snapshot.id = None;
    let killed = scene.killed(&options);
    assert!(scene.completes(&Arc::new(killed.fork()), &options).resumed.is_some());
    // through the device, as whoever has mounted it would
    let patch = scene.vault.path("patch");
    fs::write(&patch, [5; 4096]).unwrap();
    let (from, to) = (format!("if={}", patch.display()), format!("of={}", device.path().display()));
    tests::run_ok("dd", [&from, &to, "bs=4096", "seek=1", "conv=notrunc,fsync", "status=none"]);
    assert!(scene.completes(&Arc::new(killed.fork()), &options).resumed.is_none());
    // a snapshot does not change: whoever names one is believed
    let named = BackupOptions { source: device.path().to_owned(), ..scene.options() };
    let killed = scene.killed(&named);
    assert!(scene.completes(&killed, &named).resumed.is_some());
}

#[test]
fn a_snapshot_is_found_again_without_a_backup_id() {
    let scene = Scene::new("any-id", 16 * MIB);
    let options = BackupOptions { backup_id: None, ..scene.options() };
    let killed = scene.killed(&options);
    let done = scene.completes(&Arc::new(killed.fork()), &options);
    assert!(done.resumed.is_some());
    let again = scene.completes(&Arc::new(killed.fork()), &scene.options().clone());
    assert_eq!(again.outcome, BackupOutcome::Committed, "another id is another backup");
}

#[test]
fn what_was_stored_before_the_kill_is_not_stored_again() {
    let vault = vault("dedup", 32 << 20);
    let half = Rng::new(5).bytes(24 * MIB);
    let content = [&half[..], &half[..]].concat();
    let image = vault.path("v.img");
    fs::write(&image, &content).unwrap();
    let options = vault.options(&image, "b", None);
    let whole = vault.run(vault.fork(), &options, &Cancel::new()).result.unwrap();
    assert_eq!(whole.new_bytes, half.len() as u64);
    // the copies are read by a process that did not store what they are copies of
    let memory = vault.fork();
    let death = Death { change: 0, done: false };
    let dying = DyingStore::below(memory.clone(), "backups", Some(death));
    vault.run(dying, &options, &Cancel::new()).result.unwrap_err();
    let done = vault.run(memory.clone(), &options, &Cancel::new()).result.unwrap();
    println!("went on at {:?}; new {} reused {}", done.resumed, done.new_bytes, done.reused_bytes);
    assert!(done.resumed.is_some());
    assert_eq!(done.new_bytes, 0, "a segment named what was stored");
    assert_eq!(vault.restored(memory, "b").unwrap(), content);
}

#[test]
fn two_at_once_make_one_backup_and_both_end_well() {
    let scene = Scene::new("two-at-once", 16 * MIB);
    let killed = scene.killed(&scene.options());
    // from nothing, and both going on with what a third one left
    for start in [scene.vault.fork(), killed] {
        for _ in 0..8 {
            let memory = Arc::new(start.fork());
            let run = || scene.vault.run(memory.clone(), &scene.options(), &Cancel::new()).result;
            let (one, other) = std::thread::scope(|s| {
                let one = s.spawn(run);
                let other = s.spawn(run);
                (one.join().unwrap().unwrap(), other.join().unwrap().unwrap())
            });
            let outcomes = [one.outcome, other.outcome];
            assert!(outcomes.contains(&BackupOutcome::Committed), "{outcomes:?}");
            assert_eq!(scene.vault.restored(memory.clone(), "b").unwrap(), scene.content);
            let objects: Arc<dyn ObjectStore> = memory;
            assert_eq!(scene.vault.keys(&objects, "backups").len(), 1);
            assert!(scene.vault.keys(&objects, "leases").is_empty());
        }
    }
}
