//! Which bytes of which backups lead into what is damaged.
//!
//! One map after another, so that each place of a volume is named. A page of which nothing was
//! damaged in an earlier map is not gone into again: backups of one volume share most of their
//! pages, so the cost is that of the pages that exist, and of the damaged paths of each backup.
//!
//! Memory: some 50 bytes for each page, about 100 for each inner page of one map, and 16 bytes for
//! each damaged range.

use super::damage::Damage;
use super::whole::Damaged;
use super::{Check, is_damage};
use crate::error::{Error, Result};
use crate::format::names::AttemptName;
use crate::map::{PageAt, PageKey, Visited, Visitor, VolumeMap, normalise, reach};
use crate::salvage::Salvage;
use crate::units::{ChunkNo, ChunkRef, Geometry, page_span};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Ranges that are kept of one backup.
const RANGES_MAX: usize = 1 << 16;

/// What is damaged of one backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostBackup {
    /// Which.
    pub name: AttemptName,
    /// Byte ranges of its volume that are lost, ascending; `None`: its manifest cannot be read, so
    /// all of it.
    pub ranges: Option<Vec<Range<u64>>>,
    /// Bytes of all ranges.
    pub bytes: u64,
    /// Bytes that are damaged, and stand elsewhere in the repository: a restore finds them, and a
    /// repair makes the backup whole.
    pub elsewhere_bytes: u64,
    /// There are more ranges than could be kept.
    pub more: bool,
}

impl Check {
    /// What is damaged, by backup: lost, or found elsewhere. To be called when all packs are
    /// settled.
    pub async fn lost(&self) -> Result<Vec<LostBackup>> {
        let whole = |name: &AttemptName| LostBackup {
            name: name.clone(),
            ranges: None,
            bytes: 0,
            elsewhere_bytes: 0,
            more: false,
        };
        let mut lost: Vec<LostBackup> = self.inventory.unreadable.iter().map(whole).collect();
        let damaged = self.damaged().await?;
        let salvage = Arc::new(Salvage::new(&self.repo));
        for of in damaged {
            let survey = Box::pin(self.survey(&of, &HashSet::new(), &salvage)).await?;
            let gone = survey.lost_chunks(&of.map);
            lost.push(named(of.manifest.name(), &of.chunks, &gone, of.map.geometry()));
        }
        Ok(lost)
    }

    /// The backups of which something cannot be read where their maps say.
    pub(super) async fn damaged(&self) -> Result<Vec<Damaged<'_>>> {
        let mut damaged = Vec::new();
        if self.damage.is_empty() {
            return Ok(damaged);
        }
        let (mut clean, mut tainted) = (Visited::default(), Visited::default());
        for (manifest, map) in self.inventory.backups.iter().zip(self.maps()?) {
            let mut tracer = Tracer {
                map: &map,
                damage: &self.damage,
                clean: &clean,
                tainted: &tainted,
                met: Vec::new(),
                inner: HashMap::new(),
                leaves: Vec::new(),
                chunks: Vec::new(),
            };
            reach(&self.repo, std::slice::from_ref(&map), self.limits, &mut tracer).await?;
            let Tracer { met, inner, leaves, chunks, .. } = tracer;
            let chunks = normalise(chunks, map.geometry().chunks());
            tainted.extend(leaves);
            for ((level, number), page) in inner {
                let span = page_span(map.fanout(), level);
                let first = number.saturating_mul(span);
                if touches(&chunks, &(first..first.saturating_add(span))) {
                    tainted.extend([page]);
                }
            }
            clean.extend(met.into_iter().filter(|page| !tainted.contains(page)));
            if !chunks.is_empty() {
                damaged.push(Damaged { manifest, map, chunks });
            }
        }
        Ok(damaged)
    }
}

fn touches(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let at = ranges.partition_point(|r| r.end <= range.start);
    ranges.get(at).is_some_and(|r| r.start < range.end)
}

fn named(
    name: AttemptName,
    damaged: &[Range<u64>],
    chunks: &[Range<u64>],
    geometry: &Geometry,
) -> LostBackup {
    let to_bytes = |r: &Range<u64>| {
        geometry.offset(ChunkNo(r.start))
            ..geometry.offset(ChunkNo(r.end)).min(geometry.size_bytes())
    };
    let sum = |chunks: &[Range<u64>]| -> u64 {
        chunks.iter().map(to_bytes).map(|r| r.end - r.start).sum()
    };
    let bytes = sum(chunks);
    let elsewhere_bytes = sum(damaged).saturating_sub(bytes);
    let ranges = chunks.iter().take(RANGES_MAX).map(to_bytes).collect();
    let more = chunks.len() > RANGES_MAX;
    LostBackup { name, ranges: Some(ranges), bytes, elsewhere_bytes, more }
}

struct Tracer<'a> {
    map: &'a VolumeMap,
    damage: &'a Damage,
    /// Pages of which nothing is damaged.
    clean: &'a Visited,
    /// Pages of which something is.
    tainted: &'a Visited,
    /// Pages of this map.
    met: Vec<PageKey>,
    inner: HashMap<(u8, u64), PageKey>,
    /// With damage.
    leaves: Vec<PageKey>,
    chunks: Vec<Range<u64>>,
}

impl Tracer<'_> {
    fn key(&self, at: &PageAt) -> PageKey {
        at.key(std::slice::from_ref(self.map))
    }

    fn lose(&mut self, chunks: Range<u64>) {
        match self.chunks.last_mut() {
            Some(last) if last.end == chunks.start => last.end = chunks.end,
            _ => self.chunks.push(chunks),
        }
    }
}

impl Visitor for Tracer<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        if self.damage.contains(&at.page.location) {
            self.lose(self.map.page_chunks(at.level, at.number));
            return Ok(false);
        }
        let key = self.key(at);
        if self.clean.contains(&key) && !self.tainted.contains(&key) {
            return Ok(false);
        }
        // a page may stand at several places of one map: each is gone into
        self.met.push(key);
        if at.level > 0 {
            self.inner.insert((at.level, at.number), key);
        }
        Ok(true)
    }

    fn chunk(&mut self, leaf: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        if self.damage.loses(chunk, self.map.geometry().len(ChunkNo(number))) {
            self.lose(number..number + 1);
            let key = self.key(leaf);
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
        self.leaves.push(self.key(at));
        Ok(())
    }
}
