//! What a check says when answers are bad, and not what is stored; what it leaves alone; and that a
//! report is never lost.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{Encryption, ErrorKind};
use mover_engine::ops::check::ReadData;
use object_store::ObjectStore;
use std::fs;
use std::sync::Arc;
use tests::{FailingStore, Failure, Mover, Rng, Vault, VaultParams};

const CHUNK: usize = 4096;

/// Two backups that share most of their chunks.
fn world(name: &str) -> Vault {
    let encryption = Encryption::Aes256Gcm;
    let params = VaultParams { chunk_bytes: 4096, entry_chunks: 4, page_fanout: 16, encryption };
    let vault = Vault::new(name, params);
    let image = vault.path("v.img");
    let mut content = Rng::new(61).bytes(300 * CHUNK);
    for id in ["one", "two"] {
        fs::write(&image, &content).unwrap();
        vault.backup(vault.memory(), &image, id, None).unwrap();
        content[100 * CHUNK] ^= 1;
    }
    vault
}

fn keys_of(vault: &Vault, store: &Arc<dyn ObjectStore>, prefix: &str) -> Vec<String> {
    let keys = vault.keys(store, prefix).into_iter();
    keys.map(|key| key.strip_prefix("repo/").unwrap().to_owned()).collect()
}

fn fork(vault: &Vault) -> Arc<dyn ObjectStore> {
    vault.fork()
}

/// Everything that a repair may touch, with its bytes.
fn objects(vault: &Vault, store: &Arc<dyn ObjectStore>) -> Vec<(String, Vec<u8>)> {
    let repo = vault.open(Arc::clone(store)).unwrap();
    let keys = ["packs", "moved", "dedup", "damaged", "backups", "gc"];
    let keys = keys.iter().flat_map(|prefix| keys_of(vault, store, prefix));
    let read = |key: String| {
        let bytes = vault.block_on(repo.store().get(&key)).unwrap().to_vec();
        (key, bytes)
    };
    keys.map(read).collect()
}

#[test]
fn one_wrong_answer_is_no_damage() {
    let vault = world("check-once");
    let store = FailingStore::new(fork(&vault), None);
    assert!(vault.check(store.clone(), ReadData::All, true).unwrap().is_clean());
    let (mut refused, mut clean) = (0, 0);
    for at in 0..store.operations() {
        let memory = fork(&vault);
        let before = objects(&vault, &memory);
        let failing = FailingStore::new(Arc::clone(&memory), Some((at, Failure::NotFound)));
        match vault.check(failing.clone(), ReadData::All, true) {
            Ok(report) => {
                let hit = failing.hit();
                assert!(report.is_clean(), "{at} {hit:?}: {:?}", report.findings);
                assert_eq!(report.repaired, Default::default(), "{at} {hit:?}");
                assert_eq!(report.figures.backups, 2, "{at} {hit:?}");
                clean += 1;
            }
            Err(e) => {
                assert!(!matches!(e.kind(), ErrorKind::Corrupt), "{at}: {e}");
                refused += 1;
            }
        }
        assert_eq!(objects(&vault, &memory), before, "{at} {:?}", failing.hit());
    }
    println!("{clean} checks were clean, {refused} could not be made");
    assert!(clean > refused && clean > 10);
}

#[test]
fn what_is_whole_only_sometimes_stays_recorded_as_damaged() {
    let vault = world("check-unsteady");
    let key = keys_of(&vault, &(fork(&vault) as Arc<dyn ObjectStore>), "packs")[0].clone();
    // a pack that was gone when it was recorded, and is back
    let back_again = || {
        let store = fork(&vault);
        let repo = vault.open(Arc::clone(&store)).unwrap();
        let bytes = vault.block_on(async {
            let bytes = repo.store().get(&key).await.unwrap();
            repo.store().delete(&key).await.unwrap();
            bytes
        });
        vault.check(Arc::clone(&store), ReadData::Nothing, true).unwrap();
        vault.block_on(repo.store().put(&key, bytes)).unwrap();
        store
    };
    let store = FailingStore::new(back_again(), None);
    assert_eq!(vault.check(store.clone(), ReadData::All, true).unwrap().repaired.cleared, 1);
    let (mut unsteady, mut cleared) = (0, 0);
    for at in 0..store.operations() {
        let memory = back_again();
        let failing = FailingStore::new(Arc::clone(&memory), Some((at, Failure::NotFound)));
        let Ok(report) = vault.check(failing.clone(), ReadData::All, true) else { continue };
        let doubted = report.warnings.iter().any(|w| w.contains(&key) && w.contains("read first"));
        let there = keys_of(&vault, &memory, "damaged").len() as u64;
        assert!(
            !doubted || (report.repaired.cleared, there) == (0, 1),
            "{at} {:?}: {:?}",
            failing.hit(),
            report.warnings
        );
        unsteady += u64::from(doubted);
        cleared += report.repaired.cleared;
    }
    println!("{unsteady} checks doubted it, {cleared} cleared it");
    assert!(unsteady > 0 && cleared > 0);
}

/// A version that nothing vouches for is a flipped byte: damage, and put right where it can be.
#[test]
fn a_version_that_was_flipped_is_damage() {
    let vault = world("check-flipped");
    for prefix in ["dedup", "backups", "packs"] {
        let store = fork(&vault);
        let repo = vault.open(Arc::clone(&store)).unwrap();
        let key = keys_of(&vault, &store, prefix)[0].clone();
        vault.block_on(async {
            let mut bytes = repo.store().get(&key).await.unwrap().to_vec();
            // the version follows the magic
            bytes[8] ^= 0x10;
            repo.store().put(&key, bytes).await.unwrap();
        });
        let report = vault.check(Arc::clone(&store), ReadData::Nothing, true).expect(prefix);
        assert!(report.findings.iter().any(|f| f.object == key), "{:?}", report.findings);
        assert!(report.unrepaired.is_none(), "{prefix}: {:?}", report.unrepaired);
        let e = report.to_result(&repo).expect_err("damaged");
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{prefix}: {e}");
    }
}

/// What a newer version has written is whole: who cannot read it neither judges it nor repairs
/// around it.
#[test]
fn what_is_of_a_newer_version_ends_a_check_and_stays() {
    let vault = world("check-newer");
    let store = fork(&vault);
    let repo = vault.open(Arc::clone(&store)).unwrap();
    let key = keys_of(&vault, &store, "packs")[0].clone();
    vault.block_on(async {
        let mut bytes = repo.store().get(&key).await.unwrap().to_vec();
        bytes[8] = 2;
        chunkstore::testkit::fuzzing::rehash_pack(&mut bytes);
        repo.store().put(&key, bytes).await.unwrap();
    });
    let before = objects(&vault, &store);
    for repair in [false, true] {
        let e = vault.check(Arc::clone(&store), ReadData::Nothing, repair).expect_err("newer");
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert_eq!(objects(&vault, &store), before);
    }
}

#[test]
fn a_repair_that_cannot_go_on_keeps_what_was_found() {
    let vault = world("check-stopped");
    let store = fork(&vault);
    let repo = vault.open(Arc::clone(&store)).unwrap();
    // a list that may name anything stops the repair; a pack that is gone is what was found
    let list = format!("gc/{}/condemned", "ab".repeat(16));
    let pack = keys_of(&vault, &store, "packs")[0].clone();
    vault.block_on(async {
        repo.store().put(&list, "rubbish").await.unwrap();
        repo.store().delete(&pack).await.unwrap();
    });
    let report = vault.check(Arc::clone(&store), ReadData::Nothing, true).unwrap();
    assert!(report.findings.iter().any(|f| f.object == pack), "{:?}", report.findings);
    assert!(!report.lost.is_empty() && report.unrepaired.is_some());
    let e = report.to_result(&repo).expect_err("damaged");
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    let said = e.to_string();
    assert!(said.contains("the repair stopped") && said.contains(&list), "{said}");
}

#[test]
fn findings_that_are_not_listed_are_counted() {
    let mover = Mover::new();
    let home = tests::work_dir("check-many");
    let repo = home.path().join("repository");
    let mover = mover.env("MOVER_REPO", &repo);
    mover.ok(["init", "--encryption", "none"]);
    fs::create_dir_all(repo.join("leases")).unwrap();
    for n in 0..4196u32 {
        fs::write(repo.join(format!("leases/{n:032x}")), "rubbish").unwrap();
    }
    let said = mover.run(["check"]).expect_code(3).text();
    assert!(said.contains("and 100 more findings, which are not listed"), "{said}");
    let summary = mover.run(["check", "--json"]).expect_code(3);
    let lines = summary.json_lines();
    let last = lines.iter().find(|line| line.get("findings_not_listed").is_some()).unwrap();
    assert_eq!((&last["findings"], &last["findings_not_listed"]), (&4196.into(), &100.into()));
}
