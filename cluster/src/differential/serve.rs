//! Lists over HTTP, for clients that may do as they like without being in the way.
//!
//! - A head that is not there in time, or is too long, ends the connection; so does its age, also
//!   that of a client that stops reading.
//! - Connections have a number of places. Who comes when all are taken gets that of the oldest one
//!   that waits for nothing of ours; one whose page is being made keeps its place.
//! - Tokens are looked at for some at a time, and pages are made for fewer still, and for fewer of
//!   one namespace. Who waits too long is told to come again.
//! - Certificate and key are read again and again, so that they may be renewed.

use super::access::{bearer, check};
use super::answer::Answer;
use super::list;
use super::request::{Asking, TARGET_MAX};
use super::{ClientLimits, Shared};
use http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// Bytes of a request line with all headers; a token has some KiB.
const HEAD_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 64;
/// A listener that cannot take a connection, for want of files, tries again after so long.
const RETRY: Duration = Duration::from_millis(200);
/// Certificate and key are read again after so long.
const RELOAD: Duration = Duration::from_secs(60);

/// How many pages are made at once, in all and for each namespace.
#[derive(Debug)]
pub(super) struct Seats {
    reviews: Semaphore,
    pages: Semaphore,
    of_namespaces: Mutex<BTreeMap<String, usize>>,
    limits: ClientLimits,
}

/// Given back when it is dropped.
struct Seat<'a> {
    seats: &'a Seats,
    namespace: &'a str,
    _permit: SemaphorePermit<'a>,
}

impl Seats {
    pub(super) fn new(limits: ClientLimits) -> Self {
        Self {
            reviews: Semaphore::new(limits.reviews),
            pages: Semaphore::new(limits.pages),
            of_namespaces: Mutex::default(),
            limits,
        }
    }

    async fn wait<'a>(&self, places: &'a Semaphore) -> Result<SemaphorePermit<'a>, Answer> {
        match tokio::time::timeout(self.limits.wait, places.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Answer::later("too much is asked for just now")),
        }
    }

    async fn take<'a>(&'a self, namespace: &'a str) -> Result<Seat<'a>, Answer> {
        let permit = self.wait(&self.pages).await?;
        let mut taken = self.of_namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(namespace.to_owned()).or_default();
        if *count >= self.limits.pages_of_namespace {
            return Err(Answer::later("other pages of this namespace are being made"));
        }
        *count += 1;
        Ok(Seat { seats: self, namespace, _permit: permit })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut taken = self.seats.of_namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(self.namespace) {
            *count -= 1;
            if *count == 0 {
                taken.remove(self.namespace);
            }
        }
    }
}

/// Certificate and key, as they were last read.
#[derive(Debug)]
pub(super) struct Identity {
    folder: std::path::PathBuf,
    now: Mutex<(Vec<u8>, Arc<ServerConfig>)>,
}

impl Identity {
    /// Reads `tls.crt` and `tls.key` of a folder, as a Secret of type kubernetes.io/tls has them.
    pub(super) fn load(folder: &Path) -> io::Result<Self> {
        let now = Mutex::new(read_identity(folder)?);
        Ok(Self { folder: folder.to_owned(), now })
    }

    fn acceptor(&self) -> TlsAcceptor {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&now.1))
    }

    fn reload(&self) {
        match read_identity(&self.folder) {
            Ok(new) => {
                let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
                if new.0 != now.0 {
                    tracing::info!("{}: another certificate", self.folder.display());
                    *now = new;
                }
            }
            Err(why) => tracing::warn!("{why}; the certificate stays as it was"),
        }
    }
}

/// The certificate's own bytes, and what is made of it and its key.
fn read_identity(folder: &Path) -> io::Result<(Vec<u8>, Arc<ServerConfig>)> {
    let read = |name: &str| {
        let path = folder.join(name);
        let named =
            |why: io::Error| io::Error::new(why.kind(), format!("read {}: {why}", path.display()));
        std::fs::read(&path).map_err(named)
    };
    let wrong = |what: &str, why: &dyn std::fmt::Display| {
        let folder = folder.display();
        io::Error::new(io::ErrorKind::InvalidData, format!("use {what} in {folder}: {why}"))
    };
    let (certificate, key) = (read("tls.crt")?, zeroize::Zeroizing::new(read("tls.key")?));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
    let chain = chain.map_err(|why| wrong("tls.crt", &why))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|why| wrong("tls.key", &why))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| wrong("tls.crt", &why))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|why| wrong("tls.crt and tls.key", &why))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((certificate, Arc::new(config)))
}

/// A connection: its task, and whether its page is being made.
type Client = (AbortHandle, Arc<AtomicBool>);

/// Answers for ever. Whoever drops this ends all connections.
pub(super) async fn serve(listener: TcpListener, identity: Option<Identity>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut clients: VecDeque<Client> = VecDeque::new();
    let mut reload = tokio::time::interval(RELOAD);
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {
                clients.retain(|(task, _)| !task.is_finished());
                continue;
            }
            _ = reload.tick() => {
                identity.iter().for_each(Identity::reload);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // A client that was gone before, or no file left for it.
            tokio::time::sleep(RETRY).await;
            continue;
        };
        if clients.len() >= shared.limits.places.max(1) && !make_room(&mut clients) {
            continue;
        }
        let busy = Arc::new(AtomicBool::new(false));
        let (of, flag) = (Arc::clone(&shared), Arc::clone(&busy));
        let task = match identity.as_ref().map(Identity::acceptor) {
            Some(acceptor) => connections.spawn(secured(stream, acceptor, of, flag)),
            None => connections.spawn(converse(stream, of, flag)),
        };
        clients.push_back((task, busy));
    }
}

/// Ends the oldest connection that waits for nothing.
fn make_room(clients: &mut VecDeque<Client>) -> bool {
    let idle = clients.iter().position(|(_, busy)| !busy.load(Ordering::Relaxed));
    match idle.and_then(|at| clients.remove(at)) {
        Some((task, _)) => {
            task.abort();
            true
        }
        None => false,
    }
}

async fn secured(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    busy: Arc<AtomicBool>,
) {
    let accepted = tokio::time::timeout(shared.limits.head, acceptor.accept(stream)).await;
    if let Ok(Ok(stream)) = accepted {
        converse(stream, shared, busy).await;
    }
}

async fn converse<S>(stream: S, shared: Arc<Shared>, busy: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.limits;
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (shared, busy) = (Arc::clone(&shared), Arc::clone(&busy));
        // Its body is not looked at.
        let head = request.into_parts().0;
        Box::pin(async move {
            let answer = judged(&head, &shared, &busy).await;
            busy.store(false, Ordering::Relaxed);
            let answer = answer.unwrap_or_else(|refusal| refusal);
            Ok::<_, std::convert::Infallible>(answer.into_response())
        })
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

async fn judged(head: &Parts, shared: &Shared, busy: &AtomicBool) -> Result<Answer, Answer> {
    if head.method != Method::GET {
        // What else it may send is not waited for.
        return Err(Answer::error(405, "lists are read by GET")
            .with(header::ALLOW, "GET".to_owned())
            .with(header::CONNECTION, "close".to_owned()));
    }
    let uri = &head.uri;
    if uri.path_and_query().map_or(0, |it| it.as_str().len()) > TARGET_MAX {
        return Err(Answer::error(414, "the address is too long"));
    }
    let asking = Asking::parse(uri.path(), uri.query().unwrap_or_default())?;
    let header = head.headers.get(header::AUTHORIZATION);
    let token = bearer(header.and_then(|value| value.to_str().ok()));
    let token = token.ok_or_else(Answer::unauthorized)?;
    {
        let _permit = shared.seats.wait(&shared.seats.reviews).await?;
        check(&shared.api, &token, &asking.namespace, &asking.name).await?;
    }
    // Only who may see it learns whether it is there.
    if !shared.looks_after(&asking.namespace) {
        return Err(Answer::error(404, "this controller does not look after that namespace"));
    }
    busy.store(true, Ordering::Relaxed);
    let _seat = shared.seats.take(&asking.namespace).await?;
    Box::pin(list::answer(shared, &asking)).await
}

#[cfg(test)]
mod tests;
