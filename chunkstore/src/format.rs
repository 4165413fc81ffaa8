//! The stored objects as pure functions over bytes: `docs/format.md` is the contract, byte for
//! byte.
//!
//! Nothing here does I/O. Every decoder takes bytes from an untrusted store: it checks each length
//! against the limits before it allocates, uses checked arithmetic, refuses what it does not know
//! and what is left over, and never panics. Every encoder writes the one canonical form, so equal
//! values give equal plaintext.

pub(crate) mod attachment;
pub(crate) mod damaged;
pub(crate) mod feature;
pub(crate) mod fields;
pub(crate) mod filter;
pub(crate) mod forgotten;
pub(crate) mod gc;
pub(crate) mod json;
pub(crate) mod key;
pub(crate) mod lease;
pub(crate) mod location;
pub(crate) mod manifest;
pub mod names;
pub(crate) mod page;
pub(crate) mod record;
pub(crate) mod repository;
pub(crate) mod segment;
pub(crate) mod stub;
#[cfg(test)]
pub(crate) mod test_kit;

pub use attachment::{Attachment, EMPTY_MAP};
pub use damaged::Damaged;
pub use feature::{Feature, FeatureName, FeatureNeed};
pub use forgotten::Forgotten;
pub use gc::{Blocker, Blockers, Condemned, CondemnedList, Verdict};
pub use key::{KeyInfo, KeyKind, Wrapping, read_key_info, unwrap_master_key, wrap_master_key};
pub use lease::{Checkpoint, FrontierPage, Lease, LeaseRole};
pub use manifest::{
    BackupStats, ChangeKind, CopiedFrom, Manifest, ManifestRecord, MapRoot, ParentRef,
    SnapshotInfo, SourceInfo, check_labels,
};
pub use page::{Child, Page};
pub use repository::{RepositoryParams, UnverifiedParams, check_parameters};
pub use segment::{
    SegmentIndex, SegmentLayout, SegmentOpener, SegmentRecord, encode_segment, to_plain_segment,
};
pub use stub::{OldPlace, Stub};

use crate::error::{Error, ErrorKind};

/// Bytes of a store that are not what they must be. `what` names the object: "manifest backups/…".
pub(crate) fn corrupt(what: impl std::fmt::Display, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, format!("read {what}"), detail)
}

/// A version or feature of a later program.
pub(crate) fn unsupported(what: impl std::fmt::Display, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, format!("read {what}"), detail)
        .hint("a newer version of this program may read it")
}

/// Our own mistake: a value that no caller may hand to an encoder.
pub(crate) fn bug(what: impl std::fmt::Display, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Bug, format!("encode {what}"), detail)
}
