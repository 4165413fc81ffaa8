//! Features of a repository: what it needs of programs, found by a listing of `features/`.
//!
//! A feature is added once and stays. So one that was seen is there, and one that was not may have
//! been added since. Who reads looks when it opens the repository. Who writes looks once its lease
//! is there, and again before its commit; a collector before its verdict, after the mark that the
//! verdict rests on. `docs/protocol.md` says why that is enough.
//!
//! The key of an object says all that a program must know to go on. Bodies are read only of
//! features that are unknown here, for the words.

use super::{RECORD_OVERHEAD, Repository};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::corrupt;
use crate::format::feature::{Feature, FeatureName, FeatureNeed};
use crate::format::names::FEATURES_PREFIX;
use crate::limits::SMALL_RECORD_BYTES_MAX;
use crate::store::{Created, Listed};
use bytes::Bytes;
use chrono::Utc;

/// A feature that a program knows, as it is written into repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFeature {
    /// Its name.
    pub name: &'static str,
    /// For which a program must know it.
    pub need: FeatureNeed,
    /// A sentence about it, for whoever does not know it.
    pub about: &'static str,
    /// The first version that knows it.
    pub since: &'static str,
}

/// Backups may have attachments. A collector that does not know it would take them for garbage.
pub const ATTACHMENTS: KnownFeature = KnownFeature {
    name: "attachments",
    need: FeatureNeed::Write,
    about: "backups have named blobs beside their volume",
    since: "mover 0.1.0",
};

/// The features that this version knows; format version 1 has all else.
pub const KNOWN_FEATURES: &[KnownFeature] = &[ATTACHMENTS];

/// How an attempt to add a feature ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddedFeature {
    /// It is there from now on.
    Now(Feature),
    /// It was there.
    Before(Feature),
}

impl KnownFeature {
    pub(crate) fn full_name(&self) -> Result<FeatureName> {
        FeatureName::new(self.need, self.name)
    }
}

impl Repository {
    /// The features that this process knows.
    pub fn known_features(&self) -> &'static [KnownFeature] {
        self.known
    }

    /// All features that were added, by their names. What cannot be read is in the second list.
    pub async fn features(&self) -> Result<(Vec<Feature>, Vec<Error>)> {
        let (mut features, mut problems) = (Vec::new(), Vec::new());
        for listed in self.store().list(FEATURES_PREFIX).await? {
            let read = match FeatureName::parse_key(&listed.key) {
                Ok(name) => self.read_feature(&name).await,
                Err(e) => Err(e),
            };
            match read {
                Ok(feature) => features.push(feature),
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    problems.push(e);
                }
                Err(e) => return Err(e),
            }
        }
        features.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((features, problems))
    }

    /// Whether the repository has a feature that this process knows and may therefore use. Only
    /// who has the keys can add one.
    pub async fn has_feature(&self, name: &str) -> Result<bool> {
        let Some(known) = self.known.iter().find(|known| known.name == name) else {
            return Ok(false);
        };
        let name = known.full_name()?;
        if self.store().head(&name.key()).await?.is_none() {
            return Ok(false);
        }
        self.read_feature(&name).await.map(|_| true)
    }

    /// Refuses to store attachments where the repository has not got the feature. To be asked before
    /// anything is moved, and before the manifest that names them. `doing`: "back up into".
    ///
    /// Errors: `Usage`, and what the store says.
    pub async fn refuse_without_attachments(&self, doing: &str) -> Result<()> {
        if self.has_feature(ATTACHMENTS.name).await? {
            return Ok(());
        }
        let what = "the repository has not got the feature \"attachments\"";
        Err(Error::new(ErrorKind::Usage, self.context(doing), what)
            .hint(Advice::AddAttachments.words()))
    }

    /// Adds a feature, for good: programs that do not know it will refuse this repository. Errors:
    /// `Usage` if it is unknown here; as [`refuse_unknown_to_write`](Self::refuse_unknown_to_write).
    pub async fn add_feature(&self, name: &str, tool: &str) -> Result<AddedFeature> {
        let context = || format!("add feature {name:?} to {}", self.store().url());
        let Some(known) = self.known.iter().find(|known| known.name == name) else {
            let names: Vec<&str> = self.known.iter().map(|known| known.name).collect();
            let detail = if names.is_empty() {
                "this version knows no features that could be added".to_owned()
            } else {
                format!("this version knows {}", names.join(", "))
            };
            return Err(Error::new(ErrorKind::Usage, context(), detail));
        };
        self.refuse_unknown_to_write("add a feature to").await?;
        let feature = Feature {
            name: known.full_name()?,
            about: known.about.into(),
            since: known.since.into(),
            added: Utc::now(),
            tool: tool.into(),
        };
        let key = feature.name.key();
        let bytes = feature.encode(self.keys(), self.id(), &key)?;
        Ok(match self.store().create(&key, bytes.into()).await? {
            Created::Now | Created::Ours => AddedFeature::Now(feature),
            Created::Taken(bytes) => {
                AddedFeature::Before(Feature::decode(self.keys(), self.id(), &key, &bytes)?)
            }
        })
    }

    /// Refuses to change anything where a feature is needed for it that is unknown here, and where
    /// `features/` holds what is none. To be asked when a lease is there, and again before what
    /// cannot be taken back. `doing`: "back up into".
    ///
    /// Errors: `Unsupported` (a newer version is needed), `Corrupt`.
    pub async fn refuse_unknown_to_write(&self, doing: &str) -> Result<()> {
        let listed = self.store().list(FEATURES_PREFIX).await?;
        self.refuse_unknown(FeatureNeed::Write, doing, listed).await
    }

    /// The same for reading, of the features that were listed.
    pub(super) async fn refuse_unknown_to_read(&self, listed: Vec<Listed>) -> Result<()> {
        self.refuse_unknown(FeatureNeed::Read, "open repository", listed).await
    }

    /// `need`: features that are needed for less do not matter here.
    async fn refuse_unknown(
        &self,
        need: FeatureNeed,
        doing: &str,
        listed: Vec<Listed>,
    ) -> Result<()> {
        let mut unknown = Vec::new();
        for listed in listed {
            match FeatureName::parse_key(&listed.key) {
                Ok(name) if name.need() >= need && !self.knows(&name) => unknown.push(name),
                // it is needed for less, or known
                Ok(_) => {}
                // a later version may name others otherwise: who only reads leaves that alone
                Err(_) if need == FeatureNeed::Read && !is_to_read(&listed.key) => {}
                Err(e) => return Err(self.strange(&listed.key, doing, e)),
            }
        }
        let mut words = Vec::new();
        let mut since = Vec::new();
        for name in &unknown {
            match self.read_feature(name).await {
                Ok(Feature { about, since: version, .. }) => {
                    words.push(format!("{} ({about})", name.name()));
                    since.push(version);
                }
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    return Err(self.strange(&name.key(), doing, e));
                }
                // a later version describes it in a way that is unknown here, too
                Err(e) if e.kind() == ErrorKind::Unsupported => words.push(name.name().to_owned()),
                Err(e) => return Err(e),
            }
        }
        if words.is_empty() {
            return Ok(());
        }
        let (to, s) = match need {
            FeatureNeed::Read => ("read", "reads"),
            FeatureNeed::Write => ("write to", "writes to"),
        };
        let detail = format!(
            "this program does not know what must be known to {to} it: {}",
            words.join(", ")
        );
        since.sort();
        let newest = since.last().map_or("a newer version".to_owned(), |v| format!("{v} or newer"));
        let reading = match need {
            FeatureNeed::Read => "",
            FeatureNeed::Write => "; this one can still restore, verify and check",
        };
        Err(Error::new(ErrorKind::Unsupported, self.context(doing), detail)
            .hint(format!("upgrade what {s} it to {newest}{reading}")))
    }

    fn knows(&self, name: &FeatureName) -> bool {
        self.known.iter().any(|known| (known.name, known.need) == (name.name(), name.need()))
    }

    fn context(&self, doing: &str) -> String {
        format!("{doing} {}", self.store().url())
    }

    fn strange(&self, key: &str, doing: &str, e: Error) -> Error {
        e.within(self.context(doing)).hint(format!(
            "bring {key} back from a copy; if nobody has added such a feature, somebody has put it there: delete it"
        ))
    }

    async fn read_feature(&self, name: &FeatureName) -> Result<Feature> {
        let key = name.key();
        let bytes_max = u64::from(SMALL_RECORD_BYTES_MAX) + RECORD_OVERHEAD;
        let open = |bytes: &Bytes| Feature::decode(self.keys(), self.id(), &key, bytes);
        match self.store().open_opt(&key, bytes_max, open).await? {
            Some(feature) => Ok(feature),
            None => Err(corrupt(&key, "it was listed and is gone, and features are never removed")),
        }
    }
}

/// Whether it lies where only what is needed to read may lie.
fn is_to_read(key: &str) -> bool {
    let rest = key.strip_prefix(FEATURES_PREFIX).and_then(|r| r.strip_prefix("read"));
    rest.is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
