//! Manual pages, one for each command, from the same tree as the help. The release ships them.

use super::args;
use chunkstore::{Error, ErrorKind, Result};
use std::path::Path;

/// Writes all of them into a directory.
pub(crate) fn write(directory: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        let context = format!("write manual pages into {}", directory.display());
        Error::caused(ErrorKind::Device, context, e)
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(args::command(), directory).map_err(failed)
}
