//! What is condemned, rewritten and deleted.

use super::*;

#[test]
fn condemned_is_what_nothing_refers_to_and_nobody_else_has_condemned() {
    let packs = [(pack(3), 1), (pack(1), 1), (pack(2), 1), (pack(4), 1)];
    // 1 and 4 are stored; 6 is only a stub, 7 too, and something leads through it
    let stubs = [pack(6), pack(7), pack(4)];
    let live = live(&[place(2, 0, 0), place(7, 0, 0)]);
    let undecided = HashSet::from([pack(3)]);
    assert_eq!(plan_condemned(&packs, &stubs, &live, &undecided), [pack(1), pack(4), pack(6)]);
}

#[test]
fn rewritten_is_what_is_mostly_dead_and_worth_it() {
    const MIB: u64 = 1 << 20;
    // one entry of 900 bytes lives of each but of 5, where nothing does
    let live = live(&[1, 2, 3, 4, 6, 7].map(|n| place(n, 0, 0)));
    let packs = [
        (pack(1), MIB),
        (pack(2), 2 * MIB),
        // too little to gain
        (pack(3), 60 << 10),
        // somebody else's
        (pack(4), MIB),
        // dead, not mostly dead
        (pack(5), MIB),
        // more than half lives
        (pack(6), 1000),
        (pack(7), MIB),
    ];
    let undecided = HashSet::from([pack(4)]);
    let none = HashSet::new();
    let plan = plan_rewrites(&packs, &live, &undecided, &none);
    assert_eq!(plan, [(pack(2), 2 * MIB), (pack(1), MIB), (pack(7), MIB)]);
    // a pack that many stubs lead to, one after another, stays where it is
    let chain = |len: u8| -> HashSet<(PackId, PackId)> {
        let hops: Vec<u8> = (100..100 + len).chain([7]).collect();
        hops.windows(2).map(|hop| (pack(hop[0]), pack(hop[1]))).collect()
    };
    let planned = |len| plan_rewrites(&packs, &live, &undecided, &chain(len)).len();
    assert_eq!((planned(1), planned(31), planned(32), planned(60)), (3, 3, 2, 2));
}

#[test]
fn what_dies_has_nothing_live_or_all_of_it_elsewhere() {
    let list = CondemnedList {
        dead: vec![pack(1), pack(2)],
        rewritten: vec![
            moved(3, &[((0, 0), place(8, 0, 0)), ((0, 1), place(8, 0, 1))]),
            moved(4, &[((0, 0), place(8, 1, 0))]),
            moved(5, &[((0, 0), place(9, 0, 0))]),
            moved(6, &[((0, 0), place(9, 1, 0))]),
        ],
        forgotten: Vec::new(),
    };
    assert_eq!(targets(&list), HashSet::from([pack(8), pack(9)]));
    // of 4 something lives that was not copied; what lives of 5 went to a pack that is gone; of 6
    // nothing lives
    let live = live(&[place(2, 0, 0), place(3, 0, 1), place(4, 0, 1), place(5, 0, 0)]);
    let exists = HashSet::from([pack(8)]);
    assert_eq!(plan_verdict(&list, &live, &exists), [pack(1), pack(3), pack(6)]);
}

proptest! {
    /// Nothing that is live, and not copied to a pack that exists, ever dies.
    #[test]
    fn a_verdict_kills_nothing_that_is_needed(
        alive in prop::collection::btree_set((0u8..6, 0u32..3, 0u16..3), 0..20),
        dead in prop::collection::btree_set(0u8..3, 0..3),
        copied in prop::collection::btree_map((3u8..6, 0u32..3, 0u16..3), 6u8..9, 0..20),
        exists in prop::collection::hash_set(6u8..9, 0..3),
    ) {
        let places: Vec<_> = alive.iter().map(|(p, e, i)| place(*p, *e, *i)).collect();
        let live = live(&places);
        let stub_of = |p: u8| {
            let of_pack = copied.iter().filter(|((from, ..), _)| *from == p);
            let to: Vec<_> = of_pack.map(|((_, e, i), to)| ((*e, *i), place(*to, *e, *i))).collect();
            moved(p, &to)
        };
        let list = CondemnedList {
            dead: dead.iter().map(|p| pack(*p)).collect(),
            rewritten: (3..6).map(stub_of).collect(),
            forgotten: Vec::new(),
        };
        let exists: HashSet<PackId> = exists.into_iter().map(pack).collect();
        let verdict = plan_verdict(&list, &live, &exists);
        for (p, e, i) in &alive {
            let safe = copied.get(&(*p, *e, *i)).is_some_and(|to| exists.contains(&pack(*to)));
            prop_assert!(safe || !verdict.contains(&pack(*p)), "{p} {e} {i}");
        }
        for p in dead {
            let needed = alive.iter().any(|(of, ..)| *of == p);
            prop_assert_eq!(verdict.contains(&pack(p)), !needed);
        }
    }
}
