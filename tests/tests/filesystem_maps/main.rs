//! Which blocks a file system uses, as `mover` reads it from the raw device, held against the file
//! system's own tools and against the kernel: everything that a map leaves out is overwritten, and
//! then the file system must check clean and show the same files.
//!
//! Snapshots are taken while the file system is mounted and its newest metadata is in the journal
//! alone, as with a CSI snapshot of a running pod.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed
#![allow(clippy::cast_possible_truncation)] // volumes of some MiB
#![allow(clippy::print_stdout)] // what a mkfs does not know is shown

mod btrfs;
mod caches;
mod ext4;
mod fat;
mod lvm;
mod ntfs;
mod partitions;
mod stage;
mod swap;
mod xfs;
