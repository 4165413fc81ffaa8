//! Reading entries out of packs: plan merged ranges, read them, follow packs that a collection has
//! rewritten.
//!
//! A caller plans with [`plan_reads`], reads with [`read_range`], and where a pack is gone asks a
//! [`StubFollower`] where its chunks or pages went, then plans again. That a forwarding stub is absent
//! is never remembered, since it may be written a moment later (`docs/format.md`, section 10);
//! stubs themselves never change and may be kept.

mod directory;
mod header;
mod plan;
mod stubs;

pub(crate) use directory::{PackFrame, read_frame};
pub use header::HeaderCheck;
pub use plan::{EntryAddr, RangeRead, plan_reads};
pub use stubs::StubFollower;

use crate::error::{ErrorKind, Result};
use crate::format::names::pack_key;
use crate::repository::Repository;
use bytes::Bytes;

/// Answer to [`read_range`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// Exactly the bytes asked for.
    Data(Bytes),
    /// The pack does not exist (any more): follow its stub.
    Gone,
}

/// One range read of one pack.
pub async fn read_range(repo: &Repository, read: &RangeRead) -> Result<Fetched> {
    match repo.store().get_range(&pack_key(&read.pack), read.range()).await {
        Ok(data) => Ok(Fetched::Data(data)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Fetched::Gone),
        Err(e) => Err(e),
    }
}
