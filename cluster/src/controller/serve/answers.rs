//! Answers, and the reasons not to give one.

use super::Door;
use crate::page::{View, content_security_policy};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A page is given out again for so long.
const FRESH: Duration = Duration::from_secs(1);
/// Pages that are made in a second, for all who ask.
const MADE_MAX: usize = 8;
/// Longest target of a request.
const TARGET_MAX: usize = 2_000;

/// Texts of the last second.
#[derive(Debug, Default)]
pub(super) struct Made(Vec<(Option<View>, Instant, Bytes)>);

impl Made {
    /// A text of that view, or of the metrics, made a moment ago or now. `None` where too many have
    /// been made.
    pub(super) fn get(
        &mut self,
        view: Option<&View>,
        now: Instant,
        make: impl FnOnce() -> String,
    ) -> Option<Bytes> {
        self.0.retain(|(_, at, _)| now - *at < FRESH);
        if let Some((.., text)) = self.0.iter().find(|(of, ..)| of.as_ref() == view) {
            return Some(text.clone());
        }
        // One place is kept for the metrics.
        if view.is_some() && self.0.iter().filter(|(of, ..)| of.is_some()).count() >= MADE_MAX {
            return None;
        }
        let text = Bytes::from(make());
        self.0.push((view.cloned(), now, text.clone()));
        Some(text)
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    status: u16,
    kind: &'static str,
    body: Bytes,
    more: Vec<(HeaderName, &'static str)>,
}

impl Answer {
    pub(super) fn text(status: u16, text: &'static str) -> Self {
        let body = Bytes::from_static(text.as_bytes());
        Self { status, kind: "text/plain; charset=utf-8", body, more: Vec::new() }
    }

    pub(super) fn page(body: Bytes) -> Self {
        Self { status: 200, kind: "text/html; charset=utf-8", body, more: Vec::new() }
    }

    pub(super) fn metrics(body: Bytes) -> Self {
        Self { status: 200, kind: "text/plain; version=0.0.4", body, more: Vec::new() }
    }

    pub(super) fn busy() -> Self {
        Self::text(503, "Too many pages were asked for: try again in a second.\n")
            .with(header::RETRY_AFTER, "1")
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.more.push((name, value));
        self
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or_default();
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, self.kind),
            (header::CONTENT_SECURITY_POLICY, content_security_policy()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ]
        .into_iter()
        .chain(self.more)
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Why a request is not answered as it was meant.
pub(super) fn refusal<B>(door: Door, request: &Request<B>, hosts: &[String]) -> Option<Answer> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let answer = Answer::text(405, "Only GET and HEAD: nothing can be changed here.\n");
        // What else it may send is not waited for.
        return Some(answer.with(header::ALLOW, "GET, HEAD").with(header::CONNECTION, "close"));
    }
    let target = request.uri().path_and_query().map_or(0, |it| it.as_str().len());
    if target > TARGET_MAX {
        return Some(Answer::text(414, "The address is too long.\n"));
    }
    if door == Door::Page && !is_for_us(request, hosts) {
        let text = "This name does not lead to the page of mover: ask for localhost, or name it \
                    with --page-host.\n";
        return Some(Answer::text(421, text));
    }
    None
}

/// Whether all names in a request are ones of this page, and there is one.
fn is_for_us<B>(request: &Request<B>, hosts: &[String]) -> bool {
    let in_target = request.uri().authority().map(|it| it.as_str());
    let mut named = in_target.into_iter().map(Some).collect::<Vec<_>>();
    let headers = request.headers().get_all(header::HOST);
    named.extend(headers.iter().map(|value| value.to_str().ok()));
    !named.is_empty() && named.into_iter().all(|name| name.is_some_and(|it| is_ours(it, hosts)))
}

fn is_ours(authority: &str, hosts: &[String]) -> bool {
    let Ok(authority) = authority.parse::<hyper::http::uri::Authority>() else { return false };
    // Of `user@host`, nothing is taken.
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|allowed| host.eq_ignore_ascii_case(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loopback_and_given_ones_are_ours() {
        let hosts = ["Backups.Example".to_owned()];
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8080",
            "backups.example:443",
        ] {
            assert!(is_ours(good, &hosts), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:8080",
            "[::2]",
            "a@localhost",
            "127.0.0.1.nip.io",
            "local host",
            "backups.example.evil",
        ] {
            assert!(!is_ours(bad, &hosts), "{bad}");
        }
    }

    #[test]
    fn pages_are_made_once_and_so_many_in_a_second() {
        let mut made = Made::default();
        let view = |page| View { page, ..View::default() };
        let now = Instant::now();
        for page in 0..MADE_MAX {
            assert!(made.get(Some(&view(page)), now, || page.to_string()).is_some());
        }
        assert_eq!(made.get(Some(&view(99)), now, || unreachable!("it is too much")), None);
        let again = made.get(Some(&view(3)), now, || unreachable!("it is there"));
        assert_eq!(again.as_deref(), Some("3".as_bytes()));
        assert!(made.get(None, now, || "metrics".into()).is_some(), "they have their own place");
        let later = made.get(Some(&view(3)), now + FRESH, || "new".into());
        assert_eq!(later.as_deref(), Some("new".as_bytes()));
    }
}
