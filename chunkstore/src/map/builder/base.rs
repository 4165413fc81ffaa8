//! The parent's tree as the builder sees it: the pages that were provided, on top of what the root
//! says.
//!
//! A volume that grew may have a deeper map than its parent. The parent's tree is then seen through
//! pages above its root that exist only in name: page 0 of each such level, whose only child is
//! child 0.

use crate::error::{Error, ErrorKind, Result};
use crate::format::page::{Child, Page};
use crate::ids::PageId;
use crate::map::pages::PageSet;
use crate::map::volume::VolumeMap;
use crate::units::{PageRef, page_span};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Base {
    map: Option<VolumeMap>,
    /// The root page's reference as a child, to hand it out as a slice.
    root: [Option<Child>; 1],
    levels: Vec<BTreeMap<u64, Arc<Page>>>,
    /// What was provided last: to provide it again is free, so a caller may do so with every
    /// update.
    latest: Option<PageSet>,
}

/// A page of the parent and the reference that leads to it.
#[derive(Debug)]
pub(super) struct BasePage {
    pub(super) reference: PageRef,
    pub(super) page: Arc<Page>,
}

impl Base {
    pub(super) fn new(map: Option<VolumeMap>) -> Self {
        let root = map.as_ref().and_then(|m| m.root().root);
        let depth = map.as_ref().map_or(0, |m| m.root().depth);
        Self {
            map,
            root: [root.map(Child::from)],
            levels: (0..depth).map(|_| BTreeMap::new()).collect(),
            latest: None,
        }
    }

    /// Chunks of the parent.
    pub(super) fn chunks(&self) -> Option<u64> {
        self.map.as_ref().map(|m| m.geometry().chunks())
    }

    /// Levels of the parent's map.
    pub(super) fn depth(&self) -> u8 {
        self.map.as_ref().map_or(0, |m| m.root().depth)
    }

    /// The parent's root, if it has just as many chunks.
    pub(super) fn root_of(&self, chunks: u64) -> Option<Option<PageRef>> {
        self.map.as_ref().filter(|m| m.geometry().chunks() == chunks).map(|m| m.root().root)
    }

    pub(super) fn provide(&mut self, pages: &PageSet, cursor: u64) -> Result<()> {
        if self.latest.as_ref().is_some_and(|latest| latest.is(pages)) {
            return Ok(());
        }
        let ours = self.map.as_ref().filter(|m| m.root() == pages.map().root());
        let Some(map) = ours else {
            return Err(Error::new(
                ErrorKind::Bug,
                format!("take pages of the map of {}", pages.map().name()),
                "it is not the parent's",
            ));
        };
        for ((level, mine), given) in (0u8..).zip(&mut self.levels).zip(pages.levels()) {
            let first = cursor / page_span(map.fanout(), level);
            *mine = mine.split_off(&first);
            mine.extend(given.range(first..).map(|(number, page)| (*number, Arc::clone(page))));
        }
        self.latest = Some(pages.clone());
        Ok(())
    }

    /// `count` children of a page from `index` on; fewer where the rest is Zero.
    pub(super) fn children(
        &self,
        level: u8,
        page: u64,
        index: usize,
        count: u64,
    ) -> Result<&[Option<Child>]> {
        let all: &[Option<Child>] = if level >= self.depth() {
            // of the pages in name only, the one right above the root has a child
            if level == self.depth() && page == 0 { &self.root } else { &[] }
        } else {
            match self.levels[usize::from(level)].get(&page) {
                Some(page) => page.children(),
                None if self.child(level, page)?.is_none() => &[],
                None => return Err(self.not_provided(level, page)),
            }
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let end = index.saturating_add(count).min(all.len());
        Ok(all.get(index..end).unwrap_or(&[]))
    }

    /// The page, if it was provided, with its reference; it is not needed any more.
    pub(super) fn take_page(&mut self, level: u8, page: u64) -> Option<BasePage> {
        let taken = self.levels.get_mut(usize::from(level))?.remove(&page)?;
        let child = self.child(level, page).ok().flatten()?;
        let reference = PageRef { id: PageId::from_bytes(child.id), location: child.location };
        Some(BasePage { reference, page: taken })
    }

    /// What the parent's tree says of a page within it: `None` is Zero.
    fn child(&self, level: u8, page: u64) -> Result<Option<Child>> {
        let Some(map) = &self.map else { return Ok(None) };
        if level + 1 == map.root().depth {
            return Ok(if page == 0 { self.root[0] } else { None });
        }
        let fanout = u64::from(map.fanout());
        let above = page / fanout;
        let Some(holder) = self.levels[usize::from(level) + 1].get(&above) else {
            return match self.child(level + 1, above)? {
                None => Ok(None),
                Some(_) => Err(self.not_provided(level + 1, above)),
            };
        };
        let index = usize::try_from(page % fanout).unwrap_or(usize::MAX);
        Ok(holder.child(index).copied())
    }

    /// Pages that are held.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.levels.iter().map(BTreeMap::len).sum()
    }

    fn not_provided(&self, level: u8, page: u64) -> Error {
        let place = self.map.as_ref().map_or_else(String::new, |m| m.place(level, page));
        Error::new(ErrorKind::Bug, format!("inherit from {place}"), "the page was not provided")
    }
}
