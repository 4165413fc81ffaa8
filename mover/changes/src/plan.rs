//! What a backup reads, what it knows to be zero, and what it takes over from its parent: decided
//! before anything is read.
//!
//! Pure: values in, a plan out. Every chunk of the volume is in exactly one of the three. The
//! rules:
//!
//! - A chunk that a list touches is read whole from the device, even when the list covers it only
//!   partly: chunks are hashed whole.
//! - A chunk is not read when *all* its bytes are known to be zero: by the list, or by a hole of
//!   the image file.
//! - *delta*: what is not listed is taken over from the parent. After a resize the old and the new
//!   last chunk and everything behind the old end are read again, listed or not: a chunk id covers
//!   exactly the bytes that the volume has there. So are chunks whose stored copy is known to be
//!   damaged ([`BackupPlan::read_again`]).
//! - *allocated*: what is not listed is zero; nothing is taken over, else blocks that were
//!   discarded would come back.
//! - *whole*: everything is read but holes.

use super::{ChangeKind, ChangedBlocks};
use chunkstore::{ChunkNo, Error, ErrorKind, Geometry, Result};
use mover_extents::Extents;
use mover_extents::{full_chunks, sweep, touched_chunks};
use std::ops::Range;

/// What is known about the changes of a volume.
#[derive(Debug, Clone, Copy)]
pub enum Changes<'a> {
    /// Nothing: everything is read.
    Whole,
    /// A changed-block list of this very volume.
    List(&'a ChangedBlocks),
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The volume now.
    pub geometry: Geometry,
    /// The volume when the parent was made; `None` without a parent.
    pub parent: Option<Geometry>,
    /// What changed.
    pub changes: Changes<'a>,
    /// Byte ranges that read as zero because the image file has no blocks there.
    pub holes: Option<&'a Extents>,
}

/// What to do with each chunk. `read` and `zero` are ascending and merged, and share no chunk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackupPlan {
    /// Whether a chunk in neither list is the parent's; otherwise there is no such chunk.
    pub inherit: bool,
    /// Chunks to read from the device.
    pub read: Vec<Range<u64>>,
    /// Chunks that are zero and need no reading.
    pub zero: Vec<Range<u64>>,
    /// Bytes of the volume in `read`.
    pub read_bytes: u64,
    /// Bytes of the volume in `zero`.
    pub zero_bytes: u64,
    /// Bytes of the volume that come from the parent.
    pub inherited_bytes: u64,
}

impl BackupPlan {
    /// What is left of it when everything below a chunk is done. The bytes are those of what is
    /// left.
    pub fn remaining_from(&self, geometry: Geometry, next: ChunkNo) -> Self {
        let cut = |ranges: &[Range<u64>]| -> Vec<Range<u64>> {
            let left = ranges.iter().map(|r| r.start.max(next.0)..r.end);
            left.filter(|r| !r.is_empty()).collect()
        };
        let (read, zero) = (cut(&self.read), cut(&self.zero));
        let (read_bytes, zero_bytes) = (bytes_of(geometry, &read), bytes_of(geometry, &zero));
        let left = geometry.size_bytes().saturating_sub(geometry.offset(next));
        let inherited_bytes = left - read_bytes - zero_bytes;
        Self { inherit: self.inherit, read, zero, read_bytes, zero_bytes, inherited_bytes }
    }
}

/// Makes the plan. A delta without a parent, and a list that reaches behind the volume's end, are
/// refused.
pub fn plan_backup(input: &PlanInput<'_>) -> Result<BackupPlan> {
    let nothing = Extents::new();
    let holes = input.holes.unwrap_or(&nothing);
    let geometry = input.geometry;
    let size = geometry.size_bytes();
    let (inherit, read, zero) = match input.changes {
        Changes::Whole => {
            let (read, zero) = plan_without_parent(geometry, &Extents::of(0..size), holes);
            (false, read, zero)
        }
        Changes::List(list) => {
            check_bounds(list, size)?;
            if list.kind == ChangeKind::Delta {
                let forced = forced_chunks(geometry, input.parent)?;
                let (read, zero) = plan_delta(geometry, list, holes, &forced);
                (true, read, zero)
            } else {
                let (read, zero) = plan_without_parent(geometry, &list.data, holes);
                (false, read, zero)
            }
        }
    };
    let read_bytes = bytes_of(geometry, &read);
    let zero_bytes = bytes_of(geometry, &zero);
    let inherited_bytes = size - read_bytes - zero_bytes;
    Ok(BackupPlan { inherit, read, zero, read_bytes, zero_bytes, inherited_bytes })
}

impl BackupPlan {
    /// The same plan where chunks of the parent (`lost`, ascending) cannot be taken over because
    /// what is stored of them is damaged: those of them that would be inherited are read instead.
    #[must_use]
    pub fn read_again(mut self, geometry: Geometry, lost: &[Range<u64>]) -> Self {
        if !self.inherit || lost.is_empty() {
            return self;
        }
        let end = geometry.chunks();
        let lost = lost.iter().map(|r| r.start.min(end)..r.end.min(end)).filter(|r| !r.is_empty());
        let unknown = sweep(lost, self.zero.iter().cloned(), |lost, zero| lost && !zero);
        self.read = sweep(self.read.iter().cloned(), unknown, |read, lost| read || lost).collect();
        self.read_bytes = bytes_of(geometry, &self.read);
        self.inherited_bytes = geometry.size_bytes() - self.read_bytes - self.zero_bytes;
        self
    }
}

type Chunks = Vec<Range<u64>>;

/// Unlisted chunks are the parent's. `forced` chunks count as listed.
fn plan_delta(
    geometry: Geometry,
    list: &ChangedBlocks,
    holes: &Extents,
    forced: &Extents,
) -> (Chunks, Chunks) {
    let select = |wanted: fn(bool, bool) -> bool| {
        let either = |a, b| a || b;
        let data = touched_chunks(list.data.iter(), geometry);
        let zero = touched_chunks(list.zero.iter(), geometry);
        let touched = sweep(sweep(data, zero, either), forced.iter(), either);
        let known_zero = full_chunks(sweep(list.zero.iter(), holes.iter(), either), geometry);
        sweep(touched, known_zero, wanted).collect()
    };
    (select(|touched, zero| touched && !zero), select(|touched, zero| touched && zero))
}

/// Every chunk without a byte of `data` outside `holes` is zero.
fn plan_without_parent(geometry: Geometry, data: &Extents, holes: &Extents) -> (Chunks, Chunks) {
    let live = sweep(data.iter(), holes.iter(), |data, hole| data && !hole);
    let read: Chunks = touched_chunks(live, geometry).collect();
    let all = std::iter::once(0..geometry.chunks());
    let zero = sweep(all, read.iter().cloned(), |all, read| all && !read).collect();
    (read, zero)
}

/// Chunks that a delta cannot vouch for because the volume's size changed.
fn forced_chunks(geometry: Geometry, parent: Option<Geometry>) -> Result<Extents> {
    let Some(parent) = parent else {
        return Err(Error::new(
            ErrorKind::Usage,
            "plan a backup by a delta",
            "there is no parent backup that unlisted blocks could be taken from",
        )
        .hint("name the parent that was made of the base snapshot, or use a list of all allocated blocks"));
    };
    if parent.chunk() != geometry.chunk() {
        return Err(Error::new(
            ErrorKind::Bug,
            "plan a backup by a delta",
            "the parent has another chunk size; within one repository there is only one",
        ));
    }
    let (old, new) = (parent.size_bytes(), geometry.size_bytes());
    let last = geometry.chunk_at(new - 1).0;
    Ok(match old.cmp(&new) {
        std::cmp::Ordering::Equal => Extents::new(),
        std::cmp::Ordering::Less => Extents::of(geometry.chunk_at(old - 1).0..last + 1),
        std::cmp::Ordering::Greater => Extents::of(last..last + 1),
    })
}

fn check_bounds(list: &ChangedBlocks, size_bytes: u64) -> Result<()> {
    let end = list.data.end().max(list.zero.end());
    if end <= size_bytes {
        return Ok(());
    }
    let detail = format!("it reaches to byte {end} of a volume of {size_bytes} bytes");
    Err(Error::new(ErrorKind::Usage, "use the changed-block list", detail)
        .hint("take the list again for this very volume"))
}

/// Bytes that chunk ranges have in the volume.
fn bytes_of(geometry: Geometry, chunks: &[Range<u64>]) -> u64 {
    let size = geometry.size_bytes();
    let end =
        |chunk| if chunk >= geometry.chunks() { size } else { geometry.offset(ChunkNo(chunk)) };
    chunks.iter().map(|r| end(r.end) - end(r.start)).sum()
}

#[cfg(test)]
mod tests;
