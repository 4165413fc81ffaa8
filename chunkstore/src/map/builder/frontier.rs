//! Stopping in the middle of a map and going on from there in another process.
//!
//! What is finished to the left of the cursor is a row of subtrees, the largest ones first: the
//! children of the unfinished root page, then those of the unfinished page below it, and so on down
//! to the leaves. This row, the *frontier*, is all that a builder has to know to go on. Chunks of
//! the leaf that the cursor is in are left out: they are done again. The row has no gap (an
//! all-zero subtree stands in it as such), so one that belongs to another place is found out.

use super::{MapBuilder, OpenPage};
use crate::error::Result;
use crate::format::corrupt;
use crate::format::lease::FrontierPage;
use crate::format::page::Child;
use crate::ids::PageId;
use crate::map::sink::PageSink;
use crate::units::{ChunkNo, Geometry, PageRef, map_depth, page_span};
use std::ops::Range;

/// For each level from the root's children down: the pages of that level which are finished when
/// the map is done up to `next`, the start of a leaf.
fn rows(fanout: u16, depth: u8, next: u64) -> impl Iterator<Item = (u8, Range<u64>)> {
    (0..depth.saturating_sub(1)).rev().map(move |level| {
        let done = next / page_span(fanout, level);
        // those below a finished page of the level above are part of that one
        let above = next / page_span(fanout, level + 1);
        let first = if level + 2 == depth { 0 } else { above.saturating_mul(u64::from(fanout)) };
        (level, first..done)
    })
}

/// Refuses a frontier that is not that of a map of this shape, done up to `next`.
pub fn check_frontier(
    fanout: u16,
    geometry: Geometry,
    next: ChunkNo,
    frontier: &[FrontierPage],
) -> Result<()> {
    let what = || format!("go on at chunk {}", next.0);
    if !next.0.is_multiple_of(u64::from(fanout)) || next.0 > geometry.chunks() {
        return Err(corrupt(what(), "no leaf page of this volume starts there"));
    }
    let mut left = frontier.iter();
    for (level, pages) in rows(fanout, map_depth(fanout, geometry.chunks()), next.0) {
        for page in pages {
            let fits = left.next().is_some_and(|f| (f.level, f.page) == (level, page));
            if !fits {
                return Err(corrupt(what(), format!("page {page} of level {level} is missing")));
            }
        }
    }
    match left.next() {
        None => Ok(()),
        Some(f) => {
            let detail = format!("page {} of level {} is one too many", f.page, f.level);
            Err(corrupt(what(), detail))
        }
    }
}

impl MapBuilder {
    /// Where another builder could go on, and with what: the start of the leaf that the cursor is
    /// in, and the subtrees to the left of it. All of them are sealed when this returns; they can
    /// be relied upon when the packs of `sink` are stored. `None` where the map is done, or nothing
    /// of it.
    pub fn frontier(
        &mut self,
        sink: &mut PageSink,
    ) -> Result<Option<(ChunkNo, Vec<FrontierPage>)>> {
        let next = self.cursor - self.cursor % u64::from(self.fanout);
        // at the end the cursor may lie behind the last chunk, and the pages that the end cuts are
        // closed
        if next == 0 || self.cursor >= self.geometry.chunks() {
            return Ok(None);
        }
        let mut frontier = Vec::new();
        for (level, pages) in rows(self.fanout, self.depth, next) {
            let above = &mut self.open[usize::from(level) + 1];
            above.seal_pending(sink)?;
            frontier.extend(pages.clone().zip(0..).map(|(page, index): (u64, usize)| {
                let child = above.children.get(index).copied().flatten();
                let root =
                    child.map(|c| PageRef { id: PageId::from_bytes(c.id), location: c.location });
                FrontierPage { level, page, root }
            }));
        }
        Ok(Some((ChunkNo(next), frontier)))
    }

    /// Puts a new builder where another one was. Refuses a frontier that does not fit; the builder
    /// is as new then.
    ///
    /// With a parent, its pages on the path to `next` have to be provided before the next update,
    /// as for a chunk that is set.
    pub fn go_on_from(&mut self, next: ChunkNo, frontier: &[FrontierPage]) -> Result<()> {
        check_frontier(self.fanout, self.geometry, next, frontier)?;
        self.open = (0..self.depth).map(|_| OpenPage::default()).collect();
        for f in frontier {
            if let Some(root) = f.root {
                let index = self.index(f.level + 1, f.page * page_span(self.fanout, f.level));
                self.open[usize::from(f.level) + 1].put(index, Child::from(root));
            }
        }
        self.cursor = next.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::map::model::{geometry, repository, sink};
    use crate::map::{Inherit, model};
    use std::sync::Arc;

    /// A builder of 5000 chunks with a fan-out of 16, done up to `cursor`.
    fn done_up_to(cursor: u64) -> (MapBuilder, PageSink) {
        let repo = repository(16);
        let keys = Arc::clone(repo.keys());
        let mut sink = sink(&repo, 64 << 10);
        let geometry = geometry(5000 * u64::from(model::CHUNK_BYTES));
        let mut builder = MapBuilder::new(keys, 16, geometry, Inherit::Nothing, None).unwrap();
        for k in 0..cursor {
            let to = (k % 700 < 400).then(|| model::chunk(k, 0));
            builder.set(&mut sink, ChunkNo(k), to).unwrap();
        }
        (builder, sink)
    }

    #[test]
    fn a_frontier_is_the_largest_subtrees_without_a_gap() {
        let (mut builder, mut sink) = done_up_to(4096 + 2 * 256 + 3 * 16 + 5);
        let (next, frontier) = builder.frontier(&mut sink).unwrap().unwrap();
        assert_eq!(next, ChunkNo(4096 + 2 * 256 + 3 * 16));
        let places: Vec<_> = frontier.iter().map(|f| (f.level, f.page)).collect();
        assert_eq!(places, [(2, 0), (1, 16), (1, 17), (0, 288), (0, 289), (0, 290)]);
        // chunks 4608..4656 are those of which nothing is stored in `done_up_to`
        assert!(frontier[3..].iter().all(|f| f.root.is_none()), "{frontier:?}");
        assert!(frontier[..3].iter().all(|f| f.root.is_some_and(|r| r.location.offset >= 64)));
    }

    #[test]
    fn there_is_none_at_the_start_and_at_the_end() {
        for (cursor, some) in [(0, false), (15, false), (16, true), (4999, true), (5000, false)] {
            let (mut builder, mut sink) = done_up_to(cursor);
            assert_eq!(builder.frontier(&mut sink).unwrap().is_some(), some, "{cursor}");
        }
        let (mut builder, mut sink) = done_up_to(100);
        builder.set_zero(&mut sink, 100..5000).unwrap();
        assert!(builder.frontier(&mut sink).unwrap().is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (mut builder, mut sink) = done_up_to(700);
        let (next, frontier) = builder.frontier(&mut sink).unwrap().unwrap();
        let size = 5000 * u64::from(model::CHUNK_BYTES);
        let check = |fanout, size, next: u64, frontier: &[FrontierPage]| {
            check_frontier(fanout, geometry(size), ChunkNo(next), frontier)
                .map_err(|e| assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}"))
                .is_ok()
        };
        assert!(check(16, size, next.0, &frontier));
        assert!(!check(16, size, next.0 + 1, &frontier));
        assert!(!check(16, size, next.0 + 16, &frontier));
        assert!(!check(16, size, next.0 - 16, &frontier));
        assert!(!check(32, size, next.0, &frontier));
        assert!(!check(16, size, next.0, &frontier[1..]));
        assert!(!check(16, size / 5000 * 600, next.0, &frontier));
        // pages do not depend on the volume's size
        assert!(check(16, size * 16, next.0, &frontier));
        let mut twice = frontier.clone();
        twice.push(frontier[0]);
        assert!(!check(16, size, next.0, &twice));
        assert!(check(16, size, 0, &[]));
        assert!(!check(16, size, 1 << 40, &frontier));
    }
}
