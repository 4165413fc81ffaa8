//! Loaded pages, and which chunks they answer for.

use crate::error::{Error, ErrorKind, Result};
use crate::format::page::Page;
use crate::map::volume::VolumeMap;
use crate::units::{ChunkNo, ChunkRef};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pages on the paths to some chunks of one map. Cheap to clone and to hand to threads; it never
/// changes once loaded.
///
/// A chunk that it does not cover is an error: absence means Zero only where the pages above say
/// so.
#[derive(Debug, Clone)]
pub struct PageSet {
    map: VolumeMap,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Chunk ranges, ascending and merged, for which all pages that exist are here.
    covered: Vec<Range<u64>>,
    /// By level, page number → page.
    levels: Vec<BTreeMap<u64, Arc<Page>>>,
}

impl PageSet {
    pub(crate) fn new(
        map: VolumeMap,
        covered: Vec<Range<u64>>,
        levels: Vec<BTreeMap<u64, Arc<Page>>>,
    ) -> Self {
        Self { map, inner: Arc::new(Inner { covered, levels }) }
    }

    /// The map that the pages are of.
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// Chunk ranges that it answers for, ascending.
    pub fn covered(&self) -> &[Range<u64>] {
        &self.inner.covered
    }

    /// What the map says of a chunk; `None` is Zero, or behind the volume's end. A chunk of the
    /// volume that is not covered is our own mistake.
    pub fn chunk(&self, chunk: ChunkNo) -> Result<Option<ChunkRef>> {
        if chunk.0 >= self.map.geometry().chunks() {
            return Ok(None);
        }
        self.check(&(chunk.0..chunk.0.saturating_add(1)))?;
        let fanout = u64::from(self.map.fanout());
        let Some(leaf) = self.page(0, chunk.0 / fanout) else { return Ok(None) };
        Ok(child_index(chunk.0, fanout).and_then(|i| leaf.chunk_ref(i)))
    }

    /// A loaded page. Absent: it is Zero, or lies outside of what is covered.
    pub fn page(&self, level: u8, page: u64) -> Option<&Arc<Page>> {
        self.inner.levels.get(usize::from(level))?.get(&page)
    }

    /// The non-zero chunks of a range, ascending; Zero subtrees cost nothing.
    pub fn nonzero(
        &self,
        chunks: Range<u64>,
    ) -> Result<impl Iterator<Item = (ChunkNo, ChunkRef)> + '_> {
        self.check(&chunks)?;
        let fanout = u64::from(self.map.fanout());
        let leaves = chunks.start / fanout..chunks.end.div_ceil(fanout).max(chunks.start / fanout);
        let pages = self.inner.levels.first().map(|leaf_level| leaf_level.range(leaves));
        Ok(pages.into_iter().flatten().flat_map(move |(&number, page)| {
            let first = number * fanout;
            let from = chunks.start.saturating_sub(first);
            let to = (chunks.end - first).min(page.children().len() as u64);
            (from..to).filter_map(move |i| {
                let chunk = page.chunk_ref(usize::try_from(i).ok()?)?;
                Some((ChunkNo(first + i), chunk))
            })
        }))
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.inner.levels.iter().map(BTreeMap::len).sum()
    }

    /// Whether the other one is a clone of this.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn levels(&self) -> &[BTreeMap<u64, Arc<Page>>] {
        &self.inner.levels
    }

    fn check(&self, chunks: &Range<u64>) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let covered = &self.inner.covered;
        let at = covered.partition_point(|r| r.end <= chunks.start);
        if covered.get(at).is_some_and(|r| r.start <= chunks.start && chunks.end <= r.end) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Bug,
            format!(
                "look up chunks {}..{} in the map of {}",
                chunks.start,
                chunks.end,
                self.map.name()
            ),
            "their pages were not loaded",
        ))
    }
}

/// Place of a chunk among the children of its leaf.
fn child_index(chunk: u64, fanout: u64) -> Option<usize> {
    usize::try_from(chunk % fanout).ok()
}
