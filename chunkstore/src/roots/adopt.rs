//! A backup made of a found root.

use super::FoundRoot;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{
    BackupStats, ChangeKind, Manifest, MapRoot, SnapshotInfo, SourceInfo,
};
use crate::ids::{BackupId, PackId, VolumeName};
use crate::protocol::{Commit, LeaseOptions, Writer, WriterOptions};
use crate::repository::{NewestSeen, Repository};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is made of a found root.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// Of which volume it is to be a backup.
    pub volume: VolumeName,
    /// Its name.
    pub backup_id: BackupId,
    /// Size of the volume.
    pub size_bytes: u64,
    /// What the lease says.
    pub lease: LeaseOptions,
}

/// Makes a backup of a found root. All packs that it leads to are confirmed under a writer's lease.
/// It is ordered where its root was stored, so it does not come before what is newer.
///
/// Errors: `Usage` if the root has not so many bytes, or not all of it is to be had; `Unavailable`
/// if a collection deletes what it leads to; `AlreadyExists`, `Forgotten`: the name is taken.
pub async fn adopt(
    repo: &Arc<Repository>,
    root: &FoundRoot,
    adoption: Adoption,
) -> Result<(Manifest, Vec<String>)> {
    let Adoption { volume, backup_id, size_bytes, lease } = adoption;
    let context = || format!("make a backup of root {} in {}", root.page.id, repo.store().url());
    let [least, most] = root.size_bytes;
    if !(least..=most).contains(&size_bytes) {
        let what = format!("a volume of {size_bytes} bytes has another root: {least} to {most} do");
        return Err(Error::new(ErrorKind::Usage, context(), what));
    }
    if root.missing > 0 {
        let what = format!("{} pages or packs of it are not to be had", root.missing);
        return Err(Error::new(ErrorKind::Missing, context(), what));
    }
    let tool = lease.tool.clone();
    let manifest = Manifest {
        volume: volume.clone(),
        backup_id: backup_id.clone(),
        attempt: 0,
        size_bytes,
        map: MapRoot { depth: root.level + 1, root: Some(root.page) },
        parent: None,
        snapshot: SnapshotInfo::default(),
        source: SourceInfo {
            path: String::new(),
            kind: ChangeKind::Whole,
            origin: "found-root".into(),
            listed_bytes: 0,
            listed_extents: 0,
            identity: None,
        },
        started: root.stored,
        finished: root.stored,
        ordered: root.stored,
        clock_offset_ms: None,
        stats: BackupStats::default(),
        tool,
        labels: BTreeMap::new(),
        degraded: vec![
            "made of a found root, without its manifest: name, size and times are not those of the backup that was lost".into(),
        ],
        copied_from: None,
        attachments: Vec::new(),
    };
    let options = WriterOptions {
        volume,
        backup_id,
        parents: Vec::new(),
        after: NewestSeen::default(),
        lease,
    };
    let mut writer = Writer::begin_in_its_place(repo, options).await?;
    let beat = writer.heartbeat();
    let work = Box::pin(commit(&mut writer, manifest, &root.packs, context()));
    let done = tokio::select! {
        done = work => done,
        // it ends with the writer, so never before the work
        () = beat => Err(Error::new(ErrorKind::Bug, "keep a lease alive", "the heartbeat ended")),
    };
    let warnings = writer.finish().await;
    Ok((done?, warnings))
}

async fn commit(
    writer: &mut Writer,
    manifest: Manifest,
    packs: &[PackId],
    context: String,
) -> Result<Manifest> {
    match writer.commit(manifest, &[], packs).await? {
        Commit::Done(made) | Commit::AlreadyDone(made) => Ok(*made),
        Commit::StoreAgain { missing } => {
            let what = format!(
                "{} packs that it leads to were moved, or a collection is about to delete them",
                missing.len()
            );
            Err(Error::new(ErrorKind::Unavailable, context, what)
                .hint("look for roots again when no collection waits any more"))
        }
        Commit::Restart { reason } => {
            Err(Error::new(ErrorKind::Unavailable, context, reason).hint("run it again"))
        }
    }
}
