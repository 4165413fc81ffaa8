//! The page and the metrics over HTTP. Two doors: the page on loopback, and metrics and probes.
//!
//! It reads what is [`Known`] and nothing else: it takes no input but the address that is asked
//! for, keeps no session, and sets no cookie. A client may do as it likes without being in the way:
//!
//! - a head that is not there within [`Patience::head`], or is longer than `HEAD_MAX`, ends the
//!   connection; so does its age, however busy it is;
//! - each door has a number of places; who comes when all are taken gets that of the oldest
//!   connection, so that idle ones keep nobody out;
//! - a page is made once and given to all who ask for it within a second, and only so many are made
//!   in a second: the controller has other work on its thread;
//! - the page answers only to names that are given to it, so that no other site's script can read
//!   it through a name that leads here (DNS rebinding).

mod answers;

use super::metrics::Metrics;
use crate::page::Known;
use answers::{Answer, Made};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Bytes of a request line with all headers.
const HEAD_MAX: usize = 16 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// A listener that cannot take a connection, for want of files, tries again after so long.
const RETRY: Duration = Duration::from_millis(200);

/// Where to listen, and for whom.
#[derive(Debug, Clone)]
pub struct Doors {
    /// Of the page; off without it.
    pub page: Option<SocketAddr>,
    /// Of metrics and probes; off without it.
    pub metrics: Option<SocketAddr>,
    /// Names by which the page may be asked for, besides those of loopback.
    pub page_hosts: Vec<String>,
}

impl Default for Doors {
    fn default() -> Self {
        Self {
            page: Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
            metrics: Some(SocketAddr::from(([0, 0, 0, 0], 8081))),
            page_hosts: Vec::new(),
        }
    }
}

/// What a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time for a head, and between requests.
    pub head: Duration,
    /// Age of a connection, after which no further request is taken.
    pub age: Duration,
    /// Time for the last answer after that.
    pub farewell: Duration,
    /// Connections of each door.
    pub places: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(5),
            age: Duration::from_secs(60),
            farewell: Duration::from_secs(5),
            places: 64,
        }
    }
}

/// What is shown: the controller changes it, the server reads it.
pub type Shown = Arc<Mutex<Known>>;

#[derive(Debug)]
struct Shared {
    known: Shown,
    metrics: Metrics,
    clock: fn() -> DateTime<Utc>,
    page_hosts: Vec<String>,
    made: Mutex<Made>,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which door a client came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Page,
    Metrics,
}

/// A server that listens already.
#[derive(Debug)]
pub struct Serve {
    doors: Vec<(Door, TcpListener)>,
    limits: Patience,
    shared: Arc<Shared>,
}

impl Serve {
    /// Listens.
    ///
    /// # Errors
    ///
    /// An address that cannot be had; the message names it.
    pub async fn bind(doors: Doors, known: Shown, metrics: Metrics) -> io::Result<Self> {
        let mut open = Vec::new();
        for (door, address) in [(Door::Page, doors.page), (Door::Metrics, doors.metrics)] {
            let Some(address) = address else { continue };
            let listener = TcpListener::bind(address).await;
            let listener = listener
                .map_err(|e| io::Error::new(e.kind(), format!("listen on {address}: {e}")))?;
            open.push((door, listener));
        }
        let (page_hosts, made) = (doors.page_hosts, Mutex::default());
        let shared = Shared { known, metrics, clock: Utc::now, page_hosts, made };
        Ok(Self { doors: open, limits: Patience::default(), shared: Arc::new(shared) })
    }

    /// With other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Patience) -> Self {
        self.limits = limits;
        self
    }

    /// Where it listens: first the page, then the metrics, without the one that is off.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.doors.iter().filter_map(|(_, listener)| listener.local_addr().ok()).collect()
    }

    /// Answers for ever. Whoever drops this ends all connections.
    pub async fn run(self) {
        let Self { doors, limits, shared } = self;
        let doors = doors
            .into_iter()
            .map(|(door, listener)| accept(door, listener, limits, Arc::clone(&shared)));
        futures::future::join_all(doors).await;
    }
}

async fn accept(door: Door, listener: TcpListener, limits: Patience, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {
                oldest.retain(|connection| !connection.is_finished());
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                if oldest.len() >= limits.places.max(1)
                    && let Some(connection) = oldest.pop_front()
                {
                    connection.abort();
                }
                let shared = Arc::clone(&shared);
                oldest.push_back(connections.spawn(converse(door, stream, limits, shared)));
            }
            // A client that was gone before, or no file left for it.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn converse(door: Door, stream: TcpStream, limits: Patience, shared: Arc<Shared>) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let answer = answer(door, &request, &shared);
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head);
    server.max_buf_size(HEAD_MAX).max_headers(HEADERS_MAX);
    let mut connection = Box::pin(server.serve_connection(TokioIo::new(stream), service));
    // Errors are the client's: there is nobody to tell.
    if tokio::time::timeout(limits.age, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(limits.farewell, connection).await;
    }
}

fn answer<B>(door: Door, request: &Request<B>, shared: &Shared) -> Response<Full<Bytes>> {
    let answer = match answers::refusal(door, request, &shared.page_hosts) {
        Some(refusal) => refusal,
        None => match (door, request.uri().path()) {
            (Door::Page, "/") => page(request.uri().query().unwrap_or_default(), shared),
            (Door::Metrics, "/metrics") => metrics(shared),
            (_, "/healthz") => Answer::text(200, "ok\n"),
            (_, "/readyz") => readiness(shared),
            _ => Answer::text(404, "There is nothing here.\n"),
        },
    };
    answer.into_response()
}

fn page(query: &str, shared: &Shared) -> Answer {
    let view = crate::page::View::parse(query);
    let mut made = shared.made.lock().unwrap_or_else(PoisonError::into_inner);
    let render = || crate::page::render(&shared.known(), &view, (shared.clock)());
    match made.get(Some(&view), Instant::now(), render) {
        Some(page) => Answer::page(page),
        None => Answer::busy(),
    }
}

fn metrics(shared: &Shared) -> Answer {
    let mut made = shared.made.lock().unwrap_or_else(PoisonError::into_inner);
    // The table of names is constant, and tested: it cannot fail here.
    let text = || shared.metrics.text(&shared.known(), (shared.clock)()).unwrap_or_default();
    match made.get(None, Instant::now(), text) {
        Some(text) => Answer::metrics(text),
        None => Answer::busy(),
    }
}

/// Ready is a controller that knows the cluster as it is.
fn readiness(shared: &Shared) -> Answer {
    let now = (shared.clock)();
    let known = shared.known();
    match known.age(now) {
        None => Answer::text(503, "The cluster has not been read yet.\n"),
        Some(_) if known.is_stale(now) => Answer::text(503, "No watch tells anything.\n"),
        Some(_) => Answer::text(200, "ok\n"),
    }
}

#[cfg(test)]
mod tests;
