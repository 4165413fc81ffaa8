//! Entries by their place: kept, under way, or fetched now.
//!
//! A *flight* fetches one run of entries that stand close together in a pack, with one range read,
//! and hands each of them to an opener thread. Whoever wants an entry that is under way waits for
//! that flight; so an entry is asked for once, however many clients want it at a time. Flights are
//! tasks of their own, and a client that leaves ends none. Failures are not kept: the next who asks
//! begins a new flight.
//!
//! Where entries are kept on a disk as well, one that is there is read by a flight of its own.
//!
//! Memory: a flight holds permits for its stored bytes, from before its request until its entries
//! are in the cache. Each opener has room for one entry. Flights ahead of a reader hold a part
//! of the permits at most. What the cache has dropped lives on only while somebody copies from it.
//!
//! Cannot deadlock: a flight waits for permits and for a place at the gate, in this order, holding
//! nothing else. Openers wait for nothing but their inbox, and free the permits of what they took.
//! Who waits for a flight holds no permits of a flight. The lock of the state is held for no wait.

use super::cache::EntryCache;
use super::disk::{DiskCache, Slot};
use super::limits::ViewLimits;
use crate::reading::fetch::take;
use crate::reading::limits::READS_MAX;
use crate::reading::open::{hint, right_chunk};
use crate::reading::pipeline::GAP_BYTES;
use crate::run::concurrency::Gate;
use bytes::Bytes;
use chunkstore::fetch::{EntryAddr, Fetched, RangeRead, plan_reads, read_range};
use chunkstore::format::names::pack_key;
use chunkstore::pack::{EntryHeader, EntryKind};
use chunkstore::salvage::Salvage;
use chunkstore::{
    ChunkId, ChunkNo, ChunkRef, Error, ErrorKind, Geometry, Keys, Opener, PackKind, Repository,
    Result,
};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Reads that are under way from the start: as many as clients have requests under way. A run that
/// restores begins with fewer, as it has time to find out how many are of use.
const CLIENT_READS: usize = 32;

/// An opened entry. Each chunk of it is checked when it is used first.
#[derive(Debug)]
pub(super) struct Opened {
    addr: EntryAddr,
    header: EntryHeader,
    plain: Vec<u8>,
    /// Of each chunk, once somebody wanted it.
    ids: Vec<OnceLock<ChunkId>>,
}

impl Opened {
    /// The bytes of a chunk, checked against the map as a restore does.
    pub(super) fn chunk(
        &self,
        keys: &Keys,
        geometry: &Geometry,
        (chunk, at): (ChunkNo, &ChunkRef),
    ) -> Result<&[u8]> {
        let index = at.location.index;
        let id = |range| keys.chunk_id(&self.plain[range]);
        let has_id = |range| {
            let known = self.ids.get(usize::from(index));
            known.is_some_and(|known| *known.get_or_init(|| id(range)) == at.id)
        };
        let place = || format!("open entry {} of {}", self.addr.entry, pack_key(&self.addr.pack));
        let range = right_chunk(self.header, geometry, (chunk, index), has_id, place)?;
        Ok(&self.plain[range])
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let ids = self.ids.len() * size_of::<OnceLock<ChunkId>>();
        (self.plain.capacity() + ids + size_of::<Self>()) as u64
    }
}

/// Why an entry is not to be had.
#[derive(Debug, Clone)]
pub(super) enum EntryFailure {
    /// Its pack does not exist (any more): stubs say where its chunks went.
    Gone,
    /// What went wrong, for each who wants to know.
    Failed(Arc<Error>),
}

type Answer = Result<Arc<Opened>, EntryFailure>;

/// A claim on an entry.
#[derive(Debug)]
pub(super) enum Ticket {
    Kept(Arc<Opened>),
    Flying(oneshot::Receiver<Answer>),
}

impl Ticket {
    pub(super) async fn wait(self) -> Answer {
        match self {
            Self::Kept(entry) => Ok(entry),
            Self::Flying(answer) => answer.await.unwrap_or_else(|_| {
                let ended = Error::new(ErrorKind::Cancelled, "fetch an entry", "reading has ended");
                Err(EntryFailure::Failed(Arc::new(ended)))
            }),
        }
    }
}

/// Who wants entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Somebody waits for them.
    Now,
    /// Somebody may want them soon.
    Ahead,
}

/// What was done so far.
#[derive(Debug, Default)]
pub(super) struct EntryCounts {
    /// Wanted, and in the cache or under way.
    pub(super) hits: AtomicU64,
    /// Wanted, and not there.
    pub(super) misses: AtomicU64,
    /// Opened from the disk.
    pub(super) disk_hits: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    cache: EntryCache,
    /// Buffers of entries that nobody needs any more, for the next ones: as many as openers.
    spare: Vec<Vec<u8>>,
    /// Those who wait for each entry that is under way.
    flights: HashMap<EntryAddr, Vec<oneshot::Sender<Answer>>>,
}

/// One stored entry on its way to an opener.
#[derive(Debug)]
struct Job {
    entries: Arc<Entries>,
    addr: EntryAddr,
    stored: Bytes,
    _memory: Arc<Permits>,
}

#[derive(Debug)]
struct Permits {
    _memory: OwnedSemaphorePermit,
    _ahead: Option<OwnedSemaphorePermit>,
}

/// The entries of one repository.
#[derive(Debug)]
pub(super) struct Entries {
    rt: Handle,
    repo: Arc<Repository>,
    salvage: Arc<Salvage>,
    limits: ViewLimits,
    memory: Arc<Semaphore>,
    ahead: Arc<Semaphore>,
    gate: Gate,
    /// `None` once reading has ended.
    openers: Mutex<Option<Sender<Job>>>,
    disk: Option<Arc<DiskCache>>,
    state: Mutex<State>,
    pub(super) counts: EntryCounts,
}

impl Entries {
    /// With opener threads, which end after [`Self::end`].
    pub(super) fn start(
        rt: &Handle,
        repo: &Arc<Repository>,
        salvage: &Arc<Salvage>,
        (limits, disk): (&ViewLimits, Option<Arc<DiskCache>>),
    ) -> Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let (jobs, inbox) = unbounded();
        repo.store().keep_buffers(limits.kept_bytes);
        let entries = Arc::new(Self {
            rt: rt.clone(),
            repo: Arc::clone(repo),
            salvage: Arc::clone(salvage),
            limits: limits.clone(),
            memory: Arc::new(Semaphore::new(limits.flight_bytes as usize)),
            ahead: Arc::new(Semaphore::new(limits.ahead_bytes as usize)),
            gate: Gate::new(CLIENT_READS, READS_MAX),
            openers: Mutex::new(Some(jobs)),
            disk,
            state: Mutex::new(State {
                cache: EntryCache::new(limits.cache_bytes),
                spare: Vec::new(),
                flights: HashMap::new(),
            }),
            counts: EntryCounts::default(),
        });
        let start = |_| {
            let (opener, inbox) = (Opener::new(Arc::clone(repo.keys()))?, inbox.clone());
            let thread = std::thread::Builder::new().name("open".into());
            let started = thread.spawn(move || open_all(opener, &inbox));
            let failed = |e| Error::caused(ErrorKind::Unavailable, "start an opener thread", e);
            started.map_err(failed)
        };
        let threads = (0..limits.threads).map(start).collect::<Result<_>>()?;
        Ok((entries, threads))
    }

    /// Ends the openers once they have opened what they have; flights fail from then on.
    pub(super) fn end(&self) {
        drop(lock(&self.openers).take());
        if let Some(disk) = &self.disk {
            disk.end();
        }
    }

    pub(super) fn window_bytes(&self) -> u64 {
        self.limits.window_bytes
    }

    pub(super) fn keys(&self) -> &Arc<Keys> {
        self.repo.keys()
    }

    pub(super) fn repo(&self) -> &Arc<Repository> {
        &self.repo
    }

    pub(super) fn salvage(&self) -> &Arc<Salvage> {
        &self.salvage
    }

    pub(super) fn rt(&self) -> &Handle {
        &self.rt
    }

    /// Claims entries, in the order given; those that are neither kept nor under way are asked for
    /// together.
    pub(super) fn demand(self: &Arc<Self>, addrs: &[EntryAddr], urgency: Urgency) -> Vec<Ticket> {
        let mut fresh = Vec::new();
        let mut tickets = Vec::with_capacity(addrs.len());
        {
            let State { cache, flights, .. } = &mut *lock(&self.state);
            for addr in addrs {
                if let Some(kept) = cache.get(addr) {
                    tickets.push(Ticket::Kept(kept));
                    continue;
                }
                let waiting = flights.entry(*addr).or_insert_with(|| {
                    fresh.push(*addr);
                    Vec::new()
                });
                if urgency == Urgency::Now {
                    let (answer, ticket) = oneshot::channel();
                    waiting.push(answer);
                    tickets.push(Ticket::Flying(ticket));
                }
            }
        }
        if urgency == Urgency::Now {
            let misses = fresh.len() as u64;
            self.counts.misses.fetch_add(misses, Ordering::Relaxed);
            self.counts.hits.fetch_add(addrs.len() as u64 - misses, Ordering::Relaxed);
        }
        let fresh = self.take_from_disk(fresh, urgency);
        for read in self.plan(fresh) {
            drop(self.rt.spawn(Arc::clone(self).fly(read, urgency)));
        }
        tickets
    }

    /// Begins to read what the disk has. Gives what it has not.
    fn take_from_disk(
        self: &Arc<Self>,
        mut addrs: Vec<EntryAddr>,
        urgency: Urgency,
    ) -> Vec<EntryAddr> {
        if let Some(disk) = &self.disk {
            addrs.retain(|addr| match disk.find(addr) {
                Some(slot) => {
                    let of = (Arc::clone(disk), slot);
                    drop(self.rt.spawn(Arc::clone(self).fly_from_disk(of, *addr, urgency)));
                    false
                }
                None => true,
            });
        }
        addrs
    }

    async fn fly_from_disk(
        self: Arc<Self>,
        (disk, slot): (Arc<DiskCache>, Slot),
        addr: EntryAddr,
        urgency: Urgency,
    ) {
        let memory = match self.permits(u64::from(addr.stored_len), urgency).await {
            Ok(memory) => memory,
            Err(e) => return self.settle(&addr, Err(EntryFailure::Failed(Arc::new(e)))),
        };
        match disk.get(addr, slot).await {
            Some(stored) => {
                self.counts.disk_hits.fetch_add(1, Ordering::Relaxed);
                self.hand_to_opener(addr, stored, memory);
            }
            None => {
                drop(memory);
                self.fly(run_of(&[addr]), urgency).await;
            }
        }
    }

    /// One range read for each run of entries, none with more than its permits allow.
    fn plan(&self, addrs: Vec<EntryAddr>) -> Vec<RangeRead> {
        let read_bytes_max = self.limits.read_bytes_max;
        let merged = plan_reads(addrs, GAP_BYTES, read_bytes_max);
        let mut reads: Vec<RangeRead> = merged
            .iter()
            .flat_map(|read| read.entries.chunks(self.limits.read_entries_max))
            .map(run_of)
            .collect();
        self.salvage.headers().reach(&mut reads, GAP_BYTES, read_bytes_max);
        reads
    }

    async fn fly(self: Arc<Self>, read: RangeRead, urgency: Urgency) {
        let mut left = vec![read];
        while let Some(read) = left.pop() {
            match self.fetch(&read, urgency).await {
                Ok(Some((data, memory))) => self.hand_on(&read, &data, &memory),
                Ok(None) => self.settle_all(&read, &EntryFailure::Gone),
                // a pack that is cut short may still hold some of them
                Err(e) if is_damage(&e) && read.entries.len() > 1 => {
                    left.extend(read.entries.chunks(1).map(run_of));
                }
                Err(e) => self.settle_all(&read, &EntryFailure::Failed(Arc::new(e))),
            }
        }
    }

    async fn fetch(
        &self,
        read: &RangeRead,
        urgency: Urgency,
    ) -> Result<Option<(Bytes, Arc<Permits>)>> {
        let memory = self.permits(u64::from(read.len), urgency).await?;
        let place = self.gate.enter().await;
        let Fetched::Data(data) = read_range(&self.repo, read).await? else { return Ok(None) };
        self.gate.ended(place, data.len() as u64);
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts.read_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.salvage.headers().look(&self.repo, PackKind::Chunks, read, &data).await?;
        Ok(Some((data, memory)))
    }

    async fn permits(&self, bytes: u64, urgency: Urgency) -> Result<Arc<Permits>> {
        let ahead = match urgency {
            Urgency::Now => None,
            Urgency::Ahead => Some(take(&self.ahead, bytes).await?),
        };
        let memory = take(&self.memory, bytes).await?;
        Ok(Arc::new(Permits { _memory: memory, _ahead: ahead }))
    }

    fn hand_on(self: &Arc<Self>, read: &RangeRead, data: &Bytes, memory: &Arc<Permits>) {
        for addr in &read.entries {
            match read.entry_bytes(data, addr) {
                Ok(stored) => self.hand_to_opener(*addr, stored, Arc::clone(memory)),
                Err(e) => self.settle(addr, Err(EntryFailure::Failed(Arc::new(e)))),
            }
        }
    }

    fn hand_to_opener(self: &Arc<Self>, addr: EntryAddr, stored: Bytes, memory: Arc<Permits>) {
        let job = Job { entries: Arc::clone(self), addr, stored, _memory: memory };
        let openers = lock(&self.openers).clone();
        if openers.is_none_or(|openers| openers.send(job).is_err()) {
            let ended = Error::new(ErrorKind::Cancelled, "open an entry", "reading has ended");
            self.settle(&addr, Err(EntryFailure::Failed(Arc::new(ended))));
        }
    }

    fn spare(&self) -> Vec<u8> {
        lock(&self.state).spare.pop().unwrap_or_default()
    }

    fn settle_all(&self, read: &RangeRead, failure: &EntryFailure) {
        for addr in &read.entries {
            self.settle(addr, Err(failure.clone()));
        }
    }

    /// Ends what is under way for an entry, and tells those who wait for it.
    fn settle(&self, addr: &EntryAddr, answer: Answer) {
        let waiting = {
            let mut state = lock(&self.state);
            if let Ok(entry) = &answer {
                for gone in state.cache.put(*addr, entry) {
                    // somebody may still copy from it
                    if let Some(gone) = Arc::into_inner(gone)
                        && state.spare.len() < self.limits.threads
                    {
                        state.spare.push(gone.plain);
                    }
                }
            }
            state.flights.remove(addr).unwrap_or_default()
        };
        for who in waiting {
            // it may be gone
            let _ = who.send(answer.clone());
        }
    }

    #[cfg(test)]
    pub(super) fn disk(&self) -> &DiskCache {
        self.disk.as_ref().unwrap()
    }

    #[cfg(test)]
    pub(super) fn at_rest(&self) -> bool {
        let state = lock(&self.state);
        assert!(state.cache.bytes() <= self.limits.cache_bytes);
        state.flights.is_empty()
            && self.memory.available_permits() == self.limits.flight_bytes as usize
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // nothing is left half done in a panic: the state is changed in single steps
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn is_damage(e: &Error) -> bool {
    crate::reading::damage::Damage::is(e)
}

/// One read of adjacent entries, ascending.
fn run_of(entries: &[EntryAddr]) -> RangeRead {
    let (first, last) = (entries[0], entries[entries.len() - 1]);
    let end = entries.iter().map(|e| u64::from(e.offset) + u64::from(e.stored_len)).max();
    let len = end.unwrap_or(0).saturating_sub(u64::from(first.offset));
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    RangeRead { pack: last.pack, start: first.offset, len, entries: entries.to_vec() }
}

/// A thread that opens entries until nobody sends any.
fn open_all(mut opener: Opener, inbox: &Receiver<Job>) {
    for Job { entries, addr, stored, _memory } in inbox {
        let answer = open(&mut opener, addr, &stored, entries.spare());
        if let (Some(disk), Ok(_)) = (&entries.disk, &answer) {
            disk.offer(&addr, &stored);
        }
        drop(stored);
        entries.settle(&addr, answer);
    }
}

/// Opens an entry. What is in the buffer before is of no meaning.
fn open(opener: &mut Opener, addr: EntryAddr, stored: &[u8], mut plain: Vec<u8>) -> Answer {
    let EntryAddr { pack, offset, entry, .. } = addr;
    match opener.open_entry(EntryKind::Chunks, &pack, offset, stored, &mut plain) {
        Ok(header) => {
            if plain.capacity() / 4 * 3 > plain.len() {
                // it was that of a longer one
                plain.shrink_to_fit();
            }
            let ids = (0..header.count).map(|_| OnceLock::new()).collect();
            Ok(Arc::new(Opened { addr, header, plain, ids }))
        }
        Err(e) => {
            let e = e.within(format!("open entry {entry} of {}", pack_key(&pack))).hint(hint());
            Err(EntryFailure::Failed(Arc::new(e)))
        }
    }
}
