//! Keys: the master key, what is derived from it, how it is wrapped, and the one place that seals
//! and opens bytes.
//!
//! Owns all secrets of the process. They are wiped when dropped, never printed, and leave this
//! module only as sealed bytes. Formulas: `docs/format.md`, sections 3 to 7.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ChunkId, PackId, PageId, SegmentId, random_bytes};
use crate::limits::{
    CONTEXT_CHUNK_ID, CONTEXT_DATA, CONTEXT_FORMAT, CONTEXT_KEY_FILE, CONTEXT_METADATA,
    CONTEXT_PAGE_ID, CONTEXT_SEGMENT, KDF_LANES_MAX, KDF_MEMORY_KIB_MAX, KDF_PASSES_MAX, TAG_BYTES,
};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

mod process;

pub use process::{ProcessKey, ProcessSeal};

/// 32 secret bytes, wiped when dropped.
pub(crate) type Secret = Zeroizing<[u8; 32]>;
/// Authentication tag or checksum.
pub(crate) type Tag = [u8; TAG_BYTES as usize];

/// How a repository protects what it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Encryption {
    /// Authenticated encryption.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    /// Checksums only: they detect accidents, not attackers.
    #[serde(rename = "none")]
    None,
}

impl Encryption {
    /// The `seal` byte of headers.
    pub(crate) fn seal_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Aes256Gcm => 1,
        }
    }

    /// Inverse of [`Self::seal_byte`].
    pub(crate) fn from_seal_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Aes256Gcm),
            _ => None,
        }
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes256Gcm => "aes-256-gcm",
            Self::None => "none",
        })
    }
}

/// The root of the key hierarchy.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey(Secret);

impl MasterKey {
    /// A new one, from the system's random source.
    pub fn random() -> Self {
        Self(Zeroizing::new(random_bytes()))
    }

    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes: only for wrapping, and for `format` of a repository without encryption.
    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(hidden)")
    }
}

/// Everything derived from the master key of a repository.
pub struct Keys {
    encryption: Encryption,
    chunk_id: Secret,
    page_id: Secret,
    data: Secret,
    metadata: Secret,
    segment: Secret,
    format: Secret,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("encryption", &self.encryption).finish_non_exhaustive()
    }
}

impl Keys {
    /// Derives all keys: `docs/format.md`, section 3.
    pub fn derive(master: &MasterKey, encryption: Encryption) -> Self {
        let derive = |context| Zeroizing::new(blake3::derive_key(context, master.as_bytes()));
        Self {
            encryption,
            chunk_id: derive(CONTEXT_CHUNK_ID),
            page_id: derive(CONTEXT_PAGE_ID),
            data: derive(CONTEXT_DATA),
            metadata: derive(CONTEXT_METADATA),
            segment: derive(CONTEXT_SEGMENT),
            format: derive(CONTEXT_FORMAT),
        }
    }

    /// How packs, segments and records of this repository are sealed.
    pub fn encryption(&self) -> Encryption {
        self.encryption
    }

    /// Id of a chunk's plaintext.
    pub fn chunk_id(&self, plain: &[u8]) -> ChunkId {
        ChunkId::from_bytes(*blake3::keyed_hash(&self.chunk_id, plain).as_bytes())
    }

    /// Id of a map page: level, number of children (at most `u16::MAX`) and their ids, `None` for
    /// Zero. Locations are no part of it.
    pub fn page_id<I>(&self, level: u8, children: I) -> PageId
    where
        I: IntoIterator<Item = Option<[u8; 32]>, IntoIter: ExactSizeIterator>,
    {
        let children = children.into_iter();
        let count = u16::try_from(children.len()).unwrap_or(u16::MAX);
        // gathered first: one call of the hash over 4 KiB is several times faster than 128 of 33
        // bytes
        let mut message = Vec::with_capacity(3 + 33 * usize::from(count));
        message.push(level);
        message.extend_from_slice(&count.to_le_bytes());
        for child in children {
            match child {
                None => message.push(0),
                Some(id) => {
                    message.push(1);
                    message.extend_from_slice(&id);
                }
            }
        }
        PageId::from_bytes(*blake3::keyed_hash(&self.page_id, &message).as_bytes())
    }

    /// Key that seals the entries of one pack.
    pub fn pack_key(&self, pack: &PackId) -> PackKey {
        let key = keyed_of(&self.data, b"pack", pack.as_bytes());
        PackKey(Arc::new((*pack, SealKey::new(self.encryption, &key))))
    }

    /// Key that seals the blocks of one segment with `seal`: a scratch copy has another seal than
    /// the repository.
    pub(crate) fn segment_key(&self, segment: &SegmentId, seal: Encryption) -> SealKey {
        SealKey::new(seal, &keyed_of(&self.segment, b"segment", segment.as_bytes()))
    }

    /// `K` of all records but `format` and the key objects.
    pub(crate) fn metadata(&self) -> &Secret {
        &self.metadata
    }

    /// `K` of `format`.
    pub(crate) fn format(&self) -> &Secret {
        &self.format
    }
}

/// `keyed(key, message)`.
pub(crate) fn keyed(key: &[u8; 32], message: &[u8]) -> Secret {
    Zeroizing::new(*blake3::keyed_hash(key, message).as_bytes())
}

fn keyed_of(key: &[u8; 32], domain: &[u8], id: &[u8; 32]) -> Secret {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(domain).update(id);
    Zeroizing::new(*hasher.finalize().as_bytes())
}

/// Seals the entries of one pack; cheap to clone.
#[derive(Clone)]
pub struct PackKey(Arc<(PackId, SealKey)>);

impl PackKey {
    /// The pack it belongs to.
    pub fn pack(&self) -> &PackId {
        &self.0.0
    }

    pub(crate) fn seal_key(&self) -> &SealKey {
        &self.0.1
    }
}

impl fmt::Debug for PackKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackKey(of {}, hidden)", self.pack())
    }
}

/// What was sealed is not what is being opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TagMismatch;

/// Encrypts and authenticates, or only computes a checksum: the single place that does either.
pub(crate) enum SealKey {
    /// AES-256-GCM. The library wipes its key schedule when it is dropped.
    Aes(LessSafeKey),
    /// Keyed BLAKE3, cut to the tag's length.
    Checksum(Secret),
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(hidden)")
    }
}

impl SealKey {
    pub(crate) fn new(encryption: Encryption, key: &[u8; 32]) -> Self {
        match encryption {
            Encryption::None => Self::Checksum(Zeroizing::new(*key)),
            Encryption::Aes256Gcm => {
                // It refuses only keys of another length than the 32 bytes given here.
                #[allow(clippy::expect_used)]
                let key = UnboundKey::new(&AES_256_GCM, key).expect("an AES-256 key has 32 bytes");
                Self::Aes(LessSafeKey::new(key))
            }
        }
    }

    pub(crate) fn encryption(&self) -> Encryption {
        match self {
            Self::Aes(_) => Encryption::Aes256Gcm,
            Self::Checksum(_) => Encryption::None,
        }
    }

    /// Seals `data` where it is. One nonce is used once with one key: the caller's duty.
    pub(crate) fn seal(&self, nonce: u64, associated: &[u8], data: &mut [u8]) -> Result<Tag> {
        match self {
            Self::Aes(key) => {
                let sealed =
                    key.seal_in_place_separate_tag(nonce_of(nonce), Aad::from(associated), data);
                let tag = sealed.ok().and_then(|tag| Tag::try_from(tag.as_ref()).ok());
                tag.ok_or_else(|| {
                    Error::new(ErrorKind::Bug, "seal bytes", "too many for one nonce of AES-GCM")
                })
            }
            Self::Checksum(key) => Ok(checksum(key, associated, data)),
        }
    }

    /// Checks the tag and opens `data` where it is; after an error its content is unspecified.
    pub(crate) fn open(
        &self,
        nonce: u64,
        associated: &[u8],
        data: &mut [u8],
        tag: &Tag,
    ) -> Result<(), TagMismatch> {
        match self {
            Self::Aes(key) => key
                .open_in_place_separate_tag(nonce_of(nonce), Aad::from(associated), tag, data)
                .map(|_| ())
                .map_err(|_| TagMismatch),
            Self::Checksum(key) => verify(&checksum(key, associated, data), tag),
        }
    }

    /// Checks the checksum of bytes that are plain anyway; encrypted ones cannot be checked without
    /// opening them.
    pub(crate) fn check(
        &self,
        associated: &[u8],
        data: &[u8],
        tag: &Tag,
    ) -> Result<(), TagMismatch> {
        match self {
            Self::Aes(_) => Err(TagMismatch),
            Self::Checksum(key) => verify(&checksum(key, associated, data), tag),
        }
    }

    /// Checks the tag and opens `data` into `out` of the same length; after an error its content is
    /// unspecified.
    pub(crate) fn open_into(
        &self,
        nonce: u64,
        associated: &[u8],
        data: &[u8],
        tag: &Tag,
        out: &mut [u8],
    ) -> Result<(), TagMismatch> {
        if data.len() != out.len() {
            return Err(TagMismatch);
        }
        match self {
            Self::Aes(key) => key
                .open_separate_gather(nonce_of(nonce), Aad::from(associated), data, tag, out)
                .map_err(|_| TagMismatch),
            Self::Checksum(key) => {
                verify(&checksum(key, associated, data), tag)?;
                out.copy_from_slice(data);
                Ok(())
            }
        }
    }
}

fn nonce_of(nonce: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn checksum(key: &[u8; 32], associated: &[u8], data: &[u8]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(associated).update(data);
    let mut tag = Tag::default();
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES as usize]);
    tag
}

fn verify(found: &Tag, wanted: &Tag) -> Result<(), TagMismatch> {
    verify_slices_are_equal(found, wanted).map_err(|_| TagMismatch)
}

/// What a user has that opens a repository.
#[derive(Clone)]
pub enum Credential {
    /// Text; stretched with Argon2id.
    Passphrase(Zeroizing<String>),
    /// 32 random bytes.
    KeyFile(Zeroizing<[u8; 32]>),
}

impl Credential {
    /// From a passphrase.
    pub fn passphrase(text: impl Into<String>) -> Self {
        Self::Passphrase(Zeroizing::new(text.into()))
    }

    /// From the content of a key file: 32 raw bytes, or 64 hex digits with or without one end of a
    /// line behind.
    pub fn from_key_file_bytes(bytes: &[u8]) -> Result<Self> {
        let mut key = Zeroizing::new([0; 32]);
        if let Ok(raw) = <&[u8; 32]>::try_from(bytes) {
            key.copy_from_slice(raw);
            return Ok(Self::KeyFile(key));
        }
        let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        if hex::decode_to_slice(digits, key.as_mut_slice()).is_ok() {
            return Ok(Self::KeyFile(key));
        }
        // the content is a secret, perhaps of something else: it is not part of the message
        let detail = format!("it has {} bytes and is no key", bytes.len());
        Err(Error::new(ErrorKind::Usage, "read the key file", detail)
            .hint("a key file holds 32 random bytes or 64 hex digits; make one with: openssl rand -hex 32"))
    }

    /// `"passphrase"` or `"key-file"`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::KeyFile(_) => "key-file",
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({}, hidden)", self.kind())
    }
}

/// What Argon2id costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KdfCost {
    /// Memory, KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes; computed one after another here.
    pub lanes: u32,
}

impl Default for KdfCost {
    /// 64 MiB, 3 passes, 1 lane: as the second choice of RFC 9106 but for the lanes, and small
    /// enough for a pod of 256 MiB.
    fn default() -> Self {
        Self { memory_kib: 65536, passes: 3, lanes: 1 }
    }
}

impl KdfCost {
    /// What is wrong with it, if something is. A key object comes from the store: without this, it
    /// could ask for any memory.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self { memory_kib, passes, lanes } = *self;
        if !(1..=KDF_LANES_MAX).contains(&lanes) {
            return Some(format!("{lanes} lanes are not 1 to {KDF_LANES_MAX}"));
        }
        if !(1..=KDF_PASSES_MAX).contains(&passes) {
            return Some(format!("{passes} passes are not 1 to {KDF_PASSES_MAX}"));
        }
        if !(8 * lanes..=KDF_MEMORY_KIB_MAX).contains(&memory_kib) {
            return Some(format!(
                "{memory_kib} KiB of memory are not {} to {KDF_MEMORY_KIB_MAX}",
                8 * lanes
            ));
        }
        None
    }
}

/// Wrapping key of a passphrase. The cost is checked before any memory is taken.
pub(crate) fn stretch(passphrase: &str, salt: &[u8; 32], cost: KdfCost) -> Result<Secret> {
    let fail =
        |detail: String| Error::new(ErrorKind::Corrupt, "derive a key from the passphrase", detail);
    if let Some(problem) = cost.problem() {
        return Err(fail(problem));
    }
    let params = argon2::Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(32))
        .map_err(|e| fail(e.to_string()))?;
    let blocks = params.block_count();
    let kdf = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    // up to 1 GiB: where there is no such room, that is an error and not an abort
    let mut memory = Vec::new();
    memory.try_reserve_exact(blocks).map_err(|_| {
        let detail = format!("{} KiB of memory are not to be had", cost.memory_kib);
        Error::new(ErrorKind::Unavailable, "derive a key from the passphrase", detail)
            .hint("add a key with a lower cost, or use a key file")
    })?;
    memory.resize(blocks, argon2::Block::new());
    let mut memory = Zeroizing::new(memory);
    let mut key = Zeroizing::new([0; 32]);
    let bytes = passphrase.as_bytes();
    kdf.hash_password_into_with_memory(bytes, salt, key.as_mut_slice(), memory.as_mut_slice())
        .map_err(|e| fail(e.to_string()))?;
    Ok(key)
}

/// Wrapping key of a key file.
pub(crate) fn key_file_wrapping_key(key: &[u8; 32]) -> Secret {
    Zeroizing::new(blake3::derive_key(CONTEXT_KEY_FILE, key))
}

#[cfg(test)]
mod tests;
