//! Deduplication: which chunks are stored already, and where.
//!
//! Best effort and bounded: where memory is short a chunk may be stored twice, and nothing is ever lost.

mod run_table;

pub use run_table::{Claim, RunTable, RunTableStats};
