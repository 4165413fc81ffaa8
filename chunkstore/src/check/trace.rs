//! Which bytes of which backups lead into what is damaged.
//!
//! One map after another, so that each place of a volume is named. A page of which nothing was
//! damaged in an earlier map is not gone into again: backups of one volume share most of their
//! pages, so the cost is that of the pages that exist, and of the damaged paths of each backup.
//!
//! Memory: some 50 bytes for each page, about 100 for each inner page of one map, and 16 bytes for
//! each damaged range.

use super::damage::Damage;
use super::whole::{Damaged, DamagedMap};
use super::{Check, is_damage};
use crate::error::{Error, Result};
use crate::format::attachment::Attachment;
use crate::format::manifest::Manifest;
use crate::format::names::AttemptName;
use crate::ids::AttachmentName;
use crate::map::{PageAt, PageKey, Visited, Visitor, VolumeMap, normalise, reach};
use crate::salvage::Salvage;
use crate::units::{ChunkNo, ChunkRef, page_span};
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
    /// Its attachments of which something is damaged. The figures above are of the volume alone.
    pub attachments: Vec<LostAttachment>,
}

/// What is damaged of one attachment of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostAttachment {
    /// Which.
    pub name: AttachmentName,
    /// Bytes of it that are lost.
    pub bytes: u64,
    /// Bytes of it that are damaged, and stand elsewhere in the repository.
    pub elsewhere_bytes: u64,
}

impl LostBackup {
    fn of(name: AttemptName, ranges: Option<Vec<Range<u64>>>) -> Self {
        let attachments = Vec::new();
        Self { name, ranges, bytes: 0, elsewhere_bytes: 0, more: false, attachments }
    }

    /// Whether all that is damaged of it stands elsewhere.
    pub fn lost_nothing(&self) -> bool {
        self.ranges.is_some() && self.bytes == 0 && self.attachments.iter().all(|a| a.bytes == 0)
    }

    /// Bytes that are damaged, and stand elsewhere: of the volume and of attachments.
    pub fn all_elsewhere_bytes(&self) -> u64 {
        self.elsewhere_bytes + self.attachments.iter().map(|a| a.elsewhere_bytes).sum::<u64>()
    }
}

impl Check {
    /// What is damaged, by backup: lost, or found elsewhere. To be called when all packs are
    /// settled.
    pub async fn lost(&self) -> Result<Vec<LostBackup>> {
        let whole = |name: &AttemptName| LostBackup::of(name.clone(), None);
        let mut lost: Vec<LostBackup> = self.inventory.unreadable.iter().map(whole).collect();
        let damaged = self.damaged().await?;
        let salvage = Arc::new(Salvage::new(&self.repo));
        for of in damaged {
            let mut backup = LostBackup::of(of.manifest.name(), Some(Vec::new()));
            for map in &of.maps {
                let survey = Box::pin(self.survey(map, &HashSet::new(), &salvage)).await?;
                backup.add(map, &survey.lost_chunks(&map.map));
            }
            lost.push(backup);
        }
        Ok(lost)
    }

    /// The maps of a backup, and whose they are: the volume's, if of no attachment.
    fn maps_of<'m>(
        &self,
        manifest: &'m Manifest,
    ) -> Result<Vec<(Option<&'m Attachment>, VolumeMap)>> {
        let mut maps = vec![(None, VolumeMap::of(&self.repo, manifest)?)];
        for attachment in &manifest.attachments {
            let map = VolumeMap::of_attachment(&self.repo, manifest, attachment)?;
            maps.extend(map.map(|map| (Some(attachment), map)));
        }
        Ok(maps)
    }

    /// The backups of which something cannot be read where their maps say.
    pub(super) async fn damaged(&self) -> Result<Vec<Damaged<'_>>> {
        let mut damaged = Vec::new();
        if self.damage.is_empty() {
            return Ok(damaged);
        }
        let (mut clean, mut tainted) = (Visited::default(), Visited::default());
        for manifest in &self.inventory.backups {
            let mut maps = Vec::new();
            for (attachment, map) in self.maps_of(manifest)? {
                let chunks = self.damaged_of(&map, &mut clean, &mut tainted).await?;
                if !chunks.is_empty() {
                    maps.push(DamagedMap { attachment, map, chunks });
                }
            }
            if !maps.is_empty() {
                damaged.push(Damaged { manifest, maps });
            }
        }
        Ok(damaged)
    }

    /// The chunks of a map that cannot be read where it says: ascending, merged.
    async fn damaged_of(
        &self,
        map: &VolumeMap,
        clean: &mut Visited,
        tainted: &mut Visited,
    ) -> Result<Vec<Range<u64>>> {
        let mut tracer = Tracer {
            map,
            damage: &self.damage,
            clean,
            tainted,
            met: Vec::new(),
            inner: HashMap::new(),
            leaves: Vec::new(),
            chunks: Vec::new(),
        };
        reach(&self.repo, std::slice::from_ref(map), self.limits, &mut tracer).await?;
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
        Ok(chunks)
    }
}

fn touches(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let at = ranges.partition_point(|r| r.end <= range.start);
    ranges.get(at).is_some_and(|r| r.start < range.end)
}

impl LostBackup {
    /// Adds a damaged map of the backup, of which these chunks are lost.
    fn add(&mut self, of: &DamagedMap<'_>, lost: &[Range<u64>]) {
        let geometry = of.map.geometry();
        let to_bytes = |r: &Range<u64>| {
            geometry.offset(ChunkNo(r.start))
                ..geometry.offset(ChunkNo(r.end)).min(geometry.size_bytes())
        };
        let sum = |chunks: &[Range<u64>]| -> u64 {
            chunks.iter().map(to_bytes).map(|r| r.end - r.start).sum()
        };
        let bytes = sum(lost);
        let elsewhere_bytes = sum(&of.chunks).saturating_sub(bytes);
        if let Some(Attachment { name, .. }) = of.attachment {
            let name = name.clone();
            self.attachments.push(LostAttachment { name, bytes, elsewhere_bytes });
            return;
        }
        self.ranges = Some(lost.iter().take(RANGES_MAX).map(to_bytes).collect());
        self.more = lost.len() > RANGES_MAX;
        (self.bytes, self.elsewhere_bytes) = (bytes, elsewhere_bytes);
    }
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
