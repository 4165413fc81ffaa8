//! Steps that read what is stored, from a repository in memory: no disk and no network in the
//! figures.

use super::CHUNK;
use chunkstore::{
    ChunkId, ChunkNo, ChunkRef, ChunkSize, Compression, Credential, Encryption, Geometry,
    InitOptions, KdfCost, Location, MapBuilder, MapReader, PackId, Repository, Store, VolumeMap,
    dedup::{DedupIndex, DedupOptions, Lookup},
    format::SegmentRecord,
    map::{Inherit, PageSink, diff},
    repository::SegmentInfo,
};
use criterion::{Criterion, Throughput};
use object_store::memory::InMemory;
use object_store::path::Path;
use std::hint::black_box;
use std::sync::Arc;
use tokio::runtime::Runtime;

const FANOUT: u16 = 128;
/// 64 GiB of 64 KiB chunks.
const CHUNKS: u64 = 1 << 20;
/// Chunks in one run that differ, and how far apart the runs are.
const CHANGED_RUN: u64 = 16;
const CHANGED_STEP: u64 = 16 << 10;

fn repository(rt: &Runtime) -> Arc<Repository> {
    let store = Store::new(Arc::new(InMemory::new()), Path::from("repo"), "memory");
    let options = InitOptions {
        chunk: ChunkSize::new(u32::try_from(CHUNK).unwrap()).unwrap(),
        entry_chunks: 16,
        page_fanout: FANOUT,
        encryption: Encryption::Aes256Gcm,
        credential: Some(Credential::from_key_file_bytes(&[7; 32]).unwrap()),
        label: "bench".into(),
        kdf: KdfCost::default(),
        created_by: "bench".into(),
    };
    rt.block_on(Repository::init(store, options)).unwrap()
}

fn id(content: u64) -> ChunkId {
    ChunkId::from_bytes(*blake3::hash(&content.to_le_bytes()).as_bytes())
}

fn location(n: u64) -> Location {
    let entry = u32::try_from(n / 16 % 500).unwrap();
    Location {
        pack: PackId::from_bytes([u8::try_from(n / 8000 % 251).unwrap(); 32]),
        entry,
        offset: 64 + entry * 60_000,
        stored_len: 60_000,
        index: u16::try_from(n % 16).unwrap(),
    }
}

/// A stored map whose chunk `n` has the content that `content` says.
fn map(rt: &Runtime, repo: &Arc<Repository>, content: impl Fn(u64) -> u64) -> VolumeMap {
    let geometry = Geometry::new(CHUNKS * CHUNK as u64, repo.params().chunk).unwrap();
    let keys = repo.keys();
    let mut sink = PageSink::new(keys, *repo.id(), Compression::Zstd(1), 32 << 20).unwrap();
    let mut builder =
        MapBuilder::new(Arc::clone(keys), FANOUT, geometry, Inherit::Nothing, None).unwrap();
    for n in 0..CHUNKS {
        let chunk = ChunkRef { id: id(content(n)), location: location(n) };
        builder.set(&mut sink, ChunkNo(n), Some(chunk)).unwrap();
    }
    let root = builder.finish(&mut sink).unwrap();
    sink.close().unwrap();
    while let Some(pack) = sink.take_finished() {
        rt.block_on(repo.put_pack(&pack)).unwrap();
    }
    VolumeMap::new(root, geometry, FANOUT, "a bench").unwrap()
}

/// Two maps that differ in a thousandth of their chunks. Readers are new each time, so the pages
/// are fetched, opened and checked.
pub(crate) fn map_diff(c: &mut Criterion) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let repo = repository(&rt);
    let old = map(&rt, &repo, |n| n);
    let changed = |n: u64| n % CHANGED_STEP < CHANGED_RUN;
    let new = map(&rt, &repo, |n| if changed(n) { n + CHUNKS } else { n });
    let compare = || {
        let mut a = MapReader::new(Arc::clone(&repo), old.clone()).unwrap();
        let mut b = MapReader::new(Arc::clone(&repo), new.clone()).unwrap();
        rt.block_on(diff(&mut a, &mut b)).unwrap()
    };
    let runs = compare();
    assert!(
        runs.len() as u64 == CHUNKS / CHANGED_STEP && runs[1].end - runs[1].start == CHANGED_RUN
    );
    let mut group = c.benchmark_group("map");
    group.throughput(Throughput::Elements(runs.len() as u64)).sample_size(10);
    group.bench_function("diff two maps of 64 GiB, 64 changed places", |b| {
        b.iter(|| black_box(compare()));
    });
    group.finish();
}

/// Chunks that a segment knows, and chunks that its filter turns away, blocks being in memory.
pub(crate) fn segment_lookup(c: &mut Criterion) {
    const RECORDS: u64 = 200_000;
    const ASKED: u64 = 4096;
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let repo = repository(&rt);
    let records =
        (0..RECORDS).map(|n| SegmentRecord { id: id(n), location: location(n) }).collect();
    let (segment, size_bytes) = rt.block_on(repo.put_segment(records)).unwrap();
    let options = DedupOptions { memory_bytes: 256 << 20, worth_bytes: u64::MAX };
    let segments = vec![SegmentInfo { id: segment, size_bytes }];
    let index = rt.block_on(DedupIndex::open(&repo, segments, options, None));
    let ids = |first: u64| -> Vec<ChunkId> { (first..first + ASKED).map(id).collect() };
    let (known, unknown) = (ids(0), ids(RECORDS));
    let find = |id: &ChunkId| index.lookup(id, |_| true);
    for id in known.iter().chain(&unknown) {
        while let Lookup::Needs(block) = find(id) {
            rt.block_on(index.load(block));
        }
    }
    assert!(known.iter().all(|id| matches!(find(id), Lookup::At(_))));
    assert!(unknown.iter().all(|id| find(id) == Lookup::Absent));
    let mut group = c.benchmark_group("dedup segment of 200,000 chunks");
    group.throughput(Throughput::Elements(ASKED));
    for (name, ids) in [("look up known chunks", known), ("look up unknown chunks", unknown)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                ids.iter().for_each(|id| {
                    black_box(find(id));
                });
            });
        });
    }
    group.finish();
}
