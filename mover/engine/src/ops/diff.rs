//! What differs between two backups, from their maps alone.
//!
//! The result is a delta with the first backup as its base: applied to the first, it gives the
//! second. Pages are read only where the two maps differ, and no chunk is read. Nothing is written,
//! not even a lease, so this works with read-only credentials; should a backup be forgotten and
//! collected meanwhile, the page that is gone is an error, never a wrong result.

use crate::reading::changed::diff_of;
use crate::run::Cancel;
use chunkstore::{Error, ErrorKind, Repository, Result};
use mover_changes::ChangedBlocks;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Changed extents from backup `a` to backup `b` of the same volume, in a shape that a backup
/// accepts as its list. What is zero in `b` is among the zero ranges; what lies behind the end of
/// `a` counts as changed.
pub fn diff(
    rt: &Handle,
    repo: &Arc<Repository>,
    (a, b): (&str, &str),
    cancel: &Cancel,
) -> Result<ChangedBlocks> {
    rt.block_on(cancel.unless_requested(async {
        let (a, b) = (repo.find_backup(a).await?, repo.find_backup(b).await?);
        if a.volume != b.volume {
            let detail = format!("the first is of volume {}, the second of {}", a.volume, b.volume);
            let context = format!("compare backups {} and {}", a.backup_id, b.backup_id);
            return Err(Error::new(ErrorKind::Usage, context, detail)
                .hint("give two backups of one volume"));
        }
        diff_of(repo, &a, &b).await
    }))
}
