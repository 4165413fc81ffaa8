//! A backup as random-access bytes: what is read is found by one walk of a few cached pages, and
//! fetched by one range read for each run of entries.
//!
//! | file | |
//! |---|---|
//! | `limits` | pure: the memory budget → every bound |
//! | `opening` | a backup that is opened beside other work; what is fetched with what |
//! | `ahead` | pure: which bytes are read before anybody asks |
//! | `leaves` | what the map says of chunks: kept, or loaded together by one task |
//! | `disk` | stored entries that are kept on a disk |
//! | `entries`, `cache` | opened entries: kept, under way, or fetched once for all who ask |
//!
//! A [`ViewPool`] has what the backups of one repository share: entries that are kept, opener
//! threads, the bounds. A [`BackupView`] is one backup. Its functions are async, any number of them
//! may run at a time, and one that is dropped leaves nothing behind.
//!
//! Each chunk's id is checked with the code that a restore uses. A chunk that is damaged is looked
//! for elsewhere in the repository, as a restore does. If it is nowhere, the bytes that need it are
//! an error and all others are not. Nothing that failed is remembered; the next read asks again.
//!
//! Cannot deadlock: a read waits for the map's task, then for entries (`leaves.rs`, `entries.rs`),
//! and holds nothing of either meanwhile. It copies what has come at once.
//!
//! Must not: keep the backup from being collected. The caller holds a lease.

mod ahead;
mod cache;
mod disk;
mod entries;
mod leaves;
mod limits;
mod opening;
#[cfg(test)]
mod tests;

pub use disk::DiskCacheOptions;
pub use limits::{ViewLimits, ViewNeeds, ViewUse};
pub use opening::OpeningView;

use super::SalvagedParts;
use super::fetch::instead;
use super::plan::name;
use ahead::Streams;
use chunkstore::fetch::{EntryAddr, StubFollower};
use chunkstore::limits::STUB_HOPS_MAX;
use chunkstore::salvage::Salvage;
use chunkstore::{ChunkNo, ChunkRef, Error, ErrorKind, Geometry, Location, Repository, Result};
use disk::DiskCache;
use entries::{Entries, EntryFailure, Opened, Urgency, is_damage};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use leaves::{Leaves, StoredChunks};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// Ranges of one answer about data and zeros.
const EXTENTS_MAX: usize = 4096;
/// Steps through a map for one such answer.
const STEPS_MAX: usize = 16;
/// Chunks whose new place is known, some 150 bytes each.
const MOVED_MAX: usize = 1 << 14;
/// Chunks that are looked for elsewhere in all; a search costs memory for each.
const SEARCHES_MAX: u64 = 1 << 16;
/// The map is read so many chunks ahead of what is fetched ahead, so that no fetch waits for it.
/// They take some 100 bytes each for a moment.
const MAP_AHEAD_CHUNKS: u64 = 2048;
/// Looks for what was found and then was not there: a collection may take it.
const ROUNDS_MAX: u32 = 3;

/// What the backups of one repository share. When it is dropped, reading ends.
#[derive(Debug)]
pub struct ViewPool {
    entries: Arc<Entries>,
    limits: ViewLimits,
    streams: Arc<Mutex<Streams>>,
    openers: Vec<std::thread::JoinHandle<()>>,
}

impl ViewPool {
    /// Starts the opener threads. A disk cache has to be in the limits.
    pub fn start(
        rt: &Handle,
        repo: &Arc<Repository>,
        limits: ViewLimits,
        disk: Option<&DiskCacheOptions>,
    ) -> Result<Self> {
        let salvage = Arc::new(Salvage::new(repo));
        let disk = disk.map(|of| DiskCache::start(of, limits.stored_max)).transpose()?;
        let (entries, openers) = Entries::start(rt, repo, &salvage, (&limits, disk))?;
        let streams = Arc::new(Mutex::new(Streams::new(limits.window_bytes)));
        Ok(Self { entries, limits, streams, openers })
    }

    /// What was read so far.
    pub fn counts(&self) -> ViewCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.entries.counts;
        ViewCounts {
            hits: get(&counts.hits),
            misses: get(&counts.misses),
            disk_hits: get(&counts.disk_hits),
            reads: get(&counts.reads),
            read_bytes: get(&counts.read_bytes),
        }
    }

    /// What was found elsewhere, and warnings.
    pub fn salvaged(&self) -> (Option<SalvagedParts>, Vec<String>) {
        super::salvage::outcome(self.entries.salvage())
    }
}

impl Drop for ViewPool {
    fn drop(&mut self) {
        self.entries.end();
        for opener in self.openers.drain(..) {
            // a panic has ended the process
            let _ = opener.join();
        }
    }
}

/// What was read of a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ViewCounts {
    /// Entries that were wanted, and kept or under way.
    pub hits: u64,
    /// Entries that were wanted, and not there.
    pub misses: u64,
    /// Entries that came from the disk cache.
    pub disk_hits: u64,
    /// Range reads of packs.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
}

/// A stretch of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewExtent {
    /// Bytes of the volume.
    pub range: Range<u64>,
    /// They are zero.
    pub zero: bool,
}

/// One backup. The volume's bytes, whoever asks for which.
#[derive(Debug)]
pub struct BackupView {
    entries: Arc<Entries>,
    leaves: Arc<Leaves>,
    geometry: Geometry,
    entry_chunks: u16,
    /// Those of all backups: they share a cache.
    streams: Arc<Mutex<Streams>>,
    /// What they know this one by.
    number: u64,
    stubs: tokio::sync::Mutex<StubFollower>,
    /// Where chunks of packs that are gone went.
    moved: Mutex<HashMap<(EntryAddr, u16), Location>>,
    searches: AtomicU64,
}

/// A chunk of which bytes are wanted, and where they go.
#[derive(Debug, Clone)]
struct Wanted {
    chunk: ChunkNo,
    at: ChunkRef,
    /// Within the chunk.
    from: usize,
    /// In the buffer.
    to: Range<usize>,
}

impl BackupView {
    /// Size of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }

    /// Size of a chunk: reads of whole ones cost least.
    pub fn chunk_bytes(&self) -> u32 {
        self.geometry.chunk().bytes()
    }

    /// Fills `buf` with the volume's bytes from `offset` on. Gives the parts of it that no chunk
    /// stands for: they are zero. After an error `buf` is of no use.
    pub async fn read(self: &Arc<Self>, offset: u64, buf: &mut [u8]) -> Result<Vec<Range<usize>>> {
        self.expect(&self.within(offset, buf.len() as u64)?);
        self.read_expected(offset, buf).await
    }

    /// The same, after [`expect`](Self::expect) of these bytes.
    pub async fn read_expected(
        self: &Arc<Self>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Vec<Range<usize>>> {
        let range = self.within(offset, buf.len() as u64)?;
        let mut zeros: Vec<Range<usize>> = Vec::new();
        let mut groups: HashMap<EntryAddr, Vec<Wanted>> = HashMap::new();
        for (chunk, at) in self.leaves.refs(self.geometry.chunks_of(range.clone())).await? {
            let (from, to) = self.part(chunk, &range);
            let Some(at) = at else {
                buf[to.clone()].fill(0);
                match zeros.last_mut() {
                    Some(last) if last.end == to.start => last.end = to.end,
                    _ => zeros.push(to),
                }
                continue;
            };
            let at = self.placed(at);
            let addr = self.checked(chunk, &at)?;
            groups.entry(addr).or_default().push(Wanted { chunk, at, from, to });
        }
        let mut left = Vec::new();
        {
            let addrs: Vec<EntryAddr> = groups.keys().copied().collect();
            let tickets = self.entries.demand(&addrs, Urgency::Now);
            let waits = addrs.iter().zip(tickets).map(|(addr, ticket)| {
                let wanted = groups.remove(addr).unwrap_or_default();
                async move { (wanted, ticket.wait().await) }
            });
            let mut waits: FuturesUnordered<_> = waits.collect();
            while let Some((wanted, answer)) = waits.next().await {
                for want in wanted {
                    match self.copy(&want, &answer, buf) {
                        Ok(()) => {}
                        Err(failure) => left.push((want, failure)),
                    }
                }
            }
        }
        for (want, failure) in left {
            self.read_elsewhere(want, failure, buf).await?;
        }
        Ok(zeros)
    }

    /// What is data and what is zero, from the start of a range on, without reading data. The
    /// answer has at least one extent; it may end before the range does.
    pub async fn extents(&self, range: Range<u64>) -> Result<Vec<ViewExtent>> {
        let range = self.within(range.start, range.end.saturating_sub(range.start))?;
        let mut found: Vec<ViewExtent> = Vec::new();
        let mut chunks = self.geometry.chunks_of(range.clone());
        for _ in 0..STEPS_MAX {
            let StoredChunks { looked, stored } = self.leaves.stored(chunks.clone()).await?;
            if looked.is_empty() {
                break;
            }
            let mut at = looked.start;
            for data in stored {
                self.push(&mut found, at..data.start, true, &range);
                self.push(&mut found, data.clone(), false, &range);
                at = data.end;
            }
            self.push(&mut found, at..looked.end, true, &range);
            chunks.start = looked.end;
            if chunks.start >= chunks.end || found.len() >= EXTENTS_MAX {
                break;
            }
        }
        if found.is_empty() {
            let context = format!("find out what is zero from byte {} on", range.start);
            return Err(Error::new(ErrorKind::Bug, context, "the map says nothing"));
        }
        Ok(found)
    }

    /// Appends chunks, cut to what is asked for.
    fn push(
        &self,
        found: &mut Vec<ViewExtent>,
        chunks: Range<u64>,
        zero: bool,
        asked: &Range<u64>,
    ) {
        let byte = |chunk| self.geometry.offset(ChunkNo(chunk));
        let range = byte(chunks.start).max(asked.start)..byte(chunks.end).min(asked.end);
        if range.start >= range.end {
            return;
        }
        match found.last_mut() {
            Some(last) if last.zero == zero => last.range.end = range.end,
            _ => found.push(ViewExtent { range, zero }),
        }
    }

    fn within(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        let size = self.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size && len > 0 => Ok(offset..end),
            _ => {
                let context = format!("read {len} bytes at offset {offset}");
                Err(Error::new(ErrorKind::Usage, context, format!("the volume has {size} bytes")))
            }
        }
    }

    /// Which bytes of a chunk are wanted, from where in it, and where they go in the buffer.
    fn part(&self, chunk: ChunkNo, range: &Range<u64>) -> (usize, Range<usize>) {
        let start = self.geometry.offset(chunk);
        let end = start + u64::from(self.geometry.len(chunk));
        let (from, to) = (start.max(range.start), end.min(range.end));
        let small = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        (small(from - start), small(from - range.start)..small(to - range.start))
    }

    /// A chunk at its place as far as it is known to be another one than the map says.
    fn placed(&self, at: ChunkRef) -> ChunkRef {
        let at = instead(self.entries.salvage(), at);
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let place = moved.get(&(EntryAddr::from(&at.location), at.location.index));
        place.map_or(at, |location| ChunkRef { location: *location, ..at })
    }

    /// The entry that a chunk is in. A page is authentic but may be wrong all the same.
    fn checked(&self, chunk: ChunkNo, at: &ChunkRef) -> Result<EntryAddr> {
        let addr = EntryAddr::from(&at.location);
        let context = || format!("read the map entry of {}", name(&self.geometry, chunk));
        addr.check_chunk(at.location.index, self.geometry.chunk(), self.entry_chunks)
            .map_err(|e| e.within(context()))?;
        Ok(addr)
    }

    fn copy(
        &self,
        want: &Wanted,
        answer: &Result<Arc<Opened>, EntryFailure>,
        buf: &mut [u8],
    ) -> Result<(), EntryFailure> {
        let opened = answer.as_ref().map_err(Clone::clone)?;
        let bytes = opened
            .chunk(self.entries.keys(), &self.geometry, (want.chunk, &want.at))
            .map_err(|e| EntryFailure::Failed(Arc::new(e)))?;
        let to = &mut buf[want.to.clone()];
        to.copy_from_slice(&bytes[want.from..][..to.len()]);
        Ok(())
    }

    /// A chunk that is not to be had where it was looked for: where stubs say, or where it stands a
    /// second time.
    async fn read_elsewhere(
        &self,
        mut want: Wanted,
        mut failure: EntryFailure,
        buf: &mut [u8],
    ) -> Result<()> {
        let (mut hops, mut searches) = (0, 0);
        loop {
            let e = match failure {
                EntryFailure::Gone if hops < STUB_HOPS_MAX => {
                    hops += 1;
                    match self.follow(&want.at).await {
                        Ok(location) => {
                            want.at.location = location;
                            failure = match self.try_at(&want, buf).await? {
                                Ok(()) => return Ok(()),
                                Err(failure) => failure,
                            };
                            continue;
                        }
                        Err(e) => e,
                    }
                }
                EntryFailure::Gone => {
                    let what = "the pack that holds it moved again and again while it was read";
                    Error::new(ErrorKind::Unavailable, "follow a pack that was rewritten", what)
                }
                EntryFailure::Failed(e) => shared(&e),
            };
            let e = e.within(format!("read {}", name(&self.geometry, want.chunk)));
            if !is_damage(&e) || searches >= ROUNDS_MAX {
                return Err(e);
            }
            searches += 1;
            let Some(location) = self.search(&want.at).await else { return Err(e) };
            want.at.location = location;
            failure = match self.try_at(&want, buf).await? {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
        }
    }

    /// `Err` inside: it is not to be had there either.
    async fn try_at(&self, want: &Wanted, buf: &mut [u8]) -> Result<Result<(), EntryFailure>> {
        let addr = self.checked(want.chunk, &want.at)?;
        let ticket = self.entries.demand(&[addr], Urgency::Now).pop();
        let Some(ticket) = ticket else {
            let context = format!("read {}", name(&self.geometry, want.chunk));
            return Err(Error::new(ErrorKind::Bug, context, "its entry was not claimed"));
        };
        let answer = ticket.wait().await;
        Ok(self.copy(want, &answer, buf))
    }

    /// Where a chunk of a pack that is gone is now. That no stub says so is never remembered.
    async fn follow(&self, at: &ChunkRef) -> Result<Location> {
        let Location { pack, entry, index, .. } = at.location;
        let mut stubs = self.stubs.lock().await;
        let found = stubs.resolve(self.entries.repo(), &pack, &[(entry, index)]).await?;
        drop(stubs);
        let location = found.first().copied().ok_or_else(|| {
            Error::new(ErrorKind::Bug, "follow a pack that was rewritten", "a stub says nothing")
        })?;
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if moved.len() >= MOVED_MAX {
            moved.clear();
        }
        moved.insert((EntryAddr::from(&at.location), index), location);
        Ok(location)
    }

    /// Where a damaged chunk stands a second time.
    async fn search(&self, at: &ChunkRef) -> Option<Location> {
        if self.searches.fetch_add(1, Ordering::Relaxed) >= SEARCHES_MAX {
            return None;
        }
        let salvage = self.entries.salvage();
        if let Err(e) = Box::pin(salvage.find_chunks(&[(at.id, at.location)])).await {
            // lost as it would be if nobody had looked
            tracing::warn!("a damaged chunk could not be looked for elsewhere: {e}");
            return None;
        }
        salvage.place(&at.id).filter(|place| *place != at.location)
    }

    /// Notes that bytes of the volume will be read, and begins to fetch what a sequential reader
    /// will want next. Of reads that run side by side, to be called in the order in which they were
    /// asked for.
    pub fn expect(self: &Arc<Self>, read: &Range<u64>) {
        let noted = {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.note(self.number, read, self.size_bytes())
        };
        if let Some(ahead) = noted {
            self.prefetch(ahead);
        }
    }

    /// Begins to fetch bytes of the volume, and what the map says of those behind them. They are
    /// kept as others are, so it is no more than [`ViewLimits::window_bytes`].
    pub fn prefetch(self: &Arc<Self>, mut range: Range<u64>) {
        range.end = range.end.min(range.start.saturating_add(self.entries.window_bytes()));
        let view = Arc::clone(self);
        let task = async move {
            let end = range.end;
            // who reads it will hear of what is wrong
            let Ok(refs) = view.leaves.refs(view.geometry.chunks_of(range)).await else { return };
            let placed = refs.into_iter().filter_map(|(chunk, at)| Some((chunk, view.placed(at?))));
            let mut addrs: Vec<EntryAddr> =
                placed.filter_map(|(chunk, at)| view.checked(chunk, &at).ok()).collect();
            addrs.sort_unstable();
            addrs.dedup();
            view.entries.demand(&addrs, Urgency::Ahead);
            let ahead = MAP_AHEAD_CHUNKS.saturating_mul(view.chunk_bytes().into());
            let behind = end..end.saturating_add(ahead).min(view.size_bytes());
            if !behind.is_empty() {
                // the same
                drop(view.leaves.refs(view.geometry.chunks_of(behind)).await);
            }
        };
        drop(self.entries.rt().spawn(task));
    }
}

/// A failure that several may meet, for one of them.
fn shared(e: &Error) -> Error {
    let text = e.to_string();
    // its next step is in the text
    Error::new(e.kind(), "fetch its entry", text)
}
