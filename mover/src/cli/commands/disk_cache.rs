//! Files without a name that serving and mounting keep on a disk: where, and how much of it.

use super::super::args::DiskCacheArgs;
use super::super::context::Context;
use super::backup::scratch;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ops::serve::DiskCacheOptions;
use mover_engine::sizes::parse_size;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The cache that was asked for.
pub(super) fn disk_cache(ctx: &Context, args: &DiskCacheArgs) -> Result<Option<DiskCacheOptions>> {
    let given = args.disk_cache.as_deref().filter(|text| !text.is_empty());
    let Some(text) = given else { return Ok(None) };
    let context = "use --disk-cache";
    match parse_size(text).map_err(|e| e.within(context))? {
        0 => Err(Error::new(ErrorKind::Usage, context, "a cache of no bytes keeps nothing")
            .hint("give a size, such as 20GiB, or leave the flag out")),
        bytes_max => Ok(Some(DiskCacheOptions { directory: temporary_directory(ctx), bytes_max })),
    }
}

/// Where such files are made.
pub(super) fn temporary_directory(ctx: &Context) -> PathBuf {
    let settings = &ctx.settings;
    let Some(directory) = scratch(&settings.resources) else {
        return settings.service.temporary.clone();
    };
    // whoever makes a file there says what is wrong
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    directory
}
