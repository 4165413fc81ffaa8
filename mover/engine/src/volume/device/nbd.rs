//! Errors of NBD exports in the terms of a volume.

use chunkstore::{Error, ErrorKind, Result};
use std::path::Path;

/// Checks that a path which is an NBD address is a valid one, without connecting.
pub fn check_address(path: &Path) -> Result<()> {
    mover_nbd::NbdUri::of_path(path).map(drop).map_err(from_nbd)
}

/// The same failure as an error of a volume.
pub(super) fn from_nbd(e: mover_nbd::Error) -> Error {
    use mover_nbd::ErrorKind as Nbd;
    let parts = e.into_parts();
    let kind = match parts.kind {
        Nbd::Usage => ErrorKind::Usage,
        Nbd::NotFound => ErrorKind::NotFound,
        Nbd::Denied => ErrorKind::Denied,
        Nbd::Unsupported => ErrorKind::Unsupported,
        Nbd::Corrupt => ErrorKind::Corrupt,
        // another crate's enum may grow
        _ => ErrorKind::Unavailable,
    };
    let mut error = Error::new(kind, parts.context, parts.detail);
    if let Some(source) = parts.source {
        error = error.caused_by(source);
    }
    match parts.hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}
