//! Answers scrapes: HTTP on one address, one path, on the network threads.
//!
//! A run that has ended can wait for one more scrape, since what Prometheus saw last would
//! otherwise be some seconds old. Nobody else waits for the server: it is dropped with the runtime.

use super::Telemetry;
use chunkstore::{Error, ErrorKind, Result};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Of the text format, as Prometheus asks for it.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// After a failed accept (no descriptors left, say), so that it does not spin.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket and who answers on it.
#[derive(Debug)]
pub(crate) struct Server {
    /// Told after each answer that had the final numbers.
    final_scrape: Arc<Notify>,
}

impl Server {
    /// Listens on `address` from now on.
    pub(crate) fn start(
        runtime: &tokio::runtime::Handle,
        address: SocketAddr,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self> {
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(|e| {
            Error::caused(ErrorKind::Usage, format!("listen on --metrics-addr {address}"), e)
                .hint("choose another address or port, or leave it out")
        })?;
        let final_scrape = Arc::new(Notify::new());
        let answers =
            Answers { telemetry: Arc::clone(telemetry), final_scrape: Arc::clone(&final_scrape) };
        drop(runtime.spawn(accept(listener, answers)));
        Ok(Self { final_scrape })
    }

    /// Waits until somebody has seen the final numbers, or so long.
    pub(crate) fn linger(&self, runtime: &tokio::runtime::Handle, at_most: Duration) {
        let seen = async { tokio::time::timeout(at_most, self.final_scrape.notified()).await };
        if runtime.block_on(seen).is_err() && !at_most.is_zero() {
            tracing::info!("nobody asked for the final metrics");
        }
    }
}

#[derive(Clone)]
struct Answers {
    telemetry: Arc<Telemetry>,
    final_scrape: Arc<Notify>,
}

async fn accept(listener: TcpListener, answers: Answers) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(talk(stream, answers.clone()))),
            Err(e) => {
                tracing::debug!("accept a scrape: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn talk(stream: TcpStream, answers: Answers) {
    let service = service_fn(|request| {
        let response = answers.respond(&request);
        async { Ok::<_, Infallible>(response) }
    });
    // one request each, so that the end of the connection says that its answer has left
    let mut http = http1::Builder::new();
    let ended = answers.telemetry.has_ended();
    if let Err(e) = http.keep_alive(false).serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("answer a scrape: {e}");
    } else if ended {
        answers.final_scrape.notify_one();
    }
}

impl Answers {
    fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let (status, text) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => match self.telemetry.text() {
                Ok(text) => (StatusCode::OK, text),
                Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
            },
            (&Method::GET, _) => (StatusCode::NOT_FOUND, "ask for /metrics\n".into()),
            _ => (StatusCode::METHOD_NOT_ALLOWED, "use GET\n".into()),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(TEXT));
        response
    }
}
