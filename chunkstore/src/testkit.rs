//! What tests, benchmarks and fuzz targets are made of. Behind the feature `testkit`, which only
//! they enable: the product has none of this.
//!
//! | module | |
//! |---|---|
//! | `hooked` | an object store with a hook around each request: every fault and every watch of a test |
//! | `faulty` | a hook with a script of faults |
//! | [`repositories`] | repositories in memory, and manifests to put into them |
//! | [`golden`] | encoders without randomness |
//! | [`fuzzing`] | mutated bytes under the checksum that they ask for |
//! | `steps` | single steps of storing, for benchmarks |
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faulty;
pub mod fuzzing;
pub mod golden;
mod hooked;
pub mod repositories;
mod steps;

pub use faulty::{Fault, FaultyStore};
pub use hooked::{Answer, Hook, HookedStore, Request, Verb};
pub use steps::{is_worth_trying, pack_end};
