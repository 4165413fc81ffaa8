//! What is condemned and what dies: pure decisions over what was listed and marked.

use crate::format::gc::CondemnedList;
use crate::format::moved::Moved;
use crate::ids::PackId;
use crate::map::LiveSet;
use std::collections::HashSet;

/// Packs of one generation, at most: its list has to fit in one object, and a reader's memory.
pub(super) const DEAD_MAX: usize = 1 << 20;

/// Which packs nothing refers to: of those that are stored, and of those that only a stub is left of. What another collection
/// has condemned and not decided yet is left to it. Ascending, each once.
pub(super) fn plan_condemned(
    packs: &[(PackId, u64)],
    stubs: &[PackId],
    live: &LiveSet,
    undecided: &HashSet<PackId>,
) -> Vec<PackId> {
    let stored = packs.iter().map(|(pack, _)| pack);
    let mut dead: Vec<PackId> = stored
        .chain(stubs)
        .filter(|pack| live.pack(pack).is_none() && !undecided.contains(pack))
        .copied()
        .collect();
    dead.sort_unstable();
    dead.dedup();
    dead.truncate(DEAD_MAX);
    dead
}

/// Which of the condemned packs die: those of which nothing is live now, or all that is live was copied, to packs that exist.
/// Ascending.
pub(super) fn plan_verdict(
    list: &CondemnedList,
    live: &LiveSet,
    exists: &HashSet<PackId>,
) -> Vec<PackId> {
    let nothing_live = |pack: &PackId| live.pack(pack).is_none();
    let all_moved = |stub: &Moved| {
        let Some(of_pack) = live.pack(stub.pack()) else { return true };
        of_pack.iter().all(|(entry, index)| {
            stub.find(entry, index).is_some_and(|to| exists.contains(&to.pack))
        })
    };
    let mut dead: Vec<PackId> = list.dead.iter().filter(|p| nothing_live(p)).copied().collect();
    dead.extend(list.rewritten.iter().filter(|s| all_moved(s)).map(Moved::pack));
    dead.sort_unstable();
    dead.dedup();
    dead
}

/// The packs that relocations lead to: they must exist before what they were copied from may go.
pub(super) fn targets(list: &CondemnedList) -> HashSet<PackId> {
    let relocations = list.rewritten.iter().flat_map(Moved::relocations);
    relocations.map(|(_, to)| to.pack).collect()
}
