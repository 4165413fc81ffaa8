//! Attachments: named blobs of a backup, through everything that keeps its volume: copies, damage and
//! its repair, collections, a death at any change of the store.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{
    AttachmentName, Encryption, ErrorKind, Manifest, Repository, VolumeMap,
    format::{Attachment, names},
    map::{PageAt, ReadLimits, Visitor, reach},
    units::{ChunkRef, Location},
};
use mover_engine::ops::backup::{AttachmentSource, BackupOptions, BackupOutcome};
use mover_engine::ops::check::{CheckReport, ReadData};
use mover_engine::ops::copy::{CopyOptions, copy};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use object_store::memory::InMemory;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt};
use std::fs;
use std::sync::Arc;
use tests::{Death, DyingStore, Rng, Vault, VaultParams, expect_clean};

const AES: Encryption = Encryption::Aes256Gcm;

fn params(chunk_bytes: u32, encryption: Encryption) -> VaultParams {
    VaultParams { chunk_bytes, entry_chunks: 4, page_fanout: 16, encryption }
}

/// A volume and files to be attached to its backups.
struct Scene {
    vault: Vault,
    volume: Vec<u8>,
    files: Vec<(&'static str, Vec<u8>)>,
}

/// Of several leaves, of less than a chunk, of nothing, of zeros.
fn scene(name: &str, encryption: Encryption, rng: &mut Rng) -> Scene {
    let vault = Vault::new(name, params(4096, encryption));
    vault.add_attachments(vault.memory());
    let mut catalogue = rng.bytes(150_001);
    catalogue[20_000..60_000].fill(0);
    let files = vec![
        ("csi-snapshots.json", catalogue),
        ("empty", Vec::new()),
        ("manifest.json", b"{\"kinds\": []}\n".to_vec()),
        ("zero", vec![0; 9000]),
    ];
    let scene = Scene { volume: rng.bytes(300_000), files, vault };
    fs::write(scene.vault.path("v.img"), &scene.volume).unwrap();
    scene
}

impl Scene {
    fn options(&self, id: &str) -> BackupOptions {
        let source = |(name, bytes): &(&str, Vec<u8>)| {
            let path = self.vault.path(&format!("{name}.file"));
            fs::write(&path, bytes).unwrap();
            AttachmentSource { name: AttachmentName::new(*name).unwrap(), path, digest: None }
        };
        // in any order
        let attachments = self.files.iter().rev().map(source).collect();
        BackupOptions { attachments, ..self.vault.options(&self.vault.path("v.img"), id, None) }
    }

    fn backup(
        &self,
        objects: &Arc<InMemory>,
        id: &str,
    ) -> mover_engine::ops::backup::BackupSummary {
        self.vault.run(Arc::clone(objects) as _, &self.options(id), &Cancel::new()).result.unwrap()
    }

    fn manifest(&self, objects: &Arc<InMemory>, id: &str) -> (Arc<Repository>, Manifest) {
        let repo = self.vault.open(Arc::clone(objects) as _).unwrap();
        let manifest = self.vault.block_on(repo.find_backup(&format!("v@{id}"))).unwrap();
        (repo, manifest)
    }

    /// Everything of a backup is there.
    fn expect_whole(&self, objects: &Arc<InMemory>, id: &str) {
        assert!(self.vault.restored(Arc::clone(objects) as _, id).unwrap() == self.volume, "{id}");
        for (name, bytes) in &self.files {
            let read = self.vault.attachment(Arc::clone(objects) as _, id, name).unwrap();
            assert!(read == *bytes, "{name} of {id}: {} bytes", read.len());
        }
        let verified = self.vault.verify(Arc::clone(objects) as _, id).unwrap();
        let bytes: usize = self.files.iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(verified.attachment_bytes, bytes as u64);
    }

    fn check(&self, objects: &Arc<InMemory>, read: ReadData, repair: bool) -> CheckReport {
        self.vault.check(Arc::clone(objects) as _, read, repair).unwrap()
    }

    /// Where chunks and pages of an attachment are, and of nothing else.
    fn places(&self, objects: &Arc<InMemory>, id: &str, name: &str) -> Places {
        let (repo, manifest) = self.manifest(objects, id);
        let attachment = manifest.attachment(&AttachmentName::new(name).unwrap()).unwrap();
        let map = VolumeMap::of_attachment(&repo, &manifest, attachment).unwrap().unwrap();
        let mut places = Places::default();
        self.vault.block_on(reach(&repo, &[map], ReadLimits::default(), &mut places)).unwrap();
        places
    }

    /// Changes a byte of an entry.
    fn flip(&self, objects: &Arc<InMemory>, at: &Location) {
        let key = StorePath::from(format!("repo/{}", names::pack_key(&at.pack)));
        self.vault.block_on(async {
            let mut bytes = objects.get(&key).await.unwrap().bytes().await.unwrap().to_vec();
            bytes[at.offset as usize + 20] ^= 1;
            objects.put(&key, bytes.into()).await.unwrap();
        });
    }
}

#[derive(Default)]
struct Places {
    pages: Vec<Location>,
    chunks: Vec<Location>,
}

impl Visitor for Places {
    fn page(&mut self, at: &PageAt) -> chunkstore::Result<bool> {
        self.pages.push(at.page.location);
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> chunkstore::Result<()> {
        self.chunks.push(chunk.location);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: chunkstore::Error) -> chunkstore::Result<()> {
        Err(error)
    }
}

#[test]
fn what_is_attached_is_read_back_and_stored_once() {
    let mut rng = Rng::new(71);
    for (name, encryption) in [("attach-aes", AES), ("attach-none", Encryption::None)] {
        let mut scene = scene(name, encryption, &mut rng);
        let objects = scene.vault.memory();
        let first = scene.backup(&objects, "one");
        assert_eq!(first.outcome, BackupOutcome::Committed);
        let named: Vec<_> =
            first.attachments.iter().map(|a| (a.name.as_str(), a.size_bytes)).collect();
        let wanted: Vec<_> = scene.files.iter().map(|(n, b)| (*n, b.len() as u64)).collect();
        assert_eq!(named, wanted);
        scene.expect_whole(&objects, "one");
        let absent = scene.vault.attachment(objects.clone() as _, "one", "none").unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        assert!(absent.hint_text().unwrap().contains("manifest.json"), "{absent}");
        // the same again: no pack
        let packs = scene.vault.keys(&(objects.clone() as _), "packs").len();
        scene.backup(&objects, "two");
        assert_eq!(scene.vault.keys(&(objects.clone() as _), "packs").len(), packs);
        // a longer one, and one chunk of it is another
        scene.files[0].1[100] ^= 1;
        scene.files[0].1.extend(rng.bytes(5000));
        let third = scene.backup(&objects, "three");
        assert!(third.stored_bytes < 40_000, "what changed: {}", third.stored_bytes);
        scene.expect_whole(&objects, "three");
        // a shorter one
        scene.files[0].1.truncate(90_000);
        scene.backup(&objects, "four");
        scene.expect_whole(&objects, "four");
        assert!(scene.check(&objects, ReadData::All, false).is_clean());
    }
}

#[test]
fn a_repository_without_the_feature_gets_no_attachments() {
    let mut rng = Rng::new(72);
    let scene = scene("attach-feature", AES, &mut rng);
    let vault = Vault::new("attach-feature-none", params(4096, AES));
    let before = vault.keys(&(vault.memory() as _), "");
    let e = vault.run(vault.memory(), &scene.options("one"), &Cancel::new()).result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    assert!(e.to_string().contains("attachments"), "{e}");
    assert_eq!(vault.keys(&(vault.memory() as _), ""), before, "nothing was moved");
    // and where it is lost a check says so, and puts it back
    let objects = scene.vault.memory();
    scene.backup(&objects, "one");
    let key = StorePath::from("repo/features/write/attachments");
    scene.vault.block_on(objects.delete(&key)).unwrap();
    let report = scene.check(&objects, ReadData::Nothing, false);
    assert_eq!((report.findings_count, report.lost.len()), (1, 0), "{:?}", report.findings);
    assert_eq!(scene.check(&objects, ReadData::Nothing, true).repaired.base, 1);
    assert!(scene.check(&objects, ReadData::Nothing, false).is_clean());
}

#[test]
fn a_backup_that_is_there_has_the_attachments_that_it_was_made_with() {
    let mut rng = Rng::new(73);
    let mut scene = scene("attach-again", AES, &mut rng);
    let objects = scene.vault.memory();
    scene.backup(&objects, "one");
    let before = scene.files[2].1.clone();
    scene.files[2].1.extend(b"more");
    let again = scene.backup(&objects, "one");
    assert_eq!(again.outcome, BackupOutcome::AlreadyCommitted);
    assert!(again.warnings.iter().any(|w| w.contains("manifest.json")), "{:?}", again.warnings);
    scene.files[2].1 = before;
    scene.expect_whole(&objects, "one");
    scene.files.pop();
    let run = scene.vault.run(objects.clone(), &scene.options("one"), &Cancel::new());
    let e = run.result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
}

#[test]
fn a_damaged_attachment_is_named_and_nothing_else_is_lost() {
    let mut rng = Rng::new(74);
    let scene = scene("attach-damage", AES, &mut rng);
    scene.backup(&scene.vault.memory(), "one");
    let name = "csi-snapshots.json";
    let places = scene.places(&scene.vault.memory(), "one", name);
    let root = *places.pages.iter().max_by_key(|at| at.entry).unwrap();
    for damaged in [places.chunks[0], *places.chunks.last().unwrap(), root, places.pages[0]] {
        let objects = scene.vault.fork();
        scene.flip(&objects, &damaged);
        let report = scene.check(&objects, ReadData::All, false);
        let [lost] = report.lost.as_slice() else { panic!("{:?}", report.lost) };
        assert_eq!((lost.bytes, lost.ranges.as_deref()), (0, Some(&[][..])), "the volume is whole");
        let [attachment] = lost.attachments.as_slice() else { panic!("{lost:?}") };
        assert!(attachment.name.as_str() == name && attachment.bytes > 0, "{lost:?}");
        let e = scene.vault.attachment(objects.clone(), "one", name).unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains(name), "{e}");
        assert!(!scene.vault.path("attachment").exists(), "none of it was left");
        let e = scene.vault.verify(objects.clone(), "one").unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains(name), "{e}");
        assert!(scene.vault.restored(objects.clone(), "one").unwrap() == scene.volume);
        let small = scene.vault.attachment(objects.clone(), "one", "manifest.json").unwrap();
        assert_eq!(small, scene.files[2].1);
        // recorded, so the next backup stores it again, and the repair after that makes both whole
        scene.check(&objects, ReadData::All, true);
        scene.backup(&objects, "two");
        scene.expect_whole(&objects, "two");
        let report = scene.check(&objects, ReadData::All, true);
        assert!(report.lost.is_empty(), "{:?}", report.lost);
        scene.expect_whole(&objects, "one");
        assert!(scene.check(&objects, ReadData::All, false).lost.is_empty());
    }
}

#[test]
fn a_backup_goes_on_where_the_attachment_of_its_parent_is_unreadable() {
    let mut rng = Rng::new(75);
    let scene = scene("attach-parent", AES, &mut rng);
    let objects = scene.vault.memory();
    scene.backup(&objects, "one");
    let root = scene.places(&objects, "one", "csi-snapshots.json").pages[0];
    scene.flip(&objects, &root);
    let second = scene.backup(&objects, "two");
    assert!(second.warnings.iter().any(|w| w.contains("csi-snapshots.json")), "{second:?}");
    scene.expect_whole(&objects, "two");
}

#[test]
fn attachments_go_with_their_backup_and_stay_as_long_as_it_does() {
    let mut rng = Rng::new(76);
    let mut scene = scene("attach-collect", AES, &mut rng);
    let objects = scene.vault.memory();
    let collect = || {
        // one to condemn, one to sweep
        (0..3).for_each(|_| drop(scene.vault.collect(objects.clone() as _, false).unwrap()));
    };
    scene.backup(&objects, "one");
    collect();
    scene.expect_whole(&objects, "one");
    let old = scene.places(&objects, "one", "csi-snapshots.json");
    scene.files[0].1 = rng.bytes(100_000);
    let collect = || {
        (0..3).for_each(|_| drop(scene.vault.collect(objects.clone() as _, false).unwrap()));
    };
    scene.backup(&objects, "two");
    scene.vault.forget(objects.clone() as _, "one").unwrap();
    collect();
    scene.expect_whole(&objects, "two");
    let packs = scene.vault.keys(&(objects.clone() as _), "packs");
    let pack = names::pack_key(&old.chunks[0].pack);
    assert!(!packs.iter().any(|key| key.ends_with(&pack)), "{pack} is of nobody");
    let repo = scene.vault.open(objects.clone() as _).unwrap();
    scene.vault.block_on(expect_clean(&repo, 1, "after a forget"));
    scene.vault.forget(objects.clone() as _, "two").unwrap();
    collect();
    scene.vault.block_on(expect_clean(&repo, 0, "after all is forgotten"));
    assert_eq!(scene.vault.keys(&(objects.clone() as _), "packs").len(), 0);
}

#[test]
fn a_copy_has_the_attachments_and_damage_of_them_is_no_silent_loss() {
    let mut rng = Rng::new(77);
    let scene = scene("attach-copy", AES, &mut rng);
    let from = scene.vault.memory();
    scene.backup(&from, "one");
    let target = Vault::new("attach-copy-to", params(65536, Encryption::None));
    let copied = |from: &Arc<InMemory>| {
        let (source, manifest) = scene.manifest(from, "one");
        let to = target.open(target.memory()).unwrap();
        let rt = scene.vault.block_on(async { tokio::runtime::Handle::current() });
        let options = CopyOptions {
            compression: chunkstore::Compression::Zstd(1).into(),
            memory: MemoryBudget { total_bytes: 256 << 20 },
            scratch: None,
            threads: Some(2),
            checkpoint_bytes: None,
            quota: Quota::default(),
            source_lease: true,
            tool: "test".into(),
            host: "test".into(),
        };
        let (progress, cancel) = (Progress::new(), Cancel::new());
        copy(&rt, (&source, &to), &manifest, None, &options, &progress, &cancel)
    };
    let e = copied(&from).unwrap_err();
    assert!(e.kind() == ErrorKind::Usage && e.to_string().contains("attachments"), "{e}");
    target.add_attachments(target.memory());
    let damaged = scene.vault.fork();
    scene.flip(&damaged, &scene.places(&from, "one", "csi-snapshots.json").chunks[3]);
    let e = copied(&damaged).unwrap_err();
    assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains("csi-snapshots.json"), "{e}");
    copied(&from).unwrap();
    assert!(target.restored(target.memory(), "one").unwrap() == scene.volume);
    for (name, bytes) in &scene.files {
        assert!(target.attachment(target.memory(), "one", name).unwrap() == *bytes, "{name}");
    }
    assert!(target.check(target.memory(), ReadData::All, false).unwrap().is_clean());
}

#[test]
fn a_run_killed_at_any_change_commits_with_its_attachments_or_not_at_all() {
    let mut rng = Rng::new(78);
    let mut scene = scene("attach-crash", AES, &mut rng);
    scene.backup(&scene.vault.memory(), "one");
    scene.files[0].1[5000] ^= 1;
    let start = scene.vault.fork();
    let counting = DyingStore::new(Arc::new(start.fork()), None);
    scene.vault.run(counting.clone(), &scene.options("two"), &Cancel::new()).result.unwrap();
    let changes = counting.changes();
    for change in 0..changes {
        for done in [false, true] {
            let death = Death { change, done };
            let memory = Arc::new(start.fork());
            let dying = DyingStore::new(memory.clone() as Arc<dyn ObjectStore>, Some(death));
            let run = scene.vault.run(dying.clone(), &scene.options("two"), &Cancel::new());
            assert!(dying.dead() || run.result.is_ok(), "{death:?}: {:?}", run.result);
            if scene.vault.restored(memory.clone(), "two").is_ok() {
                scene.expect_whole(&memory, "two");
            }
            scene.backup(&memory, "two");
            scene.expect_whole(&memory, "two");
        }
    }
    println!("killed before and after each of {changes} changes");
}

/// As large, as many, and as long in their names as they can be, but for the bytes: those are of
/// holes.
#[test]
fn as_many_and_as_large_as_can_be() {
    let mut rng = Rng::new(79);
    let scene = scene("attach-limits", AES, &mut rng);
    let large = scene.vault.path("large");
    let file = fs::File::create(&large).unwrap();
    file.set_len(chunkstore::limits::ATTACHMENT_BYTES_MAX).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"the end", (1 << 30) - 7).unwrap();
    let small = scene.vault.path("small");
    fs::write(&small, b"small").unwrap();
    let name = |n: u32| AttachmentName::new(format!("{n:063}")).unwrap();
    let mut options = scene.options("one");
    options.attachments = (0..chunkstore::limits::ATTACHMENTS_MAX)
        .map(|n| AttachmentSource {
            name: name(n),
            path: if n == 7 { large.clone() } else { small.clone() },
            digest: None,
        })
        .collect();
    let objects = scene.vault.memory();
    scene.vault.run(objects.clone(), &options, &Cancel::new()).result.unwrap();
    // each chunk against its id, without a file of that size
    let verified = scene.vault.verify(objects.clone(), "one").unwrap();
    assert_eq!(verified.attachment_bytes, (1 << 30) + 15 * 5);
    let read = scene.vault.attachment(objects.clone(), "one", name(0).as_str()).unwrap();
    assert_eq!(read, b"small");
    let (_, manifest) = scene.manifest(&objects, "one");
    let sizes = manifest.attachments.iter().map(|Attachment { size_bytes, .. }| *size_bytes);
    assert_eq!(sizes.sum::<u64>(), (1 << 30) + 15 * 5);
    let e = scene.vault.attachment(objects, "one", "small").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
}
