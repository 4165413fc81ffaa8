//! What can be typed after `copy`.

use super::{KeepArgs, ReadingArgs, StoringArgs};
use clap::ArgAction;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Copy backups to another repository.
///
/// The two need not agree in anything: keys, kind of store, chunk size. What is there already is
/// not copied again, and where an earlier backup of a volume is in both, only what differs from it
/// is moved. A run that was killed goes on where it was when it is started again. Without BACKUP
/// all backups are copied, oldest first; with --volume those of one volume, with --keep-… rules
/// those that the rules keep.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover copy --to s3://far-away/backups --to-key-file far.key
  mover copy db@latest --to file:///mnt/disk/backups --to-key-file disk.key
  mover copy --keep-daily 7 --keep-monthly 12 --to s3://archive/backups --to-key-file a.key --dry-run")]
pub(crate) struct CopyArgs {
    /// Backups to copy: VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT, VOLUME@DATE, or ids
    #[arg(value_name = "BACKUP")]
    pub(crate) backups: Vec<String>,
    /// Only show what would be copied
    #[arg(long, env = "MOVER_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) storing: StoringArgs,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
}

/// Where copies go, and what opens that.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct TargetArgs {
    /// Repository to copy to. Other credentials for its store than for that of --repo: the same
    /// variables with MOVER_TO_ before their names, such as MOVER_TO_AWS_ACCESS_KEY_ID
    #[arg(long, env = "MOVER_TO", value_name = "URL")]
    pub(crate) to: String,
    /// File with a key of the target. May be repeated
    #[arg(long, env = "MOVER_TO_KEY_FILE", value_name = "FILE", action = ArgAction::Append)]
    pub(crate) to_key_file: Vec<PathBuf>,
    /// File whose first line is a passphrase of the target
    #[arg(long, env = "MOVER_TO_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) to_password_file: Option<PathBuf>,
    /// Shell command that prints a passphrase of the target; MOVER_TO_PASSWORD may hold it too
    #[arg(long, env = "MOVER_TO_PASSWORD_COMMAND", value_name = "COMMAND")]
    pub(crate) to_password_command: Option<String>,
}
