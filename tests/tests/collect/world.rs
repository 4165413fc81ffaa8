//! A repository with garbage, what must be restorable from it, and what may be left in it.

use chunkstore::{
    ChunkRef, Encryption, Error, Location, Moved, PackId, PageAt, ReadLimits, Repository, Result,
    SegmentIndex, SegmentLayout, SegmentOpener, Visitor, VolumeMap, names, reach,
};
use object_store::ObjectStore;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{ClockedStore, Rng, Vault, VaultParams};

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 4096;
/// Longer than any lease of these tests.
pub(crate) const LONG: i64 = 3600;

/// A vault, and images with what they hold. Some share chunks.
pub(crate) struct World {
    pub(crate) vault: Vault,
    pub(crate) images: Vec<(PathBuf, Vec<u8>)>,
}

/// What is committed: ids of backups and numbers of images.
pub(crate) type Committed<'a> = &'a [(&'a str, usize)];

impl World {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let mut rng = Rng::new(23);
        let params = VaultParams {
            chunk_bytes: u32::try_from(CHUNK).unwrap(),
            entry_chunks: 4,
            page_fanout: 16,
            encryption: Encryption::Aes256Gcm,
        };
        let vault = Vault::new(name, params);
        let shared = rng.bytes(10 * CHUNK);
        let mut image = |own: usize, of_shared: usize| {
            let mut content = rng.bytes(own * CHUNK);
            content.extend(&shared[..of_shared * CHUNK]);
            content
        };
        let contents = [image(40, 10), image(30, 0), image(20, 5), image(15, 0)];
        let write = |(n, content): (usize, Vec<u8>)| {
            let path = vault.path(&format!("image{n}"));
            fs::write(&path, &content).unwrap();
            (path, content)
        };
        let images = contents.into_iter().enumerate().map(write).collect();
        Arc::new(Self { vault, images })
    }

    /// The empty repository.
    pub(crate) fn start(&self) -> Arc<ClockedStore> {
        ClockedStore::new(self.vault.memory().fork())
    }

    pub(crate) fn backup(
        &self,
        objects: Arc<dyn ObjectStore>,
        id: &str,
        image: usize,
    ) -> Result<()> {
        self.vault.backup(objects, &self.images[image].0, id, None).map(|_| ())
    }

    /// Backups `one` of image 0, `two` of image 1, `three` of image 2; `one` is forgotten. A pack of it is mostly dead.
    pub(crate) fn with_garbage(&self) -> Arc<ClockedStore> {
        let objects = self.start();
        self.backup(objects.clone(), "one", 0).unwrap();
        self.backup(objects.clone(), "two", 1).unwrap();
        self.backup(objects.clone(), "three", 2).unwrap();
        self.vault.forget(objects.clone(), "one").unwrap();
        objects
    }

    pub(crate) fn check(&self, objects: &Arc<ClockedStore>, committed: Committed<'_>, when: &str) {
        for (id, image) in committed {
            let restored = self.vault.restored(objects.clone(), id);
            let restored = restored.unwrap_or_else(|e| panic!("{when}: {id}: {e}"));
            assert!(restored == self.images[*image].1, "{when}: {id} is another");
        }
    }

    /// Two collections, after all leases have run out: all is there, and nothing else is.
    pub(crate) fn settle(&self, objects: &Arc<ClockedStore>, committed: Committed<'_>, when: &str) {
        self.check(objects, committed, when);
        for _ in 0..2 {
            objects.advance(LONG);
            self.vault.collect(objects.clone(), false).unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        self.check(objects, committed, when);
        let repo = self.vault.open(objects.clone()).unwrap();
        self.vault.block_on(expect_clean(&repo, committed.len(), when));
    }
}

/// A chunk or page: pack, entry, index.
pub(crate) type Place = (PackId, u32, u16);

#[derive(Default)]
pub(crate) struct Places(BTreeSet<Place>);

impl Places {
    fn insert(&mut self, at: &Location) -> bool {
        self.0.insert((at.pack, at.entry, at.index))
    }
}

impl Visitor for Places {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        Ok(self.insert(&at.page.location))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.insert(&chunk.location);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Follows stubs by hand; gives the packs that all lies in, and those that stubs are needed of.
pub(crate) async fn resolve(
    repo: &Repository,
    mut places: BTreeSet<Place>,
    stored: &BTreeSet<PackId>,
) -> (BTreeSet<PackId>, BTreeSet<PackId>) {
    let mut stubs = BTreeMap::new();
    let mut packs = BTreeSet::new();
    while let Some((pack, entry, index)) = places.pop_first() {
        if stored.contains(&pack) {
            packs.insert(pack);
            continue;
        }
        if let std::collections::btree_map::Entry::Vacant(vacant) = stubs.entry(pack) {
            let key = names::moved_key(&pack);
            let bytes = repo.store().get(&key).await.unwrap();
            vacant.insert(Moved::decode(repo.keys(), repo.id(), &key, &bytes).unwrap());
        }
        let to = stubs[&pack].find(entry, index).unwrap();
        places.insert((to.pack, to.entry, to.index));
    }
    (packs, stubs.into_keys().collect())
}

/// Every object is one that something refers to, or one of those that stay for ever.
pub(crate) async fn expect_clean(repo: &Repository, backups: usize, when: &str) {
    let (entries, problems) = repo.list_backups(None).await.unwrap();
    assert!(problems.is_empty() && entries.len() == backups, "{when}: {entries:?} {problems:?}");
    let maps: Vec<_> = entries.iter().map(|b| VolumeMap::of(repo, &b.manifest).unwrap()).collect();
    let mut places = Places::default();
    reach(repo, &maps, ReadLimits::default(), &mut places).await.unwrap();
    let keys: Vec<_> = repo.store().list("").await.unwrap();
    let stored = keys.iter().filter_map(|l| names::parse_pack_key(&l.key).ok()).collect();
    let (packs, stubs) = resolve(repo, places.0, &stored).await;
    assert_eq!(stored, packs, "{when}: packs");
    let moved = keys.iter().filter_map(|l| names::parse_moved_key(&l.key).ok()).collect();
    assert_eq!(stubs, moved, "{when}: stubs");
    for listed in keys {
        let key = listed.key.as_str();
        if let Ok(id) = names::parse_segment_key(key) {
            let bytes = repo.store().get(key).await.unwrap();
            let opener = SegmentOpener::new(repo.keys(), repo.keys().encryption(), &id);
            let trailer = &bytes[bytes.len() - 64..];
            let layout = SegmentLayout::decode("s", bytes.len() as u64, trailer).unwrap();
            let at = layout.index();
            let at = usize::try_from(at.start).unwrap()..usize::try_from(at.end).unwrap();
            let plain = opener.open_index(&layout, &bytes[at]).unwrap();
            let index = SegmentIndex::decode("s", &layout, &plain).unwrap();
            assert!(index.packs().all(|pack| stored.contains(&pack)), "{when}: {key}");
        } else if let Ok((_, object)) = names::parse_gc_key(key) {
            // a fence has nothing behind its kind
            let stays = object == names::GcObject::Verdict || listed.size_bytes <= 64 + 1 + 16;
            assert!(stays, "{when}: {key} is left");
        } else if key.starts_with("backups/") {
            let name = names::parse_manifest_key(key).unwrap();
            let is_backup = entries.iter().any(|b| b.manifest.name() == name);
            assert!(is_backup || listed.size_bytes < 300, "{when}: {key} is left");
        } else {
            let kind = key.split('/').next().unwrap();
            let stays = ["format", "keys", "forgotten", "packs", "moved"].contains(&kind);
            assert!(stays, "{when}: {key} is left");
        }
    }
}
