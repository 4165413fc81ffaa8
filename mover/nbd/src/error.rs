//! Errors of the client: the class of a failure, the export that it concerns, and the next step.

use std::{fmt, io};

/// Class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address is malformed.
    Usage,
    /// The server or the export does not exist.
    NotFound,
    /// The server or the socket's permissions refuse the client.
    Denied,
    /// The server cannot be reached, or shuts down.
    Unavailable,
    /// The server or this client lacks something that the other one needs.
    Unsupported,
    /// The server's answers break the protocol.
    Corrupt,
}

/// A failure to name or to open an export. Transfers fail with [`io::Error`].
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    detail: String,
    hint: Option<String>,
    source: Option<io::Error>,
}

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The parts of an [`Error`].
#[derive(Debug)]
pub struct Parts {
    /// Class of the failure.
    pub kind: ErrorKind,
    /// A verb phrase that names the export.
    pub context: String,
    /// The fault; empty where the cause says all.
    pub detail: String,
    /// The next step.
    pub hint: Option<String>,
    /// The error below it.
    pub source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        context: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { kind, context: context.into(), detail: detail.into(), hint: None, source: None }
    }

    pub(crate) fn caused_by(mut self, e: io::Error) -> Self {
        self.source = Some(e);
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The next step, if one is known.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Takes the error apart, for a caller with an error type of its own.
    pub fn into_parts(self) -> Parts {
        let Self { kind, context, detail, hint, source } = self;
        Parts { kind, context, detail, hint, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(e) = &self.source {
            write!(f, ": {e}")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
