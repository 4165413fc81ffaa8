//! What every operation carries: progress counters, the request to stop, bounds, the first failure.
//!
//! An operation adds to [`Progress`] and asks [`Cancel`] at each unit of work; whoever started it
//! reads the one and sets the other. Neither ever blocks an operation.
//!
//! Must not: know signals, terminals or settings; know what is moved.

mod cancel;
pub(crate) mod concurrency;
mod context;
pub(crate) mod failure;
mod identity;
mod memory;
mod progress;
pub mod quota;
pub(crate) mod threads;

pub use cancel::{Cancel, StopReason};
pub(crate) use context::RunContext;
pub use identity::{host, tool};
pub use memory::{MemoryBudget, TooLittleMemory};
pub use progress::{Counter, Phase, Progress};
