//! Backups that are locked against deletion, on servers that others wrote: what an attacker with
//! delete rights leaves, what a collection does with what is locked, and which locks are extended
//! when.
//!
//! Ceph 16 ignores create-once in a bucket with versions, so collections run with `--exclusive`
//! here.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use object_store::signer::Method;
use object_store::{ObjectStoreExt, PutPayload};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Mover, Rng, S3Bucket, S3Server, require_s3, work_dir};

const MIB: usize = 1 << 20;
const KEEP: [&str; 4] = ["packs/", "backups/", "keys/", "format"];

struct World {
    bucket: S3Bucket,
    mover: Mover,
    dir: tempfile::TempDir,
    content: Vec<u8>,
}

impl World {
    /// A repository in a bucket with object lock, and an image.
    fn new(server: &S3Server, seed: u64) -> Self {
        Self::with(server, seed, &[])
    }

    fn with(server: &S3Server, seed: u64, init: &[&str]) -> Self {
        println!("{}: seed {seed}", server.name);
        let bucket = server.locking_bucket();
        let dir = work_dir("retention");
        let key = dir.path().join("key");
        let mover = Mover::new()
            .envs(server.environment())
            .env("MOVER_REPO", bucket.url("r"))
            .env("MOVER_KEY_FILE", &key);
        let line = ["init", "--new-key-file", key.to_str().unwrap()];
        mover.ok(line.iter().chain(init));
        let content = Rng::new(seed).bytes(6 * MIB);
        let world = Self { bucket, mover, dir, content };
        world.write();
        world
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("v.img")
    }

    fn write(&self) {
        fs::write(self.image(), &self.content).unwrap();
    }

    /// Another byte in a few chunks.
    fn change(&mut self, byte: u8) {
        for at in [0, 2 * MIB, 5 * MIB] {
            self.content[at] ^= byte;
        }
        self.write();
    }

    fn backup(&self, id: &str, more: &[&str]) -> serde_json::Value {
        let image = self.image();
        let args =
            ["--json", "backup", image.to_str().unwrap(), "--volume", "v", "--backup-id", id];
        self.mover.ok(args.into_iter().chain(more.iter().copied())).summary()
    }

    fn expect_restored(&self, id: &str, content: &[u8]) {
        let target = self.dir.path().join("restored");
        let _ = fs::remove_file(&target);
        self.mover.ok(["restore", &format!("v@{id}"), target.to_str().unwrap()]);
        assert!(fs::read(&target).unwrap() == content, "{id} is not what was backed up");
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        let prefix = format!("r/{prefix}");
        self.bucket.keys().into_iter().filter(|key| key.starts_with(&prefix)).collect()
    }

    /// The dates of the locks of all objects below `prefix`, in order; "" for none.
    fn locks(&self, prefix: &str) -> Vec<String> {
        let keys = self.keys(prefix);
        assert!(!keys.is_empty(), "nothing below {prefix}");
        let lock = |key: &String| self.bucket.lock_of(key).map(|(_, until)| until);
        let mut dates: Vec<_> = keys.iter().map(|key| lock(key).unwrap_or_default()).collect();
        dates.sort();
        dates
    }

    fn gc(&self) -> serde_json::Value {
        self.mover.ok(["--json", "gc", "--exclusive"]).summary()
    }

    fn put(&self, key: &str, bytes: &'static [u8]) {
        let (store, key) = (self.bucket.store(), object_store::path::Path::parse(key).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(store.put(&key, PutPayload::from_static(bytes))).unwrap();
    }
}

/// The date that a summary names, as HEAD words it.
fn until(summary: &serde_json::Value) -> String {
    let date = summary["retention"]["until"].as_str().unwrap_or_else(|| panic!("{summary}"));
    date[..19].to_owned()
}

fn survives_an_attacker(server: &S3Server) {
    let mut world = World::new(server, 501);
    let first = world.content.clone();
    let until = until(&world.backup("one", &["--retain-for", "2d"]));
    for prefix in KEEP {
        for date in world.locks(prefix) {
            assert!(date >= until, "{prefix}: {date} is before {until}");
        }
    }
    let key = &world.keys("packs/")[0];
    assert_eq!(world.bucket.lock_of(key).unwrap().0, "GOVERNANCE");
    assert!(world.locks("dedup/").iter().all(String::is_empty), "nobody needs a segment");

    // all that may be deleted is deleted for good; what is locked cannot be
    let locked: HashSet<String> = KEEP.iter().flat_map(|prefix| world.keys(prefix)).collect();
    let mut refused = HashSet::new();
    for version in world.bucket.versions() {
        let query = [("versionId", version.id.as_str())];
        let (status, answer) = world.bucket.call(Method::DELETE, &version.key, &query);
        match status {
            403 => assert!(refused.insert(version.key)),
            204 | 200 => {}
            _ => panic!("{answer}"),
        }
    }
    assert_eq!(refused, locked);
    // and then hidden: below rubbish, or below a delete marker
    for key in &locked {
        if key.contains("/packs/") {
            world.put(key, b"rubbish");
        } else {
            assert_eq!(world.bucket.call(Method::DELETE, key, &[]).0, 204);
        }
    }
    assert_ne!(world.mover.run(["list"]).code(), Some(0));

    // what docs/security.md says: all versions that are not locked go
    for version in world.bucket.versions() {
        let query = [("versionId", version.id.as_str())];
        let (status, answer) = world.bucket.call(Method::DELETE, &version.key, &query);
        assert!([200, 204, 403].contains(&status), "{answer}");
    }
    world.expect_restored("one", &first);
    world.mover.ok(["check", "--read-data=all"]);
    // and backups go on
    world.change(1);
    world.backup("two", &[]);
    world.expect_restored("two", &world.content);
}

#[test]
fn ceph_keeps_a_locked_backup_from_an_attacker() {
    survives_an_attacker(&require_s3!(ceph));
}

#[test]
fn moto_keeps_a_locked_backup_from_an_attacker() {
    survives_an_attacker(&require_s3!(moto));
}

fn extends_and_waits(server: &S3Server) {
    let mut world = World::new(server, 502);
    let one = until(&world.backup("one", &["--retain-for", "3d"]));
    let first = world.content.clone();
    // left to the collection: what is inherited is locked as long as it was
    world.change(1);
    let more = ["--retain-for", "20d", "--retain-inherited", "gc"];
    let two = until(&world.backup("two", &more));
    assert!(world.locks("packs/").contains(&one), "{:?}", world.locks("packs/"));
    assert!(world.locks("keys/")[0] >= two && world.locks("format")[0] >= two);
    let done = world.gc();
    assert!(done["extended_locks"].as_u64().unwrap() > 0, "{done}");
    let packs = world.locks("packs/");
    assert!(packs.iter().filter(|date| **date >= two).count() >= 3, "{packs:?}, {two}");
    assert_eq!(world.gc()["extended_locks"], 0, "once is enough");
    let second = world.content.clone();

    // and not left to it: before the commit
    world.change(2);
    let strong = ["--retain-for", "40d", "--retain-mode", "compliance"];
    let three = if server.name == "ceph" {
        // nobody without the right to delete may make a lock of the other kind of it
        let image = world.image();
        let args = ["backup", image.to_str().unwrap(), "--volume", "v", "--backup-id", "three"];
        let said = world.mover.run(args.into_iter().chain(strong)).expect_code(4).stderr;
        assert!(said.contains("keep to one mode"), "{said}");
        until(&world.backup("three", &strong[..2]))
    } else {
        until(&world.backup("three", &strong))
    };
    // all chunks of the first backup but a few are still in use, in its only pack of chunks
    let packs = world.locks("packs/");
    assert!(packs.iter().filter(|date| **date >= three).count() >= 3, "{packs:?}, {three}");
    assert_eq!(world.gc()["extended_locks"], 0);
    // a run that is started twice with more time extends what is there
    let again = world.backup("three", &["--retain-for", "50d"]);
    assert!(until(&again) > three);
    let manifests = world.keys("backups/v/three/");
    let lock = world.bucket.lock_of(&manifests[0]).unwrap();
    assert_eq!(lock.1, until(&again));
    if server.name != "ceph" {
        assert_eq!((&again["outcome"], lock.0), (&"already-committed".into(), "COMPLIANCE".into()));
        // and all that it needs, though it does not know any more what it stored
        let packs = world.locks("packs/");
        assert!(packs.iter().filter(|date| **date >= until(&again)).count() >= 3, "{packs:?}");
    }

    for (id, content) in [("one", &first), ("two", &second), ("three", &world.content)] {
        world.expect_restored(id, content);
        world.mover.ok(["forget", &format!("v@{id}")]);
    }
    // nothing refers to any of it, and it waits
    let before = world.keys("packs/");
    let done = world.gc();
    assert_eq!(done["locked_objects"].as_u64().unwrap(), before.len() as u64, "{done}");
    assert_eq!((&done["condemned_packs"], &done["deleted_packs"]), (&0.into(), &0.into()));
    assert_eq!(done["locked_until"].as_str().unwrap()[..19], until(&again));
    let text = world.mover.ok(["gc", "--exclusive"]).text();
    let line =
        text.lines().find(|line| line.starts_with("locked")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(&format!("{} objects are still locked until", before.len())), "{line}");
    assert_eq!(world.keys("packs/"), before);
    // it can be used again, and is
    let four = world.backup("four", &["--parent", "none"]);
    assert!(four["reused_bytes"].as_u64().unwrap() > 5 * MIB as u64, "{four}");
    world.gc();
    world.expect_restored("four", &world.content);
}

#[test]
fn ceph_extends_locks_and_collections_wait_for_them() {
    extends_and_waits(&require_s3!(ceph));
}

#[test]
fn moto_extends_locks_and_collections_wait_for_them() {
    extends_and_waits(&require_s3!(moto));
}

#[test]
fn moto_what_is_lost_keeps_no_other_lock_from_being_extended() {
    let mut world = World::new(&require_s3!(moto), 504);
    // not locked, and then inherited by one that is
    world.backup("one", &[]);
    let of_one = world.keys("packs/");
    world.content[3 * MIB] ^= 1;
    world.write();
    world.backup("two", &[]);
    world.change(1);
    let until = until(&world.backup("three", &["--retain-for", "20d", "--retain-inherited", "gc"]));
    // the largest is of chunks, which a collection does not read
    let lost = of_one.iter().max_by_key(|key| length(&world, key)).unwrap();
    assert_eq!(world.bucket.call(Method::DELETE, lost, &[]).0, 204);
    let done = world.gc();
    assert_eq!(done["not_extended"]["count"], 1, "{done}");
    let why = done["not_extended"]["first"].as_str().unwrap();
    assert!(why.contains("does not exist"), "{why}");
    assert!(done["extended_locks"].as_u64().unwrap() > 0, "{done}");
    // the new backup's own, and what it has of the second
    let packs = world.locks("packs/");
    assert!(packs.iter().filter(|date| **date >= until).count() >= 3, "{packs:?}, {until}");
}

/// Bytes of an object.
fn length(world: &World, key: &str) -> u64 {
    let head = world.bucket.call(Method::HEAD, key, &[]).1;
    let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with("content-length:"));
    line.unwrap().split(':').nth(1).unwrap().trim().parse().unwrap()
}

#[test]
fn moto_a_damaged_backup_keeps_no_lock_of_another_from_being_extended() {
    // few children of a page, so that maps have two levels
    let mut world = World::with(&require_s3!(moto), 505, &["--page-fanout", "16"]);
    world.backup("one", &["--retain-for", "2d"]);
    let of_one = world.keys("packs/");
    let later = ["--retain-inherited", "gc", "--parent", "one", "--retain-for"];
    world.change(1);
    world.backup("two", &[&later[..], &["300d"]].concat());
    let of_two = world.keys("packs/").into_iter().filter(|key| !of_one.contains(key));
    let pages = of_two.min_by_key(|key| length(&world, key)).unwrap();
    world.change(2);
    let three = until(&world.backup("three", &[&later[..], &["100d"]].concat()));
    // the first page of the damaged backup: others below the same root are those of the third too
    let key = object_store::path::Path::parse(&pages).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut bytes = runtime.block_on(async {
        let got = world.bucket.store().get(&key).await.unwrap();
        got.bytes().await.unwrap().to_vec()
    });
    bytes[80] ^= 1;
    runtime.block_on(world.bucket.store().put(&key, bytes.into())).unwrap();
    world.mover.ok(["verify", "v@three"]);
    let said = world.mover.run(["gc", "--exclusive"]).expect_code(3).stderr;
    let pack = pages.rsplit('/').next().unwrap();
    assert!(said.contains("extend locks") && said.contains(pack), "{said}");
    let chunks = of_one.iter().max_by_key(|key| length(&world, key)).unwrap();
    let lock = world.bucket.lock_of(chunks).unwrap().1;
    assert!(lock >= three, "{chunks} is locked until {lock}, and what needs it until {three}");
}

/// Everything in a directory, to see that nothing was written.
fn files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
}

fn is_refused_where_nothing_can_be_locked(server: &S3Server) {
    let dir = work_dir("retention");
    let (image, key) = (dir.path().join("v.img"), dir.path().join("key"));
    fs::write(&image, Rng::new(503).bytes(MIB)).unwrap();
    let bucket = server.bucket();
    let mover = Mover::new().envs(server.environment()).env("MOVER_KEY_FILE", &key);
    let directory = dir.path().join("repository");
    for repo in [bucket.url("r"), directory.to_str().unwrap().to_owned()] {
        mover.ok(["init", "--repo", &repo, "--new-key-file", key.to_str().unwrap()]);
        let before = (bucket.keys(), files(&directory));
        let image = image.to_str().unwrap();
        let args = ["backup", image, "--repo", &repo, "--retain-for", "1d"];
        let said = mover.run(args).expect_code(2).stderr;
        assert!(said.contains("object lock") && said.contains("leave --retain-for"), "{said}");
        assert_eq!((bucket.keys(), files(&directory)), before);
        mover.ok(["backup", image, "--repo", &repo]);
    }
    // the embedded repository is not even made
    let embedded = Mover::new();
    let said = embedded.run(["backup", image.to_str().unwrap(), "--retain-until", "2999-01-01"]);
    assert!(said.expect_code(2).stderr.contains("more than 100 years"));
    let said = embedded.run(["backup", image.to_str().unwrap(), "--retain-for", "1d"]);
    assert!(said.expect_code(2).stderr.contains("object lock"));
    assert_eq!(files(embedded.home()), 0);

    // the target of a copy may be another place
    let locking = server.locking_bucket();
    let (target, key) = (locking.url("far"), key.to_str().unwrap().to_owned());
    mover.ok(["init", "--repo", &target]);
    let from = directory.to_str().unwrap();
    let args = ["--json", "copy", "--repo", from, "--to", &target, "--to-key-file", &key];
    let copied = mover.ok(args.into_iter().chain(["--retain-for", "2d"])).summary();
    let until = until(&copied);
    for key in locking.keys() {
        let keep = KEEP.iter().any(|prefix| key.starts_with(&format!("far/{prefix}")));
        let lock = locking.lock_of(&key).map(|(_, date)| date).unwrap_or_default();
        assert_eq!(keep, lock == until, "{key}: {lock}");
    }
}

#[test]
fn ceph_without_object_lock_is_refused_before_anything_is_written() {
    is_refused_where_nothing_can_be_locked(&require_s3!(ceph));
}

#[test]
fn moto_without_object_lock_is_refused_before_anything_is_written() {
    is_refused_where_nothing_can_be_locked(&require_s3!(moto));
}

/// A program of others says by its objects that it needs a backup.
fn stays_as_long_as_others_need_it(server: &S3Server) {
    println!("{}: seed 510", server.name);
    let bucket = server.bucket();
    let dir = work_dir("unless");
    let (key, image) = (dir.path().join("key"), dir.path().join("v.img"));
    let mover = Mover::new()
        .envs(server.environment())
        .env("MOVER_REPO", bucket.url("theirs-mover"))
        .env("MOVER_KEY_FILE", &key);
    mover.ok(["init", "--new-key-file", key.to_str().unwrap()]);
    fs::write(&image, Rng::new(510).bytes(MIB)).unwrap();
    mover.ok(["backup", image.to_str().unwrap(), "--volume", "v", "--backup-id", "one"]);
    let put = |name: &str| {
        let (store, name) = (bucket.store(), object_store::path::Path::from(name));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(store.put(&name, PutPayload::from_static(b"x"))).unwrap();
    };
    let unless = |url: &str| mover.run(["--json", "forget", "v@one", "--unless-exists", url]);
    let is_listed = || !mover.ok(["--json", "list"]).json_lines().is_empty();

    let folder = bucket.url("theirs/backups/nightly/");
    put("theirs/backups/nightly/velero-backup.json");
    put("theirs/backups/nightly-2/velero-backup.json");
    let kept = unless(&folder).expect_code(0).summary();
    assert_eq!(kept["kept"], folder.as_str());
    let absent = bucket.url("x").replace(bucket.name(), "no-such-bucket-of-others");
    assert_ne!(unless(&absent).code(), Some(0), "a bucket that is not there");
    let _ = unless("gs://bucket/x").expect_code(2);
    assert!(is_listed(), "nothing is forgotten");

    let name = "theirs/backups/nightly/velero-backup.json";
    assert_eq!(bucket.call(Method::DELETE, name, &[]).0, 204);
    let done = unless(&folder).expect_code(0).summary();
    assert!(done.get("kept").is_none(), "{done}");
    assert!(!is_listed(), "it is forgotten");
}

#[test]
fn moto_a_backup_stays_as_long_as_others_need_it() {
    stays_as_long_as_others_need_it(&require_s3!(moto));
}
