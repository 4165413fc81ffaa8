//! The wrappings of the master key: `keys/<key id>`.
//!
//! Removing one keeps its credential from opening the repository from now on. It takes back nothing
//! from somebody who has opened it before: the master key stays what it is.
//!
//! # Removing a key while others remove keys
//!
//! A removal must never delete the last key, and two that run at once must not delete each other's.
//! Nothing here waits for anybody, and any process may die after any step. The steps:
//!
//! 1. Say which key goes: create `removals/<that key>/<random>`.
//! 2. List the removals of the key that this process opened the repository with. Is there one, end.
//! 3. Look that this key is still there. Is it not, end.
//! 4. Delete the key that goes.
//! 5. Delete all removals of it: whosever they are, what they were for is done.
//!
//! Why a key is left: say that of a removal X the own key is deleted too, by Y. It was there in step
//! 3 of X, so Y deleted it later, and until then Y had its step 1 in the store. X has not seen that
//! in step 2, so Y made it after that, and Y's step 2 came later than X's. Of all removals that came
//! to step 4 one has the last step 2; so nobody has deleted its own key. `keyring/tests.rs` goes
//! through the interleavings, with a death after every step.
//!
//! A removal that ends at step 2 or 3 takes back its own step 1. One that died, or that does not
//! know whether its deletion arrives, leaves it, and then it keeps the holder of that key from
//! removing others until somebody finishes it.

use super::{RECORD_OVERHEAD, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::key::{
    KeyInfo, KeyKind, Wrapping, read_key_info, unwrap_master_key, wrap_master_key,
};
use crate::format::names::{KEYS_PREFIX, key_key, parse_key_key, removal_key, removals_of};
use crate::ids::{KeyId, RepositoryId};
use crate::keys::{Credential, Encryption, KdfCost, MasterKey};
use crate::limits::SMALL_RECORD_BYTES_MAX;
use crate::store::{Listed, Store};
use bytes::Bytes;
use chrono::Utc;
use futures::{StreamExt, stream};

/// Key objects read at a time.
const IN_FLIGHT: usize = 8;
const KEY_BYTES_MAX: u64 = SMALL_RECORD_BYTES_MAX as u64 + RECORD_OVERHEAD;

/// One key object that could be read.
struct KeyFound {
    info: KeyInfo,
    bytes: Bytes,
}

/// The master key, and which wrapping gave it; of the key objects that were listed, if they were.
pub(super) async fn unlock(
    store: &Store,
    repository: &RepositoryId,
    credentials: &[Credential],
    listed: Option<Result<Vec<Listed>>>,
) -> Result<(MasterKey, KeyId)> {
    let wrong = |detail: String| {
        Error::new(ErrorKind::WrongKey, format!("open repository {}", store.url()), detail)
    };
    if credentials.is_empty() {
        return Err(wrong("it is encrypted, and no key was given".into())
            .hint("give its key file or its passphrase"));
    }
    let listed = match listed {
        Some(listed) => listed?,
        None => store.list(KEYS_PREFIX).await?,
    };
    let (mut found, problems) = read_listed(store, listed).await?;
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
async fn read_all(store: &Store) -> Result<(Vec<KeyFound>, Vec<Error>)> {
    read_listed(store, store.list(KEYS_PREFIX).await?).await
}

async fn read_listed(store: &Store, listed: Vec<Listed>) -> Result<(Vec<KeyFound>, Vec<Error>)> {
    let keys = listed.into_iter().map(|l| l.key).filter(|key| parse_key_key(key).is_ok());
    let read = |key: String| async move {
        let open = |bytes: &Bytes| {
            Ok(KeyFound { info: read_key_info(&key, bytes)?, bytes: bytes.clone() })
        };
        // one that is removed right now is as good as gone
        store.open_opt(&key, KEY_BYTES_MAX, open).await
    };
    let results: Vec<Result<Option<KeyFound>>> =
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
        self.refuse_unknown_to_write("add a key to").await?;
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
    /// always one left that is known to open it, also when several remove keys at once.
    ///
    /// Errors: `Unavailable` if the removal of the own key is under way.
    pub async fn remove_key(&self, id: &KeyId) -> Result<()> {
        self.refuse_without_encryption("remove a key of")?;
        self.refuse_unknown_to_write("remove a key of").await?;
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
        let removal = removal_key(id, &KeyId::random());
        self.store.put(&removal, Bytes::new()).await?; // 1
        if let Err(e) = self.confirm_own_key().await {
            self.take_back(&removal).await;
            return Err(e.within(context()));
        }
        self.store.delete(&key_key(id)).await?; // 4
        let done = self.store.list(&removals_of(id)).await?;
        self.store.delete_all(done.into_iter().map(|l| l.key).collect()).await // 5
    }

    /// Steps 2 and 3, in this order.
    async fn confirm_own_key(&self) -> Result<()> {
        let Some(own) = self.opened_with else {
            return Err(Error::new(ErrorKind::Bug, "look for the own key", "there is none"));
        };
        if let Some(removal) = self.store.list(&removals_of(&own)).await?.first() {
            let detail = format!(
                "{own}, which the repository was opened with, is being removed itself, since {}",
                removal.last_modified
            );
            return Err(Error::new(ErrorKind::Unavailable, "confirm the own key", detail).hint(
                format!("wait and open it anew; if whoever did that is no more, finish it with another key (`key remove {own}`) or delete {}", removal.key),
            ));
        }
        if self.store.head(&key_key(&own)).await?.is_none() {
            let detail = format!("{own}, which the repository was opened with, was removed since");
            return Err(Error::new(ErrorKind::Unavailable, "confirm the own key", detail)
                .hint("run it again: with another key, if this one does not open it any more"));
        }
        Ok(())
    }

    /// Nothing was deleted for it. Staying behind it harms nobody's data.
    async fn take_back(&self, removal: &str) {
        if let Err(e) = self.store.delete(removal).await {
            tracing::warn!("{removal} stays behind: {e}");
        }
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

#[cfg(test)]
mod tests;
