//! A repository's place for those who want to know no more than names.

use super::super::context::Context;
use super::super::settings::RepositoryPlace;
use super::{embedded_url, place};
use chunkstore::{Result, Store, StoreOptions};

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
