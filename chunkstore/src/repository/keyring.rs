//! The wrappings of the master key: `keys/<key id>`.
//!
//! Removing one keeps its credential from opening the repository from now on. It takes back nothing
//! from somebody who has opened it before: the master key stays what it is.

use super::{RECORD_OVERHEAD, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::key::{
    KeyInfo, KeyKind, Wrapping, read_key_info, unwrap_master_key, wrap_master_key,
};
use crate::format::names::{KEYS_PREFIX, key_key, parse_key_key};
use crate::ids::{KeyId, RepositoryId};
use crate::keys::{Credential, Encryption, KdfCost, MasterKey};
use crate::limits::SMALL_RECORD_BYTES_MAX;
use crate::store::Store;
use bytes::Bytes;
use chrono::Utc;
use futures::{StreamExt, stream};

/// Key objects read at a time.
const IN_FLIGHT: usize = 8;
const KEY_BYTES_MAX: u64 = SMALL_RECORD_BYTES_MAX as u64 + RECORD_OVERHEAD;

/// One key object that could be read.
struct Found {
    info: KeyInfo,
    bytes: Bytes,
}

/// The master key, and which wrapping gave it.
pub(super) async fn unlock(
    store: &Store,
    repository: &RepositoryId,
    credentials: &[Credential],
) -> Result<(MasterKey, KeyId)> {
    let wrong = |detail: String| {
        Error::new(ErrorKind::WrongKey, format!("open repository {}", store.url()), detail)
    };
    if credentials.is_empty() {
        return Err(wrong("it is encrypted, and no key was given".into())
            .hint("give its key file or its passphrase"));
    }
    let (mut found, problems) = read_all(store).await?;
    if found.is_empty() && problems.is_empty() {
        let context = format!("open repository {}", store.url());
        return Err(Error::new(ErrorKind::Missing, context, "it has no key objects left")
            .hint("bring `keys/` back from a copy: without it nothing can be decrypted"));
    }
    // key files cost nothing to try, passphrases a second each
    found.sort_by_key(|f| (matches!(f.info.kind, KeyKind::Passphrase(_)), f.info.created));
    for key in &found {
        let object_key = key_key(&key.info.id);
        for credential in credentials.iter().filter(|c| c.kind() == key.info.kind.as_str()) {
            match unwrap_master_key(credential, repository, &object_key, &key.bytes) {
                Ok(master) => return Ok((master, key.info.id)),
                Err(e) if e.kind() == ErrorKind::WrongKey => {}
                Err(e) => return Err(e),
            }
        }
    }
    if found.is_empty() {
        let texts: Vec<_> = problems.iter().map(Error::to_string).collect();
        let context = format!("open repository {}", store.url());
        let detail = format!("none of its keys can be read: {}", texts.join("; "));
        return Err(Error::new(ErrorKind::Corrupt, context, detail)
            .hint("run it again; if it stays so, bring `keys/` back from a copy"));
    }
    let given: Vec<_> = credentials.iter().map(Credential::kind).collect();
    let mut detail = format!("no key that was given ({}) opens it", given.join(", "));
    for problem in &problems {
        detail.push_str(&format!("; {problem}"));
    }
    let kinds: Vec<_> =
        found.iter().map(|f| format!("{} {:?}", f.info.kind.as_str(), f.info.label)).collect();
    Err(wrong(detail).hint(format!("it opens with: {}", kinds.join(", "))))
}

/// All key objects; what cannot be read does not hide the others.
async fn read_all(store: &Store) -> Result<(Vec<Found>, Vec<Error>)> {
    let listed = store.list(KEYS_PREFIX).await?;
    let keys = listed.into_iter().map(|l| l.key).filter(|key| parse_key_key(key).is_ok());
    let read = |key: String| async move {
        // one that is removed right now is as good as gone
        let Some(bytes) = store.get_opt_at_most(&key, KEY_BYTES_MAX).await? else {
            return Ok(None);
        };
        Ok(Some(Found { info: read_key_info(&key, &bytes)?, bytes }))
    };
    let results: Vec<Result<Option<Found>>> =
        stream::iter(keys).map(read).buffer_unordered(IN_FLIGHT).collect().await;
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(key) => found.extend(key),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                problems.push(e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok((found, problems))
}

impl Repository {
    /// Wraps the master key once more. A credential that opens the repository already is refused:
    /// who removed one of two such keys would believe that it opens nothing any more.
    pub async fn add_key(
        &self,
        credential: &Credential,
        label: &str,
        kdf: KdfCost,
    ) -> Result<KeyId> {
        self.refuse_without_encryption("add a key to")?;
        let (found, _) = read_all(&self.store).await?;
        for key in found.iter().filter(|found| found.info.kind.as_str() == credential.kind()) {
            let object_key = key_key(&key.info.id);
            if unwrap_master_key(credential, self.id(), &object_key, &key.bytes).is_ok() {
                let context = format!("add a key to {}", self.store.url());
                let detail =
                    format!("it opens it already, as {} ({})", key.info.id, key.info.label);
                return Err(Error::new(ErrorKind::Usage, context, detail));
            }
        }
        let id = KeyId::random();
        let wrapping = Wrapping { credential, label, kdf, created: Utc::now() };
        let bytes = wrap_master_key(&self.master, self.id(), &id, &wrapping)?;
        self.store.create(&key_key(&id), bytes.into()).await?;
        Ok(id)
    }

    /// Removes a wrapping. The one that this repository was opened with is refused: so there is
    /// always one left that is known to open it.
    pub async fn remove_key(&self, id: &KeyId) -> Result<()> {
        self.refuse_without_encryption("remove a key of")?;
        let context = || format!("remove key {id} of {}", self.store.url());
        if self.store.head(&key_key(id)).await?.is_none() {
            return Err(Error::new(ErrorKind::NotFound, context(), "there is no such key"));
        }
        if self.opened_with == Some(*id) {
            return Err(Error::new(
                ErrorKind::Usage,
                context(),
                "it is the key that the repository was opened with just now",
            )
            .hint("add another key, then remove this one while using the other: so nobody is locked out"));
        }
        self.store.delete(&key_key(id)).await
    }

    /// What the key objects say of themselves, oldest first. One that cannot be read is left out,
    /// with a warning.
    pub async fn list_keys(&self) -> Result<Vec<KeyInfo>> {
        let (found, problems) = read_all(&self.store).await?;
        for problem in problems {
            tracing::warn!("{problem}");
        }
        let mut infos: Vec<_> = found.into_iter().map(|f| f.info).collect();
        infos.sort_by_key(|info| (info.created, info.id));
        Ok(infos)
    }

    /// The wrapping that this repository was opened with.
    pub fn opened_with(&self) -> Option<&KeyId> {
        self.opened_with.as_ref()
    }

    fn refuse_without_encryption(&self, what: &str) -> Result<()> {
        if self.params.encryption != Encryption::None {
            return Ok(());
        }
        let context = format!("{what} {}", self.store.url());
        Err(Error::new(ErrorKind::Usage, context, "this repository is not encrypted"))
    }
}
