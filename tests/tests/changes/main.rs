//! Changed-block lists from servers: every source end to end, every quirk of a server, and the
//! ladder.

#![allow(clippy::print_stdout, reason = "tests print what they measure")]

mod calls;
mod command;
mod dialects;
mod differential;
mod grpc;
mod ladder;
mod reaching;
mod rest;
mod world;

use mover_changes::{ChangeKind, ChangeSource, ChangedBlocks, ListRequest, RetryPolicy};
use mover_extents::Extents;
use tests::Blocks;

/// Waits of a millisecond: what is tried again is tried at once.
pub(crate) fn quick() -> RetryPolicy {
    RetryPolicy {
        tries_max: 4,
        internal_tries_max: 2,
        wait_first_ms: 1,
        wait_max_ms: 2,
        start_ms: 15_000,
        idle_ms: 2000,
        nothing_new_ms: 20_000,
    }
}

/// Asks a source, with memory for any list.
pub(crate) fn fetch(
    source: &ChangeSource,
    kind: ChangeKind,
    volume_bytes: u64,
) -> chunkstore::Result<ChangedBlocks> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(source.fetch(&ListRequest {
        kind,
        volume_bytes,
        ranges_max: 1 << 20,
        granule_bytes: 4096,
        base: None,
        device: None,
        movement: None,
    }))
}

/// The data and the zeros that blocks name.
pub(crate) fn wanted(blocks: &Blocks) -> (Extents, Extents) {
    let of = |zero| -> Extents {
        let marked = blocks.iter().filter(|b| b.zero == zero);
        marked.map(|b| b.offset..b.offset + b.len).collect()
    };
    (of(false), of(true))
}
