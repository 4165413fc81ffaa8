//! The memory of answers under way, and of the payloads of writes.
//!
//! An answer is made of *pieces* of at most [`PIECE_BYTES`]. Each connection has one piece of its
//! own, so it gets on whatever others do. More of them come from a pool that all share, up to a
//! part of it for each connection: a client that asks for much and stops reading keeps its part,
//! and no more. A small answer takes a small part of a piece: a client at random has many of them
//! under way, and each waits for the store.
//!
//! A payload has as many pieces as it needs, all of them before its first byte is read, from
//! a pool apart; a small one has a small part of one. So answers that a client does not take never
//! keep it from being written. The longest payload is what fits into one connection's part of that
//! pool.

use super::buffers::{Buffer, Buffers};
use super::decode::PAYLOAD_BYTES_MAX;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Data of one piece. Its ends are multiples of it in the volume, so whole chunks of usual sizes.
pub(super) const PIECE_BYTES: u32 = 256 << 10;
/// Of a small answer or payload.
pub(super) const SMALL_BYTES: u32 = 16 << 10;
/// Parts of a piece, each as large as what is small.
pub(super) const PARTS: u32 = PIECE_BYTES / SMALL_BYTES;
/// Connections at a time, where there is memory for so many.
const CONNECTIONS_MAX: u64 = 128;
const CONNECTIONS_MIN: u64 = 4;
/// Of a pool, for one connection.
const SHARE: usize = 4;
/// Of a small pool of payloads one connection may take more, up to this: 4 MiB.
const PAYLOAD_SHARE_MIN: usize = 16;

/// Bounds on the memory of a server. It needs 2 MiB of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerMemory {
    /// For answers under way.
    pub answer_bytes: u64,
    /// For payloads of writes under way; 0 where no export is writable.
    pub payload_bytes: u64,
}

/// The pools.
#[derive(Debug)]
pub(super) struct Pool {
    answers: Room,
    payloads: Room,
    connections_max: usize,
    payload_bytes_max: u32,
}

/// What all connections share of one kind.
#[derive(Debug)]
struct Room {
    /// Parts of pieces.
    parts: Arc<Semaphore>,
    /// Pieces of one connection.
    share: usize,
    buffers: Arc<Buffers>,
}

impl Room {
    /// And how many connections have a piece of their own, from half of the memory.
    fn new(bytes: u64, share_min: usize) -> (Self, u64) {
        let pieces = (bytes / u64::from(PIECE_BYTES)).max(2 * CONNECTIONS_MIN);
        let connections = (pieces / 2).min(CONNECTIONS_MAX);
        let pool = usize::try_from(pieces - connections).unwrap_or(usize::MAX >> 8);
        let share = (pool / SHARE).max(share_min.min(pool));
        let parts = Arc::new(Semaphore::new(pool.saturating_mul(PARTS as usize)));
        let all = usize::try_from(pieces).unwrap_or(usize::MAX >> 8);
        (Self { parts, share, buffers: Arc::new(Buffers::new(all)) }, connections)
    }

    fn of_connection(&self) -> Pieces {
        Pieces {
            own: Arc::new(Semaphore::new(1)),
            share: Arc::new(Semaphore::new(self.share.saturating_mul(PARTS as usize))),
            pool: Arc::clone(&self.parts),
            buffers: Arc::clone(&self.buffers),
        }
    }
}

impl Pool {
    pub(super) fn new(memory: ServerMemory) -> Self {
        let ServerMemory { answer_bytes, payload_bytes } = memory;
        let (answers, mut connections) = Room::new(answer_bytes, 1);
        let (payloads, writers) = Room::new(payload_bytes, PAYLOAD_SHARE_MIN);
        if payload_bytes > 0 {
            connections = connections.min(writers);
        }
        let longest = u32::try_from(payloads.share).unwrap_or(u32::MAX);
        let longest = longest.saturating_mul(PIECE_BYTES).min(PAYLOAD_BYTES_MAX);
        Self {
            answers,
            payloads,
            connections_max: usize::try_from(connections).unwrap_or(usize::MAX),
            payload_bytes_max: 1 << longest.ilog2(),
        }
    }

    pub(super) fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// For a new connection.
    pub(super) fn of_connection(&self) -> Memory {
        Memory {
            answers: self.answers.of_connection(),
            payloads: self.payloads.of_connection(),
            payload_bytes_max: self.payload_bytes_max,
        }
    }
}

/// The memory of one connection.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) answers: Pieces,
    pub(super) payloads: Pieces,
    /// A power of two.
    pub(super) payload_bytes_max: u32,
}

/// Pieces of one connection, of one kind.
#[derive(Debug)]
pub(super) struct Pieces {
    own: Arc<Semaphore>,
    share: Arc<Semaphore>,
    pool: Arc<Semaphore>,
    buffers: Arc<Buffers>,
}

/// Stands for some pieces, or for a part of one.
#[derive(Debug)]
pub(super) struct Piece {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    buffers: Arc<Buffers>,
}

impl Piece {
    /// A buffer for an answer of an export; one at a time.
    pub(super) fn buffer(&self, export: usize, len: usize) -> Buffer<'_> {
        self.buffers.take(export, len)
    }
}

impl Pieces {
    /// Waits for one: an own one, or one of the pool. `None` never comes: nobody closes them.
    pub(super) async fn take(&self) -> Option<Piece> {
        self.take_for(PIECE_BYTES as usize).await
    }

    /// Waits for as many as so many bytes need, or for a part of one. They are at most a payload's.
    pub(super) async fn take_for(&self, bytes: usize) -> Option<Piece> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let parts = match bytes.div_ceil(PIECE_BYTES) {
            0 | 1 if bytes <= SMALL_BYTES => 1,
            pieces => pieces.max(1).saturating_mul(PARTS),
        };
        if parts > PARTS {
            return self.take_shared(parts).await;
        }
        tokio::select! {
            biased;
            own = Arc::clone(&self.own).acquire_owned() => {
                let buffers = Arc::clone(&self.buffers);
                Some(Piece { _own: Some(own.ok()?), _shared: None, buffers })
            }
            shared = self.take_shared(parts) => shared,
        }
    }

    async fn take_shared(&self, parts: u32) -> Option<Piece> {
        let share = Arc::clone(&self.share).acquire_many_owned(parts).await.ok()?;
        let pool = Arc::clone(&self.pool).acquire_many_owned(parts).await.ok()?;
        let buffers = Arc::clone(&self.buffers);
        Some(Piece { _own: None, _shared: Some((share, pool)), buffers })
    }

    /// How many whole ones can be under way at a time.
    pub(super) fn most(&self) -> usize {
        self.share.available_permits() / PARTS as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_payload_fits_into_the_part_of_one_connection() {
        for mib in [0, 1, 2, 4, 6, 16, 64, 100, 1 << 10, 1 << 20] {
            let bytes = mib << 20;
            let pool = Pool::new(ServerMemory { answer_bytes: 4 << 20, payload_bytes: bytes });
            let (longest, share) = (pool.payload_bytes_max, pool.payloads.share);
            assert!(longest.div_ceil(PIECE_BYTES) as usize <= share, "{mib} MiB: {pool:?}");
            assert!((1 << 20..=PAYLOAD_BYTES_MAX).contains(&longest), "{mib} MiB: {pool:?}");
            assert!(longest.is_power_of_two());
            let parts = pool.payloads.parts.available_permits();
            let all = parts / PARTS as usize + pool.connections_max();
            // without memory for payloads nobody has a part of it
            assert!(
                mib == 0 || all as u64 * u64::from(PIECE_BYTES) <= bytes.max(2 << 20),
                "{pool:?}"
            );
        }
    }

    #[tokio::test]
    async fn who_keeps_much_leaves_others_their_own() {
        let pool = Pool::new(ServerMemory { answer_bytes: 4 << 20, payload_bytes: 4 << 20 });
        let (greedy, other) = (pool.of_connection(), pool.of_connection());
        let longest = greedy.payload_bytes_max as usize;
        let kept = greedy.payloads.take_for(longest).await;
        let more = greedy.payloads.take_for(longest);
        assert!(futures::FutureExt::now_or_never(more).is_none());
        assert!(futures::FutureExt::now_or_never(other.payloads.take_for(5)).is_some());
        // answers are not touched
        assert!(futures::FutureExt::now_or_never(greedy.answers.take()).is_some());
        drop(kept);
        assert!(greedy.payloads.take_for(longest).await.is_some());
    }

    #[test]
    fn many_small_answers_are_under_way_where_few_long_ones_fit() {
        use futures::FutureExt as _;
        let taken = |len: u32| {
            let pool = Pool::new(ServerMemory { answer_bytes: 15 << 20, payload_bytes: 0 });
            let memory = pool.of_connection();
            let take = || memory.answers.take_for(len as usize).now_or_never().flatten();
            let kept: Vec<Piece> = std::iter::from_fn(take).collect();
            kept.len()
        };
        // one of its own, and seven pieces of the pool
        assert_eq!((taken(PIECE_BYTES), taken(SMALL_BYTES + 1)), (8, 8));
        assert_eq!((taken(SMALL_BYTES), taken(1)), (1 + 7 * 16, 1 + 7 * 16));
    }
}
