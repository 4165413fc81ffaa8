//! Object lock: objects that nobody can delete or replace before a date, by S3's rules.
//!
//! On a bucket with object lock every object has versions, and a version with a *retention* can be
//! deleted by nobody until its date: in the mode `governance` by those alone who have a permission
//! for it, in `compliance` by no one at all. A date can be moved to later and never to earlier. A
//! plain delete or overwrite succeeds all the same: it puts a marker, or another version, on top of
//! the one that is locked. `docs/operations.md` says what a repository makes of that.
//!
//! A [`Store`] with a [`RetainPolicy`] writes packs and manifests with a retention in the very
//! request that creates them: its clients for these have the headers, which are signed. To ask for
//! a retention and to change one `store/lock/client.rs` has requests of its own.

mod client;
#[cfg(test)]
mod server;

pub(super) use client::LockClient;
#[cfg(test)]
pub(crate) use server::LockServer;

use super::Store;
use super::fault::Fault;
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Timelike, Utc};
use client::{Answer, generic};
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::path::Path;
use object_store::signer::{HeaderMap, HeaderValue, Method};
use object_store::{ClientOptions, Error as StoreError, ObjectStore};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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

/// The clients for what is written with a retention.
#[derive(Clone)]
pub(super) struct RetainingClients {
    pub(super) policy: RetainPolicy,
    pub(super) small: Arc<dyn ObjectStore>,
    pub(super) bulk: Arc<dyn ObjectStore>,
}

/// Clients as these builders make them, with the headers of a retention. S3 demands a checksum with
/// them.
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

/// With 400: how servers say that they do not know a call.
const UNKNOWN_CALL: [&str; 4] = [
    "<Code>NotImplemented<",
    "<Code>InvalidRequest<",
    "<Code>InvalidArgument<",
    "<Code>MethodNotAllowed<",
];

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
        let answer = self.ask(client, Method::GET, &root, Some("object-lock"), Bytes::new()).await;
        let answer = answer.map_err(|e| Fault::of(&e).into_error(context(), e))?;
        let says = |codes: &[&str]| codes.iter().any(|code| answer.body.contains(code));
        match answer.status {
            200..300 if says(&["<ObjectLockEnabled>Enabled<"]) => Ok(ObjectLock::Enabled),
            // a server that does not know the question lists the bucket, or says that there is no
            // such call
            200..300 | 405 | 501 => Ok(ObjectLock::Disabled),
            404 if !says(&["NoSuchBucket"]) => Ok(ObjectLock::Disabled),
            400 if says(&UNKNOWN_CALL) => Ok(ObjectLock::Disabled),
            _ => {
                let e = answer.error();
                let mut fault = Fault::of(&e);
                let may_pass = matches!(answer.status, 408 | 429 | 500..) || fault.broke;
                if fault.kind == ErrorKind::Unavailable && !may_pass {
                    // an answer to something else than was asked
                    fault.kind = ErrorKind::Unsupported;
                }
                let denied = answer.status == 403 && says(&["<Code>AccessDenied<"]);
                let e = fault.into_error(context(), e);
                let right = "allow these credentials s3:GetBucketObjectLockConfiguration";
                Err(if denied { e.hint(right) } else { e })
            }
        }
    }

    /// Refuses a place in which nothing can be locked.
    pub async fn require_object_lock(&self) -> Result<()> {
        let (detail, hint) = match self.object_lock().await? {
            ObjectLock::Enabled => return Ok(()),
            ObjectLock::Disabled => {
                ("the bucket has no object lock", Advice::UseObjectLock.words())
            }
            ObjectLock::Unsupported => (
                "only S3 buckets with object lock can lock single objects",
                Advice::RetainElsewhere.words(),
            ),
        };
        let context = format!("lock what is written to {}", self.url());
        Err(Error::new(ErrorKind::Unsupported, context, detail).hint(hint))
    }

    /// What keeps an object from being deleted; `None` where there is none, nothing where the store
    /// knows no locks.
    pub(crate) async fn locks_of(&self, key: &str) -> Result<Option<Locks>> {
        let Some(client) = &self.lock else {
            return Ok(self.head(key).await?.map(|_| Locks::default()));
        };
        let path = self.path(key)?;
        let answer = self.ask(client, Method::HEAD, &path, None, Bytes::new()).await;
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
    /// Between the look and the lock somebody else may have locked it longer, and a store refuses
    /// to shorten that: then it is looked at again.
    pub(crate) async fn retain(&self, key: &str, wanted: Retention) -> Result<Retained> {
        let mut before = None;
        loop {
            let locks = match self.locks_of(key).await? {
                None => return Ok(Retained::Absent),
                Some(locks) => locks,
            };
            match self.retain_once(key, wanted, locks).await {
                Err(e)
                    if e.kind() != ErrorKind::Unavailable
                        && before.is_none_or(|seen| seen != locks.retention) =>
                {
                    before = Some(locks.retention);
                }
                done => return done,
            }
        }
    }

    /// A request about a lock.
    async fn ask(
        &self,
        client: &LockClient,
        method: Method,
        path: &Path,
        query: Option<&str>,
        body: Bytes,
    ) -> object_store::Result<Answer> {
        self.moved();
        client.call(method, path, query, body).await
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
        let answer = self.ask(client, Method::PUT, &path, Some("retention"), body.into()).await;
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
}
