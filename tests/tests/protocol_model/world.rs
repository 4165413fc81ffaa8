//! A bounded world: its actors, its rules, how its store was found, and the checker's view of it.

use super::collector::{Collector, CollectorSpec};
use super::reader::{Forget, Reader, Recorder, Undertaker, Upgrader};
use super::rules::Rules;
use super::settle::settles;
use super::steps::{Op, Step};
use super::store::{Packs, Places, Store, bits};
use super::writer::{Writer, WriterSpec};
use stateright::{Model, Property};
use std::fmt;

/// Most actors.
pub(crate) const ACTORS: usize = 7;

/// Keys on one page of a LIST; 0: all keys on one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pages {
    pub(crate) backups: u8,
    pub(crate) leases: u8,
    pub(crate) gc: u8,
    pub(crate) moved: u8,
    /// Keys are random, so they may be listed in either order.
    pub(crate) descending: bool,
}

/// One of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spec {
    Writer(WriterSpec),
    Reader(u8),
    Forget(u8),
    Collector(CollectorSpec),
    /// Nobody.
    Idle,
    /// Sweeps a generation that another condemned.
    Sweeper(u8),
    /// Takes the holder of this lease for dead at some moment.
    Undertaker(u8),
    /// Records damage of this place.
    Recorder(u8),
    /// Adds a feature.
    Upgrader,
}

/// The state of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Actor {
    #[default]
    Nobody,
    Writer(Writer),
    Reader(Reader),
    Forget(Forget),
    Collector(Collector),
    Undertaker(Undertaker),
    Recorder(Recorder),
    Upgrader(Upgrader),
}

/// A state of the world.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) actors: [Actor; ACTORS],
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// One operation of one actor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) actor: u8,
    pub(crate) op: Op,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {} {}", self.actor, self.op.step.words(), self.op.on)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) pages: Pages,
    pub(crate) actors: Vec<Spec>,
    /// Fences of anybody, alive or not.
    pub(crate) fences_max: u8,
    /// Whether every state is tested for "if all crash here, two more collections leave nothing
    /// behind".
    pub(crate) settles: bool,
    /// And for "leave nothing behind"; else only for "keep every backup".
    pub(crate) leftovers: bool,
    /// The store before anybody moves.
    pub(crate) store: Store,
    /// Places that a backup can only refer to by a feature: no mark here sees those references.
    pub(crate) by_feature: Places,
    /// What is to be done to several objects is done in any order; else in that of their numbers,
    /// or against it.
    pub(crate) any_order: bool,
    /// Steps that are done before the search: an actor runs until its next step is this one.
    pub(crate) before: Vec<(u8, Step)>,
}

impl World {
    /// A world with all rules, whole listings, nobody fenced.
    pub(crate) fn new(store: Store, actors: Vec<Spec>) -> Self {
        assert!(actors.len() <= ACTORS, "more actors than a state holds");
        let (pages, before) = (Pages::default(), Vec::new());
        let (fences_max, settles, any_order) = (0, false, false);
        Self {
            rules: Rules::ALL,
            pages,
            actors,
            fences_max,
            settles,
            leftovers: true,
            store,
            by_feature: 0,
            any_order,
            before,
        }
    }

    /// A step that is to be done to each of these.
    pub(crate) fn choose(&self, step: Step, set: u32, out: &mut Vec<Op>) {
        let all = bits(set).map(|on| Op::new(step, on));
        if self.any_order {
            out.extend(all);
        } else {
            let mut all = all;
            out.extend(if self.pages.descending { all.last() } else { all.next() });
        }
    }

    /// Whether anything is damaged; where nothing is, nobody looks for records of it.
    pub(crate) fn has_damage(&self) -> bool {
        self.store.bad != 0
    }

    /// Whether there is any feature; where there is none, nobody looks.
    pub(crate) fn has_features(&self) -> bool {
        self.by_feature != 0
    }

    /// Lists the next page: its keys as bits, and whether it was the last.
    pub(crate) fn page(&self, size: u8, cursor: &mut u8, total: usize) -> (u32, bool) {
        let total = u8::try_from(total).expect("few keys");
        let (from, to) = if size == 0 { (0, total) } else { (*cursor, total.min(*cursor + size)) };
        let done = to >= total;
        *cursor = if done { 0 } else { to };
        let key = |i: u8| if self.pages.descending { total - 1 - i } else { i };
        ((from..to).fold(0, |keys, i| keys | 1 << key(i)), done)
    }

    /// What the collector of a generation is to do; one that only tidies up rewrites nothing.
    pub(crate) fn collector(&self, generation: u8) -> CollectorSpec {
        let spec = self.actors.iter().find_map(|spec| match spec {
            Spec::Collector(spec) if spec.generation == generation => Some(*spec),
            _ => None,
        });
        let rewrites: Packs = 0;
        let target = super::store::NONE;
        spec.unwrap_or(CollectorSpec { generation, target, rewrites, sweeps: true })
    }

    /// The state that the search starts from.
    pub(crate) fn start(&self) -> State {
        let mut actors = [Actor::Nobody; ACTORS];
        for (actor, spec) in actors.iter_mut().zip(&self.actors) {
            *actor = match spec {
                Spec::Writer(spec) => Actor::Writer(Writer::new(spec)),
                Spec::Reader(slot) => Actor::Reader(Reader::new(*slot)),
                Spec::Forget(slot) => Actor::Forget(Forget::new(*slot)),
                Spec::Collector(spec) => Actor::Collector(Collector::new(spec.generation, true)),
                Spec::Idle => Actor::Nobody,
                Spec::Undertaker(lease) => Actor::Undertaker(Undertaker::new(*lease)),
                Spec::Recorder(place) => Actor::Recorder(Recorder::new(*place)),
                Spec::Upgrader => Actor::Upgrader(Upgrader::new()),
                Spec::Sweeper(generation) => Actor::Collector(Collector::new(*generation, false)),
            };
        }
        let mut state = State { store: self.store, actors };
        for (actor, until) in &self.before {
            let mut ops = Vec::new();
            while state.actors[usize::from(*actor)].pc() != *until {
                ops.clear();
                self.enabled(&state, *actor, &mut ops);
                // what happens beside the rest is listed before it; a rule that is off may leave
                // nothing to be done
                let beside = *until == Step::PutCheckpoint;
                let Some(op) = (if beside { ops.first() } else { ops.last() }).copied() else {
                    break;
                };
                self.act(&mut state, Action { actor: *actor, op });
                if op.step == *until {
                    break;
                }
            }
        }
        state
    }

    /// What an actor can do now.
    pub(crate) fn enabled(&self, state: &State, actor: u8, out: &mut Vec<Op>) {
        let i = usize::from(actor);
        match (&state.actors[i], self.actors.get(i)) {
            (Actor::Writer(w), Some(Spec::Writer(spec))) => {
                w.enabled(self, spec, &state.store, out)
            }
            (Actor::Reader(r), _) => r.enabled(self, &state.store, out),
            (Actor::Forget(f), _) => f.enabled(&state.store, out),
            (Actor::Collector(c), _) => c.enabled(self, &state.store, out),
            (Actor::Undertaker(u), _) => u.enabled(&state.store, out),
            (Actor::Recorder(r), _) => r.enabled(&state.store, out),
            (Actor::Upgrader(u), _) => u.enabled(out),
            _ => {}
        }
    }

    /// Does it.
    pub(crate) fn act(&self, state: &mut State, action: Action) {
        let Action { actor, op } = action;
        let i = usize::from(actor);
        let store = &mut state.store;
        match (&mut state.actors[i], self.actors.get(i)) {
            (Actor::Writer(w), Some(Spec::Writer(spec))) => w.step(self, spec, store, actor, op),
            (Actor::Reader(r), _) => r.step(store, 2 * actor, op),
            (Actor::Forget(f), _) => f.step(self.rules.forget_deletes_nothing, store, op.step),
            (Actor::Collector(c), _) => c.step(self, store, 2 * actor, op),
            (Actor::Undertaker(u), _) => u.step(store, op.step),
            (Actor::Recorder(r), _) => r.step(store),
            (Actor::Upgrader(u), _) => u.step(store),
            _ => {}
        }
    }
}

impl Actor {
    pub(crate) fn pc(&self) -> Step {
        match self {
            Self::Nobody => Step::Ended,
            Self::Writer(w) => w.pc,
            Self::Reader(r) => r.pc,
            Self::Forget(f) => f.pc,
            Self::Collector(c) => c.pc,
            Self::Undertaker(u) => u.pc,
            Self::Recorder(r) => r.pc,
            Self::Upgrader(u) => u.pc,
        }
    }
}

/// Every backup that exists leads to entries that are there, directly or through stubs.
pub(crate) const WHOLE: &str = "every backup is whole";
/// What a writer was told to exist, exists until it is forgotten.
pub(crate) const KEPT: &str = "every promise is kept";
/// A reader under its lease never fails.
pub(crate) const READS: &str = "every reader succeeds";
/// Nobody who could know of damage builds on it.
pub(crate) const HEALS: &str = "no backup is built on recorded damage";
/// If all crash here, two more collections keep all backups.
pub(crate) const SAFE: &str = "every backup is whole after two more collections";
/// The same, and they leave nothing else.
pub(crate) const SETTLES: &str = "garbage is deleted";

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let mut ops = Vec::new();
        for actor in 0..u8::try_from(self.actors.len()).expect("few") {
            self.enabled(state, actor, &mut ops);
            actions.extend(ops.drain(..).map(|op| Action { actor, op }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        self.act(&mut state, action);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(WHOLE, |_, s| s.store.backups_are_whole()),
            Property::<Self>::always(KEPT, |_, s| s.store.promises_are_kept()),
            Property::<Self>::always(READS, |_, s| !s.store.reader_failed),
            Property::<Self>::always(HEALS, |_, s| !s.store.built_on_damage),
        ];
        if self.settles {
            let name = if self.leftovers { SETTLES } else { SAFE };
            properties.push(Property::<Self>::always(name, settles));
        }
        properties
    }
}
