//! The open volume and the run, as far as a source of lists needs them.

use chunkstore::Result;
use mover_nbd::Export;
use std::fmt::Debug;
use std::path::PathBuf;

/// An open volume. Its own file system, or the NBD server that serves it, may tell about its blocks.
pub trait Volume: Debug {
    /// Size of the volume.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset` on, past any cache that may be older than the volume.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Smallest unit of a block device; `None` for anything else.
    fn sector_bytes(&self) -> Option<u64>;

    /// Where it is mounted for writing, if a mount is seen.
    fn mounted_read_write(&self) -> Result<Option<PathBuf>>;

    /// Whether somebody uses it who is not seen from here.
    fn is_claimed_unseen(&self) -> Result<bool>;

    /// The same, after a moment in which whoever is about to let go of it has done so: a probe, or
    /// a mount that is being removed.
    fn stays_claimed_unseen(&self) -> Result<bool>;

    /// The NBD export, if it is one.
    fn export(&self) -> Option<&Export>;
}

/// A counter of the pieces of a list as they come: a run without movement is ended by its watchdog.
pub trait Movement: Debug + Send + Sync {
    /// Another piece has come.
    fn moved(&self);
}
