//! Trees of pages that no manifest leads to, and backups made of them: for when a manifest is lost.

use crate::reading::Reading;
use crate::run::{Cancel, Phase, Progress, RunContext};
use chunkstore::map::ReadLimits;
use chunkstore::roots::{self, Adoption, FoundRoot};
use chunkstore::{
    BackupId, Error, ErrorKind, LeaseOptions, Manifest, Repository, Result, Setting, VolumeName,
};
use std::sync::Arc;
use tokio::runtime::Handle;

/// What to make of a found root.
#[derive(Debug, Clone)]
pub struct AdoptOptions {
    /// The id of its root page, or the beginning of it.
    pub root: String,
    /// The volume; by default one that is named after the root.
    pub volume: Option<VolumeName>,
    /// The backup's id; by default a random one.
    pub backup_id: Option<BackupId>,
    /// Size of the volume; by default that of the volume that shares most with it, where it fits,
    /// else the least.
    pub size_bytes: Option<u64>,
}

/// Where a size comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SizeFrom {
    /// It was asked for.
    Asked,
    /// No other is possible.
    Certain,
    /// The newest backup of this volume has it.
    Volume(VolumeName),
    /// It is the least that is possible.
    Least,
}

/// A backup that was made of a found root.
#[derive(Debug, Clone)]
pub struct Adopted {
    /// Its manifest.
    pub manifest: Manifest,
    /// Where its size comes from.
    pub size_from: SizeFrom,
    /// It is the newest backup of a volume that had others before.
    pub is_newest: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Finds all roots, under a reader's lease if one is given.
pub fn find_roots(
    rt: &Handle,
    repo: &Arc<Repository>,
    lease: Option<LeaseOptions>,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<(Vec<FoundRoot>, Vec<String>)> {
    progress.set_phase(Phase::Planning);
    let run = RunContext { rt, cancel, progress };
    let reading = Reading::begin_for_all(run, repo, lease)?;
    let found = run.wait(Box::pin(roots::find(repo, ReadLimits::default())));
    let warnings = reading.finish(run);
    Ok((found?, warnings))
}

/// Makes a backup of one of the roots that were found.
pub fn adopt_root(
    rt: &Handle,
    repo: &Arc<Repository>,
    found: &[FoundRoot],
    options: AdoptOptions,
    lease: LeaseOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<Adopted> {
    let run = RunContext { rt, cancel, progress };
    let root = chosen(found, &options.root)?;
    let hex = root.page.id.to_hex();
    let volume = match options.volume {
        Some(volume) => volume,
        None => VolumeName::new(format!("found-{}", &hex[..12]))?,
    };
    let backup_id = options.backup_id.unwrap_or_else(BackupId::random);
    let (size_bytes, size_from) = size(run, repo, root, options.size_bytes)?;
    let before = run.wait(repo.latest_backup_of(&volume))?;
    let adoption = Adoption { volume, backup_id, size_bytes, lease };
    // a commit under way is waited for
    let adopted = rt.block_on(Box::pin(roots::adopt(repo, root, adoption)));
    let (manifest, warnings) = adopted?;
    let is_newest = before.is_some_and(|before| before.order() < manifest.order());
    Ok(Adopted { manifest, size_from, is_newest, warnings })
}

fn chosen<'r>(found: &'r [FoundRoot], root: &str) -> Result<&'r FoundRoot> {
    let wanted = root.to_ascii_lowercase();
    let mut fitting = found.iter().filter(|r| r.page.id.to_hex().starts_with(&wanted));
    let e = match (fitting.next(), fitting.next()) {
        (Some(root), None) => return Ok(root),
        (None, _) => (ErrorKind::NotFound, "no root that was found begins so"),
        (Some(_), Some(_)) => (ErrorKind::Usage, "several roots begin so: write more of it"),
    };
    let find_roots = Setting("find-roots");
    Err(Error::new(e.0, format!("find root {root:?}"), e.1)
        .hint(format!("{find_roots} alone shows the roots that there are")))
}

fn size(
    run: RunContext<'_>,
    repo: &Repository,
    root: &FoundRoot,
    asked: Option<u64>,
) -> Result<(u64, SizeFrom)> {
    let [least, most] = root.size_bytes;
    if let Some(asked) = asked {
        return Ok((asked, SizeFrom::Asked));
    }
    if least == most {
        return Ok((least, SizeFrom::Certain));
    }
    if let Some((volume, _)) = root.volumes.first()
        && let Some(newest) = run.wait(repo.latest_backup_of(volume))?
        && (least..=most).contains(&newest.size_bytes)
    {
        return Ok((newest.size_bytes, SizeFrom::Volume(volume.clone())));
    }
    Ok((least, SizeFrom::Least))
}
