use super::*;
use crate::dedup::{ScratchBytes, ScratchWriter};
use crate::error::{ErrorKind, Result};
use crate::format::segment::SegmentRecord;
use crate::ids::{PackId, SegmentId};
use crate::keys::Encryption;
use crate::map::model::{repository_in, run};
use crate::repository::Repository;
use object_store::memory::InMemory;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

const MIB: u64 = 1 << 20;

/// A scratch directory in memory that can be damaged or full.
#[derive(Debug, Default, Clone)]
struct MemoryScratch(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    copies: Mutex<HashMap<SegmentId, Arc<Vec<u8>>>>,
    full: AtomicBool,
}

struct Writing(MemoryScratch, SegmentId, Vec<u8>);

impl Scratch for MemoryScratch {
    fn open(&self, segment: &SegmentId) -> Option<ScratchBytes> {
        self.0.copies.lock().unwrap().get(segment).map(|c| Arc::clone(c) as ScratchBytes)
    }

    fn create(&self, segment: &SegmentId) -> Result<Box<dyn ScratchWriter>> {
        Ok(Box::new(Writing(self.clone(), *segment, Vec::new())))
    }

    fn remove(&self, segment: &SegmentId) {
        self.0.copies.lock().unwrap().remove(segment);
    }

    fn retain(&self, listed: &dyn Fn(&SegmentId) -> bool) {
        self.0.copies.lock().unwrap().retain(|id, _| listed(id));
    }
}

impl ScratchWriter for Writing {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.0.0.full.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::NoSpace, "write a test copy", "the disk is full"));
        }
        self.2.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ScratchBytes> {
        let bytes = Arc::new(self.2);
        self.0.0.copies.lock().unwrap().insert(self.1, Arc::clone(&bytes));
        Ok(bytes)
    }
}

impl MemoryScratch {
    fn ids(&self) -> Vec<SegmentId> {
        self.0.copies.lock().unwrap().keys().copied().collect()
    }

    fn flip(&self, id: &SegmentId, at: usize) {
        let mut copies = self.0.copies.lock().unwrap();
        let mut bytes = copies[id].to_vec();
        bytes[at] ^= 1;
        copies.insert(*id, Arc::new(bytes));
    }
}

fn id(n: u32) -> ChunkId {
    ChunkId::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes())
}

fn record(n: u32, pack: u8) -> SegmentRecord {
    let pack = PackId::from_bytes([pack; 32]);
    let location = Location {
        pack,
        entry: n % 1000,
        offset: 64 + n % 1000,
        stored_len: 100,
        index: u16::try_from(n % 16).unwrap(),
    };
    SegmentRecord { id: id(n), location }
}

fn repo(encryption: Encryption) -> Arc<Repository> {
    repository_in(Arc::new(InMemory::new()), 16, encryption)
}

/// Stores a segment of chunks that are all in one pack.
fn put(repo: &Repository, chunks: impl IntoIterator<Item = u32>, pack: u8) -> SegmentInfo {
    let records = chunks.into_iter().map(|n| record(n, pack)).collect();
    let (id, size_bytes) = run(repo.put_segment(records)).unwrap();
    SegmentInfo { id, size_bytes }
}

fn open(
    repo: &Arc<Repository>,
    segments: &[SegmentInfo],
    memory_bytes: u64,
    scratch: Option<&MemoryScratch>,
) -> DedupIndex {
    let options = DedupOptions { memory_bytes, worth_bytes: u64::MAX };
    let scratch = scratch.map(|s| Box::new(s.clone()) as Box<dyn Scratch>);
    run(DedupIndex::open(repo, segments.to_vec(), options, scratch))
}

fn look(index: &DedupIndex, n: u32, usable: impl Fn(&Location) -> bool) -> Option<Location> {
    loop {
        match index.lookup(&id(n), &usable) {
            Lookup::Absent => return None,
            Lookup::At(location) => return Some(location),
            Lookup::Needs(block) => run(index.load(block)),
        }
    }
}

fn any(_: &Location) -> bool {
    true
}

fn gets(repo: &Repository) -> u64 {
    repo.store().counts().gets
}

#[test]
fn chunks_are_found_by_range_and_in_copies() {
    for encryption in [Encryption::None, Encryption::Aes256Gcm] {
        let repo = repo(encryption);
        let segments = [put(&repo, 0..3000, 1), put(&repo, 2000..5000, 2), put(&repo, [9999], 3)];
        let scratch = MemoryScratch::default();
        for scratch in [None, Some(&scratch), Some(&scratch)] {
            let index = open(&repo, &segments, 8 * MIB, scratch);
            let stats = index.stats();
            assert_eq!((stats.segments, stats.records), (3, 6001));
            assert_eq!(stats.copies, if scratch.is_some() { 3 } else { 0 });
            for n in (0..6000).step_by(7) {
                let found = look(&index, n, any);
                let packs: Vec<u8> = [n < 3000, (2000..5000).contains(&n)]
                    .iter()
                    .zip([1, 2])
                    .filter(|(y, _)| **y)
                    .map(|(_, p)| p)
                    .collect();
                assert_eq!(found.is_some(), !packs.is_empty(), "{n}");
                assert!(found.is_none_or(|l| packs.iter().any(|p| record(n, *p).location == l)));
            }
            assert_eq!(look(&index, 9999, any), Some(record(9999, 3).location));
            // what may not be used is looked for elsewhere
            for (condemned, left) in [(1, 2), (2, 1)] {
                let usable = |l: &Location| l.pack != PackId::from_bytes([condemned; 32]);
                assert_eq!(look(&index, 2500, usable), Some(record(2500, left).location));
            }
            assert_eq!(look(&index, 2500, |_| false), None);
        }
        assert_eq!(scratch.ids().len(), 3);
    }
}

#[test]
fn little_is_read_for_little() {
    let repo = repo(Encryption::Aes256Gcm);
    let before = gets(&repo);
    assert_eq!(look(&open(&repo, &[], 8 * MIB, None), 1, any), None);
    assert_eq!(gets(&repo), before);
    // one request each, also where the index section is long
    let mut segments: Vec<_> = (0..20).map(|k| put(&repo, k * 100..(k + 1) * 100, 1)).collect();
    segments.push(put(&repo, 10_000..60_000, 2));
    let before = gets(&repo);
    let index = open(&repo, &segments, 8 * MIB, None);
    assert_eq!(gets(&repo) - before, 21);
    // what is in no segment is known from the filters
    for n in 100_000..100_100 {
        assert_eq!(look(&index, n, any), None);
    }
    let read = index.stats().block_reads;
    assert!(read <= 20, "{read} blocks were read in vain");
    assert!(look(&index, 12_345, any).is_some());
    assert!(index.stats().block_reads <= read + 1);
    // copies from an earlier run: no request at all
    let scratch = MemoryScratch::default();
    let small = &segments[..20];
    open(&repo, small, 8 * MIB, Some(&scratch));
    let before = gets(&repo);
    let index = open(&repo, small, 8 * MIB, Some(&scratch));
    assert!((0..2000).all(|n| look(&index, n, any).is_some()));
    assert_eq!((gets(&repo), index.stats().memory_bytes), (before, 0));
    // what is no longer listed goes
    open(&repo, &small[..3], 8 * MIB, Some(&scratch));
    assert_eq!(scratch.ids().len(), 3);
}

#[test]
fn nothing_is_read_of_segments_that_are_not_worth_it() {
    let repo = repo(Encryption::Aes256Gcm);
    let small: Vec<_> = (0..20).map(|n| put(&repo, n * 10..n * 10 + 10, 1)).collect();
    let large = put(&repo, 10_000..60_000, 2);
    let segments = [&small[..], &[large]].concat();
    let opened = |worth_bytes| {
        let options = DedupOptions { memory_bytes: 16 << 20, worth_bytes };
        let before = gets(&repo);
        let index = run(DedupIndex::open(&repo, segments.clone(), options, None));
        (index.stats(), gets(&repo) - before)
    };
    // the large one costs some 88 KiB and a request, each small one a request
    for (worth, used, records) in [
        (0, 0, 0),
        (24 << 10, 1, 10),
        (100 << 10, 4, 40),
        (110 << 10, 1, 50_000),
        (256 << 10, 7, 50_060),
        (u64::MAX, 21, 50_200),
    ] {
        let (stats, requests) = opened(worth);
        assert_eq!((stats.segments, stats.records, requests), (used, records, used), "{worth}");
        assert_eq!(stats.left_out, 21 - used);
    }
}

#[test]
fn a_segment_that_is_much_used_is_copied() {
    let repo = repo(Encryption::Aes256Gcm);
    let large = put(&repo, 0..60_000, 1);
    assert!(large.size_bytes > 2 * MIB);
    let scratch = MemoryScratch::default();
    let index = open(&repo, &[large], 8 * MIB, Some(&scratch));
    assert_eq!((index.stats().copies, scratch.ids().len()), (0, 0));
    for n in 0..5000 {
        assert_eq!(look(&index, n * 12, any), Some(record(n * 12, 1).location));
    }
    let stats = index.stats();
    assert_eq!((stats.copies, scratch.ids().len()), (1, 1));
    assert!((10..=14).contains(&stats.block_reads), "{stats:?}");
    let before = gets(&repo);
    assert!((0..60_000).step_by(97).all(|n| look(&index, n, any).is_some()));
    assert_eq!(gets(&repo), before);
}

#[test]
fn a_full_scratch_disk_does_no_harm() {
    let repo = repo(Encryption::Aes256Gcm);
    let segments = [put(&repo, 0..60_000, 1), put(&repo, 60_000..61_000, 2)];
    let scratch = MemoryScratch::default();
    scratch.0.full.store(true, Ordering::Relaxed);
    let index = open(&repo, &segments, 8 * MIB, Some(&scratch));
    assert!((0..61_000).step_by(50).all(|n| look(&index, n, any).is_some()));
    let stats = index.stats();
    assert_eq!((stats.segments, stats.copies, stats.damaged), (2, 0, 0));
    assert!(scratch.ids().is_empty());
}

#[test]
fn memory_is_bounded_and_what_does_not_fit_is_counted() {
    let repo = repo(Encryption::None);
    // small ones too, whose index section comes with their end
    let sizes = [5000, 2000];
    let segments: Vec<_> =
        (0..40).map(|k| put(&repo, k * 5000..k * 5000 + sizes[k as usize % 2], 1)).collect();
    for memory in [0, 64 << 10, 200 << 10, MIB, 8 * MIB] {
        let index = open(&repo, &segments, memory, None);
        let found = (0..200_000).step_by(1777).filter(|n| look(&index, *n, any).is_some()).count();
        let stats = index.stats();
        assert_eq!(stats.segments + stats.left_out, 40);
        assert_eq!(stats.damaged, 0);
        // a few blocks are held whatever the budget
        assert!(stats.memory_bytes <= memory + BLOCK_BYTES_MIN, "{memory}: {stats:?}");
        let index_bytes = stats.memory_bytes - index.blocks.bytes();
        assert!(index_bytes <= memory / 2, "{memory}: {stats:?}");
        assert_eq!(stats.left_out == 0, memory >= MIB, "{memory}: {stats:?}");
        assert!(if stats.segments == 0 { found == 0 } else { found > 0 });
    }
}

#[test]
fn lookups_end_when_they_cost_more_than_they_save() {
    let repo = repo(Encryption::None);
    let segment = put(&repo, 0..40_000, 1);
    let index = open(&repo, &[segment], 288 << 10, None);
    assert_eq!(index.stats().segments, 1);
    let found = (0..40_000).filter(|n| look(&index, *n, any).is_some()).count();
    let stats = index.stats();
    assert_eq!(stats.block_reads, BLOCK_READS_MAX);
    assert!(stats.given_up > 0 && found as u64 >= BLOCK_READS_MAX, "{stats:?}");
    assert_eq!(found as u64 + stats.given_up, 40_000);
}

#[test]
fn damaged_copies_are_found_and_made_again() {
    let repo = repo(Encryption::Aes256Gcm);
    let segments = [put(&repo, 0..3000, 1)];
    let whole = MemoryScratch::default();
    open(&repo, &segments, 8 * MIB, Some(&whole));
    let len = whole.0.copies.lock().unwrap()[&segments[0].id].len();
    for at in (0..len).step_by(997).chain([0, 11, 64, len - 1, len - 40, len - 200]) {
        let scratch = MemoryScratch::default();
        open(&repo, &segments, 8 * MIB, Some(&scratch));
        scratch.flip(&segments[0].id, at);
        let index = open(&repo, &segments, 8 * MIB, Some(&scratch));
        let found = (0..3000)
            .filter(|n| {
                look(&index, *n, any).inspect(|l| assert_eq!(*l, record(*n, 1).location)).is_some()
            })
            .count();
        let stats = index.stats();
        // found when it was opened: copied again. Found in a block: not used any more in this run.
        // The hash of the whole is not looked at, as every piece has its own tag
        assert!(found == 3000 || stats.damaged == 1, "byte {at}: {found} {stats:?}");
        if stats.damaged == 1 {
            assert!(scratch.ids().is_empty(), "it is gone for the next run");
            let index = open(&repo, &segments, 8 * MIB, Some(&scratch));
            assert!((0..3000).all(|n| look(&index, n, any).is_some()));
        }
    }
    for cut in [0, 1, 63, 64, 128, len / 2, len - 1] {
        let scratch = MemoryScratch::default();
        let bytes = whole.0.copies.lock().unwrap()[&segments[0].id][..cut].to_vec();
        scratch.0.copies.lock().unwrap().insert(segments[0].id, Arc::new(bytes));
        let index = open(&repo, &segments, 8 * MIB, Some(&scratch));
        assert!((0..3000).step_by(10).all(|n| look(&index, n, any).is_some()));
        assert_eq!(scratch.0.copies.lock().unwrap()[&segments[0].id].len(), len);
    }
    // a copy of another segment under this one's name
    let other = put(&repo, 5000..8000, 2);
    let scratch = MemoryScratch::default();
    open(&repo, &[other], 8 * MIB, Some(&scratch));
    let bytes = scratch.0.copies.lock().unwrap().remove(&other.id).unwrap();
    scratch.0.copies.lock().unwrap().insert(segments[0].id, bytes);
    let index = open(&repo, &segments, 8 * MIB, Some(&scratch));
    assert_eq!(look(&index, 5, any), Some(record(5, 1).location));
    assert_eq!(look(&index, 5005, any), None);
}

#[test]
fn segments_that_cannot_be_read_or_trusted_are_left_out() {
    let repo = repo(Encryption::Aes256Gcm);
    let good = put(&repo, 0..2000, 1);
    let bad = put(&repo, 2000..60_000, 2);
    let gone = put(&repo, 60_000..61_000, 3);
    run(repo.store().delete(&segment_key(&gone.id))).unwrap();
    let key = segment_key(&bad.id);
    let whole = run(repo.store().get(&key)).unwrap();
    let len = whole.len();
    let all = [good, bad, gone];
    // in the trailer, in the index section
    for at in [len - 60, len - 1000, len - 20_000] {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1;
        run(repo.store().put(&key, bytes)).unwrap();
        let stats = open(&repo, &all, 8 * MIB, None).stats();
        assert_eq!((stats.segments, stats.damaged, stats.left_out), (1, 1, 0), "byte {at}");
    }
    // in a block: found when it is read
    let mut bytes = whole.to_vec();
    bytes[64 + 100] ^= 1;
    run(repo.store().put(&key, bytes)).unwrap();
    let index = open(&repo, &all, 8 * MIB, None);
    assert_eq!(index.stats().segments, 2);
    let found = (0..60_000).filter(|n| look(&index, *n, any).is_some()).count();
    assert!((2000..60_000).contains(&found), "{found}");
    assert_eq!((index.stats().segments, index.stats().damaged), (1, 1));
    // a size that is not that of the object
    for size_bytes in [0, 63, good.size_bytes - 1, good.size_bytes + 1] {
        let wrong = SegmentInfo { id: good.id, size_bytes };
        assert_eq!(open(&repo, &[wrong], 8 * MIB, None).stats().damaged, 1, "{size_bytes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Whatever the budget, an answer is right; with enough of it, and a place that may be used,
    /// there is one.
    #[test]
    fn answers_are_as_the_model_says(
        segments in prop::collection::vec((prop::collection::vec(0u32..4000, 1..1500), 1u8..6), 0..6),
        memory in prop_oneof![Just(8 * MIB), 0u64..400_000],
        with_scratch in proptest::bool::ANY,
        condemned in prop::collection::vec(1u8..6, 0..3),
    ) {
        let repo = repo(Encryption::None);
        let mut model: BTreeMap<u32, Vec<Location>> = BTreeMap::new();
        let mut infos = Vec::new();
        for (chunks, pack) in &segments {
            infos.push(put(&repo, chunks.iter().copied(), *pack));
            for n in chunks {
                model.entry(*n).or_default().push(record(*n, *pack).location);
            }
        }
        let scratch = MemoryScratch::default();
        let usable = |l: &Location| condemned.iter().all(|p| l.pack != PackId::from_bytes([*p; 32]));
        for _ in 0..2 {
            let index = open(&repo, &infos, memory, with_scratch.then_some(&scratch));
            for n in (0..4000).step_by(3) {
                let places: Vec<_> = model.get(&n).into_iter().flatten().filter(|l| usable(l)).collect();
                let found = look(&index, n, usable);
                prop_assert!(found.is_none_or(|l| places.contains(&&l)));
                prop_assert!(memory < 8 * MIB || found.is_some() != places.is_empty());
            }
            prop_assert!(index.stats().memory_bytes <= memory + BLOCK_BYTES_MIN);
        }
    }
}
