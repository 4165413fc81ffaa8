//! Object lock: objects that nobody can delete or replace before a date, by S3's rules.
//!
//! On a bucket with object lock every object has versions, and a version with a *retention* can be deleted by nobody until its
//! date: in the mode `governance` by those alone who have a permission for it, in `compliance` by no one at all. A date can be
//! moved to later and never to earlier. A plain delete or overwrite succeeds all the same: it puts a marker, or another
//! version, on top of the one that is locked. `docs/operations.md` says what a repository makes of that.
//!
//! A [`Store`] with a [`RetainPolicy`] writes packs and manifests with a retention in the very request that creates them: its
//! clients for these have the headers, which are signed. `object_store` has no calls to ask for a retention or to change one.
//! It does sign URLs, so these requests are made here, through connections of its own making: HEAD, which names the retention
//! of the current version (on some servers `GET ?retention` fails where HEAD does not), and `PUT ?retention`.

use super::fault::Fault;
use super::tries::Connector;
use super::{Counters, Store, count, patience};
use crate::error::{Error, ErrorKind, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Timelike, Utc};
use md5::{Digest, Md5};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::client::{HttpClient, HttpConnector, HttpRequest};
use object_store::path::Path;
use object_store::signer::{HeaderMap, HeaderValue, Method, SignedUrlOptions, Signer};
use object_store::{ClientOptions, Error as StoreError, ObjectStore};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a signed request may be used.
const SIGNED_FOR: Duration = Duration::from_secs(300);
/// Tries of one request, and the pause after the first; it doubles with each.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(200);
/// Longest answer that is looked at.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Who may still delete what is locked. The order is that of strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RetainMode {
    /// Those with a permission of its own (`s3:BypassGovernanceRetention`).
    Governance,
    /// Nobody, the owner of the account included.
    Compliance,
}

impl RetainMode {
    fn header(self) -> &'static str {
        match self {
            Self::Governance => "GOVERNANCE",
            Self::Compliance => "COMPLIANCE",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Governance, Self::Compliance].into_iter().find(|mode| mode.header() == text)
    }
}

impl fmt::Display for RetainMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Governance => "governance",
            Self::Compliance => "compliance",
        })
    }
}

/// Until when an object is locked, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Retention {
    /// Against whom.
    pub mode: RetainMode,
    /// In whole seconds.
    pub until: DateTime<Utc>,
}

impl Retention {
    /// Rounds up to whole seconds.
    pub fn new(mode: RetainMode, until: DateTime<Utc>) -> Self {
        let whole = until.with_nanosecond(0).unwrap_or(until);
        let until = if whole < until { whole + chrono::TimeDelta::seconds(1) } else { whole };
        Self { mode, until }
    }

    /// Whether this is as good as `wanted`.
    pub(crate) fn covers(&self, wanted: &Self) -> bool {
        self.until >= wanted.until && self.mode >= wanted.mode
    }

    /// What is as good as both.
    pub(crate) fn or_longer(self, other: Self) -> Self {
        Self { mode: self.mode.max(other.mode), until: self.until.max(other.until) }
    }

    fn date(&self) -> String {
        self.until.to_rfc3339_opts(SecondsFormat::Secs, true)
    }
}

/// When what a backup takes over from its parent gets the retention of the backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inherited {
    /// Before the backup is committed: its whole map is read for it.
    #[default]
    Now,
    /// With the next collection, which reads all maps anyway.
    Later,
}

/// How a backup is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainPolicy {
    /// Of everything that it needs.
    pub retention: Retention,
    /// When that holds for what it did not store itself.
    pub inherited: Inherited,
}

/// Whether a place can lock objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectLock {
    /// The bucket has it.
    Enabled,
    /// The bucket was made without it.
    Disabled,
    /// This kind of store has no such thing, as far as this program knows.
    Unsupported,
}

/// What keeps one object from being deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Locks {
    pub(crate) retention: Option<Retention>,
    /// A legal hold: without a date, until somebody takes it away.
    hold: bool,
}

impl Locks {
    /// Whether nobody can delete it at `now`.
    pub(crate) fn hold_at(&self, now: DateTime<Utc>) -> bool {
        self.hold || self.retention.is_some_and(|r| r.until > now)
    }
}

/// What became of [`Store::retain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retained {
    /// There is no such object.
    Absent,
    /// It was locked as long, or longer.
    Before,
    /// It is now.
    Now,
}

/// What the store kept when it was asked to delete it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) key: String,
    /// As far as it says so.
    pub(crate) until: Option<DateTime<Utc>>,
}

/// Requests about locks, signed and sent.
#[derive(Debug)]
pub(super) struct LockClient {
    signer: AmazonS3,
    http: HttpClient,
    counters: Arc<Counters>,
}

/// The clients for what is written with a retention.
#[derive(Clone)]
pub(super) struct RetainingClients {
    pub(super) policy: RetainPolicy,
    pub(super) small: Arc<dyn ObjectStore>,
    pub(super) bulk: Arc<dyn ObjectStore>,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl LockClient {
    pub(super) fn new(
        signer: AmazonS3,
        options: &ClientOptions,
        counters: Arc<Counters>,
    ) -> object_store::Result<Self> {
        let http = Connector::new(Arc::clone(&counters)).connect(options)?;
        Ok(Self { signer, http, counters })
    }

    /// One request, again while the store asks for patience.
    async fn call(
        &self,
        method: Method,
        path: &Path,
        query: Option<&str>,
        body: Bytes,
    ) -> object_store::Result<Answer> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            let answer = self.call_once(method.clone(), path, query, body.clone()).await;
            match &answer {
                Ok(a) if a.status != 429 && (a.status < 500 || a.status == 501) => return answer,
                Ok(_) => {}
                Err(e) if Fault::of(e).unreachable => return answer,
                Err(e) => tracing::debug!(error = %e, "a request about a lock failed"),
            }
            patience::pause(pause).await;
            pause *= 2;
        }
        self.call_once(method, path, query, body).await
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

    fn locks(&self) -> Locks {
        let mode = self.header("x-amz-object-lock-mode").and_then(RetainMode::parse);
        let until = self.header("x-amz-object-lock-retain-until-date");
        let until = until.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let retention =
            mode.zip(until).map(|(mode, until)| Retention { mode, until: until.to_utc() });
        let hold = self.header("x-amz-object-lock-legal-hold") == Some("ON");
        Locks { retention, hold }
    }

    /// Worded as `object_store` words it, for the one place that reads such words.
    fn error(&self) -> StoreError {
        generic(format!("status code: {}: {}", self.status, self.body))
    }
}

fn generic(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Generic { store: "S3", source: e.into() }
}

/// Clients as these builders make them, with the headers of a retention. S3 demands a checksum with them.
pub(super) fn retaining(
    policy: RetainPolicy,
    builder: &AmazonS3Builder,
    options: &ClientOptions,
    bulk_timeout: Duration,
) -> object_store::Result<RetainingClients> {
    let mut headers = HeaderMap::new();
    let Retention { mode, .. } = policy.retention;
    let date = HeaderValue::from_str(&policy.retention.date()).map_err(generic)?;
    headers.insert("x-amz-object-lock-mode", HeaderValue::from_static(mode.header()));
    headers.insert("x-amz-object-lock-retain-until-date", date);
    // says what the checksum is of; some servers demand it
    headers.insert("x-amz-sdk-checksum-algorithm", HeaderValue::from_static("SHA256"));
    let options = options.clone().with_default_headers(headers);
    let client = |options: ClientOptions| -> object_store::Result<Arc<dyn ObjectStore>> {
        let builder = builder.clone().with_client_options(options);
        Ok(Arc::new(builder.with_checksum_algorithm(Checksum::SHA256).build()?))
    };
    let small = client(options.clone())?;
    let bulk = client(options.with_timeout(bulk_timeout))?;
    Ok(RetainingClients { policy, small, bulk })
}

/// What a restore needs and a backup writes.
pub(super) fn is_retained(key: &str) -> bool {
    key.starts_with("packs/") || key.starts_with("backups/")
}

impl Store {
    /// How what is written here is locked.
    pub fn retain_policy(&self) -> Option<RetainPolicy> {
        self.retaining.as_ref().map(|clients| clients.policy)
    }

    /// Whether objects can be locked here.
    pub async fn object_lock(&self) -> Result<ObjectLock> {
        let Some(client) = &self.lock else { return Ok(ObjectLock::Unsupported) };
        let context = || format!("ask whether {} has object lock", self.url());
        let root = Path::default();
        let answer = client.call(Method::GET, &root, Some("object-lock"), Bytes::new()).await;
        let answer = answer.map_err(|e| Fault::of(&e).into_error(context(), e))?;
        match answer.status {
            200..300 if answer.body.contains("<ObjectLockEnabled>Enabled<") => {
                Ok(ObjectLock::Enabled)
            }
            // "there is no such call": a server that knows no locks
            501 => Ok(ObjectLock::Disabled),
            401 | 403 | 408 | 429 | 500.. => {
                let e = answer.error();
                Err(Fault::of(&e)
                    .into_error(context(), e)
                    .hint("allow these credentials s3:GetBucketObjectLockConfiguration"))
            }
            404 if answer.body.contains("NoSuchBucket") => {
                let e = answer.error();
                Err(Fault::of(&e).into_error(context(), e))
            }
            // "there is no such configuration", and what servers say that do not know the question
            _ => Ok(ObjectLock::Disabled),
        }
    }

    /// Refuses a place in which nothing can be locked.
    pub async fn require_object_lock(&self) -> Result<()> {
        let (detail, hint) = match self.object_lock().await? {
            ObjectLock::Enabled => return Ok(()),
            ObjectLock::Disabled => (
                "the bucket has no object lock",
                "use a bucket that was created with object lock (and so with versions), or leave --retain-for and --retain-until out",
            ),
            ObjectLock::Unsupported => (
                "only S3 buckets with object lock can lock single objects",
                "set a retention on the bucket or container as a whole by the provider's own means, and leave --retain-for \
                 and --retain-until out",
            ),
        };
        let context = format!("lock what is written to {}", self.url());
        Err(Error::new(ErrorKind::Unsupported, context, detail).hint(hint))
    }

    /// What keeps an object from being deleted; `None` where there is none, nothing where the store knows no locks.
    pub(crate) async fn locks_of(&self, key: &str) -> Result<Option<Locks>> {
        let Some(client) = &self.lock else {
            return Ok(self.head(key).await?.map(|_| Locks::default()));
        };
        let path = self.path(key)?;
        let answer = client.call(Method::HEAD, &path, None, Bytes::new()).await;
        let failed = |e: StoreError| Fault::of(&e).into_error(self.context("look up", key), e);
        let answer = answer.map_err(failed)?;
        match answer.status {
            200..300 => Ok(Some(answer.locks())),
            404 => Ok(None),
            _ => Err(failed(answer.error())),
        }
    }

    /// Locks an object at least as `wanted` says. A retention that is longer or stronger stays so.
    ///
    /// Between the look and the lock somebody else may have locked it longer, and a store refuses to shorten that: then it is looked
    /// at again.
    pub(crate) async fn retain(&self, key: &str, wanted: Retention) -> Result<Retained> {
        let mut before = None;
        loop {
            let locks = match self.locks_of(key).await? {
                None => return Ok(Retained::Absent),
                Some(locks) => locks,
            };
            match self.retain_once(key, wanted, locks).await {
                Err(_) if before.is_none_or(|seen| seen != locks.retention) => {
                    before = Some(locks.retention);
                }
                done => return done,
            }
        }
    }

    async fn retain_once(&self, key: &str, wanted: Retention, locks: Locks) -> Result<Retained> {
        let wanted = match locks.retention {
            Some(there) if there.covers(&wanted) => return Ok(Retained::Before),
            Some(there) => wanted.or_longer(there),
            None => wanted,
        };
        let Some(client) = &self.lock else { return Err(self.no_locks(key)) };
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{}</Mode>\
             <RetainUntilDate>{}</RetainUntilDate></Retention>",
            wanted.mode.header(),
            wanted.date()
        );
        let path = self.path(key)?;
        let answer = client.call(Method::PUT, &path, Some("retention"), body.into()).await;
        let failed = |e: StoreError| {
            let fault = Fault::of(&e);
            let denied = fault.kind == ErrorKind::Denied;
            let e = fault.into_error(self.context("lock", key), e);
            match locks.retention {
                Some(there) if denied && there.mode < wanted.mode => e.hint(
                    "it is locked in mode governance, which many stores do not let become compliance: keep to one mode in a \
                     repository",
                ),
                _ if denied => {
                    e.hint("allow these credentials s3:PutObjectRetention and s3:GetObjectRetention")
                }
                _ => e,
            }
        };
        let answer = answer.map_err(failed)?;
        match answer.status {
            200..300 => Ok(Retained::Now),
            404 => Ok(Retained::Absent),
            _ => Err(failed(answer.error())),
        }
    }

    fn no_locks(&self, key: &str) -> Error {
        let detail = "this kind of store cannot lock single objects";
        Error::new(ErrorKind::Unsupported, self.context("lock", key), detail)
    }

    /// As [`delete_all`](Self::delete_all), but what the store keeps because of a lock is no error.
    pub(crate) async fn delete_unless_locked(&self, keys: Vec<String>) -> Result<Vec<Kept>> {
        if self.delete_many(&keys).await? {
            return Ok(Vec::new());
        }
        let mut kept = Vec::new();
        for key in keys {
            let Err(e) = self.try_delete(&key).await? else { continue };
            let fault = Fault::of(&e);
            let refused = fault.locked || fault.kind == ErrorKind::Denied;
            let locks = match (&self.lock, refused) {
                // who may not look may be told by the refusal
                (Some(_), true) => self.locks_of(&key).await.ok().flatten(),
                _ => None,
            };
            if fault.locked || locks.is_some_and(|locks| locks.hold_at(Utc::now())) {
                let until = locks.and_then(|locks| Some(locks.retention?.until));
                kept.push(Kept { key, until });
            } else {
                return Err(fault.into_error(self.context("delete", &key), e));
            }
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_retention_is_never_shortened_or_weakened() {
        let early = Retention::new(RetainMode::Compliance, at("2030-01-01T00:00:00.25Z"));
        assert_eq!(early.date(), "2030-01-01T00:00:01Z", "rounded up");
        let late = Retention::new(RetainMode::Governance, at("2031-01-01T00:00:00Z"));
        assert!(!early.covers(&late) && !late.covers(&early) && late.covers(&late));
        let both = Retention { mode: RetainMode::Compliance, until: late.until };
        assert_eq!((early.or_longer(late), late.or_longer(early)), (both, both));
        assert!(both.covers(&early) && both.covers(&late));
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
}
