//! Whether anything is in a repository that nothing refers to: found by a walk of its own, not by
//! the collector's.

use chunkstore::{
    BackupEntry, ChunkRef, Error, Location, PackId, Repository, Result, VolumeMap,
    format::{SegmentIndex, SegmentLayout, SegmentOpener, Stub, names},
    map::{PageAt, ReadLimits, Visitor, reach},
};
use std::collections::{BTreeMap, BTreeSet};

/// A chunk or page: pack, entry, index.
type Place = (PackId, u32, u16);

#[derive(Default)]
struct Places(BTreeSet<Place>);

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
async fn resolve(
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
            let key = names::stub_key(&pack);
            let bytes = repo.store().get(&key).await.expect("it can be read");
            vacant.insert(
                Stub::decode(repo.keys(), repo.id(), &key, &bytes).expect("it can be read"),
            );
        }
        let to = stubs[&pack].find(entry, index).expect("it can be read");
        places.insert((to.pack, to.entry, to.index));
    }
    (packs, stubs.into_keys().collect())
}

/// Panics unless every object is one that something refers to, or one of those that stay for ever.
pub async fn expect_clean(repo: &Repository, backups: usize, when: &str) {
    let (entries, problems) = repo.list_backups(None).await.expect("it can be read");
    assert!(problems.is_empty() && entries.len() == backups, "{when}: {entries:?} {problems:?}");
    let all = |b: &BackupEntry| VolumeMap::all_of(repo, &b.manifest).expect("it can be read");
    let maps: Vec<_> = entries.iter().flat_map(all).collect();
    let mut places = Places::default();
    reach(repo, &maps, ReadLimits::default(), &mut places).await.expect("it can be read");
    let keys: Vec<_> = repo.store().list("").await.expect("it can be read");
    let stored = keys.iter().filter_map(|l| names::parse_pack_key(&l.key).ok()).collect();
    let (packs, stubs) = resolve(repo, places.0, &stored).await;
    assert_eq!(stored, packs, "{when}: packs");
    let there = keys.iter().filter_map(|l| names::parse_stub_key(&l.key).ok()).collect();
    assert_eq!(stubs, there, "{when}: stubs");
    for listed in keys {
        let key = listed.key.as_str();
        if let Ok(id) = names::parse_segment_key(key) {
            let bytes = repo.store().get(key).await.expect("it can be read");
            let opener = SegmentOpener::new(repo.keys(), repo.keys().encryption(), &id);
            let trailer = &bytes[bytes.len() - 64..];
            let layout =
                SegmentLayout::decode("s", bytes.len() as u64, trailer).expect("it can be read");
            let at = layout.index();
            let at = usize::try_from(at.start).expect("it can be read")
                ..usize::try_from(at.end).expect("it can be read");
            let plain = opener.open_index(&layout, &bytes[at]).expect("it can be read");
            let index = SegmentIndex::decode("s", &layout, &plain).expect("it can be read");
            assert!(index.packs().all(|pack| stored.contains(&pack)), "{when}: {key}");
        } else if let Ok((_, object)) = names::parse_gc_key(key) {
            // a fence has nothing behind its kind
            let stays = object == names::GcObject::Verdict || listed.size_bytes <= 64 + 1 + 16;
            assert!(stays, "{when}: {key} is left");
        } else if key.starts_with("backups/") {
            let name = names::parse_manifest_key(key).expect("it can be read");
            let is_backup = entries.iter().any(|b| b.manifest.name() == name);
            assert!(is_backup || listed.size_bytes < 300, "{when}: {key} is left");
        } else {
            let kind = key.split('/').next().expect("it can be read");
            let base = names::TOP_KEYS.contains(&kind) || kind == names::README_KEY;
            let stays = base || ["keys", "forgotten", "packs", "moved", "features"].contains(&kind);
            assert!(stays, "{when}: {key} is left");
        }
    }
}
