//! What a command does: it looks at the cluster, writes a request into an anchor, and drives the
//! operation to its end.

pub mod backup;
pub mod carried;
pub mod given;
pub mod group;
pub mod hook;
pub mod in_place;
mod kept;
pub mod look;
pub mod lookup;
pub mod manifest;
pub mod objects;
pub mod operation;
pub mod populate;
pub mod repository;
pub mod restore;
pub mod schedules;
pub mod snapshots;
pub mod sources;
pub mod stored;
