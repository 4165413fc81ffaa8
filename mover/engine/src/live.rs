//! A volume that is written while its bytes are still elsewhere: a source that never changes below,
//! a target that has what was written or has been fetched, and a journal that says which chunks
//! those are.
//!
//! | file | |
//! |---|---|
//! | `bits`, `states` | pure: what is known of each chunk |
//! | `journal` | pure: the journal's bytes; `journal/file`: the file |
//! | `parts` | what a volume is made of: source, target and journal as traits |
//! | `volume` | reads, writes, zeros, trims |
//! | `flush` | the one order of syncs |
//! | `guards` | what is noted when a call is dropped |
//! | `hydrate` | fetches what is absent, what is asked for first |
//! | `device` | a target that is a device or a file |
//!
//! **The order, always**: the target's data is synced, a record is appended to the journal, the
//! journal is synced, the flush is acknowledged. A chunk is never durably done before its bytes are.
//! What is not durably done is fetched again after a crash, which undoes writes that were never
//! flushed, and no others.
//!
//! **Locks**: each chunk has one of a fixed number of locks. Whoever changes the target holds those
//! of the chunks that it touches, taken in ascending order: shared for whole blocks that nobody has
//! to read first, else alone. A fetch holds none. Under its lock an absent chunk has no bytes of a
//! guest on the target, so the source's may land.
//!
//! **Tasks**: each change runs in a task of its own. A client that goes away in the middle leaves
//! it; it ends all the same, and nothing stays half done. Changes that begin later wait for it, so it
//! never lands on top of what the same client has sent again.
//!
//! Cannot deadlock: locks have one order, a task that holds some waits for the target alone, and
//! flushes hold none. Who waits for changes that were left holds nothing, and those need nobody.
//!
//! Must not: know backups, NBD or a terminal.

mod bits;
mod device;
mod flush;
mod guards;
mod hydrate;
mod journal;
mod parts;
mod states;
#[cfg(test)]
mod tests;
mod volume;

pub use bits::ChunkBits;
pub use device::DeviceTarget;
pub use flush::FLUSHED_EVERY;
pub use hydrate::{HydrateOptions, Hydration, hydrate};
pub use journal::file::JournalFile;
pub use journal::{JournalFault, JournalTerms, Replayed, encode_base, encode_record, replay};
pub use parts::{CowSource, CowTarget, JournalLog, SourceFailure};
pub use states::ChunkStates;
pub use volume::{CowFigures, CowVolume};
