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

#[test]
fn one_owner_and_everyone_else_gets_its_location() {
    let table = RunTable::new(1 << 20);
    assert_eq!(table.claim(&id(1)), Claim::Owner);
    assert_eq!(table.claim(&id(1)), Claim::Taken(None));
    assert_eq!(table.location(&id(1)), None);
    table.publish(&id(1), &location(1));
    assert_eq!(table.wait(&id(1)), Some(location(1)));
    assert_eq!(table.claim(&id(1)), Claim::Taken(Some(location(1))));
    table.publish(&id(1), &location(2));
    assert_eq!(table.location(&id(1)), Some(location(1)));
    assert_eq!(table.wait(&id(2)), None);
}

#[test]
fn an_owner_that_gives_up_is_followed_by_another() {
    let table = RunTable::new(1 << 20);
    assert_eq!(table.claim(&id(1)), Claim::Owner);
    table.abandon(&id(1));
    assert_eq!(table.claim(&id(1)), Claim::Owner);
    assert_eq!(table.claim(&id(1)), Claim::Taken(None));
    table.abandon(&id(1));
    assert_eq!(table.wait(&id(1)), None);
    assert_eq!(table.stats().entries, 0);
    // claimed anew while somebody still waits for the first owner: the second one serves him
    assert_eq!(table.claim(&id(1)), Claim::Owner);
    assert_eq!(table.claim(&id(1)), Claim::Taken(None));
    table.abandon(&id(1));
    assert_eq!(table.claim(&id(1)), Claim::Owner);
    table.publish(&id(1), &location(9));
    assert_eq!(table.wait(&id(1)), Some(location(9)));
}

#[test]
fn a_closed_table_lets_waiters_go() {
    let table = RunTable::new(1 << 20);
    assert_eq!(table.claim(&id(1)), Claim::Owner);
    assert_eq!(table.claim(&id(1)), Claim::Taken(None));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| table.wait(&id(1)));
        table.close();
        assert_eq!(waiter.join().unwrap(), None);
    });
}

#[test]
fn it_keeps_within_its_bound_and_drained_records_make_room() {
    let bytes = 64 * 52 * 40;
    let table = RunTable::new(bytes);
    let capacity = table.capacity();
    let mut known = 0;
    for n in 0..capacity * 2 {
        assert_eq!(table.claim(&id(n)), Claim::Owner);
        table.publish(&id(n), &location(n));
        known += u64::from(table.location(&id(n)).is_some());
        assert!(table.stats().memory_bytes <= bytes, "{:?}", table.stats());
    }
    let stats = table.stats();
    assert_eq!(known + stats.unrecorded, capacity * 2);
    assert!(stats.entries == known && known <= capacity && known > capacity * 3 / 4, "{stats:?}");
    // only packs that are uploaded, each record once, a bounded number at a time
    let first = table.drain(100, |pack| *pack != PackId::from_bytes([3; 32]));
    assert_eq!(first.len(), 100);
    let rest = table.drain(usize::MAX, |pack| *pack != PackId::from_bytes([3; 32]));
    assert!(first.iter().chain(&rest).all(|r| r.location.pack != PackId::from_bytes([3; 32])));
    assert!(first.is_sorted_by_key(|r| r.id) && rest.is_sorted_by_key(|r| r.id));
    let last = table.drain(usize::MAX, |_| true);
    assert_eq!(first.len() + rest.len() + last.len(), usize::try_from(known).unwrap());
    assert!(table.drain(usize::MAX, |_| true).is_empty());
    let mut ids: Vec<_> = first.iter().chain(&rest).chain(&last).map(|r| r.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len() as u64, known);
    let full = table.stats().unrecorded;
    for n in capacity * 2..capacity * 2 + capacity / 2 {
        assert_eq!(table.claim(&id(n)), Claim::Owner);
    }
    assert_eq!(table.stats().unrecorded, full);
    assert!(table.stats().memory_bytes <= bytes);
}

#[test]
fn a_slot_that_somebody_waits_for_is_not_reused() {
    let table = RunTable::new(64 * 52 * 16);
    assert_eq!(table.claim(&id(0)), Claim::Owner);
    assert_eq!(table.claim(&id(0)), Claim::Taken(None));
    table.publish(&id(0), &location(7));
    for n in 1..5000 {
        table.claim(&id(n));
        table.publish(&id(n), &location(n));
        table.drain(usize::MAX, |_| true);
    }
    assert_eq!(table.wait(&id(0)), Some(location(7)));
}

#[test]
fn without_memory_everything_is_stored() {
    let table = RunTable::new(0);
    for _ in 0..3 {
        assert_eq!(table.claim(&id(1)), Claim::Owner);
        table.publish(&id(1), &location(1));
        table.abandon(&id(1));
    }
    assert_eq!(table.location(&id(1)), None);
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
                    Claim::Owner => {
                        owned += 1;
                        table.publish(&id(n), &location(n));
                    }
                    Claim::Taken(Some(l)) => assert_eq!(l, location(n)),
                    Claim::Taken(None) => assert_eq!(table.wait(&id(n)), Some(location(n))),
                }
            }
            owned
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(owned, chunks);
    assert_eq!(table.drain(usize::MAX, |_| true).len() as u64, chunks);
}

#[derive(Debug, Clone)]
enum Call {
    Claim(u64),
    Publish(u64),
    Abandon(u64),
    Wait(u64),
    Drain(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let n = 0u64..400;
    let call = prop_oneof![
        8 => n.clone().prop_map(Call::Claim),
        6 => n.clone().prop_map(Call::Publish),
        2 => n.clone().prop_map(Call::Abandon),
        2 => n.prop_map(Call::Wait),
        1 => (0usize..50).prop_map(Call::Drain),
    ];
    prop::collection::vec(call, 0..2000)
}

proptest! {
    /// Against a plain map, where memory is not short: state and number of waiters of each id.
    #[test]
    fn it_is_as_the_model_says(calls in calls()) {
        let table = RunTable::new(1 << 20);
        #[derive(Clone, Copy, PartialEq)]
        enum Is { Claimed, Abandoned, Stored, Drained }
        let mut model: BTreeMap<u64, (Is, u64)> = BTreeMap::new();
        for call in calls {
            match call {
                Call::Claim(n) => {
                    let want = match model.get_mut(&n) {
                        None => { model.insert(n, (Is::Claimed, 0)); Claim::Owner }
                        Some((is @ Is::Abandoned, _)) => { *is = Is::Claimed; Claim::Owner }
                        Some((Is::Claimed, waiters)) => { *waiters += 1; Claim::Taken(None) }
                        Some(_) => Claim::Taken(Some(location(n))),
                    };
                    prop_assert_eq!(table.claim(&id(n)), want);
                }
                Call::Publish(n) => {
                    table.publish(&id(n), &location(n));
                    if let Some((is @ (Is::Claimed | Is::Abandoned), _)) = model.get_mut(&n) {
                        *is = Is::Stored;
                    }
                }
                Call::Abandon(n) => {
                    table.abandon(&id(n));
                    match model.get_mut(&n) {
                        Some((Is::Claimed, 0)) => { model.remove(&n); }
                        Some((is @ Is::Claimed, _)) => *is = Is::Abandoned,
                        _ => {}
                    }
                }
                Call::Wait(n) => {
                    // it would wait for ever for an owner that this single thread is
                    let Some((is, waiters)) = model.get_mut(&n) else { continue };
                    if *is == Is::Claimed || *waiters == 0 {
                        continue;
                    }
                    *waiters -= 1;
                    let want = (*is != Is::Abandoned).then(|| location(n));
                    prop_assert_eq!(table.wait(&id(n)), want);
                    if *is == Is::Abandoned && *waiters == 0 {
                        model.remove(&n);
                    }
                }
                Call::Drain(most) => {
                    let three = PackId::from_bytes([3; 32]);
                    for record in table.drain(most, |pack| *pack != three) {
                        let n = (0..400).find(|n| id(*n) == record.id).unwrap();
                        prop_assert_eq!(record.location, location(n));
                        prop_assert!(model[&n].0 == Is::Stored && n % 5 != 3);
                        model.get_mut(&n).unwrap().0 = Is::Drained;
                    }
                }
            }
            prop_assert_eq!(table.stats().entries, model.len() as u64);
        }
        for n in 0..400 {
            let known = matches!(model.get(&n), Some((Is::Stored | Is::Drained, _)));
            prop_assert_eq!(table.location(&id(n)), known.then(|| location(n)));
        }
    }
}
