//! The damaged chunks of a parent: a pass reads them instead of taking them over.

use crate::run::RunContext;
use chunkstore::{
    Error, ErrorKind, Manifest, Repository, Result, VolumeMap,
    format::Checkpoint,
    map::{ReadLimits, damaged_chunks},
    repository::DamagedSet,
};
use std::ops::Range;

/// Chunks of the parent that must not be taken over. Costs a walk over its map, but only where
/// there are damage records.
pub(crate) fn damaged_of_parent(
    run: RunContext<'_>,
    repo: &Repository,
    parent: Option<&Manifest>,
    damaged: &DamagedSet,
    limits: ReadLimits,
) -> Result<Vec<Range<u64>>> {
    let Some(parent) = parent.filter(|_| !damaged.is_empty()) else { return Ok(Vec::new()) };
    let map = VolumeMap::of(repo, parent)?;
    run.wait(damaged_chunks(repo, &map, damaged, limits))
}

/// A checkpoint may be of a run that did not know of the damage yet: then what it has taken over is
/// damaged too. `lost`: the parent's damaged chunks.
pub(crate) fn check_undamaged(
    from: &Checkpoint,
    lost: &[Range<u64>],
    damaged: &DamagedSet,
) -> Result<()> {
    let inherited = lost.first().is_some_and(|first| first.start < from.next_chunk.0);
    if !inherited && !from.packs.iter().any(|pack| damaged.names(pack)) {
        return Ok(());
    }
    let what = "some of what it refers to is recorded as damaged";
    Err(Error::new(ErrorKind::Corrupt, "go on from the checkpoint", what))
}
