//! One transfer as its user sees it: what goes into an engine, and what comes out.

use super::arena::Slot;
use chunkstore::{Error, ErrorKind, Result};
use mover_nbd::is_nbd;
use std::io;
use std::path::Path;
use std::time::Instant;

/// Which way bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the device into a slot.
    Read,
    /// From a slot to the device.
    Write,
}

/// The bytes of one transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Read or write.
    pub dir: Direction,
    /// First byte on the device.
    pub offset: u64,
    /// First byte in memory: where it is in the slot, or its address where there is no slot. Bytes
    /// that are not aligned there as the file wants go through the page cache.
    pub memory: u64,
    /// Bytes; at least 1.
    pub len: u32,
}

/// One transfer to do. Transfers that are in flight together must not touch the same 4096-byte
/// block of the device unless all of them are reads: a block that is written in part is rewritten
/// as a whole.
#[derive(Debug)]
pub struct Op {
    /// The memory.
    pub slot: Slot,
    /// Which of its bytes, and which of the device.
    pub span: Span,
    /// The caller's own.
    pub tag: u64,
}

impl Op {
    /// Fills the slot's first `len` bytes.
    pub fn read(slot: Slot, offset: u64, len: u32, tag: u64) -> Self {
        Self { slot, span: Span { dir: Direction::Read, offset, memory: 0, len }, tag }
    }

    /// Writes the slot's first `len` bytes.
    pub fn write(slot: Slot, offset: u64, len: u32, tag: u64) -> Self {
        Self { slot, span: Span { dir: Direction::Write, offset, memory: 0, len }, tag }
    }

    /// The same, but from this byte of the slot on.
    #[must_use]
    pub fn from_slot_offset(mut self, slot_offset: u32) -> Self {
        self.span.memory = slot_offset.into();
        self
    }
}

/// An operation that was not taken.
#[derive(Debug)]
pub struct Rejected {
    /// As it was submitted, with its slot.
    pub op: Op,
    /// Why: a mistake of the caller, or no room in the engine.
    pub error: Error,
}

/// An operation that ended, well or not.
#[derive(Debug)]
pub struct Completion {
    /// As it was submitted, with its slot. All of its bytes were moved if `result` is `Ok`.
    pub op: Op,
    /// What the device said. An error keeps the system's number (`raw_os_error`).
    pub result: io::Result<()>,
}

impl Completion {
    /// The slot of a transfer that worked; of one that failed an error that names the device and
    /// the place (the slot goes home).
    pub fn into_slot(self, path: &Path) -> Result<Slot> {
        let Self { op, result } = self;
        match result {
            Ok(()) => Ok(op.slot),
            Err(e) => Err(transfer_error(op.span.dir, path, op.span.offset, op.span.len, e)),
        }
    }
}

/// The error of a failed transfer: names the device and the place, keeps the system's error as its
/// source.
pub(crate) fn transfer_error(
    dir: Direction,
    path: &Path,
    offset: u64,
    len: u32,
    e: io::Error,
) -> Error {
    let nbd = is_nbd(path);
    let kind = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        io::ErrorKind::InvalidData if nbd => ErrorKind::Corrupt,
        _ => ErrorKind::Device,
    };
    let (verb, hint) = match (dir, e.kind(), e.raw_os_error()) {
        (Direction::Read, ..) if nbd => ("read", "look into the NBD server's log"),
        (Direction::Write, ..) if nbd => ("write", "look into the NBD server's log"),
        (Direction::Read, io::ErrorKind::UnexpectedEof, _) => {
            ("read", "was it shrunk while it was read?")
        }
        (Direction::Read, ..) => {
            ("read", "look into the kernel's log for what the device reported")
        }
        (Direction::Write, _, Some(libc::ENOSPC | libc::EDQUOT)) => {
            ("write", "make room on the target's file system or in its storage pool")
        }
        (Direction::Write, ..) => {
            ("write", "look into the kernel's log for what the device reported")
        }
    };
    let place = path.display();
    Error::caused(kind, format!("{verb} {len} bytes at offset {offset} of {place}"), e).hint(hint)
}

/// How long to wait for a completion.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitFor {
    /// Only look.
    None,
    Until(Instant),
    Forever,
}
