//! Dedup segments that name packs which are gone or about to go: replaced by segments of what is
//! left of them. What was copied out of a rewritten pack is found at its new place from then on.
//! Where there are many of about one size they are put together, so that a backup meets few, each
//! as large as is read at once.
//!
//! Segments only save work, and whoever reuses a pack through one looks it up; so nothing here can
//! lose data. What is left of several segments is put together. The new ones are stored before the
//! old ones go; a crash in between leaves some chunks in two segments, which harms nobody. A
//! segment that cannot be read is left alone, with a warning.
//!
//! Memory: the records of one new segment, twice, and one step of an old one.

use super::Collected;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gc::CondemnedList;
use crate::format::names::segment_key;
use crate::format::segment::{SegmentIndex, SegmentLayout, SegmentOpener, SegmentRecord};
use crate::format::stub::Stub;
use crate::ids::{PackId, SegmentId};
use crate::limits::SEGMENT_TRAILER_BYTES;
use crate::repository::{Repository, SegmentInfo};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Records of a new segment: 20 MiB in memory.
const RECORDS_MAX: usize = 1 << 18;
/// A segment of more than this is as good as a full one.
const SMALL_BYTES_MAX: u64 = RECORDS_MAX as u64 * 50 / 2;
/// Sizes are alike up to this factor, and so many of alike are merged: a record is rewritten at
/// most a few times in its life.
const ALIKE: u64 = 8;
/// The smallest are all alike.
const ALIKE_BYTES_MIN: u64 = 64 << 10;
/// What is read of the end at first: index sections of small segments are in it.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of blocks read at a time.
const STEP_BYTES: u64 = 4 << 20;

/// What becomes of the records of a pack.
enum Fate<'a> {
    Stays,
    /// It was rewritten.
    Moves(&'a Stub),
    Goes,
}

impl Fate<'_> {
    fn of(&self, record: SegmentRecord) -> Option<SegmentRecord> {
        match self {
            Self::Stays => Some(record),
            Self::Moves(stub) => {
                let location = *stub.find(record.location.entry, record.location.index)?;
                Some(SegmentRecord { location, ..record })
            }
            Self::Goes => None,
        }
    }
}

/// Puts segments together where no sweep of this run has. As safe as a sweep's own replacing, which
/// may go on beside it: a record of a pack that has died meanwhile leads nobody to it, and goes
/// with the next collection.
pub(super) async fn merge(repo: &Arc<Repository>, done: &mut Collected) -> Result<()> {
    if !plan_merges(&repo.list_segments(|_, _| ()).await?).is_empty() {
        replace(repo, &CondemnedList::default(), &HashSet::new(), done).await?;
    }
    Ok(())
}

/// Sweep 5. Gives the packs that are stored, with their sizes.
pub(super) async fn replace(
    repo: &Arc<Repository>,
    list: &CondemnedList,
    dead: &HashSet<PackId>,
    done: &mut Collected,
) -> Result<HashMap<PackId, u64>> {
    // segments first: what they name was stored before them, so a pack that is not listed then is
    // gone
    let segments = repo.list_segments(|_, _| ()).await?;
    let packs: HashMap<PackId, u64> = repo.list_packs(|_, _| ()).await?.into_iter().collect();
    let stubs: HashMap<PackId, &Stub> = list.rewritten.iter().map(|s| (*s.pack(), s)).collect();
    let fate = |pack: &PackId| match (dead.contains(pack), stubs.get(pack)) {
        (true, Some(stub)) => Fate::Moves(stub),
        (false, _) if packs.contains_key(pack) => Fate::Stays,
        _ => Fate::Goes,
    };
    let merged = plan_merges(&segments);
    let (mut left, mut old, mut new) = (Vec::new(), Vec::new(), Vec::new());
    for SegmentInfo { id, size_bytes } in segments {
        let before = left.len();
        let merge = merged.contains(&id);
        match survivors(repo, &id, size_bytes, merge, &fate, &mut left, &mut new).await {
            Ok(true) => old.push(segment_key(&id)),
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                return kept_for_want_of_space(repo, packs, new, &e).await;
            }
            Ok(false) => {}
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                tracing::warn!("a dedup segment is left as it is: {e}");
                // what was taken out of it stays in it
                left.truncate(before);
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {} // another sweeper was there first
            Err(e) => return Err(e),
        }
    }
    if !left.is_empty() {
        match repo.put_segment(left).await {
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                return kept_for_want_of_space(repo, packs, new, &e).await;
            }
            stored => stored.map(|_| ())?,
        }
    }
    done.replaced_segments += old.len() as u64;
    repo.store().delete_all(old).await?;
    Ok(packs)
}

/// On a full store packs must go before anything new can come. The segments stay, those that were
/// put in their place go again, and a later sweep replaces them; whoever is led to a pack that is
/// gone sees so.
async fn kept_for_want_of_space(
    repo: &Repository,
    packs: HashMap<PackId, u64>,
    new: Vec<SegmentId>,
    e: &Error,
) -> Result<HashMap<PackId, u64>> {
    tracing::warn!("dedup segments stay as they are, for want of space: {e}");
    repo.store().delete_all(new.iter().map(segment_key).collect()).await?;
    Ok(packs)
}

/// Which of these segments are put together.
fn plan_merges(segments: &[SegmentInfo]) -> HashSet<SegmentId> {
    let mut alike: HashMap<u32, Vec<SegmentId>> = HashMap::new();
    for segment in segments.iter().filter(|segment| segment.size_bytes <= SMALL_BYTES_MAX) {
        let size = (segment.size_bytes / ALIKE_BYTES_MIN).max(1).ilog(ALIKE);
        alike.entry(size).or_default().push(segment.id);
    }
    alike.into_values().filter(|ids| ids.len() as u64 >= ALIKE).flatten().collect()
}

/// Adds what stays of a segment that is to be merged or names something that does not, and stores
/// what is enough for a new one. False: all of the segment stays.
async fn survivors<'a>(
    repo: &Arc<Repository>,
    id: &SegmentId,
    size_bytes: u64,
    merge: bool,
    fate: &(dyn Fn(&PackId) -> Fate<'a> + Sync),
    left: &mut Vec<SegmentRecord>,
    new: &mut Vec<SegmentId>,
) -> Result<bool> {
    let key = segment_key(id);
    let opener = SegmentOpener::new(repo.keys(), repo.keys().encryption(), id);
    let tail_at = size_bytes.saturating_sub(TAIL_BYTES);
    let tail = repo.store().get_range(&key, tail_at..size_bytes).await?;
    let trailer_at = tail.len().saturating_sub(SEGMENT_TRAILER_BYTES as usize);
    let layout = SegmentLayout::decode(opener.what(), size_bytes, &tail[trailer_at..])?;
    let sealed = part(repo, &key, layout.index(), tail_at, &tail).await?;
    let index = opener.open_index(&layout, &sealed)?;
    let index = SegmentIndex::decode(opener.what(), &layout, &index)?;
    if !merge && index.packs().all(|pack| matches!(fate(&pack), Fate::Stays)) {
        return Ok(false);
    }
    if index.packs().all(|pack| matches!(fate(&pack), Fate::Goes)) {
        return Ok(true);
    }
    let mut block = 0;
    while block < layout.blocks() {
        let start = layout.block(block).start;
        let mut end = block + 1;
        while end < layout.blocks() && layout.block(end).end - start <= STEP_BYTES {
            end += 1;
        }
        let step = start..layout.block(end - 1).end;
        let bytes = part(repo, &key, step, tail_at, &tail).await?;
        for number in block..end {
            let at = layout.block(number);
            let sealed = cut(&bytes, at.start - start, at.end - start)
                .ok_or_else(|| crate::format::corrupt(opener.what(), "it ends too early"))?;
            let plain = opener.open_block(&layout, number, &sealed)?;
            let records = index.records(opener.what(), &plain)?;
            left.extend(records.into_iter().filter_map(|r| fate(&r.location.pack).of(r)));
        }
        if left.len() >= RECORDS_MAX {
            new.push(repo.put_segment(std::mem::take(left)).await?.0);
        }
        block = end;
    }
    Ok(true)
}

/// A range of a segment whose end was read already.
async fn part(
    repo: &Repository,
    key: &str,
    range: std::ops::Range<u64>,
    tail_at: u64,
    tail: &Bytes,
) -> Result<Bytes> {
    let in_tail = range
        .start
        .checked_sub(tail_at)
        .and_then(|at| cut(tail, at, range.end.checked_sub(tail_at)?));
    match in_tail {
        Some(bytes) => Ok::<_, Error>(bytes),
        None => repo.store().get_range(key, range).await,
    }
}

fn cut(bytes: &Bytes, from: u64, to: u64) -> Option<Bytes> {
    let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
    (from <= to && to <= bytes.len()).then(|| bytes.slice(from..to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::names::pack_key;
    use crate::ids::ChunkId;
    use crate::testkit::repositories::memory_repository;
    use crate::units::Location;

    fn merged(sizes: &[u64]) -> usize {
        let sizes: Vec<_> = (0..)
            .zip(sizes)
            .map(|(n, size)| SegmentInfo { id: id(n), size_bytes: *size })
            .collect();
        plan_merges(&sizes).len()
    }

    fn id(n: u8) -> SegmentId {
        SegmentId::from_bytes([n; 32])
    }

    fn record(n: u16, pack: u8) -> SegmentRecord {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        let pack = PackId::from_bytes([pack; 32]);
        let location = Location { pack, entry: 0, offset: 96, stored_len: 40, index: 0 };
        SegmentRecord { id: ChunkId::from_bytes(id), location }
    }

    /// All records of all segments, by chunk, and how many segments there are.
    async fn records(repo: &Arc<Repository>) -> (Vec<SegmentRecord>, usize) {
        let segments = repo.list_segments(|_, _| ()).await.unwrap();
        let mut all = Vec::new();
        for SegmentInfo { id, size_bytes } in &segments {
            let stays = |_: &PackId| Fate::Stays;
            survivors(repo, id, *size_bytes, true, &stays, &mut all, &mut Vec::new())
                .await
                .unwrap();
        }
        all.sort_by_key(|r| r.id);
        (all, segments.len())
    }

    #[tokio::test]
    async fn what_many_segments_know_is_in_one_afterwards() {
        let (repo, store, _) = memory_repository().await;
        for pack in [1, 2] {
            repo.store().put(&pack_key(&PackId::from_bytes([pack; 32])), "a pack").await.unwrap();
        }
        let mut expected = Vec::new();
        for n in 0..8 {
            assert_eq!(merged_by(&repo).await, 0, "{n} segments");
            // one that all of them know, one each, and one of a pack that is gone
            let own: Vec<_> = [record(0, 1), record(10 + n, 2)].into();
            expected.extend(own.iter().skip(usize::from(n > 0)).copied());
            repo.put_segment([own, vec![record(100 + n, 9)]].concat()).await.unwrap();
        }
        expected.sort_by_key(|r| r.id);
        assert_eq!(merged_by(&repo).await, 8);
        assert_eq!(records(&repo).await, (expected.clone(), 1));
        // and then there is nothing to do
        let before = store.take_log().len();
        assert!(before > 0);
        assert_eq!(merged_by(&repo).await, 0);
        assert!(store.take_log().iter().all(|step| step.starts_with("list")));
        assert_eq!(records(&repo).await, (expected, 1));
    }

    async fn merged_by(repo: &Arc<Repository>) -> u64 {
        let mut done = Collected::default();
        merge(repo, &mut done).await.unwrap();
        done.replaced_segments
    }

    #[test]
    fn many_segments_of_one_size_are_merged_and_large_ones_never() {
        assert_eq!(merged(&[]), 0);
        assert_eq!(merged(&[1000; 7]), 0);
        assert_eq!(merged(&[1000; 8]), 8);
        // from a few records to the whole of the smallest size, and beyond
        assert_eq!(merged(&[1, 64 << 10, 100, 4096, 9000, 200_000, 500, 600]), 8);
        assert_eq!(merged(&[1, 64 << 10, 100, 4096, 9000, 600_000, 500, 600]), 0);
        assert_eq!(merged(&[SMALL_BYTES_MAX; 9]), 9);
        assert_eq!(merged(&[SMALL_BYTES_MAX + 1; 100]), 0);
    }
}
