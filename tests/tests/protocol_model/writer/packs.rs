//! A pass: packs, segments, and what comes before each.

use super::*;

impl Writer {
    pub(super) fn put(&mut self, world: &World, spec: &WriterSpec, store: &mut Store, op: Op) {
        match op.step {
            Step::PutPack => {
                if op.on == NONE {
                    // its bound is reached
                    self.pc = Step::RemoveWriterLease;
                    return;
                }
                let holds = spec.holds[usize::from(self.puts)];
                self.puts += 1;
                store.packs |= 1 << op.on;
                let misses = spec.reuses & !self.reused != 0;
                let all = places_of(op.on);
                self.own |= if misses { all } else { all & u32::from(holds) << place(op.on, 0) };
                self.pc = self.after_pack(world, spec);
            }
            Step::PutSegment => {
                // only what it has put itself
                let put = spec.packs[..usize::from(self.puts)].iter().filter(|p| **p != NONE);
                let put = put.fold(0, |all, pack| all | places_of(*pack));
                store.segments |= without(self.own & put, spec.pages);
                self.pc = self.before_looks_or_stop(world, spec);
            }
            Step::LookAtLeaseToWrite => {
                if store.has_lease(self.lease) {
                    self.pc = Step::PutCheckpoint;
                } else {
                    self.taken_over();
                }
            }
            _ => {
                store.leases |= 1 << self.lease;
                store.checkpoints[usize::from(self.lease)] = self.own | self.reused;
                self.shared = true;
                self.taken_over();
            }
        }
    }

    /// What another process has put counts.
    pub(super) fn taken_over(&mut self) {
        self.takes_over = false;
        self.pc = Step::ListSegments;
    }

    pub(super) fn after_pack(&mut self, world: &World, spec: &WriterSpec) -> Step {
        if spec.passes & 1 << self.puts == 0 {
            Step::PutPack
        } else if spec.segments & 1 << self.puts != 0 && !spec.is_stopped {
            Step::PutSegment
        } else {
            self.before_looks_or_stop(world, spec)
        }
    }

    pub(super) fn before_looks_or_stop(&mut self, world: &World, spec: &WriterSpec) -> Step {
        self.looks = 0;
        if spec.is_stopped { Step::RemoveWriterLease } else { self.before_looks(world) }
    }

    pub(super) fn before_looks(&mut self, world: &World) -> Step {
        self.looks = packs_of(self.reused);
        if world.rules.reused_are_looked_at && self.looks != 0 {
            Step::LookAtReusedPack
        } else {
            self.looks = 0;
            commit_step(world)
        }
    }

    /// What was put before counts.
    pub(super) fn after_own(&mut self, world: &World) -> Step {
        self.looks = 0;
        self.again = false;
        if self.own == 0 && self.reused == 0 {
            self.takes_over = false;
            Step::ListSegments
        } else if self.takes_over {
            Step::LookAtLeaseToWrite
        } else {
            self.before_looks(world)
        }
    }
}
