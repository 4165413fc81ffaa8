//! The repository's dedup segments, within a memory budget: chunk id → location.
//!
//! A segment is held in one of three ways, the first that fits: as a plain copy in a scratch directory (mapped, costs no
//! memory of ours), as a plain copy in memory, or by its index section alone, with blocks read by range. What fits in no way
//! is left out and counted. A segment that cannot be read or trusted is left out with a warning: dedup saves work, and
//! nothing depends on it. Every block is checked before it is believed, on every use.
//!
//! Nothing is read before [`DedupIndex::open`]; callers open the index when the first chunk needs it.

use crate::error::{Error, ErrorKind, Result};
use crate::format::names::segment_key;
use crate::format::segment::{SegmentIndex, SegmentLayout, SegmentOpener, to_plain_segment};
use crate::ids::{ChunkId, SegmentId};
use crate::keys::Encryption;
use crate::limits::{SEGMENT_HEADER_BYTES, SEGMENT_TRAILER_BYTES};
use crate::protocol::SegmentInfo;
use crate::repository::Repository;
use crate::units::Location;
use futures::{StreamExt, stream};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Segments being fetched at a time, while each is small.
const FETCHES_IN_FLIGHT: usize = 16;
/// Of the budget, for segments that are being fetched and converted.
const FETCH_SHARE: u64 = 4;
/// Of the budget, for blocks that were read by range.
const BLOCK_SHARE: u64 = 8;
/// A block in memory, with what holds it.
const BLOCK_COST: u64 = 66 << 10;

/// Bytes of a scratch copy.
pub type ScratchBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Keeps plain copies of segments beside a run: a directory of mapped files. Never trusted.
pub trait Scratch: fmt::Debug + Send + Sync {
    /// The copy, if there is one.
    fn open(&self, segment: &SegmentId) -> Option<ScratchBytes>;
    /// Keeps a copy and opens it.
    fn store(&self, segment: &SegmentId, plain: &[u8]) -> Result<ScratchBytes>;
    /// Forgets a copy that turned out to be damaged.
    fn remove(&self, segment: &SegmentId);
    /// Forgets all copies but those that are still listed.
    fn retain(&self, listed: &dyn Fn(&SegmentId) -> bool);
}

/// Bounds of the index.
#[derive(Debug, Clone, Copy)]
pub struct DedupOptions {
    /// Most memory, mapped copies apart.
    pub memory_bytes: u64,
}

/// What is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DedupStats {
    /// Segments that lookups go to.
    pub segments: u64,
    /// Segments left out for want of memory.
    pub left_out: u64,
    /// Segments left out because they could not be read or trusted.
    pub damaged: u64,
    /// Records in the segments in use.
    pub records: u64,
    /// Memory in use, mapped copies apart.
    pub memory_bytes: u64,
}

/// Answer of [`DedupIndex::lookup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// No segment in use knows it.
    Absent,
    /// It is stored there.
    At(Location),
    /// A block must be loaded first: [`DedupIndex::load`], then ask again.
    Needs(NeededBlock),
}

/// A block that is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NeededBlock {
    segment: usize,
    block: u32,
}

/// See the module.
#[derive(Debug)]
pub struct DedupIndex {
    repo: Arc<Repository>,
    segments: Vec<Held>,
    blocks: Mutex<Blocks>,
    stats: DedupStats,
}

struct Held {
    opener: SegmentOpener,
    id: SegmentId,
    layout: SegmentLayout,
    how: How,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({}, {} records)", self.id, self.layout.records)
    }
}

enum How {
    /// The whole plain copy.
    Copy(ScratchBytes),
    /// The opened index section; blocks are read by range.
    Index(Vec<u8>),
}

/// Opened blocks, the oldest dropped first.
#[derive(Debug, Default)]
struct Blocks {
    /// `None`: the block could not be read or trusted.
    held: HashMap<NeededBlock, Option<Arc<[u8]>>>,
    order: VecDeque<NeededBlock>,
    held_max: usize,
}

impl DedupIndex {
    /// Reads what is needed for lookups. Errors of single segments leave them out.
    pub async fn open(
        repo: &Arc<Repository>,
        mut segments: Vec<SegmentInfo>,
        options: DedupOptions,
        scratch: Option<&dyn Scratch>,
    ) -> Result<Self> {
        if let Some(scratch) = scratch {
            let listed: std::collections::HashSet<_> = segments.iter().map(|s| s.id).collect();
            scratch.retain(&|id| listed.contains(id));
        }
        // the large ones hold most chunks, so they come first where memory is short
        segments.sort_unstable_by_key(|s| (std::cmp::Reverse(s.size_bytes), s.id));
        let budget = options.memory_bytes;
        let mut index = Self {
            repo: Arc::clone(repo),
            segments: Vec::with_capacity(segments.len()),
            blocks: Mutex::default(),
            stats: DedupStats::default(),
        };
        let fetch_max = budget / FETCH_SHARE;
        let block_max = budget / BLOCK_SHARE;
        let mut room = budget - fetch_max - block_max;
        let (large, small): (Vec<_>, Vec<_>) = segments
            .into_iter()
            .partition(|s| s.size_bytes.saturating_mul(2 * FETCHES_IN_FLIGHT as u64) > fetch_max);
        for (group, in_flight) in [(large, 1), (small, FETCHES_IN_FLIGHT)] {
            // what is added while others are fetched is counted when they are added
            let room_now = room;
            let mut fetched = stream::iter(group)
                .map(|info| {
                    // twice: as fetched, and plain
                    let whole = info.size_bytes.saturating_mul(2) <= fetch_max;
                    let fits = whole && (scratch.is_some() || info.size_bytes <= room_now);
                    hold(repo, info, scratch, fits, room_now)
                })
                .buffered(in_flight);
            while let Some(held) = fetched.next().await {
                index.add(held, &mut room);
            }
        }
        let blocks_max = usize::try_from(block_max / BLOCK_COST).unwrap_or(usize::MAX).max(1);
        index.blocks = Mutex::new(Blocks { held_max: blocks_max, ..Blocks::default() });
        index.stats.memory_bytes = budget - fetch_max - block_max - room;
        Ok(index)
    }

    fn add(&mut self, held: Result<Option<(Held, u64)>>, room: &mut u64) {
        match held {
            Ok(Some((held, cost))) if cost <= *room => {
                *room -= cost;
                self.stats.segments += 1;
                self.stats.records += held.layout.records;
                self.segments.push(held);
            }
            Ok(_) => self.stats.left_out += 1,
            Err(e) => {
                tracing::warn!("dedup segment left out: {e}");
                self.stats.damaged += 1;
            }
        }
    }

    /// What is in use.
    pub fn stats(&self) -> DedupStats {
        self.stats
    }

    /// Where a chunk is stored, at a place that is `usable`. Never waits; may be called from any thread.
    pub fn lookup(&self, id: &ChunkId, usable: impl Fn(&Location) -> bool) -> Lookup {
        for (number, held) in self.segments.iter().enumerate() {
            match held.find(id, |block| self.cached(NeededBlock { segment: number, block })) {
                Ok(Found::At(location)) if usable(&location) => return Lookup::At(location),
                Ok(Found::At(_) | Found::Absent) => {}
                Ok(Found::Needs(block)) => {
                    return Lookup::Needs(NeededBlock { segment: number, block });
                }
                // damaged since it was opened: it was said then if it was so already; the chunk is stored again
                Err(e) => tracing::debug!("dedup lookup: {e}"),
            }
        }
        Lookup::Absent
    }

    fn cached(&self, needed: NeededBlock) -> Option<Option<Arc<[u8]>>> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.held.get(&needed).cloned()
    }

    /// Reads a block by range. One that cannot be read is remembered as holding nothing.
    pub async fn load(&self, needed: NeededBlock) {
        let Some(held) = self.segments.get(needed.segment) else { return };
        let range = held.layout.block(needed.block);
        let read = self.repo.store().get_range(&segment_key(&held.id), range).await;
        let opened = read.and_then(|bytes| {
            held.opener.open_block(&held.layout, needed.block, &bytes).map(|plain| plain.into())
        });
        let block = opened.inspect_err(|e| tracing::warn!("dedup block left out: {e}")).ok();
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        while blocks.order.len() >= blocks.held_max {
            if let Some(oldest) = blocks.order.pop_front() {
                blocks.held.remove(&oldest);
            }
        }
        if blocks.held.insert(needed, block).is_none() {
            blocks.order.push_back(needed);
        }
    }
}

enum Found {
    Absent,
    At(Location),
    Needs(u32),
}

impl Held {
    fn find(
        &self,
        id: &ChunkId,
        cached: impl Fn(u32) -> Option<Option<Arc<[u8]>>>,
    ) -> Result<Found> {
        let copy = match &self.how {
            How::Copy(copy) => Some((**copy).as_ref()),
            How::Index(_) => None,
        };
        let section = match (&self.how, copy) {
            (How::Index(section), _) => section.as_slice(),
            (How::Copy(_), copy) => {
                let section = piece(copy.unwrap_or_default(), &self.layout.index());
                // its tag was checked when it was opened
                &section[..section.len().saturating_sub(crate::limits::TAG_BYTES as usize)]
            }
        };
        let index = SegmentIndex::decode(self.opener.what(), &self.layout, section)?;
        if !index.may_hold(id) {
            return Ok(Found::Absent);
        }
        let Some(block) = index.block_of(id) else { return Ok(Found::Absent) };
        let found = if let Some(copy) = copy {
            let bytes = piece(copy, &self.layout.block(block));
            let plain = self.opener.open_block(&self.layout, block, bytes)?;
            index.find(self.opener.what(), &plain, id)?
        } else {
            match cached(block) {
                None => return Ok(Found::Needs(block)),
                Some(None) => None,
                Some(Some(plain)) => index.find(self.opener.what(), &plain, id)?,
            }
        };
        Ok(found.map_or(Found::Absent, Found::At))
    }
}

fn piece<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let at = |n| usize::try_from(n).unwrap_or(usize::MAX);
    bytes.get(at(range.start)..at(range.end)).unwrap_or_default()
}

/// Holds one segment in the best way that fits, with what it costs in memory; `None`: none fits.
async fn hold(
    repo: &Repository,
    info: SegmentInfo,
    scratch: Option<&dyn Scratch>,
    whole: bool,
    room: u64,
) -> Result<Option<(Held, u64)>> {
    if let Some(scratch) = scratch
        && let Some(copy) = scratch.open(&info.id)
    {
        match from_copy(repo, info.id, copy) {
            Ok(held) => return Ok(Some((held, 0))),
            Err(e) => {
                tracing::warn!("scratch copy dropped: {e}");
                scratch.remove(&info.id);
            }
        }
    }
    if !whole {
        return by_range(repo, info, room).await;
    }
    let sealed = repo.store().get(&segment_key(&info.id)).await?;
    let plain = to_plain_segment(repo.keys(), repo.id(), &info.id, &sealed)?;
    drop(sealed);
    if let Some(scratch) = scratch {
        match scratch.store(&info.id, &plain) {
            Ok(copy) => return Ok(Some((from_copy(repo, info.id, copy)?, 0))),
            // a full scratch disk is no reason to fail
            Err(e) => tracing::warn!("{e}"),
        }
        if plain.len() as u64 > room {
            return Ok(None);
        }
    }
    let cost = plain.len() as u64;
    Ok(Some((from_copy(repo, info.id, Arc::new(plain))?, cost)))
}

/// Checks the parts of a copy that each lookup relies on; blocks are checked when they are used.
fn from_copy(repo: &Repository, id: SegmentId, copy: ScratchBytes) -> Result<Held> {
    let opener = SegmentOpener::new(repo.keys(), Encryption::None, &id);
    let bytes = (*copy).as_ref();
    let short = || Error::new(ErrorKind::Corrupt, format!("read {}", opener.what()), "too short");
    let header = bytes.get(..SEGMENT_HEADER_BYTES as usize).ok_or_else(short)?;
    opener.check_header(header, repo.id())?;
    let trailer = bytes.len().checked_sub(SEGMENT_TRAILER_BYTES as usize).ok_or_else(short)?;
    let layout = SegmentLayout::decode(opener.what(), bytes.len() as u64, &bytes[trailer..])?;
    let section = opener.open_index(&layout, piece(bytes, &layout.index()))?;
    SegmentIndex::decode(opener.what(), &layout, &section)?;
    Ok(Held { opener, id, layout, how: How::Copy(copy) })
}

/// Reads trailer and index section only.
async fn by_range(repo: &Repository, info: SegmentInfo, room: u64) -> Result<Option<(Held, u64)>> {
    let opener = SegmentOpener::new(repo.keys(), repo.keys().encryption(), &info.id);
    let key = segment_key(&info.id);
    let size = info.size_bytes;
    let trailer_at = size.saturating_sub(u64::from(SEGMENT_TRAILER_BYTES));
    let trailer = repo.store().get_range(&key, trailer_at..size).await?;
    let layout = SegmentLayout::decode(opener.what(), size, &trailer)?;
    let index = layout.index();
    // as fetched and opened at once for a moment
    let cost = index.end - index.start;
    if cost.saturating_mul(2) > room {
        return Ok(None);
    }
    let sealed = repo.store().get_range(&key, index).await?;
    let section = opener.open_index(&layout, &sealed)?.into_owned();
    SegmentIndex::decode(opener.what(), &layout, &section)?;
    Ok(Some((Held { opener, id: info.id, layout, how: How::Index(section) }, cost)))
}
