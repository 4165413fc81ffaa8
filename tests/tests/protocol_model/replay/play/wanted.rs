//! Which requests make up a step of the model: their verbs, and where they go.

use super::*;

/// A look that tells two steps apart by its answer.
pub(super) fn answer_fits(step: Step, request: &Request) -> bool {
    match (step, request.verb) {
        (Step::WaitForBlocker, _) => !request.found,
        (Step::CreateFence | Step::BuryWithFence, Verb::Head)
        | (Step::CreateBlockers, Verb::Get) => request.found,
        _ => true,
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Where {
    Object(Object),
    /// The attempts of the backup at this slot.
    Attempts(u8),
    Prefix(&'static str),
}

/// The request that a step is.
#[allow(clippy::too_many_lines)] // a table
pub(super) fn wanted(act: &Act, actor: usize, op: Op) -> Option<(&'static [Verb], Where)> {
    use Verb::{Create, Delete, Get, Head, List, Put};
    let object = |verbs: &'static [Verb], object| Some((verbs, Where::Object(object)));
    let list = |prefix| Some((&[List][..], Where::Prefix(prefix)));
    let store = &act.state.store;
    let me = u8::try_from(actor).unwrap();
    match (&act.state.actors[actor], &act.world.actors[actor]) {
        (Actor::Writer(w), Spec::Writer(spec)) => {
            let [lease, old, new] = w.leases(me).map(Object::Lease);
            let (slot, parent) = (w.slot(spec), w.parent(spec));
            match op.step {
                Step::ReadCheckpoint => object(&[Get], Object::Lease(2 * spec.resumes)),
                Step::ListAttempts => Some((&[List], Where::Attempts(spec.attempts[0]))),
                Step::ReadParentOfCheckpoint => object(&[Get], Object::Manifest(spec.parents[0])),
                Step::LookAtLeaseToAdopt => object(&[Head], old),
                Step::PutAdoptedLease => object(&[Put], old),
                Step::CreateWriterLease => object(&[Create], new),
                Step::RemoveOldLease => object(&[Delete], old),
                Step::AskForLeaseAgain => object(&[Create], lease),
                Step::PutParentIntoLease => object(&[Put], lease),
                Step::LookAtParent => object(&[Head], Object::Manifest(parent)),
                Step::LookForForgottenParent => object(&[Head], Object::Forgotten(parent)),
                Step::ListCondemnedOfWriter => list("gc"),
                Step::ReadCondemnedOfWriter => object(&[Get], Object::Condemned(op.on)),
                Step::ReadDamage => list("damaged"),
                Step::ListSegments => list("dedup"),
                Step::PutPack => object(&[Put, Create], Object::Pack(op.on)),
                Step::PutSegment => Some((&[Put, Create], Where::Prefix("dedup/"))),
                Step::LookAtReusedForCheckpoint | Step::LookAtOwnPack | Step::LookAtReusedPack => {
                    object(&[Head], Object::Pack(op.on))
                }
                Step::LookAtLeaseToWrite | Step::LookAtLeaseToBeat | Step::LookAtLease => {
                    object(&[Head], lease)
                }
                Step::PutCheckpoint | Step::PutBeat => object(&[Put], lease),
                Step::LookForFence => object(&[Get], Object::Manifest(slot)),
                Step::CreateManifest => object(&[Create], Object::Manifest(slot)),
                Step::LookForForgottenSelf => object(&[Head], Object::Forgotten(slot)),
                Step::RemoveWriterLease => object(&[Delete], lease),
                _ => None,
            }
        }
        (Actor::Reader(_), Spec::Reader(slot)) => match op.step {
            Step::FindBackup => object(&[Get], Object::Manifest(*slot)),
            Step::CreateReaderLease => object(&[Create], Object::Lease(2 * me)),
            Step::LookAtBackup => object(&[Head], Object::Manifest(*slot)),
            Step::LookForForgottenBackup => object(&[Head], Object::Forgotten(*slot)),
            Step::ReadPack => object(&[Get], Object::Pack(op.on / ENTRIES)),
            Step::ReadStub => object(&[Get], Object::Stub(op.on / ENTRIES)),
            Step::RemoveReaderLease => object(&[Delete], Object::Lease(2 * me)),
            _ => None,
        },
        (Actor::Forget(_), Spec::Forget(slot)) => match op.step {
            Step::FindBackupToForget => object(&[Get], Object::Manifest(*slot)),
            Step::CreateForgotten => object(&[Create], Object::Forgotten(*slot)),
            _ => None,
        },
        (Actor::Recorder(_), _) => Some((&[Put], Where::Prefix("damaged/"))),
        (Actor::Undertaker(_), _) => match op.step {
            Step::BuryWithFence => object(&[Create, Head], key_object(store, op.on)?),
            _ => object(&[Delete], Object::Lease(op.on)),
        },
        (Actor::Collector(c), _) => {
            let g = c.generation;
            let target = c.list.target;
            match op.step {
                Step::CreateCollectorLease => object(&[Create], Object::Lease(2 * me)),
                Step::ListForgotten => list("forgotten"),
                Step::ListPacks => list("packs"),
                Step::ReadToCopy => {
                    object(&[Get], Object::Pack(bits(c.list.rewritten().into()).next()?))
                }
                Step::PutCopy => object(&[Put, Create], Object::Pack(target)),
                Step::CreateCondemned => object(&[Create], Object::Condemned(g)),
                Step::ListLeases | Step::ListLeasesOfSweep => list("leases"),
                Step::ReadLeases | Step::ReadLeasesOfSweep => {
                    Some((&[Get], Where::Prefix("leases/")))
                }
                Step::CreateBlockers => object(&[Create, Get], Object::Blockers(g)),
                Step::RemoveCollectorLease => object(&[Delete], Object::Lease(2 * me)),
                Step::MarkVerdictsBefore
                | Step::MarkVerdictsAfter
                | Step::MarkLists
                | Step::ListGenerations => list("gc"),
                Step::MarkManifests => list("backups"),
                Step::WalkManifest => object(&[Get], Object::Manifest(op.on)),
                Step::ReadList => object(&[Get], Object::Condemned(op.on)),
                Step::MarkStubs => list("moved"),
                Step::LookAtUnreadable => object(&[Head], Object::Manifest(c.mark.unreadable)),
                Step::LookForForgottenUnreadable => {
                    object(&[Head], Object::Forgotten(c.mark.unreadable))
                }
                Step::ReadCondemned => object(&[Get], Object::Condemned(g)),
                Step::ReadVerdict => object(&[Get], Object::Verdict(g)),
                Step::ReadBlockers => object(&[Get], Object::Blockers(g)),
                Step::CreateBlockersOfSweep => object(&[Create], Object::Blockers(g)),
                Step::WaitForBlocker => object(&[Head], Object::Lease(op.on)),
                Step::CreateFence => object(&[Create, Head], key_object(store, op.on)?),
                Step::RemoveFencedLease => object(&[Delete], Object::Lease(op.on)),
                Step::ReadDamageToSweep => list("damaged"),
                Step::LookAtTarget => object(&[Head], Object::Pack(target)),
                Step::CreateVerdict => object(&[Create], Object::Verdict(g)),
                Step::ListSegmentsOfSweep => list("dedup"),
                Step::PutMovedSegment => Some((&[Put, Create], Where::Prefix("dedup/"))),
                Step::DeleteOldSegments => Some((&[Delete], Where::Prefix("dedup/"))),
                Step::CreateStub => object(&[Create], Object::Stub(op.on)),
                Step::DeletePack => object(&[Delete], Object::Pack(op.on)),
                Step::DeleteStub => object(&[Delete], Object::Stub(op.on)),
                Step::DeleteManifest => object(&[Delete], Object::Manifest(op.on)),
                Step::DeleteDamage => Some((&[Delete], Where::Prefix("damaged/"))),
                Step::RemoveBlockers => object(&[Delete], Object::Blockers(g)),
                Step::RemoveCondemned => object(&[Delete], Object::Condemned(g)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// What a fence of a lease's holder takes.
pub(super) fn key_object(store: &Store, lease: u8) -> Option<Object> {
    match store.keys[usize::from(lease)] {
        Key::Nothing => None,
        Key::Manifest(slot) => Some(Object::Manifest(slot)),
        Key::Condemned(generation) => Some(Object::Condemned(generation)),
    }
}

/// Leases that a collector makes to read the time off them: looked at right after they were made.
pub(super) fn clocks(requests: &[Request]) -> BTreeSet<LeaseId> {
    let mut last: BTreeMap<usize, &Request> = BTreeMap::new();
    let mut clocks = BTreeSet::new();
    for request in requests {
        if let Some(before) = last.insert(request.run, request) {
            let same = before.key == request.key && before.verb == Verb::Create;
            if same && request.verb == Verb::Head {
                clocks.extend(parse_lease_key(&request.key).ok());
            }
        }
    }
    clocks
}
