//! The operations, one function each. They are made of `ingest` and `reading`, and none of them
//! names another, but for `mount`, which shows what `files` reads. `below` and `trace` are
//! what `serve` and `live_restore` share: a backup below a volume that is written, and which of its
//! bytes were read.

pub mod attachment;
pub mod backup;
mod below;
pub mod check;
pub mod copy;
pub mod diff;
pub mod files;
pub mod live_restore;
pub mod mount;
pub mod restore;
pub mod roots;
pub mod serve;
pub mod trace;
pub mod verify;
