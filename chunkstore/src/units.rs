//! Units as types, and the only place where they are converted.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ChunkId, PackId, PageId};
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, MAP_DEPTH_MAX, VOLUME_BYTES_MAX};
use std::ops::Range;

/// Position of a chunk in its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChunkNo(pub u64);

/// A chunk size: a power of two within the format's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSize(u32);

impl ChunkSize {
    /// Checks the limits.
    pub fn new(bytes: u32) -> Result<Self> {
        if bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes) {
            return Ok(Self(bytes));
        }
        Err(Error::new(ErrorKind::Usage, "set the chunk size", format!("{bytes} bytes is not one"))
            .hint(format!("use a power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes")))
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

/// Size of a volume and of its chunks: all conversions between bytes and chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    size_bytes: u64,
    chunk: ChunkSize,
}

impl Geometry {
    /// A volume of 1 to `VOLUME_BYTES_MAX` bytes.
    pub fn new(size_bytes: u64, chunk: ChunkSize) -> Result<Self> {
        if size_bytes == 0 || size_bytes > VOLUME_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("use a volume of {size_bytes} bytes"),
                format!("a volume has 1 to {VOLUME_BYTES_MAX} bytes"),
            ));
        }
        Ok(Self { size_bytes, chunk })
    }

    /// Of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Chunk size.
    pub fn chunk(&self) -> ChunkSize {
        self.chunk
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.size_bytes.div_ceil(u64::from(self.chunk.0))
    }

    /// First byte of a chunk.
    pub fn offset(&self, chunk: ChunkNo) -> u64 {
        chunk.0 * u64::from(self.chunk.0)
    }

    /// Bytes of a chunk: the last one may be short, and what lies behind it has none.
    pub fn len(&self, chunk: ChunkNo) -> u32 {
        let rest = self.size_bytes.saturating_sub(chunk.0.saturating_mul(u64::from(self.chunk.0)));
        u32::try_from(rest).unwrap_or(u32::MAX).min(self.chunk.0)
    }

    /// Chunk that holds a byte.
    pub fn chunk_at(&self, offset: u64) -> ChunkNo {
        ChunkNo(offset / u64::from(self.chunk.0))
    }

    /// Chunks that a byte range touches, even partly. The range is within the volume.
    pub fn chunks_of(&self, bytes: Range<u64>) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        let c = u64::from(self.chunk.0);
        bytes.start / c..bytes.end.div_ceil(c)
    }
}

impl From<Geometry> for mover_extents::Grid {
    fn from(geometry: Geometry) -> Self {
        Self { volume_bytes: geometry.size_bytes, chunk_bytes: u64::from(geometry.chunk.0) }
    }
}

/// Levels of a map with `fanout` children a page over `chunks` chunks: the smallest L ≥ 1 with
/// fanout^L ≥ chunks.
pub fn map_depth(fanout: u16, chunks: u64) -> u8 {
    let mut depth = 1;
    let mut covered = u64::from(fanout);
    while covered < chunks && depth < MAP_DEPTH_MAX {
        covered = covered.saturating_mul(u64::from(fanout));
        depth += 1;
    }
    depth
}

/// Chunks that one page of `level` covers.
pub fn page_span(fanout: u16, level: u8) -> u64 {
    u64::from(fanout).saturating_pow(u32::from(level) + 1)
}

/// Where a sealed entry is, and which chunk of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Pack that holds the entry.
    pub pack: PackId,
    /// Number of the entry in its pack.
    pub entry: u32,
    /// First byte of the entry in its pack.
    pub offset: u32,
    /// Bytes of the entry as stored.
    pub stored_len: u32,
    /// Which chunk of the entry.
    pub index: u16,
}

/// Reference to a stored chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkRef {
    /// What it is.
    pub id: ChunkId,
    /// Where it is.
    pub location: Location,
}

/// Reference to a stored map page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// What it is.
    pub id: PageId,
    /// Where it is; `index` is 0.
    pub location: Location,
}
