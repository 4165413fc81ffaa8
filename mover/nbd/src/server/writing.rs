//! What one client changes: payloads that come behind its requests, and what is done with them.
//!
//! A payload is read whole, into memory that was taken for all of it, before anything of it is
//! handed on: of one that the client does not finish, nothing is written. Its memory is free again
//! before the answer is sent.
//!
//! `FUA` is a flush after the change: of everything, as a flush is.

use super::connection::{Client, STALLED, Stream};
use super::encode::Replier;
use super::memory::Piece;
use super::request::Change;
use super::volume::Volume;
use crate::wire::{EINVAL, EIO, ENOSPC, ENOTSUP, EPERM, ESHUTDOWN};
use bytes::{Bytes, BytesMut};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// The bytes of a write, and what stands for their memory.
#[derive(Debug, Default)]
pub(super) struct Payload {
    bytes: Bytes,
    _memory: Option<Piece>,
}

fn stalled<E>(_: E) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not send the rest of a payload")
}

/// Reads what a client sends behind a request that is refused.
pub(super) async fn skip(incoming: &mut (impl AsyncBufRead + Unpin), bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let read = timeout(STALLED, incoming.fill_buf()).await.map_err(stalled)??.len();
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let skipped = left.min(read as u64);
        incoming.consume(usize::try_from(skipped).unwrap_or(read));
        left -= skipped;
    }
    Ok(())
}

impl<V: Volume, S: Stream> Client<V, S> {
    /// Reads the whole payload of a request.
    pub(super) async fn receive(
        &self,
        incoming: &mut (impl AsyncRead + Unpin),
        range: &Range<u64>,
    ) -> io::Result<Payload> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let memory = self.memory().payloads.take_for(len).await;
        let mut bytes = BytesMut::with_capacity(len);
        while bytes.len() < len {
            let mut rest = (&mut *incoming).take((len - bytes.len()) as u64);
            let read = timeout(STALLED, rest.read_buf(&mut bytes)).await.map_err(stalled)??;
            if read == 0 {
                let what = "the client has left in the middle of a payload";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
        }
        Ok(Payload { bytes: bytes.freeze(), _memory: memory })
    }

    /// Changes the volume, and answers.
    pub(super) async fn change(
        &self,
        to: Replier,
        (range, change): (Range<u64>, Change),
        fua: bool,
        payload: Option<Payload>,
    ) -> io::Result<()> {
        let volume = &self.export().volume;
        let counts = self.counts();
        counts.changes.fetch_add(1, Ordering::Relaxed);
        let at = range.start;
        let fast = matches!(change, Change::Zero { fast: true, .. });
        let changed = match change {
            Change::Write => {
                let Payload { bytes, _memory } = payload.unwrap_or_default();
                counts.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                volume.write(at, bytes).await
            }
            Change::Zero { holes, fast: true } if !volume.is_zero_fast(&range, holes) => {
                let what = "these zeros are no quicker than a write";
                return self.send(&to.error(ENOTSUP, None, what), &[]).await;
            }
            Change::Zero { holes, .. } => volume.zero(range, holes).await,
            Change::Trim => volume.trim(range).await,
        };
        let done = match changed {
            Ok(()) if fua => self.flush_volume().await,
            changed => changed,
        };
        match done {
            Ok(()) => self.send(&to.done(), &[]).await,
            Err(e) if fast && e.kind() == io::ErrorKind::Unsupported => {
                self.send(&to.error(ENOTSUP, None, &e.to_string()), &[]).await
            }
            Err(e) => self.fail(to, at, &e).await,
        }
    }

    /// Makes durable what was answered, and answers.
    pub(super) async fn flush(&self, to: Replier) -> io::Result<()> {
        match self.flush_volume().await {
            Ok(()) => self.send(&to.done(), &[]).await,
            Err(e) => self.fail(to, 0, &e).await,
        }
    }

    async fn flush_volume(&self) -> io::Result<()> {
        self.counts().flushes.fetch_add(1, Ordering::Relaxed);
        self.export().volume.flush().await
    }
}

/// An error of a volume, as the protocol numbers it.
pub(super) fn errno(e: &io::Error) -> u32 {
    match e.kind() {
        io::ErrorKind::PermissionDenied => EPERM,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ENOSPC
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => EINVAL,
        io::ErrorKind::ConnectionAborted => ESHUTDOWN,
        _ => EIO,
    }
}
