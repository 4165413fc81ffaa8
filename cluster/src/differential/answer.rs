//! Answers: a page, or why there is none, each as JSON with the names of the proposal. A status of
//! HTTP says the same, so nobody takes a refusal for a list without blocks.

use super::access::AUDIENCE;
use super::subject::Trouble;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

/// Longest text of an error, characters.
const ERROR_CHARS_MAX: usize = 500;
/// Seconds after which something that passes is asked for again.
const AGAIN: u32 = 2;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    body: String,
    more: Vec<(HeaderName, String)>,
}

impl Answer {
    pub(super) fn page(body: String) -> Self {
        Self { status: 200, body, more: Vec::new() }
    }

    /// Why there is no page.
    pub(super) fn error(status: u16, why: &str) -> Self {
        let why: String = why.chars().take(ERROR_CHARS_MAX).collect();
        let body = json!({ "state": "Failure", "error": why }).to_string();
        Self { status, body, more: Vec::new() }
    }

    /// It may pass.
    pub(super) fn later(why: &str) -> Self {
        Self::error(503, why).with(header::RETRY_AFTER, AGAIN.to_string())
    }

    /// The list is not that of the offset any more: it is to be asked for from its beginning.
    pub(super) fn expired(why: &str) -> Self {
        Self::error(410, why)
    }

    pub(super) fn unauthorized() -> Self {
        let why = format!("send a token for the audience {AUDIENCE}, as `Authorization: Bearer …`");
        Self::error(401, &why).with(header::WWW_AUTHENTICATE, "Bearer".to_owned())
    }

    pub(super) fn forbidden(namespace: &str, name: &str) -> Self {
        Self::error(
            403,
            &format!(
                "the owner of the token may not get differentialsnapshots/{name} in namespace {namespace}"
            ),
        )
    }

    pub(super) fn with(mut self, name: HeaderName, value: String) -> Self {
        self.more.push((name, value));
        self
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or_default();
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "application/json"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-store"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        for (name, value) in self.more {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

impl From<Trouble> for Answer {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Absent => Self::error(404, "there is no such DifferentialSnapshot"),
            Trouble::Pending(why) | Trouble::Unavailable(why) => Self::later(&why),
            Trouble::Failure(why) => Self::error(409, &why),
        }
    }
}
