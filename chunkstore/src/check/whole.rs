//! Backups that lost something which stands elsewhere in the repository, made whole.
//!
//! A damaged chunk or page may stand a second time in another pack. A restore finds it there as
//! long as that pack lives; nothing but the backups that refer to it keeps it. So the backup gets
//! another attempt of the same id: the same manifest, with a map whose pages have the same ids and
//! lead to the good places. That is a writer as any other, whose parent is the damaged attempt, and
//! whose packs of other backups are confirmed before the commit. Then the damaged attempt is
//! forgotten. Of several committed attempts of one backup the highest counts (`docs/format.md`,
//! section 9), so nobody sees two backups if this stops in between, and the next repair goes on.
//!
//! Memory: as of [`Salvage`], some windows of the map, and 16 bytes for each damaged range.

use super::Check;
use super::repair::Repaired;
use crate::error::{Error, ErrorKind, Result};
use crate::format::attachment::Attachment;
use crate::format::manifest::{Manifest, MapRoot};
use crate::ids::{ChunkId, PackId};
use crate::map::{
    Inherit, LostPage, MapBuilder, MapReader, MapWalk, PageSet, PageSink, VolumeMap, normalise,
};
use crate::protocol::{Commit, LeaseOptions, Writer};
use crate::salvage::Salvage;
use crate::seal::Compression;
use crate::units::{ChunkNo, ChunkRef, Location};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Leaves of a map that are held at a time.
const LEAVES_AT_ONCE: u64 = 256;
/// Damaged chunks of one backup that are looked for; more count as lost until the next check.
const CHUNKS_MAX: usize = 1 << 18;
/// Packs of pages that are written.
const PACK_BYTES: u32 = 16 << 20;
const COMPRESSION: Compression = Compression::Zstd(3);
/// Times that one backup is tried: each time a collection was faster.
const TRIES: u32 = 3;

/// A backup of which something is damaged.
pub(super) struct Damaged<'a> {
    pub(super) manifest: &'a Manifest,
    /// One at least.
    pub(super) maps: Vec<DamagedMap<'a>>,
}

/// One of its maps.
pub(super) struct DamagedMap<'a> {
    /// Whose it is; `None`: the volume's.
    pub(super) attachment: Option<&'a Attachment>,
    pub(super) map: VolumeMap,
    /// Chunks that cannot be read where the map says; ascending, merged.
    pub(super) chunks: Vec<Range<u64>>,
}

/// What is known of the damage of one map.
#[derive(Default)]
pub(super) struct Survey {
    /// Chunks of pages that stand nowhere else; ascending, merged.
    pub(super) gone: Vec<Range<u64>>,
    /// Chunks that were to be looked for and are found nowhere.
    pub(super) lost: Vec<u64>,
    /// What else the damaged pages refer to, by pack.
    packs: BTreeSet<PackId>,
    /// Chunks or pages were found elsewhere.
    found: bool,
}

impl Survey {
    /// All that is lost; ascending, merged.
    pub(super) fn lost_chunks(&self, map: &VolumeMap) -> Vec<Range<u64>> {
        let each = self.lost.iter().map(|chunk| *chunk..chunk.saturating_add(1));
        normalise(self.gone.iter().cloned().chain(each), map.geometry().chunks())
    }
}

/// Pages of a map around some ranges, as much at a time as memory is for.
struct Windows<'a> {
    reader: MapReader,
    rest: &'a [Range<u64>],
    /// What is left of a long range.
    long: Option<Range<u64>>,
}

impl Windows<'_> {
    async fn next(&mut self) -> Result<Option<(PageSet, Vec<Range<u64>>)>> {
        let fanout = u64::from(self.reader.map().fanout());
        let leaves = |r: &Range<u64>| (r.end - r.start).div_ceil(fanout) + 1;
        loop {
            if let Some(range) = self.long.take() {
                let at_once = usize::try_from(LEAVES_AT_ONCE).unwrap_or(usize::MAX);
                let mut walk = MapWalk::new(&mut self.reader, range.clone(), at_once);
                let Some(window) = walk.next().await? else { continue };
                let left = window.chunks.end..range.end;
                self.long = Some(left).filter(|left| !left.is_empty());
                return Ok(Some((window.pages, vec![window.chunks])));
            }
            let Some(first) = self.rest.first() else { return Ok(None) };
            let mut sum = 0;
            let fits = |r: &&Range<u64>| {
                sum += leaves(r);
                sum <= LEAVES_AT_ONCE
            };
            let count = self.rest.iter().take_while(fits).count();
            if count == 0 {
                self.long = Some(first.clone());
                self.rest = &self.rest[1..];
                continue;
            }
            let (group, behind) = self.rest.split_at(count);
            self.rest = behind;
            let pages = self.reader.load(group).await?;
            return Ok(Some((pages, group.to_vec())));
        }
    }
}

impl Check {
    fn windows<'r>(
        &self,
        map: &VolumeMap,
        ranges: &'r [Range<u64>],
        salvage: &Arc<Salvage>,
    ) -> Result<Windows<'r>> {
        let mut reader = MapReader::with_limits(Arc::clone(&self.repo), map.clone(), self.limits)?;
        reader.salvage_with(salvage);
        reader.tolerate_damage();
        Ok(Windows { reader, rest: ranges, long: None })
    }

    /// Whether a reference does not lead to what it names; with the length of the chunk.
    fn loses(&self, map: &VolumeMap, number: ChunkNo, at: &ChunkRef) -> bool {
        self.damage.loses(at, map.geometry().len(number))
    }

    /// Looks for all that is damaged of a map, and for what damaged pages refer to in packs that
    /// are not to be relied upon.
    pub(super) async fn survey(
        &self,
        of: &DamagedMap<'_>,
        unreliable: &HashSet<PackId>,
        salvage: &Arc<Salvage>,
    ) -> Result<Survey> {
        let pages_before = salvage.salvaged().pages;
        let mut survey = Survey::default();
        let mut wanted: Vec<(u64, ChunkId, Location)> = Vec::new();
        let mut windows = self.windows(&of.map, &of.chunks, salvage)?;
        while let Some((pages, ranges)) = windows.next().await? {
            for range in ranges {
                for (number, at) in pages.nonzero(range)? {
                    let bad = self.loses(&of.map, number, &at);
                    if !bad && !unreliable.contains(&at.location.pack) {
                        survey.packs.insert(at.location.pack);
                    } else if wanted.len() < CHUNKS_MAX && !self.damage.has_another_len(&at) {
                        wanted.push((number.0, at.id, at.location));
                    } else {
                        survey.lost.push(number.0);
                    }
                }
            }
            let lost = windows.reader.take_lost().into_iter().map(|LostPage { chunks, .. }| chunks);
            survey.gone.extend(lost);
        }
        survey.gone = normalise(std::mem::take(&mut survey.gone), of.map.geometry().chunks());
        let lost: Vec<_> = wanted.iter().map(|(_, id, at)| (*id, *at)).collect();
        if !lost.is_empty() {
            Box::pin(salvage.find_chunks(&lost)).await?;
        }
        survey.found = salvage.salvaged().pages > pages_before;
        for (number, id, at) in wanted {
            match salvage.place(&id).filter(|place| *place != at) {
                Some(_) => survey.found = true,
                None => survey.lost.push(number),
            }
        }
        survey.lost.sort_unstable();
        Ok(survey)
    }

    /// Makes every backup whole of which something was found elsewhere, and forgets the attempts
    /// that are replaced. True: there are some, and the check has to be made
    /// [`again`](Self::again). Needs a Tokio runtime with a timer.
    pub async fn make_whole(
        &mut self,
        lease: &LeaseOptions,
        repaired: &mut Repaired,
    ) -> Result<bool> {
        let superseded = std::mem::take(&mut self.inventory.superseded);
        let damaged = self.damaged().await?;
        for name in superseded {
            let same = |of: &Damaged<'_>| of.manifest.name().is_of(&name);
            // it may have what the one in its place has lost
            if damaged.iter().any(same) {
                continue;
            }
            match self.repo.forget(&name, &lease.tool).await {
                // another check has forgotten it, and a collection removed it
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                forgotten => forgotten?,
            }
            repaired.superseded += 1;
        }
        if damaged.is_empty() {
            return Ok(false);
        }
        let condemned = self.repo.condemned_packs().await?;
        let salvage = Arc::new(Salvage::avoiding(&self.repo, condemned));
        let (mut whole, mut notes) = (0, Vec::new());
        for of in &damaged {
            // nothing is written, not even a lease, where nothing can be done
            let surveys = Box::pin(self.surveys(of, &HashSet::new(), &salvage)).await?;
            if !surveys.iter().any(|survey| survey.found) {
                continue;
            }
            match Box::pin(self.mend(of, lease, &salvage)).await? {
                Ok(()) => whole += 1,
                Err(why) => notes.push(format!("{} was not made whole: {why}", of.manifest.name())),
            }
        }
        drop(damaged);
        notes.into_iter().for_each(|note| self.findings.note(note));
        repaired.backups += whole;
        Ok(whole > 0)
    }

    /// [`survey`](Self::survey) of each damaged map of a backup.
    async fn surveys(
        &self,
        of: &Damaged<'_>,
        unreliable: &HashSet<PackId>,
        salvage: &Arc<Salvage>,
    ) -> Result<Vec<Survey>> {
        let mut surveys = Vec::with_capacity(of.maps.len());
        for map in &of.maps {
            surveys.push(self.survey(map, unreliable, salvage).await?);
        }
        Ok(surveys)
    }

    /// One backup, under a writer's lease. The inner error is a reason for which it is left as it
    /// is.
    async fn mend(
        &self,
        of: &Damaged<'_>,
        lease: &LeaseOptions,
        salvage: &Arc<Salvage>,
    ) -> Result<Result<(), String>> {
        let begun = Writer::begin_again(&self.repo, of.manifest, lease.clone()).await?;
        let Some(mut writer) = begun else {
            return Ok(Err("it was forgotten, or made whole by another check, meanwhile".into()));
        };
        let beat = writer.heartbeat();
        let work = Box::pin(self.under_lease(of, &mut writer, Arc::clone(salvage)));
        let done = tokio::select! {
            done = work => done,
            // it ends with the writer, so never before the work
            () = beat => Err(Error::new(ErrorKind::Bug, "keep a lease alive", "the heartbeat ended")),
        };
        for warning in writer.finish().await {
            tracing::warn!("{warning}");
        }
        let done = done?;
        if done.is_ok() {
            match self.repo.forget(&of.manifest.name(), &lease.tool).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                forgotten => forgotten?,
            }
        }
        Ok(done)
    }

    async fn under_lease(
        &self,
        of: &Damaged<'_>,
        writer: &mut Writer,
        mut salvage: Arc<Salvage>,
    ) -> Result<Result<(), String>> {
        let mut missing: HashSet<PackId> = HashSet::new();
        for _ in 0..TRIES {
            let mut surveys = self.surveys(of, &missing, &salvage).await?;
            // what damaged pages refer to was kept by other backups, if at all
            let packs: BTreeSet<PackId> =
                surveys.iter().flat_map(|survey| &survey.packs).copied().collect();
            let packs: Vec<PackId> = packs.into_iter().collect();
            let unreliable = writer.confirm_packs(&packs).await?;
            if !unreliable.is_empty() {
                missing.extend(unreliable);
                surveys = self.surveys(of, &missing, &salvage).await?;
            }
            if !surveys.iter().any(|survey| survey.found) {
                return Ok(Err("what was found elsewhere is being collected".into()));
            }
            let (mut manifest, mut own) = (of.manifest.clone(), Vec::new());
            let mut reused = BTreeSet::new();
            for (damaged, survey) in of.maps.iter().zip(&surveys) {
                let packs = (&mut own, &mut reused);
                let map = self.rebuild(damaged, survey, &missing, &salvage, packs).await?;
                let root = |map: &MapRoot| map.root.map(|root| root.id);
                if root(&map) != root(damaged.map.root()) {
                    let context = format!("make backup {} whole", of.manifest.name());
                    let what = format!("the map of {} has another id now", damaged.map.name());
                    return Err(Error::new(ErrorKind::Bug, context, what));
                }
                match damaged.attachment {
                    None => manifest.map = map,
                    Some(Attachment { name, .. }) => {
                        let same = manifest.attachments.iter_mut().find(|a| a.name == *name);
                        same.into_iter().for_each(|attachment| attachment.map = map);
                    }
                }
            }
            let reused: Vec<PackId> = reused.into_iter().collect();
            match writer.commit(manifest, &own, &reused).await? {
                Commit::Done(_) | Commit::AlreadyDone(_) => return Ok(Ok(())),
                Commit::StoreAgain { missing: gone } => missing.extend(gone),
                // only under the damaged attempt as its parent is the rest of the map kept
                Commit::Restart { .. } if writer.parent().is_none() => {
                    return Ok(Err("it was forgotten meanwhile".into()));
                }
                Commit::Restart { reason } => tracing::info!("made whole again: {reason}"),
            }
            let avoid = writer.condemned().iter().chain(&missing).copied().collect();
            salvage = Arc::new(Salvage::avoiding(&self.repo, avoid));
        }
        Ok(Err("collections were faster, again and again".into()))
    }

    /// The map with good places. Notes its packs, and the packs of others that it leads to anew.
    async fn rebuild(
        &self,
        of: &DamagedMap<'_>,
        survey: &Survey,
        missing: &HashSet<PackId>,
        salvage: &Arc<Salvage>,
        (own, reused): (&mut Vec<PackId>, &mut BTreeSet<PackId>),
    ) -> Result<MapRoot> {
        let (keys, map) = (self.repo.keys(), &of.map);
        let ranges = without(&of.chunks, &survey.gone);
        let (fanout, geometry) = (map.fanout(), *map.geometry());
        let inherit = (Inherit::Parent, Some(map.clone()));
        let mut builder =
            MapBuilder::new(Arc::clone(keys), fanout, geometry, inherit.0, inherit.1)?;
        builder.renew(ranges.clone());
        let mut sink = PageSink::new(keys, *self.repo.id(), COMPRESSION, PACK_BYTES)?;
        let mut windows = self.windows(map, &ranges, salvage)?;
        while let Some((pages, of_window)) = windows.next().await? {
            if let Some(LostPage { error: Some(e), .. }) = windows.reader.take_lost().pop() {
                return Err(e.within("make a backup whole"));
            }
            builder.provide(&pages)?;
            for range in of_window {
                let mut next = range.start;
                for (number, at) in pages.nonzero(range.clone())? {
                    builder.set_zero(&mut sink, next..number.0)?;
                    let bad = self.loses(map, number, &at) || missing.contains(&at.location.pack);
                    let place = salvage.place(&at.id).filter(|place| bad && *place != at.location);
                    let location = place.unwrap_or(at.location);
                    if place.is_some() || !bad {
                        reused.insert(location.pack);
                    }
                    builder.set(&mut sink, number, Some(ChunkRef { location, ..at }))?;
                    next = number.0 + 1;
                }
                builder.set_zero(&mut sink, next..range.end)?;
            }
            self.put_finished(&mut sink, own).await?;
        }
        let root = builder.finish(&mut sink)?;
        sink.close()?;
        self.put_finished(&mut sink, own).await?;
        Ok(root)
    }

    async fn put_finished(&self, sink: &mut PageSink, own: &mut Vec<PackId>) -> Result<()> {
        while let Some(pack) = sink.take_finished() {
            self.repo.put_pack(&pack).await?;
            own.push(pack.pack);
        }
        Ok(())
    }
}

/// Ascending ranges without others.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let mut at = range.start;
        let first = others.partition_point(|other| other.end <= range.start);
        for other in others[first..].iter().take_while(|other| other.start < range.end) {
            left.push(at..other.start.max(at));
            at = other.end.max(at);
        }
        left.push(at..range.end.max(at));
    }
    left.retain(|range| !range.is_empty());
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_out() {
        let left = without(&[0..10, 20..30, 40..50], &[3..5, 8..22, 25..26, 40..50]);
        assert_eq!(left, [0..3, 5..8, 22..25, 26..30]);
        assert_eq!(without(&[1..2, 5..6], &[]), [1..2, 5..6]);
    }
}
