//! The memory budget of a run.

use chunkstore::{Error, ErrorKind, Setting};

/// The one bound on memory from which every other is derived (mapped files apart).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryBudget {
    /// All of it, in bytes.
    pub total_bytes: u64,
}

impl MemoryBudget {
    /// More has never been faster but over long lines (`docs/reference.md`).
    pub const DEFAULT: Self = Self { total_bytes: 256 << 20 };

    /// That an operation cannot do with it; `context` says where that was found out, and why an
    /// operation needs so much.
    pub fn too_little(self, context: &str, operation: &str, least_bytes: u64) -> Error {
        let detail = format!("{} bytes are too little for {operation}", self.total_bytes);
        let needed = TooLittleMemory { least_bytes };
        Error::new(ErrorKind::Usage, context, detail).caused_by(needed).hint(format!(
            "use {memory} {}MiB or more",
            needed.least_mib(),
            memory = Setting("memory")
        ))
    }
}

/// The cause of a [`MemoryBudget::too_little`], for whoever knows where the budget came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLittleMemory {
    /// The least budget that will do.
    pub least_bytes: u64,
}

impl TooLittleMemory {
    /// It, if that is why `error` has arisen.
    pub fn cause_of(error: &Error) -> Option<Self> {
        std::error::Error::source(error)?.downcast_ref().copied()
    }

    /// In whole MiB, rounded up.
    pub fn least_mib(self) -> u64 {
        self.least_bytes.div_ceil(1 << 20)
    }
}

impl std::fmt::Display for TooLittleMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it needs {} MiB", self.least_mib())
    }
}

impl std::error::Error for TooLittleMemory {}
