//! The envelope of every object but packs and segments: `docs/format.md`, section 4.
//!
//! A record is bound to its repository and to its object key, so a store cannot pass one off as
//! another. What the body means is the business of the modules beside this one; they get it only
//! after the tag was checked.

use super::{bug, corrupt, unsupported};
use crate::error::{Error, ErrorKind, Result};
use crate::format::fields::{Fields, PutFields};
use crate::ids::RepositoryId;
use crate::keys::{Encryption, SealKey, Secret, Tag, keyed};
use crate::limits::{FORMAT_VERSION, RECORD_CLEAR_BYTES_MAX, RECORD_HEADER_BYTES, TAG_BYTES};

/// Random per write; makes the record key unique, and tells our own create-once write from
/// another's.
pub(crate) type Salt = [u8; 32];

/// What tells one kind of record from another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordKind {
    /// For errors.
    pub(crate) name: &'static str,
    pub(crate) magic: [u8; 8],
    pub(crate) body_bytes_max: u32,
    /// Whether it has a clear part; one without must not have a byte of it.
    pub(crate) clear: bool,
}

/// Where a record belongs: part of what its tag covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordPlace<'a> {
    pub(crate) repository: &'a RepositoryId,
    pub(crate) object_key: &'a str,
}

/// `K` and the seal to use with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordSeal<'a> {
    pub(crate) key: &'a Secret,
    pub(crate) seal: Encryption,
}

/// A record whose layout was checked, and nothing else yet.
#[derive(Debug)]
pub(crate) struct RecordView<'a> {
    version: u16,
    seal: u8,
    epoch: u32,
    pub(crate) salt: Salt,
    pub(crate) clear: &'a [u8],
    /// Header and clear part: what the tag covers beside the place.
    head: &'a [u8],
    pub(crate) body: &'a [u8],
    tag: Tag,
}

/// Seals one record.
pub(crate) fn seal_record(
    kind: &RecordKind,
    place: RecordPlace<'_>,
    with: RecordSeal<'_>,
    salt: &Salt,
    clear: &[u8],
    body: &[u8],
) -> Result<Vec<u8>> {
    let what = format!("{} {}", kind.name, place.object_key);
    if body.len() > kind.body_bytes_max as usize {
        let detail = format!("{} bytes are more than {}", body.len(), kind.body_bytes_max);
        return Err(Error::new(ErrorKind::Usage, format!("encode {what}"), detail));
    }
    if clear.len() > RECORD_CLEAR_BYTES_MAX as usize || (!kind.clear && !clear.is_empty()) {
        return Err(bug(what, format!("a clear part of {} bytes", clear.len())));
    }
    let head_len = RECORD_HEADER_BYTES as usize + clear.len();
    let mut out = Vec::with_capacity(head_len + body.len() + TAG_BYTES as usize);
    out.put(&kind.magic);
    out.put_u16(FORMAT_VERSION);
    out.put(&[with.seal.seal_byte(), 0]);
    out.put_u32(0); // key epoch
    out.put(salt);
    out.put_u32(u32::try_from(clear.len()).map_err(|_| bug(&what, "clear part too long"))?);
    out.put_u32(0);
    out.put_u64(body.len() as u64);
    out.put(clear);
    out.put(body);
    let (head, sealed) = out.split_at_mut(head_len);
    let associated = associated_data(place, head)?;
    let tag = SealKey::new(with.seal, &keyed(with.key, salt)).seal(0, &associated, sealed)?;
    out.put(&tag);
    Ok(out)
}

/// Checks the layout: magic, lengths, nothing left over. The tag is not checked yet; what is unknown
/// here is told apart from damage by it, see [`RecordView::check_known`].
pub(crate) fn view_record<'a>(
    kind: &RecordKind,
    object_key: &str,
    bytes: &'a [u8],
) -> Result<RecordView<'a>> {
    let what = format!("{} {object_key}", kind.name);
    let mut fields = Fields::new(bytes, &what);
    if fields.array::<8>()? != kind.magic {
        return Err(corrupt(&what, "its first bytes are not those of this kind of object"));
    }
    let (version, seal) = (fields.u16()?, fields.u8()?);
    let reserved = fields.u8()?;
    let epoch = fields.u32()?;
    let salt: Salt = fields.array()?;
    let clear_len = fields.u32()?;
    let reserved = u32::from(reserved) | fields.u32()?;
    let body_len = fields.u64()?;
    if reserved != 0 {
        return Err(corrupt(&what, "a reserved byte is not zero"));
    }
    if clear_len > RECORD_CLEAR_BYTES_MAX || (!kind.clear && clear_len != 0) {
        return Err(corrupt(&what, format!("a clear part of {clear_len} bytes is too long")));
    }
    if body_len > u64::from(kind.body_bytes_max) {
        return Err(corrupt(&what, format!("a body of {body_len} bytes is too long")));
    }
    let clear = fields.take(clear_len as usize)?;
    let head_len = RECORD_HEADER_BYTES as usize + clear.len();
    let body_len = usize::try_from(body_len).map_err(|_| corrupt(&what, "its body is too long"))?;
    let body = fields.take(body_len)?;
    let tag = fields.array()?;
    fields.finish()?;
    let head = &bytes[..head_len];
    Ok(RecordView { version, seal, epoch, salt, clear, head, body, tag })
}

impl RecordView<'_> {
    /// Checks the tag and gives the plaintext of the body. `None`: the tag does not fit, that is,
    /// the bytes were damaged, stand in another place than they were made for, or the key is
    /// another. Whatever version wrote it: the envelope is that of all versions.
    pub(crate) fn open(
        &self,
        place: RecordPlace<'_>,
        with: RecordSeal<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let associated = associated_data(place, self.head)?;
        let mut body = self.body.to_vec();
        let key = SealKey::new(with.seal, &keyed(with.key, &self.salt));
        let opened = key.open(0, &associated, &mut body, &self.tag);
        Ok(opened.is_ok().then_some(body))
    }

    /// Whether this program knows what the header names. To be asked when the tag was found good:
    /// then what is unknown was written by a newer version, otherwise it is damage.
    pub(crate) fn check_known(&self, what: &str) -> Result<()> {
        check_version(what, self.version)?;
        self.seal().ok_or_else(|| unsupported(what, "its seal is unknown"))?;
        check_epoch(what, self.epoch)
    }

    /// Its seal, if that is known.
    pub(crate) fn seal(&self) -> Option<Encryption> {
        Encryption::from_seal_byte(self.seal)
    }
}

/// Opens a record of the repository's own sealing; its body's plaintext.
pub(crate) fn open_record(
    kind: &RecordKind,
    place: RecordPlace<'_>,
    with: RecordSeal<'_>,
    bytes: &[u8],
) -> Result<Vec<u8>> {
    let view = view_record(kind, place.object_key, bytes)?;
    let what = format!("{} {}", kind.name, place.object_key);
    let body = view.open(place, with)?;
    if body.is_some() {
        view.check_known(&what)?;
    }
    match body {
        _ if view.seal().is_some_and(|seal| seal != with.seal) => {
            Err(corrupt(what, "its seal is not that of the repository"))
        }
        Some(body) => Ok(body),
        None => Err(corrupt(
            what,
            "its authentication tag does not fit: damaged, or not written for this place",
        )),
    }
}

/// Refuses another format version than ours.
pub(crate) fn check_version(what: &str, version: u16) -> Result<()> {
    if version == FORMAT_VERSION {
        return Ok(());
    }
    Err(unsupported(what, format!("format version {version} is not {FORMAT_VERSION}")))
}

/// Version 1 repositories have key epoch 0 only.
pub(crate) fn check_epoch(what: &str, epoch: u32) -> Result<()> {
    if epoch == 0 {
        return Ok(());
    }
    Err(unsupported(what, format!("key epoch {epoch} is not 0")))
}

fn associated_data(place: RecordPlace<'_>, head: &[u8]) -> Result<Vec<u8>> {
    let key = place.object_key.as_bytes();
    let len =
        u16::try_from(key.len()).map_err(|_| bug("a record", "its object key is too long"))?;
    let mut out = Vec::with_capacity(RepositoryId::LEN + 2 + key.len() + head.len());
    out.put(place.repository.as_bytes());
    out.put_u16(len);
    out.put(key);
    out.put(head);
    Ok(out)
}

/// Gives a typed record its `encode`, `encode_with_salt` and `decode` under the metadata key. The
/// type has `const KIND: RecordKind`, `fn to_body(&self, object_key) -> Result<Vec<u8>>` and
/// `fn from_body(object_key, &[u8]) -> Result<Self>`.
macro_rules! metadata_record {
    ($name:ty) => {
        impl $name {
            /// Seals it for its place under a fresh salt.
            pub fn encode(
                &self,
                keys: &crate::keys::Keys,
                repository: &crate::ids::RepositoryId,
                object_key: &str,
            ) -> crate::error::Result<Vec<u8>> {
                self.encode_with_salt(keys, repository, object_key, &crate::ids::random_bytes())
            }

            /// The same with a given salt: for golden files only, a salt is used once.
            pub(crate) fn encode_with_salt(
                &self,
                keys: &crate::keys::Keys,
                repository: &crate::ids::RepositoryId,
                object_key: &str,
                salt: &[u8; 32],
            ) -> crate::error::Result<Vec<u8>> {
                let body = self.to_body(object_key)?;
                Self::seal_body(&body, keys, repository, object_key, salt)
            }

            pub(crate) fn seal_body(
                body: &[u8],
                keys: &crate::keys::Keys,
                repository: &crate::ids::RepositoryId,
                object_key: &str,
                salt: &[u8; 32],
            ) -> crate::error::Result<Vec<u8>> {
                let place = crate::format::record::RecordPlace { repository, object_key };
                let with = crate::format::record::RecordSeal {
                    key: keys.metadata(),
                    seal: keys.encryption(),
                };
                crate::format::record::seal_record(&Self::KIND, place, with, salt, &[], body)
            }

            /// Opens what stands at an object key; everything about it is checked.
            pub fn decode(
                keys: &crate::keys::Keys,
                repository: &crate::ids::RepositoryId,
                object_key: &str,
                bytes: &[u8],
            ) -> crate::error::Result<Self> {
                let place = crate::format::record::RecordPlace { repository, object_key };
                let with = crate::format::record::RecordSeal {
                    key: keys.metadata(),
                    seal: keys.encryption(),
                };
                let body = crate::format::record::open_record(&Self::KIND, place, with, bytes)?;
                Self::from_body(object_key, &body)
            }
        }
    };
}
pub(crate) use metadata_record;

#[cfg(test)]
mod tests;
