//! Which volumes and backups there are, for a mount of all of them. It is looked at again when
//! somebody looks, and at most so often.

use super::names;
use chrono::{DateTime, Utc};
use chunkstore::format::names::AttemptName;
use chunkstore::{Repository, Result, VolumeName};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a list counts as new.
pub(super) const LIST_EVERY: Duration = Duration::from_secs(10);

/// A backup, as far as a directory shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// In its volume's directory.
    pub(super) shown: String,
    pub(super) name: AttemptName,
    pub(super) time: DateTime<Utc>,
    pub(super) size_bytes: u64,
}

#[derive(Debug)]
struct Kept<T> {
    at: Instant,
    list: Arc<T>,
}

impl<T> Kept<T> {
    fn new(list: T) -> Self {
        Self { at: Instant::now(), list: Arc::new(list) }
    }

    fn is_new(&self) -> bool {
        self.at.elapsed() < LIST_EVERY
    }
}

/// Volumes with their names as directories.
type Named = Vec<(String, VolumeName)>;

/// What was listed last. Several who look at a time look once.
#[derive(Debug)]
pub(super) struct Catalogue {
    repo: Arc<Repository>,
    volumes: tokio::sync::Mutex<Option<Kept<Named>>>,
    backups: tokio::sync::Mutex<HashMap<VolumeName, Kept<Vec<Listed>>>>,
}

impl Catalogue {
    pub(super) fn new(repo: &Arc<Repository>) -> Self {
        let (volumes, backups) = Default::default();
        Self { repo: Arc::clone(repo), volumes, backups }
    }

    /// In the order of the names as directories.
    pub(super) async fn volumes(&self) -> Result<Arc<Named>> {
        let mut kept = self.volumes.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_new()) {
            return Ok(Arc::clone(&kept.list));
        }
        let found = Box::pin(self.repo.volumes()).await;
        let list = match (found, kept.take()) {
            (Ok(found), _) => {
                let shown = |name: VolumeName| (names::of_volume(&name), name);
                let mut list: Vec<_> = found.into_iter().map(shown).collect();
                list.sort_unstable();
                Kept::new(list)
            }
            (Err(e), Some(before)) => older("volumes", &e, before),
            (Err(e), None) => return Err(e),
        };
        Ok(Arc::clone(&kept.insert(list).list))
    }

    /// Backups of a volume, from the oldest to the newest.
    pub(super) async fn backups(&self, volume: &VolumeName) -> Result<Arc<Vec<Listed>>> {
        let mut all = self.backups.lock().await;
        if let Some(kept) = all.get(volume).filter(|kept| kept.is_new()) {
            return Ok(Arc::clone(&kept.list));
        }
        let found = Box::pin(self.repo.list_backups(Some(volume))).await;
        let list = match (found, all.remove(volume)) {
            (Ok((found, problems)), _) => {
                for problem in problems {
                    tracing::warn!("a backup of volume {volume} is not shown: {problem}");
                }
                let listed = found.into_iter().map(|entry| Listed {
                    shown: names::of_backup(&entry.manifest.backup_id),
                    name: entry.manifest.name(),
                    time: entry.time(),
                    size_bytes: entry.manifest.size_bytes,
                });
                Kept::new(listed.collect())
            }
            (Err(e), Some(before)) => older(volume.as_str(), &e, before),
            (Err(e), None) => return Err(e),
        };
        let kept = all.entry(volume.clone()).insert_entry(list);
        Ok(Arc::clone(&kept.get().list))
    }
}

/// A store that is away takes nothing from view that was there.
fn older<T>(what: &str, e: &chunkstore::Error, mut before: Kept<T>) -> Kept<T> {
    tracing::warn!("{what} cannot be listed, and what was there before is shown: {e}");
    before.at = Instant::now();
    before
}
