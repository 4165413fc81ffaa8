//! Requests about locks: asking for a retention and setting one.
//!
//! `object_store` has no calls for either. It does sign URLs, so these requests are made here,
//! through connections of its own making: HEAD, which names the retention of the current version
//! (on some servers `GET ?retention` fails where HEAD does not), and `PUT ?retention`.

use super::super::fault::Fault;
use super::super::retry::{self, Connector};
use super::super::{Counters, count, retry_budget};
use super::{Locks, RetainMode, Retention};
use crate::error::ErrorKind;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use chrono::DateTime;
use md5::{Digest, Md5};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpConnector, HttpRequest};
use object_store::path::Path;
use object_store::signer::{HeaderMap, HeaderValue, Method, SignedUrlOptions, Signer};
use object_store::{ClientOptions, Error as StoreError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a signed request may be used.
const SIGNED_FOR: Duration = Duration::from_secs(300);
/// Longest answer that is looked at.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Requests about locks, signed and sent.
#[derive(Debug)]
pub(in crate::store) struct LockClient {
    signer: AmazonS3,
    http: HttpClient,
    counters: Arc<Counters>,
}

/// What came back.
pub(super) struct Answer {
    pub(super) status: u16,
    headers: HeaderMap,
    pub(super) body: String,
}

impl LockClient {
    pub(in crate::store) fn new(
        signer: AmazonS3,
        options: &ClientOptions,
        counters: Arc<Counters>,
    ) -> object_store::Result<Self> {
        let http = Connector::new(Arc::clone(&counters)).connect(options)?;
        Ok(Self { signer, http, counters })
    }

    /// One request; again, as often and as long as `object_store` does it, while it may go better.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &Path,
        query: Option<&str>,
        body: Bytes,
    ) -> object_store::Result<Answer> {
        let (begun, mut retries) = (Instant::now(), 0);
        loop {
            let answer = self.call_once(method.clone(), path, query, body.clone()).await;
            match &answer {
                Ok(said) if !said.may_pass() => return answer,
                Ok(_) => {}
                // nothing was sent: the request cannot be signed
                Err(e) if Fault::of(e).kind != ErrorKind::Unavailable => return answer,
                Err(e) if Fault::of(e).given_up => return answer,
                Err(e) => tracing::debug!(error = %e, "a request about a lock failed"),
            }
            let Some(pause) = retry::pause_before(retries, begun.elapsed()) else { return answer };
            retry_budget::pause(pause).await;
            retries += 1;
        }
    }

    async fn call_once(
        &self,
        method: Method,
        path: &Path,
        query: Option<&str>,
        body: Bytes,
    ) -> object_store::Result<Answer> {
        let counter = match method {
            Method::HEAD => &self.counters.heads,
            Method::PUT => &self.counters.puts,
            _ => &self.counters.gets,
        };
        count(counter);
        let options = SignedUrlOptions::new().with_query(query.map(|name| (name, "")));
        let url = self.signer.signed_url_opts(method.clone(), path, SIGNED_FOR, &options).await?;
        let mut request = HttpRequest::new(body.clone().into());
        if method == Method::PUT {
            let sum = BASE64.encode(Md5::digest(&body));
            let headers = request.headers_mut();
            headers.insert("content-type", HeaderValue::from_static("application/xml"));
            headers.insert("content-md5", HeaderValue::from_str(&sum).map_err(generic)?);
        }
        *request.method_mut() = method;
        *request.uri_mut() = url.as_str().parse().map_err(generic)?;
        let (head, body) = self.http.execute(request).await.map_err(generic)?.into_parts();
        let body = body.bytes().await.map_err(generic)?;
        let body = String::from_utf8_lossy(&body[..body.len().min(ANSWER_BYTES_MAX)]).into_owned();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The store asks for patience, or the request did not arrive as it was sent.
    fn may_pass(&self) -> bool {
        let asks = matches!(self.status, 408 | 429) || (self.status >= 500 && self.status != 501);
        asks || Fault::of(&self.error()).broke
    }

    pub(super) fn locks(&self) -> Locks {
        let mode = self.header("x-amz-object-lock-mode").and_then(RetainMode::parse);
        let until = self.header("x-amz-object-lock-retain-until-date");
        let until = until.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let retention =
            mode.zip(until).map(|(mode, until)| Retention { mode, until: until.to_utc() });
        let hold = self.header("x-amz-object-lock-legal-hold") == Some("ON");
        Locks { retention, hold }
    }

    /// Worded as `object_store` words it, for the one place that reads such words.
    pub(super) fn error(&self) -> StoreError {
        generic(format!("status code: {}: {}", self.status, self.body))
    }
}

pub(super) fn generic(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Generic { store: "S3", source: e.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Utc;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    fn answer(headers: &[(&'static str, &'static str)]) -> Answer {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        Answer { status: 200, headers: map, body: String::new() }
    }

    #[test]
    fn what_servers_say_of_locks_is_understood() {
        let now = at("2026-01-01T00:00:00Z");
        let until = "x-amz-object-lock-retain-until-date";
        let mode = ("x-amz-object-lock-mode", "GOVERNANCE");
        for date in ["2026-01-02T00:00:00Z", "2026-01-02T00:00:00.000000000Z"] {
            let locks = answer(&[mode, (until, date)]).locks();
            let expected = Retention::new(RetainMode::Governance, at("2026-01-02T00:00:00Z"));
            assert_eq!(locks.retention, Some(expected), "{date}");
            assert!(locks.hold_at(now) && !locks.hold_at(expected.until));
        }
        for headers in
            [&[][..], &[mode], &[mode, (until, "soon")], &[(until, "2026-01-02T00:00:00Z")]]
        {
            assert_eq!(answer(headers).locks(), Locks::default());
        }
        assert!(answer(&[("x-amz-object-lock-legal-hold", "ON")]).locks().hold_at(now));
    }

    #[test]
    fn what_may_go_better_is_asked_again() {
        let says = |status: u16, code: &str| {
            let body = format!("<Error><Code>{code}</Code></Error>");
            Answer { status, headers: HeaderMap::new(), body }.may_pass()
        };
        for (status, code) in
            [(500, "InternalError"), (503, "SlowDown"), (429, "x"), (408, "x"), (400, "BadDigest")]
        {
            assert!(says(status, code), "{status} {code}");
        }
        for (status, code) in [
            (200, ""),
            (404, "NoSuchKey"),
            (403, "AccessDenied"),
            (501, "NotImplemented"),
            (400, "x"),
        ] {
            assert!(!says(status, code), "{status} {code}");
        }
    }
}
