//! What a location may be. Checked wherever one is read or written, so that no reader asks a store
//! for an absurd range.

use super::corrupt;
use crate::error::Result;
use crate::limits::{
    ENTRY_CHUNKS_MAX, ENTRY_HEADER_BYTES, ENTRY_PLAIN_BYTES_MAX, PACK_BYTES_MAX, PACK_ENTRIES_MAX,
    PACK_HEADER_BYTES, TAG_BYTES,
};
use crate::units::Location;

/// Bytes that sealing adds to a payload.
pub(crate) const ENTRY_OVERHEAD_BYTES: u32 = ENTRY_HEADER_BYTES + TAG_BYTES;
/// Largest stored entry: a payload is never larger than its plaintext.
pub(crate) const ENTRY_STORED_BYTES_MAX: u32 = ENTRY_PLAIN_BYTES_MAX + ENTRY_OVERHEAD_BYTES;

/// Shortest entry there is: one byte of payload.
const ENTRY_STORED_MIN: u32 = ENTRY_OVERHEAD_BYTES + 1;

/// Whether a pack can have this entry at this offset: those before it have some bytes each.
pub(crate) fn is_possible(entry: u32, offset: u32) -> bool {
    entry <= offset / ENTRY_STORED_MIN
}

/// Refuses a location that no writer can have made: `docs/format.md`, section 8.
pub(crate) fn check_location(what: &str, location: &Location) -> Result<()> {
    check_entry(what, location.entry, location.offset, location.stored_len)?;
    if location.index >= ENTRY_CHUNKS_MAX {
        return Err(corrupt(what, format!("no entry has a chunk {}", location.index)));
    }
    Ok(())
}

/// The part of [`check_location`] that does not concern the chunk.
pub(crate) fn check_entry(what: &str, entry: u32, offset: u32, stored_len: u32) -> Result<()> {
    let bad = |why: String| Err(corrupt(what, why));
    if entry >= PACK_ENTRIES_MAX {
        return bad(format!("no pack has an entry {entry}"));
    }
    if offset < PACK_HEADER_BYTES {
        return bad(format!("offset {offset} lies in the header of a pack"));
    }
    if stored_len <= ENTRY_OVERHEAD_BYTES || stored_len > ENTRY_STORED_BYTES_MAX {
        return bad(format!("no entry is {stored_len} bytes long"));
    }
    if stored_len > PACK_BYTES_MAX - offset {
        return bad(format!("an entry of {stored_len} bytes at {offset} leaves its pack"));
    }
    Ok(())
}
