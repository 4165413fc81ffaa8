use super::*;
use crate::error::ErrorKind;
use crate::format::names;
use crate::keys::Encryption;
use crate::map::LiveSet;
use crate::map::model::{
    Build, Built, Update, chunk, packs, repository, repository_in, rewrite, run,
};
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::sync::Arc;

const C: u64 = 4096;

/// Marks what is reached, and keeps what cannot be read.
struct Seen {
    live: LiveSet,
    chunks: BTreeSet<(u32, u64)>,
    lost: Vec<(PageAt, Error)>,
}

impl Seen {
    fn new() -> Self {
        Self { live: LiveSet::new(16), chunks: BTreeSet::new(), lost: Vec::new() }
    }
}

impl Visitor for Seen {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        self.live.insert(&at.page.location)
    }

    fn chunk(&mut self, leaf: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        self.live.insert(&chunk.location)?;
        self.chunks.insert((leaf.map, number));
        Ok(())
    }

    fn unreadable(&mut self, at: &PageAt, error: Error) -> Result<()> {
        self.lost.push((*at, error));
        Ok(())
    }
}

fn walk(repo: &Repository, built: &[&Built]) -> (Seen, Reached) {
    let maps: Vec<_> = built.iter().map(|b| b.map.clone()).collect();
    let mut seen = Seen::new();
    let reached = run(reach(repo, &maps, ReadLimits::default(), &mut seen)).unwrap();
    (seen, reached)
}

fn dense(repo: &Arc<Repository>, chunks: u64, pack_bytes: u32) -> Built {
    let all = Update::Set(0..chunks, (0..chunks).map(|k| Some(chunk(k, 0))).collect());
    Build { pack_bytes, ..Build::new(repo, chunks * C) }.run(&[all])
}

#[test]
fn shared_subtrees_are_read_once() {
    let repo = repository_in(Arc::new(InMemory::new()), 16, Encryption::Aes256Gcm);
    let first = dense(&repo, 3000, 64 << 10);
    let second = Build::on(&repo, 3000 * C, &first)
        .run(&[Update::Set(2000..2001, vec![Some(chunk(77_777, 0))])]);
    let empty = Build::new(&repo, 3000 * C).run(&[Update::Zero(0..3000)]);
    assert_eq!(second.pages, 3);
    let (seen, reached) = walk(&repo, &[&empty, &first, &second, &first]);
    assert_eq!(reached.pages, first.pages + 3);
    assert!(seen.lost.is_empty());
    // the second map's own leaf is 16 chunks
    assert_eq!(seen.chunks.len(), 3000 + 16);
    for chunk in first.model.chunks.values().chain(second.model.chunks.values()) {
        assert!(seen.live.contains(&chunk.location.pack, chunk.location.entry, 0));
    }
    let chunks = 3000 + 1;
    assert_eq!(seen.live.live_chunks(), chunks + reached.pages);
}

#[test]
fn a_large_map_is_a_handful_of_requests() {
    let repo = repository_in(Arc::new(InMemory::new()), 128, Encryption::Aes256Gcm);
    let built = dense(&repo, 10_000 * 128, 1 << 30);
    let before = repo.store().counts().gets;
    let (seen, reached) = walk(&repo, &[&built]);
    let gets = repo.store().counts().gets - before;
    assert_eq!(reached.pages, built.pages);
    assert_eq!(seen.chunks.len(), 1_280_000);
    assert!(gets <= 16, "{gets} requests");
}

#[test]
fn packs_that_were_rewritten_are_followed() {
    let repo = repository(16);
    let built = dense(&repo, 3000, 8 << 10);
    for _ in 0..3 {
        for pack in run(packs(&repo)) {
            run(rewrite(&repo, &pack));
        }
    }
    let (seen, reached) = walk(&repo, &[&built]);
    assert!(seen.lost.is_empty(), "{:?}", seen.lost);
    assert_eq!((reached.pages, seen.chunks.len()), (built.pages, 3000));
}

/// Reads are merged, so a damaged page comes together with good ones: only itself is lost.
#[test]
fn one_bad_page_is_not_taken_for_many() {
    let repo = repository(16);
    let built = dense(&repo, 3000, 1 << 30);
    let root = built.map.root().root.unwrap();
    let key = names::pack_key(&root.location.pack);
    let mut bytes = run(repo.store().get(&key)).unwrap().to_vec();
    bytes[70] ^= 1; // in the first leaf
    run(repo.store().put(&key, bytes.clone())).unwrap();
    let (seen, reached) = walk(&repo, &[&built]);
    assert_eq!(reached.pages, built.pages - 1);
    let [(at, error)] = &seen.lost[..] else { panic!("{:?}", seen.lost) };
    assert_eq!((at.level, at.number, error.kind()), (0, 0, ErrorKind::Corrupt));
    assert!(error.to_string().contains("chunks 0..16"), "{error}");
    assert_eq!(seen.chunks.len(), 3000 - 16);
    // cut short: reads behind the end fail as a whole, and are tried page by page
    bytes.truncate(bytes.len() / 2);
    run(repo.store().put(&key, bytes)).unwrap();
    let (seen, _) = walk(&repo, &[&built]);
    assert_eq!(seen.lost.len(), 1, "the root stood at the end");
}

#[test]
fn a_lost_pack_loses_what_is_below_it_and_no_more() {
    let repo = repository(16);
    let built = dense(&repo, 3000, 8 << 10);
    let root = built.map.root().root.unwrap().location.pack;
    let lost = run(packs(&repo)).into_iter().find(|p| *p != root).unwrap();
    run(repo.store().delete(&names::pack_key(&lost))).unwrap();
    let (seen, reached) = walk(&repo, &[&built]);
    assert!(!seen.lost.is_empty() && reached.pages > 0);
    for (at, error) in &seen.lost {
        assert_eq!((at.page.location.pack, error.kind()), (lost, ErrorKind::Missing), "{error}");
    }
}
