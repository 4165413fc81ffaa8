//! The end of a pass: packs that were reused are looked up, the manifest is created, and whatever
//! comes of it.

use super::*;

impl Writer {
    pub(super) fn look(&mut self, world: &World, store: &Store, op: Op) {
        let own = op.step == Step::LookAtOwnPack;
        self.looks &= !(1 << op.on);
        let good = (store.packs & !self.condemned) & 1 << op.on != 0;
        if !good && own {
            self.restart();
            self.pc = Step::ListSegments;
            return;
        }
        if !good {
            self.condemned |= 1 << op.on;
        }
        if self.looks != 0 {
            return;
        }
        if own {
            self.pc = self.after_own(world);
        } else if packs_of(self.reused) & self.condemned == 0 {
            self.pc = commit_step(world);
        } else {
            // stored again, in packs of its own, as are the pages that lead to it
            self.reused = 0;
            self.own = 0;
            self.pc = Step::ListSegments;
        }
    }

    /// What was put does not count: all of it again.
    pub(super) fn restart(&mut self) {
        self.own = 0;
        self.reused = 0;
        self.looks = 0;
        self.again = false;
        self.takes_over = false;
    }

    pub(super) fn commit(
        &mut self,
        world: &World,
        spec: &WriterSpec,
        store: &mut Store,
        step: Step,
    ) {
        let slot = usize::from(self.slot(spec));
        match step {
            Step::LookAtLease => {
                let there = store.has_lease(self.lease);
                self.pc = if there { Step::CreateManifest } else { Step::LookForFence };
            }
            Step::LookForFence => {
                self.go_on(spec, store.manifests[slot] == Manifest::Fence);
            }
            Step::CreateManifest => match store.manifests[slot] {
                Manifest::Fence => self.go_on(spec, true),
                Manifest::Backup(_) => self.pc = Step::LookForForgottenSelf,
                Manifest::Absent => {
                    // what is damaged was stored again
                    let places = (self.inherited | self.reused) & !self.damaged | self.own;
                    store.built_on_damage |= self.must_know && places & store.bad != 0;
                    store.manifests[slot] = Manifest::Backup(places);
                    self.pc = Step::LookForForgottenSelf;
                }
            },
            Step::LookForForgottenSelf => {
                self.over = true;
                if store.forgotten & 1 << slot == 0 {
                    store.owed |= 1 << slot;
                }
                self.pc = Step::RemoveWriterLease;
            }
            _ => {
                // another run can go on from a checkpoint, or has begun to
                if self.over || !self.shared || !world.rules.shared_lease_stays {
                    store.leases &= !(1 << self.lease);
                }
                self.end();
            }
        }
    }

    /// The resumed writer: another lease, the next attempt if this one is fenced, and all that
    /// was looked at anew.
    pub(super) fn go_on(&mut self, spec: &WriterSpec, fenced: bool) {
        let attempt = self.attempt + u8::from(fenced);
        let left = spec.attempts.get(usize::from(attempt)).is_some_and(|a| *a != NONE);
        if !left || self.leases_had >= 2 {
            self.pc = Step::RemoveWriterLease;
            return;
        }
        self.attempt = attempt;
        self.again = true;
        self.pc = Step::CreateWriterLease;
    }

    pub(super) fn end(&mut self) {
        *self = Self { pc: Step::Ended, ..Self::new(&WriterSpec::new([NONE; 2], [NONE; 3])) };
    }
}

pub(super) fn without(places: Places, packs: Packs) -> Places {
    bits(packs.into()).fold(places, |left, pack| left & !places_of(pack))
}

pub(super) fn commit_step(world: &World) -> Step {
    if world.rules.lease_is_looked_at { Step::LookAtLease } else { Step::CreateManifest }
}
