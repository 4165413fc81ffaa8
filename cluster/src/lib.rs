//! The cluster side of `mover`: from a PersistentVolumeClaim to a verified restore.

pub mod api;
pub mod cli;
pub mod controller;
pub mod differential;
pub mod drive;
pub mod engine;
pub mod hooks;
pub mod install;
pub mod kinds;
pub mod manifest;
pub mod ops;
pub mod page;
pub mod schedule;
