//! What changed between two snapshots, for whoever speaks the differential-snapshot proposal: the
//! kind DifferentialSnapshot, its status, and a server of its lists by REST. It is off unless the
//! controller is told where to listen.
//!
//! ```text
//! client ──GET /NAMESPACE/NAME──▶ serve ──▶ access: whose token, may he ──▶ subject: which snapshots
//!                                                                                │
//!        page as JSON ◀── page ◀── one call at the driver's SnapshotMetadata ◀── list
//! ```
//!
//! Each page is one call of a driver's service, from the byte on at which the page before ended.
//! Nothing is kept between two requests: where a list goes on stands in the offset that the client
//! hands back, under a seal. So any server with the same key goes on with any list, and a client
//! that goes away leaves nothing behind.

mod access;
mod answer;
mod list;
mod offset;
mod page;
mod request;
mod serve;
mod status;
mod subject;

pub use access::AUDIENCE;

use crate::api::Api;
use access::Account;
use offset::Sealer;
use serve::{Identity, Seats};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// The purpose that the key of the offsets is derived for.
pub const KEY_PURPOSE: &str = "differential snapshots: offsets";
/// A list can be gone on with for so long.
const LIFE_SECONDS: u64 = 24 * 60 * 60;

/// How the server is set up.
#[derive(Debug, Clone)]
pub struct DifferentialSettings {
    /// Where it listens. Without TLS that is an address of loopback.
    pub listen: SocketAddr,
    /// Folder with `tls.crt` and `tls.key`.
    pub tls: Option<PathBuf>,
    /// How clients reach it; the address itself without it.
    pub url: Option<String>,
    /// Account of the controller's namespace that drivers are asked by.
    pub account: String,
}

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Time for TLS, for a head, and between requests.
    pub head: Duration,
    /// Time for a page at the driver's service.
    pub page: Duration,
    /// Age of a connection, after which no further request is taken.
    pub age: Duration,
    /// Time for the last answer after that.
    pub farewell: Duration,
    /// Longest wait for others.
    pub wait: Duration,
    /// Connections.
    pub places: usize,
    /// Tokens that are looked at, at once.
    pub reviews: usize,
    /// Pages that are made at once: each takes 20 MiB at worst.
    pub pages: usize,
    /// The same of one namespace.
    pub pages_of_namespace: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(5),
            page: Duration::from_secs(30),
            age: Duration::from_secs(120),
            farewell: Duration::from_secs(5),
            wait: Duration::from_secs(5),
            places: 64,
            reviews: 4,
            pages: 4,
            pages_of_namespace: 2,
        }
    }
}

/// What all requests share.
#[derive(Debug)]
struct Shared {
    api: Api,
    sealer: Sealer,
    account: Account,
    /// Without a slash at its end.
    url: String,
    /// Namespaces that are looked after; none means all.
    watched: Vec<String>,
    limits: ClientLimits,
    seats: Seats,
    /// Seconds since 1970.
    clock: fn() -> u64,
}

impl Shared {
    fn looks_after(&self, namespace: &str) -> bool {
        self.watched.is_empty() || self.watched.iter().any(|watched| watched == namespace)
    }
}

/// A server that listens already.
#[derive(Debug)]
pub struct DifferentialServer {
    listener: TcpListener,
    identity: Option<Identity>,
    shared: Arc<Shared>,
}

impl DifferentialServer {
    /// Listens. `api` should have a limit of its own, as strangers make it send requests; `key`
    /// seals offsets, and is the same in each life of the server. `namespace` is the controller's,
    /// and `watched` those that it looks after.
    ///
    /// # Errors
    ///
    /// An address that cannot be had, or that others could read from without TLS; a certificate or a
    /// key that is none.
    pub async fn bind(
        api: Api,
        key: [u8; 32],
        namespace: &str,
        watched: Vec<String>,
        settings: DifferentialSettings,
        limits: ClientLimits,
    ) -> io::Result<Self> {
        let DifferentialSettings { listen, tls, url, account } = settings;
        if tls.is_none() && !listen.ip().is_loopback() {
            let what = format!(
                "listen on {listen}: tokens would pass in the clear; give a certificate with --differential-tls, or an address of loopback"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let identity = tls.as_deref().map(Identity::load).transpose()?;
        let listener = TcpListener::bind(listen).await;
        let listener =
            listener.map_err(|e| io::Error::new(e.kind(), format!("listen on {listen}: {e}")))?;
        let scheme = if identity.is_some() { "https" } else { "http" };
        let url = match url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("{scheme}://{}", listener.local_addr()?),
        };
        let shared = Shared {
            api,
            sealer: Sealer::new(key),
            account: Account::new(namespace, &account),
            url,
            watched,
            limits,
            seats: Seats::new(limits),
            clock: || chrono::Utc::now().timestamp().try_into().unwrap_or_default(),
        };
        Ok(Self { listener, identity, shared: Arc::new(shared) })
    }

    /// Where lists are found, by their namespaces and names behind it.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// Answers and tells statuses for ever. Whoever drops this ends all connections.
    pub async fn run(self) {
        let Self { listener, identity, shared } = self;
        let places = match shared.watched.as_slice() {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        let follows = places.into_iter().map(|namespace| status::follow(&shared, namespace));
        let follows = futures::future::join_all(follows);
        tokio::join!(serve::serve(listener, identity, Arc::clone(&shared)), follows);
    }
}
