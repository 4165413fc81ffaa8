//! A backup as what lies below a volume that is written, an overlay's or that of a live restore:
//! its bytes, and what it is called in a journal.
//!
//! Must not: know what lies above it.

use crate::live::{CowSource, SourceFailure};
use crate::reading::view::BackupView;
use chunkstore::secrets::redact;
use chunkstore::{Error, ErrorKind, Manifest, RepositoryId};
use std::fmt::{Display, Write};
use std::ops::Range;
use std::sync::Arc;

/// A backup, as a header or a journal names it: lines of a word and a value. Two of them are equal
/// only for the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BelowIdentity(String);

impl BelowIdentity {
    pub(crate) fn of(repository: &RepositoryId, manifest: &Manifest, chunk_bytes: u32) -> Self {
        let root = manifest.map.root.as_ref();
        let root = root.map_or_else(|| "none".to_owned(), |page| page.id.to_hex());
        Self(String::new())
            .with("repository", &repository.to_hex())
            .with("volume", &manifest.volume)
            .with("backup", &manifest.backup_id)
            .with("attempt", &manifest.attempt)
            .with("map", &root)
            .with("size_bytes", &manifest.size_bytes)
            .with("chunk_bytes", &chunk_bytes)
    }

    /// Whether both name the same bytes. A repair writes the same backup down as another attempt.
    pub(crate) fn is_same_backup(&self, other: &Self) -> bool {
        fn lines(of: &BelowIdentity) -> impl Iterator<Item = &str> {
            of.0.lines().filter(|line| !line.starts_with("attempt "))
        }
        lines(self).eq(lines(other))
    }

    /// As somebody has it; only to be compared and shown.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(bytes).into_owned())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn from_text(text: String) -> Self {
        Self(text)
    }

    /// With one more line.
    pub(crate) fn with(mut self, word: &str, value: &dyn Display) -> Self {
        // a text takes all
        let _ = writeln!(self.0, "{word} {value}");
        self
    }

    /// The first value of a word; `?` if it has none.
    pub(crate) fn value(&self, word: &str) -> &str {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == word).map_or("?", |(_, value)| value)
    }

    /// For a person.
    pub(crate) fn shown(&self) -> String {
        format!(
            "backup {}@{} of repository {}, {} bytes",
            self.value("volume"),
            self.value("backup"),
            self.value("repository"),
            self.value("size_bytes")
        )
    }
}

/// A backup, as what lies below.
#[derive(Debug, Clone)]
pub(crate) struct ViewSource(pub(crate) Arc<BackupView>);

impl CowSource for ViewSource {
    fn expect(&self, range: &Range<u64>) {
        self.0.expect(range);
    }

    fn prefetch(&self, range: &Range<u64>) {
        self.0.prefetch(range.clone());
    }

    async fn together(&self, range: Range<u64>, most: u64) -> Range<u64> {
        Box::pin(self.0.together(range, most)).await
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> Result<Vec<Range<usize>>, SourceFailure> {
        Box::pin(self.0.read_expected(offset, buf)).await.map_err(|e| failure(&e))
    }
}

fn failure(e: &Error) -> SourceFailure {
    let text = redact(&e.to_string()).into_owned();
    match e.kind() {
        ErrorKind::Corrupt | ErrorKind::Missing => SourceFailure::Damaged(text),
        _ => SourceFailure::Away(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_attempt_has_the_same_bytes_and_nothing_else_has() {
        let of = |attempt: u32, map: &str, size_bytes: u64| {
            BelowIdentity::from_text("volume db\nbackup b1\n".to_owned())
                .with("attempt", &attempt)
                .with("map", &map)
                .with("size_bytes", &size_bytes)
        };
        assert!(of(0, "aa", 5).is_same_backup(&of(1, "aa", 5)));
        for other in [of(0, "ab", 5), of(0, "aa", 6), of(0, "aa", 5).with("more", &1)] {
            assert!(!of(0, "aa", 5).is_same_backup(&other), "{other:?}");
            assert!(!other.is_same_backup(&of(0, "aa", 5)), "{other:?}");
        }
    }

    #[test]
    fn what_lies_below_is_shown() {
        let text = "repository 00ff\nvolume db\nbackup b1\nsize_bytes 5\n".to_owned();
        let shown = BelowIdentity::from_text(text).shown();
        assert_eq!(shown, "backup db@b1 of repository 00ff, 5 bytes");
    }
}
