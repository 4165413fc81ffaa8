//! Decoded pages that a reader keeps between loads, within a bound. Pages near the root serve most
//! paths, so leaves go first.

use crate::format::page::{Child, Page};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct PageCache {
    pages: HashMap<(u8, u64), Cached>,
    bytes: usize,
    bytes_max: usize,
    clock: u64,
}

#[derive(Debug)]
struct Cached {
    page: Arc<Page>,
    used: u64,
}

impl PageCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { pages: HashMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    pub(super) fn get(&mut self, level: u8, number: u64) -> Option<Arc<Page>> {
        self.clock += 1;
        let cached = self.pages.get_mut(&(level, number))?;
        cached.used = self.clock;
        Some(Arc::clone(&cached.page))
    }

    pub(super) fn put(&mut self, level: u8, number: u64, page: &Arc<Page>) {
        self.clock += 1;
        let cached = Cached { page: Arc::clone(page), used: self.clock };
        self.bytes += bytes_of(page);
        if let Some(old) = self.pages.insert((level, number), cached) {
            self.bytes -= bytes_of(&old.page);
        }
        if self.bytes > self.bytes_max {
            self.shrink();
        }
    }

    /// Down to half of the bound, so that the sort pays for many pages: leaves first, then what was
    /// not used for longest.
    fn shrink(&mut self) {
        let mut order: Vec<_> = self
            .pages
            .iter()
            .map(|(&(level, number), c)| (level.min(1), c.used, (level, number)))
            .collect();
        order.sort_unstable_by_key(|&(level, used, _)| Reverse((level, used)));
        while self.bytes > self.bytes_max / 2 {
            let Some((_, _, place)) = order.pop() else { break };
            if let Some(old) = self.pages.remove(&place) {
                self.bytes -= bytes_of(&old.page);
            }
        }
    }
}

fn bytes_of(page: &Page) -> usize {
    page.memory_bytes() + size_of::<((u8, u64), Cached)>()
}

/// A page with as many children as may be, in the cache.
pub(super) fn full_page_bytes(fanout: u16) -> usize {
    let children = usize::from(fanout) * size_of::<Option<Child>>();
    size_of::<Page>() + children + size_of::<((u8, u64), Cached)>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PackId;
    use crate::units::Location;

    #[test]
    fn it_stays_within_its_bound_and_keeps_inner_pages() {
        let location = Location {
            pack: PackId::from_bytes([1; 32]),
            entry: 0,
            offset: 64,
            stored_len: 30,
            index: 0,
        };
        let page =
            |level| Arc::new(Page::new(level, vec![Some(Child { id: [0; 32], location }); 16]));
        let one = bytes_of(&page(0));
        let mut cache = PageCache::new(one * 20);
        for number in 0..10 {
            cache.put(1, number, &page(1));
            for leaf in 0..16 {
                cache.put(0, number * 16 + leaf, &page(0));
                assert!(cache.bytes <= one * 20);
            }
        }
        assert!((0..10).all(|number| cache.get(1, number).is_some()));
        cache.put(1, 3, &page(1));
        assert_eq!(cache.bytes, cache.pages.values().map(|c| bytes_of(&c.page)).sum::<usize>());
        let mut none = PageCache::new(0);
        none.put(0, 0, &page(0));
        assert!(none.get(0, 0).is_none() && none.bytes == 0);
    }
}
