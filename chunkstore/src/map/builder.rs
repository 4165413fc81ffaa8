//! The map of a new backup, built in one ascending pass.
//!
//! For: the assembler, which learns chunk after chunk where each went. Owns the unfinished pages
//! (one a level), the parent's pages that were provided and are still ahead, and finished inner
//! pages that wait to be sealed next to their siblings. Must not: do I/O. Pages of the parent come
//! through [`MapBuilder::provide`], finished ones leave through [`PageSink`].
//!
//! Mechanism: a cursor, the next chunk that the new map does not say anything of yet. Three things
//! move it: one chunk, a range of Zero, a range taken over from the parent. A range moves it by the
//! largest subtrees that fit, each as one reference, so the cost is that of the paths at both ends
//! of the range. When the cursor passes the end of a page, the page is complete.
//!
//! Leaves are sealed as they complete. An inner page waits for its parent page to complete and is
//! sealed together with its siblings, so inner pages of a level lie next to each other in the pack
//! and a reader gets them in one request.
//!
//! Invariants:
//! - what is neither set nor zeroed is the parent's with [`Inherit::Parent`], and Zero with
//!   [`Inherit::Nothing`];
//! - nothing is inherited where the parent says nothing (behind its end), nor a last chunk whose
//!   length changed: that the caller did not set such a chunk is an error, since its content is
//!   unknown;
//! - a page with exactly the children (ids *and* locations) of the parent's page at the same place
//!   keeps that page's reference, so a chunk that was stored again because its entry is damaged
//!   does not get lost.

mod base;
mod frontier;

use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::MapRoot;
use crate::format::page::{Child, Page};
use crate::ids::{PackId, PageId};
use crate::keys::Keys;
use crate::map::pages::PageSet;
use crate::map::sink::PageSink;
use crate::map::volume::{VolumeMap, child_span, normalise};
use crate::units::{ChunkNo, ChunkRef, Geometry, Location, PageRef, map_depth, page_span};
use base::{Base, BasePage};
pub use frontier::check_frontier;
use std::ops::Range;
use std::sync::Arc;

/// Finished inner pages of one level that wait for their siblings, bytes; more are sealed early.
const PENDING_BYTES_MAX: usize = 2 << 20;

/// Stands in a child until it is sealed; encoding it is refused.
const NOT_SEALED: Location =
    Location { pack: PackId::from_bytes([0; 32]), entry: 0, offset: 0, stored_len: 0, index: 0 };

/// What chunks hold that were neither set nor zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    /// Zero: the list names everything that is allocated.
    Nothing,
    /// What the parent holds: the list names everything that changed.
    Parent,
}

/// Builds one map; see the module's text.
#[derive(Debug)]
pub struct MapBuilder {
    keys: Arc<Keys>,
    fanout: u16,
    geometry: Geometry,
    depth: u8,
    inherit: Inherit,
    base: Base,
    /// First chunk that nothing was said of.
    cursor: u64,
    /// Unfinished page of each level.
    open: Vec<OpenPage>,
    /// Chunks whose pages are stored anew, whether they changed or not.
    renewed: Vec<Range<u64>>,
    /// Last chunk of the shorter of the two volumes, if its length changed: it cannot be inherited.
    edge: Option<u64>,
}

/// The children of an unfinished page, up to the last one that is not Zero.
#[derive(Debug, Default)]
struct OpenPage {
    children: Vec<Option<Child>>,
    /// Children that are not sealed yet; their location above is not valid.
    pending: Vec<Pending>,
    pending_bytes: usize,
}

#[derive(Debug)]
struct Pending {
    index: usize,
    plain: Vec<u8>,
}

/// A completed page.
enum Done {
    Zero,
    Stored(PageRef),
    New { id: PageId, plain: Vec<u8> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    Zero,
    Parent,
}

impl MapBuilder {
    /// A builder for a volume of `geometry`. `parent` is what is inherited from, and what pages are
    /// compared with.
    pub fn new(
        keys: Arc<Keys>,
        fanout: u16,
        geometry: Geometry,
        inherit: Inherit,
        parent: Option<VolumeMap>,
    ) -> Result<Self> {
        let wrong = match &parent {
            None if inherit == Inherit::Parent => Some("there is none"),
            Some(p) if p.fanout() != fanout || p.geometry().chunk() != geometry.chunk() => {
                Some("it has another fan-out or chunk size")
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(Error::new(ErrorKind::Bug, "build a volume map on its parent", wrong));
        }
        let edge = parent.as_ref().and_then(|p| {
            let last = ChunkNo(p.geometry().chunks().min(geometry.chunks()) - 1);
            (p.geometry().len(last) != geometry.len(last)).then_some(last.0)
        });
        let depth = map_depth(fanout, geometry.chunks());
        Ok(Self {
            keys,
            fanout,
            geometry,
            depth,
            inherit,
            base: Base::new(parent),
            cursor: 0,
            open: (0..depth).map(|_| OpenPage::default()).collect(),
            edge,
            renewed: Vec::new(),
        })
    }

    /// Pages that lead to any of these chunks are stored anew, though they are as they were: for a
    /// parent whose pages cannot be read where its map says. All of these chunks have to be set or
    /// zeroed. Ascending, merged.
    pub(crate) fn renew(&mut self, chunks: Vec<Range<u64>>) {
        self.renewed = chunks;
    }

    fn renews(&self, level: u8, page: u64) -> bool {
        let span = page_span(self.fanout, level);
        let first = page.saturating_mul(span);
        let end = first.saturating_add(span);
        let at = self.renewed.partition_point(|r| r.end <= first);
        self.renewed.get(at).is_some_and(|r| r.start < end)
    }

    /// Chunk ranges of the *parent* whose pages must be loaded and provided before these updates:
    /// `set` ranges wholly, the edges of `zero` ranges, and the right edge if the size changed.
    /// Ascending, merged, within the parent's size.
    pub fn needs(&self, set: &[Range<u64>], zero: &[Range<u64>]) -> Vec<Range<u64>> {
        let Some(parent) = self.base.chunks() else { return Vec::new() };
        let mut wanted = set.to_vec();
        if self.inherit == Inherit::Parent {
            let filled = zero.iter().filter(|r| !r.is_empty());
            wanted.extend(filled.flat_map(|r| [r.start..r.start + 1, r.end - 1..r.end]));
            let ours = self.geometry.chunks();
            if parent != ours {
                let last = parent.min(ours);
                wanted.push(last - 1..last);
            }
        }
        normalise(wanted, parent)
    }

    /// Hands over pages of the parent. Those that lie wholly below the cursor are dropped, so
    /// memory stays that of the windows ahead. The same set may be handed over with every update
    /// that needs it.
    pub fn provide(&mut self, pages: &PageSet) -> Result<()> {
        self.base.provide(pages, self.cursor)
    }

    /// The next chunk that is stored, or Zero. Chunks come in ascending order, each at most once.
    pub fn set(&mut self, sink: &mut PageSink, chunk: ChunkNo, to: Option<ChunkRef>) -> Result<()> {
        self.reach(sink, &(chunk.0..chunk.0.saturating_add(1)))?;
        if let Some(to) = to {
            let index = self.index(0, chunk.0);
            self.open[0].put(index, to.into());
        }
        self.cursor += 1;
        self.complete_passed(sink)
    }

    /// A range that is all zero; its cost does not grow with its length.
    pub fn set_zero(&mut self, sink: &mut PageSink, chunks: Range<u64>) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        self.reach(sink, &chunks)?;
        self.fill(sink, chunks.end, Fill::Zero)
    }

    /// First chunk that nothing was said of yet.
    pub fn cursor(&self) -> ChunkNo {
        ChunkNo(self.cursor.min(self.geometry.chunks()))
    }

    /// Completes the map. The pages are in `sink`; the caller closes it.
    pub fn finish(mut self, sink: &mut PageSink) -> Result<MapRoot> {
        let end = self.geometry.chunks();
        if self.cursor == 0
            && self.inherit == Inherit::Parent
            && self.edge.is_none()
            && let Some(root) = self.base.root_of(end)
        {
            return Ok(MapRoot { depth: self.depth, root });
        }
        self.fill_gap(sink, end)?;
        let top = self.depth - 1;
        for level in 0..top {
            let span = page_span(self.fanout, level);
            if !self.cursor.is_multiple_of(span) {
                self.complete(sink, level, self.cursor / span)?;
            }
        }
        let root = match self.close_page(sink, top, 0)? {
            Done::Zero => None,
            Done::Stored(page) => Some(page),
            Done::New { id, plain } => Some(PageRef { id, location: sink.store(id, &plain)? }),
        };
        Ok(MapRoot { depth: self.depth, root })
    }

    /// Checks that `chunks` are ahead, and says what lies between the cursor and them.
    fn reach(&mut self, sink: &mut PageSink, chunks: &Range<u64>) -> Result<()> {
        if chunks.start < self.cursor || chunks.end > self.geometry.chunks() {
            return Err(self.bug(
                chunks,
                format!("next is chunk {} of {}", self.cursor, self.geometry.chunks()),
            ));
        }
        self.fill_gap(sink, chunks.start)
    }

    fn fill_gap(&mut self, sink: &mut PageSink, to: u64) -> Result<()> {
        match self.inherit {
            Inherit::Nothing => self.fill(sink, to, Fill::Zero),
            Inherit::Parent => self.fill(sink, to, Fill::Parent),
        }
    }

    /// Moves the cursor to `to` (or over it, where only the volume's end cuts a page) by the
    /// largest subtrees that fit.
    fn fill(&mut self, sink: &mut PageSink, to: u64, fill: Fill) -> Result<()> {
        if self.cursor >= to {
            return Ok(());
        }
        let mut limit = to;
        let parent_end = self.base.chunks().unwrap_or(0);
        if fill == Fill::Parent {
            if to > parent_end {
                let unknown = self.cursor.max(parent_end)..to;
                return Err(self.bug(&unknown, "they lie behind the parent's end and were not set"));
            }
            if let Some(edge) = self.edge.filter(|e| (self.cursor..to).contains(e)) {
                return Err(self.bug(&(edge..edge + 1), "its length changed and it was not set"));
            }
        }
        if to == self.geometry.chunks() && (fill == Fill::Zero || parent_end == to) {
            // nothing lies behind: a page that the end cuts goes over whole
            limit = page_span(self.fanout, self.depth - 1);
        }
        while self.cursor < to {
            let level = self.fill_level(limit);
            let span = child_span(self.fanout, level);
            let index = self.index(level, self.cursor);
            let room = u64::from(self.fanout) - index as u64;
            let count = ((limit - self.cursor) / span).min(room);
            if fill == Fill::Parent {
                let page = self.cursor / page_span(self.fanout, level);
                let children = self.base.children(level, page, index, count)?;
                self.open[usize::from(level)].put_all(index, children);
            }
            self.cursor += count * span;
            self.complete_passed(sink)?;
        }
        Ok(())
    }

    /// Highest level of which at least one whole child lies between the cursor and `limit`.
    fn fill_level(&self, limit: u64) -> u8 {
        let fits = |level: &u8| {
            let span = child_span(self.fanout, *level);
            self.cursor.is_multiple_of(span) && limit - self.cursor >= span
        };
        (0..self.depth).rev().find(fits).unwrap_or(0)
    }

    /// Completes every page below the root whose end the cursor has just reached.
    fn complete_passed(&mut self, sink: &mut PageSink) -> Result<()> {
        for level in 0..self.depth - 1 {
            let span = page_span(self.fanout, level);
            if !self.cursor.is_multiple_of(span) {
                break;
            }
            self.complete(sink, level, self.cursor / span - 1)?;
        }
        Ok(())
    }

    /// Completes a page below the root and enters it into the page above.
    fn complete(&mut self, sink: &mut PageSink, level: u8, page: u64) -> Result<()> {
        let done = self.close_page(sink, level, page)?;
        let index = self.index(level + 1, page * page_span(self.fanout, level));
        let above = &mut self.open[usize::from(level) + 1];
        match done {
            Done::Zero => {}
            Done::Stored(page) => above.put(index, page.into()),
            Done::New { id, plain } if level == 0 => {
                let location = sink.store(id, &plain)?;
                above.put(index, PageRef { id, location }.into());
            }
            Done::New { id, plain } => {
                above.put(index, PageRef { id, location: NOT_SEALED }.into());
                above.pending_bytes += plain.len();
                above.pending.push(Pending { index, plain });
                if above.pending_bytes > PENDING_BYTES_MAX {
                    above.seal_pending(sink)?;
                }
            }
        }
        Ok(())
    }

    fn close_page(&mut self, sink: &mut PageSink, level: u8, page_number: u64) -> Result<Done> {
        let mut open = std::mem::take(&mut self.open[usize::from(level)]);
        let known = self.base.take_page(level, page_number);
        if open.children.is_empty() {
            return Ok(Done::Zero);
        }
        // a child that waits to be sealed equals none
        if let Some(BasePage { reference, page }) = known
            && page.children() == open.children
            && !self.renews(level, page_number)
        {
            return Ok(Done::Stored(reference));
        }
        open.seal_pending(sink)?;
        let page = Page::new(level, open.children);
        Ok(Done::New { id: page.id(&self.keys), plain: page.encode()? })
    }

    /// Place of the child that holds a chunk among the children of its page of `level`.
    fn index(&self, level: u8, chunk: u64) -> usize {
        let index = chunk / child_span(self.fanout, level) % u64::from(self.fanout);
        usize::try_from(index).unwrap_or(usize::MAX)
    }

    fn bug(&self, chunks: &Range<u64>, what: impl Into<String>) -> Error {
        let place = format!("build a volume map at chunks {}..{}", chunks.start, chunks.end);
        Error::new(ErrorKind::Bug, place, what)
    }
}

impl OpenPage {
    fn put(&mut self, index: usize, child: Child) {
        self.children.resize(index, None);
        self.children.push(Some(child));
    }

    fn put_all(&mut self, index: usize, children: &[Option<Child>]) {
        let used = children.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if used > 0 {
            self.children.resize(index, None);
            self.children.extend_from_slice(&children[..used]);
        }
    }

    fn seal_pending(&mut self, sink: &mut PageSink) -> Result<()> {
        for Pending { index, plain } in self.pending.drain(..) {
            if let Some(child) = &mut self.children[index] {
                child.location = sink.store(PageId::from_bytes(child.id), &plain)?;
            }
        }
        self.pending_bytes = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
