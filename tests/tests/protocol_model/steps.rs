//! The steps of the protocol: each is one operation on the store, in the model as in the code.
//!
//! This is the one list of names. The model's transitions are these steps, and every request of a
//! recorded run of the code is classified as one of them or as part of one (`replay/`). A step
//! that no request of a real run can be is named "forbidden": it exists only for a rule that is
//! switched off.

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $words:literal,)*) => {
        /// One operation on the store.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// As in traces.
            pub(crate) fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }
        }
    };
}

steps! {
    // writer
    ReadCheckpoint = "writer: find the lease of an earlier run, with its checkpoint",
    ListAttempts = "writer: list the attempts of its backup",
    ReadParentOfCheckpoint = "writer: read the manifest of the checkpoint's parent",
    LookAtLeaseToAdopt = "writer: look whether the lease of the earlier run is there",
    PutAdoptedLease = "writer: rewrite the lease of the earlier run as its own",
    CreateWriterLease = "writer: create lease",
    RemoveOldLease = "writer: remove the lease that was replaced",
    AskForLeaseAgain = "writer: ask to create its lease once more",
    PutParentIntoLease = "writer: rewrite its lease with another parent",
    LookAtParent = "writer: look at the parent's manifest",
    LookForForgottenParent = "writer: look whether the parent is forgotten",
    ListCondemnedOfWriter = "writer: list condemned lists",
    ReadCondemnedOfWriter = "writer: read a condemned list",
    ReadDamage = "writer: read damage records",
    LookForFeatureToUse = "writer: look for a feature that it knows",
    ListSegments = "writer: list segments",
    PutPack = "writer: put a pack",
    PutSegment = "writer: put its segment",
    LookAtReusedForCheckpoint = "writer: look at a reused pack before a checkpoint",
    LookAtLeaseToWrite = "writer: look whether its lease is there before a checkpoint",
    PutCheckpoint = "writer: rewrite its lease with a checkpoint",
    LookAtLeaseToBeat = "writer: look whether its lease is there before a heartbeat",
    PutBeat = "writer: rewrite its lease as a heartbeat",
    LookAtOwnPack = "writer: look at a pack put under an earlier lease",
    LookAtReusedPack = "writer: look at a reused pack",
    LookAtLease = "writer: look at its lease before the commit",
    LookForFence = "writer: its lease is gone; look for a fence",
    CreateManifest = "writer: create manifest",
    LookForForgottenSelf = "writer: look whether its backup is forgotten",
    RemoveWriterLease = "writer: remove lease",
    // reader
    FindBackup = "reader: read the manifest",
    CreateReaderLease = "reader: create lease",
    LookAtBackup = "reader: look at the manifest",
    LookForForgottenBackup = "reader: look whether the backup is forgotten",
    ReadPack = "reader: read from a pack",
    ReadStub = "reader: read a stub",
    RemoveReaderLease = "reader: remove lease",
    // forget
    FindBackupToForget = "forget: read the manifest",
    CreateForgotten = "forget: create the forgotten record",
    DeleteManifestAtOnce = "forget: delete the manifest (forbidden)",
    // check
    RecordDamage = "check: record damage",
    // upgrade
    AddFeature = "upgrade: add a feature",
    // collector, condemning
    CreateCollectorLease = "condemn: create lease",
    ListForgotten = "condemn: list forgotten records",
    ListPacks = "condemn: list packs",
    ReadToCopy = "condemn: read a mostly dead pack",
    PutCopy = "condemn: put a pack of live chunks",
    StubsTooEarly = "condemn: create the stubs (forbidden)",
    CreateCondemned = "condemn: create condemned",
    ListLeases = "condemn: list leases",
    ReadLeases = "condemn: read leases",
    CreateBlockers = "condemn: create blockers",
    RemoveCollectorLease = "condemn: remove lease",
    // marking, of both halves
    MarkVerdictsBefore = "mark: list verdicts before",
    MarkManifests = "mark: list manifests",
    WalkManifest = "mark: read a manifest and walk its map",
    MarkLists = "mark: list condemned lists",
    ReadList = "mark: read a condemned list",
    MarkStubs = "mark: list and read stubs",
    MarkVerdictsAfter = "mark: list verdicts after",
    LookAtUnreadable = "mark: look whether what could not be read is still there",
    LookForForgottenUnreadable = "mark: look whether what could not be read is forgotten",
    // collector, sweeping
    ListGenerations = "sweep: list collections",
    ReadCondemned = "sweep: read condemned",
    ReadVerdict = "sweep: read the verdict",
    ReadBlockers = "sweep: read blockers",
    ListLeasesOfSweep = "sweep: list leases",
    ReadLeasesOfSweep = "sweep: read leases",
    CreateBlockersOfSweep = "sweep: create blockers",
    WaitForBlocker = "sweep: see that a blocker has ended",
    CreateFence = "sweep: create a fence",
    RemoveFencedLease = "sweep: remove the lease of the fenced",
    ListForgottenToday = "sweep: list forgotten records (forbidden)",
    ReadDamageToSweep = "sweep: read damage records",
    LookForFeatures = "sweep: look for features that are unknown",
    LookAtTarget = "sweep: look at the pack that chunks were copied to",
    CreateVerdict = "sweep: create verdict",
    ListSegmentsOfSweep = "sweep: list segments and packs",
    PutMovedSegment = "sweep: put a segment of what is left",
    DeleteOldSegments = "sweep: delete segments that were replaced",
    CreateStub = "sweep: create a stub",
    DeletePack = "sweep: delete a pack",
    DeleteStub = "sweep: delete a stub",
    DeleteManifest = "sweep: delete a forgotten manifest",
    DeleteDamage = "sweep: delete damage records",
    RemoveBlockers = "sweep: remove blockers",
    RemoveCondemned = "sweep: remove condemned",
    DeleteForgotten = "sweep: delete forgotten records (forbidden)",
    DeleteVerdict = "sweep: delete the verdict (forbidden)",
    DeleteFences = "sweep: delete fences (forbidden)",
    // somebody who takes the holder of one lease for dead
    BuryWithFence = "undertaker: create a fence",
    BuryLease = "undertaker: remove the lease of the fenced",
    Ended = "ended",
}

/// A step and what it is done to: the number of a pack, a manifest key, a generation, a lease, a
/// place; 0 where there is only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) step: Step,
    pub(crate) on: u8,
}

impl Op {
    pub(crate) const fn new(step: Step, on: u8) -> Self {
        Self { step, on }
    }
}

impl From<Step> for Op {
    fn from(step: Step) -> Self {
        Self::new(step, 0)
    }
}
