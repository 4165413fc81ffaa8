//! Deduplication: which chunks are stored already, and where.
//!
//! Best effort and bounded: where memory is short a chunk may be stored twice, and nothing is ever lost.

mod index;
mod run_table;

pub use index::{DedupIndex, DedupOptions, DedupStats, Lookup, NeededBlock, Scratch, ScratchBytes};
pub use run_table::{Claim, RunTable, RunTableStats};
