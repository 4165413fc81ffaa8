//! A server of the NBD protocol: volumes that are read, and written where they may be, at any offset
//! by any number of clients.
//!
//! | file | |
//! |---|---|
//! | `decode` | pure: what clients say |
//! | `handshake`, `request` | pure: what is agreed on; what is to be done about a request |
//! | `encode` | pure: the bytes of replies |
//! | `buffers` | buffers of answers, used again
//! | `memory` | the memory of answers and of payloads under way |
//! | `connection` | one client |
//! | `reading` | its reads |
//! | `writing` | its payloads, and its changes of the volume |
//! | `volume` | what a volume has to do |
//! | `listen`, `tls` | the sockets that clients come to; who may, over a network |
//!
//! The fixed newstyle handshake with all of `EXPORT_NAME`, `LIST`, `INFO`, `GO` and the options
//! about contexts; simple, structured and extended replies; `READ` and `BLOCK_STATUS`. An export is
//! read-only, and says so, or it takes `WRITE`, `WRITE_ZEROES`, `TRIM` and `FLUSH`, with `FUA`, too.
//! All connections see the same, and a flush of one is a flush of all.
//!
//! Nothing that a client says is trusted. Each has memory of its own bound, a time for its
//! handshake, and an end of its own: what one of them does is no other's loss.
//!
//! Cannot deadlock: clients share the pool of memory alone, and each gets on without it.
//!
//! Must not: know what a volume is made of.

mod buffers;
mod connection;
mod decode;
mod encode;
mod handshake;
mod listen;
mod memory;
#[cfg(any(test, feature = "testkit"))]
mod overheard;
mod reading;
mod request;
#[cfg(test)]
mod tests;
mod tls;
mod volume;
mod writing;

pub use handshake::{Access, ExportTerms};
pub use listen::{ClientSocket, Door};
pub use memory::ServerMemory;
#[cfg(any(test, feature = "testkit"))]
pub use overheard::{Overheard, overhear};
pub use tls::{ClientRule, ServerTls};
pub use volume::{Holes, Volume};

use connection::{Served, Stream, serve};
use memory::Pool;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// After a failed accept (no descriptors left, say), so that it does not spin.
const PAUSE: Duration = Duration::from_millis(100);

/// An export.
#[derive(Debug)]
pub struct ServedExport<V> {
    /// What the handshake says of it.
    pub terms: ExportTerms,
    /// What is in it.
    pub volume: V,
}

/// What was done so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Clients that have come.
    pub clients: AtomicU64,
    /// Clients that are there.
    pub connected: AtomicUsize,
    /// Reads that were asked for.
    pub reads: AtomicU64,
    /// Time that they took, one after the other, in microseconds.
    pub read_micros: AtomicU64,
    /// Bytes of the volumes that were sent.
    pub sent_bytes: AtomicU64,
    /// Writes, zeros and trims that were asked for.
    pub changes: AtomicU64,
    /// Bytes that clients have written; zeros and trims have none.
    pub written_bytes: AtomicU64,
    /// Flushes that were asked for, those of changes with `FUA` too.
    pub flushes: AtomicU64,
    /// Requests that ended with an error of the volume.
    pub errors: AtomicU64,
}

/// Exports, and who serves them.
#[derive(Debug)]
pub struct NbdServer<V> {
    exports: Arc<[ServedExport<V>]>,
    pool: Pool,
    tls: Option<ServerTls>,
    counts: Arc<Counts>,
    left: Notify,
    /// Whatever runs for a client has a receiver of it.
    there: watch::Sender<()>,
}

impl<V: Volume> NbdServer<V> {
    /// Nobody is served yet. With `tls` clients that come by TCP have to speak it.
    pub fn new(
        exports: Vec<ServedExport<V>>,
        memory: ServerMemory,
        tls: Option<ServerTls>,
    ) -> Self {
        Self {
            exports: exports.into(),
            pool: Pool::new(memory),
            tls,
            counts: Arc::default(),
            left: Notify::new(),
            there: watch::Sender::new(()),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Serves whoever comes to the doors, until the future is dropped; then all clients are left,
    /// see [`gone`](Self::gone).
    pub async fn run(&self, doors: &[Door]) {
        let mut clients = JoinSet::new();
        loop {
            let accepts = doors.iter().map(|door| Box::pin(door.accept()));
            let accepted = tokio::select! {
                (accepted, ..) = futures::future::select_all(accepts) => accepted,
                Some(ended) = clients.join_next() => {
                    self.note(ended);
                    continue;
                }
            };
            let socket = match accepted {
                Ok(socket) => socket,
                Err(e) => {
                    tracing::warn!("a client could not be let in: {e}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            if clients.len() >= self.pool.connections_max() {
                tracing::warn!(
                    "{} is sent away: {} clients are served",
                    socket.who(),
                    clients.len()
                );
                continue;
            }
            self.counts.clients.fetch_add(1, Ordering::Relaxed);
            self.counts.connected.fetch_add(1, Ordering::Relaxed);
            tracing::info!("{} has come", socket.who());
            let served = Served {
                exports: Arc::clone(&self.exports),
                counts: Arc::clone(&self.counts),
                memory: self.pool.of_connection(),
                sent_bytes: Arc::default(),
                _there: self.there.subscribe(),
            };
            let sent_bytes = Arc::clone(&served.sent_bytes);
            let tls = self.tls.clone();
            clients.spawn(async move {
                let who = socket.who().to_owned();
                let ended = match socket {
                    ClientSocket::Unix(stream, _) => talk(served, None, stream).await,
                    ClientSocket::Tcp(stream, _) => talk(served, tls, stream).await,
                };
                let sent_bytes = sent_bytes.load(Ordering::Relaxed);
                (format!("{who}, which was sent {sent_bytes} bytes,"), ended)
            });
        }
    }

    /// Waits until somebody was served and all have left.
    pub async fn idle(&self) {
        loop {
            let left = self.left.notified();
            let (clients, connected) = (&self.counts.clients, &self.counts.connected);
            if clients.load(Ordering::SeqCst) > 0 && connected.load(Ordering::SeqCst) == 0 {
                return;
            }
            left.await;
        }
    }

    /// Waits until nothing runs for any client. Whoever drops [`run`](Self::run) has told all of it
    /// to end; a task that a processor is busy with comes to hear of it later, and may still change
    /// the volume and answer.
    pub async fn gone(&self) {
        self.there.closed().await;
    }

    fn note(&self, ended: Result<(String, io::Result<()>), tokio::task::JoinError>) {
        self.counts.connected.fetch_sub(1, Ordering::SeqCst);
        self.left.notify_one();
        match ended {
            Ok((who, Ok(()))) => tracing::info!("{who} has left"),
            // many just close their socket
            Ok((who, Err(e))) if e.kind() == io::ErrorKind::UnexpectedEof => {
                tracing::info!("{who} has left: {e}");
            }
            Ok((who, Err(e))) => tracing::warn!("{who} is left: {e}"),
            // a panic has ended the process
            Err(e) => tracing::warn!("a client is left: {e}"),
        }
    }
}

async fn talk<V: Volume>(
    served: Served<V>,
    tls: Option<ServerTls>,
    stream: impl Stream,
) -> io::Result<()> {
    // the future holds no buffers, but those that it is made of are large
    Box::pin(serve(served, tls, stream)).await
}
