//! Making a repository: its key first, then `format`, whose creation is what makes it one, then
//! the copy of that and the text for people.
//!
//! A run that stops in between leaves a key object that opens nothing (it is bound to a repository
//! id that never came to be); running it again makes another. Nothing is ever deleted here.

use super::{KNOWN_FEATURES, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::key::{Wrapping, wrap_master_key};
use crate::format::names::{BACKUPS_PREFIX, FORMAT_KEY, PACKS_PREFIX, TOP_KEYS, key_key};
use crate::format::repository::RepositoryParams;
use crate::ids::{KeyId, RepositoryId};
use crate::keys::{Credential, Encryption, KdfCost, Keys, MasterKey};
use crate::store::{Created, Store};
use crate::units::ChunkSize;
use bytes::Bytes;
use chrono::Utc;
use std::sync::Arc;

/// What a new repository is like.
#[derive(Debug)]
pub struct InitOptions {
    /// Chunk size of all its volumes.
    pub chunk: ChunkSize,
    /// Most chunks in one entry.
    pub entry_chunks: u16,
    /// Children of a map page, a power of two.
    pub page_fanout: u16,
    /// How it is sealed.
    pub encryption: Encryption,
    /// What opens it; none without encryption.
    pub credential: Option<Credential>,
    /// The user's name for the first key.
    pub label: String,
    /// Cost of a passphrase.
    pub kdf: KdfCost,
    /// Program and version.
    pub created_by: String,
}

impl Repository {
    /// Makes a repository in an empty place. One that holds `format`, packs or backups is refused
    /// (`AlreadyExists`), and so is it if somebody else made a repository there in the meantime. A
    /// directory that holds anything else is `Usage`.
    pub async fn init(store: Store, options: InitOptions) -> Result<Arc<Self>> {
        let context = format!("make a repository at {}", store.url());
        let master = MasterKey::random();
        let keys = Keys::derive(&master, options.encryption);
        let clear = options.encryption == Encryption::None;
        let params = RepositoryParams {
            repository_id: RepositoryId::random(),
            chunk: options.chunk,
            entry_chunks: options.entry_chunks,
            page_fanout: options.page_fanout,
            encryption: options.encryption,
            created: Utc::now(),
            created_by: options.created_by,
            clear_master_key: clear.then(|| master.clone()),
        };
        params.check()?;
        Self::refuse_used_place(&store).await?;

        let opened_with = match (&options.credential, clear) {
            (None, true) => None,
            (Some(credential), false) => {
                let wrapping = Wrapping {
                    credential,
                    label: &options.label,
                    kdf: options.kdf,
                    created: params.created,
                };
                let id = KeyId::random();
                let bytes = wrap_master_key(&master, &params.repository_id, &id, &wrapping)?;
                store.create(&key_key(&id), bytes.into()).await?;
                Some(id)
            }
            (None, false) => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    context,
                    "there is no key to encrypt with",
                )
                .hint("give a key file or a passphrase"));
            }
            (Some(_), true) => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    context,
                    "a key was given, but encryption is off",
                ));
            }
        };

        let format = Bytes::from(params.encode(&keys)?);
        match store.create(FORMAT_KEY, format.clone()).await? {
            Created::Now | Created::Ours => {}
            Created::Taken(_) => {
                let detail = "somebody else made one there at the same moment";
                return Err(Error::new(ErrorKind::AlreadyExists, context, detail));
            }
        }
        let (known, read_from) = (KNOWN_FEATURES, FORMAT_KEY);
        let keys = Arc::new(keys);
        let repo =
            Arc::new(Self { store, params, keys, master, opened_with, format, read_from, known });
        repo.write_rest_of_base().await;
        Ok(repo)
    }

    /// What [`init`](Self::init) refuses a place for, before anything else is made for it.
    pub async fn refuse_used_place(store: &Store) -> Result<()> {
        let context = format!("make a repository at {}", store.url());
        let refuse = |detail: &str, hint: &str| {
            Err(Error::new(ErrorKind::AlreadyExists, context.as_str(), detail).hint(hint))
        };
        for key in TOP_KEYS {
            if store.head(key).await?.is_some() {
                return refuse(
                    "there is a repository already",
                    "use it as it is, or choose another place",
                );
            }
        }
        for prefix in [PACKS_PREFIX, BACKUPS_PREFIX] {
            if store.any(prefix).await? {
                return refuse(
                    &format!("there are objects below {prefix}, but no `format`"),
                    "it may be a damaged repository: bring its `format` and `keys/` back, or choose another place",
                );
            }
        }
        store.refuse_other_things(&context)
    }
}
