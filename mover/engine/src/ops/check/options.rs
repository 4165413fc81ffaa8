//! The request of a check.

use crate::run::MemoryBudget;
use chunkstore::LeaseOptions;

/// How much of the packs is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReadData {
    /// Their directories only.
    Nothing,
    /// So many of a hundred packs, chosen anew each time.
    Percent(f64),
    /// Every byte.
    All,
}

/// What to check, and with what.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// How much is read.
    pub read_data: ReadData,
    /// Put right what can be, and record what is lost.
    pub repair: bool,
    /// The reader's lease to take; without one nobody may forget backups and collect garbage
    /// meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory, the mark apart.
    pub memory: MemoryBudget,
    /// Threads; by default one a core.
    pub threads: Option<usize>,
}
