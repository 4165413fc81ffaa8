//! Where the data of a file lies, and what differs between two files of one store.
//!
//! Snapshots are copies by reference: the same place of the store under the same offset of two
//! files is the same data, as neither file is ever written again. A place that only one of them has
//! is reported as changed, although its bytes may be equal: a list may name too much, never too
//! little. Ranges that the filesystem does not vouch for count as changed, too.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A range of a file with data in it. Holes and preallocated blocks read as zeros and are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Where it lies in the store; `None` if the filesystem cannot say for sure.
    pub(crate) place: Option<u64>,
}

impl Extent {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// The place of the byte at `offset`, which lies within.
    fn place_of(&self, offset: u64) -> Option<u64> {
        self.place.map(|place| place + (offset - self.start))
    }
}

/// A range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// The ranges of a volume of `size` bytes that hold data, ascending, none touching the next.
pub(crate) fn allocated(extents: &[Extent], size: u64) -> Vec<Range> {
    let mut ranges = Vec::new();
    for extent in extents {
        push(&mut ranges, extent.start, extent.end().min(size));
    }
    ranges
}

/// The ranges of a target of `size` bytes that may differ from a base, ascending, none touching the
/// next. Beyond its end a base counts as zeros.
pub(crate) fn delta(base: &[Extent], target: &[Extent], size: u64) -> Vec<Range> {
    let mut borders = vec![0, size];
    for extent in base.iter().chain(target) {
        borders.extend([extent.start.min(size), extent.end().min(size)]);
    }
    borders.sort_unstable();
    borders.dedup();
    let mut ranges = Vec::new();
    let (mut old, mut new) = (base, target);
    for border in borders.windows(2) {
        let [start, end] = [border[0], border[1]];
        let before = covering(&mut old, start);
        let after = covering(&mut new, start);
        let same = match (before, after) {
            (None, None) => true,
            (Some(before), Some(after)) => {
                let place = before.place_of(start);
                place.is_some() && place == after.place_of(start)
            }
            _ => false,
        };
        if !same {
            push(&mut ranges, start, end);
        }
    }
    ranges
}

/// `ranges` from `offset` on; one that reaches over it begins there.
pub(crate) fn from_offset(ranges: Vec<Range>, offset: u64) -> Vec<Range> {
    let cut = |range: Range| {
        let start = range.start.max(offset);
        let end = range.start + range.bytes;
        (start < end).then(|| Range { start, bytes: end - start })
    };
    ranges.into_iter().filter_map(cut).collect()
}

/// The extent with the byte at `offset`, if any; those before it leave `rest`.
fn covering(rest: &mut &[Extent], offset: u64) -> Option<Extent> {
    while let Some((first, others)) = rest.split_first() {
        if first.end() > offset {
            return (first.start <= offset).then_some(*first);
        }
        *rest = others;
    }
    None
}

fn push(ranges: &mut Vec<Range>, start: u64, end: u64) {
    if start >= end {
        return;
    }
    match ranges.last_mut() {
        Some(last) if last.start + last.bytes == start => last.bytes = end - last.start,
        _ => ranges.push(Range { start, bytes: end - start }),
    }
}

const EXTENTS_AT_ONCE: usize = 256;
/// `_IOWR('f', 11, struct fiemap)`, of linux/fs.h.
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 0x1;
/// Blocks that are promised and never written: they read as zeros.
const EXTENT_UNWRITTEN: u32 = 0x800;
/// Unknown, not yet allocated, encoded, encrypted, not aligned, inline or packed: the place is
/// none.
const EXTENT_UNSURE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap` with room for its extents.
#[repr(C)]
#[derive(Debug)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS_AT_ONCE],
}

/// The extents of a file, after its dirty pages were written.
pub(crate) fn of_file(file: &File) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut start = 0;
    loop {
        let mut request = Box::new(Request {
            start,
            length: u64::MAX - start,
            flags: FLAG_SYNC,
            mapped: 0,
            count: u32::try_from(EXTENTS_AT_ONCE).unwrap_or(u32::MAX),
            reserved: 0,
            extents: [RawExtent::default(); EXTENTS_AT_ONCE],
        });
        // SAFETY: the request has the kernel's layout and room for as many extents as it says; it
        // lives until the call returns.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut *request) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = usize::try_from(request.mapped).unwrap_or(usize::MAX);
        let found = request.extents.get(..mapped).unwrap_or(&request.extents);
        for raw in found {
            start = raw.logical.saturating_add(raw.length);
            if raw.flags & EXTENT_UNWRITTEN == 0 {
                let place = (raw.flags & EXTENT_UNSURE == 0).then_some(raw.physical);
                extents.push(Extent { start: raw.logical, bytes: raw.length, place });
            }
        }
        if found.last().is_none_or(|last| last.flags & EXTENT_LAST != 0) {
            return Ok(extents);
        }
    }
}

#[cfg(test)]
mod tests;
