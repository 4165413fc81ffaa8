//! Which backups are open. So many at a time as memory allows; one that nobody uses is closed, and
//! its lease given back.

use super::backup::{BackupThread, Means, OpenBackup, Wanted};
use super::list::Listed;
use chrono::{DateTime, Utc};
use chunkstore::format::names::AttemptName;
use chunkstore::{Error, ErrorKind, Manifest, Result};
use mover_fuse::Time;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Nobody has used it for so long.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// Until one that is closed has given back what it had.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);

/// A backup, whether it is open or not.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: AttemptName,
    pub(super) time: Time,
    pub(super) size_bytes: u64,
    /// The one that was asked for stays open to the end.
    pinned: Option<Manifest>,
    state: tokio::sync::Mutex<Option<Arc<OpenBackup>>>,
    /// What is open of it.
    users: AtomicUsize,
    used: Mutex<Instant>,
}

impl Slot {
    /// One of a list.
    pub(super) fn listed(listed: &Listed) -> Self {
        Self::new(listed.name.clone(), listed.time, listed.size_bytes, None)
    }

    /// One that stays open.
    pub(super) fn pinned(manifest: &Manifest) -> Self {
        Self::new(manifest.name(), manifest.finished, manifest.size_bytes, Some(manifest.clone()))
    }

    fn new(
        name: AttemptName,
        time: DateTime<Utc>,
        size_bytes: u64,
        pinned: Option<Manifest>,
    ) -> Self {
        let time = Time { seconds: time.timestamp(), nanoseconds: time.timestamp_subsec_nanos() };
        let (state, users) = (tokio::sync::Mutex::default(), AtomicUsize::new(0));
        let used = Mutex::new(Instant::now());
        Self { name, time, size_bytes, pinned, state, users, used }
    }

    fn used(&self) -> MutexGuard<'_, Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used() = Instant::now();
    }

    /// Closes it, unless somebody uses it.
    fn close(&self) -> bool {
        // one that is being opened is used
        let Ok(mut state) = self.state.try_lock() else { return false };
        if self.pinned.is_some() || self.users.load(Ordering::SeqCst) > 0 {
            return false;
        }
        state.take().is_some()
    }
}

/// A backup that has to stay open.
#[derive(Debug)]
pub(super) struct Held {
    slot: Arc<Slot>,
    pub(super) open: Arc<OpenBackup>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.slot.touch();
        self.slot.users.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug)]
pub(super) struct Shelf {
    means: Arc<Means>,
    places: Arc<Semaphore>,
    slots: Mutex<Vec<Arc<Slot>>>,
    threads: Mutex<Vec<BackupThread>>,
    /// How often one was opened.
    pub(super) opened: AtomicU64,
}

impl Shelf {
    pub(super) fn new(means: Arc<Means>, open_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(open_max));
        let (slots, threads) = (Mutex::default(), Mutex::default());
        Self { means, places, slots, threads, opened: AtomicU64::new(0) }
    }

    pub(super) fn means(&self) -> &Arc<Means> {
        &self.means
    }

    pub(super) fn add(&self, slot: &Arc<Slot>) {
        self.slots().push(Arc::clone(slot));
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<BackupThread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A backup, opened if it is not open. It stays so as long as what is given.
    pub(super) async fn hold(&self, slot: &Arc<Slot>) -> Result<Held> {
        let mut state = slot.state.lock().await;
        let open = match &*state {
            Some(open) => Arc::clone(open),
            None => {
                let open = Arc::new(self.open(slot).await?);
                *state = Some(Arc::clone(&open));
                open
            }
        };
        slot.users.fetch_add(1, Ordering::SeqCst);
        Ok(Held { slot: Arc::clone(slot), open })
    }

    async fn open(&self, slot: &Arc<Slot>) -> Result<OpenBackup> {
        let places = Arc::clone(&self.places);
        let place = match places.try_acquire_owned() {
            Ok(place) => place,
            Err(_) => self.make_room(slot).await?,
        };
        let wanted = match &slot.pinned {
            Some(manifest) => Wanted::Found(Box::new(manifest.clone())),
            None => Wanted::Named(slot.name.clone()),
        };
        let (thread, opening) = OpenBackup::begin(&self.means, wanted, place)?;
        {
            let mut threads = self.threads();
            threads.retain(|thread| !thread.has_ended());
            threads.push(thread);
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        opening.done().await
    }

    /// Closes the one that was used least lately.
    async fn make_room(&self, slot: &Slot) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let mut others = self.slots().clone();
        others.sort_by_key(|other| *other.used());
        let context = || format!("open backup {}", slot.name);
        if !others.iter().any(|other| other.close()) {
            let what = "as many backups are in use as the memory allows";
            return Err(Error::new(ErrorKind::Limit, context(), what));
        }
        let place = Arc::clone(&self.places).acquire_owned();
        match tokio::time::timeout(CLOSED_WITHIN, place).await {
            Ok(Ok(place)) => Ok(place),
            _ => {
                let what = "another one could not be closed in time";
                Err(Error::new(ErrorKind::Unavailable, context(), what))
            }
        }
    }

    /// Closes what nobody has used for a while.
    pub(super) fn close_idle(&self) {
        let slots = self.slots().clone();
        for slot in slots.iter().filter(|slot| slot.used().elapsed() >= IDLE) {
            if slot.close() {
                tracing::debug!("backup {} is closed: nobody uses it", slot.name);
            }
        }
    }

    /// Closes all, whoever uses them, and waits until leases are given back. Gives what the user
    /// should know. Must not be called by the runtime.
    pub(super) fn end(&self) -> Vec<String> {
        self.means.over.request();
        let slots = std::mem::take(&mut *self.slots());
        for slot in slots {
            // what is being opened ends by itself now
            drop(slot.state.blocking_lock().take());
        }
        let threads = std::mem::take(&mut *self.threads());
        threads.into_iter().flat_map(BackupThread::end).collect()
    }
}
