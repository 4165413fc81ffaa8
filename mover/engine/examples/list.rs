//! Lists the backups of a repository, by volume and from the oldest to the newest.
//!
//! ```sh
//! cargo run --example list -- REPOSITORY KEY_FILE
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints what it finds")]

use chunkstore::{Credential, Repository, StoreOptions, open_url};
use tokio::runtime::Runtime;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [place, key_file] = args.as_slice() else {
        return Err("usage: list REPOSITORY KEY_FILE".into());
    };
    let key = Credential::from_key_file_bytes(&std::fs::read(key_file)?)?;
    let store = open_url(place, &StoreOptions::default())?;
    Runtime::new()?.block_on(async {
        let repo = Repository::open(store, &[key]).await?;
        // One damaged manifest does not hide the others.
        let (backups, problems) = repo.list_backups(None).await?;
        for backup in &backups {
            let made = &backup.manifest;
            let stored = made.stats.new_bytes;
            println!("{} {} {} bytes, {stored} new", made.volume, made.backup_id, made.size_bytes);
        }
        for problem in &problems {
            eprintln!("{problem}");
        }
        Ok(())
    })
}
