//! `format`: the parameters of a repository. `docs/format.md`, section 5.
//!
//! It must be read before the keys are known, so its tag is checked in a second step:
//! [`UnverifiedParams`] gives what is needed to find the master key, and
//! [`UnverifiedParams::verify`] the parameters that may be used.

use super::json::{self, Head, int63};
use super::record::{RecordKind, RecordPlace, RecordSeal, Salt, seal_record, view_record};
use super::{bug, corrupt, unsupported};
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::FORMAT_KEY;
use crate::ids::{RepositoryId, random_bytes};
use crate::keys::{Encryption, Keys, MasterKey};
use crate::limits::{
    ENTRY_CHUNKS_MAX, ENTRY_PLAIN_BYTES_MAX, MAGIC_FORMAT, PAGE_FANOUT_MAX, PAGE_FANOUT_MIN,
};
use crate::units::ChunkSize;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

const KIND: RecordKind = RecordKind {
    name: "repository parameters",
    magic: MAGIC_FORMAT,
    body_bytes_max: 0,
    clear: true,
};
/// The id is part of what is being read, so it cannot be part of what the tag is computed over
/// beside it.
const NO_REPOSITORY: RepositoryId = RepositoryId::from_bytes([0; 16]);
const PLACE: RecordPlace<'_> = RecordPlace { repository: &NO_REPOSITORY, object_key: FORMAT_KEY };
const TYPE: &str = "repository";
/// The one bit of `required_features` that format version 1 knows, and always has: all that is
/// added later has an object below `features/`. Programs that do not look there refuse it.
const FEATURES_HAVE_OBJECTS: u64 = 1;
const BEFORE_VERSION_1: &str =
    "it was made by a development version, before format version 1 was final";

/// Parameters of a repository; fixed when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryParams {
    /// Random; binds every object to this repository.
    pub repository_id: RepositoryId,
    /// Chunk size of all its volumes.
    pub chunk: ChunkSize,
    /// G: most chunks in one entry.
    pub entry_chunks: u16,
    /// F: children of a page; a power of two.
    pub page_fanout: u16,
    /// How it is sealed.
    pub encryption: Encryption,
    /// When it was made.
    pub created: DateTime<Utc>,
    /// Program that made it.
    pub created_by: String,
    /// The master key, of a repository without encryption only.
    pub clear_master_key: Option<MasterKey>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    repository_id: RepositoryId,
    #[serde(deserialize_with = "int63")]
    required_features: u64,
    chunk_bytes: u32,
    entry_chunks: u16,
    page_fanout: u16,
    encryption: Encryption,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clear_master_key: Option<String>,
    created: DateTime<Utc>,
    created_by: String,
}

/// Parameters whose tag was not checked yet: good for finding the keys, and for nothing else.
#[derive(Debug)]
pub struct UnverifiedParams<'a> {
    params: RepositoryParams,
    bytes: &'a [u8],
    /// What is unknown here: if the tag is good, a newer version has written it.
    newer: Option<Error>,
}

/// Refuses sizes that are out of their limits: for one who is about to make a repository.
pub fn check_parameters(chunk: ChunkSize, entry_chunks: u16, page_fanout: u16) -> Result<()> {
    match size_problem(chunk, entry_chunks, page_fanout) {
        None => Ok(()),
        Some(problem) => {
            Err(Error::new(ErrorKind::Usage, "use these repository parameters", problem))
        }
    }
}

fn size_problem(chunk: ChunkSize, entry_chunks: u16, page_fanout: u16) -> Option<String> {
    if !(1..=ENTRY_CHUNKS_MAX).contains(&entry_chunks) {
        return Some(format!("{entry_chunks} chunks in an entry are not 1 to {ENTRY_CHUNKS_MAX}"));
    }
    let entry_bytes = u64::from(chunk.bytes()) * u64::from(entry_chunks);
    if entry_bytes > u64::from(ENTRY_PLAIN_BYTES_MAX) {
        return Some(format!(
            "an entry of {entry_chunks} chunks of {} bytes is longer than {ENTRY_PLAIN_BYTES_MAX}",
            chunk.bytes()
        ));
    }
    let power = page_fanout.is_power_of_two();
    (!(PAGE_FANOUT_MIN..=PAGE_FANOUT_MAX).contains(&page_fanout) || !power).then(|| {
        format!(
            "{page_fanout} children of a page are not a power of two from {PAGE_FANOUT_MIN} to {PAGE_FANOUT_MAX}"
        )
    })
}

impl RepositoryParams {
    /// What is wrong with the parameters, if something is.
    fn problem(&self) -> Option<String> {
        let problem = size_problem(self.chunk, self.entry_chunks, self.page_fanout);
        if problem.is_some() {
            return problem;
        }
        match (self.encryption, &self.clear_master_key) {
            (Encryption::None, Some(_)) | (Encryption::Aes256Gcm, None) => None,
            (Encryption::None, None) => Some("its master key is not in it".into()),
            (Encryption::Aes256Gcm, Some(_)) => {
                Some("it is encrypted, yet its key is in it".into())
            }
        }
    }

    /// Refuses parameters that are out of their limits: for one who makes a repository.
    pub fn check(&self) -> Result<()> {
        match self.problem() {
            None => Ok(()),
            Some(problem) => {
                Err(Error::new(ErrorKind::Usage, "use these repository parameters", problem))
            }
        }
    }

    /// Bytes of `format`. The keys are those of this repository's master key.
    pub fn encode(&self, keys: &Keys) -> Result<Vec<u8>> {
        self.encode_with_salt(keys, &random_bytes())
    }

    pub(crate) fn encode_with_salt(&self, keys: &Keys, salt: &Salt) -> Result<Vec<u8>> {
        self.check()?;
        if keys.encryption() != self.encryption {
            return Err(bug(KIND.name, "the keys are for another encryption"));
        }
        let body = Body {
            repository_id: self.repository_id,
            required_features: FEATURES_HAVE_OBJECTS,
            chunk_bytes: self.chunk.bytes(),
            entry_chunks: self.entry_chunks,
            page_fanout: self.page_fanout,
            encryption: self.encryption,
            clear_master_key: self.clear_master_key.as_ref().map(|k| hex::encode(k.as_bytes())),
            created: self.created,
            created_by: self.created_by.clone(),
        };
        let clear = json::write(KIND.name, TYPE, &body)?;
        let with = RecordSeal { key: keys.format(), seal: Encryption::None };
        seal_record(&KIND, PLACE, with, salt, &clear, &[])
    }

    /// Reads `format`; see [`UnverifiedParams`].
    pub fn decode(bytes: &[u8]) -> Result<UnverifiedParams<'_>> {
        let view = view_record(&KIND, FORMAT_KEY, bytes)?;
        let unknown = |e: Error| if e.kind() == ErrorKind::Unsupported { Ok(e) } else { Err(e) };
        let mut newer = view.check_known(KIND.name).err().map(unknown).transpose()?;
        if view.seal().is_some_and(|seal| seal != Encryption::None) {
            return Err(corrupt(KIND.name, "its seal is not a checksum"));
        }
        let head = Head::expect(KIND.name, view.clear, TYPE).err().map(unknown).transpose()?;
        // features first: what follows may look different with one that is unknown here
        let features: Features = json::parse(KIND.name, view.clear)?;
        let features = match features.required_features {
            FEATURES_HAVE_OBJECTS => None,
            0 => Some(
                Error::new(ErrorKind::Unsupported, format!("read {}", KIND.name), BEFORE_VERSION_1)
                    .hint("use the program that made it to restore from it, and back up into a new repository"),
            ),
            bits => Some(unsupported(KIND.name, format!("it needs features {bits:#x}"))),
        };
        newer = newer.or(head).or(features);
        let body: Body = match (json::parse(KIND.name, view.clear), newer.take()) {
            (Ok(body), unknown) => {
                newer = unknown;
                body
            }
            // without it there are no keys, and without keys nothing vouches for anything
            (Err(_), Some(newer)) => return Err(newer),
            (Err(e), None) => return Err(e),
        };
        let chunk = ChunkSize::new(body.chunk_bytes)
            .map_err(|_| corrupt(KIND.name, format!("{} is no chunk size", body.chunk_bytes)))?;
        let clear_master_key = body.clear_master_key.as_deref().map(read_master_key).transpose()?;
        let params = Self {
            repository_id: body.repository_id,
            chunk,
            entry_chunks: body.entry_chunks,
            page_fanout: body.page_fanout,
            encryption: body.encryption,
            created: body.created,
            created_by: body.created_by,
            clear_master_key,
        };
        match params.problem() {
            None => Ok(UnverifiedParams { params, bytes, newer }),
            Some(problem) => Err(corrupt(KIND.name, problem)),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Features {
    #[serde(deserialize_with = "int63")]
    required_features: u64,
}

fn read_master_key(text: &str) -> Result<MasterKey> {
    let mut bytes = [0; 32];
    if text.bytes().any(|b| b.is_ascii_uppercase())
        || hex::decode_to_slice(text, &mut bytes).is_err()
    {
        return Err(corrupt(KIND.name, "its master key is not 64 lowercase hex digits"));
    }
    Ok(MasterKey::from_bytes(bytes))
}

impl UnverifiedParams<'_> {
    /// The parameters as they stand there: an attacker may have written them.
    pub fn unverified(&self) -> &RepositoryParams {
        &self.params
    }

    /// What is unknown of it, where the keys cannot be had that would tell whether a newer version
    /// has written it.
    pub fn into_unknown(self) -> Option<Error> {
        self.newer
    }

    /// Checks the tag, and only then whether all of it is known here. Keys that do not fit: the object was changed, or they are of another
    /// repository.
    pub fn verify(self, keys: &Keys) -> Result<RepositoryParams> {
        let view = view_record(&KIND, FORMAT_KEY, self.bytes)?;
        if keys.encryption() != self.params.encryption {
            return Err(bug(KIND.name, "the keys are for another encryption"));
        }
        let with = RecordSeal { key: keys.format(), seal: Encryption::None };
        match (view.open(PLACE, with)?, self.newer) {
            (Some(_), None) => Ok(self.params),
            (Some(_), Some(newer)) => Err(newer),
            (None, _) => Err(corrupt(
                KIND.name,
                "its authentication tag does not fit: it was changed after the repository was made",
            )),
        }
    }
}

#[cfg(test)]
mod tests;
