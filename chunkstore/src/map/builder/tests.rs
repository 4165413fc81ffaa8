#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::map::model::{Build, Built, Model, Update, chunk, repository, root_id, run, sink};
use crate::map::{MapReader, ReadLimits};
use crate::repository::Repository;
use proptest::prelude::*;

const C: u64 = 4096;

fn full(repo: &Arc<Repository>, size_bytes: u64, updates: &[Update]) -> Built {
    Build::new(repo, size_bytes).run(updates)
}

fn next(repo: &Arc<Repository>, parent: &Built, size_bytes: u64, updates: &[Update]) -> Built {
    Build { window: 2, ..Build::on(repo, size_bytes, parent) }.run(updates)
}

fn set(range: Range<u64>, content: u64) -> Update {
    let to = range.clone().map(|k| Some(chunk(content + k, 0))).collect();
    Update::Set(range, to)
}

fn check(repo: &Arc<Repository>, built: &Built) {
    built.check(repo, 3);
    built.check_root(repo);
}

#[test]
fn sizes_at_the_borders_of_depths() {
    let repo = repository(16);
    for chunks in [1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097] {
        for short in [0, 1, 511] {
            let size = chunks * C - short;
            check(&repo, &full(&repo, size, &[set(0..chunks, 1000)]));
            check(&repo, &full(&repo, size, &[set(chunks - 1..chunks, 1000)]));
            check(&repo, &full(&repo, size, &[set(0..1, 5)]));
            let zero = full(&repo, size, &[Update::Zero(0..chunks)]);
            assert_eq!((zero.pages, zero.map.root().root), (0, None));
            check(&repo, &zero);
        }
    }
}

#[test]
fn every_growth_and_shrinkage_between_borders_of_depths() {
    let repo = repository(16);
    let sizes = [1, 16, 17, 40, 256, 257, 300, 4096, 4097, 5000];
    for from in sizes {
        let parent = full(&repo, from * C, &[set(0..from, 0)]);
        for to in sizes {
            let grown = Update::Zero(from..to.max(from));
            check(&repo, &next(&repo, &parent, to * C, &[grown]));
            let grown = set(from..to.max(from), 77);
            check(&repo, &next(&repo, &parent, to * C, &[grown]));
            // short last chunks on either side
            let (last, end) = (from.min(to) - 1, to.max(from));
            let edge = if to > from { set(last..end, 9000) } else { set(last..to, 9000) };
            check(&repo, &next(&repo, &parent, to * C - 100, &[edge]));
        }
    }
}

#[test]
fn nothing_changed_costs_nothing() {
    let repo = repository(16);
    let size_bytes = 64 << 40;
    let parent =
        full(&repo, size_bytes, &[set(12345..12350, 1), set((1 << 33)..(1 << 33) + 100, 2)]);
    let before = repo.store().counts();
    let same = next(&repo, &parent, size_bytes, &[]);
    assert_eq!((same.pages, same.map.root()), (0, parent.map.root()));
    assert_eq!(repo.store().counts(), before);
    let same = next(&repo, &parent, size_bytes, &[set(12345..12346, 1)]);
    assert_eq!((same.pages, same.map.root()), (0, parent.map.root()));
    // a list of what is allocated, all of it as before
    for inherit in [Inherit::Nothing, Inherit::Parent] {
        let build = Build { inherit, window: 1, ..Build::on(&repo, size_bytes, &parent) };
        let same = build.run(&[set(12345..12350, 1), set((1 << 33)..(1 << 33) + 100, 2)]);
        assert_eq!((same.pages, same.map.root()), (0, parent.map.root()));
    }
}

#[test]
fn one_changed_chunk_rewrites_one_path() {
    let repo = repository(16);
    let parent = full(&repo, 5000 * C, &[set(0..5000, 0)]);
    let child = next(&repo, &parent, 5000 * C, &[set(3000..3001, 50_000)]);
    assert_eq!(child.pages, u64::from(parent.map.root().depth));
    check(&repo, &child);
}

#[test]
fn zero_ranges_over_whole_subtrees_cost_their_edges() {
    let repo = repository(16);
    let size_bytes = 64 << 40;
    let chunks = size_bytes / C;
    let parent = full(
        &repo,
        size_bytes,
        &[set(0..3, 1), set((1 << 33)..(1 << 33) + 5, 2), set(chunks - 2..chunks, 3)],
    );
    let child = next(&repo, &parent, size_bytes, &[Update::Zero(2..chunks - 1)]);
    assert_eq!(child.model.chunks.len(), 3);
    child.check(&repo, 4);
    let all = next(&repo, &child, size_bytes, &[Update::Zero(0..chunks)]);
    assert_eq!((all.pages, all.map.root().root), (0, None));
    let again = next(&repo, &all, size_bytes, &[Update::Zero(5..chunks - 5)]);
    assert_eq!((again.pages, again.map.root().root), (0, None));
}

#[test]
fn equal_pages_keep_the_location_and_repaired_chunks_are_kept() {
    let repo = repository(16);
    let parent = full(&repo, 300 * C, &[set(0..300, 0)]);
    for inherit in [Inherit::Nothing, Inherit::Parent] {
        let build = Build { inherit, window: 1, ..Build::on(&repo, 300 * C, &parent) };
        let same = build.run(&[set(0..300, 0)]);
        assert_eq!((same.pages, same.map.root()), (0, parent.map.root()));
        // the same content, stored again: the new place must be in the new map
        let mut to: Vec<_> = (0..300).map(|k| Some(chunk(k, 0))).collect();
        to[100] = Some(chunk(100, 1));
        let repaired = build.run(&[Update::Set(0..300, to)]);
        assert_eq!(repaired.pages, 3);
        assert_eq!(root_id(repaired.map.root()), root_id(parent.map.root()));
        repaired.check(&repo, 100);
    }
}

#[test]
fn mistakes_of_the_caller_are_found() {
    let repo = repository(16);
    let parent = full(&repo, 300 * C - 7, &[set(0..300, 0)]);
    let builder = |size: u64| {
        let keys = Arc::clone(repo.keys());
        let geometry = crate::map::model::geometry(size);
        MapBuilder::new(keys, 16, geometry, Inherit::Parent, Some(parent.map.clone())).unwrap()
    };
    let mut reader = MapReader::new(Arc::clone(&repo), parent.map.clone()).unwrap();
    let all = run(reader.load(&[0..300])).unwrap();
    let sink = &mut sink(&repo, 1 << 20);
    let is_bug = |result: Result<MapRoot>, words: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
        assert!(error.to_string().contains(words), "{error}");
    };
    // grown: the old last chunk, and everything behind it, must be said
    let mut b = builder(301 * C);
    b.provide(&all).unwrap();
    is_bug(b.finish(sink), "chunks 300..301: they lie behind");
    let mut b = builder(301 * C);
    b.provide(&all).unwrap();
    b.set_zero(sink, 300..301).map(|()| panic!("the old last chunk was short")).unwrap_err();
    is_bug(builder(300 * C).finish(sink), "chunks 299..300: its length changed");
    is_bug(builder(200 * C - 7).finish(sink), "chunks 199..200: its length changed");
    // out of order, behind the end, without pages
    let mut b = builder(300 * C - 7);
    b.set(sink, ChunkNo(0), None).unwrap();
    assert!(b.set(sink, ChunkNo(0), None).is_err());
    assert!(b.set(sink, ChunkNo(300), None).is_err());
    assert!(b.set_zero(sink, 5..301).is_err());
    is_bug(b.finish(sink), "was not provided");
    let other = full(&repo, 300 * C - 7, &[set(0..300, 1)]);
    let mut reader = MapReader::new(Arc::clone(&repo), other.map.clone()).unwrap();
    let pages = run(reader.load(&[0..1])).unwrap();
    assert!(builder(300 * C - 7).provide(&pages).is_err());
    let none =
        MapBuilder::new(Arc::clone(repo.keys()), 16, *parent.map.geometry(), Inherit::Parent, None);
    assert!(none.is_err());
}

#[test]
fn provided_pages_below_the_cursor_are_dropped() {
    let repo = repository(16);
    let parent = full(&repo, 40_000 * C, &[set(0..40_000, 0)]);
    let keys = Arc::clone(repo.keys());
    let geometry = crate::map::model::geometry(40_000 * C);
    let mut builder =
        MapBuilder::new(keys, 16, geometry, Inherit::Parent, Some(parent.map.clone())).unwrap();
    let limits = ReadLimits { cache_bytes_max: 100 << 10, ..ReadLimits::default() };
    let mut reader = MapReader::with_limits(Arc::clone(&repo), parent.map.clone(), limits).unwrap();
    let mut sink = sink(&repo, 1 << 20);
    let mut most = 0;
    for start in (0..40_000).step_by(160) {
        let pages = run(reader.load(&[start..start + 160])).unwrap();
        builder.provide(&pages).unwrap();
        most = most.max(builder.base.pages());
        for number in start..start + 160 {
            builder.set(&mut sink, ChunkNo(number), Some(chunk(number, 0))).unwrap();
        }
    }
    assert!(most <= 20, "{most} pages were held");
    assert_eq!(builder.finish(&mut sink).unwrap(), *parent.map.root());
    assert_eq!(sink.pages(), 0);
}

/// What one increment does, in terms that fit any size.
#[derive(Debug, Clone)]
struct Step {
    inherit: bool,
    resize: Resize,
    updates: Vec<(u64, u64, u8)>,
    window: usize,
}

#[derive(Debug, Clone)]
enum Resize {
    Same,
    Bytes(u64),
}

fn sizes() -> impl Strategy<Value = u64> {
    let chunks =
        prop_oneof![1u64..40, 200u64..300, 4000u64..4200, 60_000u64..70_000, Just(1 << 30)];
    (chunks, prop_oneof![Just(0u64), 1u64..4096]).prop_map(|(chunks, short)| chunks * C - short)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resize = prop_oneof![3 => Just(Resize::Same), 2 => sizes().prop_map(Resize::Bytes)];
    let update =
        (any::<u64>(), prop_oneof![4 => 1u64..20, 1 => 20u64..600, 1 => any::<u64>()], 0u8..8);
    let step = (prop::bool::weighted(0.7), resize, prop::collection::vec(update, 0..6), 1usize..4)
        .prop_map(|(inherit, resize, updates, window)| Step { inherit, resize, updates, window });
    prop::collection::vec(step, 1..5)
}

/// Ascending, disjoint updates out of random numbers, and what a resize demands.
fn updates_of(step: &Step, old: &Model, size_bytes: u64, seed: &mut u64) -> Vec<Update> {
    let geometry = crate::map::model::geometry(size_bytes);
    let (before, chunks) = (old.geometry.chunks(), geometry.chunks());
    let mut ranges: Vec<(Range<u64>, u8)> = Vec::new();
    for &(at, len, kind) in &step.updates {
        // half of them where the other ones are
        let start = if at % 2 == 0 { at % chunks } else { at % chunks.min(300) };
        let len = len.min(chunks - start);
        // long ranges can only be zero here
        ranges.push((start..start + len, if len > 600 { 0 } else { kind }));
    }
    if step.inherit && chunks > before {
        ranges.push((before..chunks, if chunks - before > 600 { 0 } else { 3 }));
    }
    let edge = ChunkNo(before.min(chunks) - 1);
    if old.geometry.len(edge) != geometry.len(edge) {
        ranges.insert(0, (edge.0..edge.0 + 1, 3));
    }
    // first come, first served: later ranges keep what is left of them
    let mut taken: Vec<(Range<u64>, u8)> = Vec::new();
    for (range, kind) in ranges {
        let mut start = range.start;
        let mut others: Vec<_> = taken.iter().map(|(r, _)| r.clone()).collect();
        others.sort_by_key(|r| r.start);
        for other in others {
            if other.end <= start || other.start >= range.end {
                continue;
            }
            if start < other.start {
                taken.push((start..other.start, kind));
            }
            start = start.max(other.end);
        }
        if start < range.end {
            taken.push((start..range.end, kind));
        }
    }
    taken.sort_by_key(|(r, _)| r.start);
    taken
        .into_iter()
        .map(|(range, kind)| {
            if kind < 2 {
                return Update::Zero(range);
            }
            let to = range.clone().map(|k| {
                *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match (kind, *seed >> 60) {
                    (2, _) => old.chunks.get(&k).copied(),
                    (_, 0 | 1) => None,
                    (7, _) => Some(chunk(3, 0)),
                    _ => Some(chunk(*seed >> 40, 0)),
                }
            });
            Update::Set(range.clone(), to.collect())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn chains_of_backups_are_as_the_model_says(
        size in sizes(),
        first in prop::collection::vec((any::<u64>(), 1u64..600, 2u8..8), 0..5),
        steps in steps(),
        mut seed in any::<u64>(),
    ) {
        let repo = repository(16);
        let step = Step { inherit: false, resize: Resize::Same, updates: first, window: 3 };
        let mut last = full(&repo, size, &updates_of(&step, &Model::empty(size), size, &mut seed));
        check(&repo, &last);
        for step in steps {
            let size = match step.resize {
                Resize::Same => last.model.geometry.size_bytes(),
                Resize::Bytes(bytes) => bytes,
            };
            let updates = updates_of(&step, &last.model, size, &mut seed);
            let inherit = if step.inherit { Inherit::Parent } else { Inherit::Nothing };
            let build = Build { inherit, window: step.window, ..Build::on(&repo, size, &last) };
            let built = build.run(&updates);
            check(&repo, &built);
            let stopped = Build { stops: true, ..build }.run(&updates);
            check(&repo, &stopped);
            prop_assert_eq!(root_id(stopped.map.root()), root_id(built.map.root()));
            prop_assert_eq!(last.diff(&repo, &built), last.model.changed_to(&built.model));
            prop_assert_eq!(built.diff(&repo, &last), built.model.changed_to(&last.model));
            prop_assert_eq!(built.diff(&repo, &built), vec![]);
            last = built;
        }
    }
}
