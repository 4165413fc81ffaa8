//! Restores a range of bytes of a backup, to the same place of an image file or block device. An
//! absent file is made, as long as the volume; nothing else of the target is touched.
//!
//! ```sh
//! cargo run --example restore_range -- REPOSITORY KEY_FILE BACKUP START END TARGET
//! ```
//!
//! `BACKUP` is an id, the unique beginning of one, or `VOLUME@latest`.

#![allow(clippy::print_stdout, reason = "an example prints what it has done")]

use chunkstore::{Credential, Repository, StoreOptions, open_url};
use mover_engine::ops::restore::{RestoreOptions, RestoreTarget, restore};
use mover_engine::run::{Cancel, Progress};
use tokio::runtime::Runtime;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [place, key_file, backup, start, end, target] = args.as_slice() else {
        return Err("usage: restore_range REPOSITORY KEY_FILE BACKUP START END TARGET".into());
    };
    let runtime = Runtime::new()?;
    let key = Credential::from_key_file_bytes(&std::fs::read(key_file)?)?;
    let store = open_url(place, &StoreOptions::default())?;
    let repo = runtime.block_on(Repository::open(store, &[key]))?;

    let options = RestoreOptions {
        range: Some(start.parse()?..end.parse()?),
        // Otherwise a target with a file system or other data on it is refused.
        force: false,
        ..RestoreOptions::new(backup, RestoreTarget::Path(target.into()))
    };
    let done = restore(runtime.handle(), &repo, options, &Progress::new(), &Cancel::new())?;
    println!("{} bytes of data and {} zeros", done.data_bytes, done.zero_bytes);
    println!("{} requests of packs brought {} bytes", done.reads, done.fetched_bytes);
    Ok(())
}
