//! The memory of answers under way.
//!
//! An answer is made of *pieces* of at most [`PIECE_BYTES`]. Each connection has one piece of its
//! own, so it gets on whatever others do. More of them come from a pool that all share, up to a
//! part of it for each connection: a client that asks for much and stops reading keeps its part,
//! and no more.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Data of one piece. Its ends are multiples of it in the volume, so whole chunks of usual sizes.
pub(super) const PIECE_BYTES: u32 = 256 << 10;
/// Connections at a time, where there is memory for so many.
const CONNECTIONS_MAX: u64 = 128;
const CONNECTIONS_MIN: u64 = 4;
/// Of the pool, for one connection.
const SHARE: usize = 4;

/// The pool.
#[derive(Debug)]
pub(super) struct Pool {
    pieces: Arc<Semaphore>,
    share: usize,
    connections_max: usize,
}

impl Pool {
    /// Half of the memory is for the pieces that connections have of their own.
    pub(super) fn new(bytes: u64) -> Self {
        let pieces = (bytes / u64::from(PIECE_BYTES)).max(2 * CONNECTIONS_MIN);
        let connections = (pieces / 2).min(CONNECTIONS_MAX);
        let pool = usize::try_from(pieces - connections).unwrap_or(usize::MAX >> 4);
        Self {
            pieces: Arc::new(Semaphore::new(pool)),
            share: (pool / SHARE).max(1),
            connections_max: usize::try_from(connections).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// For a new connection.
    pub(super) fn of_connection(&self) -> Pieces {
        Pieces {
            own: Arc::new(Semaphore::new(1)),
            share: Arc::new(Semaphore::new(self.share)),
            pool: Arc::clone(&self.pieces),
        }
    }
}

/// The pieces of one connection.
#[derive(Debug)]
pub(super) struct Pieces {
    own: Arc<Semaphore>,
    share: Arc<Semaphore>,
    pool: Arc<Semaphore>,
}

/// Stands for one piece.
#[derive(Debug)]
pub(super) struct Piece {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Pieces {
    /// Waits for one: an own one, or one of the pool. `None` never comes: nobody closes them.
    pub(super) async fn take(&self) -> Option<Piece> {
        let shared = async {
            let share = Arc::clone(&self.share).acquire_owned().await.ok()?;
            Some((share, Arc::clone(&self.pool).acquire_owned().await.ok()?))
        };
        tokio::select! {
            biased;
            own = Arc::clone(&self.own).acquire_owned() => {
                Some(Piece { _own: Some(own.ok()?), _shared: None })
            }
            shared = shared => Some(Piece { _own: None, _shared: Some(shared?) }),
        }
    }

    /// How many can be under way at a time.
    pub(super) fn most(&self) -> usize {
        self.share.available_permits() + 1
    }
}
