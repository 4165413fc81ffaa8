//! Fuzz targets: plain functions over bytes, which hold a decoder against what it promises.
//!
//! A target panics when a decoder does, and when what came out of it breaks a promise: bounds, order, a round trip. It never
//! minds an error: bytes are allowed to be bad. The functions are run in two ways: `cargo test -p fuzz` replays every file under
//! `corpus/<target>/`, and `fuzz/run TARGET SECONDS` lets libFuzzer look for new inputs, guided by the code they reach. That driver
//! is a package of its own (`fuzz/driver`), outside the workspace, so nothing else depends on it.
//!
//! A new target is a `pub fn` here, a line in [`TARGETS`], and a few small files in `corpus/<its name>/`.

mod lists;

pub use lists::changed_blocks;

/// A target and its name, which is that of its corpus too.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// As in `corpus/<name>` and in `fuzz/run <name>`.
    pub name: &'static str,
    /// Feeds it one input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[Target { name: "changed_blocks", run: changed_blocks }];
