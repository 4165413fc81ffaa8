//! Incremental backups on a parent of which something stored is damaged.
//!
//! What is recorded as damaged is read from the volume and stored again, inherited subtrees
//! included, and the new backup restores bit for bit. What is damaged but not recorded is never
//! inherited unnoticed where its page is needed.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::format::names::pack_key;
use chunkstore::{
    ChunkRef, Encryption, Error, ErrorKind, Location, VolumeMap,
    map::{PageAt, ReadLimits, Visitor, reach},
    repository::DamagedSet,
};
use object_store::ObjectStore;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{Rng, Vault, VaultParams, changed_extents, extents_json};

const CHUNK: usize = 4096;

struct World {
    vault: Vault,
    image: PathBuf,
    list: PathBuf,
    content: Vec<u8>,
    places: Places,
}

/// Where everything of the full backup is.
#[derive(Default)]
struct Places {
    /// With level and number.
    pages: Vec<(u8, u64, Location)>,
    chunks: Vec<Location>,
}

impl Visitor for Places {
    fn page(&mut self, at: &PageAt) -> chunkstore::Result<bool> {
        self.pages.push((at.level, at.number, at.page.location));
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> chunkstore::Result<()> {
        self.chunks.push(chunk.location);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> chunkstore::Result<()> {
        Err(error)
    }
}

impl Places {
    fn page(&self, level: u8, number: u64) -> &Location {
        &self.pages.iter().find(|p| (p.0, p.1) == (level, number)).unwrap().2
    }
}

/// A full backup `full`, and a small change with its list for the backup that comes next.
fn world(name: &str, encryption: Encryption) -> World {
    let mut rng = Rng::new(41);
    let params = VaultParams { chunk_bytes: 4096, entry_chunks: 4, page_fanout: 16, encryption };
    let vault = Vault::new(name, params);
    let (image, old) = (vault.path("v.img"), vault.path("old.img"));
    let mut content = rng.bytes(700 * CHUNK + 100);
    content[300 * CHUNK..340 * CHUNK].fill(0);
    fs::write(&image, &content).unwrap();
    vault.backup(vault.memory(), &image, "full", None).unwrap();
    fs::copy(&image, &old).unwrap();
    content[5 * CHUNK..5 * CHUNK + 10].copy_from_slice(&[9; 10]);
    fs::write(&image, &content).unwrap();
    let list = vault.path("list.json");
    let extents = changed_extents(&old, &image, 512);
    fs::write(&list, extents_json(content.len() as u64, "delta", &extents).to_string()).unwrap();
    let places = places(&vault);
    World { vault, image, list, content, places }
}

fn places(vault: &Vault) -> Places {
    let repo = vault.open(vault.memory()).unwrap();
    let manifest = vault.block_on(repo.find_backup("v@full")).unwrap();
    let map = VolumeMap::of(&repo, &manifest).unwrap();
    let mut places = Places::default();
    vault.block_on(reach(&repo, &[map], ReadLimits::default(), &mut places)).unwrap();
    places
}

impl World {
    /// Flips a byte of the entry at `place`, or with `gone` deletes its pack.
    fn damage(&self, objects: &Arc<dyn ObjectStore>, place: &Location, gone: bool) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        let key = pack_key(&place.pack);
        if gone {
            self.vault.block_on(repo.store().delete(&key)).unwrap();
            return;
        }
        let mut bytes = self.vault.block_on(repo.store().get(&key)).unwrap().to_vec();
        bytes[place.offset as usize + 12] ^= 0x10;
        self.vault.block_on(repo.store().put(&key, bytes)).unwrap();
    }

    fn record(&self, objects: &Arc<dyn ObjectStore>, place: &Location, whole: bool) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        let mut damaged = DamagedSet::default();
        damaged.insert(place.pack, (!whole).then_some(place.entry));
        assert_eq!(self.vault.block_on(repo.put_damage(&damaged)).unwrap(), 1);
        assert_eq!(self.vault.block_on(repo.read_damage()).unwrap(), (damaged, Vec::new()));
    }

    /// Damages, records, backs up by the delta and as a whole, restores both. Gives the bytes that
    /// the delta read.
    fn heals(&self, what: &str, place: &Location, gone: bool) -> u64 {
        let objects: Arc<dyn ObjectStore> = self.vault.fork();
        self.damage(&objects, place, gone);
        let e = self.vault.restored(Arc::clone(&objects), "full").unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing), "{what}: {e}");
        self.record(&objects, place, gone);
        let mut read = 0;
        for (id, list) in [("delta", Some(("full", self.list.as_path()))), ("whole", None)] {
            let summary = self.vault.backup(Arc::clone(&objects), &self.image, id, list).unwrap();
            let restored = self.vault.restored(Arc::clone(&objects), id).unwrap();
            assert!(restored == self.content, "{what}: {id} restores to something else");
            if list.is_some() {
                read = summary.read_bytes;
                assert!(summary.new_bytes > 0, "{what}");
            }
        }
        println!("{what}: the delta read {read} bytes");
        read
    }
}

#[test]
fn what_is_damaged_in_the_parent_is_read_and_stored_again() {
    for (name, encryption) in
        [("damaged-parent", Encryption::Aes256Gcm), ("damaged-parent-plain", Encryption::None)]
    {
        let w = world(name, encryption);
        let chunk = CHUNK as u64;
        let changed = chunk;
        let far = w.places.chunks[w.places.chunks.len() / 2];
        let read = w.heals("an entry of chunks", &far, false);
        assert!(read > changed && read <= changed + 4 * chunk, "{read}");
        let mut spans = Vec::new();
        for (level, number) in [(0, 30), (1, 1), (2, 0)] {
            let place = w.places.page(level, number);
            spans.push(w.heals(&format!("a page of level {level}"), place, false));
        }
        assert_eq!(spans[0], changed + 16 * chunk);
        assert!(spans[0] < spans[1] && spans[1] < spans[2], "{spans:?}");
        w.heals("a pack of chunks", &far, true);
        w.heals("a pack of pages", w.places.page(2, 0), true);
    }
}

#[test]
fn what_is_not_recorded_ends_a_backup_with_the_way_out() {
    let w = world("unrecorded", Encryption::Aes256Gcm);
    let objects: Arc<dyn ObjectStore> = w.vault.fork();
    w.damage(&objects, w.places.page(2, 0), false);
    let list = Some(("full", w.list.as_path()));
    let e = w.vault.backup(objects, &w.image, "delta", list).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert!(e.to_string().contains("build on the parent backup"), "{e}");
}
