//! Whom a collection waits for: everybody who had a lease when its condemned list was there
//! already.
//!
//! A blocker has ended when its lease is gone. One whose lease has run out counts as dead and is
//! fenced: *first* the key that it may still create is taken, *then* its lease is removed. So a
//! writer that is alive after all learns of it when it commits, under a new lease, and looks again
//! at what it builds on. A wrong guess costs work, never data.
//!
//! Whether a lease has run out is asked of the store alone: its object's time against that of an
//! object that was written just now, a lease of a collector that never collects. This machine's
//! clock is not looked at.
//!
//! A key is looked at before it is fenced, so that a store that ignores create-once, used
//! exclusively, cannot write a fence over a backup.

use super::CollectOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gc::{Blocker, Blockers, Condemned};
use crate::format::lease::{Lease, LeaseRole};
use crate::format::manifest::ManifestRecord;
use crate::format::names::{
    LEASES_PREFIX, blockers_key, condemned_key, lease_key, parse_lease_key, parse_manifest_key,
};
use crate::ids::{GenerationId, LeaseId};
use crate::limits::GC_BYTES_MAX;
use crate::protocol::lease::{LeaseKeeper, Removal};
use crate::repository::{HOLD_SECONDS, RECORD_OVERHEAD, Repository};
use crate::store::Created;
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// Leases read at a time.
const IN_FLIGHT: usize = 16;
/// Leases younger than that are not read: hardly any has run out so soon.
const YOUNG: TimeDelta = TimeDelta::seconds(30);

/// Steps condemn 6 and 7, and sweep 1 where a crash left no blockers: lists the leases, which
/// counts only if the condemned list was there before, and writes down what is among them, `but`
/// for the caller's own. Blockers that are there already stand.
pub(super) async fn record_blockers(
    repo: &Repository,
    generation: &GenerationId,
    but: Option<LeaseId>,
) -> Result<Blockers> {
    if let Some(there) = read(repo, generation).await? {
        return Ok(there);
    }
    let listed = repo.store().list(LEASES_PREFIX).await?; // 6
    let ids = listed.iter().filter_map(|l| parse_lease_key(&l.key).ok());
    let ids: Vec<LeaseId> = ids.filter(|id| Some(*id) != but).collect();
    let leases: Vec<Option<Blocker>> = stream::iter(ids)
        .map(|id| async move {
            let lease = repo.read_lease(&id).await?;
            Ok::<_, Error>(
                lease.map(|lease| Blocker { lease_id: id, fence_key: fence_key(&lease) }),
            )
        })
        .buffered(IN_FLIGHT)
        .try_collect()
        .await?;
    let blockers = Blockers { leases: leases.into_iter().flatten().collect() };
    let key = blockers_key(generation);
    let bytes = blockers.encode(repo.keys(), repo.id(), &key)?;
    match repo.store().create(&key, bytes.into()).await? {
        Created::Now | Created::Ours => Ok(blockers),
        Created::Taken(bytes) => Blockers::decode(repo.keys(), repo.id(), &key, &bytes),
    }
}

async fn read(repo: &Repository, generation: &GenerationId) -> Result<Option<Blockers>> {
    let key = blockers_key(generation);
    let bytes_max = u64::from(GC_BYTES_MAX) + RECORD_OVERHEAD;
    let open = |bytes: &Bytes| Blockers::decode(repo.keys(), repo.id(), &key, bytes);
    repo.store().open_opt(&key, bytes_max, open).await
}

/// What the holder of a lease may still create; readers create nothing.
fn fence_key(lease: &Lease) -> Option<String> {
    match &lease.role {
        LeaseRole::Writer { name, .. } => Some(name.manifest_key()),
        LeaseRole::Reader { .. } => None,
        LeaseRole::Collector { generation } => Some(condemned_key(generation)),
    }
}

/// Sweep 2: fences the dead; gives those that are still at work, in words.
pub(super) async fn still_at_work(
    repo: &Arc<Repository>,
    blockers: &Blockers,
    options: &CollectOptions,
) -> Result<Vec<String>> {
    let mut clock = StoreClock { repo, options, now: None };
    let mut at_work = Vec::new();
    for blocker in &blockers.leases {
        let key = lease_key(&blocker.lease_id);
        let Some(meta) = repo.store().head(&key).await? else { continue };
        let Some(lease) = repo.read_lease(&blocker.lease_id).await? else { continue };
        let age = clock.now().await?.signed_duration_since(meta.last_modified);
        if has_run_out(&lease, age) {
            fence_and_remove(repo, &lease, age, options).await?;
        } else {
            at_work.push(describe(&lease));
        }
    }
    Ok(at_work)
}

/// Fences whoever has a lease that has run out, blocker or not: what died leaves nothing behind for
/// ever. `own` was written just now, so that its time is the store's.
pub(super) async fn fence_expired_leases(
    repo: &Repository,
    own: LeaseId,
    options: &CollectOptions,
) -> Result<()> {
    let listed = repo.store().list(LEASES_PREFIX).await?;
    let leases: Vec<_> = listed
        .iter()
        .filter_map(|l| Some((parse_lease_key(&l.key).ok()?, l.last_modified)))
        .collect();
    let Some((_, now)) = leases.iter().find(|(id, _)| *id == own) else { return Ok(()) };
    for (id, beat) in &leases {
        let age = now.signed_duration_since(beat);
        if age <= YOUNG {
            continue;
        }
        let Some(lease) = repo.read_lease(id).await? else { continue };
        if has_run_out(&lease, age) {
            fence_and_remove(repo, &lease, age, options).await?;
        }
    }
    Ok(())
}

fn has_run_out(lease: &Lease, age: TimeDelta) -> bool {
    age > TimeDelta::seconds(i64::from(lease.lease_seconds))
}

async fn fence_and_remove(
    repo: &Repository,
    lease: &Lease,
    age: TimeDelta,
    options: &CollectOptions,
) -> Result<()> {
    tracing::warn!("{} has shown no life for {} s: fenced", describe(lease), age.num_seconds());
    if let Some(key) = fence_key(lease) {
        fence(repo, &key, options).await?;
    }
    repo.store().delete(&lease_key(&lease.lease_id)).await
}

fn describe(lease: &Lease) -> String {
    let what = match &lease.role {
        LeaseRole::Writer { name, .. } => format!("the backup {name}"),
        LeaseRole::Reader { name } if lease.lease_seconds == HOLD_SECONDS => {
            format!("a live restore of {name} that is not finished")
        }
        LeaseRole::Reader { name } => format!("a reader of {name}"),
        LeaseRole::Collector { generation } => format!("the collection {generation}"),
    };
    format!("{what} on {} since {} (lease {})", lease.host, lease.started, lease.lease_id)
}

/// Takes a key, unless it is taken: by what its owner has created, or by another fence. Either is
/// as good.
async fn fence(repo: &Repository, key: &str, options: &CollectOptions) -> Result<()> {
    if repo.store().head(key).await?.is_some() {
        return Ok(());
    }
    let bytes = if parse_manifest_key(key).is_ok() {
        let by = format!("a collection by {} on {}", options.lease.tool, options.lease.host);
        ManifestRecord::Fence { by, time: Utc::now() }.encode(repo.keys(), repo.id(), key)?
    } else {
        Condemned::Fence.encode(repo.keys(), repo.id(), key)?
    };
    repo.store().create(key, bytes.into()).await.map(|_| ())
}

/// The store's own time, asked for once.
struct StoreClock<'a> {
    repo: &'a Arc<Repository>,
    options: &'a CollectOptions,
    now: Option<DateTime<Utc>>,
}

impl StoreClock<'_> {
    async fn now(&mut self) -> Result<DateTime<Utc>> {
        if let Some(now) = self.now {
            return Ok(now);
        }
        // all that may write leases can write this, and it hinders nobody if it stays behind
        let role = LeaseRole::Collector { generation: GenerationId::random() };
        let lease = self.options.lease.lease(role);
        let key = lease_key(&lease.lease_id);
        let keeper = LeaseKeeper::create(self.repo, lease).await?;
        let meta = self.repo.store().head(&key).await;
        if let Some(e) = keeper.end(Removal::Always).await {
            tracing::warn!("a lease stays behind until it runs out: {e}");
        }
        let meta = meta?.ok_or_else(|| {
            let context = format!("ask {} for its time", self.repo.store().url());
            Error::new(
                ErrorKind::Unavailable,
                context,
                "an object is gone right after it was written",
            )
        })?;
        self.now = Some(meta.last_modified);
        Ok(meta.last_modified)
    }
}
