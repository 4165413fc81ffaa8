//! Packs: many sealed entries in one immutable object. `docs/format.md`, section 7.
//!
//! No I/O here. The [`PackAllocator`] gives each entry its place before it is sealed, so many
//! threads can seal into one pack; the [`PackBuilder`] takes the sealed entries in any order and
//! puts header, directory and trailer around them. Every place is given once: the nonce of an entry
//! is its offset, and a pack id is never used again.

mod allocator;
mod collector;
mod hash;
mod layout;

pub use allocator::PackAllocator;
pub use collector::{FinishedPack, PackBuilder};
pub use hash::{PACK_END_BYTES, PACK_HASH_BYTES, PackHasher};
pub use layout::{
    Codec, DirectoryEntry, EntryHeader, PackHeader, PackSummary, PackTrailer, check_pack,
    decode_directory, decode_pack_header, decode_pack_trailer,
};

pub(crate) use allocator::Reservation;
#[cfg(any(test, feature = "testkit"))]
pub(crate) use collector::pack_end;
#[cfg(any(test, feature = "testkit"))]
pub(crate) use layout::encode_directory;
pub(crate) use layout::{Entry, entry_parts, seal_entry, split_entry};

use crate::ids::PackId;

/// What a pack holds: chunks and map pages never share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PackKind {
    /// Entries of chunks.
    Chunks,
    /// Map pages, one an entry.
    Pages,
}

/// What an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Chunks of one read unit.
    Chunks,
    /// One map page.
    Page,
    /// The directory of its pack.
    Directory,
}

impl PackKind {
    /// The `kind` byte of the header.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Chunks => 1,
            Self::Pages => 2,
        }
    }

    /// Inverse of [`Self::byte`].
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Chunks, Self::Pages].into_iter().find(|k| k.byte() == byte)
    }

    /// Kind of its entries.
    pub fn entries(self) -> EntryKind {
        match self {
            Self::Chunks => EntryKind::Chunks,
            Self::Pages => EntryKind::Page,
        }
    }
}

impl EntryKind {
    /// The `kind` byte of the entry.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Chunks => 1,
            Self::Page => 2,
            Self::Directory => 3,
        }
    }
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The pack.
    pub pack: PackId,
    /// Number of the entry in it.
    pub entry: u32,
    /// First byte of the entry in it.
    pub offset: u32,
}

/// No more entries will be placed in this pack. Not `Clone`: a pack is closed once.
#[derive(Debug, PartialEq, Eq)]
pub struct ClosedPack {
    /// The pack.
    pub pack: PackId,
    /// How many entries it has.
    pub entries: u32,
    /// Where its directory begins.
    pub end: u32,
}

#[cfg(test)]
mod tests;
