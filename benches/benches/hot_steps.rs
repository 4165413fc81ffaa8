//! Each hot step of a backup and a restore by itself: bytes or items a second on one core.
//!
//! `cargo bench -p benches` measures; `cargo bench -p benches -- --test` only runs each once.
#![allow(missing_docs)] // the macros of criterion make items without any
#![allow(clippy::unwrap_used)] // a benchmark that fails should stop

#[path = "hot_steps/stored.rs"]
mod stored;

use benches::{mixed, noise};
use chunkstore::testkit::is_worth_trying;
use chunkstore::{
    ChunkId, ChunkRef, ChunkSize, Compression, Encryption, Geometry, Keys, Location, MapBuilder,
    Opener, PackAllocator, PackBuilder, PackId, PackKind, RepositoryId, Sealer,
    dedup::RunTable,
    is_zero,
    keys::MasterKey,
    map::{Inherit, PageSink},
    pack::{ClosedPack, EntryKind},
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mover_changes::{Changes, ParseOptions, PlanInput, parse_changed_blocks, plan_backup};
use std::hint::black_box;
use std::sync::Arc;

const CHUNK: usize = 64 << 10;
const UNIT: usize = 1 << 20;

fn keys() -> Arc<Keys> {
    Arc::new(Keys::derive(&MasterKey::from_bytes([1; 32]), Encryption::Aes256Gcm))
}

fn chunk_ids(keys: &Keys, unit: &[u8]) -> Vec<ChunkId> {
    unit.chunks(CHUNK).map(|c| keys.chunk_id(c)).collect()
}

fn ranges() -> Vec<std::ops::Range<usize>> {
    (0..UNIT / CHUNK).map(|i| i * CHUNK..(i + 1) * CHUNK).collect()
}

fn per_chunk(c: &mut Criterion) {
    let keys = keys();
    let (zero, data) = (vec![0; CHUNK], mixed(CHUNK, 1));
    let mut group = c.benchmark_group("chunk");
    group.throughput(Throughput::Bytes(CHUNK as u64));
    group.bench_function("zero test, zero", |b| b.iter(|| is_zero(black_box(&zero))));
    group.bench_function("zero test, data", |b| b.iter(|| is_zero(black_box(&data))));
    group.bench_function("id", |b| b.iter(|| keys.chunk_id(black_box(&data))));
    group.finish();
}

fn per_entry(c: &mut Criterion) {
    let keys = keys();
    let unit = mixed(UNIT, 2);
    let (ids, ranges) = (chunk_ids(&keys, &unit), ranges());
    let mut group = c.benchmark_group("entry of 1 MiB");
    group.throughput(Throughput::Bytes(UNIT as u64));
    for (name, compression) in [
        ("raw", Compression::None),
        ("zstd 1", Compression::Zstd(1)),
        ("zstd 3", Compression::Zstd(3)),
    ] {
        let alloc = PackAllocator::new(Arc::clone(&keys), PackKind::Chunks, 32 << 20);
        let mut sealer = Sealer::new(compression).unwrap();
        group.bench_function(BenchmarkId::new("seal", name), |b| {
            b.iter(|| sealer.seal_chunks(&alloc, black_box(&unit), &ranges, &ids).unwrap());
        });
        let entry = sealer.seal_chunks(&alloc, &unit, &ranges, &ids).unwrap();
        let mut opener = Opener::new(Arc::clone(&keys)).unwrap();
        let mut out = Vec::new();
        group.bench_function(BenchmarkId::new("open", name), |b| {
            b.iter(|| {
                let at = entry.location(0);
                opener
                    .open_entry(EntryKind::Chunks, &at.pack, at.offset, &entry.bytes, &mut out)
                    .unwrap()
            });
        });
    }
    group.finish();
}

/// Before an entry is compressed: data that shrinks is told by its first look, noise needs the
/// second one too.
fn compressibility(c: &mut Criterion) {
    let mut sealer = Sealer::new(Compression::Zstd(1)).unwrap();
    let mut group = c.benchmark_group("compressibility test of 1 MiB");
    group.throughput(Throughput::Bytes(UNIT as u64));
    for (name, unit, worth) in [("data", mixed(UNIT, 4), true), ("noise", noise(UNIT, 5), false)] {
        assert_eq!(is_worth_trying(&mut sealer, &unit).unwrap(), worth, "{name}");
        group.bench_function(name, |b| b.iter(|| is_worth_trying(&mut sealer, black_box(&unit))));
    }
    group.finish();
}

fn pack_build(c: &mut Criterion) {
    let keys = keys();
    let unit = mixed(UNIT, 3);
    let (ids, ranges) = (chunk_ids(&keys, &unit), ranges());
    let mut group = c.benchmark_group("pack");
    group.throughput(Throughput::Bytes(32 << 20)).sample_size(10);
    group.bench_function("collect and finish 32 MiB", |b| {
        b.iter_batched(
            || {
                let alloc = PackAllocator::new(Arc::clone(&keys), PackKind::Chunks, 64 << 20);
                let mut sealer = Sealer::new(Compression::None).unwrap();
                let entries: Vec<_> = (0..32)
                    .map(|_| sealer.seal_chunks(&alloc, &unit, &ranges, &ids).unwrap())
                    .collect();
                (alloc.close(), entries)
            },
            |(closed, entries): (Option<ClosedPack>, Vec<_>)| {
                let id = RepositoryId::from_bytes([2; 16]);
                let mut collector = PackBuilder::new(Arc::clone(&keys), id, PackKind::Chunks);
                entries.into_iter().for_each(|e| collector.add(e).unwrap());
                closed.into_iter().for_each(|c| collector.close(c).unwrap());
                collector.take_finished().unwrap()
            },
            criterion::BatchSize::LargeInput,
        );
    });
    group.finish();
}

fn map_build(c: &mut Criterion) {
    const CHUNKS: u64 = 65_536;
    let keys = keys();
    let size = CHUNKS * CHUNK as u64;
    let geometry = Geometry::new(size, ChunkSize::new(65_536).unwrap()).unwrap();
    let pack = PackId::from_bytes([5; 32]);
    let reference = |n: u64| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        let entry = u32::try_from(n / 16).unwrap();
        let location = Location {
            pack,
            entry,
            offset: 64 + entry * 1000,
            stored_len: 1000,
            index: u16::try_from(n % 16).unwrap(),
        };
        ChunkRef { id: ChunkId::from_bytes(id), location }
    };
    let mut group = c.benchmark_group("map");
    group.throughput(Throughput::Elements(CHUNKS)).sample_size(10);
    group.bench_function("build 4 GiB of 64 KiB chunks", |b| {
        b.iter(|| {
            let repository = RepositoryId::from_bytes([2; 16]);
            let mut sink =
                PageSink::new(&keys, repository, Compression::Zstd(1), 32 << 20).unwrap();
            let mut builder =
                MapBuilder::new(Arc::clone(&keys), 128, geometry, Inherit::Nothing, None).unwrap();
            for n in 0..CHUNKS {
                builder.set(&mut sink, chunkstore::ChunkNo(n), Some(reference(n))).unwrap();
            }
            builder.finish(&mut sink).unwrap()
        });
    });
    group.finish();
}

fn run_table(c: &mut Criterion) {
    let table = RunTable::new(32 << 20);
    let ids: Vec<_> = (0..100_000_u64)
        .map(|n| ChunkId::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes()))
        .collect();
    ids.iter().for_each(|id| {
        table.claim(id);
    });
    let mut group = c.benchmark_group("dedup");
    group.throughput(Throughput::Elements(ids.len() as u64));
    group.bench_function("claim known chunks", |b| {
        b.iter(|| {
            ids.iter().for_each(|id| {
                black_box(table.claim(id));
            })
        })
    });
    group.finish();
}

fn lists(c: &mut Criterion) {
    const EXTENTS: u64 = 100_000;
    let size = EXTENTS * (1 << 20);
    let extents: Vec<String> =
        (0..EXTENTS).map(|n| format!("{{\"offset\":{},\"len\":65536}}", n << 20)).collect();
    let json = format!(
        "{{\"volume_size\":{size},\"kind\":\"allocated\",\"extents\":[{}]}}",
        extents.join(",")
    );
    let options = ParseOptions::new("list", size);
    let geometry = Geometry::new(size, ChunkSize::new(65_536).unwrap()).unwrap();
    let mut group = c.benchmark_group("list");
    group.throughput(Throughput::Elements(EXTENTS));
    group.bench_function("parse", |b| {
        b.iter(|| parse_changed_blocks(json.as_bytes(), &options).unwrap())
    });
    let list = parse_changed_blocks(json.as_bytes(), &options).unwrap();
    group.bench_function("plan", |b| {
        b.iter(|| {
            let changes = Changes::List(&list);
            plan_backup(&PlanInput { geometry, parent: None, changes, holes: None }).unwrap()
        });
    });
    group.finish();
}

criterion_group!(
    hot_steps,
    per_chunk,
    per_entry,
    compressibility,
    pack_build,
    map_build,
    run_table,
    lists,
    stored::map_diff,
    stored::segment_lookup
);
criterion_main!(hot_steps);
