//! The backups that there are. A backup exists if its manifest has type `backup` and no forgotten
//! record names the same attempt. `find` says which of them a user means.
//!
//! Listing cost follows what is asked for: one volume's backups, or all. Manifests are read many at
//! a time, and one that cannot be read never hides the others; where it could be the one that was
//! asked for, it is an error.
//!
//! The order of backups is [`Manifest::order`] and nothing else. The times at which manifests were
//! stored are no part of it, as objects that are copied are dated anew. They only tell which
//! manifests to read first, and where reading more would change nothing.

use super::{RECORD_OVERHEAD, Repository, keep_highest};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::forgotten::Forgotten;
use crate::format::manifest::{Manifest, ManifestRecord};
use crate::format::names::{
    AttemptName, BACKUPS_PREFIX, FORGOTTEN_PREFIX, forgotten_of, manifests_of, parse_forgotten_key,
    parse_manifest_key,
};
use crate::ids::{BackupId, VolumeName};
use crate::limits::{MANIFEST_BYTES_MAX, SMALL_RECORD_BYTES_MAX};
use crate::store::{Created, Listed};
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, stream};
use std::collections::HashSet;

/// Manifests read at a time.
const IN_FLIGHT: usize = 32;
/// Manifests read at a time where the first that fits ends the search.
const STEP: usize = 8;
/// A store dates what comes later with at most so much less.
pub(crate) const STORE_CLOCK_GRAIN: TimeDelta = TimeDelta::seconds(5);
/// 2020-01-01: no backup is older than the program.
const CLOCK_SET: DateTime<Utc> = DateTime::from_timestamp_nanos(1_577_836_800_000_000_000);
const MANIFEST_OBJECT_BYTES_MAX: u64 = MANIFEST_BYTES_MAX as u64 + RECORD_OVERHEAD;

/// One backup of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupEntry {
    /// Its manifest.
    pub manifest: Manifest,
    /// When this object was stored, by the store's clock: for a copy, when it was copied.
    pub stored: DateTime<Utc>,
}

impl BackupEntry {
    /// When it was made, by the clock of the store that it was made for. A clock that was never set
    /// says 1970: then it was made after the backup that it comes after in the order.
    pub fn time(&self) -> DateTime<Utc> {
        let Manifest { finished, ordered, .. } = self.manifest;
        if finished < CLOCK_SET { finished.max(ordered) } else { finished }
    }

    /// A time from which on nothing of its data is. A snapshot is older than the run that reads it;
    /// a source without one, or one that may have changed, was read until the run's end.
    pub fn data_time(&self) -> DateTime<Utc> {
        let Manifest { started, snapshot, degraded, .. } = &self.manifest;
        let of_a_snapshot = snapshot.id.is_some() && degraded.is_empty();
        if of_a_snapshot && *started >= CLOCK_SET { *started } else { self.time() }
    }
}

/// What [`Repository::recent`] has looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recent {
    /// Backups of the volume, the newest first.
    pub backups: Vec<Manifest>,
    /// These are all that it has and that can be read.
    pub complete: bool,
    /// Why others of the volume could not be read.
    pub unreadable: Vec<String>,
}

/// The newest backup of a volume that a run has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewestSeen {
    /// Its place: what [`Manifest::order`] goes by first.
    pub ordered: Option<DateTime<Utc>>,
    /// It saw all of them, so there was no newer one.
    pub certain: bool,
}

/// An attempt that was listed and is not forgotten; it may still be a fence.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) name: AttemptName,
    pub(super) stored: DateTime<Utc>,
}

impl Repository {
    /// Backups of one volume or of all, by volume and then from the oldest to the newest; forgotten and fenced ones are
    /// left out. What could not be read is in the second list.
    pub async fn list_backups(
        &self,
        volume: Option<&VolumeName>,
    ) -> Result<(Vec<BackupEntry>, Vec<Error>)> {
        let attempts = self.list_attempts(volume).await?;
        let (mut backups, problems) = self.read_attempts(attempts).await?;
        backups.sort_by(|a, b| {
            let (a, b) = (&a.manifest, &b.manifest);
            (&a.volume, a.order()).cmp(&(&b.volume, b.order()))
        });
        Ok((backups, problems.into_iter().map(|(_, e)| e).collect()))
    }

    /// The backup of exactly this name, if there is one.
    pub async fn backup_named(
        &self,
        volume: &VolumeName,
        id: &BackupId,
    ) -> Result<Option<Manifest>> {
        let mut attempts = self.list_attempts(Some(volume)).await?;
        attempts.retain(|a| a.name.backup_id == *id);
        let (mut backups, problems) = self.read_attempts(attempts).await?;
        match (backups.pop(), problems.into_iter().next()) {
            (Some(backup), _) => Ok(Some(backup.manifest)),
            (None, Some((_, e))) => Err(e.within(format!("find backup {volume}@{id}"))),
            (None, None) => Ok(None),
        }
    }

    /// The newest backup of a volume, for one that wants to build upon it: reads as few manifests
    /// as it can. Unreadable ones are passed over with a warning.
    pub async fn latest_backup_of(&self, volume: &VolumeName) -> Result<Option<Manifest>> {
        Ok(self.recent(volume, None, 1).await?.backups.into_iter().next())
    }

    /// The newest backups of a volume, for one that wants to build upon them: at least so many, and
    /// on until one of them was made of this CSI snapshot, if one is named.
    ///
    /// Reads the manifests from the one stored last, and no more than it must. No place in the order
    /// is ahead of the time at which its manifest was stored, nor of that of a later copy; so the
    /// search ends where all that is left was stored before the newest that was found. That is not
    /// certain of a store whose clock went back, and need not be: what is found here is built upon,
    /// and the commit looks at all manifests where the store's clock is not well past it.
    pub async fn recent(
        &self,
        volume: &VolumeName,
        snapshot: Option<&str>,
        at_least: usize,
    ) -> Result<Recent> {
        let mut attempts = self.list_attempts(Some(volume)).await?;
        attempts.sort_by(|a, b| b.stored.cmp(&a.stored).then_with(|| b.name.cmp(&a.name)));
        let mut recent = Recent::default();
        let mut step = at_least.clamp(1, IN_FLIGHT);
        while let Some(next) = attempts.first()
            && !recent.is_enough(next.stored, snapshot, at_least)
        {
            let rest = attempts.split_off(step.min(attempts.len()));
            let (backups, problems) = self.read_attempts(attempts).await?;
            for (_, problem) in problems {
                tracing::warn!("{problem}");
                recent.unreadable.push(problem.to_string());
            }
            recent.backups.extend(backups.into_iter().map(|b| b.manifest));
            keep_highest(&mut recent.backups, Manifest::name);
            recent.backups.sort_by(|a, b| b.order().cmp(&a.order()));
            attempts = rest;
            step = STEP;
        }
        recent.complete = attempts.is_empty();
        Ok(recent)
    }

    /// The place in the order of the newest backup of a volume, whatever the store's clock says.
    pub(crate) async fn newest_place(&self, volume: &VolumeName) -> Result<Option<DateTime<Utc>>> {
        let (backups, problems) = self.list_backups(Some(volume)).await?;
        for problem in problems {
            tracing::warn!("{problem}");
        }
        Ok(backups.last().map(|b| b.manifest.ordered))
    }

    /// Makes a backup count as absent, for good, also one whose manifest is damaged. Its data goes
    /// with a later garbage collection.
    pub async fn forget(&self, name: &AttemptName, tool: &str) -> Result<()> {
        self.refuse_unknown_to_write("forget a backup of").await?;
        match self.read_manifest(name).await {
            Ok(Some(ManifestRecord::Backup(_))) => {}
            // a record of what does not exist would forbid the attempt to whoever is about to make
            // it
            Ok(_) => return Err(self.no_such_backup(&name.to_string())),
            // its key is taken for good, whatever it was
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                tracing::warn!("forgotten although it cannot be read: {e}");
            }
            Err(e) => return Err(e),
        }
        let record = Forgotten { name: name.clone(), time: Utc::now(), tool: tool.to_owned() };
        let key = name.forgotten_key();
        let bytes = record.encode(&self.keys, self.id(), &key)?;
        match self.store.create(&key, bytes.into()).await? {
            Created::Now | Created::Ours | Created::Taken(_) => Ok(()),
        }
    }

    /// What stands at the key of an attempt.
    pub(crate) async fn read_manifest(&self, name: &AttemptName) -> Result<Option<ManifestRecord>> {
        let key = name.manifest_key();
        let open = |bytes: &Bytes| self.decode_manifest(&key, bytes);
        self.store.open_opt(&key, MANIFEST_OBJECT_BYTES_MAX, open).await
    }

    pub(crate) fn decode_manifest(&self, key: &str, bytes: &[u8]) -> Result<ManifestRecord> {
        ManifestRecord::decode(&self.keys, self.id(), key, bytes).map_err(|e| {
            let e = e.within(format!("read {key} in {}", self.store.url()));
            // a later version's is whole
            let damaged = e.kind() == ErrorKind::Corrupt;
            if damaged { e.hint(Advice::FindRoots.words()) } else { e }
        })
    }

    /// That a record which was listed is one of ours. Only who has the keys can make a backup one
    /// that may be deleted.
    pub(crate) async fn confirm_forgotten(&self, name: &AttemptName) -> Result<()> {
        let key = name.forgotten_key();
        let bytes_max = u64::from(SMALL_RECORD_BYTES_MAX) + RECORD_OVERHEAD;
        let open = |bytes: &Bytes| Forgotten::decode(&self.keys, self.id(), &key, bytes);
        match self.store.open_opt(&key, bytes_max, open).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(self.store.absent(&key)),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                Err(e.within(format!("confirm {key} in {}", self.store.url())).hint(
                    "nothing is deleted as long as it is there: if nobody forgot that backup, somebody has put it there; delete it",
                ))
            }
            Err(e) => Err(e),
        }
    }

    pub(crate) async fn is_forgotten(&self, name: &AttemptName) -> Result<bool> {
        Ok(self.store.head(&name.forgotten_key()).await?.is_some())
    }

    /// Attempts with an object at their manifest key and no forgotten record. Foreign keys are
    /// passed over.
    pub(super) async fn list_attempts(&self, volume: Option<&VolumeName>) -> Result<Vec<Attempt>> {
        let (backups, forgotten) = match volume {
            Some(volume) => (manifests_of(volume), forgotten_of(volume)),
            None => (BACKUPS_PREFIX.to_owned(), FORGOTTEN_PREFIX.to_owned()),
        };
        let attempts = async || -> Result<Vec<Attempt>> {
            let listed = self.store.list(&backups).await?;
            let attempt = |l: Listed| {
                let name = parse_manifest_key(&l.key).ok()?;
                Some(Attempt { name, stored: l.last_modified })
            };
            Ok(listed.into_iter().filter_map(attempt).collect())
        };
        let (forgotten, mut found) = futures::try_join!(self.store.list(&forgotten), attempts())?;
        let forgotten: HashSet<AttemptName> =
            forgotten.iter().filter_map(|l| parse_forgotten_key(&l.key).ok()).collect();
        // An attempt is forgotten after the one in its place was committed. Who has found it
        // forgotten finds the other one from now on, and may have missed it before.
        if found.iter().any(|a| forgotten.contains(&a.name)) {
            found = attempts().await?;
            found.retain(|a| !forgotten.contains(&a.name));
        }
        Ok(found)
    }

    /// Reads them all, many at a time. Only what no other manifest can make up for is an error of
    /// the whole.
    pub(super) async fn read_attempts(
        &self,
        attempts: Vec<Attempt>,
    ) -> Result<(Vec<BackupEntry>, Vec<(Attempt, Error)>)> {
        let read = |attempt: Attempt| async move {
            let record = self.read_manifest(&attempt.name).await;
            (attempt, record)
        };
        let mut results = stream::iter(attempts).map(read).buffered(IN_FLIGHT);
        let (mut backups, mut problems) = (Vec::new(), Vec::new());
        while let Some((attempt, record)) = results.next().await {
            match record {
                Ok(Some(ManifestRecord::Backup(manifest))) => {
                    backups.push(BackupEntry { manifest: *manifest, stored: attempt.stored });
                }
                // a fence; or a collector removed it since it was listed
                Ok(Some(ManifestRecord::Fence { .. }) | None) => {}
                Err(e) if is_of_one_object(&e) => problems.push((attempt, e)),
                Err(e) => return Err(e),
            }
        }
        keep_highest(&mut backups, |b| b.manifest.name());
        // all attempts of a backup have the same content: one that can be read is the backup
        let beside = |(attempt, _): &mut (Attempt, Error)| {
            backups.iter().any(|b| b.manifest.name().is_of(&attempt.name))
        };
        for (_, e) in problems.extract_if(.., beside) {
            tracing::warn!("another attempt of that backup can be read: {e}");
        }
        Ok((backups, problems))
    }
}

impl Recent {
    /// For the writer that builds upon it.
    pub fn newest_seen(&self) -> NewestSeen {
        let ordered = self.backups.first().map(|m| m.ordered);
        NewestSeen { ordered, certain: self.complete }
    }

    /// The newest that was made of this CSI snapshot.
    pub fn of_snapshot(&self, id: &str) -> Option<&Manifest> {
        self.backups.iter().find(|m| m.snapshot.id.as_deref() == Some(id))
    }

    /// Whether what was stored then, or earlier, need not be read.
    fn is_enough(&self, stored: DateTime<Utc>, snapshot: Option<&str>, at_least: usize) -> bool {
        self.backups.len() >= at_least
            && snapshot.is_none_or(|id| self.of_snapshot(id).is_some())
            && self.backups.first().is_some_and(|m| before(stored, m.ordered))
    }
}

/// Whether a store stored one thing before another, beyond what its clock may be coarse or uneven.
pub(crate) fn before(a: DateTime<Utc>, b: DateTime<Utc>) -> bool {
    b.signed_duration_since(a) > STORE_CLOCK_GRAIN
}

/// Bad bytes, a version or a permission of one object; not a store that is away.
fn is_of_one_object(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}
