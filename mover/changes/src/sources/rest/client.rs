//! One page by HTTP: the URL, the token, and what each status means.
//!
//! Redirects are not followed: the token is for the address that the user named.

use super::super::RetryPolicy;
use super::super::collector::{getting, refused};
use super::super::credentials::{read_ca, read_token};
use super::super::retry::RetryBudget;
use super::RestSource;
use crate::volume::Movement;
use chunkstore::{Error, ErrorKind, Result, Setting};
use reqwest::header::{ACCEPT, AUTHORIZATION, DATE, HeaderValue, LINK, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use std::error::Error as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most bytes of one page: a page of ten thousand blocks has about one MiB.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// All of connecting: the name, the socket, TLS.
const CONNECT: Duration = Duration::from_secs(15);
/// When an answer that is not there yet is worth a word.
const SLOW: Duration = Duration::from_secs(2);
/// Whole of one request, however steadily its bytes drip.
const REQUEST: Duration = Duration::from_secs(600);

/// What a request came to.
pub(super) enum Answer {
    Page {
        body: Vec<u8>,
        /// What the server's clock shows, in seconds since 1970.
        server_time: Option<u64>,
    },
    /// The result is no longer there.
    Expired,
    /// The server does not take this request.
    BadRequest(Error),
}

/// A failed try.
enum Failure {
    /// It may pass; the server may have said when.
    Passing(Error, Option<Duration>),
    /// It rarely passes: ask again a few times.
    Internal(Error),
    /// The token is not good: read it again, once.
    Token(Error),
    Final(Error),
}

pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    name: String,
    /// What may carry `nextOffset`, and what does.
    offset_parameters: Vec<String>,
    offset_parameter: String,
    token_file: Option<PathBuf>,
    retry: RetryPolicy,
    retries: RetryBudget,
    /// An answer came, whatever it says: the address is that of a server.
    answered: AtomicBool,
    /// A token was refused, and is read again.
    token_renewed: bool,
    /// Counts what comes.
    movement: Option<Arc<dyn Movement>>,
}

impl Client {
    pub(super) fn new(
        source: &RestSource,
        url: &str,
        movement: Option<Arc<dyn Movement>>,
    ) -> Result<Self> {
        let url = parse_url(source, url)?;
        let name = without_query(url.as_str()).to_owned();
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT.min(source.retry.idle()))
            .read_timeout(source.retry.idle())
            .timeout(REQUEST)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("mover/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &source.ca_file {
            let (_, certificates) = read_ca(path)?;
            http = http.tls_certs_only(certificates);
        }
        let http = http.build().map_err(|e| {
            Error::caused(ErrorKind::Unavailable, format!("prepare to ask {name}"), e)
        })?;
        let offset_parameters = match &source.offset_parameter {
            Some(own) => vec![own.clone()],
            None => RestSource::OFFSET_PARAMETERS.map(str::to_owned).to_vec(),
        };
        Ok(Self {
            http,
            url,
            retries: RetryBudget::new(source.retry, name.clone()),
            name,
            offset_parameter: offset_parameters.first().cloned().unwrap_or_default(),
            offset_parameters,
            token_file: source.token_file.clone(),
            retry: source.retry,
            answered: AtomicBool::new(false),
            token_renewed: false,
            movement,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Pages without anything new may come for so long.
    pub(super) fn nothing_new(&self) -> Duration {
        self.retry.nothing_new()
    }

    /// Names that may carry `nextOffset`; the one that has worked, once one has.
    pub(super) fn offset_parameters(&self) -> Vec<String> {
        self.offset_parameters.clone()
    }

    /// From now on this one carries `nextOffset`.
    pub(super) fn use_parameter(&mut self, name: String) {
        self.offset_parameter = name;
    }

    /// It works.
    pub(super) fn keep_parameter(&mut self) {
        self.offset_parameters = vec![self.offset_parameter.clone()];
    }

    /// The page at `next`, or the first. Failures that may pass are tried again.
    pub(super) async fn get(&mut self, next: Option<&str>) -> Result<Answer> {
        let mut url = self.url.clone();
        if let Some(next) = next {
            url.query_pairs_mut().append_pair(&self.offset_parameter, next);
        }
        loop {
            let answer = self.attempt_aloud(url.clone()).await;
            if self.answered.load(Ordering::Relaxed) {
                self.retries.reached();
            }
            let (error, tries_max, asked) = match answer {
                Ok(answer) => {
                    self.retries.progress();
                    self.token_renewed = false;
                    return Ok(answer);
                }
                Err(Failure::Token(_)) if self.token_file.is_some() && !self.token_renewed => {
                    // whoever issues it may have renewed it since
                    self.token_renewed = true;
                    tracing::info!("{} refuses the token: reading it again", self.name);
                    tokio::time::sleep(self.retry.wait(1, None)).await;
                    continue;
                }
                Err(Failure::Final(error) | Failure::Token(error)) => return Err(error),
                Err(Failure::Internal(error)) => (error, self.retry.internal_tries_max, None),
                Err(Failure::Passing(error, asked)) => (error, self.retry.tries_max, asked),
            };
            let wait = self.retries.after(error, tries_max, asked)?;
            tokio::time::sleep(wait).await;
        }
    }

    /// Says when a server that was never reached does not answer at once.
    async fn attempt_aloud(&mut self, url: Url) -> Result<Answer, Failure> {
        if !self.retries.is_at_start() {
            return self.attempt(url).await;
        }
        let mut attempt = std::pin::pin!(self.attempt(url));
        if let Ok(answer) = tokio::time::timeout(SLOW, &mut attempt).await {
            return answer;
        }
        tracing::warn!("no answer from {} yet", self.name);
        attempt.await
    }

    fn attempt<'a>(
        &'a self,
        url: Url,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + 'a>> {
        Box::pin(async move {
            let mut request = self.http.get(url).header(ACCEPT, "application/json");
            if let Some(path) = &self.token_file {
                let token = read_token(path).map_err(Failure::Final)?;
                let bearer = zeroize::Zeroizing::new(format!("Bearer {}", token.as_str()));
                let mut value = HeaderValue::from_str(&bearer).map_err(|e| {
                    let what = format!("use token {}", path.display());
                    Failure::Final(Error::caused(ErrorKind::Usage, what, e))
                })?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            let response = request.send().await.map_err(|e| self.transport(e))?;
            self.answered.store(true, Ordering::Relaxed);
            let judged = self.judge(&response);
            match judged {
                Some(Failure::Final(error)) if is_bad_request(response.status()) => {
                    Ok(Answer::BadRequest(error))
                }
                Some(failure) => Err(failure),
                None if response.status() == StatusCode::GONE => Ok(Answer::Expired),
                None => {
                    let server_time = server_time(&response);
                    let body = self.body(response).await?;
                    Ok(Answer::Page { body, server_time })
                }
            }
        })
    }

    /// What a status other than 200 and 410 means.
    fn judge(&self, response: &Response) -> Option<Failure> {
        let status = response.status();
        let error = |kind| refused(kind, &self.name, format!("it answers {status}"));
        Some(match status {
            StatusCode::OK if links_to_next(response) => {
                let what = "it answers with a link to a next page, which is not understood";
                Failure::Final(refused(ErrorKind::Unsupported, &self.name, what).hint(
                    "docs/changed-blocks.md shows how pages follow each other: tell whoever maintains its server",
                ))
            }
            StatusCode::OK | StatusCode::GONE => return None,
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                Failure::Passing(error(ErrorKind::Unavailable), retry_after(response))
            }
            StatusCode::INTERNAL_SERVER_ERROR => Failure::Internal(
                error(ErrorKind::Unavailable).hint("look into the log of the server"),
            ),
            StatusCode::UNAUTHORIZED => {
                let hint = match self.token_file {
                    Some(_) => "check the token file, and that the token has not expired".into(),
                    None => format!("it wants a token: give one with {changes_token_file}", changes_token_file = Setting("changes-token-file")),
                };
                Failure::Token(error(ErrorKind::Denied).hint(hint))
            }
            StatusCode::FORBIDDEN => Failure::Final(
                error(ErrorKind::Denied).hint("check the token file, and what its owner may do"),
            ),
            StatusCode::NOT_FOUND => Failure::Final(error(ErrorKind::NotFound).hint(
                "check the address, and ask the storage system for the list again if it has been given up",
            )),
            StatusCode::BAD_REQUEST => Failure::Final(error(ErrorKind::Unsupported).hint(
                format!("check the address, and the names in {changes_offset_parameter} and {changes_entries_parameter}", changes_offset_parameter = Setting("changes-offset-parameter"), changes_entries_parameter = Setting("changes-entries-parameter")),
            )),
            status if status.is_redirection() => Failure::Final(
                error(ErrorKind::Unsupported)
                    .hint("redirects are not followed: name the last address"),
            ),
            _ => Failure::Final(
                error(ErrorKind::Unsupported)
                    .hint("check the address, and look into the log of the server"),
            ),
        })
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|e| self.transport(e))? {
            if body.len() + piece.len() > PAGE_BYTES_MAX {
                let what = format!("a page has more than {} MiB", PAGE_BYTES_MAX >> 20);
                return Err(Failure::Final(
                    refused(ErrorKind::Unsupported, &self.name, what).hint(format!(
                        "ask for fewer blocks in a page, with {changes_page}",
                        changes_page = Setting("changes-page")
                    )),
                ));
            }
            body.extend_from_slice(&piece);
            self.movement.iter().for_each(|movement| movement.moved());
        }
        Ok(body)
    }

    fn transport(&self, error: reqwest::Error) -> Failure {
        // its own text repeats the URL, whose query may hold a secret
        let error = error.without_url();
        let mut cause = error.source();
        let mut untrusted = false;
        while let Some(e) = cause {
            untrusted |= e.to_string().contains("certificate");
            cause = e.source();
        }
        if untrusted {
            return Failure::Final(
                refused(ErrorKind::Denied, &self.name, "its certificate is not trusted")
                    .caused_by(error)
                    .hint(format!("give the CA file that signed it with {changes_ca_file}, and the name that stands in it", changes_ca_file = Setting("changes-ca-file"))),
            );
        }
        let error = Error::caused(ErrorKind::Unavailable, getting(&self.name), error);
        let hint = "check the address, and that the server runs";
        Failure::Passing(error.hint(hint), None)
    }
}

/// What servers say of a parameter that they do not know.
fn is_bad_request(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Pages that follow each other by the `Link` header (RFC 8288).
fn links_to_next(response: &Response) -> bool {
    let links = response.headers().get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    links.flat_map(|text| text.split(';')).any(|part| {
        let part: String = part.chars().filter(|c| !matches!(c, '"' | ' ' | '\'')).collect();
        let relation = part.to_ascii_lowercase();
        relation.split(',').next().is_some_and(|first| first == "rel=next")
    })
}

/// By the `Date` header.
fn server_time(response: &Response) -> Option<u64> {
    let text = response.headers().get(DATE)?.to_str().ok()?;
    let date = chrono::DateTime::parse_from_rfc2822(text).ok()?;
    date.timestamp().try_into().ok()
}

fn parameter(own: &Option<String>, default: &str) -> String {
    own.clone().unwrap_or_else(|| default.to_owned())
}

/// Seconds only: a date would need a clock that agrees with the server's.
fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// The address that the user named, with a scheme and the number of entries. What was in its query
/// stays.
fn parse_url(source: &RestSource, text: &str) -> Result<Url> {
    let scheme = if source.plain_http { "http" } else { "https" };
    let full = match text.contains("://") {
        true => text.to_owned(),
        false => format!("{scheme}://{text}"),
    };
    let name = without_query(text);
    let bad = |what: String| {
        Error::new(ErrorKind::Usage, format!("use {name} as the address of a list"), what)
            .hint("write it like https://host:port/namespace/name")
    };
    let mut url = Url::parse(&full).map_err(|e| bad(e.to_string()))?;
    match url.scheme() {
        "https" | "http" => {}
        other => return Err(bad(format!("{other} is neither https nor http"))),
    }
    if url.scheme() == "http" && source.token_file.is_some() && !source.plain_http {
        let what = "a token would be sent in the clear".to_owned();
        return Err(bad(what).hint(format!(
            "use https, or allow it with {changes_http}",
            changes_http = Setting("changes-http")
        )));
    }
    if source.page_entries > 0 {
        let entries = source.page_entries.to_string();
        let name = parameter(&source.entries_parameter, RestSource::ENTRIES_PARAMETER);
        url.query_pairs_mut().append_pair(&name, &entries);
    }
    Ok(url)
}

/// For messages: a query may hold a secret, and so may what stands before the host.
pub(super) fn without_query(url: &str) -> &str {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    url.rsplit_once('@').map_or(url, |(_, behind)| behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> RestSource {
        RestSource { page_entries: 100, ..RestSource::default() }
    }

    #[test]
    fn an_address_gets_a_scheme_and_keeps_its_query() {
        let url = |source: &RestSource, text| parse_url(source, text).map(|u| u.to_string());
        let plain = RestSource { plain_http: true, ..source() };
        let tokened = RestSource { token_file: Some("t".into()), ..source() };
        assert_eq!(url(&source(), "h:1/a/b").unwrap(), "https://h:1/a/b?maxEntries=100");
        assert_eq!(url(&plain, "h:1/a/b?x=1").unwrap(), "http://h:1/a/b?x=1&maxEntries=100");
        assert_eq!(url(&source(), "http://h/a").unwrap(), "http://h/a?maxEntries=100");
        assert!(url(&source(), "ftp://h/a").is_err() && url(&source(), "https://").is_err());
        assert!(url(&tokened, "http://h/a").unwrap_err().to_string().contains("in the clear"));
    }

    #[test]
    fn messages_do_not_show_secrets() {
        assert_eq!(without_query("https://u:p@h/a?token=1#x"), "h/a");
        assert_eq!(without_query("https://h/a"), "https://h/a");
    }
}
