//! How writers and readers keep garbage collection from deleting what they need: leases, and the
//! order of steps.
//!
//! There is no lock and no clock to agree on. Any number of writers, readers and collectors work at
//! once, on nothing but create-once and a consistent listing. A collector deletes only what it has
//! listed as condemned *before* it listed the leases, and waits for every lease that it saw, or
//! fences it: it takes the key of the manifest (create-once) and only then removes the lease. So
//! what a writer may rely on is exactly what it has looked at *after* its lease was there:
//!
//! - the parent's manifest is present and not forgotten;
//! - a pack of somebody else's is in no condemned list and is present;
//! - its own packs are safe as long as its lease was not removed, which it learns from the fence at
//!   the latest.
//!
//! The steps are in [`Writer`] and [`Reader`], numbered as in the design of the protocol. Every one
//! of them was found necessary by a search of all interleavings: leaving one out gives a backup
//! that refers to deleted data. Writers and readers delete nothing but leases, and a writer without
//! the right to delete loses nothing: its leases run out. What is deleted is deleted by
//! [`collect`].

mod collector;
mod lease;
mod reader;
mod retain;
mod writer;

#[cfg(test)]
mod tests;

pub use collector::{CollectOptions, Collected, Waiting, collect, preview_collection};
pub use lease::LeaseOptions;
pub use reader::Reader;
pub use writer::{
    Checkpointer, Commit, ResumeBy, Unfinished, Writer, WriterOptions, find_unfinished,
};
