//! A repository that is there already, or is not: for those who look before they make one, and for
//! those who want to know no more than names.

use super::super::context::Context;
use super::super::keys;
use super::super::settings::RepositoryPlace;
use super::{embedded_url, given, is_repository, nowhere, open_embedded, place, unlock};
use chunkstore::{ErrorKind, Repository, Result, Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;

/// The store of a repository, to look at names in it; `None` where there is none.
pub(crate) fn listed_place(ctx: &Context, repo: Option<&str>) -> Result<Option<Store>> {
    let url = match (repo, &ctx.settings.place) {
        (Some(url), _) => url.to_owned(),
        (None, RepositoryPlace::Url(url)) => url.clone(),
        (None, RepositoryPlace::Embedded { directory, .. }) => embedded_url(directory)?,
        (None, RepositoryPlace::Nowhere) => return Ok(None),
    };
    place(ctx, &url, &StoreOptions::default()).map(Some)
}

/// Opens what is there with the key that a new repository would have; `None` where there is nothing.
pub(crate) fn open_existing(
    ctx: &Context,
    new_key_file: Option<&Path>,
) -> Result<Option<Arc<Repository>>> {
    let opened = match &ctx.settings.place {
        RepositoryPlace::Nowhere => Err(nowhere()),
        RepositoryPlace::Embedded { directory, .. } if !is_repository(directory) => {
            return Ok(None);
        }
        RepositoryPlace::Embedded { directory, key_file } => {
            open_embedded(ctx, directory, new_key_file.unwrap_or(key_file))
        }
        RepositoryPlace::Url(url) => {
            let store = place(ctx, url, &StoreOptions::default());
            store.and_then(|store| match new_key_file {
                None => unlock(ctx, store, &given(ctx, None)?),
                // that very key is to open it, and no other that happens to be given too
                Some(path) if path.exists() => {
                    let key = keys::read_key_file(path)?;
                    ctx.block_on(Repository::open(store, &[key]))
                }
                Some(path) => ctx.block_on(Repository::open(store, &[])).map_err(|e| {
                    let away =
                        format!("its key file {} is not there: bring it back", path.display());
                    if e.kind() == ErrorKind::WrongKey { e.without_hint().hint(away) } else { e }
                }),
            })
        }
    };
    match opened {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}
