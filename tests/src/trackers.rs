//! Reference servers of changed-block lists, driven by real images, with the quirks of real ones as
//! switches.
//!
//! Each of them serves [`Blocks`]: computed from two images, or made up for sizes that no image
//! has.

mod authority;
mod grpc;
mod rest;

pub use authority::Authority;
pub use grpc::{Code, GrpcCall, GrpcQuirks, GrpcScript, GrpcServer, RawAnswer, RawServer};
pub use rest::{RestQuirks, RestRequest, RestServer, RestSpelling};

use std::path::Path;
use std::sync::Arc;

/// A block of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it starts.
    pub offset: u64,
    /// Its size.
    pub len: u64,
    /// Whether the tracker knows it to be zero.
    pub zero: bool,
}

/// A list of blocks that need not be in memory.
#[derive(Clone)]
pub struct Blocks {
    count: u64,
    at: Arc<dyn Fn(u64) -> Block + Send + Sync>,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} blocks", self.count)
    }
}

impl From<Vec<Block>> for Blocks {
    fn from(blocks: Vec<Block>) -> Self {
        let count = blocks.len() as u64;
        Self { count, at: Arc::new(move |n| blocks[usize::try_from(n).expect("it fits")]) }
    }
}

impl Blocks {
    /// Blocks by a rule.
    pub fn by(count: u64, at: impl Fn(u64) -> Block + Send + Sync + 'static) -> Self {
        Self { count, at: Arc::new(at) }
    }

    /// What changed from one image to the other, in blocks of 4 KiB, each by itself.
    pub fn delta(old: &Path, new: &Path) -> Self {
        Self::of_image(new, &crate::changed_extents(old, new, BLOCK_BYTES))
    }

    /// What an image holds: all that is not zero, in blocks of 4 KiB.
    pub fn allocated(image: &Path) -> Self {
        let bytes = std::fs::read(image).expect("read the image");
        let blocks = bytes.chunks(BLOCK_BYTES).enumerate();
        let live = blocks.filter(|(_, b)| b.iter().any(|byte| *byte != 0));
        let block = |(n, b): (usize, &[u8])| Block {
            offset: (n * BLOCK_BYTES) as u64,
            len: b.len() as u64,
            zero: false,
        };
        Self::from(live.map(block).collect::<Vec<_>>())
    }

    /// The same for any image, with a zero mark on blocks that hold nothing.
    fn of_image(image: &Path, extents: &[std::ops::Range<u64>]) -> Self {
        let bytes = std::fs::read(image).expect("read the image");
        let mut blocks = Vec::new();
        for extent in extents {
            let mut offset = extent.start;
            while offset < extent.end {
                let end = (offset + BLOCK_BYTES as u64).min(extent.end);
                let range = [offset, end].map(|n| usize::try_from(n).expect("an image fits"));
                let zero = bytes[range[0]..range[1]].iter().all(|byte| *byte == 0);
                blocks.push(Block { offset, len: end - offset, zero });
                offset = end;
            }
        }
        Self::from(blocks)
    }

    /// Number of blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Block number `n`.
    pub fn at(&self, n: u64) -> Block {
        (self.at)(n)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Block> {
        (0..self.count).map(|n| self.at(n))
    }
}

const BLOCK_BYTES: usize = 4096;
