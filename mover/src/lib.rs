//! `mover`: reads a block device or image, moves its changed chunks to a repository, and writes
//! volumes back.
//!
//! The library behind the binary of the same name. `docs/architecture.md` has the code map.

pub mod backup;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod copy;
pub mod device;
pub mod diff;
pub mod ingest;
pub mod inspect;
pub mod io;
pub mod price;
pub mod restore;
pub mod retention;
pub mod run;
mod sample;
pub mod scratch;
pub mod verify;
