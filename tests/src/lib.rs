//! What the end-to-end tests share: real devices, real filesystems, real servers, and the built
//! program.
//!
//! Helpers stop the test with a panic that says what went wrong; nothing here is used by the
//! product. A test that cannot run here says so through [`require_root!`] or [`require_s3!`], which
//! print a line `SKIP: reason` past the test harness' capture; `tests/run` fails on any such line.
//! Everything that random data comes from prints its seed, and `MOVER_TEST_SEED` sets it.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests print seeds and read their own MOVER_TEST_* environment"
)]

mod bad_file;
mod beside;
mod binary;
mod cgroup;
mod clean;
mod clocked;
mod containers;
mod crates;
mod devices;
mod dying;
mod extents;
mod failing;
mod filesystems;
mod forge;
mod golden;
mod images;
mod lvm;
mod place;
mod random;
mod recorded;
mod relay;
mod servers;
mod skip;
mod trackers;
mod vault;

pub use bad_file::{BadFile, Badness};
pub use beside::BesideStore;
pub use binary::{
    Mover, MoverOutput, example_bin, mover_bin, python, target_dir, volume_dir, work_dir,
};
pub use cgroup::Cgroup;
pub use clean::expect_clean;
pub use clocked::{Clocked, ClockedStore};
pub use containers::{Container, Containers};
pub use crates::{product_sources, workspace};
pub use devices::{LoopDevice, Mount, run, run_ok};
pub use dying::{Death, DyingStore};
pub use extents::{changed_extents, copy_image, extents_json, first_difference, write_extents};
pub use failing::{FailingStore, Failure};
pub use filesystems::{Filesystem, TreeEntry, TreeListing};
pub use forge::{Forge, at};
pub use golden::{ExpectedBackup, Golden, Library};
pub use images::{LiveVolume, VolumeState};
pub use lvm::Lvm;
pub use place::Place;
pub use random::Rng;
pub use recorded::{Recorded, RecordedServer};
pub use relay::{
    FaultCounts, FaultKind, FaultOptions, LinkOptions, Mood, Relay, RelayCounts, RelayOptions,
};
pub use servers::{S3Bucket, S3Server, S3Version};
pub use skip::{is_root, skip};
pub use trackers::{
    Authority, Block, Blocks, Code, GrpcCall, GrpcQuirks, GrpcScript, GrpcServer, RawAnswer,
    RawServer, RestQuirks, RestRequest, RestServer, RestSpelling,
};
pub use vault::{Vault, VaultParams, VaultRun};
