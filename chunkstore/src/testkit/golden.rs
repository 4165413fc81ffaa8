//! Encoders without randomness, for the golden repositories of the tests and for crafted objects.
//! Never for a real repository: a salt or a pack id that is used twice gives secrets away.
//!
//! What is not here is deterministic anyway: pages, names, and [`crate::format::encode_segment`] with its
//! id and seed.

use crate::error::Result;
use crate::format::damaged::Damaged;
use crate::format::feature::Feature;
use crate::format::forgotten::Forgotten;
use crate::format::gc::{Blockers, Condemned, Verdict};
use crate::format::key::{Wrapping, wrap_with_salt};
use crate::format::lease::Lease;
use crate::format::manifest::ManifestRecord;
use crate::format::repository::RepositoryParams;
use crate::format::stub::Stub;
use crate::ids::{KeyId, PackId, RepositoryId};
use crate::keys::{Keys, MasterKey};
use crate::pack::{PackAllocator, PackKind};
use std::sync::Arc;

/// `format`.
pub fn format(params: &RepositoryParams, keys: &Keys, salt: &[u8; 32]) -> Result<Vec<u8>> {
    params.encode_with_salt(keys, salt)
}

/// `keys/<id>`.
pub fn key(
    master: &MasterKey,
    repository: &RepositoryId,
    id: &KeyId,
    wrapping: &Wrapping<'_>,
    salt: &[u8; 32],
) -> Result<Vec<u8>> {
    wrap_with_salt(master, repository, id, wrapping, salt)
}

/// Places in packs of these ids, in this order; random ones follow.
pub fn pack_allocator(
    keys: Arc<Keys>,
    kind: PackKind,
    target_bytes: u32,
    ids: Vec<PackId>,
) -> PackAllocator {
    let mut ids = ids.into_iter();
    let next = move || ids.next().unwrap_or_else(PackId::random);
    PackAllocator::with_ids(keys, kind, target_bytes, Box::new(next))
}

macro_rules! records {
    ($($name:ident $of_body:ident $type:ty;)*) => {$(
        #[doc = concat!("A [`", stringify!($type), "`] under a given salt.")]
        pub fn $name(
            value: &$type,
            keys: &Keys,
            repository: &RepositoryId,
            object_key: &str,
            salt: &[u8; 32],
        ) -> Result<Vec<u8>> {
            value.encode_with_salt(keys, repository, object_key, salt)
        }

        #[doc = concat!("Any body in place of that of a [`", stringify!($type), "`], correctly sealed.")]
        pub fn $of_body(
            body: &[u8],
            keys: &Keys,
            repository: &RepositoryId,
            object_key: &str,
            salt: &[u8; 32],
        ) -> Result<Vec<u8>> {
            <$type>::seal_body(body, keys, repository, object_key, salt)
        }
    )*};
}

records! {
    manifest manifest_of_body ManifestRecord;
    lease lease_of_body Lease;
    forgotten forgotten_of_body Forgotten;
    damaged damaged_of_body Damaged;
    feature feature_of_body Feature;
    stub stub_of_body Stub;
    condemned condemned_of_body Condemned;
    blockers blockers_of_body Blockers;
    verdict verdict_of_body Verdict;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
