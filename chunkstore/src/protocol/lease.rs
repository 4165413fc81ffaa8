//! One lease: made, kept alive, replaced, removed.
//!
//! A lease is an object that says who is at work. It lives as long as its object is young *by the
//! store's own clock*, so the heartbeat only has to rewrite it from time to time. This machine's
//! clock is noted beside it, for whoever tells the user how far it is off; it decides nothing. A
//! beat that fails is tried again and never ends the run: at worst a collector takes this writer
//! for dead and fences it, which costs work and not data.
//! A reader that was taken for dead begins anew: another lease, and then a look whether its backup
//! is still there.
//!
//! The heartbeat and the rest of the run share the state under an async mutex, held across one
//! request, or the few that ask for create-once: a beat can neither overlap the removal (and bring
//! the lease back) nor a replacement. Nothing else is locked while it is held.

use super::reader::{Confirmed, confirm};
use crate::error::{Error, ErrorKind, Result};
use crate::format::lease::{Checkpoint, Lease, LeaseRole};
use crate::format::names::lease_key;
use crate::ids::LeaseId;
use crate::repository::{CreateOnce, Repository};
use crate::store::Created;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};

/// Beats in one lease time: three may be lost in a row.
const BEATS: u32 = 4;
/// A failed beat is tried again this many times sooner than the next would come.
const RETRY: u32 = 4;
const BEAT_MIN: Duration = Duration::from_millis(250);

/// What every lease says about its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseOptions {
    /// After this long without a heartbeat the holder counts as dead.
    pub lease_seconds: u32,
    /// Program and version.
    pub tool: String,
    /// Machine or pod.
    pub host: String,
}

impl LeaseOptions {
    /// A new lease for this work.
    pub(super) fn lease(&self, role: LeaseRole) -> Lease {
        Lease {
            lease_id: LeaseId::random(),
            role,
            started: Utc::now(),
            beat: 0,
            lease_seconds: self.lease_seconds,
            tool: self.tool.clone(),
            host: self.host.clone(),
            checkpoint: None,
        }
    }
}

/// Whether a lease goes with the work of its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    Always,
    /// Unless another process may be at work under it: it holds, or may hold, a checkpoint.
    UnlessShared,
    /// What it protects may still come to be.
    Never,
}

/// A lease in the store and the state of its heartbeat.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    repo: Arc<Repository>,
    /// For what goes on by itself: a lease that is kept alive is no movement of the work under it.
    background: Arc<Repository>,
    state: Mutex<State>,
    lease_seconds: u32,
    /// Dropped with the keeper's owner: ends the heartbeat.
    ended: watch::Sender<bool>,
    /// The lease was found gone, and no other one is in its place.
    lost: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    /// Removed by its owner: no beat may bring it back.
    ended: bool,
    /// A checkpoint is, or was, or may be in the store: another process may be at work under this
    /// lease.
    shared: bool,
    /// This machine's clock before and after the last write; `None`: it may not have arrived.
    written: Option<[DateTime<Utc>; 2]>,
    gap: Option<Gap>,
}

/// A reader's lease was gone for a while, so a collection may not have waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// Whether its backup is there under the new lease was not to be found out yet.
    Unknown,
    /// What was found then.
    Found(Confirmed),
}

/// A lease as it lies in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// When it was written, by the store's clock.
    pub(super) stored: DateTime<Utc>,
    /// This machine's clock before and after it wrote it last, where that is known.
    pub(super) written: Option<[DateTime<Utc>; 2]>,
    /// Another process may have written it since.
    pub(super) shared: bool,
}

impl LeaseKeeper {
    /// Creates the lease. When this returns, it is in the store.
    pub(super) async fn create(repo: &Arc<Repository>, lease: Lease) -> Result<Self> {
        let written = Some(create(repo, &lease).await?);
        let lease_seconds = lease.lease_seconds;
        let state = Mutex::new(State { lease, ended: false, shared: false, written, gap: None });
        let (ended, lost) = (watch::Sender::new(false), watch::Sender::new(false));
        let background = repo.in_background();
        Ok(Self { repo: Arc::clone(repo), background, state, lease_seconds, ended, lost })
    }

    /// Goes on under a lease that another process made. `None` if it is gone meanwhile.
    pub(super) async fn adopt(
        repo: &Arc<Repository>,
        lease: Lease,
        options: &LeaseOptions,
    ) -> Result<Option<Self>> {
        let LeaseOptions { lease_seconds, tool, host } = options.clone();
        let lease = Lease { lease_seconds, tool, host, ..lease };
        let state =
            Mutex::new(State { lease, ended: false, shared: true, written: None, gap: None });
        let (ended, lost) = (watch::Sender::new(false), watch::Sender::new(false));
        let (repo, background) = (Arc::clone(repo), repo.in_background());
        let keeper = Self { repo, background, state, lease_seconds, ended, lost };
        let there = keeper.beat(&keeper.repo).await?;
        Ok(there.then_some(keeper))
    }

    /// Finds out whether the store refuses to create what exists, by asking for this lease once
    /// more. Who writes it beside this, a beat or a fellow's, is kept out or says as much.
    ///
    /// A store that creates it may hold its promise: a collector may have removed it. Then it is
    /// there again, as after a beat that was under way, and the second time it is refused.
    pub(super) async fn probe_create_once(&self) -> Result<CreateOnce> {
        let mut state = self.state.lock().await;
        let key = lease_key(&state.lease.lease_id);
        let bytes = encode(&self.repo, &state.lease, &key)?;
        let mut found = CreateOnce::Unknown;
        for _ in 0..2 {
            let (before, written) = (Utc::now(), state.written.take());
            found = self.repo.store().probe_create(&key, bytes.clone()).await?.into();
            if found != CreateOnce::Ignored {
                state.written = written;
                break;
            }
            state.written = Some([before, Utc::now()]);
        }
        Ok(found)
    }

    /// Its name now.
    pub(super) async fn id(&self) -> LeaseId {
        self.state.lock().await.lease.lease_id
    }

    /// Since when there is work under it, by the clock of the machine that began it.
    pub(super) async fn started(&self) -> DateTime<Utc> {
        self.state.lock().await.lease.started
    }

    /// What it says of how far the work is.
    pub(super) async fn checkpoint(&self) -> Option<Checkpoint> {
        self.state.lock().await.lease.checkpoint.clone()
    }

    /// Takes the checkpoint out of the lease: nobody may go on from it.
    pub(super) async fn drop_checkpoint(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        if state.ended || state.lease.checkpoint.take().is_none() {
            return Ok(());
        }
        rewrite(&self.repo, &mut state).await.map(|_| ())
    }

    /// Writes down how far the work is, as an extra beat. False, and nothing is written, if the
    /// lease is gone or is another one than `of`. Where the store gave no answer it stays for the
    /// next beat: it may have been written, and it is true.
    pub(super) async fn record(&self, of: Option<LeaseId>, checkpoint: Checkpoint) -> Result<bool> {
        let mut state = self.state.lock().await;
        if state.ended || of.is_some_and(|of| of != state.lease.lease_id) {
            return Ok(false);
        }
        let before = state.lease.checkpoint.replace(checkpoint);
        // whoever drops this future does not know the outcome either
        let was_shared = std::mem::replace(&mut state.shared, true);
        let written = rewrite(&self.repo, &mut state).await;
        self.note(&written);
        let certainly_not = match &written {
            Ok(written) => !written,
            Err(e) => matches!(e.kind(), ErrorKind::Bug | ErrorKind::Usage),
        };
        if certainly_not {
            state.lease.checkpoint = before;
            state.shared = was_shared;
        }
        written
    }

    /// Rewrites the lease with what its holder does now, as an extra beat.
    pub(super) async fn update(&self, role: LeaseRole) -> Result<()> {
        let mut state = self.state.lock().await;
        state.lease.role = role;
        state.lease.beat += 1;
        write(&self.repo, &mut state).await
    }

    /// Looks at the lease in the store. `None`: it is gone.
    pub(super) async fn look(&self) -> Result<Option<Seen>> {
        let state = self.state.lock().await;
        look(&self.repo, &state).await
    }

    /// As [`look`](Self::look), right after a beat.
    pub(super) async fn beat_and_look(&self) -> Result<Option<Seen>> {
        let mut state = self.state.lock().await;
        if state.ended || !rewrite(&self.repo, &mut state).await? {
            return Ok(None);
        }
        look(&self.repo, &state).await
    }

    /// Puts another lease in the place of this one: first the new one, then the old one goes. The
    /// old one staying behind harms nobody; the error says so.
    pub(super) async fn replace(&self, lease: Lease) -> Result<Option<Error>> {
        let mut state = self.state.lock().await;
        state.written = Some(create(&self.repo, &lease).await?);
        let old = std::mem::replace(&mut state.lease, lease);
        state.shared = false;
        self.lost.send_replace(false);
        Ok(remove(&self.repo, &old).await.err())
    }

    /// Ends the heartbeat and removes the lease, or not. `Some`: the lease stays behind until it
    /// runs out.
    ///
    /// Whether it is shared is asked under the same lock that keeps checkpoints out from then on:
    /// one that is under way meanwhile is either seen here, or not written any more.
    pub(super) async fn end(&self, removal: Removal) -> Option<Error> {
        let mut state = self.state.lock().await;
        if std::mem::replace(&mut state.ended, true) {
            return None;
        }
        self.ended.send_replace(true);
        let removes = match removal {
            Removal::Always => true,
            Removal::UnlessShared => !state.shared,
            Removal::Never => false,
        };
        if removes { remove(&self.repo, &state.lease).await.err() } else { None }
    }

    /// The loop to spawn beside the run. Needs a Tokio runtime with a timer.
    pub(super) fn heartbeat(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.subscribe();
        let keeper = Arc::downgrade(self);
        let (every, retry) = (self.beat_pause(), self.retry_pause());
        async move {
            let mut pause = every;
            loop {
                tokio::select! {
                    _ = ended.wait_for(|ended| *ended) => return,
                    () = tokio::time::sleep(pause) => {}
                }
                let Some(keeper) = keeper.upgrade() else { return };
                pause = match keeper.beat(&keeper.background).await {
                    Ok(_) => every,
                    Err(e) => {
                        tracing::warn!("heartbeat: {e}");
                        retry
                    }
                };
            }
        }
    }

    async fn beat(&self, repo: &Repository) -> Result<bool> {
        let mut state = self.state.lock().await;
        if state.ended {
            return Ok(false);
        }
        let written = rewrite(repo, &mut state).await;
        self.note(&written);
        let there = written?;
        let LeaseRole::Reader { name } = state.lease.role.clone() else { return Ok(there) };
        if !there {
            let lease = Lease { lease_id: LeaseId::random(), beat: 0, ..state.lease.clone() };
            state.written = Some(create(repo, &lease).await?);
            (state.lease, state.gap) = (lease, Some(Gap::Unknown));
            tracing::warn!("the lease was gone: this process was taken for dead; it has a new one");
        }
        // as at the begin: it counts only under the lease
        if state.gap == Some(Gap::Unknown) {
            state.gap = Some(Gap::Found(confirm(repo, &name).await?));
        }
        Ok(true)
    }

    /// An extra beat, and whether the lease of this reader was ever gone.
    pub(super) async fn look_for_gap(&self) -> Result<Option<Gap>> {
        self.beat(&self.repo).await?;
        Ok(self.gap().await)
    }

    /// Whether the lease of this reader was ever gone, as far as it is known.
    pub(super) async fn gap(&self) -> Option<Gap> {
        self.state.lock().await.gap
    }

    /// Turns true when the lease is found gone, and false when another one is in its place.
    pub(super) fn lost(&self) -> watch::Receiver<bool> {
        self.lost.subscribe()
    }

    /// The repository for what goes on by itself beside the work.
    pub(super) fn background(&self) -> &Arc<Repository> {
        &self.background
    }

    /// Between two tries of what a beat or its finding wants from the store.
    pub(super) fn retry_pause(&self) -> Duration {
        (self.beat_pause() / RETRY).max(BEAT_MIN)
    }

    fn beat_pause(&self) -> Duration {
        (Duration::from_secs(u64::from(self.lease_seconds)) / BEATS).max(BEAT_MIN)
    }

    fn note(&self, written: &Result<bool>) {
        if matches!(written, Ok(false)) {
            self.lost.send_replace(true);
        }
    }
}

/// One beat. False if the lease is gone: it was fenced, or a fellow has ended it. It is not brought
/// back, it would only keep collectors waiting.
async fn rewrite(repo: &Repository, state: &mut State) -> Result<bool> {
    let key = lease_key(&state.lease.lease_id);
    if repo.store().head(&key).await?.is_none() {
        tracing::debug!(key, "the lease is gone");
        return Ok(false);
    }
    state.lease.beat += 1;
    write(repo, state).await?;
    Ok(true)
}

async fn look(repo: &Repository, state: &State) -> Result<Option<Seen>> {
    let found = repo.store().head(&lease_key(&state.lease.lease_id)).await?;
    let State { written, shared, .. } = *state;
    Ok(found.map(|meta| Seen { stored: meta.last_modified, written, shared }))
}

/// Gives this machine's clock before and after it.
async fn create(repo: &Repository, lease: &Lease) -> Result<[DateTime<Utc>; 2]> {
    let key = lease_key(&lease.lease_id);
    let before = Utc::now();
    match repo.store().create(&key, encode(repo, lease, &key)?).await? {
        Created::Now | Created::Ours => Ok([before, Utc::now()]),
        Created::Taken(_) => Err(Error::new(
            ErrorKind::Bug,
            format!("create {key} in {}", repo.store().url()),
            "a random lease id was used before",
        )),
    }
}

async fn write(repo: &Repository, state: &mut State) -> Result<()> {
    let key = lease_key(&state.lease.lease_id);
    let bytes = encode(repo, &state.lease, &key)?;
    let before = Utc::now();
    // one that fails may still arrive
    state.written = None;
    repo.store().put(&key, bytes).await?;
    state.written = Some([before, Utc::now()]);
    Ok(())
}

async fn remove(repo: &Repository, lease: &Lease) -> Result<()> {
    repo.store().delete(&lease_key(&lease.lease_id)).await
}

fn encode(repo: &Repository, lease: &Lease, key: &str) -> Result<Bytes> {
    Ok(lease.encode(repo.keys(), repo.id(), key)?.into())
}
