//! What each end of a call means for the run, and what its reader can do next.
//! `docs/changed-blocks.md` has the same table.

use super::super::collector::refused;
use super::MESSAGE_BYTES_MAX;
use super::SnapshotEndpoint;
use chunkstore::{Error, ErrorKind, Setting, secrets::redact};
use mover_tracker::{Code, Ended, Status};

/// Longest part of a server's own words in a message, characters.
const QUOTED_CHARS_MAX: usize = 300;

const LOG: &str = "look into the log of the driver and of its sidecar";

/// A call that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) class: Class,
    pub(super) error: Error,
}

/// What asking again is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// It may pass: ask again from the last end.
    Passing,
    /// It rarely passes: ask again a few times.
    Internal,
    /// The token is not good: read it again, once.
    Token,
    /// The service does not go on from there: ask from the start, once.
    OutOfRange,
    /// Asking again is of no use.
    Final,
}

impl Failure {
    pub(super) fn of(class: Class, error: Error) -> Self {
        Self { class, error }
    }
}

/// The service broke its protocol.
pub(super) fn broken(name: &str, what: String) -> Failure {
    let error = refused(ErrorKind::Corrupt, name, what)
        .hint("the tracker broke its protocol: tell whoever maintains its driver");
    Failure::of(Class::Final, error)
}

/// What an end means.
pub(super) fn judge(name: &str, endpoint: &SnapshotEndpoint, ended: Ended) -> Failure {
    let error = |kind, what: String| refused(kind, name, what);
    let unavailable = |what: String| error(ErrorKind::Unavailable, what);
    match ended {
        Ended::Status(status) => judge_status(name, endpoint, &status),
        Ended::Broken(what) => broken(name, what),
        Ended::Interrupted(what) => Failure::of(Class::Passing, unavailable(what).hint(LOG)),
        Ended::Unconnected(what) => Failure::of(
            Class::Passing,
            unavailable(what).hint(match endpoint {
                SnapshotEndpoint::Kubernetes { .. } => {
                    format!("check the address that {changes_server} names, and that the service runs", changes_server = Setting("changes-server"))
                }
                SnapshotEndpoint::Csi { .. } => {
                    format!("check the socket that {changes_server} names, and that the driver runs", changes_server = Setting("changes-server"))
                }
            }),
        ),
        Ended::Untrusted(words) => Failure::of(
            Class::Final,
            error(ErrorKind::Denied, format!("its certificate is not trusted: {words}")).hint(
                format!("give the CA file that signed it with {changes_ca_file}, and the name that stands in it with {changes_server_name}", changes_ca_file = Setting("changes-ca-file"), changes_server_name = Setting("changes-server-name")),
            ),
        ),
        // a proxy that cut it once may not do so again
        Ended::Damaged(what) => Failure::of(
            Class::Internal,
            error(ErrorKind::Corrupt, what)
                .hint("look at what is between here and the service, and into their logs"),
        ),
        Ended::TooLarge(bytes) => {
            let max = MESSAGE_BYTES_MAX >> 20;
            let what = format!("it sends a message of {bytes} bytes, and {max} MiB are taken");
            let hint = format!("ask for fewer ranges in a message, with {changes_page}", changes_page = Setting("changes-page"));
            Failure::of(Class::Final, error(ErrorKind::Unsupported, what).hint(hint))
        }
        Ended::Endless(what) => Failure::of(Class::Final, unavailable(what).hint(LOG)),
    }
}

/// A status that the server gave.
fn judge_status(name: &str, endpoint: &SnapshotEndpoint, status: &Status) -> Failure {
    let words: String = redact(status.message()).chars().take(QUOTED_CHARS_MAX).collect();
    let answer = format!("it answers {}: {words}", code_name(status.code()));
    let failed = |class, kind, hint: String| {
        Failure::of(class, refused(kind, name, answer.clone()).hint(hint))
    };
    let by_socket = matches!(endpoint, SnapshotEndpoint::Csi { .. });
    match status.code() {
        // the sidecar says so of snapshots that it does not find, too
        Code::Unavailable if !by_socket => failed(
            Class::Passing,
            ErrorKind::Unavailable,
            format!(
                "check that the VolumeSnapshot is there and ready, in {changes_namespace}, and look into the log of the sidecar",
                changes_namespace = Setting("changes-namespace")
            ),
        ),
        Code::Unavailable
        | Code::Aborted
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Cancelled => failed(Class::Passing, ErrorKind::Unavailable, LOG.into()),
        Code::Internal | Code::Unknown => failed(Class::Internal, ErrorKind::Unavailable, LOG.into()),
        Code::Unauthenticated | Code::PermissionDenied if by_socket => failed(
            Class::Final,
            ErrorKind::Denied,
            format!(
                "the driver wants other secrets for its storage: check {changes_secrets_file}",
                changes_secrets_file = Setting("changes-secrets-file")
            ),
        ),
        Code::Unauthenticated => failed(
            Class::Token,
            ErrorKind::Denied,
            "the token must be for the audience of the service, and not expired: look at the volume that projects it".into(),
        ),
        Code::PermissionDenied => failed(
            Class::Final,
            ErrorKind::Denied,
            "the service account needs `get` on volumesnapshots in the namespace of the snapshot".into(),
        ),
        Code::OutOfRange => failed(
            Class::OutOfRange,
            ErrorKind::Unsupported,
            "the driver does not start a list where it is asked to: tell whoever maintains it".into(),
        ),
        code => {
            let (kind, hint) = next_step(code);
            failed(Class::Final, kind, hint)
        }
    }
}

/// Of what stays as it is.
fn next_step(code: Code) -> (ErrorKind, String) {
    match code {
        Code::NotFound => (
            ErrorKind::NotFound,
            format!(
                "check the names in {changes_target} and {changes_base_id}, and keep the base snapshot until the next backup is made",
                changes_target = Setting("changes-target"),
                changes_base_id = Setting("changes-base-id")
            ),
        ),
        Code::FailedPrecondition => (
            ErrorKind::Unsupported,
            "switch change tracking on for this volume; a delta can begin at the first snapshot made since".into(),
        ),
        Code::InvalidArgument => (
            ErrorKind::Unsupported,
            format!(
                "check {changes_target} and {changes_base_id}: both name a snapshot of this volume as the driver wants it, and some drivers serve volumes in block mode only",
                changes_target = Setting("changes-target"),
                changes_base_id = Setting("changes-base-id")
            ),
        ),
        Code::Unimplemented => (
            ErrorKind::Unsupported,
            format!(
                "the driver tracks no changes, or {changes_server} names another service: leave it out, or correct it",
                changes_server = Setting("changes-server")
            ),
        ),
        Code::DataLoss => (
            ErrorKind::Unsupported,
            "the driver has lost what it knew of changes: look into its log, and make the next backup without a list".into(),
        ),
        _ => (ErrorKind::Unsupported, LOG.into()),
    }
}

/// As the protocol spells it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> [SnapshotEndpoint; 2] {
        let kubernetes = SnapshotEndpoint::Kubernetes {
            address: "h:1".into(),
            server_name: None,
            ca_file: "ca".into(),
            token_file: "t".into(),
            namespace: "n".into(),
        };
        [kubernetes, SnapshotEndpoint::Csi { socket: "/s".into(), secrets_file: None }]
    }

    #[test]
    fn each_code_has_its_meaning() {
        use Class::{Final, Internal, OutOfRange, Passing, Token};
        use ErrorKind::{Denied, NotFound, Unavailable, Unsupported};
        let meanings = [
            (Final, Unsupported),
            (Passing, Unavailable),
            (Internal, Unavailable),
            (Final, Unsupported),
            (Passing, Unavailable),
            (Final, NotFound),
            (Final, Unsupported),
            (Final, Denied),
            (Passing, Unavailable),
            (Final, Unsupported),
            (Passing, Unavailable),
            (OutOfRange, Unsupported),
            (Final, Unsupported),
            (Internal, Unavailable),
            (Passing, Unavailable),
            (Final, Unsupported),
            (Token, Denied),
        ];
        let [kubernetes, csi] = endpoints();
        for (n, meaning) in (0..).zip(meanings) {
            let code = Code::from_i32(n);
            let status = || Ended::Status(Status::new(code, "why"));
            let failure = judge("x", &kubernetes, status());
            assert_eq!((failure.class, failure.error.kind()), meaning, "{code:?}");
            assert!(failure.error.hint_text().is_some(), "{code:?}");
            // who comes by a socket has no service account
            let failure = judge("x", &csi, status());
            let hint = failure.error.hint_text().unwrap();
            assert!(!hint.contains("account") && !hint.contains("token"), "{code:?}: {hint}");
            assert!(meaning.0 == Token || failure.class == meaning.0, "{code:?}");
        }
    }

    #[test]
    fn our_own_limits_are_not_the_servers_words() {
        let [kubernetes, _] = endpoints();
        let said = judge("x", &kubernetes, Ended::TooLarge(1 << 30)).error.to_string();
        assert!(said.contains("`changes-page`") && !said.contains("it answers"), "{said}");
    }
}
