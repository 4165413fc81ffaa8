//! Stored entries that are kept on a disk, beside those in memory: what was fetched once need not be
//! fetched again soon.
//!
//! The file has no name, and its bytes are sealed with a key that only this process has, so nobody
//! finds anything in it, now or later. It is a ring: what was written longest ago is written over.
//! Which entry is where is known in memory alone.
//!
//! Nothing depends on it. What the disk gives back otherwise than it took it is fetched again. A
//! disk that takes no more is left alone, and what it has is used on. One that does not answer is
//! waited for once, and then no more.
//!
//! Cannot deadlock: one thread writes and one reads, and each waits for the disk and its inbox. Who
//! offers an entry never waits: where the inbox is full, the entry is not kept. Nobody waits for the
//! threads: they end when nobody can ask any more, or with the process.

use crate::volume::nameless::nameless_file;
use bytes::Bytes;
use chunkstore::fetch::EntryAddr;
use chunkstore::{Error, ErrorKind, ProcessKey, ProcessSeal, Result, Setting};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Entries that wait to be written, as far as their bytes allow.
const WAITING_MAX: u64 = 64;
const WAITING_BYTES_MAX: u64 = 8 << 20;
/// Of what is known of one entry: in the index, and in the order.
const PLACE_BYTES: u64 = 320;
/// Of the index.
pub(super) const INDEX_BYTES_MAX: u64 = 16 << 20;

/// A disk that takes longer for one entry has gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many entries of this length at most may wait to be written.
pub(super) fn waiting(stored_max: u64) -> u64 {
    (WAITING_BYTES_MAX / stored_max.max(1)).clamp(1, WAITING_MAX)
}

/// Where to keep entries, and how many bytes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCacheOptions {
    /// The file is made here.
    pub directory: PathBuf,
    /// Room that it may take.
    pub bytes_max: u64,
}

/// Where an entry is, and what opens it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    /// Of the ring.
    place: u64,
    len: u32,
    seal: ProcessSeal,
}

#[derive(Debug)]
pub(super) struct DiskCache {
    file: File,
    key: ProcessKey,
    directory: PathBuf,
    ring: Mutex<Ring>,
    /// The disk takes no more.
    full: AtomicBool,
    /// It does not answer.
    gone: AtomicBool,
    /// That it loses entries was said.
    told: AtomicBool,
    /// `None` once nothing is written any more.
    inbox: Mutex<Option<Sender<(EntryAddr, Bytes)>>>,
    /// The same of reading.
    wishes: Mutex<Option<Sender<Wish>>>,
    /// Held: the disk does not answer.
    #[cfg(test)]
    stall: Mutex<()>,
}

/// An entry that is wanted. `None` is answered if it is not to be had.
type Wish = (EntryAddr, Slot, oneshot::Sender<Option<Bytes>>);

impl DiskCache {
    /// With its threads, which end after [`Self::end`].
    pub(super) fn start(options: &DiskCacheOptions, stored_max: u64) -> Result<Arc<Self>> {
        let DiskCacheOptions { directory, bytes_max } = options;
        let file = nameless_file(directory).map_err(|e| refused(directory, e))?;
        let (inbox, entries) = bounded(usize::try_from(waiting(stored_max)).unwrap_or(1));
        // as many as flights have memory for
        let (wishes, wanted) = unbounded();
        let cache = Arc::new(Self {
            file,
            key: ProcessKey::random(),
            directory: directory.clone(),
            ring: Mutex::new(Ring::new(*bytes_max, INDEX_BYTES_MAX / PLACE_BYTES)),
            full: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            told: AtomicBool::new(false),
            inbox: Mutex::new(Some(inbox)),
            wishes: Mutex::new(Some(wishes)),
            #[cfg(test)]
            stall: Mutex::default(),
        });
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let started = std::thread::Builder::new().name(name.into()).spawn(work);
            let failed = |e| Error::caused(ErrorKind::Unavailable, "start the disk cache", e);
            started.map(drop).map_err(failed)
        };
        let of = Arc::clone(&cache);
        start("disk-write", Box::new(move || of.write_all(&entries)))?;
        let of = Arc::clone(&cache);
        start("disk-read", Box::new(move || of.read_all(&wanted)))?;
        Ok(cache)
    }

    /// Nothing is kept or given any more.
    pub(super) fn end(&self) {
        self.full.store(true, Ordering::Relaxed);
        drop((locked(&self.inbox).take(), locked(&self.wishes).take()));
    }

    /// Where an entry is, if it is kept.
    pub(super) fn find(&self, addr: &EntryAddr) -> Option<Slot> {
        if self.gone.load(Ordering::Relaxed) {
            return None;
        }
        locked(&self.ring).find(addr)
    }

    /// An entry as it was offered; `None` if it is not to be had.
    pub(super) async fn get(&self, addr: EntryAddr, slot: Slot) -> Option<Bytes> {
        let (answer, answered) = oneshot::channel();
        locked(&self.wishes).as_ref()?.send((addr, slot, answer)).ok()?;
        if let Ok(found) = tokio::time::timeout(PATIENCE, answered).await {
            return found.ok().flatten();
        }
        self.full.store(true, Ordering::Relaxed);
        if !self.gone.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the disk cache in {} does not answer, it is used no more",
                self.directory.display()
            );
        }
        None
    }

    fn read_all(&self, wishes: &Receiver<Wish>) {
        for (addr, slot, answer) in wishes {
            if self.gone.load(Ordering::Relaxed) {
                continue;
            }
            #[cfg(test)]
            drop(locked(&self.stall));
            let mut stored = Vec::new();
            let found = self.read(&addr, &slot, &mut stored).then(|| stored.into());
            // who asked may be gone
            let _ = answer.send(found);
        }
    }

    /// Keeps an entry, if there is time.
    pub(super) fn offer(&self, addr: &EntryAddr, stored: &[u8]) {
        if self.full.load(Ordering::Relaxed) || self.find(addr).is_some() {
            return;
        }
        let inbox = locked(&self.inbox);
        let Some(inbox) = inbox.as_ref().filter(|inbox| !inbox.is_full()) else { return };
        // a slice would keep all that was fetched with it
        match inbox.try_send((*addr, Bytes::copy_from_slice(stored))) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Reads an entry to a buffer, as it was offered. `false`: it is not to be had; it is forgotten
    /// then.
    fn read(&self, addr: &EntryAddr, slot: &Slot, stored: &mut Vec<u8>) -> bool {
        stored.clear();
        stored.resize(usize::try_from(slot.len).unwrap_or(usize::MAX), 0);
        let offset = locked(&self.ring).offset(slot.place);
        let read = self.file.read_exact_at(stored, offset);
        let opened = read.as_ref().is_ok_and(|()| self.key.open(&slot.seal, stored));
        // if it was written over meanwhile it is somewhere else now, or nowhere
        let lost = !opened && locked(&self.ring).forget(addr, slot);
        if lost && !self.told.swap(true, Ordering::Relaxed) {
            let why = read.err().map_or_else(|| "other bytes are there".into(), |e| e.to_string());
            tracing::warn!(
                "the disk cache in {} loses entries, they are fetched again: {why}",
                self.directory.display()
            );
        }
        opened
    }

    fn write_all(&self, inbox: &Receiver<(EntryAddr, Bytes)>) {
        let mut sealed = Vec::new();
        for (addr, stored) in inbox {
            // it may have been offered twice
            if self.full.load(Ordering::Relaxed) || self.find(&addr).is_some() {
                continue;
            }
            sealed.clear();
            sealed.extend_from_slice(&stored);
            drop(stored);
            let Ok(seal) = self.key.seal(&mut sealed) else { continue };
            let Ok(len) = u32::try_from(sealed.len()) else { continue };
            let (place, offset) = {
                let mut ring = locked(&self.ring);
                let Some(place) = ring.reserve(u64::from(len)) else { continue };
                (place, ring.offset(place))
            };
            match self.file.write_all_at(&sealed, offset) {
                Ok(()) => locked(&self.ring).put(addr, Slot { place, len, seal }),
                Err(e) => self.give_up(&e),
            }
        }
    }

    /// Other bytes are on it from now on.
    #[cfg(test)]
    pub(super) fn spoil(&self) {
        let len = self.file.metadata().unwrap().len();
        self.file.write_all_at(&vec![0x5a; usize::try_from(len).unwrap()], 0).unwrap();
    }

    /// It does not answer until this is dropped.
    #[cfg(test)]
    pub(super) fn stalled(&self) -> MutexGuard<'_, ()> {
        locked(&self.stall)
    }

    fn give_up(&self, e: &io::Error) {
        self.full.store(true, Ordering::Relaxed);
        tracing::warn!(
            "the disk cache in {} takes no more, what it has is used on: {e}",
            self.directory.display()
        );
    }
}

fn refused(directory: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    };
    let context = format!("make a disk cache in {}", directory.display());
    Error::caused(kind, context, e)
        .hint(format!("choose a directory on a disk with room, with {}", Setting("scratch")))
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which entries are where. Pure.
///
/// Places are counted on and on; a file offset is the rest of a place by the file's length. So an
/// entry is there as long as its place is not further behind than that.
#[derive(Debug)]
struct Ring {
    slots: HashMap<EntryAddr, Slot>,
    /// All of them, and some that are forgotten; the oldest first.
    order: VecDeque<(EntryAddr, Slot)>,
    /// The next one to give.
    place: u64,
    bytes_max: u64,
    slots_max: usize,
}

impl Ring {
    fn new(bytes_max: u64, slots_max: u64) -> Self {
        Self {
            slots: HashMap::new(),
            order: VecDeque::new(),
            place: 0,
            bytes_max: bytes_max.max(1),
            slots_max: usize::try_from(slots_max).unwrap_or(usize::MAX).max(1),
        }
    }

    fn find(&self, addr: &EntryAddr) -> Option<Slot> {
        self.slots.get(addr).copied()
    }

    /// A place for so many bytes, which do not go around the file's end. What is there is
    /// forgotten. `None`: they are too many.
    fn reserve(&mut self, len: u64) -> Option<u64> {
        if len > self.bytes_max {
            return None;
        }
        let left = self.bytes_max - self.offset(self.place);
        if left < len {
            self.place += left;
        }
        let place = self.place;
        self.place += len;
        let from = self.place.saturating_sub(self.bytes_max);
        while self.order.front().is_some_and(|(_, oldest)| oldest.place < from) {
            self.forget_oldest();
        }
        Some(place)
    }

    fn offset(&self, place: u64) -> u64 {
        place % self.bytes_max
    }

    /// It is written.
    fn put(&mut self, addr: EntryAddr, slot: Slot) {
        self.slots.insert(addr, slot);
        self.order.push_back((addr, slot));
        while self.order.len() > self.slots_max {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((addr, slot)) = self.order.pop_front() {
            self.forget(&addr, &slot);
        }
    }

    /// Whether it was known to be there.
    fn forget(&mut self, addr: &EntryAddr, slot: &Slot) -> bool {
        let is_there = self.slots.get(addr) == Some(slot);
        if is_there {
            self.slots.remove(addr);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::PackId;

    fn addr(entry: u32) -> EntryAddr {
        EntryAddr { pack: PackId::from_bytes([1; 32]), entry, offset: 0, stored_len: 0 }
    }

    fn content(entry: u32) -> Vec<u8> {
        let len = 1 + entry.wrapping_mul(2_654_435_761) % 300;
        (0..len).map(|n| (n.wrapping_add(entry) % 251) as u8).collect()
    }

    fn cache(bytes_max: u64) -> (tempfile::TempDir, Arc<DiskCache>) {
        let directory = tempfile::tempdir().unwrap();
        let options = DiskCacheOptions { directory: directory.path().to_owned(), bytes_max };
        let cache = DiskCache::start(&options, 400).unwrap();
        (directory, cache)
    }

    /// Offers, and waits until it was written.
    fn keep(cache: &DiskCache, entry: u32) {
        while cache.find(&addr(entry)).is_none() {
            cache.offer(&addr(entry), &content(entry));
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_kept_is_what_was_offered_and_the_oldest_goes() {
        let (directory, cache) = cache(4096);
        for entry in 0..500 {
            keep(&cache, entry);
            let mut found = 0;
            for old in 0..=entry {
                let Some(slot) = cache.find(&addr(old)) else { continue };
                let mut stored = Vec::new();
                assert!(cache.read(&addr(old), &slot, &mut stored));
                assert_eq!(stored, content(old));
                found += stored.len();
            }
            assert!(found <= 4096 && (entry < 50 || found > 3000), "{found}");
        }
        assert!(cache.file.metadata().unwrap().len() <= 4096);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        cache.end();
    }

    #[test]
    fn bytes_that_somebody_changed_are_fetched_again() {
        let (_directory, cache) = cache(1 << 20);
        keep(&cache, 7);
        let slot = cache.find(&addr(7)).unwrap();
        let mut on_disk = vec![0; content(7).len()];
        cache.file.read_exact_at(&mut on_disk, 0).unwrap();
        assert_ne!(on_disk, content(7), "it is sealed");
        cache.spoil();
        assert!(!cache.read(&addr(7), &slot, &mut Vec::new()));
        assert_eq!(cache.find(&addr(7)), None);
        keep(&cache, 7);
        let slot = cache.find(&addr(7)).unwrap();
        assert!(cache.read(&addr(7), &slot, &mut Vec::new()));
        cache.end();
    }

    #[test]
    fn a_slot_that_was_written_over_gives_nothing() {
        let (_directory, cache) = cache(1024);
        keep(&cache, 0);
        let slot = cache.find(&addr(0)).unwrap();
        (1..40).for_each(|entry| keep(&cache, entry));
        assert!(!cache.read(&addr(0), &slot, &mut Vec::new()));
        cache.end();
        // who offers afterwards is not in the way
        cache.offer(&addr(99), &content(99));
        assert_eq!(cache.find(&addr(99)), None);
    }

    #[test]
    fn an_entry_that_is_longer_than_the_file_is_not_kept_and_the_index_is_bounded() {
        let seal = ProcessKey::random().seal(&mut []).unwrap();
        let mut ring = Ring::new(100, 3);
        assert_eq!(ring.reserve(101), None);
        for entry in 0..50 {
            let place = ring.reserve(10).unwrap();
            ring.put(addr(entry), Slot { place, len: 10, seal });
            assert!(ring.slots.len() <= 3 && ring.order.len() <= 3);
        }
        assert!(ring.find(&addr(49)).is_some() && ring.find(&addr(46)).is_none());
        // 30 do not fit behind 90
        assert_eq!(ring.reserve(90), Some(500));
        assert_eq!(ring.reserve(30), Some(600));
    }
}
