//! What can be typed after the commands that read backups: `restore`, `verify`, `list`, `show`,
//! `diff`.

use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Write a backup onto a block device, into an image file or to stdout.
///
/// BACKUP is an id, a unique prefix of one, VOLUME@ID or VOLUME@latest. Zeros are given back to the
/// device where it can (thin volumes stay thin) and written where it cannot; what was on the target
/// before never shows through.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover restore db@latest /dev/vg0/db-new --verify
  mover restore 3f2a disk.img
  mover restore db@latest 'nbd+unix:///?socket=/run/target.sock'
  mover restore db@latest - --range 0..1MiB | file -")]
pub(crate) struct RestoreArgs {
    /// Backup to write back: an id, a unique prefix, VOLUME@ID or VOLUME@latest
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
    /// Block device, image file or NBD export (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH)
    /// to write to, `-` for stdout
    #[arg(value_name = "TARGET")]
    pub(crate) target: PathBuf,
    /// Overwrite a target that holds a filesystem or a partition table
    #[arg(long, env = "MOVER_FORCE", value_parser = FalseyValueParser::new())]
    pub(crate) force: bool,
    /// Read everything back afterwards and check it
    #[arg(long, env = "MOVER_VERIFY", value_parser = FalseyValueParser::new())]
    pub(crate) verify: bool,
    /// Write all that is left of a damaged backup: what cannot be read becomes zeros, the ranges
    /// are listed, and the exit code is 3
    #[arg(long, env = "MOVER_SKIP_DAMAGED", value_parser = FalseyValueParser::new())]
    pub(crate) skip_damaged: bool,
    /// Only these bytes of the volume, at the same place of the target (stdout: only these)
    #[arg(long, env = "MOVER_RANGE", value_name = "OFFSET+LEN|START..END")]
    pub(crate) range: Option<String>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Flags of commands that read a backup.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadingArgs {
    /// Write nothing to the repository: for read-only credentials. Nobody may forget the backup
    /// meanwhile
    #[arg(long, env = "MOVER_NO_LEASE", value_parser = FalseyValueParser::new())]
    pub(crate) no_lease: bool,
}

/// List backups, oldest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover list
  mover list --volume db --json | jq -r .backup_id")]
pub(crate) struct ListArgs {
    /// Only backups of this volume
    #[arg(long, env = "MOVER_VOLUME", value_name = "NAME")]
    pub(crate) volume: Option<String>,
}

/// Show all that is known about one backup.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover show db@latest
  mover show 3f2a --json | jq .stats")]
pub(crate) struct ShowArgs {
    /// An id, a unique prefix, VOLUME@ID or VOLUME@latest
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
}

/// Check a backup: every byte of it in the repository, or against a device.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover verify db@latest
  mover verify db@latest --device /dev/vg0/db-new")]
pub(crate) struct VerifyArgs {
    /// An id, a unique prefix, VOLUME@ID or VOLUME@latest
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
    /// Compare with this device or image instead of reading the stored data
    #[arg(long, env = "MOVER_DEVICE", value_name = "PATH")]
    pub(crate) device: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Print what changed from backup A to backup B, from their maps alone.
///
/// The output is a list that `mover backup --changed-blocks` accepts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover diff db@3f2a db@latest > changed.json")]
pub(crate) struct DiffArgs {
    /// The earlier backup
    #[arg(value_name = "A")]
    pub(crate) a: String,
    /// The later backup
    #[arg(value_name = "B")]
    pub(crate) b: String,
}
