//! Dedup segments that name packs which are gone or about to go: replaced by segments of what is left of them. What was
//! copied out of a rewritten pack is found at its new place from then on.
//!
//! Segments only save work, and whoever reuses a pack through one looks it up; so nothing here can lose data. What is left
//! of several segments is put together. The new ones are stored before the old ones go; a crash in between leaves some
//! chunks in two segments, which harms nobody. A segment that cannot be read is left alone, with a warning.
//!
//! Memory: the records of one new segment, twice, and one step of an old one.

use super::Collected;
use super::condemn::list_packs;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gc::CondemnedList;
use crate::format::moved::Moved;
use crate::format::names::{DEDUP_PREFIX, parse_segment_key, segment_key};
use crate::format::segment::{SegmentIndex, SegmentLayout, SegmentOpener, SegmentRecord};
use crate::ids::{PackId, SegmentId};
use crate::limits::SEGMENT_TRAILER_BYTES;
use crate::repository::Repository;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Records of a new segment: 20 MiB in memory.
const RECORDS_MAX: usize = 1 << 18;
/// What is read of the end at first: index sections of small segments are in it.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of blocks read at a time.
const STEP_BYTES: u64 = 4 << 20;

/// What becomes of the records of a pack.
enum Fate<'a> {
    Stays,
    /// It was rewritten.
    Moves(&'a Moved),
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

/// Sweep 5. Gives the packs that are stored, with their sizes.
pub(super) async fn replace(
    repo: &Arc<Repository>,
    list: &CondemnedList,
    dead: &HashSet<PackId>,
    done: &mut Collected,
) -> Result<HashMap<PackId, u64>> {
    // segments first: what they name was stored before them, so a pack that is not listed then is gone
    let segments = repo.store().list(DEDUP_PREFIX).await?;
    let packs: HashMap<PackId, u64> = list_packs(repo).await?.into_iter().collect();
    let stubs: HashMap<PackId, &Moved> = list.rewritten.iter().map(|s| (*s.pack(), s)).collect();
    let fate = |pack: &PackId| match (dead.contains(pack), stubs.get(pack)) {
        (true, Some(stub)) => Fate::Moves(stub),
        (false, _) if packs.contains_key(pack) => Fate::Stays,
        _ => Fate::Goes,
    };
    let (mut left, mut old) = (Vec::new(), Vec::new());
    for listed in segments {
        let Ok(id) = parse_segment_key(&listed.key) else { continue };
        match survivors(repo, &id, listed.size_bytes, &fate, &mut left).await {
            Ok(true) => old.push(listed.key),
            Ok(false) => {}
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                tracing::warn!("a dedup segment is left as it is: {e}");
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {} // another sweeper was there first
            Err(e) => return Err(e),
        }
    }
    if !left.is_empty() {
        repo.put_segment(left).await?;
    }
    done.replaced_segments += old.len() as u64;
    repo.store().delete_all(old).await?;
    Ok(packs)
}

/// Adds what stays of a segment that names something that does not, and stores what is enough for a new one. False: all of
/// the segment stays.
async fn survivors<'a>(
    repo: &Arc<Repository>,
    id: &SegmentId,
    size_bytes: u64,
    fate: &(dyn Fn(&PackId) -> Fate<'a> + Sync),
    left: &mut Vec<SegmentRecord>,
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
    if index.packs().all(|pack| matches!(fate(&pack), Fate::Stays)) {
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
            repo.put_segment(std::mem::take(left)).await?;
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
