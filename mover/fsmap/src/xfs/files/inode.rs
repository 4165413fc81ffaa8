//! An inode: what is said of a file, and two forks behind it, of its content and its attributes.

use super::{Refusal, checksum_fits, unusable};
use crate::files::{FileId, FileKind, FileNode, FileTime};
use crate::xfs::log::Replayed;
use crate::{be16, be32, be64, field};

const MAGIC: u16 = 0x494e;
/// Before the forks: up to version 2, and of version 3.
const OLD_LEN: usize = 100;
const NEW_LEN: usize = 176;
const CRC: usize = 100;
/// Times count from here, where they have 64 bits.
const EPOCH: i64 = 1 << 31;

mod flags {
    pub(super) const REAL_TIME: u16 = 1;
    pub(super) const LONG_TIMES: u64 = 8;
    pub(super) const LONG_COUNTS: u64 = 0x10;
}

/// How a fork is kept.
pub(super) mod format {
    pub(in super::super) const LOCAL: u8 = 1;
    pub(in super::super) const EXTENTS: u8 = 2;
    pub(in super::super) const TREE: u8 = 3;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fork {
    Data,
    Attributes,
}

/// What a fork is.
pub(super) struct ForkView<'a> {
    pub(super) format: u8,
    pub(super) bytes: &'a [u8],
    /// Of the whole fork, as the inode counts them.
    pub(super) extents: u64,
}

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    bytes: Vec<u8>,
    pub(super) size_bytes: u64,
    pub(super) replayed: Replayed,
}

impl Inode {
    /// With the file system's UUID, where inodes carry that.
    pub(super) fn parse(
        number: u64,
        bytes: Vec<u8>,
        uuid: Option<[u8; 16]>,
        replayed: Replayed,
    ) -> Result<Self, Refusal> {
        let size_bytes = be64(&bytes, 56);
        let inode = Self { number, bytes, size_bytes, replayed };
        if replayed.changed && be16(&inode.bytes, 2) == 0 {
            return Err(inode.wrong("nobody uses it"));
        }
        let version = inode.bytes[4];
        let known = if uuid.is_some() { version == 3 } else { (1..=2).contains(&version) };
        if be16(&inode.bytes, 0) != MAGIC || !known {
            return Err(inode.wrong("it is none"));
        }
        if let Some(uuid) = uuid {
            // one that is replayed gets its checksum when it is written
            if !replayed.changed && !checksum_fits(&inode.bytes, CRC) {
                return Err(inode.wrong("its checksum does not fit"));
            }
            if be64(&inode.bytes, 152) != number || field(&inode.bytes, 160) != uuid {
                return Err(inode.wrong("it belongs elsewhere"));
            }
        }
        if be16(&inode.bytes, 2) == 0 || inode.links() == 0 {
            return Err(inode.wrong("nobody uses it"));
        }
        if i64::try_from(size_bytes).is_err() {
            return Err(inode.wrong(&format!("no file has {size_bytes} bytes")));
        }
        if inode.forks_at() + inode.data_len() > inode.bytes.len() {
            return Err(inode.wrong("its attributes are behind its end"));
        }
        if be16(&inode.bytes, 90) & flags::REAL_TIME != 0 && inode.kind()? == FileKind::File {
            return Err(inode.wrong("its content is in a real-time part"));
        }
        Ok(inode)
    }

    pub(super) fn wrong(&self, why: &str) -> Refusal {
        unusable(format!("inode {}: {why}", self.number))
    }

    fn is_new(&self) -> bool {
        self.bytes[4] >= 3
    }

    /// Zero up to version 2, which has none.
    fn more_flags(&self) -> u64 {
        if self.is_new() { be64(&self.bytes, 120) } else { 0 }
    }

    fn links(&self) -> u32 {
        match self.bytes[4] {
            1 => be16(&self.bytes, 6).into(),
            _ => be32(&self.bytes, 16),
        }
    }

    fn forks_at(&self) -> usize {
        if self.is_new() { NEW_LEN } else { OLD_LEN }
    }

    /// Bytes of the fork of content.
    fn data_len(&self) -> usize {
        match usize::from(self.bytes[82]) {
            0 => self.bytes.len() - self.forks_at(),
            eighths => 8 * eighths,
        }
    }

    pub(super) fn has_attributes(&self) -> bool {
        self.bytes[82] != 0
    }

    pub(super) fn fork(&self, fork: Fork) -> ForkView<'_> {
        let (data, attributes) = self.bytes[self.forks_at()..].split_at(self.data_len());
        let long = self.more_flags() & flags::LONG_COUNTS != 0;
        let counted = |at| u64::from(be32(&self.bytes, at));
        match fork {
            Fork::Data => ForkView {
                format: self.bytes[5],
                bytes: data,
                extents: if long { be64(&self.bytes, 24) } else { counted(76) },
            },
            Fork::Attributes => ForkView {
                format: self.bytes[83],
                bytes: attributes,
                extents: if long { counted(76) } else { be16(&self.bytes, 80).into() },
            },
        }
    }

    /// Content that is within the inode.
    pub(super) fn local(&self) -> Result<&[u8], Refusal> {
        let size = usize::try_from(self.size_bytes).unwrap_or(usize::MAX);
        let bytes = self.fork(Fork::Data).bytes.get(..size);
        bytes.ok_or_else(|| self.wrong("it has more bytes than there is room for within it"))
    }

    pub(super) fn kind(&self) -> Result<FileKind, Refusal> {
        let device = || {
            let device = be32(self.fork(Fork::Data).bytes, 0);
            (device >> 18, device & 0x3_ffff)
        };
        Ok(match be16(&self.bytes, 2) & 0xf000 {
            0x1000 => FileKind::Fifo,
            0x2000 => {
                let (major, minor) = device();
                FileKind::Characters(major, minor)
            }
            0x4000 => FileKind::Directory,
            0x6000 => {
                let (major, minor) = device();
                FileKind::Blocks(major, minor)
            }
            0x8000 => FileKind::File,
            0xa000 => FileKind::Symlink,
            0xc000 => FileKind::Socket,
            other => return Err(self.wrong(&format!("there is no kind {other:#x}"))),
        })
    }

    /// Nanoseconds of 64 bits, or seconds and nanoseconds of 32 each.
    fn time(&self, at: usize) -> FileTime {
        const SECOND: u64 = 1_000_000_000;
        if self.more_flags() & flags::LONG_TIMES != 0 {
            let all = be64(&self.bytes, at);
            return FileTime {
                seconds: (all / SECOND).cast_signed() - EPOCH,
                nanoseconds: u32::try_from(all % SECOND).unwrap_or(0),
            };
        }
        FileTime {
            seconds: be32(&self.bytes, at).cast_signed().into(),
            nanoseconds: be32(&self.bytes, at + 4).min(999_999_999),
        }
    }

    pub(super) fn node(&self, block_bytes: u64) -> Result<FileNode, Refusal> {
        Ok(FileNode {
            id: FileId(self.number),
            kind: self.kind()?,
            mode: u32::from(be16(&self.bytes, 2)) & 0o7777,
            uid: be32(&self.bytes, 8),
            gid: be32(&self.bytes, 12),
            links: self.links(),
            size_bytes: self.size_bytes,
            stored_bytes: be64(&self.bytes, 64).saturating_mul(block_bytes),
            accessed: self.time(32),
            modified: self.time(40),
            changed: self.time(48),
            created: self.is_new().then(|| self.time(144)),
        })
    }
}
