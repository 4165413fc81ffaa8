//! What each status of the service means for the run. `docs/changed-blocks.md` has the same table.

use super::code_error;
use chunkstore::{Error, ErrorKind};
use std::error::Error as _;
use tonic::{Code, Status};

/// A call that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may pass: ask again from the last end.
    Passing(Error),
    /// It rarely passes: ask again a few times.
    Internal(Error),
    /// The token is not good: read it again, once.
    Token(Error),
    /// The service does not go on from there: ask from the start, once.
    OutOfRange(Error),
    /// Asking again is of no use.
    Final(Error),
}

pub(super) fn judge(name: &str, status: &Status) -> Failure {
    let error = |kind| code_error(name, kind, status);
    // a status that no server sent, but the connection's own failure
    if status.source().is_some() {
        return Failure::Passing(error(ErrorKind::Unavailable));
    }
    match status.code() {
        Code::Unavailable
        | Code::Aborted
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Cancelled => Failure::Passing(error(ErrorKind::Unavailable)),
        Code::Internal | Code::Unknown => Failure::Internal(error(ErrorKind::Unavailable)),
        Code::Unauthenticated => Failure::Token(error(ErrorKind::Denied).hint(
            "the token must be for the audience of the service, and not expired: look at the volume that projects it",
        )),
        Code::PermissionDenied => Failure::Final(error(ErrorKind::Denied).hint(
            "the service account needs `get` on volumesnapshots in the namespace of the snapshot",
        )),
        Code::OutOfRange => Failure::OutOfRange(error(ErrorKind::Unsupported)),
        Code::NotFound => Failure::Final(error(ErrorKind::NotFound)),
        // the driver: change tracking is off, or it has none
        Code::FailedPrecondition | Code::Unimplemented => {
            Failure::Final(error(ErrorKind::Unsupported))
        }
        _ => Failure::Final(error(ErrorKind::Unsupported)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_meaning() {
        let word = |code| match judge("x", &Status::new(code, "why")) {
            Failure::Passing(_) => "passing",
            Failure::Internal(_) => "internal",
            Failure::Token(_) => "token",
            Failure::OutOfRange(_) => "range",
            Failure::Final(e) => match e.kind() {
                ErrorKind::NotFound => "not found",
                ErrorKind::Denied => "denied",
                _ => "final",
            },
        };
        let meanings = [
            "final",
            "passing",
            "internal",
            "final",
            "passing",
            "not found",
            "final",
            "denied",
            "passing",
            "final",
            "passing",
            "range",
            "final",
            "internal",
            "passing",
            "final",
            "token",
        ];
        for (n, meaning) in meanings.into_iter().enumerate() {
            let code = Code::from_i32(i32::try_from(n).unwrap());
            assert_eq!(word(code), meaning, "{code:?}");
        }
    }
}
