//! What the tests of all records share.

use crate::error::{ErrorKind, Result};
use crate::ids::RepositoryId;
use crate::keys::{Encryption, Keys, MasterKey};
use chrono::{DateTime, Utc};
use std::fmt::Debug;

pub(crate) const REPOSITORY: RepositoryId = RepositoryId::from_bytes([9; 16]);

pub(crate) fn time(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 123_456_789).unwrap()
}

/// Keys of one master key with and without encryption.
pub(crate) fn both() -> [(Encryption, Keys); 2] {
    [Encryption::Aes256Gcm, Encryption::None]
        .map(|e| (e, Keys::derive(&MasterKey::from_bytes([5; 32]), e)))
}

/// A record round trips with both encryptions, every write differs, and it is refused when it is
/// cut at any length, has a flip in any byte, is longer, stands elsewhere, or is read with other
/// keys.
pub(crate) fn exercise<T: PartialEq + Debug>(
    value: &T,
    object_key: &str,
    encode: impl Fn(&Keys) -> Result<Vec<u8>>,
    decode: impl Fn(&Keys, &RepositoryId, &str, &[u8]) -> Result<T>,
) {
    let other = Keys::derive(&MasterKey::from_bytes([6; 32]), Encryption::Aes256Gcm);
    for (_, keys) in both() {
        let bytes = encode(&keys).unwrap();
        assert_eq!(&decode(&keys, &REPOSITORY, object_key, &bytes).unwrap(), value);
        assert_ne!(encode(&keys).unwrap(), bytes, "create-once compares bytes");
        let refused = |keys: &Keys, repository: &RepositoryId, key: &str, bytes: &[u8]| {
            decode(keys, repository, key, bytes).unwrap_err().kind()
        };
        for len in 0..bytes.len() {
            let kind = refused(&keys, &REPOSITORY, object_key, &bytes[..len]);
            assert_eq!(kind, ErrorKind::Corrupt, "cut at {len}");
        }
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1;
            let kind = refused(&keys, &REPOSITORY, object_key, &bad);
            // not `Unsupported`: what is unknown is newer only where the tag vouches for it
            assert_eq!(kind, ErrorKind::Corrupt, "flip at {i}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(refused(&keys, &REPOSITORY, object_key, &longer), ErrorKind::Corrupt);
        let elsewhere = RepositoryId::from_bytes([8; 16]);
        assert_eq!(refused(&keys, &elsewhere, object_key, &bytes), ErrorKind::Corrupt);
        let key = format!("{object_key}0");
        assert_eq!(refused(&keys, &REPOSITORY, &key, &bytes), ErrorKind::Corrupt);
        assert_eq!(refused(&other, &REPOSITORY, object_key, &bytes), ErrorKind::Corrupt);
    }
}

/// Of a binary body: every cut is refused, and every flip is refused or gives a value whose only
/// encoding are these bytes. (In a stored object the tag finds flips; without encryption, an
/// attacker can compute it.)
pub(crate) fn flips_are_refused_or_canonical<T>(
    body: &[u8],
    decode: impl Fn(&[u8]) -> Result<T>,
    encode: impl Fn(&T) -> Result<Vec<u8>>,
) {
    assert_eq!(encode(&decode(body).unwrap()).unwrap(), body);
    for len in 0..body.len() {
        assert!(decode(&body[..len]).is_err(), "cut at {len}");
    }
    assert!(decode(&[body, &[0]].concat()).is_err());
    for i in 0..body.len() {
        for bit in 0..8 {
            let mut bad = body.to_vec();
            bad[i] ^= 1 << bit;
            if let Ok(value) = decode(&bad) {
                assert_eq!(encode(&value).unwrap(), bad, "byte {i}, bit {bit}");
            }
        }
    }
}
