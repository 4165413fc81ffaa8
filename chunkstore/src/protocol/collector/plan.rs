//! What is condemned and what dies: pure decisions over what was listed and marked.

use crate::format::gc::CondemnedList;
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::limits::STUB_HOPS_MAX;
use crate::map::LiveSet;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Packs of one generation, at most: its list has to fit in one object, and a reader's memory.
pub(super) const DEAD_MAX: usize = 1 << 20;

/// Which packs nothing refers to: of those that are stored, and of those that only a stub is left
/// of. What another collection has condemned and not decided yet is left to it. Ascending, each
/// once.
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
    dead
}

/// Live chunks and pages that one generation moves, at most: readers of its list and its stubs keep
/// them in memory.
const MOVED_MAX: u64 = 1 << 18;
/// A pack is not worth the requests unless so much of it is dead.
const DEAD_BYTES_MIN: u64 = 64 << 10;
/// Stubs that may lead to a pack that is moved on: well below what readers follow.
const CHAIN_MAX: u32 = STUB_HOPS_MAX / 2;

/// Which packs are to be rewritten: those of which less than half lives, the most dead bytes first.
/// `edges` lead from each pack that a stub is left of to where it went.
pub(super) fn plan_rewrites(
    packs: &[(PackId, u64)],
    live: &LiveSet,
    undecided: &HashSet<PackId>,
    edges: &HashSet<(PackId, PackId)>,
) -> Vec<(PackId, u64)> {
    let depths = chain_depths(edges);
    let mut found: Vec<(u64, u64, PackId, u64)> = packs
        .iter()
        .filter(|(pack, _)| !undecided.contains(pack))
        .filter(|(pack, _)| depths.get(pack).is_none_or(|depth| *depth < CHAIN_MAX))
        .filter_map(|(pack, size)| {
            let of_pack = live.pack(pack)?;
            let dead = size.saturating_sub(of_pack.live_bytes());
            let worth = dead >= DEAD_BYTES_MIN && dead > size / 2;
            worth.then_some((dead, u64::from(of_pack.live_chunks()), *pack, *size))
        })
        .collect();
    found.sort_unstable_by_key(|(dead, _, pack, _)| (Reverse(*dead), *pack));
    let mut left = MOVED_MAX;
    found.retain(|(_, chunks, ..)| {
        let fits = *chunks <= left;
        left -= if fits { *chunks } else { 0 };
        fits
    });
    found.into_iter().map(|(_, _, pack, size)| (pack, size)).collect()
}

/// How many stubs lead to each pack, one after another.
fn chain_depths(edges: &HashSet<(PackId, PackId)>) -> HashMap<PackId, u32> {
    let mut depths: HashMap<PackId, u32> = HashMap::new();
    for _ in 0..=CHAIN_MAX {
        let mut changed = false;
        for (from, to) in edges {
            let depth = depths.get(from).map_or(1, |depth| depth + 1);
            let known = depths.entry(*to).or_insert(0);
            changed |= depth > *known;
            *known = depth.max(*known);
        }
        if !changed {
            break;
        }
    }
    depths
}

/// Which of the condemned packs die: those of which nothing is live now, or all that is live was
/// copied, to packs that exist. Ascending.
pub(super) fn plan_verdict(
    list: &CondemnedList,
    live: &LiveSet,
    exists: &HashSet<PackId>,
) -> Vec<PackId> {
    let nothing_live = |pack: &PackId| live.pack(pack).is_none();
    let all_moved = |stub: &Stub| {
        let Some(of_pack) = live.pack(stub.pack()) else { return true };
        of_pack.iter().all(|(entry, index)| {
            stub.find(entry, index).is_some_and(|to| exists.contains(&to.pack))
        })
    };
    let mut dead: Vec<PackId> = list.dead.iter().filter(|p| nothing_live(p)).copied().collect();
    dead.extend(list.rewritten.iter().filter(|s| all_moved(s)).map(Stub::pack));
    dead.sort_unstable();
    dead.dedup();
    dead
}

/// The packs that relocations lead to: they must exist before what they were copied from may go.
pub(super) fn targets(list: &CondemnedList) -> HashSet<PackId> {
    let relocations = list.rewritten.iter().flat_map(Stub::relocations);
    relocations.map(|(_, to)| to.pack).collect()
}
