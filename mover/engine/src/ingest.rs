//! The storing half: from the chunks of a source to the packs and the map of a backup in a
//! repository.
//!
//! `rounds::Rounds` is the commit loop of all that stores; `pass::Pass` runs the stages over one
//! plan; each stage is a file. A source of bytes is a device, or a backup in another repository.
//!
//! Must not: know which operation it works for; decide inside a stage what the plan has decided.

pub(crate) mod assemble;
pub(crate) mod attach;
pub(crate) mod backup_source;
pub(crate) mod bounds;
pub(crate) mod checkpoint;
pub(crate) mod compression;
pub(crate) mod damage;
pub(crate) mod dedup;
pub(crate) mod feed;
pub(crate) mod pass;
pub(crate) mod read;
pub(crate) mod read_throttle;
pub(crate) mod resume;
pub(crate) mod rounds;
mod scratch;
pub(crate) mod seal;
pub(crate) mod stop;
pub(crate) mod unit;
pub(crate) mod units;
pub(crate) mod upload;
mod wanted;

/// A writer without a heartbeat for this long counts as dead to a collector.
pub(crate) const LEASE_SECONDS: u32 = 600;

pub use bounds::{Bounds, MEMORY_BYTES_MIN, ranges_max};
pub use compression::{CompressionChoice, CompressionUsed, LevelUsed};
pub use resume::Resumed;
