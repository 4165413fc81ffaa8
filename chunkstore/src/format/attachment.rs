//! Attachments in a manifest: `docs/format.md`, section 9.
//!
//! An attachment is bytes under a name, stored as the bytes of a volume are: chunks in packs, and a
//! map that leads to them. The manifest has the root of that map, so whoever follows the map of the
//! volume follows these with it.

use super::corrupt;
use super::json::int63;
use super::manifest::{MapBody, MapRoot};
use crate::error::Result;
use crate::ids::AttachmentName;
use crate::limits::{ATTACHMENT_BYTES_MAX, ATTACHMENTS_MAX, MAP_DEPTH_MAX};
use serde::{Deserialize, Serialize};

/// A named blob of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its name, once in a backup.
    pub name: AttachmentName,
    /// Its size; it may be 0.
    pub size_bytes: u64,
    /// Root of its map; of an empty one, and of one that is all zero, there is no page.
    pub map: MapRoot,
}

/// The map of an attachment of no bytes.
pub const EMPTY_MAP: MapRoot = MapRoot { depth: 1, root: None };

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AttachmentBody {
    name: String,
    #[serde(deserialize_with = "int63")]
    size_bytes: u64,
    map: MapBody,
}

impl AttachmentBody {
    pub(super) fn of(attachment: &Attachment) -> Self {
        let Attachment { name, size_bytes, map } = attachment;
        Self { name: name.as_str().into(), size_bytes: *size_bytes, map: MapBody::of(map) }
    }

    pub(super) fn attachment(&self, what: &str) -> Result<Attachment> {
        let Self { name, size_bytes, map } = self;
        let name = AttachmentName::new(name.as_str())
            .map_err(|_| corrupt(what, format!("{name:?} is not a name of an attachment")))?;
        Ok(Attachment { name, size_bytes: *size_bytes, map: map.root(what)? })
    }
}

/// What is wrong with the attachments of a backup, if something is.
pub(super) fn problem(attachments: &[Attachment]) -> Option<String> {
    if attachments.len() > ATTACHMENTS_MAX as usize {
        let count = attachments.len();
        return Some(format!("{count} attachments are more than {ATTACHMENTS_MAX}"));
    }
    if let Some(pair) = attachments.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        return Some(format!("attachment {} comes after {}", pair[1].name, pair[0].name));
    }
    attachments.iter().find_map(|Attachment { name, size_bytes, map }| {
        if *size_bytes > ATTACHMENT_BYTES_MAX {
            Some(format!("attachment {name} is longer than {ATTACHMENT_BYTES_MAX} bytes"))
        } else if !(1..=MAP_DEPTH_MAX).contains(&map.depth) {
            Some(format!("a map of {} levels is not possible for attachment {name}", map.depth))
        } else if *size_bytes == 0 && *map != EMPTY_MAP {
            Some(format!("attachment {name} has no bytes, and a map"))
        } else {
            None
        }
    })
}
