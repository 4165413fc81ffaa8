//! One error type for both crates: what class of failure, where, and what to do next.
//!
//! The text reads `context: detail`, with the cause's own text behind it and, where there is one,
//! the next step at the end. The kind decides the exit code, so it must tell the world's faults
//! (`Corrupt`, `Unavailable`, …) from ours (`Bug`).

use std::fmt;

/// Class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What the caller asked for makes no sense or is refused.
    Usage,
    /// A named thing (bucket, directory, backup, device) does not exist.
    NotFound,
    /// A create-once object exists already, with other content.
    AlreadyExists,
    /// Bytes from a store, a device or a list are not what they must be.
    Corrupt,
    /// An object that something committed refers to is gone.
    Missing,
    /// No key that was given opens this repository.
    WrongKey,
    /// A newer version or an unknown feature.
    Unsupported,
    /// Credentials or permissions do not allow it.
    Denied,
    /// The store, device or network failed in a way that may pass.
    Unavailable,
    /// No room left.
    NoSpace,
    /// A block device or file failed to read or write.
    Device,
    /// A collector fenced this attempt.
    Fenced,
    /// The backup was forgotten.
    Forgotten,
    /// SIGINT or SIGTERM.
    Cancelled,
    /// The run ended well, but not as asked.
    Degraded,
    /// A bound that the user has set was reached.
    Limit,
    /// A mistake of this program.
    Bug,
}

/// A failure: kind, place, cause, next step.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    detail: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `context` is a verb phrase that names the thing and the place ("read chunk 17 of /dev/x"),
    /// `detail` says what is wrong.
    pub fn new(kind: ErrorKind, context: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind, context: context.into(), detail: detail.into(), hint: None, source: None }
    }

    /// A failure whose cause says what is wrong.
    pub fn caused(
        kind: ErrorKind,
        context: impl Into<String>,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::new(kind, context, "").caused_by(cause)
    }

    /// With the error that caused it; its text is part of ours.
    #[must_use]
    pub fn caused_by(mut self, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(e.into());
        self
    }

    /// With what the user should do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Without what the user should do next, where a caller knows better.
    #[must_use]
    pub fn without_hint(mut self) -> Self {
        self.hint = None;
        self
    }

    /// The same failure seen from a caller: `context` is put in front.
    #[must_use]
    pub fn within(mut self, context: impl Into<String>) -> Self {
        self.context = format!("{}: {}", context.into(), self.context);
        self
    }

    /// Several failures as one, of the first one's kind: the texts of all, then what to do, each
    /// thing once. `None` if there are none.
    pub(crate) fn of_all(context: impl Into<String>, mut all: Vec<Self>) -> Option<Self> {
        if all.len() < 2 {
            return all.pop();
        }
        let kind = all.first()?.kind;
        let (mut texts, mut hints) = (Vec::new(), Vec::new());
        for mut e in all {
            let hint = e.hint.take().filter(|hint| !hints.contains(hint));
            hints.extend(hint);
            texts.push(e.to_string());
        }
        let detail = format!("{} things failed: {}", texts.len(), texts.join("; and "));
        let e = Self::new(kind, context, detail);
        Some(if hints.is_empty() { e } else { e.hint(hints.join("; and ")) })
    }

    /// Class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the user should do next, if something is known.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.context)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        let mut cause = self.source.as_deref().map(|e| e as &dyn std::error::Error);
        let mut last = self.detail.clone();
        while let Some(e) = cause {
            let text = e.to_string();
            // libraries often repeat their cause's text in their own
            if !text.is_empty() && !last.contains(&text) {
                write!(f, ": {text}")?;
                last = text;
            }
            cause = e.source();
        }
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
