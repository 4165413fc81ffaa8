//! Opening the index: which segments are used, and how, within the budget.
//!
//! Copies in scratch come first, as they cost nothing. Of the others those are chosen, largest
//! first, whose index sections fit into memory and into what looking is worth to the caller; how
//! long a section is follows from the size of the segment, as listed. So nothing at all is read of
//! a segment that is not used: what a run costs does not follow the size of the repository. Then
//! the ends are read, with the index sections in them.

use super::scratch::{Scratch, ScratchBytes, copy, copy_cost};
use super::segment::Segment;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::segment_key;
use crate::format::segment::SegmentLayout;
use crate::ids::SegmentId;
use crate::limits::SEGMENT_TRAILER_BYTES;
use crate::repository::Repository;
use crate::repository::SegmentInfo;
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Least that is read of a segment's end: index sections of up to 4000 records are in it.
const TAIL_BYTES: u64 = 8 << 10;
/// What a request counts as, beside its bytes, where it is decided what looking is worth.
const REQUEST_BYTES: u64 = 16 << 10;
/// Requests in flight.
const REQUESTS_MAX: u64 = 16;
/// Segments up to this size are copied to scratch at once: that costs about as much as their index
/// section.
const SMALL_BYTES: u64 = 1 << 20;
/// Most that is copied when the index is opened: the rest has time until it is needed, or until the
/// next run.
const SMALL_BYTES_TOTAL: u64 = 32 << 20;
/// Bytes that are copied at a time.
const STEP_BYTES: u64 = 256 << 10;

pub(super) struct Opening<'a> {
    repo: &'a Arc<Repository>,
    scratch: Option<&'a dyn Scratch>,
    transfer_bytes: u64,
    /// For index sections.
    room: u64,
    /// What reading may cost.
    worth: u64,
    may_copy: AtomicU64,
    opened: Opened,
    /// The store does not answer, or does not let us read: nothing more is asked of it.
    refused: bool,
}

#[derive(Default)]
pub(super) struct Opened {
    pub(super) segments: Vec<Segment>,
    /// Memory of their index sections.
    pub(super) index_bytes: u64,
    pub(super) left_out: u64,
    pub(super) damaged: u64,
}

/// What the end of a segment gave.
enum Tail {
    Copy(ScratchBytes),
    Index(SegmentLayout, Bytes),
    Layout(SegmentLayout),
}

impl<'a> Opening<'a> {
    pub(super) fn new(
        repo: &'a Arc<Repository>,
        scratch: Option<&'a dyn Scratch>,
        transfer_bytes: u64,
        room: u64,
        worth: u64,
    ) -> Self {
        let may_copy = AtomicU64::new(SMALL_BYTES_TOTAL);
        let opened = Opened::default();
        Self { repo, scratch, transfer_bytes, room, worth, may_copy, opened, refused: false }
    }

    pub(super) async fn run(mut self, segments: Vec<SegmentInfo>) -> Opened {
        let rest = self.use_copies(segments);
        let chosen = self.choose(rest);
        let longer = self.read_tails(chosen).await;
        self.read_indexes(longer).await;
        self.opened
    }

    /// Uses the copies that earlier runs left; gives the segments that have none.
    fn use_copies(&mut self, segments: Vec<SegmentInfo>) -> Vec<SegmentInfo> {
        let Some(scratch) = self.scratch else { return segments };
        let listed: HashSet<SegmentId> = segments.iter().map(|s| s.id).collect();
        scratch.retain(&|id| listed.contains(id));
        let mut rest = Vec::new();
        for info in segments {
            let copy = scratch.open(&info.id).map(|c| Segment::of_copy(self.repo, info.id, c));
            match copy {
                Some(Ok(segment)) => self.opened.segments.push(segment),
                Some(Err(e)) => {
                    tracing::warn!("a scratch copy is made again: {e}");
                    scratch.remove(&info.id);
                    rest.push(info);
                }
                None => rest.push(info),
            }
        }
        rest
    }

    /// Uses those whose index section is in what was read of their end; gives the layouts of the
    /// others.
    async fn read_tails(&mut self, segments: Vec<SegmentInfo>) -> Vec<(SegmentId, SegmentLayout)> {
        let (repo, scratch) = (self.repo, self.scratch);
        let may_copy = std::mem::take(&mut self.may_copy);
        let copies = scratch.filter(|_| self.transfer_bytes >= 3 * STEP_BYTES);
        let longest = segments.iter().map(|s| tail_len(s.size_bytes)).max().unwrap_or(TAIL_BYTES);
        let each = if copies.is_some() { longest.max(3 * STEP_BYTES) } else { longest };
        let mut ahead = segments.len() as u64;
        let mut tails = stream::iter(segments)
            .map(|info| {
                let may_copy = &may_copy;
                async move { (info.id, read_tail(repo, info, copies, may_copy).await) }
            })
            .buffer_unordered(self.width(each));
        let mut large = Vec::new();
        while let Some((id, tail)) = tails.next().await {
            ahead -= 1;
            let used = match tail {
                Ok(Tail::Layout(layout)) => {
                    large.push((id, layout));
                    continue;
                }
                Ok(Tail::Copy(bytes)) => Segment::of_copy(repo, id, bytes).map(Some),
                Ok(Tail::Index(layout, index)) => self.fit(id, layout, &index),
                Err(e) => Err(e),
            };
            self.enter(&id, used);
            if self.refused {
                self.opened.left_out += ahead;
                break;
            }
        }
        large
    }

    /// The largest segments that fit, by what their index sections should take.
    fn choose(&mut self, mut segments: Vec<SegmentInfo>) -> Vec<SegmentInfo> {
        segments.sort_unstable_by_key(|s| (Reverse(s.size_bytes), s.id));
        let (mut room, mut worth) = (self.room, self.worth);
        let before = segments.len();
        let copies = self.scratch.is_some();
        segments.retain(|segment| {
            let bytes = index_estimate(segment.size_bytes);
            let copied = copies && segment.size_bytes <= SMALL_BYTES;
            let read = if copied { segment.size_bytes } else { bytes };
            let cost = read.max(TAIL_BYTES) + REQUEST_BYTES;
            let fits = bytes <= room && bytes <= self.transfer_bytes && cost <= worth;
            if fits {
                (room, worth) = (room - bytes, worth - cost);
            }
            fits
        });
        self.opened.left_out += (before - segments.len()) as u64;
        segments
    }

    async fn read_indexes(&mut self, mut chosen: Vec<(SegmentId, SegmentLayout)>) {
        // one that is much longer than it should be
        let before = chosen.len();
        chosen.retain(|(_, layout)| {
            !self.refused && index_len(layout) <= self.transfer_bytes.min(self.room)
        });
        self.opened.left_out += (before - chosen.len()) as u64;
        let longest = chosen.iter().map(|(_, layout)| index_len(layout)).max().unwrap_or(1);
        let mut ahead = chosen.len() as u64;
        let repo = self.repo;
        let mut reads = stream::iter(chosen)
            .map(|(id, layout)| async move {
                let read = repo.store().get_range(&segment_key(&id), layout.index()).await;
                (id, layout, read)
            })
            .buffer_unordered(self.width(longest));
        while let Some((id, layout, read)) = reads.next().await {
            ahead -= 1;
            let used = read.and_then(|index| self.fit(id, layout, &index));
            self.enter(&id, used);
            if self.refused {
                self.opened.left_out += ahead;
                break;
            }
        }
    }

    /// Requests of so many bytes that may be in flight.
    fn width(&self, bytes: u64) -> usize {
        let fits = (self.transfer_bytes / bytes.max(1)).clamp(1, REQUESTS_MAX);
        usize::try_from(fits).unwrap_or(1)
    }

    /// A segment by its index section, if that fits.
    fn fit(&self, id: SegmentId, layout: SegmentLayout, index: &[u8]) -> Result<Option<Segment>> {
        if index_len(&layout) > self.room {
            return Ok(None);
        }
        Segment::by_range(self.repo.keys(), id, layout, index).map(Some)
    }

    fn enter(&mut self, id: &SegmentId, used: Result<Option<Segment>>) {
        match used {
            Ok(Some(segment)) => {
                self.room = self.room.saturating_sub(segment.memory_bytes());
                self.opened.index_bytes += segment.memory_bytes();
                self.opened.segments.push(segment);
            }
            Ok(None) => self.opened.left_out += 1,
            Err(e) => self.failed(id, &e),
        }
    }

    fn failed(&mut self, id: &SegmentId, e: &Error) {
        match e.kind() {
            // a collection has put others in its place
            ErrorKind::NotFound => tracing::debug!("dedup segment {id} is gone"),
            ErrorKind::Corrupt | ErrorKind::Unsupported => {
                tracing::warn!("dedup segment {id} is left out: {e}");
                self.opened.damaged += 1;
            }
            _ => {
                tracing::warn!("dedup segments are left out from {id} on: {e}");
                self.opened.left_out += 1;
                self.refused = true;
            }
        }
    }
}

/// Bytes of an index section in a segment of so many: a filter of 1.6 bytes to each record of 50, a
/// fence to each block, and the packs, of which there is one to some hundred records.
fn index_estimate(segment_bytes: u64) -> u64 {
    segment_bytes / 1000 * 34 + 512
}

/// What is read of the end of such a segment.
fn tail_len(segment_bytes: u64) -> u64 {
    index_estimate(segment_bytes).max(TAIL_BYTES).min(segment_bytes)
}

fn index_len(layout: &SegmentLayout) -> u64 {
    let range = layout.index();
    range.end - range.start
}

/// Reads the end of a segment, and copies the segment if it is small.
async fn read_tail(
    repo: &Repository,
    info: SegmentInfo,
    scratch: Option<&dyn Scratch>,
    may_copy: &AtomicU64,
) -> Result<Tail> {
    let start = info.size_bytes - tail_len(info.size_bytes);
    let tail = repo.store().get_range(&segment_key(&info.id), start..info.size_bytes).await?;
    let trailer = tail.len().saturating_sub(SEGMENT_TRAILER_BYTES as usize);
    let what = format!("dedup segment {}", info.id);
    let layout = SegmentLayout::decode(&what, info.size_bytes, &tail[trailer..])?;
    if let Some(scratch) = scratch
        && info.size_bytes <= SMALL_BYTES
        && copy_cost(&layout, STEP_BYTES) <= 3 * STEP_BYTES
        && take(may_copy, info.size_bytes)
    {
        match copy(repo, &info.id, &layout, scratch, STEP_BYTES).await {
            Ok(bytes) => return Ok(Tail::Copy(bytes)),
            Err(e) => {
                // a full scratch disk, as a rule: use it without a copy, and copy nothing more
                tracing::warn!("dedup segment {} is not copied to scratch: {e}", info.id);
                may_copy.store(0, Ordering::Relaxed);
            }
        }
    }
    let index = layout.index();
    let Some(from) = index.start.checked_sub(start) else { return Ok(Tail::Layout(layout)) };
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    // the layout says that the section ends where the trailer begins
    let section = at(from)..trailer;
    if section.start > section.end {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("read {what}"),
            "its lengths do not add up",
        ));
    }
    // copied, so that the rest of the tail is not kept
    Ok(Tail::Index(layout, Bytes::copy_from_slice(&tail[section])))
}

fn take(from: &AtomicU64, bytes: u64) -> bool {
    from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
}
