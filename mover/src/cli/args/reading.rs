//! What can be typed after the commands that read backups: `restore`, `verify`, `list`, `show`,
//! `diff`.

use super::LiveArgs;
use clap::ArgAction;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Which backup.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArg {
    /// VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT, VOLUME@DATE, or an id
    ///
    /// 4 characters of an id are enough if no other starts so. DATE is the beginning of a time in UTC,
    /// such as 2026-11-22 or 2026-11-22T14, and means the newest backup that finished within it. Where
    /// a text means two backups, id:, snapshot: or time: before it decides: VOLUME@snapshot:s1.
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
    /// The newest backup of the volume BACKUP of which no data is younger than this time
    ///
    /// BACKUP is the name of a volume then. TIME is a date or a time in UTC, such as 2026-11-22 (its
    /// beginning) or 2026-11-22T14:05.
    #[arg(long, env = "MOVER_BEFORE", value_name = "TIME")]
    pub(crate) before: Option<String>,
}

/// Write a backup onto a device, into a file or to stdout.
///
/// Zeros are given back to the device where it can (thin volumes stay thin) and written where it
/// cannot; what was on the target before never shows through.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover restore db@latest /dev/vg0/db-new --verify
  mover restore db@2026-11-22 disk.img
  mover restore db@latest /dev/vg0/db --force --differential --verify
  mover restore db --before 2026-11-22T14:05 disk.img
  mover restore db@latest 'nbd+unix:///?socket=/run/target.sock'
  mover restore db@latest - --range 0..1MiB | file -
  mover restore db@latest /dev/vg0/db --live --journal db.journal --socket /run/db.sock")]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) backup: BackupArg,
    /// Block device, image file or NBD export (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH)
    /// to write to, `-` for stdout
    #[arg(value_name = "TARGET", required_unless_present = "abandon")]
    pub(crate) target: Option<PathBuf>,
    /// Overwrite a target that holds a filesystem or a partition table
    #[arg(long, env = "MOVER_FORCE", value_parser = FalseyValueParser::new())]
    pub(crate) force: bool,
    /// Read the target first, and fetch and write only what differs from the backup
    ///
    /// For a target that holds an older or newer state of the volume, or the beginning of this restore:
    /// it takes a read of all of it, and saves what is there. It needs 2 MiB of memory for each TiB.
    #[arg(long, env = "MOVER_DIFFERENTIAL", value_parser = FalseyValueParser::new())]
    pub(crate) differential: bool,
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
    #[command(flatten)]
    pub(crate) live: LiveArgs,
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
  mover list --volume db --label team=storage
  mover list --volume db --json | jq -r .backup_id")]
pub(crate) struct ListArgs {
    /// Only backups of this volume
    #[arg(long, env = "MOVER_VOLUME", value_name = "NAME")]
    pub(crate) volume: Option<String>,
    /// Only backups with this label. May be repeated: all of them
    #[arg(long, env = "MOVER_LABEL", value_name = "NAME[=VALUE]", action = ArgAction::Append)]
    pub(crate) label: Vec<String>,
    /// Only the newest N of each volume
    #[arg(long, env = "MOVER_NEWEST", value_name = "N")]
    pub(crate) newest: Option<usize>,
}

/// Show how large backups are and how they grow, by volume.
///
/// The figures come from what each backup says of its own run, and from one listing of the packs: no
/// data is read. The manual has how each is computed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover stats
  mover stats --volume db
  mover stats --json | jq 'select(.type == \"volume\") | .dedup_ratio'")]
pub(crate) struct StatsArgs {
    /// Only this volume, and each of its backups
    #[arg(long, env = "MOVER_VOLUME", value_name = "NAME")]
    pub(crate) volume: Option<String>,
}

/// Show a backup, or write out one of its attachments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover show db@latest
  mover show db@snap-7
  mover show 3f2a --json | jq .stats
  mover show db@latest --attachment manifest.json > manifest.json")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) backup: BackupArg,
    /// Write the bytes of this attachment to stdout, and nothing else
    #[arg(long, env = "MOVER_ATTACHMENT", value_name = "NAME")]
    pub(crate) attachment: Option<String>,
    /// Write the attachment to this file, in the place of one that is there
    #[arg(long, env = "MOVER_OUTPUT", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Check a backup, in the repository or against a device.
///
/// Every byte of it is read and compared with its id.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover verify db@latest
  mover verify db@latest --device /dev/vg0/db-new")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) backup: BackupArg,
    /// Compare with this device or image instead of reading the stored data
    #[arg(long, env = "MOVER_DEVICE", value_name = "PATH")]
    pub(crate) device: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Print what changed from backup A to backup B.
///
/// The maps of the two tell, no data is read. The output is a list that `mover backup --changed-blocks` accepts.
/// With --files it is the files that changed: + added, - removed, M content, U owner, permissions, time or attributes.
/// Files that cannot be read are left out and named, and the exit code is 3 then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover diff db@3f2a db@latest > changed.json
  mover diff db@3f2a db@latest --files")]
pub(crate) struct DiffArgs {
    /// The earlier backup, named as for `restore`
    #[arg(value_name = "A")]
    pub(crate) a: String,
    /// The later backup
    #[arg(value_name = "B")]
    pub(crate) b: String,
    /// Print which files changed instead of which blocks
    #[arg(long, env = "MOVER_FILES", value_parser = FalseyValueParser::new())]
    pub(crate) files: bool,
    #[command(flatten)]
    pub(crate) place: super::FilesArgs,
}
