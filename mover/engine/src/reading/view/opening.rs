//! A backup that is opened beside whatever its caller does meanwhile; and what of it lies together.

use super::ahead::Streams;
use super::entries::Entries;
use super::leaves::Leaves;
use super::{BackupView, ViewLimits, ViewPool};
use chunkstore::fetch::EntryAddr;
use chunkstore::{ChunkNo, Error, ErrorKind, Manifest, MapReader, Result, VolumeMap};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;

/// A backup that is being opened by a task of its own, while its caller takes the lease: what is
/// read until then is checked by its id, and of no use without the lease. Dropped, it ends.
#[derive(Debug)]
pub struct OpeningView(JoinHandle<Result<Arc<BackupView>>>);

impl OpeningView {
    /// The backup, once it is open.
    pub async fn opened(mut self) -> Result<Arc<BackupView>> {
        match (&mut self.0).await {
            Ok(opened) => opened,
            Err(e) if e.is_cancelled() => {
                Err(Error::new(ErrorKind::Cancelled, "open a backup", "reading has ended"))
            }
            Err(e) => Err(Error::caused(ErrorKind::Bug, "open a backup", e)),
        }
    }
}

impl Drop for OpeningView {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl BackupView {
    /// Opens a backup: its root page is read and checked.
    pub async fn open(pool: &ViewPool, manifest: &Manifest) -> Result<Arc<Self>> {
        Self::begin(pool, manifest)?.opened().await
    }

    /// The same, beside whatever the caller does meanwhile.
    pub fn begin(pool: &ViewPool, manifest: &Manifest) -> Result<OpeningView> {
        let entries = Arc::clone(&pool.entries);
        let map = VolumeMap::of(entries.repo(), manifest)?;
        let limits = pool.limits.clone();
        let reader = MapReader::with_limits(Arc::clone(entries.repo()), map, limits.map_reads())?;
        let streams = Arc::clone(&pool.streams);
        let rt = entries.rt().clone();
        Ok(OpeningView(rt.spawn(Self::open_with(entries, reader, limits, streams))))
    }

    async fn open_with(
        entries: Arc<Entries>,
        mut reader: MapReader,
        limits: ViewLimits,
        streams: Arc<Mutex<Streams>>,
    ) -> Result<Arc<Self>> {
        let geometry = *reader.map().geometry();
        reader.salvage_with(entries.salvage());
        reader.load_root().await?;
        let number = streams.lock().unwrap_or_else(PoisonError::into_inner).of_another();
        Ok(Arc::new(Self {
            leaves: Leaves::start(entries.rt(), reader, &limits),
            geometry,
            entry_chunks: entries.repo().params().entry_chunks,
            entries,
            streams,
            number,
            stubs: tokio::sync::Mutex::default(),
            moved: Mutex::default(),
            searches: AtomicU64::new(0),
        }))
    }

    /// The bytes of the volume around a range that lie in the same entries as its ends: they are
    /// fetched with it. At most so many in all, and the range itself where the map cannot be read.
    pub async fn together(&self, range: Range<u64>, most: u64) -> Range<u64> {
        let chunks = self.geometry.chunks_of(range.clone());
        let chunk_bytes = u64::from(self.chunk_bytes());
        let beside = u64::from(self.entry_chunks).min(most / chunk_bytes);
        let around = chunks.start.saturating_sub(beside)
            ..chunks.end.saturating_add(beside).min(self.geometry.chunks());
        // who reads it will hear of what is wrong
        let Ok(refs) = self.leaves.refs(around.clone()).await else { return range };
        let entry = |chunk: u64| {
            let (_, at) = refs.get(usize::try_from(chunk - around.start).ok()?)?;
            at.map(|at| EntryAddr::from(&self.placed(at).location))
        };
        let Range { mut start, mut end } = chunks;
        let (first, last) = (entry(start), entry(end.saturating_sub(1)));
        let more = |start: u64, end: u64| (end - start + 1) * chunk_bytes <= most;
        while end < around.end && last.is_some() && entry(end) == last && more(start, end) {
            end += 1;
        }
        while start > around.start
            && first.is_some()
            && entry(start - 1) == first
            && more(start, end)
        {
            start -= 1;
        }
        let byte = |chunk| self.geometry.offset(ChunkNo(chunk));
        byte(start).min(range.start)..byte(end).min(self.size_bytes()).max(range.end)
    }
}
