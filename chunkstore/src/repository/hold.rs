//! Holds: a backup that somebody needs between two runs, and for as long as it takes.
//!
//! A hold is a reader's lease that never runs out, [`HOLD_SECONDS`], and has no heartbeat. So every
//! collector waits for it, one that knows nothing of holds too. [`Repository::forget_backup`] refuses to forget
//! its backup. It is removed by its owner, who knows its id, or by a person.
//!
//! Whoever takes one confirms *then* that the backup is there, as readers do. A backup that is
//! forgotten in the same moment stays readable: the record that forgets it is younger than the
//! hold, so each collection that goes by the record has seen the hold.

use super::{RECORD_OVERHEAD, Repository};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::lease::{Lease, LeaseRole};
use crate::format::manifest::{Manifest, ManifestRecord};
use crate::format::names::{AttemptName, LEASES_PREFIX, lease_key, parse_lease_key};
use crate::ids::LeaseId;
use crate::limits::LEASE_BYTES_MAX;
use crate::store::Created;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};

/// What a lease says that is a hold: 136 years.
pub(crate) const HOLD_SECONDS: u32 = u32::MAX;
/// Leases read at a time.
const IN_FLIGHT: usize = 16;

/// A backup that is kept, for whom, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Names it.
    pub id: LeaseId,
    /// The backup.
    pub name: AttemptName,
    /// Since when, by the clock of the machine that took it.
    pub since: DateTime<Utc>,
    /// Where that was.
    pub host: String,
    /// Program and version.
    pub tool: String,
}

/// How taking a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenHold {
    /// It is there from now on, or is of another attempt: this one is still to be confirmed.
    Now,
    /// It was there: its backup is readable, forgotten or not.
    Before,
}

impl Hold {
    pub(super) fn of(lease: Lease) -> Option<Self> {
        let Lease { lease_id: id, role, started: since, lease_seconds, host, tool, .. } = lease;
        match role {
            LeaseRole::Reader { name } if lease_seconds == HOLD_SECONDS => {
                Some(Self { id, name, since, host, tool })
            }
            _ => None,
        }
    }
}

impl Repository {
    /// Takes a hold under an id that its owner has written down before; again is no error, and
    /// neither is another attempt of the backup: a repair has replaced the one that was held. Whether
    /// the backup is there is to be confirmed afterwards.
    pub async fn take_hold(
        &self,
        id: LeaseId,
        name: &AttemptName,
        (tool, host): (String, String),
    ) -> Result<TakenHold> {
        self.refuse_unknown_to_write("hold a backup of").await?;
        let lease = Lease {
            lease_id: id,
            role: LeaseRole::Reader { name: name.clone() },
            started: Utc::now(),
            beat: 0,
            lease_seconds: HOLD_SECONDS,
            tool,
            host,
            checkpoint: None,
        };
        let key = lease_key(&id);
        let bytes = lease.encode(self.keys(), self.id(), &key)?;
        match self.store().create(&key, bytes.into()).await? {
            Created::Now | Created::Ours => Ok(TakenHold::Now),
            Created::Taken(bytes) => {
                let there = Lease::decode(self.keys(), self.id(), &key, &bytes)?;
                match Hold::of(there) {
                    Some(hold) if hold.name == *name => Ok(TakenHold::Before),
                    // it keeps the data of all backups, and nobody has confirmed this attempt
                    Some(hold) if hold.name.is_of(name) => Ok(TakenHold::Now),
                    _ => Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!("hold backup {name} in {}", self.store().url()),
                        format!("{key} is another lease"),
                    )),
                }
            }
        }
    }

    /// All holds, by backup. What cannot be read may be one, and is an error.
    pub async fn holds(&self) -> Result<Vec<Hold>> {
        let listed = self.store().list(LEASES_PREFIX).await?;
        let ids: Vec<LeaseId> =
            listed.iter().filter_map(|l| parse_lease_key(&l.key).ok()).collect();
        let leases: Vec<Option<Lease>> = stream::iter(ids)
            .map(|id| async move { self.read_lease(&id).await })
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        let mut holds: Vec<Hold> = leases.into_iter().flatten().filter_map(Hold::of).collect();
        holds.sort_by(|a, b| (&a.name, a.since, a.id).cmp(&(&b.name, b.since, b.id)));
        Ok(holds)
    }

    /// Gives a hold back. One that is gone is no error.
    pub async fn release_hold(&self, id: &LeaseId) -> Result<()> {
        let Some(lease) = self.read_lease(id).await? else { return Ok(()) };
        if Hold::of(lease).is_none() {
            let context = format!("give back hold {id} in {}", self.store().url());
            return Err(Error::new(ErrorKind::Usage, context, "it is the lease of a run"));
        }
        self.store().delete(&lease_key(id)).await
    }

    /// The manifest of a backup that is held, forgotten or not.
    pub async fn held_backup(&self, name: &AttemptName) -> Result<Manifest> {
        match self.read_manifest(name).await? {
            Some(ManifestRecord::Backup(manifest)) => Ok(*manifest),
            Some(ManifestRecord::Fence { .. }) | None => {
                let context = format!("read backup {name} in {}", self.store().url());
                Err(Error::new(ErrorKind::NotFound, context, "its manifest is gone")
                    .hint(Advice::ListBackups.words()))
            }
        }
    }

    /// Refuses to forget a backup that one of these holds.
    pub fn refuse_held(&self, holds: &[Hold], name: &AttemptName) -> Result<()> {
        let Some(Hold { id, since, host, .. }) = hold_on(holds, name) else { return Ok(()) };
        let context = format!("forget backup {name} of {}", self.store().url());
        let what = format!(
            "a live restore on {host} needs it, since {} (hold {id})",
            since.format("%Y-%m-%d %H:%M:%S UTC")
        );
        Err(Error::new(ErrorKind::Usage, context, what).hint(Advice::EndHold.words()))
    }

    /// `None`: it has ended. One that cannot be read is an error: it may stand for anybody.
    pub(crate) async fn read_lease(&self, id: &LeaseId) -> Result<Option<Lease>> {
        let key = lease_key(id);
        let bytes_max = u64::from(LEASE_BYTES_MAX) + RECORD_OVERHEAD;
        let open = |bytes: &Bytes| Lease::decode(self.keys(), self.id(), &key, bytes);
        self.store().open_opt(&key, bytes_max, open).await.map_err(|e| {
            e.within("find out who is at work").hint(format!(
                "it is not known whose lease {key} is: delete that object once no backup, restore or collection is running"
            ))
        })
    }
}

/// The hold on a backup, in any attempt of it.
pub fn hold_on<'a>(holds: &'a [Hold], name: &AttemptName) -> Option<&'a Hold> {
    let same =
        |hold: &&Hold| (&hold.name.volume, &hold.name.backup_id) == (&name.volume, &name.backup_id);
    holds.iter().find(same)
}
