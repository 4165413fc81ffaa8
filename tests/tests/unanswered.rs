//! Stops that are asked for while a store leaves a request without an answer: the run ends all the
//! same, whatever it waits for.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use async_trait::async_trait;
use chunkstore::names::parse_pack_key;
use chunkstore::testkit::{Answer, Hook, HookedStore, Request};
use chunkstore::{Compression, DamagedSet, Encryption, ErrorKind, Result};
use mover::copy::{CopyOptions, copy};
use mover::run::quota::Quota;
use mover::run::{Cancel, MemoryBudget, Progress};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests::{Death, DyingStore, Rng, Vault, VaultParams};

const LISTING: &str = "list repo/dedup";
const TAKEN: &str = "create repo/leases/";
const LEASE: &str = "put repo/leases/";
const CHECKPOINT_BYTES: u64 = 256 << 10;
/// The lease is made; each checkpoint writes it again. Killed at the second one.
const HALF_WAY: Death = Death { change: 2, done: true };
/// How many checkpoints a run makes depends on how its threads are scheduled.
const TRIES: usize = 50;
/// A run that waits so long for an answer would wait for ever.
const GUARD: Duration = Duration::from_secs(20);

/// Asks for a stop when a chosen request comes, and leaves that request without an answer.
struct SilentStore {
    /// The beginning of the request's name, and how many such requests are answered before.
    at: (&'static str, usize),
    cancel: Arc<Cancel>,
    log: Mutex<Vec<String>>,
    /// Somebody has waited to the end.
    waited: AtomicBool,
}

impl SilentStore {
    fn new(
        objects: &InMemory,
        at: (&'static str, usize),
        cancel: &Arc<Cancel>,
    ) -> Arc<HookedStore<Self>> {
        let (log, waited) = (Mutex::default(), AtomicBool::new(false));
        let cancel = Arc::clone(cancel);
        HookedStore::new(Arc::new(objects.fork()), Self { at, cancel, log, waited })
    }
}

#[async_trait]
impl Hook for SilentStore {
    async fn request(&self, request: Request) -> object_store::Result<Answer> {
        let (name, (start, answered)) = (request.name(), self.at);
        let before = {
            let mut log = self.log.lock().unwrap();
            let before = log.iter().filter(|other| other.starts_with(start)).count();
            log.push(name.clone());
            before
        };
        if name.starts_with(start) && before == answered {
            self.cancel.request();
            let _ = tokio::time::timeout(GUARD, std::future::pending::<()>()).await;
            self.waited.store(true, Ordering::SeqCst);
        }
        request.pass().await
    }
}

type Run<'a> = &'a dyn Fn(Arc<dyn ObjectStore>, &Arc<Cancel>) -> Result<()>;

#[track_caller]
fn ends(run: Run<'_>, objects: &InMemory, at: (&'static str, usize)) {
    let cancel = Cancel::new();
    let silent = SilentStore::new(objects, at, &cancel);
    let ended = run(silent.clone(), &cancel);
    let log = silent.log.lock().unwrap().join("\n");
    assert!(cancel.cancelled(), "{at:?} was not asked:\n{log}");
    assert!(!silent.waited.load(Ordering::SeqCst), "the run waited for the answer to {at:?}");
    let e = ended.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled, "{at:?}: {e}");
}

/// How often a run writes its lease before it lists the segments.
fn writes_of_lease(run: Run<'_>, objects: &InMemory) -> usize {
    let cancel = Cancel::new();
    let answering = SilentStore::new(objects, ("none", 0), &cancel);
    run(answering.clone(), &cancel).unwrap();
    let log = answering.log.lock().unwrap();
    let before = log.iter().take_while(|name| *name != LISTING);
    before.filter(|name| name.starts_with(LEASE)).count()
}

/// Every request that the commit loop waits for before it moves data, from nothing and where it
/// goes on from a checkpoint.
fn heeds_a_stop(vault: &Vault, run: Run<'_>) {
    let start = vault.memory();
    // its own lease: a stop leaves it a moment
    ends(run, &start, (TAKEN, 0));
    ends(run, &start, (LISTING, 0));
    let killed = (0..TRIES).find_map(|_| {
        let memory = vault.fork();
        let dying = DyingStore::below(memory.clone(), "leases", Some(HALF_WAY));
        run(dying, &Cancel::new()).is_err().then_some(memory)
    });
    let killed = killed.expect("a run makes two checkpoints");
    ends(run, &killed, (LISTING, 0));
    // a checkpoint that rests on damaged packs is taken out of its lease first
    let damaged = Arc::new(killed.fork());
    let repo = vault.open(damaged.clone()).unwrap();
    vault.block_on(async {
        let mut packs = DamagedSet::default();
        for object in repo.store().list("packs").await.unwrap() {
            packs.insert(parse_pack_key(&object.key).unwrap(), None);
        }
        repo.put_damage(&packs).await.unwrap();
    });
    let (of_killed, of_damaged) = (writes_of_lease(run, &killed), writes_of_lease(run, &damaged));
    assert_eq!(of_damaged, of_killed + 1, "the checkpoint is taken out");
    ends(run, &damaged, (LEASE, of_killed));
}

fn vault(name: &str, chunk_bytes: u32) -> Vault {
    let encryption = Encryption::Aes256Gcm;
    let params = VaultParams { chunk_bytes, entry_chunks: 16, page_fanout: 16, encryption };
    Vault::new(name, params).with_checkpoints(CHECKPOINT_BYTES)
}

#[test]
fn a_backup_ends_on_request_while_its_store_does_not_answer() {
    let vault = vault("silent-backup", 4096);
    let image = vault.path("v.img");
    fs::write(&image, Rng::new(61).bytes(8 << 20)).unwrap();
    let options = vault.options(&image, "b", None);
    heeds_a_stop(&vault, &|objects, cancel| vault.run(objects, &options, cancel).result.map(drop));
}

#[test]
fn a_copy_ends_on_request_while_its_target_does_not_answer() {
    let (source, target) = (vault("silent-from", 4096), vault("silent-to", 8192));
    let image = source.path("v.img");
    fs::write(&image, Rng::new(62).bytes(8 << 20)).unwrap();
    source.backup(source.memory(), &image, "b", None).unwrap();
    let from = source.open(source.memory()).unwrap();
    let original = source.block_on(from.find_backup("v@b")).unwrap();
    let rt = source.block_on(async { tokio::runtime::Handle::current() });
    let options = CopyOptions {
        compression: Compression::Zstd(1).into(),
        memory: MemoryBudget { total_bytes: 256 << 20 },
        scratch: None,
        threads: Some(2),
        checkpoint_bytes: Some(CHECKPOINT_BYTES),
        quota: Quota::default(),
        source_lease: true,
        tool: "test".into(),
        host: "test".into(),
    };
    heeds_a_stop(&target, &|objects, cancel| {
        let to = target.open(objects)?;
        let ends = (&from, &to);
        copy(&rt, ends, &original, None, &options, &Progress::new(), cancel).map(drop)
    });
}
