//! Changed-block lists: what a storage system says about the blocks of a volume, and what a backup
//! does with it.
//!
//! Every source ends in one form, [`ChangedBlocks`]: ascending, merged byte ranges within the
//! volume, and a kind that says what an unlisted byte means. [`parse_changed_blocks`] reads the
//! shapes that tools write (`docs/changed-blocks.md` shows each), [`ChangeSource`] also asks a
//! server for one, [`plan_backup`] turns a list into chunks to read. Nothing here opens a device or
//! a repository; what the volume itself tells is read through the device that is open. Lists come
//! from outside: what is wrong in one is an error that names the list and the place in it, never a
//! guess, never a panic; memory is 16 bytes for each merged range, up to a limit.

#![forbid(unsafe_code)]

mod ladder;
mod parse;
mod plan;
mod sources;
mod volume;
mod write;

pub use chunkstore::format::ChangeKind;
pub use ladder::{Descent, check_floor, descend};
pub use parse::{ParseOptions, RANGES_MAX_DEFAULT, parse_changed_blocks, parse_in_order};
pub use plan::{BackupPlan, Changes, PlanInput, plan_backup};
pub use sources::{
    ChangeRequest, ChangeSource, ListRequest, NbdSource, RestSource, RetryPolicy, SnapshotEndpoint,
    SnapshotSource,
};
pub use volume::{Movement, Volume};

use mover_extents::Extents;
use std::ops::Range;

/// Where a list came from, by its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOrigin {
    /// Our own shape, as `mover diff` writes it.
    Mover,
    /// A bare array of ranges.
    Extents,
    /// Records of the CSI snapshot-metadata service.
    Csi,
    /// `rbd diff`.
    Rbd,
    /// `qemu-img map`.
    Qemu,
    /// The REST draft.
    Rest,
    /// A SnapshotMetadata service.
    SnapshotMetadata,
    /// The volume's own file system.
    FileSystem,
    /// The NBD server that the volume is read from.
    Nbd,
}

impl ListOrigin {
    /// As it stands in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mover => "mover",
            Self::Extents => "extents",
            Self::Csi => "csi",
            Self::Rbd => "rbd",
            Self::Qemu => "qemu",
            Self::Rest => "rest",
            Self::SnapshotMetadata => "snapshot-metadata",
            Self::FileSystem => "filesystem",
            Self::Nbd => "nbd",
        }
    }
}

/// A changed-block list in its one internal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedBlocks {
    /// What an unlisted byte means.
    pub kind: ChangeKind,
    /// Which tool's shape it had.
    pub origin: ListOrigin,
    /// Size of the volume as the list states it.
    pub volume_bytes: Option<u64>,
    /// Byte ranges that must be read.
    pub data: Extents,
    /// Byte ranges that are known to be zero; disjoint from `data`.
    pub zero: Extents,
    /// What the source said about single blocks beside that, uninterpreted.
    pub contexts: Vec<BlockContext>,
    /// What was tolerated while reading the list, for the user to see.
    pub notes: Vec<String>,
}

/// Something that a source attached to a block: handed on as it came, used for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockContext {
    /// The block.
    pub range: Range<u64>,
    /// Whether the block is known to be zero.
    pub zero: bool,
    /// Base64, as the source wrote it.
    pub context: String,
}

impl ChangedBlocks {
    /// Bytes that the list names, zero ones included.
    pub fn listed_bytes(&self) -> u64 {
        self.data.total() + self.zero.total()
    }

    /// Ranges that the list names after merging, zero ones included.
    pub fn listed_extents(&self) -> u64 {
        (self.data.count() + self.zero.count()) as u64
    }
}
