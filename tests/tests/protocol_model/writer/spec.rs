//! What a writer is to do.

use crate::steps::Step;
use crate::store::{NONE, Packs, Places};

/// What a writer is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriterSpec {
    /// Manifest keys of its attempts.
    pub(crate) attempts: [u8; 2],
    /// Manifest keys of the parents it may have, the best first. It starts when one of them is a
    /// backup.
    pub(crate) parents: [u8; 2],
    /// Places that a parent may hold and that this backup inherits.
    pub(crate) inherits: Places,
    /// Places that hold chunks it needs, if segments name them.
    pub(crate) reuses: Places,
    /// Packs that it may put, one after another.
    pub(crate) packs: [u8; WRITER_PACKS],
    /// Which entries each of them has, as bits; both if something was to be reused and is not
    /// there.
    pub(crate) holds: [u8; WRITER_PACKS],
    /// After how many packs a pass is complete, as bits.
    pub(crate) passes: u8,
    /// After how many packs a pass puts a segment that names them, as bits.
    pub(crate) segments: u8,
    /// Packs of pages, which no segment names.
    pub(crate) pages: Packs,
    /// Checkpoints that it may put into its lease, each at any time once a pack is there.
    pub(crate) checkpoints: u8,
    /// Goes on from the checkpoint of this actor, for the same backup.
    pub(crate) resumes: u8,
    /// Is stopped before the commit: gives its lease back, unless that holds a checkpoint, and
    /// ends.
    pub(crate) is_stopped: bool,
    /// Heartbeats of its lease, each at any time.
    pub(crate) beats: u8,
}

/// A step that happens beside the others.
pub(crate) const BESIDE: u8 = 1;

/// Most packs of a writer.
pub(crate) const WRITER_PACKS: usize = 6;

/// Three packs, and no more.
pub(crate) const fn three([a, b, c]: [u8; 3]) -> [u8; WRITER_PACKS] {
    [a, b, c, NONE, NONE, NONE]
}

impl WriterSpec {
    /// Stores one pack and commits it as `attempt`.
    pub(crate) const fn new(attempts: [u8; 2], packs: [u8; 3]) -> Self {
        Self {
            attempts,
            parents: [NONE; 2],
            inherits: 0,
            reuses: 0,
            packs: three(packs),
            holds: [1; WRITER_PACKS],
            passes: u8::MAX,
            segments: 0,
            pages: 0,
            checkpoints: 0,
            resumes: NONE,
            is_stopped: false,
            beats: 0,
        }
    }

    pub(super) fn parent(&self, nth: u8) -> Option<u8> {
        self.parents.get(usize::from(nth)).copied().filter(|p| *p != NONE)
    }
}

/// Steps that touch the lease of a writer: none happens between the two requests of a heartbeat.
pub(super) const TOUCHES_LEASE: [Step; 9] = [
    Step::RemoveOldLease,
    Step::CreateWriterLease,
    Step::AskForLeaseAgain,
    Step::PutParentIntoLease,
    Step::LookAtLeaseToWrite,
    Step::PutCheckpoint,
    Step::LookAtLease,
    Step::RemoveWriterLease,
    Step::PutAdoptedLease,
];
