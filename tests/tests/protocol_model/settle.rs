//! "Eventually garbage is deleted", made a property of single states.
//!
//! Suppose all actors crash in this state: none moves again, their leases stay. Then one
//! collector works alone: it sweeps what was condemned, condemns and sweeps a generation of its
//! own, and does all of that once more. After that every backup must be as whole as before, and
//! nothing may be left that no backup leads to. Asked in every state, this is a crash of
//! everybody between any two operations; a crash of some is contained in it, as the others stop
//! somewhere later.
//!
//! The second collection has something to delete in any case: a segment that somebody put too
//! late, of packs that are gone already, goes with the next pack that dies, whichever that is.

use super::collector::Collector;
use super::steps::Step;
use super::store::{Condemned, ENTRIES, GENS, Manifest, PACKS, Places, SETTLING, Store, bits};
use super::world::{State, World};

/// The lease of the last collector.
const LEASE: u8 = 12;
/// Far above what a collection needs.
const STEPS_MAX: usize = 1000;

/// See the module.
pub(super) fn settles(world: &World, state: &State) -> bool {
    let alone = World {
        rules: world.rules,
        fences_max: u8::MAX,
        ..World::new(Store { bad: state.store.bad, ..Store::default() }, Vec::new())
    };
    let mut store = Store { fenced: 0, ..state.store };
    for round in 0..SETTLING {
        store.packs |= if round == 0 { 0 } else { 1 << (PACKS - 1) };
        // those with a verdict first
        for decided in [true, false] {
            for g in 0..GENS {
                let there = &store.gens[g];
                let open = there.condemned == Condemned::List || there.blockers.is_some();
                if open && there.verdict.is_some() == decided {
                    run(&alone, &mut store, Collector::new(small(g), false));
                }
            }
        }
        // whoever begins a collection looks for all whose leases have run out
        for lease in bits(store.leases.into()) {
            store.fence(lease);
        }
        store.leases = 0;
        let own = small(GENS - SETTLING + round);
        run(&alone, &mut store, Collector::new(own, true));
    }
    let kept = state.store.backups().all(|(slot, places)| store.backup(slot) == Some(places));
    kept && store.backups_are_whole() && (!world.leftovers || nothing_else(&store))
}

fn small(g: usize) -> u8 {
    u8::try_from(g).expect("few")
}

fn run(alone: &World, store: &mut Store, mut collector: Collector) {
    let mut ops = Vec::new();
    for _ in 0..STEPS_MAX {
        collector.enabled(alone, store, &mut ops);
        let Some(op) = ops.pop() else { return };
        ops.clear();
        store.fenced = 0;
        collector.step(alone, store, LEASE, op);
        if collector.pc == Step::Ended {
            return;
        }
    }
    panic!("a collector alone never ends: {collector:?}");
}

/// No object is left that no backup needs, but the permanent ones.
pub(super) fn nothing_else(store: &Store) -> bool {
    let mut live: Places = store.backups().fold(0, |all, (_, places)| all | places);
    loop {
        let more = bits(live).filter_map(|at| store.stub(at)).fold(live, |all, to| all | 1 << to);
        if more == live {
            break;
        }
        live = more;
    }
    let counts = live | store.stored();
    let live = super::store::packs_of(live);
    let stubs = (0..PACKS).filter(|p| store.stubs[*p] != 0).fold(0, |all, p| all | 1 << p);
    let named = bits(store.segments).fold(0, |all, place| all | 1 << (place / ENTRIES));
    let manifest = |slot: u8| matches!(store.manifests[usize::from(slot)], Manifest::Backup(_));
    (store.packs | stubs) & !live == 0
        && named & !store.packs == 0
        && store.damaged & !counts == 0
        && store.leases == 0
        && !bits(store.forgotten.into()).any(manifest)
        && store.gens.iter().all(|g| g.condemned != Condemned::List && g.blockers.is_none())
}
