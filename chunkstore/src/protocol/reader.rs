//! Reading a backup under a lease.
//!
//! 1. A lease that names the backup. 2. *Then* confirm that its manifest is present and not
//!    forgotten. 3. Read; on a 404 look up the forwarding stub, and never remember that there was
//!    none. 4. Remove the lease.
//!
//! A reader that finds its lease gone was taken for dead: steps 1 and 2 again, beside the reading. What
//! it has read until then is right, as ids prove; what it cannot read any more may be gone because
//! its backup was forgotten in between, and then it says so.
//!
//! Without the right to write there is no lease. That is safe as long as nobody forgets the backup
//! meanwhile.

use super::lease::{Gap, LeaseKeeper, LeaseOptions, Removal};
use crate::advice::Advice;
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
    repo: Arc<Repository>,
    /// `None`: all backups.
    reads: Option<AttemptName>,
}

impl Reader {
    /// Takes a lease, unless `lease` is `None`, and confirms that the backup exists. `Forgotten` or
    /// `NotFound` if it does not.
    pub async fn begin(
        repo: &Arc<Repository>,
        manifest: &Manifest,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        let reader = Self::begin_held(repo, manifest, lease).await?;
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

    /// The same of a backup that has been held since it was confirmed last: it is readable,
    /// forgotten or not.
    pub async fn begin_held(
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
        Ok(Self { lease, repo: Arc::clone(repo), reads: Some(manifest.name()) })
    }

    /// For somebody who reads all backups: a lease that names one of them keeps everything from
    /// collections that begin later, whatever it names. Where there is no backup there is nothing
    /// to keep, and no lease. Backups, and what is forgotten, are to be listed after this.
    pub async fn begin_for_all(
        repo: &Arc<Repository>,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        let reader = |lease| Self { lease, repo: Arc::clone(repo), reads: None };
        let Some(options) = lease else { return Ok(reader(None)) };
        let listed = repo.store().list(BACKUPS_PREFIX).await?;
        let Some(name) = listed.iter().find_map(|l| parse_manifest_key(&l.key).ok()) else {
            return Ok(reader(None));
        };
        let lease = LeaseKeeper::create(repo, options.lease(LeaseRole::Reader { name })).await;
        Ok(reader(Some(Arc::new(lease.map_err(explain)?))))
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

    /// Refuses if the lease was gone for a while: then what is read may have been collected, and
    /// what was condemned meanwhile is not kept. For who is about to build on what was read.
    pub async fn check_held(&self) -> Result<()> {
        let Some(lease) = &self.lease else { return Ok(()) };
        if lease.look_for_gap().await?.is_none() {
            return Ok(());
        }
        let context = format!("build on what was read in {}", self.repo.store().url());
        let what = "the lease of this run was gone for a while, and a collection may have deleted what it kept";
        Err(Error::new(ErrorKind::Unavailable, context, what).hint("run it again"))
    }

    /// What could not be read may be gone because its backup was forgotten meanwhile: then that is
    /// the error, caused by this one. Once `unless` is ready it is no longer asked for.
    pub async fn explain(&self, e: Error, unless: impl Future<Output = ()>) -> Error {
        let Some(name) = &self.reads else { return e };
        let gone = matches!(e.kind(), ErrorKind::Missing | ErrorKind::NotFound);
        if !gone {
            return e;
        }
        // what cannot be asked explains nothing
        let confirmed = tokio::select! {
            biased;
            () = unless => return e,
            confirmed = confirm(&self.repo, name) => confirmed,
        };
        let (kind, what) = match confirmed {
            Ok(Confirmed::Forgotten) => (ErrorKind::Forgotten, "it was forgotten"),
            Ok(Confirmed::Absent) => (ErrorKind::NotFound, "it was forgotten and collected"),
            Ok(Confirmed::Present) | Err(_) => return e,
        };
        let context = format!("read backup {name} in {}", self.repo.store().url());
        let what = format!("{what} while it was read");
        Error::new(kind, context, what).caused_by(e.without_hint()).hint(format!(
            "{}; a reader that beats within its lease time keeps its backup",
            Advice::ListBackups.words()
        ))
    }

    /// Removes the lease. What comes back are warnings.
    pub async fn finish(self) -> Vec<String> {
        let Some(lease) = &self.lease else { return Vec::new() };
        let gap = lease.gap().await.map(|gap| self.was_gone(gap));
        let stays = lease.end(Removal::Always).await.map(stays_behind);
        gap.into_iter().chain(stays).collect()
    }

    fn was_gone(&self, gap: Gap) -> String {
        let gone = "the lease was gone for a while: this process was taken for dead";
        let Some(name) = &self.reads else {
            return format!(
                "{gone}; what is said to be lost may be of backups that were forgotten meanwhile: run it again"
            );
        };
        match gap {
            Gap::Found(Confirmed::Present) => {
                format!("{gone}; it took a new one, and backup {name} is still there")
            }
            Gap::Found(Confirmed::Forgotten | Confirmed::Absent) => {
                format!("{gone}, and backup {name} was forgotten meanwhile")
            }
            Gap::Unknown => {
                format!("{gone}; whether backup {name} is still there could not be found out")
            }
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
    let hint = format!("{why} {}", Advice::ReadWithoutLease.words());
    e.within("take a lease for reading").hint(hint)
}

fn not_there(repo: &Repository, manifest: &Manifest, kind: ErrorKind, detail: &str) -> Error {
    Error::new(kind, format!("read backup {} in {}", manifest.name(), repo.store().url()), detail)
        .hint(Advice::ListBackups.words())
}
