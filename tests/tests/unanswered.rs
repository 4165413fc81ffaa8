//! Stops that are asked for while a store leaves a request without an answer: the run ends all the
//! same, whatever it waits for.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use async_trait::async_trait;
use chunkstore::format::names::parse_pack_key;
use chunkstore::testkit::{Answer, Hook, HookedStore, Request};
use chunkstore::{
    Compression, Encryption, ErrorKind, LeaseOptions, Result, repository::DamagedSet,
};
use mover_engine::ops::backup::AuditAmount;
use mover_engine::ops::check::{CheckOptions, ReadData, check};
use mover_engine::ops::copy::{CopyOptions, copy};
use mover_engine::ops::diff::diff;
use mover_engine::ops::restore::{RestoreOptions, RestoreTarget, restore};
use mover_engine::run::quota::{Bound, Quota};
use mover_engine::run::{Cancel, MemoryBudget, Progress, StopReason};
use mover_engine::volume::device::DirectIo;
use mover_engine::volume::io::EngineChoice;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tests::{Death, DyingStore, Rng, Vault, VaultParams};

const LISTING: &str = "list repo/dedup";
const TAKEN: &str = "create repo/leases/";
/// The last requests of whoever opens a repository, in any order.
const OPENED: [&str; 2] = ["get repo/keys", "list repo/features"];
/// The first request of a commit looks at the own lease.
const COMMIT: &str = "head repo/leases/";
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
    at: (String, usize),
    cancel: Arc<Cancel>,
    log: Mutex<Vec<String>>,
    /// Somebody has waited to the end.
    waited: AtomicBool,
}

impl SilentStore {
    fn new(objects: &InMemory, at: (&str, usize), cancel: &Arc<Cancel>) -> Arc<HookedStore<Self>> {
        let (log, waited) = (Mutex::default(), AtomicBool::new(false));
        let (at, cancel) = ((at.0.to_owned(), at.1), Arc::clone(cancel));
        HookedStore::new(Arc::new(objects.fork()), Self { at, cancel, log, waited })
    }
}

#[async_trait]
impl Hook for SilentStore {
    async fn request(&self, request: Request) -> object_store::Result<Answer> {
        let (name, (start, answered)) = (request.name(), &self.at);
        let before = {
            let mut log = self.log.lock().unwrap();
            let before = log.iter().filter(|other| other.starts_with(start.as_str())).count();
            log.push(name.clone());
            before
        };
        if name.starts_with(start.as_str()) && before == *answered {
            self.cancel.request();
            let _ = tokio::time::timeout(GUARD, std::future::pending::<()>()).await;
            self.waited.store(true, Ordering::SeqCst);
        }
        request.pass().await
    }
}

/// Reaches a deadline when the lease is made, and answers everything.
struct LateStore(Arc<Cancel>);

#[async_trait]
impl Hook for LateStore {
    async fn request(&self, request: Request) -> object_store::Result<Answer> {
        if request.name().starts_with(TAKEN) {
            self.0.request_for(StopReason::Bound(Bound::Deadline));
        }
        request.pass().await
    }
}

type Run<'a> = &'a (dyn Fn(Arc<dyn ObjectStore>, &Arc<Cancel>) -> Result<()> + Sync);

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

/// The kind of a request: what it does, and below which prefix.
fn kind(name: &str) -> String {
    name.split('/').take(2).collect::<Vec<_>>().join("/")
}

/// Every kind of request that a run makes, its first and its last, is left without an answer. A
/// commit is not given up.
fn heeds_a_stop_everywhere(objects: &InMemory, run: Run<'_>) {
    let cancel = Cancel::new();
    let answering = SilentStore::new(objects, ("none", 0), &cancel);
    run(answering.clone(), &cancel).unwrap();
    let log = answering.log.lock().unwrap();
    let committed = log.iter().position(|name| name.starts_with(COMMIT)).unwrap_or(log.len());
    // the test opens the repository, and so does the program, with a wait of its own
    let first = |of: &str| log.iter().position(|name| name.starts_with(of)).expect("it is opened");
    let opened = OPENED.map(first).into_iter().max().expect("two") + 1;
    let mut cases = BTreeSet::new();
    for name in &log[opened..committed] {
        let kind = kind(name);
        let of_kind = |log: &[String]| log.iter().filter(|name| name.starts_with(&kind)).count();
        let cases_of_kind = [of_kind(&log[..opened]), of_kind(&log[..committed]) - 1];
        cases.extend(cases_of_kind.map(|before| (kind.clone(), before)));
    }
    assert!(cases.len() > 2, "{log:?}");
    thread::scope(|threads| {
        for (kind, before) in cases {
            threads.spawn(move || {
                let cancel = Cancel::new();
                let silent = SilentStore::new(objects, (&kind, before), &cancel);
                let ended = run(silent.clone(), &cancel);
                let at = format!("{kind}, {before} before it");
                assert!(!silent.waited.load(Ordering::SeqCst), "the run waited: {at}");
                // the last one of a kind may not come in another run
                let kind = ended.map_or_else(|e| e.kind(), |()| ErrorKind::Cancelled);
                assert_eq!(kind, ErrorKind::Cancelled, "{at}");
            });
        }
    });
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

/// Whoever runs such a command again and again is told that it leads nowhere, and that what an
/// earlier run has left is still there.
#[test]
fn a_deadline_before_anything_moves_says_that_nothing_more_was_stored() {
    let vault = vault("late", 4096);
    let image = vault.path("v.img");
    fs::write(&image, Rng::new(64).bytes(8 << 20)).unwrap();
    let options = vault.options(&image, "b", None);
    let killed = (0..TRIES).find_map(|_| {
        let memory = vault.fork();
        let dying = DyingStore::below(memory.clone(), "leases", Some(HALF_WAY));
        let run = vault.run(dying, &options, &Cancel::new());
        run.result.is_err().then_some(memory)
    });
    let killed = killed.expect("a run makes two checkpoints");
    let cancel = Cancel::new();
    let late = HookedStore::new(killed.clone(), LateStore(Arc::clone(&cancel)));
    let e = vault.run(late, &options, &cancel).result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Limit, "{e}");
    assert!(e.to_string().contains("this run stored nothing more: "), "{e}");
    assert!(!e.to_string().contains("run the same command again to go on"), "{e}");
    let resumed = vault.run(killed, &options, &Cancel::new());
    assert!(resumed.result.unwrap().resumed.is_some_and(|from| from.percent > 0));
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

/// A volume, a change to it and its list: `b1` is stored.
fn with_a_list(name: &str) -> (Vault, PathBuf, PathBuf) {
    let vault = vault(name, 4096);
    let (image, list) = (vault.path("v.img"), vault.path("changed.json"));
    let mut content = Rng::new(63).bytes(4 << 20);
    fs::write(&image, &content).unwrap();
    vault.backup(vault.memory(), &image, "b1", None).unwrap();
    content[1 << 20..(1 << 20) + 8192].fill(9);
    fs::write(&image, &content).unwrap();
    fs::write(&list, r#"[{"offset": 1048576, "length": 8192}]"#).unwrap();
    (vault, image, list)
}

#[test]
fn a_backup_by_a_list_ends_wherever_its_store_does_not_answer() {
    let (vault, image, list) = with_a_list("silent-list");
    let mut options = vault.options(&image, "b2", Some(("b1", &list)));
    options.audit = AuditAmount::ALL;
    heeds_a_stop_everywhere(&vault.memory(), &|objects, cancel| {
        vault.run(objects, &options, cancel).result.map(drop)
    });
}

#[test]
fn readers_end_wherever_their_store_does_not_answer() {
    let (vault, image, list) = with_a_list("silent-readers");
    vault.backup(vault.memory(), &image, "b2", Some(("b1", &list))).unwrap();
    let rt = vault.block_on(async { tokio::runtime::Handle::current() });
    let lease = || Some(LeaseOptions { lease_seconds: 600, tool: "t".into(), host: "h".into() });
    let number = AtomicUsize::new(0);
    heeds_a_stop_everywhere(&vault.memory(), &|objects, cancel| {
        let repo = vault.open(objects)?;
        let target = vault.path(&format!("out{}", number.fetch_add(1, Ordering::Relaxed)));
        let options = RestoreOptions {
            backup: "v@b2".into(),
            target: RestoreTarget::Path(target),
            force: false,
            differential: false,
            verify: true,
            skip_damaged: false,
            range: None,
            lease: lease(),
            memory: MemoryBudget { total_bytes: 128 << 20 },
            engine: EngineChoice::Blocking,
            direct: DirectIo::Never,
            threads: Some(2),
            source_paths_to_refuse: Vec::new(),
            journal_to_remove: None,
        };
        restore(&rt, &repo, options, &Progress::new(), cancel).map(drop)
    });
    heeds_a_stop_everywhere(&vault.memory(), &|objects, cancel| {
        let repo = vault.open(objects)?;
        diff(&rt, &repo, ("v@b1", "v@b2"), cancel).map(drop)
    });
    heeds_a_stop_everywhere(&vault.memory(), &|objects, cancel| {
        let repo = vault.open(objects)?;
        let options = CheckOptions {
            read_data: ReadData::All,
            repair: false,
            lease: lease(),
            memory: MemoryBudget { total_bytes: 128 << 20 },
            threads: Some(2),
        };
        check(&rt, &repo, &options, &Progress::new(), cancel).map(drop)
    });
}
