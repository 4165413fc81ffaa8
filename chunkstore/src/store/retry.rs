//! Tries: how often a request is sent, how long a store may make us wait, and how many tries
//! failed.
//!
//! `object_store` tries again after an answer of 5xx or 429 and after a connection that broke
//! before an answer, with pauses that grow, for at most 40 seconds and [`RETRIES_MAX`] times; it
//! knows nothing of `Retry-After`, and an answer that breaks in the middle is an error to it. So
//! its connections are wrapped here: every failed try is counted, and an answer that says when to
//! come back is handed on only then. `store/health.rs` is asked what else a failed try means: an
//! error of it that says that nobody answers any more is tried by nobody again. And a request that may be repeated is begun anew where its
//! answer broke, at most [`BREAKS_MAX`] times, and a small one for at most 40 seconds.

use super::fault::Fault;
use super::health::{Failure, GivenUp, LAST_TRY, Row, SLOW};
use super::{Counters, Store, add, count, retry_budget};
use crate::secrets::remember_passing;
use futures::future::{BoxFuture, Either, select};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Retries of one request, by `object_store` and in the requests that it does not have. The time
/// that they may take is over before, unless a store answers at once.
pub(super) const RETRIES_MAX: usize = 24;
/// No retry is begun after this long: a dead network is one error in about a minute (one more
/// timeout may follow), a store that restarts is waited for.
pub(super) const RETRY_TIME: Duration = Duration::from_secs(40);
/// Pause before the first retry, the longest one, and how much longer each is than the one before.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(200);
pub(super) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(8);
pub(super) const RETRY_GROWTH: u32 = 3;
/// New starts of one request whose answer broke.
const BREAKS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);
/// Longest answer of a store that is given up that is looked at.
const BODY_BYTES_MAX: usize = 64 << 10;
/// A store may ask for an hour; then it is asked again nevertheless.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Connections that wait as long as the store asks for, and count.
#[derive(Debug)]
pub(super) struct Connector {
    counters: Arc<Counters>,
    seen: SeenOptions,
    /// Whether anything is made of a server that does not answer.
    watched: bool,
}

/// What a client was asked to be like last. A builder does not give back what it took from the
/// environment.
pub(super) type SeenOptions = Arc<Mutex<Option<ClientOptions>>>;

impl Connector {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { counters, seen: SeenOptions::default(), watched: true }
    }

    /// For a machine's metadata service, which most machines do not have.
    pub(super) fn unwatched(counters: Arc<Counters>) -> Self {
        Self { watched: false, ..Self::new(counters) }
    }

    pub(super) fn seen_by(counters: Arc<Counters>, seen: SeenOptions) -> Self {
        Self { counters, seen, watched: true }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(options.clone());
        let (counters, watched) = (Arc::clone(&self.counters), self.watched);
        Ok(HttpClient::new(Polite { inner, counters, watched, begun: Instant::now() }))
    }
}

#[derive(Debug)]
struct Polite {
    inner: HttpClient,
    counters: Arc<Counters>,
    watched: bool,
    /// What times are counted from.
    begun: Instant,
}

impl Polite {
    fn failed(&self, body_bytes: usize) {
        count(&self.counters.failed_tries);
        add(&self.counters.sent_again, body_bytes);
    }

    /// Hands the request on; a server that is known dead has little time for it.
    async fn send(&self, server: &str, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (health, begun) = (&self.counters.health, self.begun.elapsed());
        let sent = std::pin::pin!(self.inner.execute(request));
        if health.is_dead(server) {
            return match tokio::time::timeout(LAST_TRY, sent).await {
                Ok(result) => result,
                Err(late) => Err(HttpError::new(HttpErrorKind::Timeout, late)),
            };
        }
        if health.has_answered(server) {
            return sent.await;
        }
        let slow = std::pin::pin!(tokio::time::sleep(SLOW));
        match select(sent, slow).await {
            Either::Left((result, _)) => result,
            Either::Right(((), sent)) => {
                health.is_slow(server, begun);
                sent.await
            }
        }
    }

    /// Tells of a try how it went; what no other try is to follow comes back as an error.
    async fn watch(
        &self,
        server: &str,
        begun: Duration,
        result: Result<HttpResponse, HttpError>,
    ) -> Result<HttpResponse, HttpError> {
        let health = &self.counters.health;
        let now = self.begun.elapsed();
        match result {
            Ok(answer) if !is_busy(&answer) => {
                health.answers(server, now);
                Ok(answer)
            }
            Ok(answer) => {
                let status = answer.status();
                let busy = std::io::Error::other(format!("status code: {status}"));
                let verdict = health.fails(server, [begun, now], Failure::Busy, &busy);
                let Some((tries, lasted)) = verdict.given_up else { return Ok(answer) };
                let body = answer.into_body().bytes().await.unwrap_or_default();
                let body = String::from_utf8_lossy(&body[..body.len().min(BODY_BYTES_MAX)]);
                let source = format!("status code: {status}: {body}").into();
                Err(given_up(Row { tries, lasted }, source))
            }
            Err(e) => {
                let Some(failure) = Failure::of(&e) else { return Err(e) };
                let verdict = health.fails(server, [begun, now], failure, &e);
                match verdict.given_up {
                    Some((tries, lasted)) => Err(given_up(Row { tries, lasted }, Box::new(e))),
                    None => Err(e),
                }
            }
        }
    }
}

/// Of a kind that nobody tries again.
fn given_up(row: Row, source: Box<dyn std::error::Error + Send + Sync>) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, GivenUp { row, source })
}

fn is_busy(answer: &HttpResponse) -> bool {
    let status = answer.status().as_u16();
    status == 429 || status >= 500
}

/// Whom a request goes to.
fn server_of(request: &HttpRequest) -> String {
    let uri = request.uri();
    let host = uri.host().unwrap_or_default();
    uri.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// What the answer may repeat of the request.
fn remember_secrets(request: &HttpRequest) {
    for (name, value) in request.headers() {
        let Ok(value) = value.to_str() else { continue };
        match name.as_str() {
            // a scheme, then a token; or a name or more, then a signature
            "authorization" => {
                let from = |mark: char| value.rsplit(mark).next().unwrap_or_default();
                let scheme = value.split(' ').next().unwrap_or_default();
                remember_passing(match scheme {
                    "Bearer" | "Basic" => from(' '),
                    "SharedKey" => from(':'),
                    _ => value.rsplit_once("Signature=").map_or(value, |(_, signature)| signature),
                });
            }
            "x-amz-security-token" | "x-aws-ec2-metadata-token" => remember_passing(value),
            name if name.ends_with("-customer-key") => remember_passing(value),
            _ => {}
        }
    }
    for pair in request.uri().query().unwrap_or_default().split('&') {
        let Some((name, value)) = pair.split_once('=') else { continue };
        let name = name.to_ascii_lowercase();
        if name == "sig" || name.ends_with("signature") || name.ends_with("token") {
            remember_passing(value);
        }
    }
}

impl HttpService for Polite {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let body_bytes = request.body().content_length();
            remember_secrets(&request);
            let result = if self.watched {
                let (server, begun) = (server_of(&request), self.begun.elapsed());
                let result = self.send(&server, request).await;
                self.watch(&server, begun, result).await
            } else {
                self.inner.execute(request).await
            };
            match &result {
                Ok(answer) => {
                    self.counters.clock.note(answer);
                    if is_busy(answer) {
                        self.failed(body_bytes);
                        let header = answer.headers().get("retry-after");
                        let wait = header.and_then(|value| wait_of(value.to_str().ok()?));
                        retry_budget::pause(wait.unwrap_or_default()).await;
                    }
                }
                Err(_) => self.failed(body_bytes),
            }
            result
        })
    }
}

/// How long to wait before one more try of a request that was tried again so often and was begun so
/// long ago; `None`: it has failed.
pub(super) fn pause_before(retries: usize, elapsed: Duration) -> Option<Duration> {
    let exponent = u32::try_from(retries).unwrap_or(u32::MAX);
    let pause = RETRY_PAUSE.saturating_mul(RETRY_GROWTH.saturating_pow(exponent));
    (retries < RETRIES_MAX && elapsed <= RETRY_TIME).then_some(pause.min(RETRY_PAUSE_MAX))
}

/// Of `Retry-After`. A date in it is not looked at: this machine's clock may be another.
fn wait_of(value: &str) -> Option<Duration> {
    let seconds = value.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(WAIT_MAX))
}

impl Store {
    /// Runs a small request that may be repeated; where its answer broke, again, a bounded number
    /// of times and seconds.
    pub(super) async fn retry<T, Fut>(&self, request: impl Fn() -> Fut) -> object_store::Result<T>
    where
        Fut: Future<Output = object_store::Result<T>>,
    {
        self.retry_within(RETRY_TIME, request).await
    }

    /// As [`retry`](Self::retry), but is begun anew only within this time.
    pub(super) async fn retry_within<T, Fut>(
        &self,
        time: Duration,
        request: impl Fn() -> Fut,
    ) -> object_store::Result<T>
    where
        Fut: Future<Output = object_store::Result<T>>,
    {
        let begun = Instant::now();
        let mut breaks = 0;
        loop {
            match request().await {
                Err(e) if breaks < BREAKS_MAX && begun.elapsed() <= time && Fault::of(&e).broke => {
                    tracing::debug!(error = %e, breaks, "an answer broke");
                    count(&self.counters.failed_tries);
                    retry_budget::pause(PAUSE * 2u32.pow(breaks)).await;
                    breaks += 1;
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_tried_again_for_as_long_as_object_store_does_it() {
        // a store that answers at once that it is busy
        let (mut waited, mut retries) = (Duration::ZERO, 0);
        while let Some(pause) = pause_before(retries, waited) {
            waited += pause;
            retries += 1;
        }
        assert!(waited > RETRY_TIME && waited <= RETRY_TIME + RETRY_PAUSE_MAX, "{waited:?}");
        assert_eq!(pause_before(0, Duration::ZERO), Some(RETRY_PAUSE));
        assert_eq!(pause_before(1, Duration::ZERO), Some(RETRY_PAUSE * 3));
        assert_eq!(pause_before(RETRIES_MAX - 1, Duration::ZERO), Some(RETRY_PAUSE_MAX));
        assert_eq!(pause_before(RETRIES_MAX, Duration::ZERO), None);
    }

    #[test]
    fn a_store_is_waited_for_as_long_as_it_asks_but_not_for_ever() {
        assert_eq!(wait_of(" 3 "), Some(Duration::from_secs(3)));
        assert_eq!(wait_of("86400"), Some(WAIT_MAX));
        assert_eq!(wait_of("Fri, 31 Dec 1999 23:59:59 GMT"), None);
        assert_eq!(wait_of("-1"), None);
    }
}
