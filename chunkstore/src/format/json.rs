//! What the JSON bodies share: the head, references, and numbers that every JSON reader can hold.
//!
//! Strict about type, format and limits; members that are unknown are ignored, so that a later
//! program may add some.

use super::{bug, corrupt, unsupported};
use crate::error::Result;
use crate::format::location::check_location;
use crate::ids::{BackupId, PackId, PageId};
use crate::limits::FORMAT_VERSION;
use crate::units::{Location, PageRef};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

/// The two members that every JSON body starts with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) format: u64,
}

impl Head {
    pub(crate) fn of(kind: &str) -> Self {
        Self { kind: kind.to_owned(), format: u64::from(FORMAT_VERSION) }
    }

    /// Reads the head alone: its format must be known before anything else is looked at.
    pub(crate) fn read(what: &str, json: &[u8]) -> Result<Self> {
        let head: Self = parse(what, json)?;
        if head.format != u64::from(FORMAT_VERSION) {
            return Err(unsupported(what, format!("its JSON has format {}", head.format)));
        }
        Ok(head)
    }

    /// Reads the head and refuses another type.
    pub(crate) fn expect(what: &str, json: &[u8], kind: &str) -> Result<()> {
        let head = Self::read(what, json)?;
        if head.kind == kind {
            return Ok(());
        }
        Err(corrupt(what, format!("its type is {:?}, not {kind:?}", head.kind)))
    }
}

/// A body with its head in front.
#[derive(Debug, Serialize)]
struct WithHead<'a, T> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    body: &'a T,
}

pub(crate) fn parse<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|e| corrupt(what, "its JSON is not what it must be").caused_by(e))
}

pub(crate) fn write<T: Serialize>(what: &str, kind: &str, body: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(&WithHead { head: Head::of(kind), body })
        .map_err(|e| bug(what, "it cannot be written as JSON").caused_by(e))
}

/// Integers are below 2^63.
pub(crate) fn int63<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let v = u64::deserialize(d)?;
    if v < 1 << 63 {
        return Ok(v);
    }
    Err(serde::de::Error::custom(format!("{v} is not below 2^63")))
}

/// `REF` of the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefBody {
    id: PageId,
    pack: PackId,
    entry: u32,
    offset: u32,
    stored_len: u32,
    index: u16,
}

impl RefBody {
    pub(crate) fn of(r: &PageRef) -> Self {
        let Location { pack, entry, offset, stored_len, index } = r.location;
        Self { id: r.id, pack, entry, offset, stored_len, index }
    }

    /// A page is alone in its entry.
    pub(crate) fn page_ref(&self, what: &str) -> Result<PageRef> {
        let Self { id, pack, entry, offset, stored_len, index } = *self;
        let location = Location { pack, entry, offset, stored_len, index };
        check_location(what, &location)?;
        if index != 0 {
            return Err(corrupt(what, format!("a page has index {index} in its entry")));
        }
        Ok(PageRef { id, location })
    }
}

/// A backup id from JSON.
pub(crate) fn backup_id(what: &str, text: &str) -> Result<BackupId> {
    BackupId::new(text).map_err(|_| corrupt(what, format!("{text:?} is not a backup id")))
}
