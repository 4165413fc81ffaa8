#![allow(clippy::single_range_in_vec_init)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The plainest model: the set of bytes.
fn bytes(extents: &Extents) -> BTreeSet<u64> {
    extents.iter().flatten().collect()
}

fn assert_canonical(extents: &Extents) {
    assert!(extents.iter().all(|r| r.start < r.end), "an empty range in {extents:?}");
    let apart = extents.as_slice().windows(2).all(|w| w[0].end < w[1].start);
    assert!(apart, "ranges that touch or are out of order in {extents:?}");
}

const SIZE: u64 = 200;

fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
    prop::collection::vec((0..SIZE, 0..30u64).prop_map(|(s, l)| s..(s + l).min(SIZE)), 0..20)
}

proptest! {
    #[test]
    fn set_operations_match_byte_sets(a in ranges(), b in ranges(), cut in 0..SIZE + 10) {
        let model_a: BTreeSet<u64> = a.iter().cloned().flatten().collect();
        let model_b: BTreeSet<u64> = b.iter().cloned().flatten().collect();
        let (a, b): (Extents, Extents) = (a.into_iter().collect(), b.into_iter().collect());
        let mut cut_a = a.clone();
        let was_cut = cut_a.clamp(cut);
        for e in [&a, &b, &a.union(&b), &a.intersect(&b), &a.subtract(&b), &cut_a] {
            assert_canonical(e);
        }
        prop_assert_eq!(bytes(&a), model_a.clone());
        prop_assert_eq!(a.total(), model_a.len() as u64);
        prop_assert_eq!(a.end(), model_a.last().map_or(0, |b| b + 1));
        prop_assert_eq!(bytes(&a.union(&b)), &model_a | &model_b);
        prop_assert_eq!(bytes(&a.intersect(&b)), &model_a & &model_b);
        prop_assert_eq!(bytes(&a.subtract(&b)), &model_a - &model_b);
        prop_assert_eq!(a.is_disjoint(&b), model_a.is_disjoint(&model_b));
        prop_assert_eq!(was_cut, model_a.last().is_some_and(|b| *b >= cut));
        prop_assert_eq!(bytes(&cut_a), model_a.iter().copied().filter(|b| *b < cut).collect());
    }

    #[test]
    fn covers_matches_byte_sets(a in ranges(), start in 0..SIZE, len in 0..40u64) {
        let a: Extents = a.into_iter().collect();
        let model = bytes(&a);
        prop_assert_eq!(a.covers(&(start..start + len)), (start..start + len).all(|b| model.contains(&b)));
    }

    #[test]
    fn chunks_match_byte_sets(a in ranges(), size in 1..SIZE + 50) {
        // a small chunk is not allowed, so a byte of the model stands for 512 bytes
        const SCALE: u64 = 512;
        let grid = Grid { volume_bytes: size * SCALE - 100, chunk_bytes: 4096 };
        let model: BTreeSet<u64> = a.iter().cloned().flatten().collect();
        let extents: Extents = a.into_iter().map(|r| r.start * SCALE..r.end * SCALE).collect();
        let touched: BTreeSet<u64> = extents.to_chunks(grid).into_iter().flatten().collect();
        let full: BTreeSet<u64> = extents.to_full_chunks(grid).into_iter().flatten().collect();
        for chunk in 0..grid.chunks() + 20 {
            let of_chunk: Vec<u64> = (chunk * 8..chunk * 8 + 8).filter(|b| *b < size).collect();
            prop_assert_eq!(touched.contains(&chunk), of_chunk.iter().any(|b| model.contains(b)), "chunk {}", chunk);
            let covered = !of_chunk.is_empty() && of_chunk.iter().all(|b| model.contains(b));
            prop_assert_eq!(full.contains(&chunk), covered, "chunk {}", chunk);
        }
    }
}

#[test]
fn sorted_ranges_merge_as_they_come() {
    let mut builder = ExtentsBuilder::default();
    for block in 0..1_000_000u64 {
        builder.push(block * 4096..(block + 1) * 4096);
    }
    assert_eq!(builder.held(), 1);
    assert!(!builder.is_unsorted());
    assert_eq!(builder.finish(), Extents::of(0..4096 * 1_000_000));
}

#[test]
fn compaction_in_the_middle_changes_nothing() {
    let mut builder = ExtentsBuilder::default();
    for block in (0..1000u64).rev() {
        builder.push(block * 10..block * 10 + 10);
        if block % 100 == 0 {
            assert!(builder.is_unsorted());
            builder.compact();
            assert_eq!(builder.held(), 1);
        }
    }
    assert_eq!(builder.finish(), Extents::of(0..10_000));
}

#[test]
fn ranges_up_to_the_largest_number() {
    let a: Extents = [5..u64::MAX, 1..3].into_iter().collect();
    let b = Extents::of(u64::MAX - 1..u64::MAX);
    assert_eq!(a.subtract(&b).as_slice(), [1..3, 5..u64::MAX - 1]);
    assert_eq!(a.intersect(&b), b);
}
