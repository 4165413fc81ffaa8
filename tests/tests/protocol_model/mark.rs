//! Marking: which places are live, read from a store that changes meanwhile.
//!
//! A LIST comes in pages; between two pages anything may happen. What lies behind the cursor is
//! missed, what lies ahead is seen. What was listed is read afterwards, one object after another,
//! and may be gone by then.
//!
//! A mark can be taken again: manifests that were walked once are not walked again, and what was
//! live stays so.

use super::rules::MarkOrder;
use super::steps::{Op, Step};
use super::store::{
    Condemned, ENTRIES, GENS, Gens, Manifest, NONE, PACKS, Packs, Places, SLOTS, Slots, Store,
    bits, places_of,
};
use super::world::World;

/// What was read so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    cursor: u8,
    phase: u8,
    verdicts: Gens,
    /// Walked, or fences.
    seen: Slots,
    /// Listed and not walked yet.
    todo: Slots,
    /// Forgotten ones that were listed.
    pub(crate) gone: Slots,
    /// Reached by manifests, and from the end of a round on through relocations and stubs too.
    pub(crate) live: Places,
    /// Reached by manifests; kept only where a rule that is off asks for it.
    direct: Places,
    lists_todo: Gens,
    lists: Gens,
    stubs: [u8; PACKS],
    /// A manifest that leads to a page which cannot be read.
    pub(crate) unreadable: u8,
}

impl Default for Mark {
    fn default() -> Self {
        Self {
            cursor: 0,
            phase: 0,
            verdicts: 0,
            seen: 0,
            todo: 0,
            gone: 0,
            live: 0,
            direct: 0,
            lists_todo: 0,
            lists: 0,
            stubs: [0; PACKS],
            unreadable: NONE,
        }
    }
}

/// What a step of marking leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marked {
    More(Step),
    Done,
    /// `unreadable` cannot be read: nothing may be concluded.
    Blind,
}

fn order(world: &World) -> [Step; 3] {
    let (manifests, lists, stubs) = (Step::MarkManifests, Step::MarkLists, Step::MarkStubs);
    match world.rules.mark_order {
        MarkOrder::ManifestsListsStubs => [manifests, lists, stubs],
        MarkOrder::ManifestsStubsLists => [manifests, stubs, lists],
    }
}

impl Mark {
    /// The first step.
    pub(crate) fn first(world: &World) -> Step {
        if world.rules.mark_again { Step::MarkVerdictsBefore } else { order(world)[0] }
    }

    /// Ready to be taken again; what is of one round only is dropped.
    pub(crate) fn kept(&self) -> Self {
        Self { seen: self.seen, live: self.live, direct: self.direct, ..Self::default() }
    }

    /// What can be done at a step of marking.
    pub(crate) fn enabled(&self, world: &World, step: Step, out: &mut Vec<Op>) {
        match step {
            Step::WalkManifest => world.choose(step, self.todo.into(), out),
            Step::ReadList => world.choose(step, self.lists_todo.into(), out),
            _ => out.push(step.into()),
        }
    }

    /// Does one step. `forgotten`: the manifests that do not count.
    pub(crate) fn step(
        &mut self,
        world: &World,
        store: &Store,
        op: Op,
        forgotten: Slots,
    ) -> Marked {
        match op.step {
            Step::MarkVerdictsBefore => {
                self.verdicts = verdicts(store);
                self.round(world)
            }
            Step::MarkManifests => {
                let (page, done) = world.page(world.pages.backups, &mut self.cursor, SLOTS);
                for slot in bits(page) {
                    let bit = 1 << slot;
                    if store.manifests[usize::from(slot)] == Manifest::Absent {
                    } else if forgotten & bit != 0 {
                        self.gone |= bit;
                    } else if self.seen & bit == 0 {
                        self.todo |= bit;
                    }
                }
                if done { self.go_on(world, store) } else { Marked::More(op.step) }
            }
            Step::WalkManifest => self.walk(world, store, op.on),
            Step::MarkLists => {
                let (page, done) = world.page(world.pages.gc, &mut self.cursor, GENS);
                for g in bits(page) {
                    if store.gens[usize::from(g)].condemned != Condemned::Absent {
                        self.lists_todo |= 1 << g;
                    }
                }
                if done { self.go_on(world, store) } else { Marked::More(op.step) }
            }
            Step::ReadList => {
                self.lists_todo &= !(1 << op.on);
                if store.gens[usize::from(op.on)].condemned == Condemned::List {
                    self.lists |= 1 << op.on;
                }
                self.go_on(world, store)
            }
            Step::MarkStubs => {
                let (page, done) = world.page(world.pages.moved, &mut self.cursor, PACKS);
                for pack in bits(page) {
                    self.stubs[usize::from(pack)] = store.stubs[usize::from(pack)];
                }
                if done { self.go_on(world, store) } else { Marked::More(op.step) }
            }
            Step::MarkVerdictsAfter => self.verdicts_after(world, store),
            _ => {
                if store.manifests[usize::from(self.unreadable)] != Manifest::Absent {
                    return Marked::Blind;
                }
                self.again(world)
            }
        }
    }

    /// From the start of the order; what is live stays.
    fn round(&mut self, world: &World) -> Marked {
        *self = Self { verdicts: self.verdicts, ..self.kept() };
        Marked::More(order(world)[0])
    }

    /// As if nothing had been read but the verdicts.
    fn again(&mut self, world: &World) -> Marked {
        *self = Self { verdicts: self.verdicts, ..Self::default() };
        self.round(world)
    }

    fn walk(&mut self, world: &World, store: &Store, slot: u8) -> Marked {
        self.todo &= !(1 << slot);
        match store.manifests[usize::from(slot)] {
            Manifest::Absent => {}
            Manifest::Fence => self.seen |= 1 << slot,
            Manifest::Backup(places) => {
                // entry 0 of a pack is a page, entry 1 a chunk, which nobody reads here
                if bits(places & !store.bad).any(|p| p % ENTRIES == 0 && !store.readable(p)) {
                    self.todo = 0;
                    self.unreadable = slot;
                    return Marked::More(if world.rules.mark_again {
                        Step::MarkVerdictsAfter
                    } else {
                        Step::LookAtUnreadable
                    });
                }
                self.seen |= 1 << slot;
                let places = places & !world.by_feature;
                self.live |= places;
                if !world.rules.chains_count {
                    self.direct |= places;
                }
            }
        }
        self.go_on(world, store)
    }

    /// What was listed is read before anything else is listed.
    fn go_on(&mut self, world: &World, store: &Store) -> Marked {
        if self.todo != 0 {
            return Marked::More(Step::WalkManifest);
        }
        if self.lists_todo != 0 {
            return Marked::More(Step::ReadList);
        }
        self.phase += 1;
        if let Some(next) = order(world).get(usize::from(self.phase)) {
            return Marked::More(*next);
        }
        self.phase = 0;
        self.close(world, store);
        if world.rules.mark_again { Marked::More(Step::MarkVerdictsAfter) } else { Marked::Done }
    }

    fn verdicts_after(&mut self, world: &World, store: &Store) -> Marked {
        let after = verdicts(store);
        let decided_meanwhile = after & !self.verdicts != 0;
        self.verdicts = after;
        match (self.unreadable == NONE, decided_meanwhile) {
            (true, false) => Marked::Done,
            (true, true) => self.round(world),
            (false, false) => Marked::More(Step::LookAtUnreadable),
            (false, true) => self.again(world),
        }
    }

    /// What is live of a pack is live where it went: along relocations that nobody has decided
    /// yet, and along stubs.
    fn close(&mut self, world: &World, store: &Store) {
        let lists = if world.rules.relocations_count { self.lists } else { 0 };
        let list = |g: u8| &store.gens[usize::from(g)].list;
        loop {
            let mut more = self.live;
            for at in bits(self.live) {
                let stub = self.stubs[usize::from(at / ENTRIES)].checked_sub(1);
                for g in bits(lists.into()).chain(stub) {
                    more |= list(g).moved(at).map_or(0, |to| 1 << to);
                }
            }
            if more == self.live {
                return;
            }
            self.live = more;
        }
    }

    /// Which of these packs hold nothing live. A pack of which only a stub is left is one of them
    /// too.
    pub(crate) fn dead(&self, world: &World, store: &Store, of: Packs) -> Packs {
        bits(of.into()).fold(0, |dead, pack| {
            let only_stub = store.packs & 1 << pack == 0;
            let counts =
                if only_stub && !world.rules.chains_count { self.direct } else { self.live };
            if counts & places_of(pack) == 0 { dead | 1 << pack } else { dead }
        })
    }

    /// Packs that have a stub.
    pub(crate) fn stubbed(&self) -> Packs {
        (0..PACKS).filter(|p| self.stubs[*p] != 0).fold(0, |packs, p| packs | 1 << p)
    }

    /// Packs in condemned lists that nobody has decided yet.
    pub(crate) fn undecided(&self, store: &Store) -> Packs {
        bits(self.lists.into()).fold(0, |packs, g| {
            let list = &store.gens[usize::from(g)].list;
            packs | list.dead | list.rewritten()
        })
    }

    /// Backups that they take for forgotten.
    pub(crate) fn recorded(&self, store: &Store) -> Slots {
        let of = |g: u8| store.gens[usize::from(g)].list.forgotten;
        bits(self.lists.into()).fold(0, |slots, g| slots | of(g))
    }

    /// Those of them without a verdict.
    pub(crate) fn waiting(&self) -> Gens {
        self.lists & !self.verdicts
    }

    /// Whether one of these moves something.
    pub(crate) fn moving(&self, store: &Store) -> bool {
        bits(self.waiting().into()).any(|g| store.gens[usize::from(g)].list.target != NONE)
    }
}

fn verdicts(store: &Store) -> Gens {
    (0..GENS).filter(|g| store.gens[*g].verdict.is_some()).fold(0, |gens, g| gens | 1 << g)
}
