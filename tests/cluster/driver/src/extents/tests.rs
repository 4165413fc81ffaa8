use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const fn extent(start: u64, bytes: u64, place: u64) -> Extent {
    Extent { start, bytes, place: Some(place) }
}

const fn range(start: u64, bytes: u64) -> Range {
    Range { start, bytes }
}

#[test]
fn neighbours_become_one_range() {
    let extents = [extent(0, 4, 100), extent(4, 4, 300), extent(16, 8, 500)];
    assert_eq!(allocated(&extents, 20), [range(0, 8), range(16, 4)]);
}

#[test]
fn only_what_lies_elsewhere_has_changed() {
    let base = [extent(0, 16, 100), extent(32, 16, 200)];
    let target = [extent(0, 4, 100), extent(4, 4, 900), extent(8, 8, 108), extent(40, 8, 208)];
    assert_eq!(delta(&base, &target, 48), [range(4, 4), range(32, 8)]);
    assert_eq!(delta(&base, &base, 48), []);
}

#[test]
fn what_the_filesystem_is_not_sure_of_counts_as_changed() {
    let unsure = [Extent { start: 0, bytes: 8, place: None }];
    assert_eq!(delta(&unsure, &unsure, 8), [range(0, 8)]);
}

#[test]
fn a_later_start_cuts_the_range_that_it_hits() {
    let ranges = vec![range(0, 8), range(16, 8), range(32, 4)];
    assert_eq!(from_offset(ranges, 20), [range(20, 4), range(32, 4)]);
}

/// A store in memory: contents by place, and a volume as a map from its blocks to places.
#[derive(Clone, Debug, Default)]
struct Model {
    contents: Vec<u8>,
    volume: BTreeMap<u64, usize>,
}

const BLOCK: u64 = 4;

impl Model {
    fn extents(volume: &BTreeMap<u64, usize>) -> Vec<Extent> {
        let place = |place: usize| place as u64 * BLOCK;
        volume.iter().map(|(block, at)| extent(block * BLOCK, BLOCK, place(*at))).collect()
    }

    fn content(&self, volume: &BTreeMap<u64, usize>, block: u64) -> u8 {
        volume.get(&block).map_or(0, |place| self.contents[*place])
    }
}

proptest! {
    /// Random writes and discards between two snapshots: every block whose bytes differ is in the
    /// delta, and a block that nobody touched is not.
    #[test]
    fn a_delta_has_each_difference(
        before in prop::collection::vec((0..64_u64, 0..4_u8), 0..80),
        after in prop::collection::vec((0..64_u64, prop::option::of(0..4_u8)), 0..40),
    ) {
        let mut model = Model::default();
        for (block, byte) in before {
            model.contents.push(byte);
            model.volume.insert(block, model.contents.len() - 1);
        }
        let base = model.volume.clone();
        let mut touched = Vec::new();
        for (block, byte) in after {
            touched.push(block);
            if let Some(byte) = byte {
                model.contents.push(byte);
                model.volume.insert(block, model.contents.len() - 1);
            } else {
                model.volume.remove(&block);
            }
        }
        let found = delta(&Model::extents(&base), &Model::extents(&model.volume), 64 * BLOCK);
        for pair in found.windows(2) {
            prop_assert!(pair[0].start + pair[0].bytes < pair[1].start);
        }
        for block in 0..64 {
            let at = block * BLOCK;
            let named = found.iter().any(|r| r.start <= at && at + BLOCK <= r.start + r.bytes);
            let differs = model.content(&base, block) != model.content(&model.volume, block);
            prop_assert!(named || !differs, "block {} differs", block);
            prop_assert!(!named || touched.contains(&block), "block {} was not touched", block);
        }
    }
}
