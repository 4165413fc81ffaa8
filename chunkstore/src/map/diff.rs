//! Which chunks differ between two maps, found by descending only where page ids differ.
//!
//! Equal ids are equal content, wherever it is stored, so the cost is that of the paths to what
//! differs. Both maps have the same fan-out; sizes and depths may differ. The deeper map is the
//! frame: in it, the other's root stands as child 0 of pages that exist only in name.
//!
//! The work ahead is a stack of pages; some of its top are taken at once, loaded from both maps in
//! one round, and replaced by their children that differ. So memory is bounded however much differs
//! (some MiB), apart from the answer itself.

use crate::error::{Error, ErrorKind, Result};
use crate::format::page::{Child, Page};
use crate::ids::PageId;
use crate::map::reader::{MapReader, Want};
use crate::map::volume::{child_span, normalise};
use crate::units::{ChunkNo, PageRef};
use std::ops::Range;
use std::sync::Arc;

/// Inner pages of each map in one round. The stack holds about this many times fan-out times depth
/// places of 200 bytes.
const ROUND_PAGES: usize = 64;
/// Leaves of each map in one round: they put nothing on the stack.
const ROUND_LEAVES: usize = 256;

/// What one map has at the place of a page.
#[derive(Debug, Clone, Copy)]
enum Side {
    Zero,
    /// A page of this level: the place's own, or the map's root seen from above.
    Page(u8, PageRef),
}

/// A place where the maps may differ.
#[derive(Debug, Clone, Copy)]
struct Place {
    level: u8,
    number: u64,
    sides: [Side; 2],
}

/// The chunk ranges in which two maps differ, ascending and merged: chunks with other content, the
/// last chunk of the shorter volume if its length differs, and all chunks that only one of the
/// volumes has.
pub async fn diff(a: &mut MapReader, b: &mut MapReader) -> Result<Vec<Range<u64>>> {
    let (size_a, size_b) = (*a.map().geometry(), *b.map().geometry());
    let fanout = a.map().fanout();
    if fanout != b.map().fanout() || size_a.chunk() != size_b.chunk() {
        return Err(Error::new(
            ErrorKind::Bug,
            format!("compare the maps of {} and {}", a.map().name(), b.map().name()),
            "they differ in fan-out or chunk size",
        ));
    }
    let common = size_a.chunks().min(size_b.chunks());
    let longest = size_a.chunks().max(size_b.chunks());
    let mut changed = Changed::default();
    changed.push(common..longest);
    let last = ChunkNo(common - 1);
    if size_a.len(last) != size_b.len(last) {
        changed.push(last.0..common);
    }
    let level = a.map().root().depth.max(b.map().root().depth) - 1;
    let mut ahead = Vec::new();
    push_if_different(&mut ahead, level, 0, [root_side(a), root_side(b)]);
    while !ahead.is_empty() {
        let round = take_round(&mut ahead);
        let (pages_a, pages_b) =
            futures::try_join!(load_round(a, &round, 0), load_round(b, &round, 1))?;
        for ((place, page_a), page_b) in round.iter().zip(pages_a).zip(pages_b) {
            let children = [children_of(place, 0, page_a), children_of(place, 1, page_b)];
            descend(place, &children, fanout, common, &mut ahead, &mut changed);
        }
    }
    Ok(normalise(changed.ranges, longest))
}

/// Ranges found so far; merged now and then, as places come in no strict order.
#[derive(Default)]
struct Changed {
    ranges: Vec<Range<u64>>,
    unsorted: usize,
}

impl Changed {
    fn push(&mut self, range: Range<u64>) {
        if let Some(last) = self.ranges.last_mut()
            && last.end == range.start
        {
            last.end = range.end;
            return;
        }
        self.ranges.push(range);
        self.unsorted += 1;
        if self.unsorted > 4096.max(self.ranges.len() / 2) {
            self.ranges = normalise(std::mem::take(&mut self.ranges), u64::MAX);
            self.unsorted = 0;
        }
    }
}

/// The children of a place as one map has them.
enum Children {
    Zero,
    /// The place is above the map's root, which is child 0, or below it by that child only.
    First(Side),
    Of(Arc<Page>),
}

impl Children {
    fn child(&self, index: usize) -> Option<&Child> {
        match self {
            Self::Of(page) => page.child(index),
            Self::Zero | Self::First(_) => None,
        }
    }

    fn side(&self, level: u8, index: usize) -> Side {
        match self {
            Self::First(side) if index == 0 => *side,
            _ => self.child(index).map_or(Side::Zero, |c| {
                let id = PageId::from_bytes(c.id);
                Side::Page(level, PageRef { id, location: c.location })
            }),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Zero => 0,
            Self::First(_) => 1,
            Self::Of(page) => page.children().len(),
        }
    }
}

fn root_side(reader: &MapReader) -> Side {
    let root = reader.map().root();
    root.root.map_or(Side::Zero, |page| Side::Page(root.depth - 1, page))
}

fn push_if_different(ahead: &mut Vec<Place>, level: u8, number: u64, sides: [Side; 2]) {
    let same = match &sides {
        [Side::Zero, Side::Zero] => true,
        [Side::Page(_, a), Side::Page(_, b)] => a.id == b.id,
        _ => false,
    };
    if !same {
        ahead.push(Place { level, number, sides });
    }
}

fn take_round(ahead: &mut Vec<Place>) -> Vec<Place> {
    let leaves = ahead.iter().rev().take(ROUND_LEAVES).take_while(|p| p.level == 0).count();
    let count = if leaves > 0 { leaves } else { ROUND_PAGES.min(ahead.len()) };
    ahead.split_off(ahead.len() - count)
}

/// The pages of one map at these places; `None` where it has none of the place's own level.
async fn load_round(
    reader: &mut MapReader,
    round: &[Place],
    side: usize,
) -> Result<Vec<Option<Arc<Page>>>> {
    let own = |place: &Place| match place.sides[side] {
        Side::Page(level, page) if level == place.level => {
            Some(Want { level, number: place.number, page })
        }
        _ => None,
    };
    let mut loaded = reader.pages(round.iter().filter_map(own).collect()).await?.into_iter();
    Ok(round.iter().map(|p| own(p).and_then(|_| loaded.next()).map(|(_, page)| page)).collect())
}

fn children_of(place: &Place, side: usize, page: Option<Arc<Page>>) -> Children {
    match (page, place.sides[side]) {
        (Some(page), _) => Children::Of(page),
        (None, Side::Zero) => Children::Zero,
        (None, root) => Children::First(root),
    }
}

/// Puts the children of a place that differ, and begin before chunk `common`, on the stack or among
/// what changed.
fn descend(
    place: &Place,
    children: &[Children; 2],
    fanout: u16,
    common: u64,
    ahead: &mut Vec<Place>,
    changed: &mut Changed,
) {
    let first = place.number * u64::from(fanout);
    let before_common = common.div_ceil(child_span(fanout, place.level)).saturating_sub(first);
    let listed = children[0].len().max(children[1].len());
    let count = listed.min(usize::try_from(before_common).unwrap_or(usize::MAX));
    if place.level == 0 {
        for (number, index) in (first..).zip(0..count) {
            let id = |side: usize| children[side].child(index).map(|c| c.id);
            if id(0) != id(1) {
                changed.push(number..number + 1);
            }
        }
        return;
    }
    let level = place.level - 1;
    for (number, index) in (first..).zip(0..count) {
        let sides = [children[0].side(level, index), children[1].side(level, index)];
        push_if_different(ahead, level, number, sides);
    }
}

#[cfg(test)]
mod tests;
