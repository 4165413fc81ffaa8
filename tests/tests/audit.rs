//! Changed-block lists that lie: found out as often as the manual says, and whenever they are, the
//! backup is right.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // volumes of a few MiB

use chunkstore::Encryption;
use mover_changes::ChangeRequest;
use mover_engine::ops::backup::{AuditAmount, BackupOptions, BackupSummary};
use mover_engine::run::Cancel;
use mover_extents::Extents;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{Mover, Rng, Vault, VaultParams, extents_json, work_dir};

const CHUNK: u64 = 4096;
const CHUNKS: u64 = 8192;
/// Between the two ends, which are always looked at.
const MIDDLE: Range<u64> = 512..CHUNKS - 512;
const CHANGED: usize = 400;

fn vault(name: &str) -> Vault {
    let (chunk_bytes, encryption) = (CHUNK as u32, Encryption::Aes256Gcm);
    Vault::new(name, VaultParams { chunk_bytes, entry_chunks: 16, page_fanout: 128, encryption })
}

struct Lie {
    base: Vec<u8>,
    now: Vec<u8>,
    list: String,
}

impl Lie {
    /// A volume, what became of it, and a list of its changes that leaves `missing` of them out.
    fn new(rng: &mut Rng, missing: usize) -> Self {
        let base = rng.bytes((CHUNK * CHUNKS) as usize);
        let mut chunks: Vec<u64> = MIDDLE.collect();
        rng.shuffle(&mut chunks);
        chunks.truncate(CHANGED);
        let mut now = base.clone();
        for chunk in &chunks {
            let at = (chunk * CHUNK + rng.below(CHUNK)) as usize;
            now[at] ^= 0x55;
        }
        let mut listed = chunks.split_off(missing);
        listed.sort_unstable();
        let extents: Vec<_> = listed.iter().map(|c| c * CHUNK..(c + 1) * CHUNK).collect();
        let list = extents_json(CHUNK * CHUNKS, "delta", &extents).to_string();
        Self { base, now, list }
    }

    fn write(&self, vault: &Vault) -> [PathBuf; 3] {
        let paths = ["base", "now", "list"].map(|name| vault.path(name));
        fs::write(&paths[0], &self.base).unwrap();
        fs::write(&paths[1], &self.now).unwrap();
        fs::write(&paths[2], &self.list).unwrap();
        paths
    }
}

fn run(vault: &Vault, options: &BackupOptions) -> chunkstore::Result<BackupSummary> {
    vault.run(vault.memory(), options, &Cancel::new()).result
}

#[test]
fn lies_are_found_as_often_as_the_manual_says_and_never_believed_then() {
    let mut rng = Rng::new(77);
    for (missing, amount, runs) in [
        (40, AuditAmount::Chunks(200), 80_u32),
        (4, AuditAmount::Chunks(1000), 80),
        (1, AuditAmount::ALL, 10),
        (0, AuditAmount::ALL, 10),
        (40, AuditAmount::OFF, 20),
    ] {
        let lie = Lie::new(&mut rng, missing);
        let vault = vault("lies");
        let [base, now, list] = lie.write(&vault);
        vault.backup(vault.memory(), &base, "s0", None).unwrap();
        let before = vault.fork();
        let mut found = 0_u32;
        for n in 0..runs {
            let id = format!("s{}", n + 1);
            let mut options = vault.options(&now, &id, Some(("s0", &list)));
            options.audit = amount;
            let objects = Arc::new(before.fork());
            let done = vault.run(objects.clone(), &options, &Cancel::new()).result.unwrap();
            let audit = done.audit.unwrap();
            assert_eq!(audit.false_at.is_some(), !done.degraded.is_empty());
            if let Some(offset) = audit.false_at {
                found += 1;
                let chunk = (offset / CHUNK * CHUNK) as usize;
                let same = |at: usize| {
                    lie.base[at..at + CHUNK as usize] == lie.now[at..at + CHUNK as usize]
                };
                assert!(!same(chunk), "nothing has changed at {offset}");
                assert!(done.degraded[0].contains("the whole volume was compared"));
                assert_eq!((done.kind.as_str(), done.origin.as_str()), ("whole", "device"));
                // compared, not stored again
                assert_eq!(done.new_bytes, CHANGED as u64 * CHUNK);
                let target = vault.path("target");
                vault.restore(objects, &id, &target).unwrap();
                assert!(fs::read(&target).unwrap() == lie.now, "the backup is wrong");
            }
        }
        let claimed = (CHUNKS - CHANGED as u64 + missing as u64) as f64;
        let n = match amount {
            AuditAmount::Chunks(n) => n as f64,
            AuditAmount::Share(_) => claimed,
        };
        let odds = 1.0 - (1.0 - n / claimed).powi(missing as i32);
        let (expected, runs) = (odds * f64::from(runs), f64::from(runs));
        let five_sigma = 5.0 * (runs * odds * (1.0 - odds)).sqrt();
        println!("{missing} missing, {amount}: {found} of {runs} found, {expected:.1} expected");
        assert!((f64::from(found) - expected).abs() <= five_sigma + 0.5);
    }
}

#[test]
fn a_false_claim_that_blocks_are_not_allocated_is_found() {
    let mut rng = Rng::new(78);
    let vault = vault("not-allocated");
    let mut bytes = vec![0; (CHUNK * CHUNKS) as usize];
    let (listed, other) = ((2000 * CHUNK) as usize, (5000 * CHUNK) as usize);
    rng.fill(&mut bytes[listed..listed + 5000]);
    bytes[other] = 1;
    let (image, list) = (vault.path("image"), vault.path("list"));
    fs::write(&image, &bytes).unwrap();
    let extents = Extents::of(listed as u64..listed as u64 + 5000).into_vec();
    fs::write(&list, extents_json(CHUNK * CHUNKS, "allocated", &extents).to_string()).unwrap();
    let mut options = vault.options(&image, "a", None);
    options.changes = ChangeRequest::file(&list);
    options.audit = AuditAmount::ALL;
    let done = run(&vault, &options).unwrap();
    assert_eq!(done.audit.unwrap().false_at, Some(other as u64));
    assert_eq!(done.degraded.len(), 1);
    let target = vault.path("target");
    vault.restore(vault.memory(), "a", &target).unwrap();
    assert!(fs::read(&target).unwrap() == bytes);
}

#[test]
fn both_ends_are_always_looked_at_and_require_ends_the_run() {
    let mut rng = Rng::new(79);
    let vault = vault("ends");
    let base = rng.bytes((CHUNK * CHUNKS) as usize);
    let (image, list) = (vault.path("image"), vault.path("list"));
    fs::write(&image, &base).unwrap();
    vault.backup(vault.memory(), &image, "s0", None).unwrap();
    fs::write(&list, extents_json(CHUNK * CHUNKS, "delta", &[]).to_string()).unwrap();
    for (n, at) in [(1, 0), (2, 1 << 19), (3, base.len() - 1)] {
        let mut now = base.clone();
        now[at] ^= 1;
        fs::write(&image, &now).unwrap();
        let mut options = vault.options(&image, &format!("s{n}"), Some(("s0", &list)));
        options.audit = AuditAmount::Chunks(1);
        options.changes.require = Some(mover_changes::ChangeKind::Delta);
        let e = run(&vault, &options).expect_err("the list is false");
        assert!(e.to_string().contains("is false") && e.to_string().contains("`require`"), "{e}");
        options.changes.require = None;
        let done = run(&vault, &options).unwrap();
        assert_eq!(done.degraded.len(), 1);
        let target = vault.path("target");
        vault.restore(vault.memory(), &format!("s{n}"), &target).unwrap();
        assert!(fs::read(&target).unwrap() == now);
    }
}

#[test]
fn the_program_says_what_it_found_and_how_it_ended() {
    let directory = work_dir("audit-cli");
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let mover = Mover::new().env("MOVER_REPO", format!("file://{}", path("repo")));
    mover.ok(["init", "--encryption", "none"]);
    let mut bytes = Rng::new(80).bytes(8 << 20);
    fs::write(path("image"), &bytes).unwrap();
    mover.ok(["backup", "--volume", "v", "--snapshot", "s0", &path("image")]);
    bytes[4 << 20] ^= 1;
    fs::write(path("image"), &bytes).unwrap();
    fs::write(path("list"), extents_json(8 << 20, "delta", &[]).to_string()).unwrap();
    let (image, list) = (path("image"), path("list"));
    let backup = |snapshot: &str, more: &[&str]| {
        let base = ["backup", "--volume", "v", "--base-snapshot", "s0", "--changed-blocks", &list];
        mover.run([&base[..], &["--snapshot", snapshot, &image], more].concat())
    };
    let output = backup("s1", &["--audit", "off"]);
    assert!(output.status.success() && !output.text().contains("audit"), "{}", output.text());
    let output = backup("s2", &["--audit", "100%"]);
    assert!(output.status.success(), "{}", output.stderr);
    assert!(output.text().contains("the list is false"), "{}", output.text());
    assert!(output.stderr.contains("the whole volume was compared"), "{}", output.stderr);
    let output = backup("s3", &["--audit", "all", "--fail-on-degraded", "--json"]);
    assert_eq!(output.status.code(), Some(5), "{}", output.stderr);
    assert!(output.text().contains("\"false_at\":4194304"), "{}", output.text());
    let output = backup("s4", &["--audit", "many"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.contains("number of chunks"), "{}", output.stderr);
    let target = path("target");
    mover.ok(["restore", "v@latest", &target]);
    assert!(fs::read(&target).unwrap() == bytes);
}
