//! Features: what a program must know to read a repository, or to write to it.
//! `docs/format.md`, section 13.
//!
//! The object's key says all that a program needs to tell whether it may go on. Its body is for
//! whoever does not know the feature: which version does, and what it is about.

use super::json::{self, Head};
use super::names::FEATURES_PREFIX;
use super::record::{RecordKind, metadata_record};
use super::{bug, corrupt};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FEATURE_NAME_BYTES_MAX, MAGIC_FEATURE, SMALL_RECORD_BYTES_MAX};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::fmt;

const TYPE: &str = "feature";

/// For which a program must know a feature. Who writes reads too, so the greater has the lesser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureNeed {
    /// Only to change anything. Whoever reads may go on without it.
    Write,
    /// To read any backup, and so for everything.
    Read,
}

impl FeatureNeed {
    /// As it stands in object keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

impl fmt::Display for FeatureNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What tells a feature from all others: its need and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeatureName {
    need: FeatureNeed,
    name: String,
}

impl FeatureName {
    /// A name has 1 to `FEATURE_NAME_BYTES_MAX` bytes of `a-z`, `0-9` and `-`, and begins with a
    /// letter.
    pub fn new(need: FeatureNeed, name: &str) -> Result<Self> {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let good = name.len() <= FEATURE_NAME_BYTES_MAX as usize
            && name.bytes().all(known)
            && name.starts_with(|c: char| c.is_ascii_lowercase());
        if good {
            return Ok(Self { need, name: name.to_owned() });
        }
        let detail = format!("{name:?} is no name of a feature");
        Err(Error::new(ErrorKind::Usage, "name a feature", detail)
            .hint("lowercase letters, digits and hyphens, such as attachments"))
    }

    /// For which it is needed.
    pub fn need(&self) -> FeatureNeed {
        self.need
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Key of its object.
    pub fn key(&self) -> String {
        format!("{FEATURES_PREFIX}{}/{}", self.need, self.name)
    }

    /// The inverse of [`key`](Self::key).
    pub fn parse_key(key: &str) -> Result<Self> {
        let parsed = key.strip_prefix(FEATURES_PREFIX).and_then(|rest| {
            let (need, name) = rest.split_once('/')?;
            let needs = [FeatureNeed::Write, FeatureNeed::Read];
            let need = needs.into_iter().find(|n| n.as_str() == need)?;
            Self::new(need, name).ok()
        });
        parsed.ok_or_else(|| corrupt(format!("object key {key:?}"), "it is not one of a feature"))
    }
}

/// A feature that was added to a repository. Its object is created once and never removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Which one.
    pub name: FeatureName,
    /// A sentence about it, for whoever does not know it.
    pub about: String,
    /// The first version that knows it.
    pub since: String,
    /// When it was added.
    pub added: DateTime<Utc>,
    /// Program that added it.
    pub tool: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    name: String,
    needed_to: FeatureNeed,
    about: String,
    since: String,
    added: DateTime<Utc>,
    tool: String,
}

impl Feature {
    const KIND: RecordKind = RecordKind {
        name: "feature",
        magic: MAGIC_FEATURE,
        body_bytes_max: SMALL_RECORD_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        if self.name.key() != object_key {
            return Err(bug(object_key, "a feature of another key"));
        }
        let body = Body {
            name: self.name.name.clone(),
            needed_to: self.name.need,
            about: self.about.clone(),
            since: self.since.clone(),
            added: self.added,
            tool: self.tool.clone(),
        };
        json::write(object_key, TYPE, &body)
    }

    fn from_body(object_key: &str, json: &[u8]) -> Result<Self> {
        let what = format!("feature {object_key}");
        let name = FeatureName::parse_key(object_key)?;
        Head::expect(&what, json, TYPE)?;
        let body: Body = json::parse(&what, json)?;
        if (body.needed_to, body.name.as_str()) != (name.need, name.name.as_str()) {
            return Err(corrupt(&what, "it is of another feature than its object key says"));
        }
        Ok(Self { name, about: body.about, since: body.since, added: body.added, tool: body.tool })
    }
}

metadata_record!(Feature);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::test_kit::{REPOSITORY, exercise, time};

    fn feature() -> Feature {
        Feature {
            name: FeatureName::new(FeatureNeed::Write, "attachments").unwrap(),
            about: "backups have attachments".into(),
            since: "mover 2.0".into(),
            added: time(7),
            tool: "mover 2.0".into(),
        }
    }

    #[test]
    fn a_feature_is_stored_at_its_key_only() {
        let feature = feature();
        let key = feature.name.key();
        assert_eq!(key, "features/write/attachments");
        assert_eq!(FeatureName::parse_key(&key).unwrap(), feature.name);
        exercise(&feature, &key, |keys| feature.encode(keys, &REPOSITORY, &key), Feature::decode);
        let json = feature.to_body(&key).unwrap();
        assert!(Feature::from_body(&key, &json).is_ok());
        assert!(Feature::from_body("features/read/attachments", &json).is_err());
        assert!(feature.to_body("features/read/attachments").is_err());
    }

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "A", "a_b", "-a", "1a", "a b", "a/b", &"a".repeat(64)] {
            assert!(FeatureName::new(FeatureNeed::Read, name).is_err(), "{name:?}");
        }
        assert!(FeatureName::new(FeatureNeed::Read, &"a".repeat(63)).is_ok());
        for key in
            ["features/a", "features/reads/a", "features/read/a/b", "features/read/", "read/a"]
        {
            assert!(FeatureName::parse_key(key).is_err(), "{key}");
        }
    }
}
