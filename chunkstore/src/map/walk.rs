//! All of a map, or a range of it, in windows of bounded memory.
//!
//! For: whoever needs every non-zero chunk of a volume of any size (restore, verify, a mark). Each
//! window is loaded level by level; Zero subtrees are passed over without a look at their chunks,
//! so the cost is that of the pages that exist.
//!
//! Of each level, a window takes as many pages as would fill it if the volume were dense. Where it
//! is sparse, windows come out small, and so the walk takes twice as many the next time, until they
//! are filled.

use crate::error::Result;
use crate::map::pages::PageSet;
use crate::map::reader::{LostPage, MapReader, by_number, children_wanted};
use crate::units::page_span;
use std::collections::BTreeMap;
use std::ops::Range;

/// Inner pages of one level that a window starts with.
const INNER_PAGES_MIN: usize = 8;

/// Goes through a range of a map, ascending.
#[derive(Debug)]
pub struct MapWalk<'a> {
    reader: &'a mut MapReader,
    /// What is not walked yet.
    ahead: Range<u64>,
    leaves_max: usize,
    /// Inner pages that a window may take of one level, if a dense volume needs no more.
    inner_pages: usize,
}

/// A part of the range, directly behind the window before it.
#[derive(Debug, Clone)]
pub struct Window {
    /// Its chunks; large where the volume is sparse.
    pub chunks: Range<u64>,
    /// Answers for all of them.
    pub pages: PageSet,
}

impl<'a> MapWalk<'a> {
    /// Walks `chunks`, cut at the volume's end, in windows of at most `leaves_per_window` leaf
    /// pages (at least one).
    pub fn new(reader: &'a mut MapReader, chunks: Range<u64>, leaves_per_window: usize) -> Self {
        let end = chunks.end.min(reader.map().geometry().chunks());
        let leaves_max = leaves_per_window.max(1);
        let inner_pages = INNER_PAGES_MIN.min(leaves_max);
        Self { reader, ahead: chunks.start.min(end)..end, leaves_max, inner_pages }
    }

    /// The next window; `None` at the end. The windows together are the whole range without gaps.
    pub async fn next(&mut self) -> Result<Option<Window>> {
        if self.ahead.is_empty() {
            return Ok(None);
        }
        let map = self.reader.map().clone();
        let depth = map.root().depth;
        let mut chunks = self.ahead.clone();
        let mut levels = vec![BTreeMap::new(); usize::from(depth)];
        let mut wanted = self.reader.root_want();
        let mut leaves = 0;
        for level in (0..depth).rev() {
            let most =
                self.pages_max(level, page_span(map.fanout(), level) / page_span(map.fanout(), 0));
            if level == 0 {
                leaves = wanted.len();
            }
            if let Some(cut) = wanted.get(most) {
                chunks.end = chunks.end.min(map.page_chunks(level, cut.number).start);
                wanted.truncate(most);
            }
            let loaded = self.reader.pages(wanted).await?;
            wanted = children_wanted(&map, &loaded, std::slice::from_ref(&chunks));
            levels[usize::from(level)] = by_number(loaded);
        }
        self.adapt(leaves, chunks.end == self.ahead.end);
        self.ahead.start = chunks.end;
        let pages = PageSet::new(map, vec![chunks.clone()], levels);
        Ok(Some(Window { chunks, pages }))
    }

    /// The pages that were passed over since the last call, where the reader does that.
    pub fn take_lost(&mut self) -> Vec<LostPage> {
        self.reader.take_lost()
    }

    /// Pages of a level for one window; each covers `leaves` leaves.
    fn pages_max(&self, level: u8, leaves: u64) -> usize {
        if level == 0 {
            return self.leaves_max;
        }
        // one more, as the window may begin and end within a page
        let dense = (self.leaves_max as u64).div_ceil(leaves.max(1)).saturating_add(1);
        usize::try_from(dense).unwrap_or(usize::MAX).max(self.inner_pages)
    }

    fn adapt(&mut self, leaves: usize, at_end: bool) {
        if leaves > self.leaves_max.saturating_mul(2) {
            self.inner_pages = (self.inner_pages / 2).max(INNER_PAGES_MIN.min(self.leaves_max));
        } else if leaves < self.leaves_max && !at_end {
            self.inner_pages = self.inner_pages.saturating_mul(2).min(self.leaves_max);
        }
    }
}

#[cfg(test)]
mod tests;
