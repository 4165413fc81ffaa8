use super::*;
use chunkstore::{ChunkSize, PackId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const CHUNK: u64 = 4096;

fn scope(size_bytes: u64, want: Range<u64>, batch_bytes_max: u64) -> PlanScope {
    let geometry = Geometry::new(size_bytes, ChunkSize::new(4096).unwrap()).unwrap();
    PlanScope { geometry, want, entry_chunks: 16, batch_bytes_max, same: None }
}

fn pack(n: u8) -> PackId {
    PackId::from_bytes([n; 32])
}

fn at(pack_no: u8, entry: u32, index: u16) -> ChunkRef {
    let offset = 64 + entry * 1000;
    let location = Location { pack: pack(pack_no), entry, offset, stored_len: 1000, index };
    let mut id = [pack_no; 32];
    id[0] = u8::try_from(entry % 251).unwrap();
    id[1] = u8::try_from(index).unwrap();
    ChunkRef { id: ChunkId::from_bytes(id), location }
}

fn batches(scope: &PlanScope, chunks: &BTreeMap<u64, ChunkRef>) -> Vec<Batch> {
    let mut planner = Planner::new(scope.clone());
    let mut all = Vec::new();
    for (no, at) in chunks {
        all.extend(planner.push(ChunkNo(*no), at).unwrap());
    }
    all.push(planner.finish());
    all
}

#[test]
fn an_empty_map_is_one_zero_range() {
    let scope = scope(1 << 46, 0..1 << 46, u64::MAX);
    assert_eq!(batches(&scope, &BTreeMap::new())[0].zero, vec![scope.want.clone()]);
}

#[test]
fn wanted_bytes_clip_chunks_and_zeros() {
    let scope = scope(10 * CHUNK + 5, 100..10 * CHUNK + 3, u64::MAX);
    let chunks = BTreeMap::from([(0, at(1, 0, 0)), (10, at(1, 0, 1))]);
    let batch = &batches(&scope, &chunks)[0];
    let zero = CHUNK..10 * CHUNK;
    assert_eq!(batch.zero, vec![zero]);
    assert_eq!(batch.data_bytes, CHUNK - 100 + 3);
    assert!(!scope.whole(ChunkNo(0)) && !scope.whole(ChunkNo(10)) && scope.whole(ChunkNo(1)));
    assert_eq!(scope.clip(ChunkNo(0)), 100..CHUNK);
    assert_eq!(scope.clip(ChunkNo(10)), 10 * CHUNK..10 * CHUNK + 3);
    assert!(scope.clip(ChunkNo(11)).is_empty());
}

#[test]
fn the_short_last_chunk_is_whole() {
    let scope = scope(2 * CHUNK + 5, 0..2 * CHUNK + 5, u64::MAX);
    assert!(scope.whole(ChunkNo(2)));
    assert_eq!(scope.clip(ChunkNo(2)), 2 * CHUNK..2 * CHUNK + 5);
}

#[test]
fn a_chunk_with_several_references_is_read_once() {
    let wants = [(7, at(1, 3, 2)), (9, at(1, 3, 2)), (8, at(1, 3, 3)), (1, at(1, 3, 2))];
    let wants = wants.map(|(no, at)| Want::new(ChunkNo(no), at.id, &at.location)).to_vec();
    let jobs = plan_jobs(wants, ReadShape { gap_bytes: 0, read_bytes_max: 1 << 20 });
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].entries.len(), 1);
    let places: Vec<_> = jobs[0].entries[0].places.iter().map(|p| (p.chunk.0, p.index)).collect();
    assert_eq!(places, [(1, 2), (7, 2), (8, 3), (9, 2)]);
    let cut: Vec<Vec<u64>> = runs(&jobs[0].entries[0].places, 2)
        .map(|r| r.iter().map(|p| p.chunk.0).collect())
        .collect();
    assert_eq!(cut, [vec![1], vec![7, 8], vec![9]]);
}

#[test]
fn impossible_locations_are_corrupt() {
    let scope = scope(10 * CHUNK, 0..10 * CHUNK, u64::MAX);
    let longer = scope.geometry.chunk().bytes() * u32::from(scope.entry_chunks) + 25;
    let mut bad = [at(1, 0, 0); 3];
    bad[0].location.stored_len = longer;
    bad[1].location.offset = u32::MAX;
    bad[2].location.index = 16;
    for at in bad {
        let error = Planner::new(scope.clone()).push(ChunkNo(3), &at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("offset 12288"), "{error}");
    }
}

fn volume() -> impl Strategy<Value = (u64, Range<u64>, u64, BTreeMap<u64, ChunkRef>)> {
    let refs = (1_u8..4, 0_u32..20, 0_u16..16).prop_map(|(p, e, i)| at(p, e, i));
    (1..200 * CHUNK).prop_flat_map(move |size| {
        let chunks = proptest::collection::btree_map(0..size.div_ceil(CHUNK), refs.clone(), 0..120);
        let want = (0..size, 0..size).prop_map(|(a, b)| a.min(b)..a.max(b) + 1);
        (Just(size), want, 0..50 * CHUNK, chunks)
    })
}

proptest! {
    /// What the batches write, byte for byte, is what the map says and nothing else.
    #[test]
    fn batches_cover_exactly_what_is_wanted((size, want, max, chunks) in volume()) {
        let scope = scope(size, want.clone(), max);
        let mut pieces: Vec<(Range<u64>, Option<ChunkRef>)> = Vec::new();
        let mut order = want.start;
        for batch in batches(&scope, &chunks) {
            let first = batch.zero.first().map(|z| z.start);
            let first = first.into_iter().chain(batch.wants.iter().map(|w| scope.clip(w.place.chunk).start)).min();
            prop_assert!(first.is_none_or(|f| f == order));
            prop_assert!(batch.wants.len() <= 1 || batch.data_bytes <= max);
            let mut data_bytes = 0;
            for want in &batch.wants {
                let clip = scope.clip(want.place.chunk);
                data_bytes += clip.end - clip.start;
                pieces.push((clip, Some(chunks[&want.place.chunk.0])));
                prop_assert_eq!(want.place.id, chunks[&want.place.chunk.0].id);
            }
            prop_assert_eq!(data_bytes, batch.data_bytes);
            pieces.extend(batch.zero.iter().map(|z| (z.clone(), None)));
            order = pieces.iter().map(|p| p.0.end).max().unwrap_or(order);
        }
        pieces.sort_by_key(|p| p.0.start);
        let mut cursor = want.start;
        for (range, at) in &pieces {
            prop_assert_eq!(range.start, cursor);
            prop_assert!(range.start < range.end);
            cursor = range.end;
            if at.is_none() {
                let touched = range.start / CHUNK..range.end.div_ceil(CHUNK);
                prop_assert!(chunks.range(touched).next().is_none());
            }
        }
        prop_assert_eq!(cursor, want.end);
    }

    /// Every place is in exactly one job, each entry is read once, and lies within the read of its
    /// job.
    #[test]
    fn jobs_hold_each_place_once((_, _, gap, chunks) in volume()) {
        let gap_bytes = u32::try_from(gap % 5000).unwrap();
        let shape = ReadShape { gap_bytes, read_bytes_max: 10_000 };
        let wants: Vec<Want> =
            chunks.iter().map(|(no, at)| Want::new(ChunkNo(*no), at.id, &at.location)).collect();
        let mut found = BTreeMap::new();
        let mut entries = std::collections::BTreeSet::new();
        for job in plan_jobs(wants, shape) {
            for work in &job.entries {
                prop_assert!(entries.insert((work.addr.pack, work.addr.entry)));
                prop_assert_eq!(work.addr.pack, job.read.pack);
                prop_assert!(work.addr.offset >= job.read.start);
                let end = job.read.start + job.read.len;
                prop_assert!(work.addr.offset + work.addr.stored_len <= end);
                prop_assert!(work.places.is_sorted_by_key(|p| p.chunk));
                for p in &work.places {
                    let at = (work.addr.pack, work.addr.entry, p.index, p.id);
                    prop_assert!(found.insert(p.chunk.0, at).is_none());
                }
            }
        }
        let expected: BTreeMap<_, _> = chunks
            .iter()
            .map(|(no, at)| (*no, (at.location.pack, at.location.entry, at.location.index, at.id)))
            .collect();
        prop_assert_eq!(found, expected);
    }
}
