//! The volume of a live restore as the content of an export.

use super::LiveVolume;
use crate::live::CowTarget;
use crate::ops::trace::ReadTrace;
use crate::reading::view::BackupView;
use bytes::Bytes;
use mover_nbd::server::{Holes, Volume};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of `base:allocation`: nothing is stored, and it reads as zeros.
const HOLE_AND_ZERO: u32 = 3;
/// Stretches of one answer about blocks.
const STRETCHES_MAX: usize = 4096;
/// Bytes that one answer about blocks is of, at most.
const ANSWER_BYTES: u64 = 64 << 30;

/// The volume, and what bounds its memory.
#[derive(Debug)]
pub(super) struct LiveExport {
    pub(super) cow: Arc<LiveVolume>,
    /// None where all is on the target.
    pub(super) view: Option<Arc<BackupView>>,
    pub(super) trace: Option<Arc<ReadTrace>>,
    /// For chunks that are read because a part of them is written.
    pub(super) merges: Arc<Semaphore>,
}

impl LiveExport {
    /// Memory for a change that has to read the backup. Others need none, so a store that is away
    /// keeps none of them from going on.
    async fn memory(&self, range: &Range<u64>) -> io::Result<Option<OwnedSemaphorePermit>> {
        if !self.cow.needs_source(range) {
            return Ok(None);
        }
        let permit = Arc::clone(&self.merges).acquire_owned().await;
        permit.map(Some).map_err(io::Error::other)
    }
}

impl Volume for LiveExport {
    fn expect(&self, range: &Range<u64>) {
        if let Some(trace) = &self.trace {
            trace.note(range);
        }
        self.cow.expect(range);
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<Vec<Range<usize>>> {
        Box::pin(self.cow.read(offset, buf)).await
    }

    async fn states(&self, _: usize, range: Range<u64>) -> io::Result<Vec<(Range<u64>, u32)>> {
        let range = range.start..range.end.min(range.start.saturating_add(ANSWER_BYTES));
        let mut found: Vec<(Range<u64>, u32)> = Vec::new();
        let mut add = |range: Range<u64>, state: u32| match found.last_mut() {
            _ if range.is_empty() => true,
            Some((last, of)) if *of == state && last.end == range.start => {
                last.end = range.end;
                true
            }
            _ => {
                found.push((range, state));
                found.len() < STRETCHES_MAX
            }
        };
        for (part, done) in self.cow.stretches(range) {
            let Some(view) = self.view.as_ref().filter(|_| !done) else {
                // the target may know of holes; that it has data is never wrong
                if !add(part, 0) {
                    break;
                }
                continue;
            };
            let end = view.size_bytes();
            let stored = part.start..part.end.min(end).max(part.start);
            let mut at = stored.start;
            while at < stored.end {
                let extents = Box::pin(view.extents(at..stored.end)).await;
                let extents = extents.map_err(io::Error::other)?;
                let Some(last) = extents.last() else { break };
                at = last.range.end;
                let mut more = true;
                for extent in extents {
                    more &= add(extent.range, if extent.zero { HOLE_AND_ZERO } else { 0 });
                }
                if !more {
                    return Ok(found);
                }
            }
            if at < stored.end || !add(stored.end..part.end, HOLE_AND_ZERO) {
                break;
            }
        }
        Ok(found)
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let _memory = self.memory(&(offset..end)).await?;
        Box::pin(self.cow.write(offset, data)).await
    }

    async fn zero(&self, range: Range<u64>, holes: Holes) -> io::Result<()> {
        let _memory = self.memory(&range).await?;
        Box::pin(self.cow.zero(range, holes == Holes::Allowed)).await
    }

    /// As quick as a write; the target may have to write zeros where it has no holes to give.
    fn is_zero_fast(&self, _: &Range<u64>, holes: Holes) -> bool {
        holes == Holes::Allowed && self.cow.target().can_trim()
    }

    async fn trim(&self, range: Range<u64>) -> io::Result<()> {
        Box::pin(self.cow.trim(range)).await
    }

    async fn flush(&self) -> io::Result<()> {
        self.cow.flush().await
    }
}
