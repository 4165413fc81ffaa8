//! The volume: reads, writes, zeros and trims of any bounds.
//!
//! A request is cut at the bounds of chunks, and each part keeps to what its chunk's state asks
//! for. A write of all of a chunk makes it done, whatever it was. One of a part of an absent chunk
//! fetches it, and then writes all of it in one piece, under the lock.

use super::flush::{Flushes, JournalWriter};
use super::guards::{Waits, WaitsToTheEnd};
use super::journal::{JournalTerms, Replayed};
use super::parts::{CowSource, CowTarget, JournalLog};
use super::states::ChunkStates;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Locks of all chunks.
const LOCKS: u64 = 1024;
/// Chunks of one change of the target.
pub(super) const RUN_CHUNKS_MAX: u64 = 64;
/// Ranges that were read and are to be fetched first.
const ASKED_MAX: usize = 1 << 12;

/// A copy-on-write volume. Any number of calls may run at a time.
pub struct CowVolume<S, T, J> {
    pub(super) rt: Handle,
    pub(super) source: S,
    pub(super) target: T,
    pub(super) states: Mutex<ChunkStates>,
    pub(super) journal: tokio::sync::Mutex<JournalWriter<J>>,
    pub(super) flushes: Mutex<Flushes>,
    size_bytes: u64,
    chunk_bytes: u64,
    locks: Vec<Arc<RwLock<()>>>,
    /// Shared by each change that is under way.
    changes: Arc<RwLock<()>>,
    /// Somebody has left a change that is, or was, under way.
    left: AtomicBool,
    failed: OnceLock<String>,
    /// Absent chunks that were read, the last of them last.
    asked: Mutex<Vec<Range<u64>>>,
    pub(super) was_asked: Notify,
    /// Reads and writes of guests that wait for the source.
    waiting: AtomicU64,
}

/// How far a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CowFigures {
    /// Chunks of the volume.
    pub chunks: u64,
    /// Those that are on the target.
    pub done: u64,
    /// Those of which the journal says so.
    pub durable: u64,
}

/// The locks of some chunks.
enum Held {
    Shared { _locks: Vec<OwnedRwLockReadGuard<()>> },
    Alone { _locks: Vec<OwnedRwLockWriteGuard<()>> },
}

/// What becomes of a range.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Write(Bytes),
    Zero { hole: bool },
}

impl Change {
    /// Its part that lies in `part` of `whole`.
    fn part(&self, whole: &Range<u64>, part: &Range<u64>) -> Self {
        let at = |offset: u64| index(offset - whole.start);
        match self {
            Self::Write(data) => Self::Write(data.slice(at(part.start)..at(part.end))),
            Self::Zero { hole } => Self::Zero { hole: *hole },
        }
    }
}

impl<S: CowSource, T: CowTarget, J: JournalLog> CowVolume<S, T, J> {
    /// A volume as its journal has it. The journal's torn end, if any, was cut.
    pub fn new(rt: &Handle, source: S, target: T, (log, read): (J, Replayed)) -> Arc<Self> {
        let Replayed { terms, done, number, base_bytes, end, .. } = read;
        let JournalTerms { size_bytes, chunk_bytes, .. } = terms;
        assert!(u64::from(chunk_bytes).is_multiple_of(target.align()), "chunks are whole blocks");
        let journal = JournalWriter { log, terms, number, base_bytes, end };
        Arc::new(Self {
            rt: rt.clone(),
            source,
            target,
            states: Mutex::new(ChunkStates::new(done)),
            journal: tokio::sync::Mutex::new(journal),
            flushes: Mutex::default(),
            size_bytes,
            chunk_bytes: u64::from(chunk_bytes),
            locks: (0..LOCKS).map(|_| Arc::default()).collect(),
            changes: Arc::default(),
            left: AtomicBool::new(false),
            failed: OnceLock::new(),
            asked: Mutex::default(),
            was_asked: Notify::new(),
            waiting: AtomicU64::new(0),
        })
    }

    /// Bytes of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of a chunk; the last one may be shorter.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// How far it is.
    pub fn figures(&self) -> CowFigures {
        let states = locked(&self.states);
        let (done, durable) = (states.done(), states.durable());
        CowFigures { chunks: done.chunks(), done: done.ones(), durable: durable.ones() }
    }

    /// Why nothing can be written any more, if so.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// The target, for whoever has opened it.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Which bytes of a range are on the target, in order, and which are the source's.
    pub fn stretches(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let states = locked(&self.states);
        let runs = states.done().runs(self.chunks_of(&range));
        runs.map(|(run, done)| (self.cut(&self.bytes_of(&run), &range), done)).collect()
    }

    /// Whether a change of a range has to read the source: it covers a part of an absent chunk.
    pub fn needs_source(&self, range: &Range<u64>) -> bool {
        if range.is_empty() || range.end > self.size_bytes {
            return false;
        }
        let chunks = self.chunks_of(range);
        let states = locked(&self.states);
        let part = |chunk: u64| {
            let whole = self.bytes_of(&(chunk..chunk + 1));
            (whole.start < range.start || whole.end > range.end) && !states.done().contains(chunk)
        };
        part(chunks.start) || part(chunks.end - 1)
    }

    /// Reads of guests, and writes, that wait for the source just now.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Hears that a range will be read; see [`CowSource::expect`].
    pub fn expect(&self, range: &Range<u64>) {
        let end = range.end.min(self.size_bytes);
        let stretches = self.stretches(range.start.min(end)..end);
        let absent = stretches.iter().filter(|(part, done)| !done && !part.is_empty());
        absent.for_each(|(part, _)| self.source.expect(part));
    }

    /// Fills a buffer. Gives parts of it that are known to be zero. Absent chunks are asked for:
    /// [`hydrate`](super::hydrate()) takes them first.
    pub async fn read(
        self: &Arc<Self>,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<Vec<Range<usize>>> {
        let whole = self.within(offset, buf.len() as u64)?;
        let mut zeros = Vec::new();
        for (part, done) in self.stretches(whole.clone()) {
            let to = index(part.start - offset)..index(part.end - offset);
            if done {
                let bytes = self.target.read(part).await?;
                buf[to].copy_from_slice(&bytes);
                continue;
            }
            self.ask_for(self.chunks_of(&part));
            // done by now or not: until this call has ended, both answers are right
            let found = {
                let _waits = Waits::begin(&self.waiting);
                self.source.read(part.start, &mut buf[to.clone()]).await?
            };
            zeros.extend(found.into_iter().map(|zero| to.start + zero.start..to.start + zero.end));
        }
        Ok(zeros)
    }

    /// Writes bytes.
    pub async fn write(self: &Arc<Self>, offset: u64, data: Bytes) -> io::Result<()> {
        let whole = self.within(offset, data.len() as u64)?;
        self.change(whole, Change::Write(data)).await
    }

    /// Makes a range read as zeros; with `hole` it may give its room back.
    pub async fn zero(self: &Arc<Self>, range: Range<u64>, hole: bool) -> io::Result<()> {
        let whole = self.within(range.start, range.end.saturating_sub(range.start))?;
        self.change(whole, Change::Zero { hole }).await
    }

    /// Says that a range is not needed. Chunks that lie within it as a whole become zeros, absent
    /// ones too; of others nothing changes. Where the target cannot give room back, nothing
    /// changes at all.
    pub async fn trim(self: &Arc<Self>, range: Range<u64>) -> io::Result<()> {
        let asked = self.within(range.start, range.end.saturating_sub(range.start))?;
        let start = asked.start.next_multiple_of(self.chunk_bytes);
        let end = match asked.end {
            end if end == self.size_bytes => end,
            end => end / self.chunk_bytes * self.chunk_bytes,
        };
        if start >= end || !self.target.can_trim() {
            return self.check_usable();
        }
        self.change(start..end, Change::Zero { hole: true }).await
    }

    /// Waits until no change is under way, flushes, and lets none begin any more.
    pub async fn close(self: &Arc<Self>) -> io::Result<()> {
        let _all = self.changes.write().await;
        let flushed = self.flush().await;
        // what failed before stays the reason
        let _ = self.failed.set("the volume is closed".into());
        flushed
    }

    async fn change(self: &Arc<Self>, whole: Range<u64>, change: Change) -> io::Result<()> {
        let mut at = whole.start;
        while at < whole.end {
            let part = at..self.end_of_part(at, &whole);
            let change = change.part(&whole, &part);
            at = part.end;
            let chunks = self.chunks_of(&part);
            let covered = self.cut(&self.bytes_of(&chunks), &part) == self.bytes_of(&chunks);
            if covered || locked(&self.states).all_done(chunks.clone()) {
                self.owned(move |this| async move { this.place(part, change).await }).await?;
                continue;
            }
            // one chunk: see `end_of_part`
            let chunk = self.bytes_of(&chunks);
            let mut bytes = vec![0; index(chunk.end - chunk.start)];
            {
                let _waits = Waits::begin(&self.waiting);
                self.source.read(chunk.start, &mut bytes).await?;
            }
            self.owned(move |this| async move { this.merge(chunk, bytes, part, change).await })
                .await?;
        }
        Ok(())
    }

    /// Where the part of a request ends that begins at an offset: it is of chunks that are done, or
    /// of whole chunks, or of one chunk.
    fn end_of_part(&self, at: u64, whole: &Range<u64>) -> u64 {
        let first = at / self.chunk_bytes;
        let most = self.bytes_of(&(first..first + RUN_CHUNKS_MAX)).end.min(whole.end);
        if locked(&self.states).all_done(self.chunks_of(&(at..most))) {
            return most;
        }
        let end_of_first = self.bytes_of(&(first..first + 1)).end;
        if !at.is_multiple_of(self.chunk_bytes) || end_of_first >= most {
            return end_of_first.min(most);
        }
        if most == self.size_bytes { most } else { most / self.chunk_bytes * self.chunk_bytes }
    }

    /// Changes bytes of chunks that are done, or all bytes of chunks.
    async fn place(&self, part: Range<u64>, change: Change) -> io::Result<()> {
        let chunks = self.chunks_of(&part);
        let _held = self.hold(&chunks, self.shares(&part, &change)).await;
        self.check_usable()?;
        self.put(part, change).await?;
        locked(&self.states).finish(chunks);
        Ok(())
    }

    /// Changes a part of a chunk whose bytes in the source are known.
    async fn merge(
        &self,
        chunk: Range<u64>,
        mut bytes: Vec<u8>,
        part: Range<u64>,
        change: Change,
    ) -> io::Result<()> {
        let chunks = self.chunks_of(&chunk);
        let _held = self.hold(&chunks, false).await;
        self.check_usable()?;
        if locked(&self.states).all_done(chunks.clone()) {
            // somebody else was quicker; what was fetched is of no meaning now
            return self.put(part, change).await;
        }
        let within = index(part.start - chunk.start)..index(part.end - chunk.start);
        match change {
            Change::Write(data) => bytes[within].copy_from_slice(&data),
            Change::Zero { .. } => bytes[within].fill(0),
        }
        self.put(chunk, Change::Write(bytes.into())).await?;
        locked(&self.states).finish(chunks);
        Ok(())
    }

    /// Puts the source's bytes of whole chunks where they are absent. Gives the number of bytes
    /// that went to the target.
    pub(super) async fn land(
        &self,
        run: Range<u64>,
        bytes: Bytes,
        zeros: &[Range<usize>],
    ) -> io::Result<u64> {
        let whole = self.bytes_of(&run);
        let chunks = self.chunks_of(&whole);
        let _held = self.hold(&chunks, false).await;
        self.check_usable()?;
        let absent: Vec<_> = {
            let states = locked(&self.states);
            states.done().runs(chunks).filter(|(_, done)| !done).map(|(run, _)| run).collect()
        };
        let mut landed = 0;
        for run in absent {
            for (part, zero) in self.by_zeros(&run, &whole, zeros) {
                let range = self.bytes_of(&part);
                landed += range.end - range.start;
                let change = match zero {
                    true => Change::Zero { hole: true },
                    false => Change::Write(bytes.clone()).part(&whole, &range),
                };
                self.put(range, change).await?;
                locked(&self.states).finish(part);
            }
        }
        Ok(landed)
    }

    /// Chunks of a run, by whether all of their bytes are known to be zero.
    fn by_zeros(
        &self,
        run: &Range<u64>,
        whole: &Range<u64>,
        zeros: &[Range<usize>],
    ) -> Vec<(Range<u64>, bool)> {
        let mut parts: Vec<(Range<u64>, bool)> = Vec::new();
        for chunk in run.clone() {
            let bytes = self.bytes_of(&(chunk..chunk + 1));
            let at = index(bytes.start - whole.start)..index(bytes.end - whole.start);
            let zero = zeros.iter().any(|zero| zero.start <= at.start && at.end <= zero.end);
            match parts.last_mut() {
                Some((last, of)) if *of == zero => last.end = chunk + 1,
                _ => parts.push((chunk..chunk + 1, zero)),
            }
        }
        parts
    }

    async fn put(&self, range: Range<u64>, change: Change) -> io::Result<()> {
        match change {
            Change::Write(data) => self.target.write(range.start, data).await,
            Change::Zero { hole } => self.target.zero(range, hole).await,
        }
    }

    fn shares(&self, part: &Range<u64>, change: &Change) -> bool {
        let align = self.target.align();
        matches!(change, Change::Write(_))
            && part.start.is_multiple_of(align)
            && part.end.is_multiple_of(align)
    }

    /// Takes the locks of chunks, no more of them than one change may touch.
    async fn hold(&self, chunks: &Range<u64>, shared: bool) -> Held {
        let mut numbers: Vec<u64> = chunks.clone().map(|chunk| chunk % LOCKS).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let locks = numbers.into_iter().filter_map(|n| self.locks.get(index(n)).cloned());
        if shared {
            let mut held = Vec::new();
            for lock in locks {
                held.push(lock.read_owned().await);
            }
            return Held::Shared { _locks: held };
        }
        let mut held = Vec::new();
        for lock in locks {
            held.push(lock.write_owned().await);
        }
        Held::Alone { _locks: held }
    }

    /// Runs a change in a task of its own, which ends whether or not anybody waits for it.
    pub(super) async fn owned<R, F>(
        self: &Arc<Self>,
        change: impl FnOnce(Arc<Self>) -> F,
    ) -> io::Result<R>
    where
        R: Send + 'static,
        F: Future<Output = io::Result<R>> + Send + 'static,
    {
        self.check_usable()?;
        // A client that comes back writes again: what it has left must not land on top of that.
        if self.left.load(Ordering::SeqCst) {
            let _none_under_way = self.changes.write().await;
            self.left.store(false, Ordering::SeqCst);
        }
        let under_way = Arc::clone(&self.changes).read_owned().await;
        let change = change(Arc::clone(self));
        let mut waits = WaitsToTheEnd::begin(&self.left);
        let task = self.rt.spawn(async move {
            let done = change.await;
            drop(under_way);
            done
        });
        let done = task.await;
        waits.to_the_end = true;
        done.unwrap_or_else(|e| Err(io::Error::other(format!("a change was given up: {e}"))))
    }

    /// An error once nothing can be written any more.
    pub(super) fn check_usable(&self) -> io::Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("nothing is written any more: {why}"))),
        }
    }

    /// From now on nothing is written.
    pub(super) fn give_up(&self, what: &str, e: &io::Error) -> io::Error {
        let why = format!("{what}: {e}");
        tracing::error!("nothing is written any more: {why}");
        let given = io::Error::new(e.kind(), why.clone());
        // the first reason stays
        let _ = self.failed.set(why);
        self.was_asked.notify_one();
        given
    }

    fn ask_for(&self, chunks: Range<u64>) {
        let mut asked = locked(&self.asked);
        if asked.len() < ASKED_MAX && asked.last() != Some(&chunks) {
            asked.push(chunks);
            self.was_asked.notify_one();
        }
    }

    /// What was asked for last and not taken yet.
    pub(super) fn take_asked(&self) -> Option<Range<u64>> {
        locked(&self.asked).pop()
    }

    fn within(&self, offset: u64, len: u64) -> io::Result<Range<u64>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(offset..end),
            _ => {
                let what = format!("{len} bytes at offset {offset} of {}", self.size_bytes);
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }

    /// The chunks that have bytes of a range.
    pub(super) fn chunks_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.chunk_bytes..range.end.div_ceil(self.chunk_bytes)
    }

    /// The bytes of chunks, as far as the volume has them.
    pub(super) fn bytes_of(&self, chunks: &Range<u64>) -> Range<u64> {
        let byte = |chunk: u64| chunk.saturating_mul(self.chunk_bytes).min(self.size_bytes);
        byte(chunks.start)..byte(chunks.end)
    }

    fn cut(&self, range: &Range<u64>, to: &Range<u64>) -> Range<u64> {
        range.start.max(to.start)..range.end.min(to.end)
    }
}

impl<S, T, J> fmt::Debug for CowVolume<S, T, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CowVolume")
            .field("size_bytes", &self.size_bytes)
            .field("states", &self.states)
            .finish_non_exhaustive()
    }
}

/// The content of a lock that is held for a moment.
pub(super) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
