//! One segment in use: its index section in memory or in a scratch copy, and its blocks.
//!
//! Invariants: no byte of a block is believed before its tag was checked. A block of a copy is
//! checked when it is first used; what was checked once in a run stays checked, as the kernel holds
//! it from then on, or reads it back from a file that nobody changes.

use super::scratch::ScratchBytes;
use crate::error::{Error, ErrorKind, Result};
use crate::format::segment::{SegmentIndex, SegmentLayout, SegmentOpener};
use crate::ids::{ChunkId, SegmentId};
use crate::keys::{Encryption, Keys};
use crate::limits::{SEGMENT_HEADER_BYTES, SEGMENT_TRAILER_BYTES, TAG_BYTES};
use crate::repository::Repository;
use crate::units::Location;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(super) struct Segment {
    pub(super) id: SegmentId,
    pub(super) layout: SegmentLayout,
    sealed: SegmentOpener,
    /// The opened index section; empty if there was a copy from the start.
    index: Vec<u8>,
    copy: OnceLock<PlainCopy>,
    /// Something was wrong with it: no lookup goes there any more.
    off: AtomicBool,
    /// Bytes of blocks that were read by range.
    pub(super) range_bytes: AtomicU64,
}

/// A whole segment, checksummed and plain.
pub(super) struct PlainCopy {
    bytes: ScratchBytes,
    opener: SegmentOpener,
    /// A bit for each block whose tag was checked.
    checked: Box<[AtomicU64]>,
}

pub(super) enum SegmentLookup {
    Absent,
    At(Location),
    /// This block must be read first.
    Needs(u32),
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, {} records)", self.id, self.layout.records)
    }
}

impl Segment {
    /// One whose blocks are read by range; `index` is its index section as stored.
    pub(super) fn by_range(
        keys: &Keys,
        id: SegmentId,
        layout: SegmentLayout,
        index: &[u8],
    ) -> Result<Self> {
        let sealed = SegmentOpener::new(keys, keys.encryption(), &id);
        let index = sealed.open_index(&layout, index)?.into_owned();
        SegmentIndex::decode(sealed.what(), &layout, &index)?.check_order(sealed.what())?;
        Ok(Self::new(sealed, id, layout, index))
    }

    /// One that was copied in an earlier run.
    pub(super) fn of_copy(repo: &Repository, id: SegmentId, bytes: ScratchBytes) -> Result<Self> {
        let (copy, layout) = PlainCopy::open(repo, &id, bytes)?;
        let sealed = SegmentOpener::new(repo.keys(), repo.keys().encryption(), &id);
        let segment = Self::new(sealed, id, layout, Vec::new());
        let _ = segment.copy.set(copy);
        Ok(segment)
    }

    fn new(sealed: SegmentOpener, id: SegmentId, layout: SegmentLayout, index: Vec<u8>) -> Self {
        let (copy, off, range_bytes) = (OnceLock::new(), AtomicBool::new(false), AtomicU64::new(0));
        Self { id, layout, sealed, index, copy, off, range_bytes }
    }

    /// From now on lookups use this copy.
    pub(super) fn use_copy(&self, repo: &Repository, bytes: ScratchBytes) -> Result<()> {
        let (copy, _) = PlainCopy::open(repo, &self.id, bytes)?;
        let _ = self.copy.set(copy);
        Ok(())
    }

    pub(super) fn has_copy(&self) -> bool {
        self.copy.get().is_some()
    }

    /// No lookup goes there any more; false if that was so before.
    pub(super) fn turn_off(&self) -> bool {
        !self.off.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Memory of the index section.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.index.capacity() as u64
    }

    /// Looks a chunk up; `cached` gives opened blocks that were read by range.
    pub(super) fn find(
        &self,
        id: &ChunkId,
        cached: impl FnOnce(u32) -> Option<Arc<[u8]>>,
    ) -> Result<SegmentLookup> {
        if self.is_off() {
            return Ok(SegmentLookup::Absent);
        }
        let what = self.sealed.what();
        let copy = self.copy.get();
        let section = copy.map_or(self.index.as_slice(), |c| c.index(&self.layout));
        let index = SegmentIndex::decode(what, &self.layout, section)?;
        let Some(block) = index.block_of(id).filter(|_| index.may_hold(id)) else {
            return Ok(SegmentLookup::Absent);
        };
        let found = if let Some(copy) = copy {
            index.find(what, copy.block(&self.layout, block)?, id)?
        } else if let Some(plain) = cached(block) {
            index.find(what, &plain, id)?
        } else {
            return Ok(SegmentLookup::Needs(block));
        };
        Ok(found.map_or(SegmentLookup::Absent, SegmentLookup::At))
    }

    /// Opens a block that was read from the store.
    pub(super) fn open_block(&self, block: u32, stored: &[u8]) -> Result<Arc<[u8]>> {
        Ok(self.sealed.open_block(&self.layout, block, stored)?.into())
    }
}

impl PlainCopy {
    /// Checks what every lookup relies on: header, lengths, index section.
    fn open(
        repo: &Repository,
        id: &SegmentId,
        bytes: ScratchBytes,
    ) -> Result<(Self, SegmentLayout)> {
        let opener = SegmentOpener::new(repo.keys(), Encryption::None, id);
        let what = format!("scratch copy of {}", opener.what());
        let all = (*bytes).as_ref();
        let trailer = u64::from(SEGMENT_TRAILER_BYTES);
        let header = piece(all, &(0..u64::from(SEGMENT_HEADER_BYTES)));
        let end = all.len() as u64;
        let layout = opener
            .check_header(header, repo.id())
            .and_then(|()| {
                let trailer = piece(all, &(end.saturating_sub(trailer)..end));
                SegmentLayout::decode(&what, end, trailer)
            })
            .and_then(|layout| {
                let index = opener.open_index(&layout, piece(all, &layout.index()))?;
                SegmentIndex::decode(&what, &layout, &index)?.check_order(&what)?;
                Ok(layout)
            })
            .map_err(|e| e.within(format!("use the {what}")))?;
        let words = layout.blocks().div_ceil(u64::BITS) as usize;
        let checked = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok((Self { bytes, opener, checked }, layout))
    }

    /// The index section without its tag, which was checked when the copy was opened.
    fn index(&self, layout: &SegmentLayout) -> &[u8] {
        let mut range = layout.index();
        range.end -= u64::from(TAG_BYTES);
        piece((*self.bytes).as_ref(), &range)
    }

    fn block(&self, layout: &SegmentLayout, block: u32) -> Result<&[u8]> {
        let mut range = layout.block(block);
        let bytes = piece((*self.bytes).as_ref(), &range);
        let (word, bit) = ((block / u64::BITS) as usize, 1 << (block % u64::BITS));
        let Some(checked) = self.checked.get(word) else {
            let what = format!("take block {block} of {}", self.opener.what());
            return Err(Error::new(ErrorKind::Bug, what, "there is no such block"));
        };
        if checked.load(Ordering::Relaxed) & bit == 0 {
            self.opener.open_block(layout, block, bytes)?;
            checked.fetch_or(bit, Ordering::Relaxed);
        }
        range.end -= u64::from(TAG_BYTES);
        Ok(piece((*self.bytes).as_ref(), &range))
    }
}

/// A part of a copy; empty, which opens as corrupt, if it is not there.
fn piece<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let at = |n| usize::try_from(n).unwrap_or(usize::MAX);
    bytes.get(at(range.start)..at(range.end)).unwrap_or_default()
}
