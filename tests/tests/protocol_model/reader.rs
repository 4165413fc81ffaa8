//! A reader, and forget.

use super::steps::{Op, Step};
use super::store::{ENTRIES, Key, Manifest, NONE, Places, Store};
use super::world::World;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) pc: Step,
    slot: u8,
    /// Bit 0: the manifest was there; bit 1: it is not forgotten.
    seen: u8,
    left: Places,
    at: u8,
}

impl Reader {
    pub(crate) fn new(slot: u8) -> Self {
        Self { pc: Step::FindBackup, slot, seen: 0, left: 0, at: NONE }
    }

    /// What is possible now.
    pub(crate) fn enabled(&self, world: &World, store: &Store, out: &mut Vec<Op>) {
        match self.pc {
            Step::Ended => {}
            Step::ReadPack if self.at == NONE => world.choose(self.pc, self.left, out),
            Step::ReadPack | Step::ReadStub => out.push(Op::new(self.pc, self.at)),
            Step::FindBackup => {
                if store.backup(self.slot).is_some() {
                    out.push(self.pc.into());
                }
            }
            Step::LookAtBackup => {
                // both look-ups are under way at once: either may be answered first
                if self.seen & 1 == 0 {
                    out.push(Step::LookAtBackup.into());
                }
                if self.seen & 2 == 0 {
                    out.push(Step::LookForForgottenBackup.into());
                }
            }
            pc => out.push(pc.into()),
        }
    }

    /// Does a step that is possible.
    pub(crate) fn step(&mut self, store: &mut Store, lease: u8, op: Op) {
        let slot = usize::from(self.slot);
        match op.step {
            Step::FindBackup => {
                self.left = store.backup(self.slot).unwrap_or(0);
                self.pc = Step::CreateReaderLease;
            }
            Step::CreateReaderLease => {
                store.leases |= 1 << lease;
                store.keys[usize::from(lease)] = Key::Nothing;
                self.pc = Step::LookAtBackup;
            }
            Step::LookAtBackup => {
                self.look(1, matches!(store.manifests[slot], Manifest::Backup(_)));
            }
            Step::LookForForgottenBackup => self.look(2, store.forgotten & 1 << slot == 0),
            Step::ReadPack => {
                self.left &= !(1 << op.on);
                if store.packs & 1 << (op.on / ENTRIES) == 0 {
                    self.at = op.on;
                    self.pc = Step::ReadStub;
                } else {
                    self.next_place();
                }
            }
            Step::ReadStub => match store.stub(self.at) {
                Some(to) => {
                    self.at = to;
                    self.pc = Step::ReadPack;
                }
                None => {
                    store.reader_failed |= store.leases & 1 << lease != 0;
                    self.leave();
                }
            },
            _ => {
                store.leases &= !(1 << lease);
                *self = Self { pc: Step::Ended, ..Self::new(self.slot) };
            }
        }
    }

    fn look(&mut self, bit: u8, good: bool) {
        self.seen |= bit;
        if !good {
            self.leave();
        } else if self.seen == 3 {
            self.next_place();
        }
    }

    fn next_place(&mut self) {
        self.at = NONE;
        if self.left == 0 {
            self.leave();
        } else {
            self.pc = Step::ReadPack;
        }
    }

    fn leave(&mut self) {
        *self = Self { pc: Step::RemoveReaderLease, ..Self::new(self.slot) };
    }
}

/// Takes the holder of one lease for dead: whoever begins a collection looks for those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Undertaker {
    pub(crate) pc: Step,
    lease: u8,
}

impl Undertaker {
    pub(crate) fn new(lease: u8) -> Self {
        Self { pc: Step::BuryWithFence, lease }
    }

    /// What is possible now.
    pub(crate) fn enabled(&self, store: &Store, out: &mut Vec<Op>) {
        let waits = self.pc == Step::BuryWithFence && !store.has_lease(self.lease);
        if self.pc != Step::Ended && !waits {
            out.push(Op::new(self.pc, self.lease));
        }
    }

    /// Does it.
    pub(crate) fn step(&mut self, store: &mut Store, step: Step) {
        if step == Step::BuryWithFence {
            store.fence(self.lease);
            self.pc = Step::BuryLease;
        } else {
            store.leases &= !(1 << self.lease);
            self.pc = Step::Ended;
        }
    }
}

/// Finds a place damaged, and records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Recorder {
    pub(crate) pc: Step,
    place: u8,
}

impl Recorder {
    pub(crate) fn new(place: u8) -> Self {
        Self { pc: Step::RecordDamage, place }
    }

    /// What is possible now: there is a reason only while a backup leads there.
    pub(crate) fn enabled(&self, store: &Store, out: &mut Vec<Op>) {
        let is_live = store.backups().any(|(_, places)| places & 1 << self.place != 0);
        if self.pc != Step::Ended && is_live {
            out.push(Op::new(self.pc, self.place));
        }
    }

    /// Does it.
    pub(crate) fn step(&mut self, store: &mut Store) {
        store.damaged |= 1 << self.place;
        store.was_recorded = true;
        self.pc = Step::Ended;
    }
}

/// Adds a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Upgrader {
    pub(crate) pc: Step,
}

impl Upgrader {
    pub(crate) fn new() -> Self {
        Self { pc: Step::AddFeature }
    }

    /// What is possible now.
    pub(crate) fn enabled(&self, out: &mut Vec<Op>) {
        if self.pc != Step::Ended {
            out.push(self.pc.into());
        }
    }

    /// Does it.
    pub(crate) fn step(&mut self, store: &mut Store) {
        store.feature = true;
        self.pc = Step::Ended;
    }
}

/// Forgets one backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Forget {
    pub(crate) pc: Step,
    slot: u8,
}

impl Forget {
    pub(crate) fn new(slot: u8) -> Self {
        Self { pc: Step::FindBackupToForget, slot }
    }

    /// What is possible now.
    pub(crate) fn enabled(&self, store: &Store, out: &mut Vec<Op>) {
        let absent = store.backup(self.slot).is_none();
        if self.pc != Step::Ended && !(self.pc == Step::FindBackupToForget && absent) {
            out.push(self.pc.into());
        }
    }

    /// Does a step that is possible.
    pub(crate) fn step(&mut self, deletes_nothing: bool, store: &mut Store, step: Step) {
        self.pc = match step {
            Step::FindBackupToForget => Step::CreateForgotten,
            Step::CreateForgotten => {
                store.forgotten |= 1 << self.slot;
                store.owed &= !(1 << self.slot);
                if deletes_nothing { Step::Ended } else { Step::DeleteManifestAtOnce }
            }
            _ => {
                store.manifests[usize::from(self.slot)] = Manifest::Absent;
                Step::Ended
            }
        };
    }
}
