//! Manifests that are lost: their trees are found, and made backups again.

use crate::world::{BOTH, Objects, World};
use chunkstore::format::names::manifest_key;
use chunkstore::roots::FoundRoot;
use chunkstore::{BackupId, ErrorKind, LeaseOptions, Result, VolumeName};
use mover_engine::ops::check::ReadData;
use mover_engine::ops::roots::{AdoptOptions, Adopted, SizeFrom, adopt_root, find_roots};
use mover_engine::run::{Cancel, Progress};
use std::fs;
use std::sync::Arc;
use tests::Rng;

fn lease() -> LeaseOptions {
    LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "test".into() }
}

fn found(world: &World, objects: &Objects) -> Vec<FoundRoot> {
    let repo = world.vault.open(Arc::clone(objects)).unwrap();
    let (progress, cancel) = (Progress::new(), Cancel::new());
    let handle = world.vault.block_on(async { tokio::runtime::Handle::current() });
    let (roots, warnings) = find_roots(&handle, &repo, Some(lease()), &progress, &cancel).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    roots
}

fn adopt(world: &World, objects: &Objects, options: AdoptOptions) -> Result<Adopted> {
    let repo = world.vault.open(Arc::clone(objects)).unwrap();
    let (progress, cancel) = (Progress::new(), Cancel::new());
    let handle = world.vault.block_on(async { tokio::runtime::Handle::current() });
    let roots = found(world, objects);
    adopt_root(&handle, &repo, &roots, options, lease(), &progress, &cancel)
}

fn options(root: &FoundRoot, volume: Option<&str>) -> AdoptOptions {
    AdoptOptions {
        root: root.page.id.to_hex()[..10].to_owned(),
        volume: volume.map(|name| VolumeName::new(name).unwrap()),
        backup_id: volume.map(|_| BackupId::new("again").unwrap()),
        size_bytes: None,
    }
}

fn manifest(volume: &str, id: &str) -> String {
    manifest_key(&VolumeName::new(volume).unwrap(), &BackupId::new(id).unwrap(), 0)
}

/// `v@one`, and `v@two` that changes a little of it; the other volume's manifest is lost, so that
/// its tree, which has the same pages as `one`, is none.
fn with_two(world: &World) -> (Objects, Vec<u8>) {
    let objects = world.fork();
    let mut two = world.content.clone();
    two[50 * 4096..52 * 4096].copy_from_slice(&Rng::new(5).bytes(2 * 4096));
    let image = world.vault.path("v.img");
    fs::write(&image, &two).unwrap();
    world.vault.backup(objects.clone(), &image, "two", None).unwrap();
    (objects, two)
}

#[test]
fn a_backup_whose_manifest_is_lost_is_found_and_restored() {
    for encryption in BOTH {
        let world = World::new("salvage-roots", encryption);
        let (objects, two) = with_two(&world);
        assert_eq!(found(&world, &objects), [], "every page is somebody's");
        world.delete(&objects, &manifest("v", "two"));
        let roots = found(&world, &objects);
        let [root] = roots.as_slice() else { panic!("{roots:?}") };
        assert_eq!((root.level, root.missing), (2, 0));
        assert_eq!(root.volumes[0].0.as_str(), "v", "{root:?}");
        // its last chunk is a short one
        assert_eq!(root.size_bytes, [two.len() as u64; 2]);
        // under a name of its own
        let adopted = adopt(&world, &objects, options(root, None)).unwrap();
        assert_eq!(adopted.size_from, SizeFrom::Certain);
        let m = &adopted.manifest;
        assert!(m.volume.as_str().starts_with("found-") && !adopted.is_newest);
        assert!(m.degraded[0].contains("found root") && m.labels.is_empty());
        // it is a backup now
        assert_eq!(found(&world, &objects), []);
        let report = world.check(&objects, ReadData::All, false);
        assert!(report.is_clean(), "{:?}", report.findings);
        // and of the volume that it was of, at its place
        let spec = format!("{}@{}", m.volume, m.backup_id);
        world.forget(&objects, &spec);
        world.vault.collect(objects.clone(), false).unwrap();
        assert_eq!(found(&world, &objects), [], "what was forgotten is not offered");
    }
}

#[test]
fn a_found_root_takes_its_place_in_its_volume() {
    let world = World::new("salvage-place", BOTH[1]);
    let (objects, two) = with_two(&world);
    world.delete(&objects, &manifest("v", "two"));
    let roots = found(&world, &objects);
    let adopted = adopt(&world, &objects, options(&roots[0], Some("v"))).unwrap();
    assert!(adopted.is_newest, "it was made after the one that is left");
    assert!(world.vault.restored(objects.clone(), "again").unwrap() == two);
    assert!(world.vault.restored(objects.clone(), "latest").unwrap() == two);
    // a size that its tree cannot have
    let objects = world.fork();
    world.delete(&objects, &manifest("v", "one"));
    world.delete(&objects, &manifest("w", "other"));
    let roots = found(&world, &objects);
    assert!(roots[0].volumes.is_empty());
    let wrong = AdoptOptions { size_bytes: Some(1 << 40), ..options(&roots[0], Some("v")) };
    let e = adopt(&world, &objects, wrong).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    adopt(&world, &objects, options(&roots[0], Some("v"))).unwrap();
    assert!(world.vault.restored(objects.clone(), "again").unwrap() == world.content);
}

#[test]
fn what_a_collection_is_about_to_delete_is_refused_in_words() {
    let world = World::new("salvage-condemned", BOTH[1]);
    let (objects, _) = with_two(&world);
    world.delete(&objects, &manifest("v", "two"));
    let roots = found(&world, &objects);
    // a reader keeps the collection from deleting what it has condemned
    let repo = world.vault.open(objects.clone()).unwrap();
    let reader = world.vault.block_on(async {
        let one = repo.find_backup("v@one").await.unwrap();
        chunkstore::Reader::begin(&repo, &one, Some(lease())).await.unwrap()
    });
    let done = world.vault.collect(objects.clone(), false).unwrap();
    assert!(done.condemned_packs > 0 && done.deleted_packs == 0, "{done:?}");
    let e = adopt(&world, &objects, options(&roots[0], None)).unwrap_err();
    assert!(e.kind() == ErrorKind::Unavailable && e.to_string().contains("collection"), "{e}");
    assert!(world.vault.block_on(reader.finish()).is_empty());
}
