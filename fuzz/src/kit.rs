//! What the targets share.

use chunkstore::{Encryption, Keys, RepositoryId, keys::MasterKey};

/// Of everything that is fuzzed.
pub(crate) const REPOSITORY: RepositoryId = RepositoryId::from_bytes([0x11; 16]);
/// Of the records that are sealed again.
pub(crate) const SALT: [u8; 32] = [0x22; 32];
/// Bytes before the clear part of a record.
pub(crate) const HEADER: usize = chunkstore::limits::RECORD_HEADER_BYTES as usize;
/// Bytes behind its body.
pub(crate) const TAG: usize = chunkstore::limits::TAG_BYTES as usize;

/// Keys of a repository without encryption: its tags are checksums.
pub(crate) fn plain_keys() -> Keys {
    Keys::derive(&MasterKey::from_bytes([0x44; 32]), Encryption::None)
}

/// The value, where there can be no error.
pub(crate) fn must<T>(found: chunkstore::Result<T>) -> T {
    found.unwrap_or_else(|e| panic!("{e:?}"))
}

/// The first `N` bytes and the rest.
pub(crate) fn split<const N: usize>(data: &[u8]) -> Option<([u8; N], &[u8])> {
    data.split_first_chunk::<N>().map(|(head, rest)| (*head, rest))
}
