//! Two backups of one content that share nothing.

use chunkstore::format::names::pack_key;
use chunkstore::{ChunkNo, Encryption, Location, MapReader, VolumeMap, VolumeName};
use mover_engine::ops::check::{CheckReport, ReadData};
use mover_engine::run::Cancel;
use object_store::ObjectStore;
use std::fs;
use std::sync::Arc;
use tests::{Rng, Vault, VaultParams};

pub(crate) const BOTH: [Encryption; 2] = [Encryption::Aes256Gcm, Encryption::None];
const CHUNKS: usize = 400;
const CUT_SHORT: &str = "a pack cut short";

pub(crate) type Objects = Arc<dyn ObjectStore>;
/// Damages `v@one` in some way.
pub(crate) type DamageIt = fn(&World, &Objects);

pub(crate) struct World {
    pub(crate) vault: Vault,
    pub(crate) content: Vec<u8>,
}

impl World {
    /// Backups `v@one` and `w@other`: no run knew what the other one had stored.
    pub(crate) fn new(name: &str, encryption: Encryption) -> Self {
        let params =
            VaultParams { chunk_bytes: 4096, entry_chunks: 4, page_fanout: 16, encryption };
        let vault = Vault::new(name, params);
        let mut content = Rng::new(77).bytes(CHUNKS * 4096 + 100);
        content[100 * 4096..140 * 4096].fill(0);
        let image = vault.path("v.img");
        fs::write(&image, &content).unwrap();
        let objects: Objects = vault.memory();
        vault.backup(objects.clone(), &image, "one", None).unwrap();
        let world = Self { vault, content };
        for key in world.vault.keys(&objects, "dedup") {
            world.delete(&objects, key.trim_start_matches("repo/"));
        }
        let mut options = world.vault.options(&image, "other", None);
        options.volume = Some(VolumeName::new("w").unwrap());
        let made = world.vault.run(objects, &options, &Cancel::new()).result.unwrap();
        assert_eq!(made.reused_bytes, 0);
        world
    }

    pub(crate) fn fork(&self) -> Objects {
        self.vault.fork()
    }

    /// An entry of chunks; a leaf; the root; a pack that ends too early.
    pub(crate) fn damages(&self) -> [(&'static str, DamageIt); 4] {
        [
            ("an entry", |w, o| w.flip_entry(o, &w.chunk_at("v@one", 5))),
            ("a leaf", |w, o| w.flip_entry(o, &w.page_at("v@one", 0, 3))),
            ("the root", |w, o| w.flip_entry(o, &w.page_at("v@one", 2, 0))),
            (CUT_SHORT, |w, o| {
                let at = w.chunk_at("v@one", 9);
                w.change(o, &pack_key(&at.pack), |bytes| bytes.truncate(at.offset as usize + 30));
            }),
        ]
    }

    /// Where a chunk of a backup is stored.
    pub(crate) fn chunk_at(&self, spec: &str, chunk: u64) -> Location {
        let repo = self.vault.open(self.vault.memory()).unwrap();
        self.vault.block_on(async {
            let manifest = repo.find_backup(spec).await.unwrap();
            let map = VolumeMap::of(&repo, &manifest).unwrap();
            let mut reader = MapReader::new(Arc::clone(&repo), map).unwrap();
            let pages = reader.load(std::slice::from_ref(&(chunk..chunk + 1))).await.unwrap();
            pages.chunk(ChunkNo(chunk)).unwrap().unwrap().location
        })
    }

    /// Where a page of a backup's map is stored.
    pub(crate) fn page_at(&self, spec: &str, level: u8, number: u64) -> Location {
        let repo = self.vault.open(self.vault.memory()).unwrap();
        self.vault.block_on(async {
            let manifest = repo.find_backup(spec).await.unwrap();
            if level + 1 == manifest.map.depth {
                return manifest.map.root.unwrap().location;
            }
            let chunk = number * 16_u64.pow(u32::from(level) + 1);
            let map = VolumeMap::of(&repo, &manifest).unwrap();
            let mut reader = MapReader::new(Arc::clone(&repo), map).unwrap();
            let pages = reader.load(std::slice::from_ref(&(chunk..chunk + 1))).await.unwrap();
            let above = pages.page(level + 1, number / 16).unwrap();
            above.page_ref(usize::try_from(number % 16).unwrap()).unwrap().location
        })
    }

    pub(crate) fn change(&self, objects: &Objects, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        self.vault.block_on(async {
            let mut bytes = repo.store().get(key).await.unwrap().to_vec();
            change(&mut bytes);
            repo.store().put(key, bytes).await.unwrap();
        });
    }

    pub(crate) fn copy(&self, objects: &Objects, from: &str, to: &str) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        self.vault.block_on(async {
            let bytes = repo.store().get(from).await.unwrap();
            repo.store().put(to, bytes).await.unwrap();
        });
    }

    pub(crate) fn flip_entry(&self, objects: &Objects, at: &Location) {
        self.change(objects, &pack_key(&at.pack), |bytes| bytes[at.offset as usize + 12] ^= 0x10);
    }

    pub(crate) fn delete(&self, objects: &Objects, key: &str) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        self.vault.block_on(repo.store().delete(key)).unwrap();
    }

    pub(crate) fn check(
        &self,
        objects: &Objects,
        read_data: ReadData,
        repair: bool,
    ) -> CheckReport {
        self.vault.check(Arc::clone(objects), read_data, repair).unwrap()
    }

    /// The backups that are listed, with their attempts.
    pub(crate) fn attempts(&self, objects: &Objects) -> Vec<(String, u32)> {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        let (listed, problems) = self.vault.block_on(repo.list_backups(None)).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let name = |m: &chunkstore::Manifest| (m.backup_id.to_string(), m.attempt);
        listed.iter().map(|b| name(&b.manifest)).collect()
    }

    /// Forgets a backup of either volume, as the program does.
    pub(crate) fn forget(&self, objects: &Objects, spec: &str) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        self.vault.block_on(async {
            let name = repo.find_to_forget(spec).await.unwrap();
            repo.forget_backup(&name, &[], "test").await.unwrap();
        });
    }

    /// `v@one` is read whole without a look elsewhere, and the structure of all is right.
    pub(crate) fn is_whole(&self, objects: &Objects, when: &str) {
        let verified = self.vault.verify(Arc::clone(objects), "one").unwrap();
        assert_eq!(verified.salvaged, None, "{when}");
        assert!(self.vault.restored(Arc::clone(objects), "one").unwrap() == self.content, "{when}");
        let report = self.check(objects, ReadData::Nothing, false);
        assert!(report.lost.is_empty() && report.elsewhere.is_empty(), "{when}: {report:?}");
        // what is left of a pack without its end is read by the references, and stays a finding
        let cut = when == CUT_SHORT;
        assert!(report.is_clean() || cut, "{when}: {:?}", report.findings);
    }
}
