//! The rules of the protocol as switches. All on is the protocol; each one off is a mistake that
//! the model must notice.

/// In which order a mark reads what keeps chunks alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkOrder {
    /// Manifests, condemned lists, stubs: the protocol.
    ManifestsListsStubs,
    /// Stubs before condemned lists.
    ManifestsStubsLists,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Forgotten records are never removed.
    pub(crate) forgotten_stay: bool,
    /// Verdicts are never removed.
    pub(crate) verdicts_stay: bool,
    /// Fences are never removed.
    pub(crate) fences_stay: bool,
    /// Writer 2: the parent is confirmed after the lease was created.
    pub(crate) parent_after_lease: bool,
    /// Writer 3: nothing is reused from packs in a condemned list read after the lease was created.
    pub(crate) writer_reads_condemned: bool,
    /// Writer 6: reused packs are looked at before the commit.
    pub(crate) reused_are_looked_at: bool,
    /// Not a rule of the design: before the commit the writer looks whether its lease is there.
    pub(crate) lease_is_looked_at: bool,
    /// Resumed writer 2: packs put under the old lease must be in no condemned list read under
    /// the new one.
    pub(crate) resumed_reads_condemned: bool,
    /// Resumed writer 2: packs put under the old lease are looked at after that.
    pub(crate) resumed_looks: bool,
    /// A lease that holds a checkpoint is removed only when its manifest key is taken.
    pub(crate) shared_lease_stays: bool,
    /// Forget creates its record and deletes nothing.
    pub(crate) forget_deletes_nothing: bool,
    /// Condemn 3.
    pub(crate) mark_order: MarkOrder,
    /// Condemn 3: relocations that are not decided yet keep their target alive.
    pub(crate) relocations_count: bool,
    /// Condemn 3: a verdict that appears while marking means to mark again.
    pub(crate) mark_again: bool,
    /// Condemn 5: a collector whose condemned key is fenced stops.
    pub(crate) fenced_condemn_stops: bool,
    /// Condemn 6: leases are listed after condemned was created.
    pub(crate) leases_after_condemned: bool,
    /// Sweep 1: without blockers the leases are listed.
    pub(crate) sweep_makes_blockers: bool,
    /// Sweep 2: the fence is created before the lease is removed.
    pub(crate) fence_before_removal: bool,
    /// Sweep 3: marks again before the verdict.
    pub(crate) sweep_marks_again: bool,
    /// Sweep 3: with the forgotten set that the generation recorded, not today's.
    pub(crate) recorded_forgotten: bool,
    /// Sweep 3: features are looked for after the mark.
    pub(crate) sweep_looks_for_features: bool,
    /// A writer uses a feature only after it has seen it.
    pub(crate) features_are_seen: bool,
    /// Sweep 4: an existing verdict is adopted. Off: each sweeper follows its own mark.
    pub(crate) verdict_is_adopted: bool,
    /// Sweep 6: stubs are created after the verdict.
    pub(crate) stubs_after_verdict: bool,
    /// A stub that is reached only through another stub is live.
    pub(crate) chains_count: bool,
    /// Sweep 9: condemned is removed last.
    pub(crate) condemned_removed_last: bool,
    /// Damage records go after the second mark. Off: right after the first.
    pub(crate) damage_waits: bool,
}

impl Rules {
    /// The protocol.
    pub(crate) const ALL: Self = Self {
        forgotten_stay: true,
        verdicts_stay: true,
        fences_stay: true,
        parent_after_lease: true,
        writer_reads_condemned: true,
        reused_are_looked_at: true,
        lease_is_looked_at: true,
        resumed_reads_condemned: true,
        resumed_looks: true,
        shared_lease_stays: true,
        forget_deletes_nothing: true,
        mark_order: MarkOrder::ManifestsListsStubs,
        relocations_count: true,
        mark_again: true,
        fenced_condemn_stops: true,
        leases_after_condemned: true,
        sweep_makes_blockers: true,
        fence_before_removal: true,
        sweep_marks_again: true,
        recorded_forgotten: true,
        sweep_looks_for_features: true,
        features_are_seen: true,
        verdict_is_adopted: true,
        stubs_after_verdict: true,
        chains_count: true,
        condemned_removed_last: true,
        damage_waits: true,
    };
}
