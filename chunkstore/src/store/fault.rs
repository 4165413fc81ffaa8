//! What an error of `object_store` means: class, plain words, next step, and whether a write may
//! have happened.
//!
//! `object_store` 0.14 keeps HTTP statuses and the stores' error codes in types of its own that
//! cannot be named from outside; their text is stable enough
//! (`status code: 403 Forbidden: <Error><Code>…`). The text itself is not shown as it is: it
//! repeats itself, holds raw XML, and its URLs may hold a signature.

mod trust;

use super::health::{GivenUp, Row};
use crate::error::{Error, ErrorKind};
use crate::secrets::redact;
use chrono::{DateTime, Utc};
use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as StdError;
use std::io;

/// Longest piece of a server's own words in a message.
const QUOTE_CHARS_MAX: usize = 300;

#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: ErrorKind,
    detail: String,
    hint: Option<&'static str>,
    /// Not the object is absent but the bucket, container or directory.
    pub(super) place_absent: bool,
    /// A write may have happened, or may still.
    pub(super) outcome_unknown: bool,
    /// The store did answer, or there is no network in between.
    pub(super) answered: bool,
    /// No connection could be made.
    pub(super) unreachable: bool,
    /// The store keeps the object because of a retention or a hold.
    pub(super) locked: bool,
    /// The answer ended early or is no answer, or the request did not arrive as it was sent: asked
    /// again it may be otherwise.
    pub(super) broke: bool,
    /// Nobody answers any more (`store/health.rs`): no other try is of any use.
    pub(super) given_up: bool,
    /// A refusal of which a clock that is off may be the reason.
    pub(super) may_be_clock: bool,
    /// What time it is there, if the answer's body says so.
    pub(super) server_time: Option<DateTime<Utc>>,
}

impl Fault {
    pub(super) fn of(e: &StoreError) -> Self {
        let chain = Chain::of(e);
        let fault = match e {
            StoreError::AlreadyExists { .. }
            | StoreError::Precondition { .. }
            | StoreError::NotModified { .. } => {
                Self::new(ErrorKind::AlreadyExists, "the object exists already")
            }
            StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
                Self::new(ErrorKind::Unsupported, e.to_string())
            }
            StoreError::InvalidPath { .. } | StoreError::UnknownConfigurationKey { .. } => {
                Self::new(ErrorKind::Usage, e.to_string())
            }
            _ => chain.fault(e),
        };
        let unreachable = chain.http == Some(HttpErrorKind::Connect);
        Self {
            answered: chain.http.is_none() && chain.given_up.is_none(),
            unreachable: unreachable || chain.given_up.is_some(),
            given_up: chain.given_up.is_some(),
            locked: chain.locked(),
            broke: chain.broke(),
            may_be_clock: chain.may_be_clock(),
            server_time: chain.server_time(),
            ..fault
        }
    }

    fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            hint: None,
            place_absent: false,
            outcome_unknown: false,
            answered: true,
            unreachable: false,
            locked: false,
            broke: false,
            given_up: false,
            may_be_clock: false,
            server_time: None,
        }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    fn place_absent(detail: impl Into<String>) -> Self {
        let fault = Self { place_absent: true, ..Self::new(ErrorKind::NotFound, detail) };
        fault.hint("create it first, or correct the repository's URL")
    }

    /// The fault of a write, where nothing but the place can be absent.
    pub(super) fn of_place(self) -> Self {
        if self.kind == ErrorKind::NotFound && !self.place_absent {
            return Self::place_absent("the bucket, container or directory does not exist");
        }
        self
    }

    pub(super) fn into_error(self, context: String, e: StoreError) -> Error {
        tracing::debug!(error = %e, context, "store request failed");
        let error = Error::new(self.kind, context, self.detail);
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// What can be read off the chain of causes.
struct Chain<'a> {
    http: Option<HttpErrorKind>,
    io: Option<&'a io::Error>,
    /// The innermost cause's own words.
    root: String,
    /// Of the whole chain; `object_store` repeats causes in its own text.
    text: String,
    status: Option<u16>,
    /// After which tries, if no other one is made.
    given_up: Option<Row>,
}

impl<'a> Chain<'a> {
    fn of(e: &'a StoreError) -> Self {
        let text = e.to_string();
        let mut chain = Self {
            http: None,
            io: None,
            root: String::new(),
            status: status_of(&text),
            text,
            given_up: None,
        };
        let mut next: Option<&(dyn StdError + 'static)> = Some(e);
        while let Some(cause) = next {
            if let Some(http) = cause.downcast_ref::<HttpError>() {
                chain.http = Some(http.kind());
            }
            if let Some(GivenUp { row, .. }) = cause.downcast_ref() {
                // what it wraps says more, or nothing where it was an answer
                (chain.given_up, chain.http) = (Some(*row), None);
            }
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                chain.io = Some(io);
            }
            chain.root = cause.to_string();
            next = cause.source();
        }
        chain
    }

    fn fault(&self, e: &StoreError) -> Fault {
        let known = self.of_a_token().or_else(|| self.by_code()).or_else(|| self.of_credentials());
        if let Some(fault) = known {
            return fault;
        }
        match e {
            StoreError::NotFound { .. } => {
                return Fault::new(ErrorKind::NotFound, "there is no such object");
            }
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                return self.denied();
            }
            _ => {}
        }
        if let Some(fault) = self.by_status() {
            return fault;
        }
        if self.http.is_none()
            && let Some(io) = self.io
        {
            return self.by_io(io);
        }
        self.by_http()
    }

    fn broke(&self) -> bool {
        if self.given_up.is_some() {
            return false;
        }
        // what `object_store` has tried again for its 40 s is not begun anew
        let exhausted = self.text.contains(" retries, max_retries: ");
        let transport = self.http.is_some_and(|kind| {
            !matches!(kind, HttpErrorKind::Connect | HttpErrorKind::Timeout) && !exhausted
        });
        transport
            || self.vanished()
            || self.mangled()
            || self.text.contains("invalid list response")
    }

    /// Whether a file was removed under its temporary name, before it got its own: by a collection
    /// that took it for one of a killed writer. Nothing was done.
    fn vanished(&self) -> bool {
        let gone = self.io.is_some_and(|e| e.kind() == io::ErrorKind::NotFound);
        gone && self.http.is_none() && self.text.contains("Unable to rename file")
    }

    /// Whether the store says that what it got is not what was sent: it compares the body with the
    /// digest in the signature, and its length with what was announced. Nothing was done then.
    fn mangled(&self) -> bool {
        const CODES: [&str; 8] = [
            "BadDigest",
            "InvalidDigest",
            "XAmzContentSHA256Mismatch",
            "XAmzContentChecksumMismatch",
            "Md5Mismatch",
            "Crc64Mismatch",
            "IncompleteBody",
            // S3's word for a body that does not come to its end; 400, which nobody else tries
            // again
            "RequestTimeout",
        ];
        let Some(code) = between(&self.text, "<Code>", "</Code>") else { return false };
        match self.status {
            Some(400) => CODES.contains(&code),
            // what Ceph says of a body that ends early
            Some(404) => code == "NoSuchKey" && self.text.contains("Error performing PUT "),
            _ => false,
        }
    }

    /// Whether a refusal speaks of a lock. S3's code for it is that of any missing permission; GCS
    /// and Azure have their own.
    fn locked(&self) -> bool {
        const WORDS: [&str; 6] =
            ["object lock", "objectlock", "legal hold", "retention", "immutab", "worm"];
        if !matches!(self.status, Some(400 | 403 | 405 | 409 | 412)) {
            return false;
        }
        let code = between(&self.text, "<Code>", "</Code>").unwrap_or_default();
        let message = between(&self.text, "<Message>", "</Message>").unwrap_or_default();
        let said = format!("{code} {message}").to_ascii_lowercase();
        // of a missing right AWS names user, role and bucket, in which any word may be
        if said.contains("not authorized to perform") {
            return false;
        }
        WORDS.iter().any(|word| said.contains(word))
    }

    /// Whether a clock that is off may be behind a refusal. The answer to a HEAD has no code.
    fn may_be_clock(&self) -> bool {
        const CODES: [&str; 6] = [
            "RequestTimeTooSkewed",
            "ExpiredToken",
            "ExpiredTokenException",
            "TokenRefreshRequired",
            "InvalidToken",
            "AuthenticationFailed",
        ];
        let code = between(&self.text, "<Code>", "</Code>");
        matches!(self.status, Some(400 | 401 | 403)) && code.is_none_or(|c| CODES.contains(&c))
    }

    fn server_time(&self) -> Option<DateTime<Utc>> {
        let time = between(&self.text, "<ServerTime>", "</ServerTime>")?;
        Some(DateTime::parse_from_rfc3339(time).ok()?.to_utc())
    }

    /// By the error code that the store wrote into its answer.
    fn by_code(&self) -> Option<Fault> {
        let code = between(&self.text, "<Code>", "</Code>")?;
        let said = self.said();
        if self.mangled() {
            let detail = format!("it did not arrive as it was sent ({said})");
            let fault = Fault::new(ErrorKind::Unavailable, detail).hint(
                "run it again; if it stays so, look for what changes data on its way to the store",
            );
            return Some(Fault { outcome_unknown: true, ..fault });
        }
        let denied = |hint| Some(Fault::new(ErrorKind::Denied, said.clone()).hint(hint));
        match code {
            "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" => {
                Some(Fault::place_absent(format!("the bucket does not exist ({said})")))
            }
            "SignatureDoesNotMatch" => denied(
                "the secret key does not fit the key id: check AWS_SECRET_ACCESS_KEY (and AWS_REGION)",
            ),
            "InvalidAccessKeyId" => {
                denied("the store does not know this key: check AWS_ACCESS_KEY_ID")
            }
            "AuthenticationFailed" => denied("check the account's name and key"),
            "ExpiredToken" | "TokenRefreshRequired" => denied(
                "these temporary credentials have run out: get new ones (AWS_SESSION_TOKEN belongs to its two keys), then run \
                 the same command again",
            ),
            "InvalidToken" => denied(
                "the store does not know this AWS_SESSION_TOKEN: get new temporary credentials, then run the same command \
                 again",
            ),
            "RequestTimeTooSkewed" => {
                denied("compare this machine's clock (a pod has its node's) with the store's")
            }
            "QuotaExceeded"
            | "XMinioAdminBucketQuotaExceeded"
            | "XMinioStorageFull"
            | "InsufficientCapacity"
            | "AccountLimitExceeded" => Some(
                Fault::new(ErrorKind::NoSpace, said).hint("raise the quota or free space there"),
            ),
            "AuthorizationHeaderMalformed"
            | "PermanentRedirect"
            | "IllegalLocationConstraintException" => Some(
                Fault::new(ErrorKind::Usage, said)
                    .hint("the bucket is in another region: set AWS_REGION (and AWS_ENDPOINT)"),
            ),
            "InvalidBucketName" => {
                Some(Fault::new(ErrorKind::Usage, said).hint("correct the repository's URL"))
            }
            "AccessDenied"
            | "AllAccessDisabled"
            | "AccountProblem"
            | "AuthorizationFailure"
            | "AuthorizationPermissionMismatch" => Some(self.denied()),
            _ => None,
        }
    }

    fn by_status(&self) -> Option<Fault> {
        match self.status? {
            401 | 403 => Some(self.denied()),
            404 => Some(Fault::new(ErrorKind::NotFound, "there is no such object")),
            409 => Some(Fault::new(ErrorKind::AlreadyExists, self.said())),
            301 | 307 | 308 => Some(
                Fault::new(ErrorKind::Usage, "the store points to another place")
                    .hint("the bucket is in another region: set AWS_REGION (and AWS_ENDPOINT)"),
            ),
            507 => {
                Some(Fault::new(ErrorKind::NoSpace, self.said()).hint("free space in the store"))
            }
            // a refusal of the last try may follow a try whose answer was lost, but then the next
            // run finds the object
            status @ 400..500 if status != 408 && status != 429 => {
                Some(Fault::new(ErrorKind::Unavailable, self.said()))
            }
            _ => Some(Fault {
                outcome_unknown: true,
                ..Fault::new(ErrorKind::Unavailable, self.said()).hint("try again later")
            }),
        }
    }

    fn denied(&self) -> Fault {
        Fault::new(ErrorKind::Denied, self.said()).hint(
            "allow these credentials to read, write and list (without the right to list, absent objects look denied)",
        )
    }

    /// No answer can be lost on the way from a file system: the outcome is known.
    fn by_io(&self, e: &io::Error) -> Fault {
        use io::ErrorKind as Io;
        // creating an object is a link(2) there; `object_store` calls it a rename
        let linking = self.text.contains("Unable to rename file");
        if self.vanished() {
            let detail = "its temporary file was removed before it had its name";
            let fault = Fault::new(ErrorKind::Unavailable, detail).hint("run it again");
            return Fault { outcome_unknown: true, ..fault };
        }
        match e.kind() {
            Io::PermissionDenied | Io::Unsupported if linking => Fault::new(
                ErrorKind::Denied,
                e.to_string(),
            )
            .hint("use a file system with hard links, and give this user the right to write there"),
            Io::PermissionDenied => Fault::new(ErrorKind::Denied, e.to_string())
                .hint("give this user the right to read and write there"),
            Io::ReadOnlyFilesystem => Fault::new(ErrorKind::Denied, e.to_string()),
            Io::StorageFull | Io::QuotaExceeded => {
                Fault::new(ErrorKind::NoSpace, e.to_string()).hint("free space there")
            }
            Io::NotFound => Fault::new(ErrorKind::NotFound, e.to_string()),
            Io::AlreadyExists => Fault::new(ErrorKind::AlreadyExists, e.to_string()),
            Io::NotADirectory => Fault::place_absent(e.to_string()),
            _ => Fault::new(ErrorKind::Unavailable, e.to_string()),
        }
    }

    fn by_http(&self) -> Fault {
        if self.text.contains("redirect without LOCATION") {
            return Fault::new(ErrorKind::Usage, "the store points to another place")
                .hint("the bucket is in another region: set AWS_REGION (and AWS_ENDPOINT)");
        }
        if self.root.contains("scheme is not allowed") {
            return Fault::new(ErrorKind::Usage, "the endpoint is plain http")
                .hint("set AWS_ALLOW_HTTP=true if that is meant");
        }
        if let Some(fault) = self.untrusted() {
            return fault;
        }
        let row = self.given_up.map(|row| format!(" ({row})")).unwrap_or_default();
        let (detail, hint) = match self.http {
            Some(HttpErrorKind::Connect) => {
                (format!("no connection: {}{row}", self.root), "check the endpoint and the network")
            }
            Some(HttpErrorKind::Timeout) => {
                (format!("no answer in time{row}"), "check the network, then run it again")
            }
            Some(_) => (format!("the connection broke: {}", self.root), "run it again"),
            None => (quote(&self.root), "run it again"),
        };
        let fault = Fault::new(ErrorKind::Unavailable, detail).hint(hint);
        Fault { outcome_unknown: true, ..fault }
    }

    /// The store's own words, short.
    fn said(&self) -> String {
        let code = between(&self.text, "<Code>", "</Code>");
        let message = between(&self.text, "<Message>", "</Message>");
        let request = between(&self.text, "<RequestId>", "</RequestId>");
        let mut said = match (code, message) {
            (Some(code), Some(message)) if !message.is_empty() => format!("{code}: {message}"),
            (Some(code), _) => code.to_owned(),
            _ => match self.text.split_once("status code: ") {
                Some((_, status)) => status.trim_end_matches([':', ' ']).to_owned(),
                None => self.root.clone(),
            },
        };
        if let Some(row) = self.given_up {
            said.push_str(&format!(" ({row})"));
        }
        if let Some(request) = request {
            said.push_str(&format!(" (request {request})"));
        }
        quote(&said)
    }
}

/// The HTTP status in an error's text.
fn status_of(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    Some(rest.split_once(close)?.0)
}

/// A stranger's words on one line, of bounded length, without what is secret in them.
fn quote(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let text = redact(text);
    let mut quoted: String = text.chars().take(QUOTE_CHARS_MAX).map(clean).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    quoted
}
