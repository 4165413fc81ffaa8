//! Copies between repositories that agree in nothing: killed at every change of either store, gone
//! on with, beside collections.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{Compression, Encryption, Error, ErrorKind, Manifest, Repository, Result};
use mover_engine::ops::copy::{
    CopyOptions, CopyOutcome, CopySummary, Standing, base_of, copy, standing,
};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::fs;
use std::sync::Arc;
use tests::{BesideStore, Clocked, Death, DyingStore, Rng, Vault, VaultParams};

const MEMORY: MemoryBudget = MemoryBudget { total_bytes: 256 << 20 };

fn params(
    chunk_bytes: u32,
    entry_chunks: u16,
    page_fanout: u16,
    encryption: Encryption,
) -> VaultParams {
    VaultParams { chunk_bytes, entry_chunks, page_fanout, encryption }
}

fn options(checkpoint_bytes: Option<u64>) -> CopyOptions {
    CopyOptions {
        compression: Compression::Zstd(1).into(),
        memory: MEMORY,
        scratch: None,
        threads: Some(2),
        checkpoint_bytes,
        quota: Quota::default(),
        source_lease: true,
        tool: "test".into(),
        host: "test".into(),
    }
}

fn all(world: &Vault, repo: &Repository) -> Vec<chunkstore::BackupEntry> {
    let (backups, problems) = world.block_on(repo.list_backups(None)).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    backups
}

/// Copies backup `id` as the command does: on top of what is in both.
fn copy_one(
    (source, from): (&Vault, Arc<dyn ObjectStore>),
    (target, to): (&Vault, Arc<dyn ObjectStore>),
    id: &str,
    options: &CopyOptions,
) -> Result<CopySummary> {
    let (from, to) = (source.open(from)?, target.open(to)?);
    let (backups, there) = (all(source, &from), all(target, &to));
    let there: Vec<Manifest> = there.into_iter().map(|b| b.manifest).collect();
    let wanted = backups.iter().find(|b| b.manifest.backup_id.as_str() == id);
    let gone = || Error::new(ErrorKind::NotFound, "find the original", "it is not listed");
    let wanted = wanted.ok_or_else(gone)?;
    let base = base_of(*from.id(), &backups, *to.id(), &there, &wanted.manifest);
    let rt = source.block_on(async { tokio::runtime::Handle::current() });
    let (progress, cancel) = (Progress::new(), Cancel::new());
    copy(&rt, (&from, &to), &wanted.manifest, base, options, &progress, &cancel)
}

/// With volumes of any sizes.
fn vault(name: &str, params: VaultParams) -> Vault {
    Vault::new(name, params).with_a_volume_that_changes()
}

fn fork(memory: &InMemory) -> Arc<InMemory> {
    Arc::new(memory.fork())
}

/// Three states of a volume that shrinks and grows, has zeros, and repeats itself; and what each
/// holds.
fn three_states(world: &Vault, rng: &mut Rng) -> Vec<(&'static str, Vec<u8>)> {
    let image = world.path("v.img");
    let mut content = rng.bytes(1_500_000);
    content[200_000..500_000].fill(0);
    let again = content[600_000..700_000].to_vec();
    content[900_000..1_000_000].copy_from_slice(&again);
    let mut states = Vec::new();
    for id in ["one", "two", "three"] {
        match id {
            "two" => {
                let patch = rng.bytes(120_000);
                content[440_000..560_000].copy_from_slice(&patch);
                content[1_000_000..1_100_000].fill(0);
                content.extend(rng.bytes(77_777));
            }
            "three" => {
                content.truncate(1_300_001);
                let patch = rng.bytes(5000);
                content[10_000..15_000].copy_from_slice(&patch);
            }
            _ => {}
        }
        fs::write(&image, &content).unwrap();
        world.backup(world.memory(), &image, id, None).unwrap();
        states.push((id, content.clone()));
    }
    states
}

#[test]
fn copies_between_repositories_that_agree_in_nothing_restore_bit_for_bit() {
    let mut rng = Rng::new(41);
    let (aes, none) = (Encryption::Aes256Gcm, Encryption::None);
    let shapes = [
        (params(4096, 16, 16, aes), params(4096, 16, 16, aes)),
        (params(4096, 64, 16, aes), params(65536, 16, 128, none)),
        (params(65536, 16, 128, none), params(4096, 1, 16, aes)),
        (params(1 << 20, 4, 16, aes), params(16384, 16, 32, aes)),
        (params(8192, 4, 16, none), params(2 << 20, 1, 16, none)),
    ];
    for (from, to) in shapes {
        let (source, target) = (vault("copy-from", from), vault("copy-to", to));
        let states = three_states(&source, &mut rng);
        for (i, (id, content)) in states.iter().enumerate() {
            let ends = ((&source, source.memory() as _), (&target, target.memory() as _));
            let done = copy_one(ends.0, ends.1, id, &options(None)).unwrap();
            assert_eq!(done.outcome, CopyOutcome::Copied);
            let parent = i.checked_sub(1).map(|i| states[i].0);
            assert_eq!(done.base.as_deref(), parent, "{from:?} {to:?}");
            let size = content.len() as u64;
            let coarse = from.chunk_bytes.max(to.chunk_bytes) >= 1 << 20;
            assert!(i == 0 || done.read_bytes < size || coarse, "{done:?}");
            assert_eq!(target.restored(target.memory(), id).unwrap(), *content, "{from:?} {to:?}");
        }
        println!("{from:?} to {to:?}: 3 backups");
        what_the_copies_say(&source, &target);
    }
}

/// The manifests of copies are those of the originals, and they say where they are from.
fn what_the_copies_say(source: &Vault, target: &Vault) {
    let from = source.open(source.memory()).unwrap();
    let to = target.open(target.memory()).unwrap();
    let there = all(target, &to);
    assert_eq!(there.len(), 3);
    for original in all(source, &from).iter().map(|b| &b.manifest) {
        let Standing::There(copy) =
            standing(*from.id(), original, *to.id(), there.iter().map(|b| &b.manifest))
        else {
            panic!("{} is not there", original.name());
        };
        let copied_from = copy.copied_from.clone().unwrap();
        assert_eq!(copied_from.repository_id, *from.id());
        let same = Manifest {
            map: original.map,
            parent: original.parent.clone(),
            copied_from: None,
            attachments: Vec::new(),
            ..copy.clone()
        };
        assert_eq!(same, *original);
        assert_eq!(copy.parent, original.parent);
    }
}

#[test]
fn what_is_there_is_not_stored_again_and_another_backup_is_never_replaced() {
    let mut rng = Rng::new(42);
    let aes = Encryption::Aes256Gcm;
    let source = vault("copy-dedup-from", params(4096, 16, 16, aes));
    let target = vault("copy-dedup-to", params(8192, 8, 16, aes));
    let states = three_states(&source, &mut rng);
    // the target knows the content from elsewhere
    let image = target.path("own.img");
    fs::write(&image, &states[0].1).unwrap();
    target.backup(target.memory(), &image, "own", None).unwrap();
    let from = || (&source, source.memory() as Arc<dyn ObjectStore>);
    let to = || (&target, target.memory() as Arc<dyn ObjectStore>);
    let first = copy_one(from(), to(), "one", &options(None)).unwrap();
    assert_eq!((first.new_bytes, first.base), (0, None));
    assert_eq!(target.restored(target.memory(), "one").unwrap(), states[0].1);
    // twice: nothing more
    let packs = target.keys(&to().1, "packs").len();
    let again = copy_one(from(), to(), "one", &options(None)).unwrap();
    assert_eq!((again.outcome, again.stored_bytes), (CopyOutcome::AlreadyThere, 0));
    assert_eq!(target.keys(&to().1, "packs").len(), packs);
    assert_eq!(target.keys(&to().1, "leases"), [""; 0]);
    assert_eq!(source.keys(&from().1, "leases"), [""; 0]);
    // a backup of that name which is no copy stays as it is
    target.backup(target.memory(), &image, "two", None).unwrap();
    let e = copy_one(from(), to(), "two", &options(None)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    assert_eq!(target.restored(target.memory(), "two").unwrap(), states[0].1);
    // what was forgotten there stays forgotten, and is no base
    target.forget(target.memory(), "one").unwrap();
    let e = copy_one(from(), to(), "one", &options(None)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
    let third = copy_one(from(), to(), "three", &options(None)).unwrap();
    assert_eq!(third.base, None);
    assert_eq!(target.restored(target.memory(), "three").unwrap(), states[2].1);
}

/// Every death of a copy, of the store that `dies` says; how many of those that were run again went
/// on from a checkpoint.
fn die_everywhere(
    worlds: (&Vault, &Vault),
    dies: usize,
    id: &str,
    states: &[(&str, Vec<u8>)],
) -> u64 {
    let (source, target) = worlds;
    let start = [source.fork(), target.fork()];
    let content = &states.iter().find(|(i, _)| *i == id).unwrap().1;
    let often = options(Some(256 << 10));
    let run = |memory: &[Arc<InMemory>; 2], death: Option<Death>| {
        let mut stores = [memory[0].clone() as Arc<dyn ObjectStore>, memory[1].clone()];
        let dying = DyingStore::new(stores[dies].clone(), death);
        stores[dies] = dying.clone();
        let [from, to] = stores;
        (copy_one((source, from), (target, to), id, &often), dying)
    };
    let forks = || [fork(&start[0]), fork(&start[1])];
    let (done, counting) = run(&forks(), None);
    done.unwrap();
    let changes = counting.changes();
    assert!(changes >= [2, 4][dies], "leases of readers; lease, packs, manifest: {changes}");
    let mut resumed = 0;
    for change in 0..changes {
        for done in [false, true] {
            let memory = forks();
            let death = Death { change, done };
            let (result, dying) = run(&memory, Some(death));
            // the order of concurrent uploads may differ a little, so not every number need come up
            assert!(dying.dead() || result.is_ok(), "{death:?}: {result:?}");
            let [from, to] = &memory;
            for (old, want) in states {
                assert_eq!(source.restored(from.clone(), old).unwrap(), *want, "{death:?}");
                if let Ok(bytes) = target.restored(to.clone(), old) {
                    assert_eq!(bytes, *want, "{death:?}: {old}");
                }
            }
            let again = run(&memory, None).0.unwrap();
            resumed += u64::from(again.resumed.is_some());
            assert_eq!(target.restored(to.clone(), id).unwrap(), *content, "{death:?}: again");
            nothing_is_left(target, to, (id, content), &format!("{death:?}"));
        }
    }
    let store = ["source", "target"][dies];
    println!("{id}, {store}: killed before and after each of {changes} changes, {resumed} resumed");
    resumed
}

/// When the leases of the dead have run out, two collections take away all that no backup refers
/// to, and nothing else.
fn nothing_is_left(target: &Vault, memory: &Arc<InMemory>, copy: (&str, &[u8]), when: &str) {
    let clocked = Clocked::over(memory.fork());
    clocked.advance(3600);
    for _ in 0..2 {
        target.collect(clocked.clone(), false).unwrap();
        clocked.advance(3600);
    }
    let third = target.collect(clocked.clone(), false).unwrap();
    assert_eq!((third.condemned_packs, third.waiting.len()), (0, 0), "{when}: {third:?}");
    let objects: Arc<dyn ObjectStore> = clocked.clone();
    assert_eq!(target.keys(&objects, "leases"), [""; 0], "{when}");
    assert_eq!(target.restored(clocked, copy.0).unwrap(), copy.1, "{when}: collected");
}

#[test]
fn a_store_that_begins_to_ignore_create_once_is_noticed_by_backups_and_copies() {
    let aes = Encryption::Aes256Gcm;
    let source = Vault::new("promise-from", params(4096, 16, 16, aes));
    let target = Vault::new("promise-to", params(8192, 16, 16, aes));
    let image = target.path("own.img");
    fs::write(&image, Rng::new(45).bytes(100_000)).unwrap();
    source.backup(source.memory(), &image, "one", None).unwrap();
    let objects = Clocked::over(target.memory().fork());
    for (broken, ids) in [(false, ["before", "one"]), (true, ["later", "two"])] {
        if broken {
            objects.ignore_create_once();
            source.backup(source.memory(), &image, "two", None).unwrap();
        }
        let backup = target.backup(objects.clone(), &image, ids[0], None).unwrap();
        let copy = copy_one(
            (&source, source.memory()),
            (&target, objects.clone()),
            ids[1],
            &options(None),
        );
        let copy = copy.unwrap();
        for warnings in [backup.warnings, copy.warnings] {
            let said = "writes over objects that it was asked to create only if absent";
            let times = warnings.iter().filter(|warning| warning.contains(said)).count();
            assert_eq!(times, usize::from(broken), "{warnings:?}");
        }
    }
    // a collection says the same; what was made is good
    let refused = target.collect(objects.clone(), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    for id in ["before", "one", "later", "two"] {
        assert_eq!(target.restored(objects.clone(), id).unwrap(), fs::read(&image).unwrap());
    }
}

#[test]
fn a_copy_killed_at_any_change_of_either_store_harms_nothing_and_can_be_run_again() {
    let mut rng = Rng::new(43);
    let aes = Encryption::Aes256Gcm;
    let source = vault("copy-crash-from", params(4096, 16, 16, aes));
    let target = vault("copy-crash-to", params(8192, 16, 16, aes));
    let states = three_states(&source, &mut rng);
    let mut resumed = 0;
    for dies in [0, 1] {
        resumed += die_everywhere((&source, &target), dies, "one", &states);
    }
    let ends = ((&source, source.memory() as _), (&target, target.memory() as _));
    copy_one(ends.0, ends.1, "one", &options(None)).unwrap();
    for dies in [0, 1] {
        resumed += die_everywhere((&source, &target), dies, "two", &states);
    }
    // of an increment all may be stored before its first checkpoint is
    assert!(resumed > 0, "none of them went on from a checkpoint");
}

#[test]
fn a_collection_of_either_repository_between_any_two_requests_of_a_copy_is_safe() {
    let mut rng = Rng::new(44);
    let aes = Encryption::Aes256Gcm;
    let source = Arc::new(vault("copy-gc-from", params(4096, 16, 16, aes)));
    let target = Arc::new(vault("copy-gc-to", params(8192, 16, 16, aes)));
    let states = three_states(&source, &mut rng);
    // the base is there; and the content of the copy too, in a backup that goes meanwhile
    let ends = ((&*source, source.memory() as _), (&*target, target.memory() as _));
    copy_one(ends.0, ends.1, "one", &options(None)).unwrap();
    let image = target.path("own.img");
    fs::write(&image, &states[1].1).unwrap();
    target.backup(target.memory(), &image, "own", None).unwrap();
    let start = [source.fork(), target.fork()];
    // which end is collected, and what is forgotten there: the original itself, its base, the
    // base's copy, the same content
    for (end, gone) in [(0, "two"), (0, "one"), (1, "one"), (1, "own")] {
        let mut at = 0;
        let (mut copied, mut refused) = (0, 0);
        loop {
            let memory = [fork(&start[0]), fork(&start[1])];
            let (world, objects) = ([&source, &target][end].clone(), memory[end].clone());
            let meanwhile = move || {
                world.forget(objects.clone(), gone).unwrap();
                world.collect(objects.clone(), false).unwrap();
                world.collect(objects.clone(), false).unwrap();
            };
            let mut stores = [memory[0].clone() as Arc<dyn ObjectStore>, memory[1].clone()];
            let beside = BesideStore::new(stores[end].clone(), at, meanwhile);
            stores[end] = beside.clone();
            let [from, to] = stores;
            // looking both ends up is part of the run here: what is gone by then is not copied
            let result = copy_one((&source, from), (&target, to), "two", &options(None));
            if let Err(e) = &result {
                assert_eq!((end, gone), (0, "two"), "{at}: {e}");
                assert!(matches!(e.kind(), ErrorKind::Forgotten | ErrorKind::NotFound), "{e}");
            }
            let whole = result.is_ok();
            if whole {
                copied += 1;
                assert_eq!(target.restored(memory[1].clone(), "two").unwrap(), states[1].1);
                let when = format!("{end} {gone} {at}");
                nothing_is_left(&target, &memory[1], ("two", &states[1].1), &when);
            } else {
                refused += 1;
            }
            if beside.requests() <= at {
                break;
            }
            at += 1;
        }
        println!("end {end}, {gone} goes: {copied} copied, {refused} refused, of {at} moments");
        assert!(copied > 0);
    }
}

#[test]
fn a_damaged_original_is_an_error_that_names_the_place() {
    let mut rng = Rng::new(45);
    let aes = Encryption::Aes256Gcm;
    let source = vault("copy-damage-from", params(4096, 16, 16, aes));
    let target = vault("copy-damage-to", params(8192, 16, 16, aes));
    three_states(&source, &mut rng);
    let objects: Arc<dyn ObjectStore> = source.memory();
    let mut found = 0;
    for key in source.keys(&objects, "packs") {
        let memory = source.fork();
        let path = object_store::path::Path::from(key.as_str());
        let bytes = source.block_on(async {
            use object_store::ObjectStoreExt;
            memory.get(&path).await.unwrap().bytes().await.unwrap()
        });
        let mut damaged = bytes.to_vec();
        damaged[100] ^= 1;
        source.block_on(async {
            use object_store::ObjectStoreExt;
            memory.put(&path, damaged.into()).await.unwrap();
        });
        let to = target.fork();
        match copy_one((&source, memory), (&target, to.clone()), "one", &options(None)) {
            Ok(_) => {}
            Err(e) => {
                found += 1;
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
                assert!(e.to_string().contains("pack"), "{e}");
                assert!(target.restored(to, "one").is_err());
            }
        }
    }
    assert!(found > 0, "no pack of the backup was damaged");
}
