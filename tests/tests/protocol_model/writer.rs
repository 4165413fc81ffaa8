//! A writer, also one that goes on after it was fenced, or from the checkpoint of another process.

mod commit;
mod packs;
mod spec;

use commit::{commit_step, without};
use spec::TOUCHES_LEASE;
pub(crate) use spec::{BESIDE, WRITER_PACKS, WriterSpec, three};

use super::steps::{Op, Step};
use super::store::{
    Condemned, GENS, Gens, Key, Manifest, NONE, Packs, Places, Store, bits, packs_of, place,
    places_of,
};
use super::world::World;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    pub(crate) pc: Step,
    attempt: u8,
    /// The lease that it holds, and how many it has made.
    lease: u8,
    leases_had: u8,
    /// To be removed: another one is in its place.
    old_lease: u8,
    /// Another process may be at work under its lease.
    shared: bool,
    /// The manifest key is taken.
    over: bool,
    /// It has looked at its lease and is about to rewrite it.
    beating: bool,
    beats_left: u8,
    /// The same with a checkpoint, which says this.
    writing: Places,
    checkpoints_left: u8,
    /// Reused packs that were looked at for a checkpoint.
    confirmed: Packs,
    /// Index into the candidates; all used up: no parent.
    parent: u8,
    /// Bit 0: the parent's manifest was there; bit 1: it is not forgotten.
    seen: u8,
    cursor: u8,
    lists: Gens,
    condemned: Packs,
    puts: u8,
    inherited: Places,
    /// Of packs that are not its own.
    reused: Places,
    /// Put under this lease, or confirmed under it.
    own: Places,
    /// Packs still to be looked at.
    looks: Packs,
    /// Has read the damage records, which named this.
    asked: bool,
    damaged: Places,
    /// Something was recorded before it did.
    must_know: bool,
    /// Has looked for the feature, and whether that was there.
    feature: Option<bool>,
    /// Goes on under another lease: what it has put is to be looked at.
    again: bool,
    /// It is what another process has put that is looked at.
    takes_over: bool,
}

impl Writer {
    pub(crate) fn new(spec: &WriterSpec) -> Self {
        let pc = if spec.resumes == NONE { Step::ListAttempts } else { Step::ReadCheckpoint };
        Self {
            pc,
            attempt: 0,
            lease: NONE,
            leases_had: 0,
            old_lease: NONE,
            shared: false,
            over: false,
            beating: false,
            beats_left: spec.beats,
            writing: 0,
            checkpoints_left: spec.checkpoints,
            confirmed: 0,
            parent: 0,
            seen: 0,
            cursor: 0,
            lists: 0,
            condemned: 0,
            puts: 0,
            inherited: 0,
            reused: 0,
            own: 0,
            looks: 0,
            asked: false,
            damaged: 0,
            must_know: false,
            feature: None,
            again: false,
            takes_over: false,
        }
    }

    /// What is possible now.
    pub(crate) fn enabled(
        &self,
        world: &World,
        spec: &WriterSpec,
        store: &Store,
        out: &mut Vec<Op>,
    ) {
        let held = self.lease != NONE && self.pc != Step::Ended;
        if self.beating {
            out.push(Op::new(Step::PutBeat, self.lease));
        } else if held && self.beats_left > 0 && self.writing == 0 && self.pc != Step::PutCheckpoint
        {
            out.push(Op::new(Step::LookAtLeaseToBeat, self.lease));
        }
        self.checkpoint_enabled(out);
        if (self.beating || self.writing != 0) && TOUCHES_LEASE.contains(&self.pc) {
            return;
        }
        match self.pc {
            Step::Ended => {}
            Step::ListAttempts => {
                let mut parents = spec.parents.iter().filter(|p| **p != NONE).peekable();
                if parents.peek().is_none() || parents.any(|p| store.backup(*p).is_some()) {
                    out.push(self.pc.into());
                }
            }
            Step::ReadCheckpoint => {
                let lease = 2 * spec.resumes;
                if store.has_lease(lease) && store.checkpoints[usize::from(lease)] != 0 {
                    out.push(self.pc.into());
                }
            }
            Step::LookAtParent => {
                // both look-ups are under way at once: either may be answered first
                if self.seen & 1 == 0 {
                    out.push(Step::LookAtParent.into());
                }
                if self.seen & 2 == 0 {
                    out.push(Step::LookForForgottenParent.into());
                }
            }
            // both kinds of records are read at once
            Step::ListCondemnedOfWriter | Step::ReadCondemnedOfWriter | Step::ListSegments
                if world.has_damage() && !self.asked && !self.again =>
            {
                out.push(Step::ReadDamage.into());
                match self.pc {
                    Step::ListCondemnedOfWriter => out.push(self.pc.into()),
                    Step::ReadCondemnedOfWriter => world.choose(self.pc, self.lists.into(), out),
                    _ => {}
                }
            }
            Step::ListSegments if world.has_features() && self.feature.is_none() => {
                out.push(Step::LookForFeatureToUse.into());
            }
            Step::ReadCondemnedOfWriter => world.choose(self.pc, self.lists.into(), out),
            Step::LookAtOwnPack | Step::LookAtReusedPack | Step::LookAtReusedForCheckpoint => {
                world.choose(self.pc, self.looks.into(), out);
            }
            Step::PutPack => {
                let pack = spec.packs.get(usize::from(self.puts)).copied().unwrap_or(NONE);
                out.push(Op::new(self.pc, pack));
            }
            pc => out.push(pc.into()),
        }
    }

    /// Checkpoints are made beside everything else, as long as a pass is under way.
    fn checkpoint_enabled(&self, out: &mut Vec<Op>) {
        if self.writing != 0 {
            out.push(Op::new(Step::PutCheckpoint, BESIDE));
            return;
        }
        let passes = [Step::PutPack, Step::PutSegment].contains(&self.pc);
        let is_last = [Step::LookAtReusedPack, Step::LookAtLease].contains(&self.pc);
        if self.checkpoints_left == 0 || self.own == 0 || self.beating || !(passes || is_last) {
            return;
        }
        match bits((packs_of(self.reused) & !self.confirmed).into()).next() {
            Some(pack) => out.push(Op::new(Step::LookAtReusedForCheckpoint, pack)),
            None => out.push(Op::new(Step::LookAtLeaseToWrite, BESIDE)),
        }
    }

    /// One of its steps.
    fn checkpoint(&mut self, store: &mut Store, op: Op) {
        match op.step {
            Step::LookAtReusedForCheckpoint => {
                if (store.packs & !self.condemned) & 1 << op.on == 0 {
                    // none now, and the commit will see it too
                    self.checkpoints_left = 0;
                } else {
                    self.confirmed |= 1 << op.on;
                }
            }
            Step::LookAtLeaseToWrite => {
                self.checkpoints_left -= 1;
                if store.has_lease(self.lease) {
                    self.writing = self.own | self.reused;
                }
            }
            _ => {
                store.leases |= 1 << self.lease;
                store.checkpoints[usize::from(self.lease)] = std::mem::take(&mut self.writing);
                self.shared = true;
            }
        }
    }

    /// Does what is possible. `me`: the number of this actor.
    #[allow(clippy::too_many_lines)] // a table
    pub(crate) fn step(
        &mut self,
        world: &World,
        spec: &WriterSpec,
        store: &mut Store,
        me: u8,
        op: Op,
    ) {
        match op.step {
            Step::ReadCheckpoint => {
                self.old_lease = 2 * spec.resumes;
                self.own = store.checkpoints[usize::from(self.old_lease)];
                self.pc = Step::ListAttempts;
            }
            Step::ListAttempts => self.list_attempts(world, spec, store),
            Step::ReadParentOfCheckpoint => {
                // it need not exist any more: that is asked for by whoever takes a lease of its own
                if let Manifest::Backup(places) = store.manifests[usize::from(spec.parents[0])] {
                    self.inherited = places & spec.inherits;
                    self.pc = Step::LookAtLeaseToAdopt;
                } else {
                    self.begin_anew(world, spec);
                }
            }
            Step::LookAtLeaseToAdopt => {
                if store.has_lease(self.old_lease) {
                    self.pc = Step::PutAdoptedLease;
                } else {
                    self.take_over(world, spec);
                }
            }
            Step::PutAdoptedLease => {
                store.leases |= 1 << self.old_lease;
                self.lease = std::mem::replace(&mut self.old_lease, NONE);
                self.shared = true;
                self.pc = Step::AskForLeaseAgain;
            }
            Step::CreateWriterLease => self.create_lease(spec, store, me),
            Step::RemoveOldLease => {
                store.leases &= !(1 << self.old_lease);
                self.old_lease = NONE;
                self.pc = Step::AskForLeaseAgain;
            }
            Step::AskForLeaseAgain => {
                // refused, unless somebody has removed it meanwhile
                store.leases |= 1 << self.lease;
                if self.shared {
                    // no further check: what the other one relied upon is still protected by it
                    self.pc = self.after_parent(world);
                } else {
                    self.look_around(world, spec);
                }
            }
            Step::PutParentIntoLease => {
                store.leases |= 1 << self.lease;
                let next = spec.parent(self.parent).map(|_| Step::LookAtParent);
                self.pc = next.unwrap_or_else(|| self.after_parent(world));
            }
            Step::LookAtParent | Step::LookForForgottenParent => {
                self.look_at_parent(world, spec, store, op.step);
            }
            Step::ReadDamage => {
                self.asked = true;
                self.damaged = store.damaged;
                self.must_know = store.was_recorded;
            }
            Step::LookForFeatureToUse => self.feature = Some(store.feature),
            Step::ListCondemnedOfWriter | Step::ReadCondemnedOfWriter | Step::ListSegments => {
                self.read_lists(world, spec, store, op);
            }
            Step::LookAtReusedForCheckpoint => self.checkpoint(store, op),
            Step::LookAtLeaseToWrite | Step::PutCheckpoint if op.on == BESIDE => {
                self.checkpoint(store, op);
            }
            Step::PutPack | Step::PutSegment | Step::LookAtLeaseToWrite | Step::PutCheckpoint => {
                self.put(world, spec, store, op);
            }
            Step::LookAtOwnPack | Step::LookAtReusedPack => self.look(world, store, op),
            Step::LookAtLeaseToBeat => {
                self.beats_left -= 1;
                self.beating = store.has_lease(self.lease);
            }
            Step::PutBeat => {
                self.beating = false;
                store.leases |= 1 << self.lease;
            }
            _ => self.commit(world, spec, store, op.step),
        }
    }

    /// The lease that it holds, the one before that, and the one that it would create next.
    pub(crate) fn leases(&self, me: u8) -> [u8; 3] {
        [self.lease, self.old_lease, 2 * me + self.leases_had]
    }

    /// Of what it has found, only what lies in these packs.
    pub(crate) fn reuse_only(&mut self, packs: Packs) {
        self.reused = without(self.reused, !packs & (Packs::MAX >> 3));
    }

    /// The candidate that it looks at.
    pub(crate) fn parent(&self, spec: &WriterSpec) -> u8 {
        spec.parent(self.parent).unwrap_or(NONE)
    }

    /// The manifest key that it is to create.
    pub(crate) fn slot(&self, spec: &WriterSpec) -> u8 {
        spec.attempts[usize::from(self.attempt)]
    }

    fn list_attempts(&mut self, world: &World, spec: &WriterSpec, store: &Store) {
        let forgotten = |a: &u8| *a != NONE && store.forgotten & 1 << a != 0;
        let fenced = |a: &u8| store.manifests[usize::from(*a)] == Manifest::Fence;
        let first = spec.attempts.iter().position(|a| *a != NONE && !fenced(a));
        let Some(first) = first.filter(|_| !spec.attempts.iter().any(forgotten)) else {
            return self.end();
        };
        self.attempt = u8::try_from(first).expect("two");
        if spec.resumes == NONE {
            return self.begin(world, spec);
        }
        let same = store.keys[usize::from(self.old_lease)] == Key::Manifest(self.slot(spec));
        if !same {
            self.take_over(world, spec);
        } else if spec.parent(0).is_some() {
            self.pc = Step::ReadParentOfCheckpoint;
        } else {
            self.pc = Step::LookAtLeaseToAdopt;
        }
    }

    fn begin(&mut self, world: &World, spec: &WriterSpec) {
        let later = world.rules.parent_after_lease || spec.parent(0).is_none();
        self.pc = if later { Step::CreateWriterLease } else { Step::LookAtParent };
    }

    /// From a checkpoint, under a lease of its own.
    fn take_over(&mut self, world: &World, spec: &WriterSpec) {
        self.old_lease = NONE;
        self.inherited = 0;
        self.again = true;
        self.takes_over = true;
        self.begin(world, spec);
    }

    /// Without the checkpoint.
    fn begin_anew(&mut self, world: &World, spec: &WriterSpec) {
        self.old_lease = NONE;
        self.own = 0;
        self.begin(world, spec);
    }

    fn create_lease(&mut self, spec: &WriterSpec, store: &mut Store, me: u8) {
        self.old_lease = self.lease;
        self.lease = 2 * me + self.leases_had;
        self.leases_had += 1;
        self.shared = false;
        self.confirmed = 0;
        store.leases |= 1 << self.lease;
        store.keys[usize::from(self.lease)] = Key::Manifest(self.slot(spec));
        self.pc =
            if self.old_lease == NONE { Step::AskForLeaseAgain } else { Step::RemoveOldLease };
    }

    /// Steps 2 and 3, under a lease: the same parent as before, or the first.
    fn look_around(&mut self, world: &World, spec: &WriterSpec) {
        self.condemned = 0;
        self.pc = if world.rules.parent_after_lease && spec.parent(self.parent).is_some() {
            self.seen = 0;
            Step::LookAtParent
        } else {
            self.after_parent(world)
        };
    }

    fn look_at_parent(&mut self, world: &World, spec: &WriterSpec, store: &Store, step: Step) {
        let Some(slot) = spec.parent(self.parent) else {
            self.pc = self.after_confirm(world);
            return;
        };
        let there = match store.manifests[usize::from(slot)] {
            Manifest::Backup(places) => Some(places),
            _ => None,
        };
        let looks = step == Step::LookAtParent;
        self.seen |= if looks { 1 } else { 2 };
        let good = if looks { there.is_some() } else { store.forgotten & 1 << slot == 0 };
        if looks && good {
            self.inherited = there.unwrap_or(0) & spec.inherits;
        }
        if good {
            if self.seen == 3 {
                self.seen = 0;
                self.pc = self.after_confirm(world);
            }
            return;
        }
        self.parent += 1;
        self.seen = 0;
        self.inherited = 0;
        if self.again {
            // what was made rests on a parent that is gone
            self.restart();
        }
        self.pc = if self.lease != NONE {
            Step::PutParentIntoLease
        } else if spec.parent(self.parent).is_some() {
            Step::LookAtParent
        } else {
            Step::CreateWriterLease
        };
    }

    fn after_confirm(&mut self, world: &World) -> Step {
        if self.lease == NONE {
            return Step::CreateWriterLease;
        }
        self.after_parent(world)
    }

    fn after_parent(&mut self, world: &World) -> Step {
        let fresh = !self.again || world.rules.resumed_reads_condemned;
        if world.rules.writer_reads_condemned && fresh {
            Step::ListCondemnedOfWriter
        } else if self.again {
            self.before_own(world)
        } else {
            Step::ListSegments
        }
    }

    fn before_own(&mut self, world: &World) -> Step {
        self.looks = packs_of(self.own);
        if world.rules.resumed_looks && self.looks != 0 {
            Step::LookAtOwnPack
        } else {
            self.after_own(world)
        }
    }

    fn read_lists(&mut self, world: &World, spec: &WriterSpec, store: &Store, op: Op) {
        match op.step {
            Step::ListCondemnedOfWriter => {
                let (page, done) = world.page(world.pages.gc, &mut self.cursor, GENS);
                for g in bits(page) {
                    if store.gens[usize::from(g)].condemned != Condemned::Absent {
                        self.lists |= 1 << g;
                    }
                }
                if !done {
                    return;
                }
            }
            Step::ReadCondemnedOfWriter => {
                self.lists &= !(1 << op.on);
                let generation = &store.gens[usize::from(op.on)];
                if generation.condemned == Condemned::List {
                    self.condemned |= generation.list.dead | generation.list.rewritten();
                }
            }
            _ => {
                let may = !world.rules.features_are_seen || self.feature == Some(true);
                let reuses = if may { spec.reuses } else { spec.reuses & !world.by_feature };
                let named = bits(reuses & store.segments);
                let named = named.filter(|p| self.damaged & 1 << p == 0);
                let good = named.filter(|p| self.condemned & packs_of(1 << p) == 0);
                self.reused |= good.fold(0, |all, p| all | 1 << p);
                self.pc = Step::PutPack;
                return;
            }
        }
        if self.lists != 0 {
            self.pc = Step::ReadCondemnedOfWriter;
        } else if self.again {
            self.pc = self.before_own(world);
        } else {
            self.pc = Step::ListSegments;
        }
    }
}
