//! Fuzz targets: plain functions over bytes, which hold a decoder against what it promises.
//!
//! A target panics when a decoder does, and when what came out of it breaks a promise: bounds,
//! order, a round trip. It never minds an error: bytes are allowed to be bad. The functions are run
//! in two ways: `cargo test -p fuzz` replays every file under `corpus/<target>/`, and
//! `fuzz/run TARGET SECONDS` lets libFuzzer look for new inputs, guided by the code they reach.
//! That driver is a package of its own (`fuzz/driver`), outside the workspace, so nothing else
//! depends on it.
//!
//! A new target is a `pub fn` here, its name in [`TARGETS`], and a few small files in
//! `corpus/<its name>/`.

mod clients;
mod filesystems;
mod journals;
mod kit;
mod lists;
mod names;
mod nbd;
mod packs;
mod records;
mod segments;

pub use clients::nbd_client;
pub use filesystems::{files, filesystem};
pub use journals::journal;
pub use lists::changed_blocks;
pub use names::{object_key, volume_name};
pub use nbd::nbd;
pub use packs::{pack, pack_directory, pack_entry};
pub use records::{
    blockers, condemned, damaged, feature, forgotten, key_info, lease, manifest, moved, page,
    record, repository_params, verdict,
};
pub use segments::{filter, segment, segment_layout};

/// A target and its name, which is that of its corpus too.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// As in `corpus/<name>` and in `fuzz/run <name>`.
    pub name: &'static str,
    /// Feeds it one input.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident)*) => { &[$(Target { name: stringify!($name), run: $name }),*] };
}

/// All targets.
pub const TARGETS: &[Target] = targets! {
    changed_blocks files filesystem journal nbd nbd_client object_key volume_name pack pack_directory pack_entry page segment segment_layout filter
    record repository_params key_info manifest lease forgotten damaged feature moved condemned blockers verdict
};
