//! The synthetic volume as files: for programs that measure others on it.

use crate::failed;
use crate::stop::Stop;
use benches::synthetic;
use chunkstore::Result;
use std::path::PathBuf;

/// What can be typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the three files: volume.img, volume-later.img, changed.json
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Size of the volume
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = crate::engines::size)]
    size: u64,
}

pub(crate) fn run(args: &Args, stop: &Stop) -> Result<()> {
    let asked = || stop.stopped();
    let what = || format!("make a synthetic volume in {}", args.folder.display());
    synthetic::make(&args.folder, args.size, &asked).map_err(|e| failed(what(), e))?;
    Ok(())
}
