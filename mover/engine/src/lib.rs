//! The engine of `mover`: it moves a volume from a device to a repository of chunks, and back.
//!
//! It knows no flags, prints nothing, reads no environment and installs no handlers: that is the
//! program's. `docs/architecture.md` has the code map, `docs/glossary.md` the words.
//!
//! Each operation is one function: it takes a runtime, a repository, options, [`run::Progress`] and
//! [`run::Cancel`], blocks until it has ended, and returns a summary. Another thread may read the
//! progress and ask for the end meanwhile.
//!
//! | to | call |
//! |---|---|
//! | back up a device or an image | [`ops::backup::backup`] |
//! | foretell what that would read, send and cost | [`ops::backup::forecast`] |
//! | write a backup, or a range of it, back | [`ops::restore::restore`] |
//! | write an attachment of a backup out | [`ops::attachment::write_attachment`] |
//! | compare a backup with a device | [`ops::verify::verify`] |
//! | serve backups to clients of NBD | [`ops::serve::serve`] |
//! | read a backup at any offset | [`reading::view::BackupView`] |
//! | compare two backups | [`ops::diff::diff`] |
//! | copy backups into another repository | [`ops::copy::copy`] |
//! | find damage | [`ops::check::check`] |
//!
//! The repository itself is [`chunkstore`]'s: it lists, finds and forgets backups, and collects
//! garbage. Lists of changed blocks are those of [`mover_changes`].
//!
//! # Examples
//!
//! `mover/engine/examples/` has three programs that call the library as any other would:
//! `backup_file.rs`, `list.rs`, `restore_range.rs`. The first of them in short:
//!
//! ```no_run
//! use chunkstore::{Credential, Repository, StoreOptions, open_url};
//! use mover_engine::ops::backup::{BackupOptions, backup};
//! use mover_engine::run::{Cancel, Progress};
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

pub mod ingest;
pub mod live;
pub mod ops;
pub mod reading;
pub mod run;
pub mod sizes;
pub mod volume;
