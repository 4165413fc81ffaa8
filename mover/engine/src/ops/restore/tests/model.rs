//! Random volumes, repositories and ranges against a plain model.

use super::*;
use crate::ops::diff::diff;
use chunkstore::Encryption;
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Case {
    shape: Shape,
    size_bytes: u64,
    grown_bytes: u64,
    first: Vec<(u64, u64)>,
    second: Vec<(u64, u64)>,
    range: (u64, u64),
    created: bool,
    least_memory: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (0_u32..3, 1_u16..12, 0_u32..2, any::<bool>(), 1_u32..60).prop_map(
        |(c, e, f, sealed, p)| Shape {
            chunk_bytes: 4096 << c,
            entry_chunks: e,
            page_fanout: 16 << f,
            encryption: if sealed { Encryption::Aes256Gcm } else { Encryption::None },
            pack_bytes: p * 10_000,
        },
    );
    let sets = || proptest::collection::vec((0_u64..400, 0_u64..12), 0..150);
    let size = 1_u64..1_600_000;
    (shape, size.clone(), size, sets(), sets(), (any::<u64>(), any::<u64>()), any::<(bool, bool)>())
        .prop_map(
            |(shape, size_bytes, grown_bytes, first, second, range, (created, least_memory))| {
                Case { shape, size_bytes, grown_bytes, first, second, range, created, least_memory }
            },
        )
}

fn dirty(len: u64) -> Vec<u8> {
    vec![0xee; usize::try_from(len).unwrap()]
}

/// The second image as made of the first one with only what the list names.
fn apply(list: &mover_changes::ChangedBlocks, old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut made = old.to_vec();
    made.resize(new.len(), 0);
    let cut = |r: std::ops::Range<u64>| {
        usize::try_from(r.start).unwrap()..usize::try_from(r.end).unwrap()
    };
    for range in list.data.iter().map(cut) {
        made[range.clone()].copy_from_slice(&new[range]);
    }
    for range in list.zero.iter().map(cut) {
        made[range].fill(0);
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_way_gives_the_volume_back(case in cases()) {
        let kit = Kit::new(case.shape);
        let mut image = kit.image(case.size_bytes);
        case.first.iter().for_each(|(chunk, seed)| image.set(*chunk, *seed));
        kit.backup("vol", "first", &image);
        let first = image.bytes();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target.img");
        if !case.created {
            fs::write(&target, dirty(case.size_bytes + 5)).unwrap();
        }
        // with the least memory there is one thread, two slots, and one leaf a window
        let least = Limits::least(kit.repo.params());
        let memory = if case.least_memory { least } else { MemoryBudget { total_bytes: 64 * MIB } };
        run(&kit, RestoreOptions { memory, ..options("first", &target) }).unwrap();
        let written = fs::read(&target).unwrap();
        prop_assert!(written[..first.len()] == first);
        prop_assert!(case.created || written[first.len()..] == [0xee; 5]);

        // a second backup of the changed and resized volume, and what differs
        let mut next = kit.image(case.grown_bytes);
        let end = next.geometry().chunks();
        for (chunk, bytes) in image.chunks.iter().filter(|(c, _)| **c < end) {
            let len = next.geometry().len(chunkstore::ChunkNo(*chunk)) as usize;
            let mut bytes = bytes.clone();
            bytes.resize(len, 0);
            next.chunks.insert(*chunk, bytes);
        }
        case.second.iter().filter(|(c, _)| *c < end).for_each(|(c, seed)| next.set(*c, *seed));
        kit.backup("vol", "second", &next);
        let second = next.bytes();
        let list = diff(kit.rt.handle(), &kit.repo, ("first", "second"), &Cancel::new()).unwrap();
        prop_assert!(apply(&list, &first, &second) == second);
        let changed = second.chunks(case.shape.chunk_bytes as usize).enumerate().filter(|(i, new)| {
            first.chunks(case.shape.chunk_bytes as usize).nth(*i) != Some(new)
        }).count() as u64;
        prop_assert!(list.listed_bytes() <= changed * u64::from(case.shape.chunk_bytes));

        // a range of it, onto what is there and in order
        let (a, b) = (case.range.0 % case.grown_bytes, case.range.1 % case.grown_bytes);
        let range = a.min(b)..a.max(b) + 1;
        let mut expected = dirty(case.grown_bytes + 9);
        fs::write(&target, &expected).unwrap();
        let partly = RestoreOptions { range: Some(range.clone()), memory, ..options("second", &target) };
        run(&kit, partly.clone()).unwrap();
        let at = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        expected[at.clone()].copy_from_slice(&second[at.clone()]);
        prop_assert!(fs::read(&target).unwrap() == expected);
        let mut out = Vec::new();
        run_out(&kit, &partly, &mut out).unwrap();
        prop_assert!(out == second[at.clone()]);

        // the first volume, where there is dirt, becomes the second one by what differs
        let mut there = first.clone();
        there.resize(second.len(), 0xee);
        for (chunk, _) in &case.first {
            let at = usize::try_from(*chunk).unwrap() * 4096 + 1;
            if let Some(byte) = there.get_mut(at) {
                *byte = 7;
            }
        }
        let mut expected = there.clone();
        let memory = MemoryBudget { total_bytes: memory.total_bytes + 4096 };
        for range in [Some(range), None] {
            fs::write(&target, &there).unwrap();
            let at = range.as_ref().map_or(0..second.len(), |_| at.clone());
            let differential = RestoreOptions { differential: true, memory, range, ..partly.clone() };
            let summary = run(&kit, differential).unwrap();
            expected[at.clone()].copy_from_slice(&second[at.clone()]);
            prop_assert!(fs::read(&target).unwrap() == expected);
            let all = summary.data_bytes + summary.zero_bytes + summary.same_bytes.unwrap();
            prop_assert_eq!(all, at.len() as u64);
        }
    }
}

/// An output in order whose batches are far smaller than the volume, with entries that span them.
#[test]
fn small_batches_come_out_in_order() {
    let shape =
        Shape { chunk_bytes: 65536, entry_chunks: 16, pack_bytes: 3 << 20, ..Shape::default() };
    let kit = Kit::new(shape);
    let mut image = kit.image(500 * 65536);
    for chunk in 0..500_u64 {
        // every place of an entry is used far apart
        image.set((chunk * 37) % 500, chunk % 90);
    }
    kit.backup("vol", "one", &image);
    for memory in [Limits::least(kit.repo.params()), MemoryBudget { total_bytes: 64 * MIB }] {
        let options = RestoreOptions { memory, ..options("one", Path::new("-")) };
        let mut out = Vec::new();
        run_out(&kit, &options, &mut out).unwrap();
        assert!(out == image.bytes());
    }
}
