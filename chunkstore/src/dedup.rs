//! Deduplication: which chunks are stored already, and where.
//!
//! Best effort and bounded: where memory is short a chunk may be stored twice, and nothing is ever
//! lost.
//!
//! | file | |
//! |---|---|
//! | `run_table` | [`RunTable`]: what this run has met itself |
//! | `index` | [`DedupIndex`]: lookups in the segments of other runs |
//! | `opening` | which segments are used, and how, within the budget |
//! | `segment` | one segment in use |
//! | `blocks` | blocks that were read by range |
//! | `scratch` | [`Scratch`]: plain copies of segments beside a run |

mod blocks;
mod index;
mod opening;
mod run_table;
mod scratch;
mod segment;

pub use blocks::NeededBlock;
pub use index::{DedupIndex, DedupOptions, DedupStats, Lookup};
pub use run_table::{DedupReservation, RunTable, RunTableStats};
pub use scratch::{Scratch, ScratchBytes, ScratchWriter};
