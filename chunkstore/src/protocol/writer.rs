//! Making a backup: the steps of a writer, and what it does when it was fenced.
//!
//! | step | what | here |
//! |---|---|---|
//! | 1 | a lease that names the manifest key and the parent | [`Writer::begin`] |
//! | | ask for that lease once more: does the store hold create-once? | [`Writer::begin`] |
//! | | look for features that are unknown here | [`Writer::begin`] |
//! | 2 | *then* confirm the parent: present, not forgotten; else another one | [`Writer::begin`] |
//! | 3 | read all condemned lists | [`Writer::begin`] |
//! | 4 | list segments; ignore what lies in condemned packs | [`Writer::list_segments`], the caller |
//! | 5 | put packs, then a segment that names only own packs | the caller |
//! | 6 | look up every pack reused through a segment; what is missing is stored again | [`Writer::commit`] |
//! | | where the store locks what is written: lock all that the manifest refers to | [`Writer::lock`] |
//! | | look for features again | [`Writer::commit`] |
//! | 7 | create the manifest | [`Writer::commit`] |
//! | 8 | remove the lease | [`Writer::finish`] |
//!
//! Fenced at step 7, the writer goes on under a new lease at the next attempt, with steps 2 to 4
//! anew. The packs it has uploaded count only if they are absent from the condemned lists read
//! *under the new lease* and found by a look-up after that; otherwise all of the work is done again
//! ([`Commit::Restart`]). That, and going on where another process stopped, is in
//! `writer/resumed.rs`; a writer that notices before its commit that its lease is gone, in
//! `writer/lost.rs`.
//!
//! A lease that holds a checkpoint stays when the run fails: another process may be at work under
//! it, or go on with it later. It is removed only when its manifest key is taken, so nobody can
//! commit under a lease that a fellow has removed.
//!
//! If the creation of the manifest ends with an unknown outcome, the lease stays: a request still
//! under way could create the manifest later, and only the lease (or the fence in its place) keeps
//! its packs from being deleted before that.

mod again;
mod attempts;
mod locking;
mod look;
mod lost;
mod resumed;
mod timing;

pub use resumed::{Checkpointer, ResumeBy, Unfinished, find_unfinished};

use attempts::{attempts_of, forgotten, next_attempt};

use super::lease::{LeaseKeeper, LeaseOptions, Removal};
use super::reader::{backup_at, stays_behind};
use crate::error::{Error, ErrorKind, Result};
use crate::format::lease::LeaseRole;
use crate::format::manifest::{Manifest, ManifestRecord};
use crate::format::names::{AttemptName, pack_key};
use crate::ids::{BackupId, PackId, VolumeName};
use crate::repository::SegmentInfo;
use crate::repository::condemned::DamagedSet;
use crate::repository::{NewestSeen, Repository};
use crate::store::Created;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Look-ups of packs under way at a time for a commit.
const LOOK_UPS_IN_FLIGHT: usize = 32;
/// Fences that one run goes round. Each means that a collector took this writer for dead.
const FENCES_MAX: u32 = 16;

/// What a run is about to make.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// The volume.
    pub volume: VolumeName,
    /// Name of the backup: random, or the same again for a run that is repeated.
    pub backup_id: BackupId,
    /// Backups of this volume that it may inherit from, the best first.
    pub parents: Vec<Manifest>,
    /// The newest backup that was seen of this volume: the new one comes after it.
    pub after: NewestSeen,
    /// What the lease says.
    pub lease: LeaseOptions,
}

/// How [`Writer::commit`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// The backup exists now; the manifest as stored.
    Done(Box<Manifest>),
    /// The same backup was committed before, with the same content: a run started twice.
    AlreadyDone(Box<Manifest>),
    /// These packs, which other backups had stored, are gone: store again what refers to them, then
    /// commit again.
    StoreAgain {
        /// What is gone.
        missing: Vec<PackId>,
    },
    /// This writer was fenced, and what it has uploaded cannot be relied upon: make the backup
    /// anew. The writer is ready for it, under a new lease, with another attempt, condemned lists
    /// and perhaps another parent.
    Restart {
        /// Why, for the log.
        reason: String,
    },
}

/// Somebody making one backup.
#[derive(Debug)]
pub struct Writer {
    repo: Arc<Repository>,
    volume: VolumeName,
    backup_id: BackupId,
    attempt: u32,
    options: LeaseOptions,
    /// Not tried yet, the best first.
    candidates: VecDeque<Manifest>,
    parent: Option<Manifest>,
    existing: Option<Manifest>,
    lease: Arc<LeaseKeeper>,
    condemned: HashSet<PackId>,
    damaged: DamagedSet,
    /// What it makes was made before: place in the order, times and parent stay.
    in_its_place: bool,
    /// Packs of the checkpoint that the work went on from: own ones, and reused ones that were
    /// confirmed.
    carried: Vec<PackId>,
    warnings: Vec<String>,
    timing: timing::Timing,
    /// What was locked already.
    locked: locking::LockedMaps,
    /// A manifest may still come to be.
    in_doubt: bool,
    /// The manifest key is taken by a backup: nothing can be committed under this lease any more.
    over: bool,
}

impl Writer {
    /// Steps 1 to 3. `Forgotten` if this backup id was used for a backup that was forgotten.
    pub fn begin<'a>(
        repo: &'a Arc<Repository>,
        options: WriterOptions,
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let (volume, backup_id) = (options.volume.clone(), options.backup_id.clone());
            let (attempt, existing) = next_attempt(repo, &volume, &backup_id).await?;
            let name = AttemptName { volume, backup_id, attempt };
            let record = options.lease.lease(role(name, options.parents.first()));
            let keeper = LeaseKeeper::create(repo, record).await?; // 1
            let mut writer = Self::under(repo, options, attempt, existing, keeper);
            match writer.look_around().await {
                Ok(()) => Ok(writer),
                Err(e) => {
                    writer.abandon().await;
                    Err(e)
                }
            }
        })
    }

    /// A writer that has its lease and has not looked around yet.
    fn under(
        repo: &Arc<Repository>,
        options: WriterOptions,
        attempt: u32,
        existing: Option<Manifest>,
        lease: LeaseKeeper,
    ) -> Self {
        Self {
            repo: Arc::clone(repo),
            timing: timing::Timing::of(&options),
            volume: options.volume,
            backup_id: options.backup_id,
            attempt,
            options: options.lease,
            candidates: VecDeque::from(options.parents),
            parent: None,
            over: existing.is_some(),
            existing,
            lease: Arc::new(lease),
            condemned: HashSet::new(),
            damaged: DamagedSet::default(),
            in_its_place: false,
            carried: Vec::new(),
            warnings: Vec::new(),
            locked: None,
            in_doubt: false,
        }
    }

    /// The confirmed parent.
    pub fn parent(&self) -> Option<&Manifest> {
        self.parent.as_ref()
    }

    /// Packs that nothing may be reused from.
    pub fn condemned(&self) -> &HashSet<PackId> {
        &self.condemned
    }

    /// Entries that nothing may be reused from.
    pub fn damaged(&self) -> &DamagedSet {
        &self.damaged
    }

    /// The backup that is made: the one asked for, or the one that is gone on with.
    pub fn backup_id(&self) -> &BackupId {
        &self.backup_id
    }

    /// The attempt that will be committed, as it stands now.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// A backup that is committed under this very name already. The run can only end as
    /// [`Commit::AlreadyDone`], or with an error if the content differs.
    pub fn existing(&self) -> Option<&Manifest> {
        self.existing.as_ref()
    }

    /// Step 4. A cached copy of a segment counts only if it is listed here.
    pub async fn list_segments(&self) -> Result<Vec<SegmentInfo>> {
        self.repo.list_segments(|_, _| ()).await
    }

    /// Step 6: which of these packs cannot be relied upon, condemned or gone. In ascending order,
    /// each once.
    pub async fn confirm_packs(&self, packs: &[PackId]) -> Result<Vec<PackId>> {
        unreliable(&self.repo, &self.condemned, packs.to_vec(), LOOK_UPS_IN_FLIGHT).await
    }

    /// Steps 6 and 7. All of `own_packs` and the segment must be stored. `manifest` gets the
    /// attempt filled in, its place in the order and, if the clock is off, right times.
    ///
    /// Errors: `Forgotten`; `AlreadyExists` if this backup id was used for other content; `Usage`
    /// if the manifest is not of this writer's volume and id or not of its parent; whatever the
    /// store says. After an error the writer can only be abandoned.
    pub fn commit<'a>(
        &'a mut self,
        manifest: Manifest,
        own_packs: &'a [PackId],
        reused_packs: &'a [PackId],
    ) -> BoxFuture<'a, Result<Commit>> {
        Box::pin(async move {
            let result = self.try_commit(manifest, own_packs, reused_packs).await;
            self.over |= match &result {
                Ok(commit) => matches!(commit, Commit::Done(_) | Commit::AlreadyDone(_)),
                Err(e) => matches!(e.kind(), ErrorKind::Forgotten | ErrorKind::AlreadyExists),
            };
            match &result {
                Ok(Commit::Done(made)) => self.lock_manifest(made).await?,
                // a twin made it, of packs of its own
                Ok(Commit::AlreadyDone(made)) => self.lock_committed(made).await?,
                // what is made anew refers to other packs, even if its map has the same content
                Ok(Commit::StoreAgain { .. } | Commit::Restart { .. }) | Err(_) => {
                    self.locked = None
                }
            }
            result
        })
    }

    async fn try_commit(
        &mut self,
        mut manifest: Manifest,
        own_packs: &[PackId],
        reused_packs: &[PackId],
    ) -> Result<Commit> {
        self.check_is_ours(&manifest)?;
        for _ in 0..FENCES_MAX {
            let missing = self.confirm_packs(reused_packs).await?; // 6
            if !missing.is_empty() {
                return Ok(Commit::StoreAgain { missing });
            }
            manifest.attempt = self.attempt;
            // A fence comes before the removal of a lease. One that vanished otherwise protects as
            // little.
            let fenced = if let Some(seen) = self.lease.look().await?
                && self.lock_needs(&manifest, own_packs, reused_packs).await?
            {
                // a feature may have been added since the lease was made
                self.repo.refuse_unknown_to_write(look::BACK_UP).await?;
                if !manifest.attachments.is_empty() {
                    self.repo.refuse_without_attachments(look::BACK_UP).await?;
                }
                let manifest = self.timed(&manifest, seen).await?;
                match self.create_manifest(&manifest).await? {
                    // 7
                    CommitOutcome::Ended(commit) => return Ok(commit),
                    CommitOutcome::Fenced => true,
                }
            } else {
                let there = self.repo.read_manifest(&manifest.name()).await?;
                matches!(there, Some(ManifestRecord::Fence { .. }))
            };
            if let Some(reason) = self.resume(fenced, own_packs).await? {
                return Ok(Commit::Restart { reason });
            }
        }
        Err(Error::new(
            ErrorKind::Fenced,
            format!("commit backup {} in {}", manifest.name(), self.repo.store().url()),
            format!("fenced {FENCES_MAX} times"),
        )
        .hint("a collector takes this writer for dead: give it a longer lease time"))
    }

    async fn create_manifest(&mut self, manifest: &Manifest) -> Result<CommitOutcome> {
        let name = manifest.name();
        let key = name.manifest_key();
        let record = ManifestRecord::Backup(Box::new(manifest.clone()));
        let bytes = record.encode(self.repo.keys(), self.repo.id(), &key)?;
        self.in_doubt = true; // whoever drops this future here does not know the outcome either
        let created = self.repo.store().create(&key, bytes.into()).await;
        self.in_doubt = matches!(&created, Err(e) if may_have_written(e));
        match created? {
            Created::Now | Created::Ours => {
                self.refuse_forgotten(&name).await?;
                Ok(CommitOutcome::Ended(Commit::Done(Box::new(manifest.clone()))))
            }
            Created::Taken(bytes) => match self.repo.decode_manifest(&key, &bytes)? {
                ManifestRecord::Fence { by, .. } => {
                    tracing::warn!("{name} was fenced by {by}");
                    Ok(CommitOutcome::Fenced)
                }
                ManifestRecord::Backup(there) => {
                    self.refuse_forgotten(&name).await?;
                    if same_content(&there, manifest) {
                        return Ok(CommitOutcome::Ended(Commit::AlreadyDone(there)));
                    }
                    Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!("commit backup {name} in {}", self.repo.store().url()),
                        format!(
                            "a backup of that name was committed {}, with other content, other attachments or of another snapshot",
                            there.finished
                        ),
                    )
                    .hint("use another backup id"))
                }
            },
        }
    }

    /// A commit that a forget has overtaken is none.
    async fn refuse_forgotten(&self, name: &AttemptName) -> Result<()> {
        if self.repo.is_forgotten(name).await? {
            return Err(forgotten(&self.repo, name));
        }
        Ok(())
    }

    fn check_is_ours(&self, manifest: &Manifest) -> Result<()> {
        let detail = if manifest.volume != self.volume || manifest.backup_id != self.backup_id {
            "it is not of this writer's volume and backup id"
        } else if manifest.parent != self.parent.as_ref().map(Manifest::as_parent)
            && manifest.parent.is_some()
            // what it builds on is the attempt before; what that one built on is no news
            && !self.in_its_place
        {
            "its parent is not the one that was confirmed"
        } else {
            return Ok(());
        };
        let context = format!("commit backup {}", manifest.name());
        Err(Error::new(ErrorKind::Bug, context, detail))
    }

    fn name(&self) -> AttemptName {
        AttemptName {
            volume: self.volume.clone(),
            backup_id: self.backup_id.clone(),
            attempt: self.attempt,
        }
    }

    /// Keeps the lease alive, through fences too; to be spawned beside the run. Ends with the
    /// writer.
    pub fn heartbeat(&self) -> impl Future<Output = ()> + Send + 'static {
        self.lease.heartbeat()
    }

    /// Step 8, after a commit. What comes back are warnings of the whole run: not being allowed to
    /// delete is one.
    pub async fn finish(mut self) -> Vec<String> {
        let removal = match (self.in_doubt, self.over) {
            (true, _) => Removal::Never,
            (false, true) => Removal::Always,
            (false, false) => Removal::UnlessShared,
        };
        let stays = self.lease.end(removal).await;
        self.warnings.extend(stays.map(stays_behind).into_iter().chain(self.timing.warning));
        if self.in_doubt {
            self.warnings.push(
                "the lease stays until it runs out: the outcome of the commit is not known".into(),
            );
        }
        self.warnings
    }

    /// The end of a run that did not commit: the lease goes, unless the manifest may still come to
    /// be, or another run can go on from its checkpoint.
    pub async fn abandon(self) -> Vec<String> {
        self.finish().await
    }
}

enum CommitOutcome {
    Ended(Commit),
    Fenced,
}

/// Which of these packs are condemned or gone. In ascending order, each once.
async fn unreliable(
    repo: &Repository,
    condemned: &HashSet<PackId>,
    mut packs: Vec<PackId>,
    look_ups_in_flight: usize,
) -> Result<Vec<PackId>> {
    packs.sort_unstable();
    packs.dedup();
    let look_up = |pack: PackId| async move {
        let gone =
            condemned.contains(&pack) || repo.store().head(&pack_key(&pack)).await?.is_none();
        Ok::<_, Error>(gone.then_some(pack))
    };
    stream::iter(packs)
        .map(look_up)
        .buffered(look_ups_in_flight)
        .try_filter_map(|pack| async move { Ok(pack) })
        .try_collect()
        .await
}

fn same_content(a: &Manifest, b: &Manifest) -> bool {
    let root = |m: &Manifest| m.map.root.map(|root| root.id);
    a.volume == b.volume
        && a.size_bytes == b.size_bytes
        && a.map.depth == b.map.depth
        && root(a) == root(b)
        // a later delta is matched by it
        && a.snapshot.id == b.snapshot.id
        // what is attached may be collected anew by each of two runs, and say another time
        && a.attachments.iter().map(|a| &a.name).eq(b.attachments.iter().map(|b| &b.name))
}

/// Refusals are certain; everything else may hide a write.
fn may_have_written(e: &Error) -> bool {
    !matches!(e.kind(), ErrorKind::Usage | ErrorKind::Unsupported | ErrorKind::Bug)
}

fn role(name: AttemptName, parent: Option<&Manifest>) -> LeaseRole {
    LeaseRole::Writer { name, parent: parent.map(Manifest::as_parent) }
}
