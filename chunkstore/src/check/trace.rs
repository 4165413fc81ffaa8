//! Which bytes of which backups lead into what is damaged.
//!
//! One map after another, so that each place of a volume is named. A page of which nothing was
//! damaged in an earlier map is not gone into again: backups of one volume share most of their
//! pages, so the cost is that of the pages that exist, and of the damaged paths of each backup.
//!
//! Memory: two bits a page twice, about 100 bytes for each inner page of one map, and 16 bytes for
//! each damaged range.

use super::damage::Damage;
use super::{Check, is_damage};
use crate::error::{Error, Result};
use crate::format::names::AttemptName;
use crate::ids::PackId;
use crate::map::{LiveSet, PageAt, Visitor, VolumeMap, normalise, reach};
use crate::units::{ChunkNo, ChunkRef, Geometry, Location, page_span};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Ranges that are kept of one backup.
const RANGES_MAX: usize = 1 << 16;

/// What is lost of one backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostBackup {
    /// Which.
    pub name: AttemptName,
    /// Byte ranges of its volume, ascending; `None`: its manifest cannot be read, so all of it.
    pub ranges: Option<Vec<Range<u64>>>,
    /// Bytes of all ranges.
    pub bytes: u64,
    /// There are more ranges than could be kept.
    pub more: bool,
}

impl Check {
    /// What is lost, by backup. To be called when all packs are settled.
    pub async fn lost(&self) -> Result<Vec<LostBackup>> {
        let whole = |name: &AttemptName| LostBackup {
            name: name.clone(),
            ranges: None,
            bytes: 0,
            more: false,
        };
        let mut lost: Vec<LostBackup> = self.inventory.unreadable.iter().map(whole).collect();
        if self.damage.is_empty() {
            return Ok(lost);
        }
        let entry_chunks = self.repo.params().entry_chunks;
        let (mut clean, mut tainted) = (LiveSet::new(entry_chunks), HashSet::new());
        for (manifest, map) in self.inventory.backups.iter().zip(self.maps()?) {
            let mut tracer = Tracer {
                map: &map,
                damage: &self.damage,
                clean: &clean,
                tainted: &tainted,
                met: LiveSet::new(entry_chunks),
                inner: HashMap::new(),
                leaves: Vec::new(),
                chunks: Vec::new(),
            };
            reach(&self.repo, std::slice::from_ref(&map), self.limits, &mut tracer).await?;
            let Tracer { met, inner, leaves, chunks, .. } = tracer;
            let chunks = normalise(chunks, map.geometry().chunks());
            tainted.extend(leaves);
            for ((level, number), place) in inner {
                let span = page_span(map.fanout(), level);
                let first = number.saturating_mul(span);
                if touches(&chunks, &(first..first.saturating_add(span))) {
                    tainted.insert(place);
                }
            }
            for (pack, live) in met.packs() {
                for (entry, _) in live.iter().filter(|(e, _)| !tainted.contains(&(*pack, *e))) {
                    // only the place counts here
                    let (offset, stored_len) = (u32::MAX, 0);
                    clean.insert(&Location { pack: *pack, entry, offset, stored_len, index: 0 })?;
                }
            }
            if !chunks.is_empty() {
                lost.push(named(manifest.name(), &chunks, map.geometry()));
            }
        }
        Ok(lost)
    }
}

fn touches(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let at = ranges.partition_point(|r| r.end <= range.start);
    ranges.get(at).is_some_and(|r| r.start < range.end)
}

fn named(name: AttemptName, chunks: &[Range<u64>], geometry: &Geometry) -> LostBackup {
    let to_bytes = |r: &Range<u64>| {
        geometry.offset(ChunkNo(r.start))
            ..geometry.offset(ChunkNo(r.end)).min(geometry.size_bytes())
    };
    let bytes = chunks.iter().map(to_bytes).map(|r| r.end - r.start).sum();
    let ranges = chunks.iter().take(RANGES_MAX).map(to_bytes).collect();
    LostBackup { name, ranges: Some(ranges), bytes, more: chunks.len() > RANGES_MAX }
}

struct Tracer<'a> {
    map: &'a VolumeMap,
    damage: &'a Damage,
    /// Pages of which nothing is damaged.
    clean: &'a LiveSet,
    /// Pages of which something is.
    tainted: &'a HashSet<(PackId, u32)>,
    /// Pages of this map.
    met: LiveSet,
    inner: HashMap<(u8, u64), (PackId, u32)>,
    /// With damage.
    leaves: Vec<(PackId, u32)>,
    chunks: Vec<Range<u64>>,
}

impl Tracer<'_> {
    fn lose(&mut self, chunks: Range<u64>) {
        match self.chunks.last_mut() {
            Some(last) if last.end == chunks.start => last.end = chunks.end,
            _ => self.chunks.push(chunks),
        }
    }
}

impl Visitor for Tracer<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        let place = at.page.location;
        let key = (place.pack, place.entry);
        if self.damage.contains(&place) {
            self.lose(self.map.page_chunks(at.level, at.number));
            return Ok(false);
        }
        let known_clean = self.clean.contains(&place.pack, place.entry, 0);
        if known_clean && !self.tainted.contains(&key) {
            return Ok(false);
        }
        // a page may stand at several places of one map: each is gone into
        self.met.insert(&place)?;
        if at.level > 0 {
            self.inner.insert((at.level, at.number), key);
        }
        Ok(true)
    }

    fn chunk(&mut self, leaf: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        if self.damage.contains(&chunk.location) {
            self.lose(number..number + 1);
            let key = (leaf.page.location.pack, leaf.page.location.entry);
            if self.leaves.last() != Some(&key) {
                self.leaves.push(key);
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, at: &PageAt, error: Error) -> Result<()> {
        if !is_damage(&error) {
            return Err(error);
        }
        self.lose(self.map.page_chunks(at.level, at.number));
        self.leaves.push((at.page.location.pack, at.page.location.entry));
        Ok(())
    }
}
