//! One transfer as its user sees it: what goes into an engine, and what comes out.

use super::arena::Slot;
use super::transfer::Transfer;
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

/// One transfer to do. Transfers that are in flight together must not touch the same 4096-byte
/// block of the device unless all of them are reads: a block that is written in part is rewritten
/// as a whole.
#[derive(Debug)]
pub struct Op {
    /// Read or write.
    pub dir: Direction,
    /// Where in memory.
    pub slot: Slot,
    /// First byte in the slot; what is not aligned as the file wants goes through the page cache.
    pub slot_offset: u32,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes; at least 1.
    pub len: u32,
    /// The caller's own; comes back with the completion.
    pub tag: u64,
}

impl Op {
    /// Fills the slot's first `len` bytes.
    pub fn read(slot: Slot, offset: u64, len: u32, tag: u64) -> Self {
        Self { dir: Direction::Read, slot, slot_offset: 0, offset, len, tag }
    }

    /// Writes the slot's first `len` bytes.
    pub fn write(slot: Slot, offset: u64, len: u32, tag: u64) -> Self {
        Self { dir: Direction::Write, slot, slot_offset: 0, offset, len, tag }
    }

    /// The same, but from this byte of the slot on.
    #[must_use]
    pub fn from_slot_offset(mut self, slot_offset: u32) -> Self {
        self.slot_offset = slot_offset;
        self
    }
}

/// An operation that was not taken, with its slot.
#[derive(Debug)]
pub struct Rejected {
    /// The operation's slot.
    pub slot: Slot,
    /// Why: a mistake of the caller, or no room in the engine.
    pub error: Error,
}

/// An operation that ended, well or not, with its slot.
#[derive(Debug)]
pub struct Completion {
    /// The operation's slot.
    pub slot: Slot,
    /// The operation's tag.
    pub tag: u64,
    /// The operation's direction.
    pub dir: Direction,
    /// First byte in the slot.
    pub slot_offset: u32,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes asked for; all were moved if `result` is `Ok`.
    pub len: u32,
    /// What the device said. An error keeps the system's number (`raw_os_error`).
    pub result: io::Result<()>,
}

impl Completion {
    /// The slot of a transfer that worked; of one that failed an error that names the device and
    /// the place (the slot goes home).
    pub fn into_slot(self, path: &Path) -> Result<Slot> {
        let Self { slot, dir, offset, len, result, .. } = self;
        match result {
            Ok(()) => Ok(slot),
            Err(e) => Err(transfer_error(dir, path, offset, len, e)),
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

/// An operation inside an engine.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) slot: Slot,
    pub(super) slot_offset: u32,
    pub(super) tag: u64,
    pub(super) transfer: Transfer,
}

impl InFlight {
    pub(super) fn complete(self, result: io::Result<()>) -> Completion {
        Completion {
            tag: self.tag,
            dir: self.transfer.dir(),
            slot_offset: self.slot_offset,
            offset: self.transfer.offset(),
            len: self.transfer.len(),
            result,
            slot: self.slot,
        }
    }
}

/// How long to wait for a completion.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitFor {
    /// Only look.
    None,
    Until(Instant),
    Forever,
}
