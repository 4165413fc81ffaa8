//! The cluster side of `mover`: from a PersistentVolumeClaim to a verified restore.

pub mod api;
pub mod cli;
pub mod drive;
pub mod engine;
pub mod hooks;
pub mod kinds;
pub mod ops;
pub mod page;
pub mod schedule;
