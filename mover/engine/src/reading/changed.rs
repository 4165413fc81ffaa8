//! The bytes that differ between two backups, as a changed-block list.

use chunkstore::map::{MapDelta, delta_of};
use chunkstore::{Manifest, Repository, Result};
use mover_changes::{ChangeKind, ChangedBlocks, ListOrigin};
use std::sync::Arc;

/// A delta from backup `a` to backup `b`.
pub(crate) async fn diff_of(
    repo: &Arc<Repository>,
    a: &Manifest,
    b: &Manifest,
) -> Result<ChangedBlocks> {
    let MapDelta { data, zero } = delta_of(repo, a, b).await?;
    Ok(ChangedBlocks {
        kind: ChangeKind::Delta,
        origin: ListOrigin::Mover,
        volume_bytes: Some(b.size_bytes),
        data,
        zero,
        contexts: Vec::new(),
        notes: Vec::new(),
    })
}
