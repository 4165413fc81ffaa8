//! Backs up an image file or a block device into a directory. A repository and its key file are made
//! where the key file is absent.
//!
//! ```sh
//! cargo run --example backup_file -- REPOSITORY KEY_FILE SOURCE VOLUME
//! ```
//!
//! A second run reads the whole source again and stores only what has changed.

#![allow(clippy::print_stdout, reason = "an example prints what it has done")]

use chunkstore::{
    ChunkSize, Credential, Encryption, InitOptions, KdfCost, Repository, Result, Store,
    StoreOptions, VolumeName, open_url, random_bytes,
};
use mover_engine::ops::backup::{BackupOptions, backup};
use mover_engine::run::{Cancel, Progress};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use tokio::runtime::Runtime;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [place, key_file, source, volume] = args.as_slice() else {
        return Err("usage: backup_file REPOSITORY KEY_FILE SOURCE VOLUME".into());
    };
    // The store is asked on this runtime; the stages of the backup have threads of their own.
    let runtime = Runtime::new()?;
    let store = open_url(place, &StoreOptions { create_dir: true, ..StoreOptions::default() })?;
    let repo = if std::fs::exists(key_file)? {
        let key = Credential::from_key_file_bytes(&std::fs::read(key_file)?)?;
        runtime.block_on(Repository::open(store, &[key]))?
    } else {
        let key: [u8; 32] = random_bytes();
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(key_file)?
            .write_all(&key)?;
        runtime.block_on(make_repository(store, &key))?
    };

    let options =
        BackupOptions { volume: Some(VolumeName::new(volume)?), ..BackupOptions::new(source) };
    // Another thread could show the progress, and ask for the end of the run.
    let (progress, cancel) = (Progress::new(), Cancel::new());
    let made = backup(runtime.handle(), &repo, &options, &progress, &cancel)?;
    println!("{} of volume {}", made.backup_id, made.volume);
    println!("{} bytes of {} are new", made.new_bytes, made.size_bytes);
    Ok(())
}

/// A repository with the parameters that the program chooses, which `docs/format.md` explains.
async fn make_repository(store: Store, key: &[u8]) -> Result<Arc<Repository>> {
    let options = InitOptions {
        chunk: ChunkSize::new(64 << 10)?,
        entry_chunks: 16,
        page_fanout: 128,
        encryption: Encryption::Aes256Gcm,
        credential: Some(Credential::from_key_file_bytes(key)?),
        label: "example".into(),
        kdf: KdfCost::default(),
        created_by: "an example".into(),
    };
    Repository::init(store, options).await
}
