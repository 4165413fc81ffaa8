//! What one client reads.
//!
//! A read is answered by pieces (`memory`), each of which is sent as soon as it is there, in any
//! order where the client knows structured replies. Once a piece has failed no other one begins.
//! Those that are being sent come to their end, and the error is the last word.
//!
//! A simple reply cannot take its word back once it has begun. What is longer than a piece is
//! therefore read and checked first, then read again, mostly from what is kept, and sent.

use super::buffers::Buffer;
use super::connection::{Client, STALLED, Stream};
use super::encode::Replier;
use super::handshake::Replies;
use super::memory::{PIECE_BYTES, Piece};
use super::volume::Volume;
use crate::wire::EOVERFLOW;
use futures::stream::{self, StreamExt};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// Pieces of one request that are read at a time.
const PIECES_AT_ONCE: usize = 8;

impl<V: Volume, S: Stream> Client<V, S> {
    pub(super) async fn read(&self, to: Replier, range: Range<u64>, whole: bool) -> io::Result<()> {
        let begun = Instant::now();
        let done = self.read_pieces(to, range, whole).await;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.served.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.served.counts.read_micros.fetch_add(took, Ordering::Relaxed);
        done
    }

    async fn read_pieces(&self, to: Replier, range: Range<u64>, whole: bool) -> io::Result<()> {
        let len = range.end - range.start;
        if to.replies == Replies::Simple {
            return self.read_simple(to, range).await;
        }
        if len <= u64::from(PIECE_BYTES) {
            let failed = AtomicBool::new(false);
            return match self.piece(to, range.clone(), (true, whole), &failed).await? {
                Ok(()) => Ok(()),
                Err((at, e)) => self.fail(to, at, &e).await,
            };
        }
        if whole {
            let what = "so long a read is not answered in one piece";
            return self.send(&to.error(EOVERFLOW, None, what), &[]).await;
        }
        let at_once = PIECES_AT_ONCE.min(self.served.memory.answers.most());
        let failed = AtomicBool::new(false);
        let mut pieces = stream::iter(pieces(range))
            .map(|piece| self.piece(to, piece, (false, false), &failed))
            .buffer_unordered(at_once);
        let mut first = None;
        // also behind a failure: one that is dropped may have sent a part of its payload
        while let Some(sent) = pieces.next().await {
            if let Err(why) = sent? {
                first.get_or_insert(why);
            }
        }
        match first {
            None => self.send(&to.done(), &[]).await,
            Some((at, e)) => self.fail(to, at, &e).await,
        }
    }

    /// Reads and sends one piece, unless one has failed. The outer error is the client's, the inner
    /// one the volume's.
    async fn piece(
        &self,
        to: Replier,
        range: Range<u64>,
        (last, whole): (bool, bool),
        failed: &AtomicBool,
    ) -> io::Result<Result<(), (u64, io::Error)>> {
        if failed.load(Ordering::Relaxed) {
            return Ok(Ok(()));
        }
        let Some(memory) = self.answer_memory(&range).await else { return Ok(Ok(())) };
        if failed.load(Ordering::Relaxed) {
            return Ok(Ok(()));
        }
        let (buf, zeros) = match self.fill(&memory, &range).await {
            Ok(filled) => filled,
            Err(e) => {
                failed.store(true, Ordering::Relaxed);
                return Ok(Err((range.start, e)));
            }
        };
        if failed.load(Ordering::Relaxed) {
            return Ok(Ok(()));
        }
        if whole || zeros.is_empty() {
            self.send(&to.data(last, range.start, buf.len()), &buf).await?;
            return Ok(Ok(()));
        }
        let mut at = 0;
        let parts = zeros.iter().map(|z| (z.clone(), true)).chain([(buf.len()..buf.len(), false)]);
        for (zero, is_hole) in parts {
            let data = at..zero.start;
            let offset = |at: usize| range.start + at as u64;
            if !data.is_empty() {
                let ends = last && zero.start == buf.len();
                let head = to.data(ends, offset(data.start), data.len());
                self.send(&head, &buf[data]).await?;
            }
            if is_hole {
                let ends = last && zero.end == buf.len();
                self.send(&to.hole(ends, offset(zero.start), zero.len()), &[]).await?;
            }
            at = zero.end;
        }
        Ok(Ok(()))
    }

    /// For these bytes, or for the longest piece of them.
    async fn answer_memory(&self, range: &Range<u64>) -> Option<Piece> {
        let bytes = (range.end - range.start).min(u64::from(PIECE_BYTES));
        self.served.memory.answers.take_for(usize::try_from(bytes).unwrap_or(usize::MAX)).await
    }

    async fn fill<'a>(
        &self,
        memory: &'a Piece,
        range: &Range<u64>,
    ) -> io::Result<(Buffer<'a>, Vec<Range<usize>>)> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut buf = memory.buffer(self.agreed.export, len);
        let zeros = self.export().volume.read(range.start, &mut buf).await?;
        Ok((buf, zeros))
    }

    async fn read_simple(&self, to: Replier, range: Range<u64>) -> io::Result<()> {
        let Some(memory) = self.answer_memory(&range).await else { return Ok(()) };
        if range.end - range.start <= u64::from(PIECE_BYTES) {
            return match self.fill(&memory, &range).await {
                Ok((buf, _)) => self.send(&to.simple(0), &buf).await,
                Err(e) => self.fail(to, range.start, &e).await,
            };
        }
        for piece in pieces(range.clone()) {
            if let Err(e) = self.fill(&memory, &piece).await {
                return self.fail(to, piece.start, &e).await;
            }
        }
        let mut out = self.out.lock().await;
        let mut head = to.simple(0);
        for piece in pieces(range) {
            // what was well a moment ago fails: the reply cannot be taken back
            let (buf, _) = self.fill(&memory, &piece).await?;
            let written = timeout(STALLED, async {
                out.write_all(&head).await?;
                out.write_all(&buf).await?;
                out.flush().await
            });
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the client takes no answers");
            written.await.map_err(late)??;
            head.clear();
            self.count_sent(buf.len());
        }
        Ok(())
    }
}

/// A range by pieces, whose inner ends are multiples of their size.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Send {
    let piece = u64::from(PIECE_BYTES);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = ((start / piece + 1) * piece).min(range.end);
        (start < range.end).then_some(start..at)
    })
}
