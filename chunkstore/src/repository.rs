//! An open repository: its parameters, its keys, and what is in it.
//!
//! [`Repository::open`] finds the master key and checks that `format` was made with it; nothing
//! else is used before that. This module makes repositories, manages their keys and finds backups.
//! It takes no leases: what a writer or reader must do so that nothing is deleted under it is in
//! [`protocol`](crate::protocol).
//!
//! It holds no cache. Two values say the same of the store at any time, whoever changes it.

mod attempts;
mod backups;
mod base;
pub(crate) mod condemned;
mod features;
mod find;
mod hold;
mod init;
mod keyring;
mod objects;
mod selector;

#[cfg(test)]
mod tests;

pub(crate) use attempts::keep_highest;
pub(crate) use backups::before;
pub use backups::{BackupEntry, NewestSeen, Recent};
pub use base::BaseProblem;
pub use condemned::{DamagedSet, read_damaged};
pub use features::{ATTACHMENTS, AddedFeature, KNOWN_FEATURES, KnownFeature};
pub(crate) use hold::HOLD_SECONDS;
pub use hold::{Hold, TakenHold, hold_on};
pub use init::InitOptions;
pub use objects::{PackTotals, SegmentInfo};
pub use selector::TimePrefix;

use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::{FEATURES_PREFIX, FORMAT_COPY_KEY, FORMAT_KEY, KEYS_PREFIX};
use crate::format::repository::RepositoryParams;
use crate::ids::{KeyId, RepositoryId};
use crate::keys::{Credential, Encryption, Keys, MasterKey};
use crate::limits::{RECORD_CLEAR_BYTES_MAX, RECORD_HEADER_BYTES, TAG_BYTES};
use crate::store::{Listed, Probe, Store};
use bytes::Bytes;
use std::sync::Arc;

/// Bytes of a record around its body, at most.
pub(crate) const RECORD_OVERHEAD: u64 =
    (RECORD_HEADER_BYTES + RECORD_CLEAR_BYTES_MAX + TAG_BYTES) as u64;

/// What a store does that has no create-once.
pub(crate) const WRITES_OVER: &str =
    "writes over objects that it was asked to create only if absent";

/// Whether the store refuses to create what exists: what all coordination rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateOnce {
    /// It does.
    Holds,
    /// It writes over it. Backups by one writer at a time are safe; garbage collection is not.
    Ignored,
    /// Credentials do not allow to find out.
    Unknown,
}

impl CreateOnce {
    /// What to tell the user of a store that backups are made in.
    pub fn warning(self, store: &Store) -> Option<String> {
        let url = store.url();
        (self == Self::Ignored).then(|| {
            format!(
                "{url} {WRITES_OVER}: two backups of one volume must never run at the same time here, and garbage \
                 collection is refused"
            )
        })
    }
}

impl From<Probe> for CreateOnce {
    fn from(probe: Probe) -> Self {
        match probe {
            Probe::Refused => Self::Holds,
            Probe::WroteOver => Self::Ignored,
            Probe::Denied => Self::Unknown,
        }
    }
}

/// Whether another copy of `format` may open what this one did not: a flipped bit may be in the id
/// that the keys are bound to. That no key was given is no damage.
fn may_be_damaged(e: &Error, credentials: &[Credential]) -> bool {
    match e.kind() {
        ErrorKind::Corrupt => true,
        ErrorKind::WrongKey => !credentials.is_empty(),
        _ => false,
    }
}

fn repair() -> &'static str {
    Advice::Repair.words()
}

/// An open repository.
#[derive(Debug)]
pub struct Repository {
    store: Store,
    params: RepositoryParams,
    keys: Arc<Keys>,
    master: MasterKey,
    /// Which wrapping gave the master key; `None` without encryption.
    opened_with: Option<KeyId>,
    /// `format` as stored, and the key that it was read from.
    format: Bytes,
    read_from: &'static str,
    known: &'static [KnownFeature],
}

impl Repository {
    /// Opens the repository at `store` with the first of the credentials that fits one of its keys.
    ///
    /// Errors: `NotFound` (nothing here), `Unsupported` (a newer format), `WrongKey`, `Corrupt`
    /// (`format` was changed). With a passphrase this computes for a good part of a second without
    /// giving way to other tasks.
    pub async fn open(store: Store, credentials: &[Credential]) -> Result<Arc<Self>> {
        Self::open_knowing(store, credentials, KNOWN_FEATURES).await
    }

    /// The same for a program that knows other features: for tests.
    pub(crate) async fn open_knowing(
        store: Store,
        credentials: &[Credential],
        known: &'static [KnownFeature],
    ) -> Result<Arc<Self>> {
        // alone: a store that does not answer well is asked for one object, again and again
        let Some((key, format)) = base::either_copy(&store).await? else {
            return Err(Self::nothing_here(&store).await?);
        };
        // together: neither needs the answer of the other, and the second one makes a connection
        let opened = async {
            let keys = match credentials {
                [] => None,
                _ => Some(store.list(KEYS_PREFIX).await),
            };
            Self::open_with(&store, &format, (credentials, keys), known).await
        };
        let (opened, features) = futures::join!(opened, store.list(FEATURES_PREFIX));
        if key != FORMAT_KEY {
            tracing::warn!("`format` of {} is gone; its copy is used: {}", store.url(), repair());
        }
        let repo = match opened {
            Ok(repo) => Self { read_from: key, ..repo },
            Err(e) if key == FORMAT_KEY && may_be_damaged(&e, credentials) => {
                let Some(copy) = base::other_copy(&store, &format).await else { return Err(e) };
                let Ok(repo) = Self::open_with(&store, &copy, (credentials, None), known).await
                else {
                    return Err(e);
                };
                // what is sealed is not opened by a copy that says it is not, whoever wrote that
                let sealed = RepositoryParams::decode(&format)
                    .is_ok_and(|found| found.unverified().encryption != Encryption::None);
                if sealed && repo.params.encryption == Encryption::None {
                    return Err(e);
                }
                let e = e.without_hint();
                tracing::warn!(
                    "the copy of `format` is used, as that is damaged ({e}): {}",
                    repair()
                );
                Self { read_from: FORMAT_COPY_KEY, ..repo }
            }
            Err(e) => return Err(e),
        };
        repo.refuse_unknown_to_read(features?).await?;
        Ok(Arc::new(repo))
    }

    /// With the bytes of `format`, from wherever, and the key objects if they have been listed.
    async fn open_with(
        store: &Store,
        format: &Bytes,
        (credentials, keys): (&[Credential], Option<Result<Vec<Listed>>>),
        known: &'static [KnownFeature],
    ) -> Result<Self> {
        let within = |e: Error| e.within(format!("open repository {}", store.url()));
        let found = RepositoryParams::decode(format).map_err(within)?;
        let (master, opened_with) = match &found.unverified().clear_master_key {
            // Who may write to the store could put such an object in the place of an encrypted
            // repository's, and what is backed up next would go out in the clear.
            Some(_) if !credentials.is_empty() => {
                let what = format!("open repository {}", store.url());
                return Err(Error::new(ErrorKind::Usage, what, "a key is given, but it is not encrypted")
                    .hint("leave the key out if that is meant; otherwise somebody has replaced the repository"));
            }
            Some(master) => (master.clone(), None),
            None => {
                let id = found.unverified().repository_id;
                match keyring::unlock(store, &id, credentials, keys).await {
                    Ok((master, key)) => (master, Some(key)),
                    Err(e) => return Err(found.into_unknown().map_or(e, within)),
                }
            }
        };
        let keys = Keys::derive(&master, found.unverified().encryption);
        let params = found.verify(&keys).map_err(within)?;
        let (store, format) = (store.clone(), format.clone());
        let (keys, read_from) = (Arc::new(keys), FORMAT_KEY);
        Ok(Self { store, params, keys, master, opened_with, format, read_from, known })
    }

    async fn nothing_here(store: &Store) -> Result<Error> {
        let context = format!("open repository {}", store.url());
        if store.any("packs").await? {
            return Ok(Error::new(
                ErrorKind::Missing,
                context,
                "there are packs here, but `format` and its copy are gone",
            )
            .hint(
                "bring `format`, or its copy `format-copy`, back from a copy of the repository or an older version of the object",
            ));
        }
        Ok(Error::new(ErrorKind::NotFound, context, "there is no repository here")
            .hint("correct the URL, or make a repository with `init`"))
    }

    /// Its parameters.
    pub fn params(&self) -> &RepositoryParams {
        &self.params
    }

    /// Its keys.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Its objects.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Its id.
    pub fn id(&self) -> &RepositoryId {
        &self.params.repository_id
    }

    /// The same repository for what goes on by itself beside an operation: its requests are no
    /// movement ([`Store::in_background`]).
    pub(crate) fn in_background(&self) -> Arc<Self> {
        Arc::new(Self {
            store: self.store.in_background(),
            params: self.params.clone(),
            keys: Arc::clone(&self.keys),
            master: self.master.clone(),
            opened_with: self.opened_with,
            format: self.format.clone(),
            read_from: self.read_from,
            known: self.known,
        })
    }

    /// Finds out whether the store refuses to create what exists, by creating `format` again, or
    /// the copy that was read, with its very bytes. Writers ask with their leases instead.
    pub async fn probe_create_once(&self) -> Result<CreateOnce> {
        Ok(self.store.probe_create(self.read_from, self.format.clone()).await?.into())
    }
}
