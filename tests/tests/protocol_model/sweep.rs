//! The second half of a collector: sweeping a condemned generation.

use super::collector::{Collector, create_stub};
use super::mark::Mark;
use super::steps::{Op, Step};
use super::store::{Condemned, Key, LEASES, Manifest, NONE, Packs, Store, bits};
use super::world::World;

/// Sweep 5 to 9, and what rules forbid.
const CHANGES: [Step; 13] = [
    Step::ListSegmentsOfSweep,
    Step::PutMovedSegment,
    Step::DeleteOldSegments,
    Step::CreateStub,
    Step::DeletePack,
    Step::DeleteStub,
    Step::DeleteManifest,
    Step::DeleteDamage,
    Step::RemoveBlockers,
    Step::RemoveCondemned,
    Step::DeleteForgotten,
    Step::DeleteVerdict,
    Step::DeleteFences,
];

impl Collector {
    #[allow(clippy::too_many_lines)] // a table
    pub(super) fn sweep(&mut self, world: &World, store: &mut Store, op: Op) {
        let g = usize::from(self.generation);
        match op.step {
            Step::ListGenerations => self.pc = Step::ReadCondemned,
            Step::ReadCondemned => match store.gens[g].condemned {
                Condemned::List => {
                    self.list = store.gens[g].list;
                    self.forgotten = self.list.forgotten;
                    self.pc = Step::ReadVerdict;
                }
                // permanent
                Condemned::Fence => self.end(),
                // the list goes last: what is left was put back by a sweeper that came too late
                Condemned::Absent => {
                    self.listless = true;
                    self.pc = Step::RemoveBlockers;
                }
            },
            Step::ReadVerdict => {
                match store.gens[g].verdict.filter(|_| world.rules.verdict_is_adopted) {
                    Some(verdict) => {
                        self.verdict = verdict;
                        self.mark = Mark::default();
                        self.change_from(world, store, 0);
                    }
                    None => self.pc = Step::ReadBlockers,
                }
            }
            Step::ReadBlockers => {
                let blockers = store.gens[g].blockers;
                self.leases = blockers.unwrap_or(0);
                if blockers.is_none() && world.rules.sweep_makes_blockers {
                    self.pc = Step::ListLeasesOfSweep;
                } else {
                    self.after_wait(world);
                }
            }
            Step::ListLeasesOfSweep | Step::ReadLeasesOfSweep | Step::CreateBlockersOfSweep => {
                self.make_blockers(world, store, op.step);
            }
            Step::WaitForBlocker | Step::CreateFence | Step::RemoveFencedLease => {
                self.end_blocker(world, store, op);
            }
            Step::ListForgottenToday => {
                self.forgotten = store.forgotten;
                self.pc = Mark::first(world);
            }
            Step::ReadDamageToSweep => {
                self.records = store.damaged;
                self.pc = Mark::first(world);
            }
            // it refuses, and its list stays
            Step::LookForFeatures if store.feature => self.end(),
            Step::LookForFeatures => self.after_mark(world, store),
            Step::LookAtTarget => {
                let there = store.packs & 1 << self.list.target != 0;
                if world.rules.sweep_marks_again {
                    self.decide(world, store, there);
                } else {
                    self.verdict &= if there { Packs::MAX } else { !self.list.rewritten() };
                    self.pc = Step::CreateVerdict;
                }
            }
            Step::CreateVerdict => {
                let verdict = *store.gens[g].verdict.get_or_insert(self.verdict);
                if world.rules.verdict_is_adopted {
                    self.verdict = verdict;
                }
                self.forgotten = self.list.forgotten;
                if world.rules.condemned_removed_last {
                    self.change_from(world, store, 0);
                } else {
                    self.pc = Step::RemoveCondemned;
                }
            }
            _ => self.carry_out(world, store, op),
        }
    }

    /// A crash left none.
    fn make_blockers(&mut self, world: &World, store: &mut Store, step: Step) {
        let g = usize::from(self.generation);
        match step {
            Step::ListLeasesOfSweep => {
                let (page, done) = world.page(world.pages.leases, &mut self.cursor, LEASES);
                self.leases |= store.leases & u16::try_from(page).expect("few");
                if done {
                    let none = self.leases == 0;
                    self.pc =
                        if none { Step::CreateBlockersOfSweep } else { Step::ReadLeasesOfSweep };
                }
            }
            Step::ReadLeasesOfSweep => {
                self.leases &= store.leases;
                self.pc = Step::CreateBlockersOfSweep;
            }
            _ => {
                self.leases = *store.gens[g].blockers.get_or_insert(self.leases);
                self.after_wait(world);
            }
        }
    }

    fn after_wait(&mut self, world: &World) {
        self.cursor = 0;
        self.pc = if self.leases != 0 {
            Step::WaitForBlocker
        } else if !world.rules.sweep_marks_again {
            self.verdict = self.list.dead | self.list.rewritten();
            if self.list.rewritten() == 0 { Step::CreateVerdict } else { Step::LookAtTarget }
        } else if world.has_damage() {
            Step::ReadDamageToSweep
        } else if world.rules.recorded_forgotten {
            Mark::first(world)
        } else {
            Step::ListForgottenToday
        };
    }

    fn end_blocker(&mut self, world: &World, store: &mut Store, op: Op) {
        let lease = op.on;
        let first = self.pc == Step::WaitForBlocker;
        store.fenced += u8::from(first && op.step != Step::WaitForBlocker);
        match op.step {
            Step::CreateFence => store.fence(lease),
            Step::RemoveFencedLease => store.leases &= !(1 << lease),
            _ => {}
        }
        let nothing = store.keys[usize::from(lease)] == Key::Nothing;
        let other = match op.step {
            Step::CreateFence => Step::RemoveFencedLease,
            _ => Step::CreateFence,
        };
        if first && op.step != Step::WaitForBlocker && !nothing {
            self.fencing = lease;
            self.pc = other;
        } else {
            self.fencing = NONE;
            self.leases &= !(1 << lease);
            self.after_wait(world);
        }
    }

    fn carry_out(&mut self, world: &World, store: &mut Store, op: Op) {
        let g = usize::from(self.generation);
        let on = usize::from(op.on);
        match op.step {
            Step::ListSegmentsOfSweep => self.segments = self.look_at_segments(store),
            Step::PutMovedSegment => store.segments |= self.segments.0,
            Step::DeleteOldSegments => {
                store.segments &= !(self.segments.1 & !self.segments.0);
                self.segments = (0, 0);
            }
            Step::CreateStub => create_stub(store, self.generation, op.on),
            Step::DeletePack => store.packs &= !(1 << on),
            Step::DeleteStub => store.stubs[on] = 0,
            Step::DeleteManifest => store.manifests[on] = Manifest::Absent,
            Step::DeleteDamage => {
                store.damaged &= !(std::mem::take(&mut self.records) & !store.stored());
            }
            Step::RemoveBlockers => {
                store.gens[g].blockers = None;
                if self.listless {
                    return self.end();
                }
            }
            Step::RemoveCondemned => {
                store.gens[g].condemned = Condemned::Absent;
                if !world.rules.condemned_removed_last {
                    return self.change_from(world, store, 0);
                }
            }
            Step::DeleteForgotten => store.forgotten &= !self.forgotten,
            Step::DeleteVerdict => store.gens[g].verdict = None,
            _ => delete_fences(store),
        }
        let at = CHANGES.iter().position(|s| *s == op.step).expect("a change");
        self.left &= !(1 << on);
        if self.left == 0 {
            self.change_from(world, store, at + 1);
        }
    }

    /// What segments are to name of what they name now, and what they name now if that is
    /// something else.
    fn look_at_segments(&self, store: &Store) -> (u32, u32) {
        let stays = store.packs & !self.verdict;
        let (mut left, mut changes) = (0, false);
        for at in bits(store.segments) {
            let pack = 1 << (at / super::store::ENTRIES);
            if stays & pack != 0 {
                left |= 1 << at;
                continue;
            }
            changes = true;
            if self.verdict & pack != 0 {
                left |= self.list.moved(at).map_or(0, |to| 1 << to);
            }
        }
        if changes { (left, store.segments) } else { (0, 0) }
    }

    /// The first change from there on that there is something to do for.
    fn change_from(&mut self, world: &World, store: &Store, from: usize) {
        let rewritten = self.list.rewritten();
        let set = |p: bool| u16::from(p);
        for step in CHANGES.into_iter().skip(from) {
            self.left = match step {
                Step::ListSegmentsOfSweep => set(self.verdict != 0),
                Step::PutMovedSegment => set(self.segments.0 != 0),
                Step::DeleteOldSegments => set(self.segments.1 != 0),
                Step::CreateStub => self.verdict & rewritten,
                Step::DeletePack => self.verdict & store.packs,
                Step::DeleteStub => {
                    let dead = bits((self.verdict & !rewritten).into());
                    dead.filter(|p| store.stubs[usize::from(*p)] != 0).fold(0, |s, p| s | 1 << p)
                }
                Step::DeleteManifest => {
                    let there = |s: &u8| store.manifests[usize::from(*s)] != Manifest::Absent;
                    bits(self.forgotten.into()).filter(there).fold(0, |all, s| all | 1 << s)
                }
                Step::DeleteDamage => set(self.records & !store.stored() != 0),
                Step::RemoveCondemned => set(world.rules.condemned_removed_last),
                Step::DeleteForgotten => set(!world.rules.forgotten_stay),
                Step::DeleteVerdict => set(!world.rules.verdicts_stay),
                Step::DeleteFences => set(!world.rules.fences_stay),
                _ => 1,
            };
            if self.left != 0 {
                self.pc = step;
                return;
            }
        }
        self.end();
    }
}

fn delete_fences(store: &mut Store) {
    for there in &mut store.manifests {
        if *there == Manifest::Fence {
            *there = Manifest::Absent;
        }
    }
    for generation in &mut store.gens {
        if generation.condemned == Condemned::Fence {
            generation.condemned = Condemned::Absent;
        }
    }
}
