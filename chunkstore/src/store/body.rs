//! Reads the bodies of answers, into buffers that were used before.
//!
//! A large body in a fresh buffer costs a page fault for each of its pages, and the system wipes
//! each of them: as much time as opening what is in it. So a buffer that nobody reads any more is
//! kept for the next body of about its size. What is kept is bounded
//! ([`keep_buffers`](super::Store::keep_buffers)), and what is in use is what the callers' own bounds
//! let be under way.
//!
//! A body ends where the answer said that it would: of one that is longer no more is taken than shows
//! that it is.

use super::BULK_BYTES_MIN;
use super::rate_limiter::Throttle;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{GetResult, GetResultPayload};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of its size, by which a buffer may be longer than its body.
const LONGER: usize = 8;

/// Buffers that nobody reads, the one that was used last at the end.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    kept: Mutex<VecDeque<Box<[u8]>>>,
    kept_bytes_max: AtomicUsize,
}

/// A buffer, as far as it is filled. It goes back when it is dropped.
struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
    of: Arc<Buffers>,
}

impl Buffers {
    pub(super) fn keep(&self, bytes: usize) {
        self.kept_bytes_max.store(bytes, Ordering::Relaxed);
        self.trim(&mut self.lock());
    }

    pub(super) fn kept_bytes(&self) -> usize {
        bytes_of(&self.lock())
    }

    fn trim(&self, kept: &mut VecDeque<Box<[u8]>>) {
        let most = self.kept_bytes_max.load(Ordering::Relaxed);
        let mut bytes = bytes_of(kept);
        while bytes > most {
            bytes -= kept.pop_front().map_or(bytes, |oldest| oldest.len());
        }
    }

    /// For a body of so many bytes.
    fn take(self: &Arc<Self>, bytes: u64) -> Buffer {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let fits = size..=size.saturating_add(size / LONGER);
        let found = {
            let mut kept = self.lock();
            let fitting = kept.iter().enumerate().filter(|(_, it)| fits.contains(&it.len()));
            let found = fitting.min_by_key(|(_, it)| it.len()).map(|(at, _)| at);
            found.and_then(|at| kept.remove(at))
        };
        let bytes = found.unwrap_or_else(|| vec![0; size].into());
        Buffer { bytes, filled: 0, of: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Box<[u8]>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(buffers: &VecDeque<Box<[u8]>>) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
}

impl Buffer {
    fn push(&mut self, piece: &[u8]) -> object_store::Result<()> {
        let to = self.bytes.get_mut(self.filled..self.filled + piece.len());
        to.ok_or_else(|| failed("it is too long"))?.copy_from_slice(piece);
        self.filled += piece.len();
        Ok(())
    }

    /// Appends so many bytes of a file, from an offset on. A file that ends before is an error.
    fn push_file(&mut self, file: &File, from: u64, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let to = self.bytes.get_mut(self.filled..self.filled + bytes);
        file.read_exact_at(to.ok_or_else(|| io::Error::other("it is too long"))?, from)?;
        self.filled += bytes;
        Ok(())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() <= self.of.kept_bytes_max.load(Ordering::Relaxed) {
            let mut kept = self.of.lock();
            kept.push_back(std::mem::take(&mut self.bytes));
            self.of.trim(&mut kept);
        }
    }
}

fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "the body of an answer", source: why.into() }
}

/// The whole body, at the pace that is allowed.
pub(super) async fn read(
    buffers: &Arc<Buffers>,
    download: Option<&Throttle>,
    result: GetResult,
) -> object_store::Result<Bytes> {
    let expected = result.range.end.saturating_sub(result.range.start);
    if expected < BULK_BYTES_MIN {
        return result.bytes().await;
    }
    let mut pace = download.map(Throttle::pace);
    let mut whole = buffers.take(expected);
    match result.payload {
        GetResultPayload::File(file, _) => {
            let (file, mut from) = (Arc::new(file), result.range.start);
            while from < result.range.end {
                let left = result.range.end - from;
                let bytes = download.map_or(left, |throttle| throttle.piece().min(left));
                let file = Arc::clone(&file);
                let read = move || whole.push_file(&file, from, bytes).map(|()| whole);
                let read = tokio::task::spawn_blocking(read).await.map_err(failed)?;
                whole = read.map_err(failed)?;
                from += bytes;
                if let Some(pace) = &mut pace {
                    pace.came(bytes).await;
                }
            }
        }
        GetResultPayload::Stream(mut pieces) => {
            while let Some(piece) = pieces.try_next().await? {
                // what the buffer is longer by is no part of the body
                if (whole.filled + piece.len()) as u64 > expected {
                    return Ok([whole.as_ref(), &*piece].concat().into());
                }
                whole.push(&piece)?;
                if let Some(pace) = &mut pace {
                    pace.came(piece.len() as u64).await;
                }
            }
        }
    }
    Ok(Bytes::from_owner(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use object_store::path::Path;
    use object_store::{Attributes, ObjectMeta, ObjectStoreExt, local::LocalFileSystem};
    use std::num::NonZeroU64;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;
    const BODY: usize = 5_000_001;

    fn file_of(content: &[u8]) -> (tempfile::TempDir, LocalFileSystem, Path) {
        let directory = tempfile::tempdir().unwrap();
        let store = LocalFileSystem::new_with_prefix(directory.path()).unwrap();
        std::fs::write(directory.path().join("pack"), content).unwrap();
        (directory, store, Path::from("pack"))
    }

    fn throttles() -> [Option<Arc<Throttle>>; 3] {
        [None, Some(20 * MIB), Some(1 << 40)]
            .map(|rate| rate.map(|rate| Throttle::new(NonZeroU64::new(rate).unwrap())))
    }

    /// An answer that says it has so many bytes.
    fn answer(said: usize, pieces: Vec<Bytes>) -> GetResult {
        let meta = ObjectMeta {
            location: Path::from("pack"),
            last_modified: chrono::Utc::now(),
            size: said as u64,
            e_tag: None,
            version: None,
        };
        let pieces = pieces.into_iter().map(object_store::Result::Ok);
        GetResult {
            payload: GetResultPayload::Stream(Box::pin(stream::iter(pieces))),
            range: 0..said as u64,
            meta,
            attributes: Attributes::default(),
            extensions: Default::default(),
        }
    }

    fn keeping(bytes: u64) -> Arc<Buffers> {
        let buffers = Arc::new(Buffers::default());
        buffers.keep(usize::try_from(bytes).unwrap());
        buffers
    }

    #[tokio::test]
    async fn a_file_is_read_whole_at_any_pace() {
        let buffers = keeping(8 * MIB);
        for (throttle, first) in throttles().into_iter().zip(0..) {
            // nothing of what the buffer had before
            let content: Vec<u8> = (first..=250).cycle().take(BODY).collect();
            let (_directory, store, path) = file_of(&content);
            let body = read(&buffers, throttle.as_deref(), store.get(&path).await.unwrap()).await;
            assert!(body.unwrap() == content, "{throttle:?}");
        }
    }

    #[tokio::test]
    async fn a_file_that_becomes_shorter_is_an_error() {
        for throttle in throttles() {
            let (directory, store, path) = file_of(&vec![7; BODY]);
            let opened = store.get(&path).await.unwrap();
            let file = File::options().write(true).open(directory.path().join("pack")).unwrap();
            file.set_len(BODY as u64 / 2).unwrap();
            let buffers = Arc::default();
            let body = read(&buffers, throttle.as_deref(), opened);
            let body = tokio::time::timeout(Duration::from_secs(20), body);
            body.await.expect("the read ends").unwrap_err();
        }
    }

    /// The buffer is a little longer than the body; what it had before is no part of it.
    #[tokio::test]
    async fn a_body_is_what_came_whatever_the_buffer_had_before() {
        let buffers = keeping(8 * MIB);
        let pieces = |byte: u8, bytes: usize| {
            let piece = Bytes::from(vec![byte; 9000]);
            let mut pieces = vec![piece.clone(); bytes / 9000];
            pieces.push(piece.slice(..bytes % 9000));
            pieces
        };
        for (round, bytes) in [1_048_600, 1_048_700, 1_040_000, 1_048_600].into_iter().enumerate() {
            let byte = u8::try_from(round).unwrap() + 1;
            let body = read(&buffers, None, answer(bytes, pieces(byte, bytes))).await.unwrap();
            assert_eq!((body.len(), body.iter().all(|b| *b == byte)), (bytes, true));
            // one that ends before is as long as it is
            let short = read(&buffers, None, answer(bytes, pieces(byte, bytes / 2))).await.unwrap();
            assert_eq!((short.len(), short.iter().all(|b| *b == byte)), (bytes / 2, true));
            drop(body);
        }
        for throttle in throttles() {
            // and of one that goes on for ever no more than shows it
            let long = read(&buffers, throttle.as_deref(), answer(1_048_600, pieces(9, 9_000_000)));
            let len = long.await.unwrap().len();
            assert!((1_048_601..=1_048_600 + 9000).contains(&len), "{len}");
        }
        // two were in use at a time, and a third one as no other was long enough
        let kept: Vec<usize> = buffers.lock().iter().map(|buffer| buffer.len()).collect();
        assert!(kept.len() <= 4, "{kept:?}");
    }

    #[test]
    fn a_buffer_is_a_quarter_longer_than_its_body_at_most_and_few_are_kept() {
        let buffers = keeping(8 * MIB);
        for bytes in [BULK_BYTES_MIN, MIB - 1, MIB, MIB + 41, 3 * MIB + 7, 8 * MIB, 64 * MIB] {
            let taken: Vec<Buffer> = (0..3).map(|_| buffers.take(bytes)).collect();
            let len = taken[0].bytes.len() as u64;
            assert!((bytes..=bytes + bytes / 8).contains(&len), "{bytes}: {len}");
            drop(taken);
            let kept = buffers.kept_bytes() as u64;
            // one that is longer than all that may be kept takes nobody's place
            assert!(kept > 0 && kept <= 8 * MIB, "{kept}");
        }
        let lens = |buffers: &Buffers| -> Vec<u64> {
            buffers.lock().iter().map(|buffer| buffer.len() as u64).collect()
        };
        let buffers = keeping(8 * MIB);
        drop(buffers.take(2 * MIB));
        for (bytes, len) in [(2 * MIB - 5, 2 * MIB), (2 * MIB + 1, 2 * MIB + 1), (MIB, MIB)] {
            assert_eq!(buffers.take(bytes).bytes.len() as u64, len);
        }
        assert_eq!(lens(&buffers), [2 * MIB, 2 * MIB + 1, MIB]);
        buffers.keep(1 << 20);
        assert_eq!(lens(&buffers), [MIB]);
        let none: Arc<Buffers> = Arc::default();
        drop(none.take(MIB));
        assert!(lens(&none).is_empty());
    }
}
