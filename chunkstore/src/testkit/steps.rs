//! Single steps of storing, for benchmarks that time one or make packs without their entries.

use crate::error::Result;
use crate::ids::PackId;
use crate::keys::Keys;
use crate::pack::{self, DirectoryEntry};
use crate::seal::Sealer;
use bytes::Bytes;

/// Whether a sealer takes compressing for worth a try, from a sample.
pub fn is_worth_trying(sealer: &mut Sealer, plain: &[u8]) -> Result<bool> {
    sealer.is_worth_trying(plain)
}

/// What follows the entries of a pack, which end at `end`: its directory as stored, its trailer but
/// for the hash, and the length of the whole pack.
pub fn pack_end(
    keys: &Keys,
    pack: &PackId,
    end: u32,
    entries: &[DirectoryEntry],
) -> Result<(Bytes, Vec<u8>, u32)> {
    pack::pack_end(keys, pack, end, entries)
}
