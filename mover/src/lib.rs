//! `mover`: reads a block device or image, moves its changed chunks to a repository, and writes
//! volumes back.
//!
//! The library behind the binary of the same name. `docs/architecture.md` has the code map.

pub mod backup;
pub mod cgroup;
pub mod check;
pub mod cli;
mod concurrency;
pub mod control;
pub mod copy;
pub mod device;
pub mod diff;
pub mod ingest;
pub mod inspect;
pub mod io;
pub mod price;
pub mod quota;
pub mod restore;
pub mod retention;
mod sample;
pub mod scratch;
pub mod verify;
