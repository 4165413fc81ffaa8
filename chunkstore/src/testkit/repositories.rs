//! Repositories in memory, and manifests to put into them.

use super::faulty::FaultyStore;
use super::hooked::HookedStore;
use crate::format::feature::{Feature, FeatureName, FeatureNeed};
use crate::format::manifest::{
    BackupStats, ChangeKind, Manifest, ManifestRecord, MapRoot, ParentRef, SnapshotInfo, SourceInfo,
};
use crate::ids::{BackupId, PackId, PageId, VolumeName};
use crate::keys::{Credential, Encryption, KdfCost};
use crate::pack::{FinishedPack, PackAllocator, PackBuilder, PackKind};
use crate::repository::{InitOptions, Repository};
use crate::seal::{Compression, Sealer};
use crate::store::Store;
#[cfg(test)]
use crate::store::{LockServer, RetainPolicy};
use crate::units::{ChunkSize, Location, PageRef};
use chrono::{DateTime, TimeDelta, Utc};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A key of 32 times this byte.
pub fn key_file(byte: u8) -> Credential {
    Credential::from_key_file_bytes(&[byte; 32]).unwrap()
}

/// A small repository; encrypted, if there is a credential.
pub fn init_options(credential: Option<Credential>) -> InitOptions {
    InitOptions {
        chunk: ChunkSize::new(4096).unwrap(),
        entry_chunks: 16,
        page_fanout: 16,
        encryption: if credential.is_some() { Encryption::Aes256Gcm } else { Encryption::None },
        credential,
        label: "first".into(),
        kdf: KdfCost { memory_kib: 8, passes: 1, lanes: 1 },
        created_by: "test".into(),
    }
}

/// A store with faults on top of `inner`.
pub fn store_on(inner: Arc<dyn ObjectStore>) -> (Arc<HookedStore<FaultyStore>>, Store) {
    let faulty = FaultyStore::new(inner);
    let store = Store::new(Arc::clone(&faulty) as _, Path::default(), "memory:///");
    (faulty, store)
}

/// A new repository, the store that it is on, and the bare store behind that.
pub async fn memory_repository() -> (Arc<Repository>, Arc<HookedStore<FaultyStore>>, Arc<InMemory>)
{
    let inner = Arc::new(InMemory::new());
    let (faulty, store) = store_on(Arc::clone(&inner) as _);
    let repo = Repository::init(store, init_options(Some(key_file(1)))).await.unwrap();
    (repo, faulty, inner)
}

/// A new repository that locks what is written to it, and the server of its locks.
#[cfg(test)]
pub(crate) async fn locking_repository(policy: RetainPolicy) -> (Arc<Repository>, LockServer) {
    let (server, store) = LockServer::start(&Arc::new(InMemory::new()), policy);
    let repo = Repository::init(store, init_options(Some(key_file(1)))).await.unwrap();
    (repo, server)
}

/// A volume of this name.
pub fn volume(name: &str) -> VolumeName {
    VolumeName::new(name).unwrap()
}

/// A backup of this name.
pub fn backup_id(id: &str) -> BackupId {
    BackupId::new(id).unwrap()
}

/// The test's clock: minutes after some day.
pub fn minute(minute: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minute)
}

/// A manifest of 1 MiB whose content is named by one byte.
pub fn manifest(volume_name: &str, id: &str, content: u8) -> Manifest {
    let location = Location {
        pack: PackId::from_bytes([content; 32]),
        entry: 0,
        offset: 64,
        stored_len: 100,
        index: 0,
    };
    Manifest {
        volume: volume(volume_name),
        backup_id: backup_id(id),
        attempt: 0,
        size_bytes: 1 << 20,
        map: MapRoot {
            depth: 2,
            root: Some(PageRef { id: PageId::from_bytes([content; 32]), location }),
        },
        parent: None,
        snapshot: SnapshotInfo::default(),
        source: SourceInfo {
            path: "/dev/test".into(),
            kind: ChangeKind::Whole,
            origin: "test".into(),
            listed_bytes: 0,
            listed_extents: 0,
            identity: None,
        },
        started: minute(0),
        finished: minute(i64::from(content)),
        ordered: minute(i64::from(content)),
        clock_offset_ms: None,
        stats: BackupStats::default(),
        tool: "test".into(),
        labels: BTreeMap::new(),
        degraded: Vec::new(),
        copied_from: None,
        attachments: Vec::new(),
    }
}

/// The same on top of a parent.
pub fn with_parent(mut child: Manifest, parent: &Manifest) -> Manifest {
    child.parent = Some(ParentRef { backup_id: parent.backup_id.clone(), attempt: parent.attempt });
    child
}

/// Puts a manifest there without any protocol.
pub async fn put_manifest(repo: &Repository, manifest: &Manifest) {
    put_record(repo, &manifest.object_key(), ManifestRecord::Backup(Box::new(manifest.clone())))
        .await;
}

/// Puts a fence in the place of an attempt.
pub async fn put_fence(repo: &Repository, manifest: &Manifest) {
    let fence = ManifestRecord::Fence { by: "a collector".into(), time: minute(0) };
    put_record(repo, &manifest.object_key(), fence).await;
}

async fn put_record(repo: &Repository, key: &str, record: ManifestRecord) {
    let bytes = record.encode(repo.keys(), repo.id(), key).unwrap();
    repo.store().put(key, bytes).await.unwrap();
}

/// A feature that no version knows yet, and its object as a later version would store it.
pub fn later_feature(repo: &Repository, need: FeatureNeed, name: &str) -> (Feature, Vec<u8>) {
    let feature = Feature {
        name: FeatureName::new(need, name).unwrap(),
        about: "chunks smell of lavender".into(),
        since: "mover 7.0".into(),
        added: minute(0),
        tool: "mover 7.0".into(),
    };
    let key = feature.name.key();
    let bytes = feature.encode(repo.keys(), repo.id(), &key).unwrap();
    (feature, bytes)
}

/// Adds such a feature.
pub async fn add_later_feature(repo: &Repository, need: FeatureNeed, name: &str) {
    let (feature, bytes) = later_feature(repo, need, name);
    repo.store().create(&feature.name.key(), bytes.into()).await.unwrap();
}

/// A pack with one entry that no backup refers to.
pub fn pack_of_nobody(repo: &Repository) -> FinishedPack {
    let keys = repo.keys();
    let places = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, 1 << 20);
    let mut sealer = Sealer::new(Compression::Zstd(1)).unwrap();
    let chunks = [7; 2 * 4096];
    let ids = [keys.chunk_id(&chunks[..4096]); 2];
    let entry = sealer.seal_chunks(&places, &chunks, &[0..4096, 4096..8192], &ids).unwrap();
    let mut packs = PackBuilder::new(Arc::clone(keys), *repo.id(), PackKind::Chunks);
    packs.add(entry).unwrap();
    packs.close(places.close().unwrap()).unwrap();
    packs.take_finished().unwrap()
}
