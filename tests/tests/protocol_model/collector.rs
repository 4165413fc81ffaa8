//! A collector: condemns a generation, and sweeps it; or sweeps the generation of somebody else.
//!
//! Registers that are no longer needed are cleared, so that states which differ in nothing to
//! come are one state.

use super::mark::{Mark, Marked};
use super::steps::{Op, Step};
use super::store::{
    Condemned, Key, LEASES, Leases, List, NONE, Packs, Places, Slots, Store, bits, places_of,
};
use super::world::World;

/// What a collector is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CollectorSpec {
    pub(crate) generation: u8,
    /// The pack that it copies into.
    pub(crate) target: u8,
    /// Packs that it rewrites if anything in them is live.
    pub(crate) rewrites: Packs,
    /// Goes on to sweep its own generation.
    pub(crate) sweeps: bool,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Collector {
    pub(crate) pc: Step,
    pub(crate) generation: u8,
    pub(crate) cursor: u8,
    pub(crate) forgotten: Slots,
    pub(crate) listed: Packs,
    pub(crate) list: List,
    pub(crate) leases: Leases,
    /// Whose key is taken, and whose lease is not removed yet.
    pub(crate) fencing: u8,
    pub(crate) mark: Mark,
    /// The verdict that is carried out.
    pub(crate) verdict: Packs,
    /// What is left of the step at hand.
    pub(crate) left: u16,
    /// What segments are to name, and what not any more.
    pub(crate) segments: (Places, Places),
    /// What damage records name, as far as nothing of it is live.
    pub(crate) records: Places,
    /// There is no list: what is left of the generation was put back too late.
    pub(crate) listless: bool,
    pub(crate) condemning: bool,
    /// A rule is off: the list in memory counts although the key was fenced.
    pub(crate) ignores_fence: bool,
}

impl Collector {
    pub(crate) fn new(generation: u8, condemning: bool) -> Self {
        let pc = if condemning { Step::CreateCollectorLease } else { Step::ListGenerations };
        Self {
            pc,
            generation,
            cursor: 0,
            forgotten: 0,
            listed: 0,
            list: List::default(),
            leases: 0,
            fencing: NONE,
            mark: Mark::default(),
            verdict: 0,
            left: 0,
            segments: (0, 0),
            records: 0,
            listless: false,
            condemning,
            ignores_fence: false,
        }
    }

    /// What is possible now.
    pub(crate) fn enabled(&self, world: &World, store: &Store, out: &mut Vec<Op>) {
        match self.pc {
            Step::Ended => {}
            Step::ListGenerations => {
                let generation = &store.gens[usize::from(self.generation)];
                let left = generation.blockers.is_some();
                if generation.condemned == Condemned::List || left {
                    out.push(self.pc.into());
                }
            }
            Step::WaitForBlocker => self.blockers(world, store, out),
            Step::CreateFence | Step::RemoveFencedLease => {
                out.push(Op::new(self.pc, self.fencing));
            }
            Step::CreateStub | Step::DeletePack | Step::DeleteStub | Step::DeleteManifest => {
                world.choose(self.pc, self.left.into(), out);
            }
            pc => self.mark.enabled(world, pc, out),
        }
    }

    /// Those that have ended are ticked off in one order, which changes nothing; the others may
    /// be fenced in any.
    fn blockers(&self, world: &World, store: &Store, out: &mut Vec<Op>) {
        let ended = self.leases & !store.leases;
        if ended != 0 {
            world.choose(Step::WaitForBlocker, ended.into(), out);
        }
        if store.fenced < world.fences_max {
            for lease in bits((self.leases & store.leases).into()) {
                let nothing = store.keys[usize::from(lease)] == Key::Nothing;
                let first = if nothing || !world.rules.fence_before_removal {
                    Step::RemoveFencedLease
                } else {
                    Step::CreateFence
                };
                out.push(Op::new(first, lease));
            }
        }
    }

    /// Does what is possible.
    pub(crate) fn step(&mut self, world: &World, store: &mut Store, own_lease: u8, op: Op) {
        match op.step {
            Step::CreateCollectorLease
            | Step::ListForgotten
            | Step::ListPacks
            | Step::ReadToCopy
            | Step::PutCopy
            | Step::StubsTooEarly
            | Step::CreateCondemned
            | Step::ListLeases
            | Step::ReadLeases
            | Step::CreateBlockers
            | Step::RemoveCollectorLease => self.condemn(world, store, own_lease, op.step),
            Step::MarkVerdictsBefore
            | Step::MarkManifests
            | Step::WalkManifest
            | Step::MarkLists
            | Step::ReadList
            | Step::MarkStubs
            | Step::MarkVerdictsAfter
            | Step::LookAtUnreadable => match self.mark.step(world, store, op, self.forgotten) {
                Marked::More(next) => self.pc = next,
                Marked::Done if self.condemning => self.decide_condemned(world, store),
                Marked::Done if world.has_features() && world.rules.sweep_looks_for_features => {
                    self.pc = Step::LookForFeatures;
                }
                Marked::Done => self.after_mark(world, store),
                Marked::Blind => self.pc = Step::LookForForgottenUnreadable,
            },
            Step::LookForForgottenUnreadable => self.blind(store),
            _ => self.sweep(world, store, op),
        }
    }

    /// What was marked is to be decided about.
    pub(super) fn after_mark(&mut self, world: &World, store: &Store) {
        if self.list.target == NONE {
            self.decide(world, store, true);
        } else {
            self.pc = Step::LookAtTarget;
        }
    }

    fn condemn(&mut self, world: &World, store: &mut Store, own_lease: u8, step: Step) {
        let g = usize::from(self.generation);
        match step {
            Step::CreateCollectorLease => {
                store.leases |= 1 << own_lease;
                store.keys[usize::from(own_lease)] = Key::Condemned(self.generation);
                self.pc = Step::ListForgotten;
            }
            Step::ListForgotten => {
                self.records = store.damaged;
                self.forgotten = store.forgotten;
                self.pc = Step::ListPacks;
            }
            Step::ListPacks => {
                self.listed = store.packs;
                self.pc = Mark::first(world);
            }
            Step::ReadToCopy => {
                if self.list.rewritten() & !store.packs == 0 {
                    self.pc = Step::PutCopy;
                } else {
                    // its source is gone: somebody else was faster
                    self.list = List { copied: [NONE; 2], target: NONE, ..self.list };
                    self.after_copy(world);
                }
            }
            Step::PutCopy => {
                store.packs |= 1 << self.list.target;
                self.after_copy(world);
            }
            Step::StubsTooEarly => {
                store.gens[g].list = self.list;
                for pack in bits(self.list.rewritten().into()) {
                    create_stub(store, self.generation, pack);
                }
                self.before_condemned(world);
            }
            Step::CreateCondemned => self.create_condemned(world, store),
            Step::ListLeases => {
                let (page, done) = world.page(world.pages.leases, &mut self.cursor, LEASES);
                self.leases |= store.leases & u16::try_from(page).expect("few") & !(1 << own_lease);
                if done {
                    self.after_leases(world);
                }
            }
            Step::ReadLeases => {
                // one that is gone has ended
                self.leases &= store.leases;
                self.after_leases_read(world);
            }
            Step::CreateBlockers => {
                store.gens[g].blockers.get_or_insert(self.leases);
                self.leases = 0;
                self.pc = Step::RemoveCollectorLease;
            }
            _ => {
                store.leases &= !(1 << own_lease);
                self.after_condemn(world, store);
            }
        }
    }

    fn after_leases(&mut self, world: &World) {
        if self.leases == 0 {
            self.after_leases_read(world);
        } else {
            self.pc = Step::ReadLeases;
        }
    }

    fn after_leases_read(&mut self, world: &World) {
        let early = !world.rules.leases_after_condemned;
        self.pc = if early { Step::CreateCondemned } else { Step::CreateBlockers };
    }

    /// The lease is gone. Goes on to sweep what it has condemned, with the same mark.
    fn after_condemn(&mut self, world: &World, store: &Store) {
        let created = store.gens[usize::from(self.generation)].condemned;
        let has_list = self.list != List::default() || self.records != 0;
        if !has_list || !world.collector(self.generation).sweeps {
            return self.end();
        }
        let (list, mark, forgotten) = (self.list, self.mark.kept(), self.forgotten);
        let goes_on = self.ignores_fence && created == Condemned::Fence;
        *self = Self { mark, pc: Step::ReadCondemned, ..Self::new(self.generation, false) };
        if goes_on {
            (self.list, self.forgotten) = (list, forgotten);
            self.pc = Step::ReadBlockers;
        }
    }

    /// Condemn 4: what is dead, and what is copied.
    fn decide_condemned(&mut self, world: &World, store: &mut Store) {
        let mark = &self.mark;
        let undecided = mark.undecided(store);
        let spec = world.collector(self.generation);
        let mut list = List { forgotten: mark.gone, ..List::default() };
        list.dead = mark.dead(world, store, (self.listed | mark.stubbed()) & !undecided);
        let rewrites = if mark.moving(store) { 0 } else { spec.rewrites & !undecided };
        let mut free = 0;
        for pack in bits((self.listed & rewrites & !list.dead).into()) {
            let places = mark.live & places_of(pack);
            if places.count_ones() as usize + free > list.copied.len() {
                continue;
            }
            for at in bits(places) {
                list.copied[free] = at;
                free += 1;
            }
            list.target = spec.target;
        }
        let listed = bits(self.listed.into()).fold(0, |all, pack| all | places_of(pack));
        self.records &= !listed & !mark.live;
        if !world.rules.damage_waits {
            store.damaged &= !std::mem::take(&mut self.records);
        }
        if mark.waiting() != 0 {
            // that one's sweep looks at them too
            self.records = 0;
        }
        let alone = list.dead == 0 && free == 0 && self.records == 0;
        if alone && list.forgotten & !mark.recorded(store) == 0 {
            // a list has them already
            list.forgotten = 0;
        }
        self.list = list;
        self.mark = mark.kept();
        self.listed = 0;
        if free > 0 {
            self.pc = Step::ReadToCopy;
        } else {
            self.after_copy(world);
        }
    }

    fn after_copy(&mut self, world: &World) {
        let List { dead, target, forgotten, .. } = self.list;
        if dead == 0 && target == NONE && forgotten == 0 && self.records == 0 {
            self.give_up();
        } else if !world.rules.stubs_after_verdict && target != NONE {
            self.pc = Step::StubsTooEarly;
        } else {
            self.before_condemned(world);
        }
    }

    fn before_condemned(&mut self, world: &World) {
        let late = world.rules.leases_after_condemned;
        self.pc = if late { Step::CreateCondemned } else { Step::ListLeases };
    }

    fn create_condemned(&mut self, world: &World, store: &mut Store) {
        let generation = &mut store.gens[usize::from(self.generation)];
        let late = world.rules.leases_after_condemned;
        self.pc = if late { Step::ListLeases } else { Step::CreateBlockers };
        match generation.condemned {
            Condemned::Absent => {
                generation.condemned = Condemned::List;
                generation.list = self.list;
            }
            _ if world.rules.fenced_condemn_stops => self.give_up(),
            _ => {
                generation.list = self.list;
                self.ignores_fence = true;
            }
        }
    }

    /// Nothing was condemned: only the lease is left to be removed.
    fn give_up(&mut self) {
        *self = Self { pc: Step::RemoveCollectorLease, ..Self::new(self.generation, true) };
    }

    /// Nothing more to do.
    pub(crate) fn end(&mut self) {
        *self = Self { pc: Step::Ended, ..Self::new(self.generation, false) };
    }

    /// A backup cannot be read. If it is forgotten by now, condemning begins again, and sweeping
    /// decides that nothing dies.
    fn blind(&mut self, store: &Store) {
        let forgotten = store.forgotten & 1 << self.mark.unreadable != 0;
        self.mark = Mark::default();
        match (forgotten, self.condemning) {
            (true, true) => {
                self.listed = 0;
                self.pc = Step::ListForgotten;
            }
            (false, true) => self.give_up(),
            (true, false) => {
                self.records = 0;
                self.verdict = 0;
                self.pc = Step::CreateVerdict;
            }
            (false, false) => self.end(),
        }
    }

    /// Sweep 4: what would die by this mark.
    pub(super) fn decide(&mut self, world: &World, store: &Store, target_is_there: bool) {
        let live = self.mark.live;
        self.records &= !live;
        let mut dies = self.mark.dead(world, store, self.list.dead);
        let copied = if target_is_there { self.list.copied_places() } else { 0 };
        for pack in bits(self.list.rewritten().into()) {
            if live & places_of(pack) & !copied == 0 {
                dies |= 1 << pack;
            }
        }
        self.mark = Mark::default();
        self.verdict = dies;
        self.pc = Step::CreateVerdict;
    }
}

/// `moved/` objects are created once: what is there stays.
pub(super) fn create_stub(store: &mut Store, generation: u8, pack: u8) {
    let stub = &mut store.stubs[usize::from(pack)];
    if *stub == 0 {
        *stub = generation + 1;
    }
}
