//! The resumed writer: going on where a process stopped that is no more, or that was taken for
//! dead.
//!
//! A run that can be repeated writes down from time to time, in its lease, how far it is: its
//! [`Checkpoint`]. Such a lease is not removed before the backup is committed, so whoever comes
//! next with the same plan finds it:
//!
//! 1. The lease is still there, and its attempt is not taken: the new process goes on *under the
//!    same lease*, at the same attempt, from the checkpoint, with no further check. Whatever the
//!    first one relied upon is still protected by it.
//! 2. Otherwise a new lease, the next attempt, the writer's steps 2 to 4 anew; and what was stored
//!    before counts only if it is absent from the condemned lists read *under the new lease* and
//!    found by a look-up after that. If a part of it does not, all of it is done again.
//!
//! Whether the first process is really dead is never asked: no clock could tell. If it lives, both
//! work under one lease at one attempt. Each beat and each checkpoint of either is as true as those
//! of the other. The first to commit removes the lease; the other one finds that out at its own
//! commit, takes a new lease, has its packs looked at, and is told that the backup is there
//! already. Neither of them removes the lease before there is a backup.
//!
//! Which lease is ours: the one of this volume, and of this backup id if one was given, whose
//! checkpoint has the plan's digest. So another list, another size, another snapshot never goes on
//! from there. Among several the one that is furthest.

use super::look::BACK_UP;
use super::{Writer, WriterOptions, next_attempt, role, unreliable};
use crate::error::{ErrorKind, Result};
use crate::format::lease::{Checkpoint, FrontierPage, Lease, LeaseRole};
use crate::format::manifest::{Manifest, ParentRef};
use crate::format::names::{AttemptName, LEASES_PREFIX, parse_lease_key};
use crate::ids::{BackupId, LeaseId, PackId, PlanDigest, VolumeName};
use crate::limits::{CHECKPOINT_PACKS_MAX, LEASE_BYTES_MAX};
use crate::protocol::lease::LeaseKeeper;
use crate::protocol::reader::{backup_at, stays_behind};
use crate::repository::{RECORD_OVERHEAD, Repository};
use crate::units::ChunkNo;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use std::collections::HashSet;
use std::sync::Arc;

/// Leases read at a time.
const LEASES_IN_FLIGHT: usize = 8;
/// A larger one is read alone: memory is that of one, not of eight.
const SMALL_LEASE_BYTES: u64 = 64 << 10;
/// Look-ups of packs under way at a time for a checkpoint.
const LOOK_UPS_IN_FLIGHT: usize = 16;

const ANOTHER_PLAN: &str = "an earlier run of this backup did not end, but it was asked for something else, or its source \
                            has changed since: all of it is done again";

/// Whose checkpoint a run may go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeBy {
    /// What the run is asked to make. Everything that changes what it would write has to be in it.
    pub plan: PlanDigest,
    /// Whether a run under any backup id will do, which is then the id of this one too; else only
    /// one of the same id.
    pub any_id: bool,
}

/// What an earlier run has left for another one to go on from.
#[derive(Debug, Clone)]
pub struct Unfinished {
    /// How far it is.
    pub checkpoint: Checkpoint,
    /// The backup that it builds on, if it is still there.
    pub parent: Option<Manifest>,
}

/// What a run with this plan would most likely go on from, were it started now. Only looks: it
/// takes no lease, so nothing is certain. `id`: the backup's, if one was given.
pub async fn find_unfinished(
    repo: &Repository,
    volume: &VolumeName,
    id: Option<&BackupId>,
    by: ResumeBy,
) -> Result<Option<Unfinished>> {
    for CheckpointFound { name, parent, checkpoint, .. } in
        find(repo, volume, id, by).await?.fitting
    {
        let Some(ParentRef { backup_id, attempt }) = parent else {
            return Ok(Some(Unfinished { checkpoint, parent: None }));
        };
        let name = AttemptName { volume: name.volume, backup_id, attempt };
        if let Some(parent) = backup_at(repo, &name).await? {
            return Ok(Some(Unfinished { checkpoint, parent: Some(parent) }));
        }
    }
    Ok(None)
}

/// What the leases of this repository have for a run.
struct Search {
    fitting: Vec<CheckpointFound>,
    /// There is a checkpoint of this very backup, but of another plan.
    other: bool,
}

/// A lease that fits.
struct CheckpointFound {
    lease: Lease,
    name: AttemptName,
    parent: Option<ParentRef>,
    checkpoint: Checkpoint,
}

impl Writer {
    /// As [`Writer::begin`], but goes on from the checkpoint of an earlier run if there is one that
    /// fits. [`Writer::resume_point`] says whether.
    pub fn begin_or_resume<'a>(
        repo: &'a Arc<Repository>,
        options: WriterOptions,
        by: ResumeBy,
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let id = (!by.any_id).then_some(&options.backup_id);
            let Search { fitting, other } = find(repo, &options.volume, id, by).await?;
            for found in fitting {
                if let Some(writer) = Self::go_on(repo, &options, by, found).await? {
                    return Ok(writer);
                }
            }
            let mut writer = Self::begin(repo, options).await?;
            if other {
                writer.warnings.push(ANOTHER_PLAN.into());
            }
            Ok(writer)
        })
    }

    fn go_on<'a>(
        repo: &'a Arc<Repository>,
        options: &'a WriterOptions,
        by: ResumeBy,
        found: CheckpointFound,
    ) -> BoxFuture<'a, Result<Option<Self>>> {
        Box::pin(async move {
            let CheckpointFound { lease, name, parent, checkpoint } = found;
            let (attempt, existing) = match next_attempt(repo, &name.volume, &name.backup_id).await
            {
                Err(e) if e.kind() == ErrorKind::Forgotten && by.any_id => return Ok(None),
                next => next?,
            };
            let parent = match parent {
                None => None,
                Some(ParentRef { backup_id, attempt }) => {
                    let volume = name.volume.clone();
                    match backup_at(repo, &AttemptName { volume, backup_id, attempt }).await? {
                        None => return Ok(None),
                        some => some,
                    }
                }
            };
            let others = options.parents.iter().filter(|p| Some(*p) != parent.as_ref()).cloned();
            if attempt == name.attempt
                && let Some(keeper) = LeaseKeeper::adopt(repo, lease, &options.lease).await?
            {
                tracing::info!("going on with {name} at chunk {}", checkpoint.next_chunk.0);
                let found = WriterOptions {
                    volume: name.volume,
                    backup_id: name.backup_id,
                    ..options.clone()
                };
                let candidates = others.collect();
                let mut writer = Self::under(repo, found, attempt, existing, keeper);
                (writer.parent, writer.candidates) = (parent, candidates);
                // the lease stays whatever happens, it may be another process's too
                repo.refuse_unknown_to_write(BACK_UP).await?;
                writer.probe_create_once().await?;
                // for what it will reuse from now on
                writer.read_lists().await?;
                return Ok(Some(writer));
            }
            let again = WriterOptions {
                backup_id: name.backup_id,
                parents: parent.iter().cloned().chain(others).collect(),
                ..options.clone()
            };
            let mut writer = Self::begin(repo, again).await?;
            match writer.take_over(parent.as_ref(), checkpoint).await {
                Ok(()) => Ok(Some(writer)),
                Err(e) => {
                    writer.abandon().await;
                    Err(e)
                }
            }
        })
    }

    /// Case 2: the checkpoint of a lease that is no more, under a new one. It counts as a whole, or
    /// not at all.
    async fn take_over(
        &mut self,
        built_on: Option<&Manifest>,
        checkpoint: Checkpoint,
    ) -> Result<()> {
        let name = self.name();
        if self.parent.as_ref() != built_on {
            tracing::info!("{name}: not gone on with, the parent is another one now");
        } else if is_cut(&checkpoint.packs) {
            tracing::info!("{name}: not gone on with, the checkpoint does not list all packs");
        } else if !self.confirm_packs(&checkpoint.packs).await?.is_empty() {
            tracing::info!("{name}: not gone on with, packs of it are condemned or gone");
        } else {
            self.lease.record(None, checkpoint).await?;
        }
        Ok(())
    }

    /// How far the work under this writer's lease is, if that is known: where the next pass may
    /// start. Its packs count as this writer's own from now on.
    ///
    /// `gone`: packs that were found missing although they had been there. A checkpoint that may
    /// refer to one of them, or to what was found damaged since, is of no use to anybody: it is
    /// taken out of the lease.
    pub fn resume_point<'a>(
        &'a mut self,
        gone: &'a HashSet<PackId>,
    ) -> BoxFuture<'a, Result<Option<Checkpoint>>> {
        Box::pin(async move {
            self.carried.clear();
            let Some(checkpoint) = self.lease.checkpoint().await else { return Ok(None) };
            let bad = |pack: &PackId| gone.contains(pack) || self.damaged.names(pack);
            let unknown =
                is_cut(&checkpoint.packs) && !(gone.is_empty() && self.damaged.is_empty());
            if unknown || checkpoint.packs.iter().any(bad) {
                let name = self.name();
                tracing::info!("{name}: not gone on with, packs of it are gone or damaged");
                self.lease.drop_checkpoint().await?;
                return Ok(None);
            }
            self.carried.clone_from(&checkpoint.packs);
            Ok(Some(checkpoint))
        })
    }

    /// Takes back what was recorded as done: nobody is to go on from it. For when what it rests on
    /// turns out to be false.
    pub async fn forget_checkpoint(&mut self) -> Result<()> {
        self.carried.clear();
        self.lease.drop_checkpoint().await
    }

    /// The checkpoint that a process started now would find, as far as this one knows.
    pub async fn checkpoint(&self) -> Option<Checkpoint> {
        self.lease.checkpoint().await
    }

    /// Since when there is work on this backup, as far as is known: by the clocks of the machines
    /// that did it, so good for a word to the user only.
    pub async fn began(&self, from: &Checkpoint) -> DateTime<Utc> {
        self.lease.started().await.min(from.time)
    }

    /// For the pass that starts where [`Self::resume_point`] said: writes down how far it is.
    pub async fn checkpoints(&self, plan: PlanDigest) -> Checkpointer {
        Checkpointer {
            repo: Arc::clone(&self.repo),
            lease: Arc::clone(&self.lease),
            lease_id: self.lease.id().await,
            condemned: Arc::new(self.condemned.clone()),
            carried: self.carried.clone(),
            plan,
        }
    }

    /// Fenced while alive: a new lease, the next attempt if this one is fenced, steps 2 and 3 anew,
    /// then what was uploaded before is looked at. `Some`: the reason why it does not count.
    pub(super) async fn resume(
        &mut self,
        fenced: bool,
        own_packs: &[PackId],
    ) -> Result<Option<String>> {
        let built_on = self.parent.clone();
        self.candidates.extend(built_on.clone());
        self.candidates.rotate_right(usize::from(built_on.is_some()));
        self.attempt = self.attempt.saturating_add(u32::from(fenced));
        let name = self.name();
        let record = self.options.lease(role(name.clone(), built_on.as_ref()));
        if let Some(e) = self.lease.replace(record).await? {
            self.warnings.push(stays_behind(e));
        }
        self.look_around().await?;
        if self.parent != built_on {
            return Ok(Some(format!("{name}: the parent was forgotten meanwhile")));
        }
        if is_cut(&self.carried) {
            return Ok(Some(format!("{name}: the checkpoint did not list all of its packs")));
        }
        let own: Vec<_> = own_packs.iter().chain(&self.carried).copied().collect();
        let unsafe_packs = self.confirm_packs(&own).await?;
        Ok(unsafe_packs.first().map(|pack| {
            let count = unsafe_packs.len();
            format!("{name}: {count} of its packs are condemned or gone, the first is {pack}")
        }))
    }
}

/// Whether a list of packs may be incomplete.
fn is_cut(packs: &[PackId]) -> bool {
    packs.len() >= CHECKPOINT_PACKS_MAX as usize
}

/// Leases that a run may go on from, the furthest first. One that cannot be read is none of ours,
/// or is of no use.
async fn find(
    repo: &Repository,
    volume: &VolumeName,
    id: Option<&BackupId>,
    by: ResumeBy,
) -> Result<Search> {
    let listed = repo.store().list(LEASES_PREFIX).await?;
    let leases = listed.into_iter().filter(|l| parse_lease_key(&l.key).is_ok());
    let (small, large): (Vec<_>, Vec<_>) = leases.partition(|l| l.size_bytes <= SMALL_LEASE_BYTES);
    let mut search = Search { fitting: Vec::new(), other: false };
    for (leases, at_once) in [(small, LEASES_IN_FLIGHT), (large, 1)] {
        let mut leases =
            stream::iter(leases).map(|l| read_lease(repo, l.key)).buffer_unordered(at_once);
        while let Some(lease) = leases.next().await {
            lease?.into_iter().for_each(|l| search.take(l, volume, id, by));
        }
    }
    search.fitting.sort_by_key(|f| std::cmp::Reverse(f.checkpoint.next_chunk));
    Ok(search)
}

async fn read_lease(repo: &Repository, key: String) -> Result<Option<Lease>> {
    let bytes_max = u64::from(LEASE_BYTES_MAX) + RECORD_OVERHEAD;
    let open = |bytes: &Bytes| Lease::decode(repo.keys(), repo.id(), &key, bytes);
    match repo.store().open_opt(&key, bytes_max, open).await {
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            tracing::info!("passed over: {e}");
            Ok(None)
        }
        lease => lease,
    }
}

impl Search {
    fn take(&mut self, mut lease: Lease, volume: &VolumeName, id: Option<&BackupId>, by: ResumeBy) {
        let LeaseRole::Writer { name, parent } = lease.role.clone() else { return };
        if name.volume != *volume || id.is_some_and(|id| name.backup_id != *id) {
            return;
        }
        match lease.checkpoint.take() {
            Some(checkpoint) if checkpoint.plan == Some(by.plan) => {
                lease.checkpoint = Some(checkpoint.clone());
                self.fitting.push(CheckpointFound { lease, name, parent, checkpoint });
            }
            // under any id it may be a run for another snapshot, which is nobody's concern
            Some(_) => self.other |= !by.any_id,
            None => {}
        }
    }
}

/// Writes down how far one pass is. It outlives neither the lease that the pass began under, nor
/// its removal: a checkpoint that comes too late is dropped.
#[derive(Debug, Clone)]
pub struct Checkpointer {
    repo: Arc<Repository>,
    lease: Arc<LeaseKeeper>,
    lease_id: LeaseId,
    condemned: Arc<HashSet<PackId>>,
    carried: Vec<PackId>,
    plan: PlanDigest,
}

impl Checkpointer {
    /// Whether all these packs of other backups may be relied upon. One that is found now, after
    /// the lease and the condemned lists, stays for as long as the lease does: who condemns it
    /// later sees the lease.
    pub async fn confirm(&self, packs: Vec<PackId>) -> Result<bool> {
        if packs.iter().any(|pack| self.condemned.contains(pack)) {
            return Ok(false);
        }
        Ok(unreliable(&self.repo, &self.condemned, packs, LOOK_UPS_IN_FLIGHT).await?.is_empty())
    }

    /// Replaces the checkpoint. All of `packs` that this pass stored are stored, all that it reused
    /// are confirmed. False if the lease is gone: there is nothing to write it into then.
    pub async fn record(
        &self,
        next_chunk: ChunkNo,
        frontier: Vec<FrontierPage>,
        packs: &[PackId],
    ) -> Result<bool> {
        let mut all: Vec<_> = self.carried.iter().chain(packs).copied().collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(CHECKPOINT_PACKS_MAX as usize);
        let plan = Some(self.plan);
        let checkpoint = Checkpoint { next_chunk, frontier, packs: all, plan, time: Utc::now() };
        self.lease.record(Some(self.lease_id), checkpoint).await
    }
}
