//! Pages that are read before anybody asks for what they say.

use super::{Answer, MapReader, ReadLimits, Want, cache, children_wanted};
use crate::error::Result;
use crate::fetch::{EntryAddr, plan_reads};
use crate::limits::PAGE_PLAIN_BYTES_MAX;

/// Leaves of a map that are read at once, where they are no more bytes than that: what a line of 1
/// Gbit/s moves within a round trip of 16 ms.
const SMALL_MAP_BYTES: u64 = 2 << 20;

impl MapReader {
    /// Loads the pages above the leaves, from the root down, as many levels as the cache keeps; and
    /// the leaves, where all of them are less than a round of requests is worth. From then on a leaf
    /// costs one round, or none. For who reads here and there.
    pub async fn load_inner(&mut self) -> Result<()> {
        let all = 0..self.map.geometry().chunks();
        let page_bytes = cache::full_page_bytes(self.map.fanout());
        // the cache shrinks by half once it is full
        let mut room = self.limits.cache_bytes_max / 4 * 3;
        let mut wanted = self.root_want();
        for _ in 1..self.map.root().depth {
            let bytes = wanted.len().saturating_mul(page_bytes);
            if bytes > room {
                return Ok(());
            }
            room -= bytes;
            let loaded = self.pages(wanted).await?;
            wanted = children_wanted(&self.map, &loaded, std::slice::from_ref(&all));
        }
        if wanted.len().saturating_mul(page_bytes) <= room && self.is_little(&wanted) {
            self.read_ahead(&wanted).await?;
        }
        Ok(())
    }

    /// Whether pages are read in one round of requests, and in a few bytes, those between them too.
    fn is_little(&self, wanted: &[Want]) -> bool {
        let stored = wanted.iter().map(|want| u64::from(want.page.location.stored_len));
        if stored.sum::<u64>() > SMALL_MAP_BYTES {
            return false;
        }
        let addrs: Vec<_> =
            wanted.iter().map(|want| EntryAddr::from(&want.page.location)).collect();
        if addrs.iter().any(|addr| addr.check(PAGE_PLAIN_BYTES_MAX).is_err()) {
            return false;
        }
        let ReadLimits { gap_bytes, read_bytes_max, requests_max, .. } = self.limits;
        let reads = plan_reads(addrs, gap_bytes, read_bytes_max);
        let bytes: u64 = reads.iter().map(|read| u64::from(read.len)).sum();
        reads.len() <= requests_max && bytes <= SMALL_MAP_BYTES
    }

    /// Reads pages into the cache. One that cannot be had is left to whoever wants it.
    async fn read_ahead(&mut self, wanted: &[Want]) -> Result<()> {
        let mut found = vec![Answer::Waiting; wanted.len()];
        let mut missing = Vec::with_capacity(wanted.len());
        for (at, want) in wanted.iter().enumerate() {
            if self.cache.get(want.level, want.number).is_none() {
                missing.push((EntryAddr::from(&want.page.location), at));
            }
        }
        let read = self.fetch(wanted, missing, &mut found).await;
        self.bad.clear();
        for (want, answer) in wanted.iter().zip(&found) {
            if let Answer::Page(page) = answer {
                self.cache.put(want.level, want.number, page);
            }
        }
        read
    }
}
