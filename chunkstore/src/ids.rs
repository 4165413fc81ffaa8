//! Identifiers: random ones (pack, segment, lease, …), keyed hashes (chunk, page), and names given
//! by users.

use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    ATTACHMENT_NAME_BYTES_MAX, BACKUP_ID_BYTES_MAX, VOLUME_KEY_BYTES_MAX, VOLUME_NAME_BYTES_MAX,
};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len]);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// From its bytes.
            pub const fn from_bytes(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// From lowercase hex of exactly its length.
            pub fn from_hex(text: &str) -> Result<Self> {
                let mut bytes = [0; $len];
                if text.bytes().any(|b| b.is_ascii_uppercase())
                    || hex::decode_to_slice(text, &mut bytes).is_err()
                {
                    let what = concat!("parse a ", stringify!($name));
                    return Err(Error::new(ErrorKind::Corrupt, what, format!(
                        "{text:?} is not {} lowercase hex digits", $len * 2)));
                }
                Ok(Self(bytes))
            }

            /// Lowercase hex.
            pub fn to_hex(&self) -> String {
                hex::encode(self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.to_hex())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
                s.serialize_str(&self.to_hex())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                Self::from_hex(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

macro_rules! random_id {
    ($($name:ident),*) => {$(
        impl $name {
            /// A new one, from the system's random source.
            pub fn random() -> Self {
                Self(random_bytes())
            }
        }
    )*};
}

id!(/// Keyed hash of a chunk's plaintext.
    ChunkId, 32);
id!(/// Keyed hash of a map page's children.
    PageId, 32);
id!(/// Names a pack; random, never used again.
    PackId, 32);
id!(/// Names a dedup segment; random.
    SegmentId, 32);
id!(/// Names a repository; random.
    RepositoryId, 16);
id!(/// Names a wrapping of the master key; random.
    KeyId, 16);
id!(/// Names a lease; random, never used again.
    LeaseId, 16);
id!(/// Names a run of the garbage collection; random, never used again.
    GenerationId, 16);
id!(/// Names a damage record; random.
    DamageId, 16);
id!(/// Hash of what a run was asked to make; compared for equality only.
    PlanDigest, 32);
random_id!(PackId, SegmentId, RepositoryId, KeyId, LeaseId, GenerationId, DamageId);

/// Random bytes from the system's source.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Not aws-lc's generator: seeding that from the processor's jitter takes as long as all else
    // that an increment of nothing does. It fails only where the operating system offers no
    // randomness at all; nothing can go on then.
    #[allow(clippy::expect_used)]
    getrandom::fill(&mut bytes).expect("the system's random source works");
    bytes
}

/// A user's name for what is backed up; joins backups of one volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

impl VolumeName {
    /// Checks the length limits.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = Self(name.into());
        let bad = |why: String| {
            Err(Error::new(ErrorKind::Usage, format!("use volume name {:?}", name.0), why)
                .hint(Advice::RenameVolume.words()))
        };
        if name.0.is_empty() {
            return bad("it is empty".into());
        }
        if name.0.len() > VOLUME_NAME_BYTES_MAX as usize {
            return bad(format!("it is longer than {VOLUME_NAME_BYTES_MAX} bytes"));
        }
        if name.to_key().len() > VOLUME_KEY_BYTES_MAX as usize {
            return bad(format!("escaped, it is longer than {VOLUME_KEY_BYTES_MAX} bytes"));
        }
        Ok(name)
    }

    /// As the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As it stands in object keys: `docs/format.md`, section 2.
    pub fn to_key(&self) -> String {
        let mut key = String::with_capacity(self.0.len());
        for (i, b) in self.0.bytes().enumerate() {
            if b.is_ascii_alphanumeric() || b == b'_' || b == b'-' || (b == b'.' && i > 0) {
                key.push(char::from(b));
            } else {
                key.push_str(&format!("={b:02X}"));
            }
        }
        key
    }

    /// Inverse of [`Self::to_key`]; what no name escapes to is refused.
    pub fn from_key(key: &str) -> Result<Self> {
        let bad = || {
            Error::new(
                ErrorKind::Corrupt,
                format!("read volume name {key:?} of an object key"),
                "not an escaped name",
            )
        };
        let mut bytes = Vec::with_capacity(key.len());
        let mut rest = key.as_bytes();
        while let Some((&b, tail)) = rest.split_first() {
            if b == b'=' {
                let digits =
                    tail.get(..2).and_then(|d| std::str::from_utf8(d).ok()).ok_or_else(bad)?;
                bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
                rest = &tail[2..];
            } else {
                bytes.push(b);
                rest = tail;
            }
        }
        let name = Self::new(String::from_utf8(bytes).map_err(|_| bad())?).map_err(|_| bad())?;
        if name.to_key() == key { Ok(name) } else { Err(bad()) }
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a backup within its volume: random, or given by the user to make a run repeatable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(String);

impl BackupId {
    /// Checks length and characters.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        let fits =
            !id.is_empty() && id.len() <= BACKUP_ID_BYTES_MAX as usize && !id.starts_with('.');
        if fits && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return Ok(Self(id));
        }
        Err(Error::new(ErrorKind::Usage, format!("use backup id {id:?}"), "not a backup id").hint(format!(
            "use 1 to {BACKUP_ID_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -, not starting with a dot"
        )))
    }

    /// 128 random bits in hex.
    pub fn random() -> Self {
        Self(hex::encode(random_bytes::<16>()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names an attachment within its backup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentName(String);

impl AttachmentName {
    /// Checks length and characters.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let fits = (1..=ATTACHMENT_NAME_BYTES_MAX as usize).contains(&name.len())
            && !name.starts_with('.');
        if fits && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return Ok(Self(name));
        }
        let context = format!("use attachment name {name:?}");
        Err(Error::new(ErrorKind::Usage, context, "not a name of an attachment").hint(format!(
            "use 1 to {ATTACHMENT_NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -, not starting with a dot"
        )))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AttachmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
