//! The bounded worlds that are searched. Each is small enough to be exhausted, and large enough
//! that leaving out a rule that it is about gives a violation.
//!
//! Names used throughout: pack 0 is old; packs 1 and 2 are what collectors copy into; packs from
//! 3 on are put by writers. Manifest key 0 is the first backup, keys 2 and 3 are attempts of a
//! second one, 4 and 5 those of a third.

use super::collector::CollectorSpec;
use super::steps::Step;
use super::store::{Manifest, NONE, Packs, Places, Store, place, places_of};
use super::world::{Pages, Spec, World};
use super::writer::{WriterSpec, three};

pub(super) const OLD: u8 = 0;
const OLD_PLACES: Places = places_of(OLD);

/// Backup 0 leads to these places of pack 0; segments name all of it.
fn store(backup: Places) -> Store {
    let mut store = Store { packs: 1 << OLD, segments: OLD_PLACES, ..Store::default() };
    if backup != 0 {
        store.manifests[0] = Manifest::Backup(backup);
        store.owed = 1;
    }
    store
}

pub(super) fn collector(generation: u8, rewrites: Packs) -> Spec {
    let target = 1 + generation;
    Spec::Collector(CollectorSpec { generation, target, rewrites, sweeps: true })
}

/// Writes a backup of its own at 2 and 3, and reuses the first entry of the old pack if it may.
pub(super) fn reuses() -> WriterSpec {
    WriterSpec { reuses: 1 << place(OLD, 0), ..WriterSpec::new([2, 3], [3, 4, 5]) }
}

/// Writes a child of the backup at `parent` to 4 and 5 and inherits what that has of the old pack.
pub(super) fn child_of(parent: u8) -> WriterSpec {
    WriterSpec {
        parents: [parent, NONE],
        inherits: OLD_PLACES,
        ..WriterSpec::new([4, 5], [6, 7, 8])
    }
}

/// A dead pack, a writer who would like to reuse it, one collection with a second sweeper.
pub(super) fn reuse() -> World {
    let actors = vec![Spec::Writer(reuses()), collector(0, 0), Spec::Sweeper(0)];
    World { fences_max: 2, settles: true, ..World::new(store(0), actors) }
}

/// As `reuse`, but what is reused is referred to by a feature, which is added meanwhile and which
/// no collector knows.
pub(super) fn feature() -> World {
    let actors = vec![Spec::Writer(reuses()), collector(0, 0), Spec::Sweeper(0), Spec::Upgrader];
    // these collectors stop, so garbage stays
    let by_feature = 1 << place(OLD, 0);
    World { fences_max: 1, by_feature, ..World::new(store(0), actors) }
}

/// The same where a mostly dead pack is rewritten.
pub(super) fn feature_and_rewrite() -> World {
    let writer = WriterSpec { reuses: 1 << place(OLD, 1), ..reuses() };
    let actors = vec![Spec::Writer(writer), collector(0, 1), Spec::Sweeper(0), Spec::Upgrader];
    let by_feature = 1 << place(OLD, 1);
    World { fences_max: 1, by_feature, ..World::new(store(1), actors) }
}

/// Chained writers: one reuses a dead pack, its child inherits that, and the first is forgotten
/// at once.
pub(super) fn chain() -> World {
    let actors =
        vec![Spec::Writer(reuses()), Spec::Writer(child_of(2)), Spec::Forget(2), collector(0, 0)];
    World { fences_max: 1, ..World::new(store(0), actors) }
}

/// A parent that is forgotten while its child is made.
pub(super) fn forgotten_parent() -> World {
    let actors = vec![Spec::Writer(child_of(0)), Spec::Forget(0), collector(0, 0)];
    World { fences_max: 1, settles: true, ..World::new(store(1), actors) }
}

/// Two generations, both of which rewrite the old pack, beside a reader.
pub(super) fn two_rewrites() -> World {
    let actors = vec![collector(0, 1), collector(1, 1), Spec::Reader(0)];
    let pages = Pages { gc: 1, ..Pages::default() };
    World { fences_max: 1, pages, ..World::new(store(1), actors) }
}

/// One generation rewrites, another one finds what it copied and knows no reason for it.
pub(super) fn rewrite_and_condemn() -> World {
    let actors = vec![collector(0, 1), collector(1, 0)];
    let pages = Pages { gc: 1, leases: 2, ..Pages::default() };
    World { fences_max: 2, settles: true, pages, ..World::new(store(1), actors) }
}

/// A writer that is fenced and goes on.
pub(super) fn fenced_writer() -> World {
    let actors =
        vec![Spec::Writer(WriterSpec { reuses: 0, ..reuses() }), collector(0, 0), Spec::Sweeper(0)];
    World { fences_max: 2, settles: true, ..World::new(store(1), actors) }
}

/// The same backup id started twice, forgotten, and collected by two generations.
pub(super) fn double_start() -> World {
    let first = reuses();
    let second = WriterSpec { packs: three([6, 7, 8]), ..first };
    let actors = vec![
        Spec::Writer(first),
        Spec::Writer(second),
        Spec::Forget(2),
        collector(0, 0),
        collector(1, 0),
    ];
    // the first of them is through, with what was old reused
    let before = vec![(0, Step::Ended)];
    World { before, ..World::new(store(0), actors) }
}

/// Somebody else goes on from a checkpoint.
pub(super) fn checkpoint() -> World {
    let first =
        WriterSpec { reuses: 0, checkpoints: 1, passes: 0b100, is_stopped: true, ..reuses() };
    let second = WriterSpec {
        checkpoints: 0,
        passes: u8::MAX,
        is_stopped: false,
        resumes: 0,
        packs: three([6, 7, 8]),
        ..first
    };
    let actors = vec![Spec::Writer(first), Spec::Writer(second), collector(0, 0)];
    World { fences_max: 1, settles: true, ..World::new(store(1), actors) }
}

/// Two stubs one after another, and what may be at work then: somebody moves it on or lets go of
/// the stubs.
fn stubs(rewrites: Packs, others: Vec<Spec>) -> World {
    let mut actors = vec![collector(0, 1), collector(1, 1 << 1), collector(2, rewrites)];
    actors.extend(others);
    // both hops are there
    let before = vec![(0, Step::Ended), (1, Step::Ended)];
    World { before, settles: true, ..World::new(store(1), actors) }
}

/// A stub that leads to a stub, beside a reader, while the last pack is moved on.
pub(super) fn longer_chain() -> World {
    World {
        fences_max: 1,
        ..stubs(1 << 2, vec![Spec::Reader(0), Spec::Forget(0), Spec::Sweeper(2)])
    }
}

/// The same, and stubs go with the backup that needed them, while a child of it is made.
pub(super) fn stubs_removed() -> World {
    World { fences_max: 1, ..stubs(0, vec![Spec::Writer(child_of(0)), Spec::Forget(0)]) }
}

/// Stubs go while a sweeper of the generation that made the last of them comes back late.
pub(super) fn stubs_put_back() -> World {
    let actors = vec![
        collector(0, 1),
        collector(1, 1 << 1),
        collector(2, 0),
        Spec::Sweeper(1),
        Spec::Forget(0),
        Spec::Reader(0),
    ];
    let before = vec![(0, Step::Ended), (1, Step::CreateStub), (3, Step::CreateStub)];
    World { before, settles: true, ..World::new(store(1), actors) }
}

/// A stub that leads to a stub, which is being made, beside a reader, a child, and forgetting.
pub(super) fn stub_chain(reads: bool) -> World {
    let other = if reads { Spec::Reader(0) } else { Spec::Writer(child_of(0)) };
    let actors =
        vec![collector(0, 1), collector(1, 1 << 1), collector(2, 0), Spec::Forget(0), other];
    // the first hop is there
    let before = vec![(0, Step::Ended)];
    World { before, settles: true, ..World::new(store(1), actors) }
}

/// A pack is rewritten while a writer reuses what seemed dead of it, and another one what was
/// moved.
pub(super) fn rewrite_beside_reuse() -> World {
    let first = WriterSpec { reuses: 1 << place(OLD, 1), ..reuses() };
    let second =
        WriterSpec { reuses: 1 << place(1, 0), attempts: [4, 5], packs: three([6, 7, 8]), ..first };
    let actors = vec![Spec::Writer(first), Spec::Writer(second), collector(0, 1), Spec::Forget(0)];
    World { ..World::new(store(1), actors) }
}

/// A pack is rewritten while a writer reuses what seemed dead of it, and by the next generation
/// once more.
pub(super) fn rescued_and_rewritten() -> World {
    let writer = WriterSpec { reuses: 1 << place(OLD, 1), ..reuses() };
    let actors = vec![Spec::Writer(writer), collector(0, 1), collector(1, 1), Spec::Reader(2)];
    // it relies on the pack already
    let before = vec![(0, Step::LookAtReusedPack), (1, Step::CreateCondemned)];
    World { before, ..World::new(store(1), actors) }
}

/// The first of two processes that make one backup. Its lease is 0.
fn first_of_two() -> WriterSpec {
    WriterSpec { checkpoints: 1, ..reuses() }
}

fn second_of_two() -> WriterSpec {
    WriterSpec { checkpoints: 0, resumes: 0, packs: three([6, 7, 8]), ..first_of_two() }
}

/// Two processes at one backup under one lease, which is forgotten and collected as soon as it is
/// there.
pub(super) fn adopted_and_forgotten() -> World {
    let actors = vec![
        Spec::Writer(first_of_two()),
        Spec::Writer(second_of_two()),
        collector(0, 0),
        Spec::Forget(2),
        collector(1, 0),
    ];
    // the second one is through
    let before = vec![(0, Step::LookAtReusedPack), (0, Step::PutCheckpoint), (1, Step::Ended)];
    World { before, ..World::new(store(0), actors) }
}

/// A child that goes on from a checkpoint that rests on a parent, which is forgotten.
pub(super) fn adopted_child() -> World {
    let first = WriterSpec { checkpoints: 1, passes: 0b100, is_stopped: true, ..child_of(0) };
    let second = WriterSpec {
        checkpoints: 0,
        passes: u8::MAX,
        is_stopped: false,
        resumes: 0,
        packs: three([9, 10, 11]),
        ..first
    };
    let actors = vec![Spec::Writer(first), Spec::Writer(second), collector(0, 0), Spec::Forget(0)];
    World { fences_max: 2, settles: true, ..World::new(store(1), actors) }
}

/// A living writer whose lease is removed, and brought back by a heartbeat that was under way.
pub(super) fn heartbeat() -> World {
    let actors = vec![
        Spec::Writer(WriterSpec { beats: 1, ..reuses() }),
        collector(0, 0),
        Spec::Undertaker(0),
    ];
    World { fences_max: 1, settles: true, ..World::new(store(0), actors) }
}

/// A generation that was condemned earlier is swept while another one runs from its beginning to
/// its end.
pub(super) fn torn_list() -> World {
    // Backup 4 (by its key the earlier one here) is the child of backup 2.
    let mut parent = reuses();
    parent.attempts = [2, 3];
    let actors = vec![
        Spec::Writer(parent),
        Spec::Writer(WriterSpec { attempts: [1, NONE], ..child_of(2) }),
        Spec::Forget(2),
        Spec::Collector(CollectorSpec { generation: 0, target: 1, rewrites: 0, sweeps: true }),
        collector(1, 0),
    ];
    // the writer has a lease and has read that nothing is condemned; then a generation condemns
    // the old pack, waits for the writer, and the writer commits
    let before = vec![(0, Step::LookAtReusedPack), (3, Step::ReadCondemned), (0, Step::Ended)];
    let pages = Pages { backups: 2, ..Pages::default() };
    World { before, pages, ..World::new(store(0), actors) }
}

/// A chunk that is lost, recorded while a child inherits it, and a child of that; the first backup
/// is forgotten.
pub(super) fn damage() -> World {
    const LOST: u8 = place(OLD, 1);
    let first = child_of(0);
    let second = WriterSpec {
        parents: [4, NONE],
        inherits: OLD_PLACES,
        ..WriterSpec::new([2, 3], [3, 4, 5])
    };
    let actors = vec![
        Spec::Writer(first),
        Spec::Writer(second),
        Spec::Recorder(LOST),
        Spec::Forget(0),
        collector(0, 0),
    ];
    let store = Store { packs: 0, segments: 0, bad: 1 << LOST, ..store(1 << LOST) };
    World { fences_max: 1, settles: true, ..World::new(store, actors) }
}

/// Two collections, and a writer who reads their lists one after another.
pub(super) fn two_lists() -> World {
    let actors = vec![Spec::Writer(reuses()), collector(0, 0), collector(1, 0)];
    let pages = Pages { gc: 1, leases: 2, ..Pages::default() };
    World { fences_max: 1, pages, ..World::new(store(0), actors) }
}

/// The same with three, one of which has condemned already, and any order of reading them.
pub(super) fn three_lists() -> World {
    let actors = vec![Spec::Writer(reuses()), collector(0, 0), collector(1, 0), collector(2, 0)];
    let pages = Pages { gc: 1, ..Pages::default() };
    let before = vec![(1, Step::ReadCondemned), (2, Step::CreateCondemned)];
    World { before, pages, any_order: true, ..World::new(store(0), actors) }
}
