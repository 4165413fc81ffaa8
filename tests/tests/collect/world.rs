//! A repository with garbage, what must be restorable from it, and what may be left in it.

use chunkstore::{Encryption, Result};
use object_store::ObjectStore;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{Clocked, ClockedStore, Rng, Vault, VaultParams, expect_clean};

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
        let shared = rng.bytes(10 * CHUNK);
        let mut image = |own: usize, of_shared: usize| {
            let mut content = rng.bytes(own * CHUNK);
            content.extend(&shared[..of_shared * CHUNK]);
            content
        };
        Self::of(name, [image(40, 10), image(30, 0), image(20, 5), image(15, 0)], None)
    }

    /// With images of these contents, and a checkpoint so often.
    pub(crate) fn of(
        name: &str,
        contents: impl IntoIterator<Item = Vec<u8>>,
        checkpoint_bytes: Option<u64>,
    ) -> Arc<Self> {
        let params = VaultParams {
            chunk_bytes: u32::try_from(CHUNK).unwrap(),
            entry_chunks: 4,
            page_fanout: 16,
            encryption: Encryption::Aes256Gcm,
        };
        let vault = Vault::new(name, params).with_a_volume_that_changes();
        let vault = match checkpoint_bytes {
            Some(bytes) => vault.with_checkpoints(bytes),
            None => vault,
        };
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
        Clocked::over(self.vault.memory().fork())
    }

    pub(crate) fn backup(
        &self,
        objects: Arc<dyn ObjectStore>,
        id: &str,
        image: usize,
    ) -> Result<()> {
        self.vault.backup(objects, &self.images[image].0, id, None).map(|_| ())
    }

    /// Backups `one` of image 0, `two` of image 1, `three` of image 2; `one` is forgotten. A pack
    /// of it is mostly dead.
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

    /// As [`Self::settle`], once more has become garbage: segments that could not be replaced when
    /// their packs went are replaced by the next collection from which a pack goes.
    pub(crate) fn settle_later(
        &self,
        objects: &Arc<ClockedStore>,
        committed: Committed<'_>,
        when: &str,
    ) {
        self.check(objects, committed, when);
        self.backup(objects.clone(), "more", 3).unwrap_or_else(|e| panic!("{when}: {e}"));
        self.vault.forget(objects.clone(), "more").unwrap_or_else(|e| panic!("{when}: {e}"));
        self.settle(objects, committed, when);
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

/// The keys below a prefix.
pub(crate) fn keys_below(world: &World, objects: &Arc<ClockedStore>, prefix: &str) -> Vec<String> {
    let repo = world.vault.open(objects.clone()).unwrap();
    let listed = world.vault.block_on(repo.store().list(prefix)).unwrap();
    listed.into_iter().map(|l| l.key).collect()
}
