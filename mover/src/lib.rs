//! `mover`: reads a block device or image, moves its changed chunks to a repository, and writes
//! volumes back.
//!
//! The library behind the binary of the same name. `docs/architecture.md` has the code map,
//! `docs/glossary.md` the words.
//!
//! Each operation is one function: it takes a runtime, a repository, options, [`run::Progress`] and
//! [`run::Cancel`], blocks until it has ended, and returns a summary. Another thread may read the
//! progress and ask for the end meanwhile.
//!
//! | to | call |
//! |---|---|
//! | back up a device or an image | [`backup::backup`] |
//! | foretell what that would read, send and cost | [`backup::forecast`] |
//! | write a backup, or a range of it, back | [`restore::restore`] |
//! | compare a backup with a device | [`verify::verify`] |
//! | compare two backups | [`diff::diff`] |
//! | copy backups into another repository | [`copy::copy`] |
//! | find damage | [`check::check`] |
//!
//! The repository itself is [`chunkstore`]'s: it lists, finds and forgets backups, and collects
//! garbage. Lists of changed blocks are those of [`mover_changes`].
//!
//! # Examples
//!
//! `mover/examples/` has three programs that call the library as any other would:
//! `backup_file.rs`, `list.rs`, `restore_range.rs`. The first of them in short:
//!
//! ```no_run
//! use chunkstore::{Credential, Repository, StoreOptions, open_url};
//! use mover::backup::{BackupOptions, backup};
//! use mover::run::{Cancel, Progress};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Runtime::new()?;
//! let key = Credential::from_key_file_bytes(&std::fs::read("mover.key")?)?;
//! let store = open_url("s3://bucket/prefix", &StoreOptions::default())?;
//! let repo = runtime.block_on(Repository::open(store, &[key]))?;
//! let options = BackupOptions::new("/dev/vdb");
//! let made = backup(runtime.handle(), &repo, &options, &Progress::new(), &Cancel::new())?;
//! println!("{} stores {} new bytes", made.backup_id, made.new_bytes);
//! # Ok(())
//! # }
//! ```

pub mod backup;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod copy;
pub mod device;
pub mod diff;
pub mod ingest;
pub mod inspect;
pub mod io;
pub mod price;
pub mod reading;
pub mod restore;
pub mod retention;
pub mod run;
mod sample;
pub mod scratch;
pub mod sizes;
pub mod verify;
