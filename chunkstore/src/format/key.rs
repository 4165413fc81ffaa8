//! `keys/<key id>`: the master key, wrapped by what a user has. `docs/format.md`, section 6.

use super::corrupt;
use super::json::{self, Head};
use super::names::{key_key, parse_key_key};
use super::record::{
    RecordKind, RecordPlace, RecordSeal, RecordView, Salt, seal_record, view_record,
};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{KeyId, RepositoryId, random_bytes};
use crate::keys::{
    Credential, Encryption, KdfCost, MasterKey, Secret, key_file_wrapping_key, stretch,
};
use crate::limits::MAGIC_KEY;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const KIND: RecordKind =
    RecordKind { name: "key", magic: MAGIC_KEY, body_bytes_max: 32, clear: true };
const TYPE: &str = "key";
const ARGON2ID: &str = "argon2id";

/// What a key object says in the clear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Names it.
    pub id: KeyId,
    /// What opens it.
    pub kind: KeyKind,
    /// The user's name for it.
    pub label: String,
    /// When it was made.
    pub created: DateTime<Utc>,
}

/// What opens a wrapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// A passphrase, stretched at this cost.
    Passphrase(KdfCost),
    /// A key file.
    KeyFile,
}

impl KeyKind {
    /// As in the key object and in [`Credential::kind`].
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::KeyFile => "key-file",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    kind: String,
    label: String,
    created: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kdf: Option<KdfBody>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KdfBody {
    name: String,
    #[serde(flatten)]
    cost: KdfCost,
}

/// What a new wrapping is made of, beside the master key.
#[derive(Debug)]
pub struct Wrapping<'a> {
    /// What will open it.
    pub credential: &'a Credential,
    /// The user's name for it.
    pub label: &'a str,
    /// Cost of a passphrase; not used with a key file.
    pub kdf: KdfCost,
    /// Now.
    pub created: DateTime<Utc>,
}

/// Bytes of `keys/<id>`.
pub fn wrap_master_key(
    master: &MasterKey,
    repository: &RepositoryId,
    id: &KeyId,
    wrapping: &Wrapping<'_>,
) -> Result<Vec<u8>> {
    wrap_with_salt(master, repository, id, wrapping, &random_bytes())
}

pub(crate) fn wrap_with_salt(
    master: &MasterKey,
    repository: &RepositoryId,
    id: &KeyId,
    wrapping: &Wrapping<'_>,
    salt: &Salt,
) -> Result<Vec<u8>> {
    let refuse = |why: String| Err(Error::new(ErrorKind::Usage, "wrap the master key", why));
    let (kdf, key) = match wrapping.credential {
        Credential::Passphrase(text) => {
            if text.is_empty() {
                return refuse("the passphrase is empty".into());
            }
            if let Some(problem) = wrapping.kdf.problem() {
                return refuse(problem);
            }
            let kdf = KdfBody { name: ARGON2ID.into(), cost: wrapping.kdf };
            (Some(kdf), stretch(text, salt, wrapping.kdf)?)
        }
        Credential::KeyFile(key) => (None, key_file_wrapping_key(key)),
    };
    let body = Body {
        kind: wrapping.credential.kind().into(),
        label: wrapping.label.into(),
        created: wrapping.created,
        kdf,
    };
    let object_key = key_key(id);
    let clear = json::write(&object_key, TYPE, &body)?;
    let place = RecordPlace { repository, object_key: &object_key };
    let with = RecordSeal { key: &key, seal: Encryption::Aes256Gcm };
    seal_record(&KIND, place, with, salt, &clear, master.as_bytes())
}

/// Reads what a key object says in the clear. Nothing vouches for it until it was opened.
pub fn read_key_info(object_key: &str, bytes: &[u8]) -> Result<KeyInfo> {
    Ok(read(object_key, bytes)?.info)
}

/// A key object that was taken apart, and not opened yet.
struct KeyView<'a> {
    info: KeyInfo,
    view: RecordView<'a>,
    /// What is unknown here: if the tag is good, a newer version has written it.
    newer: Option<Error>,
}

fn read<'a>(object_key: &str, bytes: &'a [u8]) -> Result<KeyView<'a>> {
    let what = format!("key {object_key}");
    let id = parse_key_key(object_key)?;
    let view = view_record(&KIND, object_key, bytes)?;
    if view.seal().is_some_and(|seal| seal != Encryption::Aes256Gcm) {
        return Err(corrupt(&what, "it is not encrypted"));
    }
    let unknown = |e: Error| if e.kind() == ErrorKind::Unsupported { Ok(e) } else { Err(e) };
    let newer = view.check_known(&what).err().map(unknown).transpose()?;
    let newer = newer.or(Head::expect(&what, view.clear, TYPE).err().map(unknown).transpose()?);
    let body: Body = json::parse(&what, view.clear)?;
    let kind = match (body.kind.as_str(), body.kdf) {
        ("passphrase", Some(kdf)) => {
            if kdf.name != ARGON2ID {
                let detail = format!("it uses {:?} to stretch the passphrase", kdf.name);
                return Err(super::unsupported(&what, detail));
            }
            if let Some(problem) = kdf.cost.problem() {
                return Err(corrupt(&what, problem));
            }
            KeyKind::Passphrase(kdf.cost)
        }
        ("passphrase", None) => return Err(corrupt(&what, "it does not say how to stretch")),
        ("key-file", None) => KeyKind::KeyFile,
        ("key-file", Some(_)) => return Err(corrupt(&what, "a key file is not stretched")),
        (other, _) => return Err(super::unsupported(&what, format!("its kind is {other:?}"))),
    };
    let info = KeyInfo { id, kind, label: body.label, created: body.created };
    Ok(KeyView { info, view, newer })
}

/// Opens a key object. `WrongKey` if this credential is not what wrapped it (or it was damaged:
/// that cannot be told apart).
pub fn unwrap_master_key(
    credential: &Credential,
    repository: &RepositoryId,
    object_key: &str,
    bytes: &[u8],
) -> Result<MasterKey> {
    let KeyView { info, view, newer } = read(object_key, bytes)?;
    let wrong = |why: &str| Error::new(ErrorKind::WrongKey, format!("open key {object_key}"), why);
    let key: Secret = match (credential, info.kind) {
        (Credential::Passphrase(text), KeyKind::Passphrase(cost)) => {
            stretch(text, &view.salt, cost)?
        }
        (Credential::KeyFile(key), KeyKind::KeyFile) => key_file_wrapping_key(key),
        (Credential::Passphrase(_), KeyKind::KeyFile) => {
            return Err(wrong("it is for a key file, not for a passphrase"));
        }
        (Credential::KeyFile(_), KeyKind::Passphrase(_)) => {
            return Err(wrong("it is for a passphrase, not for a key file"));
        }
    };
    let with = RecordSeal { key: &key, seal: Encryption::Aes256Gcm };
    let body = view.open(RecordPlace { repository, object_key }, with)?.map(Zeroizing::new);
    let body = body.ok_or_else(|| wrong("the credential does not open it"))?;
    if let Some(newer) = newer {
        return Err(newer);
    }
    let master = <[u8; 32]>::try_from(body.as_slice())
        .map_err(|_| corrupt(format!("key {object_key}"), "its body is not a master key"))?;
    Ok(MasterKey::from_bytes(master))
}

#[cfg(test)]
mod tests;
