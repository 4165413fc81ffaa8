//! What can be typed after `mount`.

use super::{DiskCacheArgs, ReadingArgs};
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Mount backups as files: the volume, and what its file system has.
///
/// DIRECTORY has volume.img then, the bytes of the volume, and files/ where its file system is ext2,
/// ext3, ext4, XFS, FAT or NTFS. Without BACKUP each backup has a directory VOLUME/ID, and VOLUME/latest leads to
/// the newest. What is read is fetched and checked then; nothing can be written. It stays until a
/// signal or umount ends it, and that is a success: exit code 0. Needs FUSE.
#[derive(Debug, clap::Args)]
#[command(override_usage = "mover mount [OPTIONS] [BACKUP] <DIRECTORY>")]
#[command(after_help = "\
Examples:
  mover mount db@latest /mnt/db
  mover mount vm@2026-11-22 /mnt/vm --partition 1
  mover mount /mnt/backups")]
pub(crate) struct MountArgs {
    /// The backup, if only one is to be mounted (VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT,
    /// VOLUME@DATE, or an id), and an empty directory to mount on
    #[arg(value_names = ["BACKUP", "DIRECTORY"], num_args = 1..=2, required = true)]
    pub(crate) places: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) location: super::LocationArgs,
    /// Let other users in, as far as the permissions of files let them; loop mounts of volume.img by
    /// root need it where somebody else has mounted
    #[arg(long, env = "MOVER_ALLOW_OTHER", value_parser = FalseyValueParser::new())]
    pub(crate) allow_other: bool,
    /// File for the number of this process, there as long as it is mounted
    #[arg(long, env = "MOVER_PID_FILE", value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cache: DiskCacheArgs,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}
