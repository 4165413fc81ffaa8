//! The operations, one function each. They are made of `ingest` and `reading`, and none of them
//! names another, but for `mount`, which shows what `files` reads.

pub mod attachment;
pub mod backup;
pub mod check;
pub mod copy;
pub mod diff;
pub mod files;
pub mod mount;
pub mod restore;
pub mod roots;
pub mod serve;
pub mod verify;
