//! Reading a backup under a lease.
//!
//! 1. A lease that names the backup. 2. *Then* confirm that its manifest is present and not
//!    forgotten. 3. Read; on a 404 look up the forwarding stub, and never remember that there was
//!    none. 4. Remove the lease.
//!
//! Without the right to write there is no lease. That is safe as long as nobody forgets the backup
//! meanwhile.

use super::lease::{LeaseKeeper, LeaseOptions, Removal};
use crate::error::{Error, ErrorKind, Result};
use crate::format::lease::LeaseRole;
use crate::format::manifest::{Manifest, ManifestRecord};
use crate::format::names::{AttemptName, BACKUPS_PREFIX, parse_manifest_key};
use crate::repository::Repository;
use std::sync::Arc;

/// Somebody reading one backup.
#[derive(Debug)]
pub struct Reader {
    lease: Option<Arc<LeaseKeeper>>,
}

impl Reader {
    /// Takes a lease, unless `lease` is `None`, and confirms that the backup exists. `Forgotten` or
    /// `NotFound` if it does not.
    pub async fn begin(
        repo: &Arc<Repository>,
        manifest: &Manifest,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        let lease = match lease {
            None => None,
            Some(options) => {
                let role = LeaseRole::Reader { name: manifest.name() };
                let lease = LeaseKeeper::create(repo, options.lease(role)).await;
                Some(Arc::new(lease.map_err(explain)?))
            }
        };
        let reader = Self { lease };
        match confirm(repo, &manifest.name()).await {
            Ok(Confirmed::Present) => Ok(reader),
            Ok(Confirmed::Forgotten) => {
                reader.finish().await;
                Err(not_there(repo, manifest, ErrorKind::Forgotten, "it was forgotten"))
            }
            Ok(Confirmed::Absent) => {
                reader.finish().await;
                Err(not_there(repo, manifest, ErrorKind::NotFound, "its manifest is gone"))
            }
            Err(e) => {
                reader.finish().await;
                Err(e)
            }
        }
    }

    /// For somebody who reads all backups: a lease that names one of them keeps everything from
    /// collections that begin later, whatever it names. Where there is no backup there is nothing
    /// to keep, and no lease. Backups, and what is forgotten, are to be listed after this.
    pub async fn begin_for_all(
        repo: &Arc<Repository>,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        let Some(options) = lease else { return Ok(Self { lease: None }) };
        let listed = repo.store().list(BACKUPS_PREFIX).await?;
        let Some(name) = listed.iter().find_map(|l| parse_manifest_key(&l.key).ok()) else {
            return Ok(Self { lease: None });
        };
        let lease = LeaseKeeper::create(repo, options.lease(LeaseRole::Reader { name })).await;
        Ok(Self { lease: Some(Arc::new(lease.map_err(explain)?)) })
    }

    /// Keeps the lease alive; to be spawned beside the reading. Ends with the reader.
    pub fn heartbeat(&self) -> impl Future<Output = ()> + Send + 'static {
        let beat = self.lease.as_ref().map(LeaseKeeper::heartbeat);
        async move {
            if let Some(beat) = beat {
                beat.await;
            }
        }
    }

    /// Removes the lease. What comes back are warnings.
    pub async fn finish(self) -> Vec<String> {
        match &self.lease {
            None => Vec::new(),
            Some(lease) => lease.end(Removal::Always).await.map(stays_behind).into_iter().collect(),
        }
    }
}

/// Whether a backup exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmed {
    Present,
    Forgotten,
    Absent,
}

/// Steps writer 2 and reader 2. It counts only if the lease was there before. A fence is no backup;
/// the caller knows from the manifest it has read that this is none, and fences never replace
/// manifests.
pub(super) async fn confirm(repo: &Repository, name: &AttemptName) -> Result<Confirmed> {
    let key = name.manifest_key();
    let (manifest, forgotten) =
        futures::try_join!(repo.store().head(&key), repo.is_forgotten(name))?;
    Ok(match (manifest, forgotten) {
        (_, true) => Confirmed::Forgotten,
        (Some(_), false) => Confirmed::Present,
        (None, false) => Confirmed::Absent,
    })
}

/// The backup that stands at this key and is not forgotten.
pub(super) async fn backup_at(repo: &Repository, name: &AttemptName) -> Result<Option<Manifest>> {
    match repo.read_manifest(name).await? {
        Some(ManifestRecord::Backup(manifest)) => Ok(Some(*manifest)),
        Some(ManifestRecord::Fence { .. }) | None => Ok(None),
    }
}

/// A lease that could not be removed: harmless, but it shows.
pub(super) fn stays_behind(e: Error) -> String {
    format!("the lease stays until it runs out: {e}")
}

fn explain(e: Error) -> Error {
    let why = match e.kind() {
        ErrorKind::Denied => "with read-only credentials",
        ErrorKind::NoSpace => "where nothing more can be stored",
        _ => return e,
    };
    let hint = "use --no-lease: safe as long as nobody forgets this backup meanwhile";
    e.within("take a lease for reading").hint(format!("{why} {hint}"))
}

fn not_there(repo: &Repository, manifest: &Manifest, kind: ErrorKind, detail: &str) -> Error {
    Error::new(kind, format!("read backup {} in {}", manifest.name(), repo.store().url()), detail)
        .hint("`list` shows what there is")
}
