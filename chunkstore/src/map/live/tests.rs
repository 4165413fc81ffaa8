use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn at(pack: u8, entry: u32, index: u16) -> Location {
    let pack = PackId::from_bytes([pack; 32]);
    Location { pack, entry, offset: 64 + entry * 100, stored_len: 100, index }
}

#[test]
fn places_that_no_pack_has_are_refused() {
    let mut live = LiveSet::new(16);
    for wrong in [at(1, 0, 16), Location { entry: 1000, ..at(1, 3, 0) }] {
        assert_eq!(live.insert(&wrong).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(live.insert(&at(1, 3, 15)).unwrap());
}

#[test]
fn live_bytes_are_shares_of_entries() {
    let mut live = LiveSet::new(16);
    for index in [0, 1, 3] {
        live.insert(&at(1, 0, index)).unwrap();
    }
    live.insert(&at(1, 2, 0)).unwrap();
    let pack = live.pack(&PackId::from_bytes([1; 32])).unwrap();
    assert_eq!((pack.live_chunks(), pack.entry_bytes()), (4, 200));
    // slots: 4 of the first entry, 1 of the third; the second has none that counts
    assert_eq!(pack.live_bytes(), 200 * 4 / 5);
}

/// Entries of 16 chunks, every one live, in the order of storing: what a full backup leaves.
#[test]
fn a_dense_repository_takes_two_bits_a_chunk_and_little_for_each_pack() {
    let (packs, entries, width) = (200u64, 64, 16);
    let mut live = LiveSet::new(16);
    for pack in 0..packs {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&pack.to_le_bytes());
        for (entry, index) in (0..entries).flat_map(|e| (0..width).map(move |i| (e, i))) {
            let place = Location { pack: PackId::from_bytes(id), ..at(0, entry, index) };
            assert!(live.insert(&place).unwrap());
        }
    }
    let chunks = live.live_chunks();
    assert_eq!(chunks, packs * u64::from(entries) * u64::from(width));
    // an eighth of room to grow; the tables of packs grow by doubling
    let most = chunks * 2 / 8 * 9 / 8 + packs * 400;
    assert!(live.memory_bytes() <= most, "{} of {most}", live.memory_bytes());
}

#[test]
fn what_is_referred_to_once_takes_no_more_when_it_is_counted() {
    let (mut plain, mut counting) = (LiveSet::new(16), LiveSet::counting(16));
    for (entry, index) in (0..500).flat_map(|e| (0..16).map(move |i| (e, i))) {
        plain.insert(&at(1, entry, index)).unwrap();
        counting.insert(&at(1, entry, index)).unwrap();
    }
    assert_eq!(counting.memory_bytes(), plain.memory_bytes());
    (0..31).for_each(|_| assert!(!counting.insert(&at(1, 7, 7)).unwrap()));
    // five rows more, and their heads
    assert!(counting.memory_bytes() <= plain.memory_bytes() * 7 / 2 + 8 * 40);
}

proptest! {
    /// However many there are, and in whichever order.
    #[test]
    fn it_counts(
        places in prop::collection::vec((0u8..2, 0u32..9, 0u16..5, 1u64..300), 0..100),
    ) {
        let mut live = LiveSet::counting(16);
        let mut model: BTreeMap<u8, BTreeMap<(u32, u16), u64>> = BTreeMap::new();
        for (pack, entry, index, times) in places {
            *model.entry(pack).or_default().entry((entry, index)).or_default() += times;
            for _ in 0..times {
                live.insert(&at(pack, entry, index)).unwrap();
            }
        }
        for (pack, want) in &model {
            let found = live.pack(&PackId::from_bytes([*pack; 32])).unwrap();
            let found: Vec<_> = found.iter_counted().collect();
            let want: Vec<_> = want.iter().map(|((e, i), times)| (*e, *i, *times)).collect();
            prop_assert_eq!(found, want);
        }
    }

    #[test]
    fn it_is_a_set(
        places in prop::collection::vec((0u8..3, 0u32..200, 0u16..70), 0..600),
        probes in prop::collection::vec((0u8..4, 0u32..220, 0u16..80), 100),
    ) {
        let mut live = LiveSet::new(1024);
        let mut model: BTreeMap<u8, BTreeSet<(u32, u16)>> = BTreeMap::new();
        for (pack, entry, index) in places {
            let fresh = model.entry(pack).or_default().insert((entry, index));
            prop_assert_eq!(live.insert(&at(pack, entry, index)).unwrap(), fresh);
        }
        for (pack, want) in &model {
            let found = live.pack(&PackId::from_bytes([*pack; 32])).unwrap();
            prop_assert_eq!(&found.iter().collect::<BTreeSet<_>>(), want);
            prop_assert_eq!(found.live_chunks() as usize, want.len());
            let entries: BTreeSet<u32> = want.iter().map(|(entry, _)| *entry).collect();
            prop_assert_eq!(found.entry_bytes(), entries.len() as u64 * 100);
            let slots = |e| want.range((e, 0)..=(e, u16::MAX)).last().map_or(1, |l| u64::from(l.1) + 1);
            let all: u64 = (0..=*entries.last().unwrap()).map(slots).sum();
            prop_assert_eq!(u64::from(found.live.len()), all);
        }
        for (pack, entry, index) in probes {
            let want = model.get(&pack).is_some_and(|m| m.contains(&(entry, index)));
            prop_assert_eq!(live.contains(&PackId::from_bytes([pack; 32]), entry, index), want);
        }
        prop_assert_eq!(live.packs().count(), model.len());
    }
}
