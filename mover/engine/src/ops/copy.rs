//! Copying backups from one repository to another: other keys, another store, another way to cut
//! volumes.
//!
//! | file | |
//! |---|---|
//! | `plan` | pure: what is there already, and which backup lies in both repositories and can be built on |
//! | `list` | which bytes of the volume have to be gone through, from maps of the source alone |
//! | `run`, `ends` | one copy from its leases to its manifest; the two repositories and the leases |
//! | `options` | the request |
//! | `memory`, `summary` | the budget divided between reading and writing; what a copy did |
//!
//! A copy is a backup whose device is a backup elsewhere. It reads as a restore does, under a
//! reader's lease in the source, and stores as a backup does, under a writer's lease in the target,
//! through the same stages: so it has the same promises to whoever collects garbage in either, the
//! same checkpoints, the same deduplication, the same single point of commit.
//!
//! Chunks are opened, checked against the source's ids, identified by the target's key, and sealed
//! again. Nothing of a repository's keys, chunk size, entry size or fan-out goes with them, so the
//! two need not agree in anything.
//!
//! What is gone through follows the change: where a backup of the same volume lies in both
//! repositories, only what differs from it in the source (by its maps) is read, and the rest is
//! inherited from its copy. That the two hold the same is not guessed from names: a copy says in
//! its manifest which run made the original.
//!
//! Invariants: nothing is written to the source but leases; a byte that is stored in the target was
//! checked against its id in the source; the manifest of a copy says what the original's says, but
//! for map, parent and attempt, and where it came from.

mod list;
mod memory;
mod options;
mod plan;
mod run;
mod session;
mod summary;

pub use options::CopyOptions;
pub use plan::{Base, Standing, base_of, standing};
pub use run::{copy, taken};
pub use summary::{CopyOutcome, CopySummary};
