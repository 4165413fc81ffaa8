use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Barrier;

fn id(n: u64) -> ChunkId {
    ChunkId::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes())
}

fn location(n: u64) -> Location {
    let entry = u32::try_from(n % 1000).unwrap();
    Location {
        pack: PackId::from_bytes([u8::try_from(n % 5).unwrap(); 32]),
        entry,
        offset: 64 + entry,
        stored_len: 100,
        index: u16::try_from(n % 16).unwrap(),
    }
}

fn known(table: &RunTable, n: u64) -> bool {
    table.settle(&id(n)).is_some()
}

#[test]
fn one_owner_and_everyone_else_gets_its_location() {
    let table = RunTable::new(1 << 20);
    assert_eq!(table.claim(&id(1)), DedupReservation::Owner);
    assert_eq!(table.claim(&id(1)), DedupReservation::Taken(None));
    assert_eq!(table.settle(&id(1)), None);
    table.publish(&id(1), &location(1));
    assert_eq!(table.settle(&id(1)), Some(location(1)));
    assert_eq!(table.claim(&id(1)), DedupReservation::Taken(Some(location(1))));
    table.publish(&id(1), &location(2));
    assert_eq!(table.claim(&id(1)), DedupReservation::Taken(Some(location(1))));
    table.publish(&id(2), &location(2));
    assert_eq!(table.settle(&id(2)), None);
}

#[test]
fn it_keeps_within_its_bound_and_forgets_to_make_room() {
    let bytes = 72 * 52 * 40;
    let table = RunTable::new(bytes);
    let capacity = table.capacity();
    for n in 0..capacity * 4 {
        assert_eq!(table.claim(&id(n)), DedupReservation::Owner);
        table.publish(&id(n), &location(n));
        assert!(known(&table, n), "the latest is always known");
        assert!(table.stats().memory_bytes <= bytes * 8 / 9, "{:?}", table.stats());
    }
    let stats = table.stats();
    assert_eq!(stats.entries + stats.forgotten, capacity * 4);
    assert_eq!(stats.unrecorded, 0);
    assert!(stats.entries <= capacity && stats.entries > capacity / 4, "{stats:?}");
    assert_eq!((0..capacity * 4).filter(|n| known(&table, *n)).count() as u64, stats.entries);
}

#[test]
fn what_is_not_published_or_not_settled_is_never_forgotten() {
    let table = RunTable::new(72 * 52 * 16);
    for n in 0..64 {
        assert_eq!(table.claim(&id(n)), DedupReservation::Owner);
    }
    for n in 0..32 {
        assert_eq!(table.claim(&id(n)), DedupReservation::Taken(None));
        table.publish(&id(n), &location(n));
    }
    let claimed = table.stats();
    let mut n = 64;
    while n < 5000 {
        table.claim(&id(n));
        table.publish(&id(n), &location(n));
        n += 1;
    }
    let after = table.stats();
    assert!(after.forgotten > 1000 && claimed.unrecorded < 32, "{claimed:?} {after:?}");
    let recorded = |n: u64| table.claim(&id(n)) != DedupReservation::Owner;
    let kept = (0..64).filter(|n| recorded(*n)).count() as u64;
    assert_eq!(kept + claimed.unrecorded, 64);
    for n in 0..32 {
        assert!(table.settle(&id(n)).is_none_or(|l| l == location(n)));
    }
}

#[test]
fn without_memory_everything_is_stored() {
    let table = RunTable::new(0);
    for _ in 0..3 {
        assert_eq!(table.claim(&id(1)), DedupReservation::Owner);
        table.publish(&id(1), &location(1));
    }
    assert_eq!(table.settle(&id(1)), None);
    assert_eq!((table.capacity(), table.stats().unrecorded), (0, 3));
}

#[test]
fn threads_agree_on_owners() {
    let table = RunTable::new(1 << 20);
    let chunks = 3000;
    let barrier = Barrier::new(4);
    let owned: u64 = std::thread::scope(|scope| {
        let work = || {
            barrier.wait();
            let mut owned = 0;
            for n in 0..chunks {
                match table.claim(&id(n)) {
                    DedupReservation::Owner => {
                        owned += 1;
                        table.publish(&id(n), &location(n));
                    }
                    DedupReservation::Taken(Some(l)) => assert_eq!(l, location(n)),
                    DedupReservation::Taken(None) => loop {
                        if let Some(l) = table.settle(&id(n)) {
                            assert_eq!(l, location(n));
                            break;
                        }
                        std::thread::yield_now();
                    },
                }
            }
            owned
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(owned, chunks);
}

#[derive(Debug, Clone)]
enum Call {
    DedupReservation(u64),
    Publish(u64),
    Settle(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let n = 0u64..3000;
    let call = prop_oneof![
        n.clone().prop_map(Call::DedupReservation),
        n.clone().prop_map(Call::Publish),
        n.prop_map(Call::Settle),
    ];
    prop::collection::vec(call, 0..6000)
}

proptest! {
    /// Against a plain map that forgets nothing: whatever the table still knows is right, and
    /// nothing that it must keep is gone.
    #[test]
    fn it_is_as_the_model_says(calls in calls(), slots in 0u64..60) {
        let table = RunTable::new(72 * 52 * slots);
        let mut model: BTreeMap<u64, (bool, u64)> = BTreeMap::new();
        for call in calls {
            match call {
                Call::DedupReservation(n) => match (table.claim(&id(n)), model.get_mut(&n)) {
                    (DedupReservation::Owner, None) => { model.insert(n, (false, 0)); }
                    (DedupReservation::Owner, Some((stored, unsettled))) => {
                        // forgotten, or there was no room when it was claimed
                        prop_assert!(*unsettled == 0);
                        *stored = false;
                    }
                    (DedupReservation::Taken(Some(l)), Some((true, _))) => prop_assert_eq!(l, location(n)),
                    (DedupReservation::Taken(None), Some((false, unsettled))) => *unsettled += 1,
                    (claim, model) => prop_assert!(false, "{claim:?} {model:?}"),
                },
                Call::Publish(n) => if let Some((stored, _)) = model.get_mut(&n) {
                    table.publish(&id(n), &location(n));
                    *stored = true;
                },
                Call::Settle(n) => if let Some((stored, unsettled @ 1..)) = model.get_mut(&n) {
                    prop_assert_eq!(table.settle(&id(n)), stored.then(|| location(n)));
                    *unsettled -= u64::from(*stored);
                },
            }
        }
        let stats = table.stats();
        prop_assert!(stats.entries <= table.capacity().max(1));
        prop_assert!(stats.memory_bytes <= 64 * 52 * slots);
    }
}
