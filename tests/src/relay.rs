//! A line with a latency and a rate: a TCP relay on loopback, in front of a real server.
//!
//! A kernel can delay and shape traffic; test machines often cannot make theirs do it. So the relay
//! takes connections, passes their bytes on to a server and back, and makes each direction behave
//! like one long, shared line:
//!
//! - **Rate.** All connections together share a direction's rate. A piece of up to some 64 KiB is
//!   *booked*: it leaves when all that was booked before it has left (virtual time, see [`link`]).
//!   Connections take turns, first come, first served, so none starves; what is not booked yet
//!   stays in the sender's socket and holds it back.
//! - **Delay.** A booked piece arrives one delay after it has left. Pieces under way do not wait
//!   for each other, so the delay costs no rate as long as a connection's window is larger than
//!   rate × delay.
//! - **Handshake.** The relay accepts at once, as the kernel does it; the first bytes of a
//!   connection wait for a round trip more, as they would for TCP's handshake. TLS needs no help:
//!   its messages are bytes like all others.
//!
//! Not modelled: loss, slow start, headers of packets (the rate is that of the payload).
//!
//! One thread runs all of it, with readiness instead of waiting, so that at 1 Gbit/s the relay
//! leaves the CPU to those that are measured. Each direction of a connection is two tasks,
//! [`take_in`] and [`give_out`], with a queue between them.
//!
//! With [`FaultOptions`] a relay knows HTTP, takes each exchange apart and lets some of them go
//! wrong (see [`http`]).

mod faults;
mod http;
mod link;

#[cfg(test)]
mod tests;

pub use faults::{FaultCounts, FaultKind, FaultOptions, Mood};
pub use link::LinkOptions;

use bytes::{Bytes, BytesMut};
use faults::Faults;
use link::Link;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// What a connection may have under way in one direction, as TCP's window bounds it.
const WINDOW_BYTES: usize = 6 << 20;

/// Where a relay stands and how its line is.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where connections go.
    pub server: SocketAddr,
    /// From clients to the server.
    pub up: LinkOptions,
    /// From the server to clients.
    pub down: LinkOptions,
    /// What goes wrong; the connections have to speak HTTP/1.1 then.
    pub faults: Option<FaultOptions>,
}

impl RelayOptions {
    /// On a free port of loopback, in front of `server`, the same in both directions.
    pub fn symmetric(server: SocketAddr, round_trip: Duration, rate: Option<u64>) -> Self {
        let link = LinkOptions { delay: round_trip / 2, bytes_per_second: rate };
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { listen, server, up: link, down: link, faults: None }
    }

    /// Without delay and limit. It knows HTTP, and can be told later to do something else than to
    /// hand on.
    pub fn moody(server: SocketAddr) -> Self {
        let (stall, only) = (Duration::ZERO, "");
        Self::faulty(server, FaultOptions { seed: 0, percent: 0, kinds: Vec::new(), only, stall })
    }

    /// The same without delay and limit, with faults.
    pub fn faulty(server: SocketAddr, faults: FaultOptions) -> Self {
        Self { faults: Some(faults), ..Self::symmetric(server, Duration::ZERO, None) }
    }
}

/// What has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayCounts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Bytes handed to the server.
    pub up_bytes: u64,
    /// Bytes handed to clients.
    pub down_bytes: u64,
}

/// A running relay; it and its connections end when it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    counters: Arc<Counters>,
    faults: Option<Arc<Faults>>,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    up_bytes: AtomicU64,
    down_bytes: AtomicU64,
}

/// A piece of a connection's bytes on its way; an empty one is the end.
#[derive(Debug)]
struct Parcel {
    arrives: Instant,
    bytes: Bytes,
    /// Its part of the window.
    _window: Option<OwnedSemaphorePermit>,
}

impl Relay {
    /// Starts one.
    pub fn start(options: RelayOptions) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(options.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counters = Arc::<Counters>::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let faults = options.faults.clone().map(|faults| Arc::new(Faults::new(faults)));
        let line = Line {
            server: options.server,
            up: Link::new(options.up),
            down: Link::new(options.down),
            faults: faults.clone(),
            counters: Arc::clone(&counters),
        };
        let thread = std::thread::Builder::new().name("relay".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    result = accept(listener, line) => {
                        result.expect("accept connections");
                    }
                }
            });
        })?;
        Ok(Self { address, counters, faults, stop: Some(stop), thread: Some(thread) })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What becomes of requests that arrive from now on. It must have been started with faults, if
    /// only with none.
    pub fn becomes(&self, mood: Mood) {
        self.faults.as_ref().expect("a relay that knows HTTP").set(mood);
    }

    /// What has met a fault so far; `None` without faults.
    pub fn fault_counts(&self) -> Option<FaultCounts> {
        self.faults.as_ref().map(|faults| faults.counts())
    }

    /// What has passed so far.
    pub fn counts(&self) -> RelayCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        RelayCounts {
            connections: get(&self.counters.connections),
            up_bytes: get(&self.counters.up_bytes),
            down_bytes: get(&self.counters.down_bytes),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // its panic has been printed; a second one here would only hide it
            let _ = thread.join();
        }
    }
}

/// What all connections share.
#[derive(Debug)]
struct Line {
    server: SocketAddr,
    up: Link,
    down: Link,
    faults: Option<Arc<Faults>>,
    counters: Arc<Counters>,
}

async fn accept(listener: std::net::TcpListener, line: Line) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let line = Arc::new(line);
    loop {
        let (client, _) = listener.accept().await?;
        line.counters.connections.fetch_add(1, Ordering::Relaxed);
        let line = Arc::clone(&line);
        tokio::spawn(async move {
            // one end has gone: dropping the other tells its peer
            let _ = connection(client, &line).await;
        });
    }
}

async fn connection(client: TcpStream, line: &Line) -> io::Result<()> {
    let Line { up, down, counters, .. } = line;
    let established = Instant::now() + up.delay() + down.delay();
    client.set_nodelay(true)?;
    if let Some(faults) = &line.faults {
        tokio::time::sleep_until(established.into()).await;
        let up = http::Lane { link: up, passed: &counters.up_bytes };
        let down = http::Lane { link: down, passed: &counters.down_bytes };
        return http::exchange(client, line.server, faults, up, down).await;
    }
    let server = TcpStream::connect(line.server).await?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::time::sleep_until(established.into()).await;
    tokio::try_join!(
        carry(from_client, to_server, up, &counters.up_bytes),
        carry(from_server, to_client, down, &counters.down_bytes),
    )?;
    Ok(())
}

/// One direction of a connection, to its end.
async fn carry(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    link: &Link,
    passed: &AtomicU64,
) -> io::Result<()> {
    // bounded by the window
    let (parcels, arriving) = mpsc::unbounded_channel();
    tokio::try_join!(take_in(from, link, parcels), give_out(arriving, to, passed))?;
    Ok(())
}

/// Takes what the sender has sent onto the line, as fast as the line and the window allow.
async fn take_in(
    mut from: OwnedReadHalf,
    link: &Link,
    parcels: mpsc::UnboundedSender<Parcel>,
) -> io::Result<()> {
    let window = Arc::new(Semaphore::new(WINDOW_BYTES));
    loop {
        from.readable().await?;
        let mut bytes = BytesMut::with_capacity(link.quantum_bytes());
        let len = from.read_buf(&mut bytes).await?;
        let room = u32::try_from(len).expect("a quantum is small");
        let room = Arc::clone(&window).acquire_many_owned(room).await.expect("it is never closed");
        let arrives = link.admit(len).await;
        let parcel = Parcel { arrives, bytes: bytes.freeze(), _window: Some(room) };
        if parcels.send(parcel).is_err() || len == 0 {
            return Ok(());
        }
    }
}

/// Hands on what has arrived.
async fn give_out(
    mut arriving: mpsc::UnboundedReceiver<Parcel>,
    mut to: OwnedWriteHalf,
    passed: &AtomicU64,
) -> io::Result<()> {
    while let Some(mut parcel) = arriving.recv().await {
        // waiting costs a timer: not for what has arrived already
        if parcel.arrives > Instant::now() {
            tokio::time::sleep_until(parcel.arrives.into()).await;
        }
        if parcel.bytes.is_empty() {
            break;
        }
        passed.fetch_add(parcel.bytes.len() as u64, Ordering::Relaxed);
        to.write_all_buf(&mut parcel.bytes).await?;
    }
    to.shutdown().await
}
