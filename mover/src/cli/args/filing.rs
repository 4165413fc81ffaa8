//! What can be typed after the commands that read files of a backup: `ls`, `cat`, `cp`.

use super::ReadingArgs;
use clap::builder::FalseyValueParser;
use mover_engine::ops::files::FilesLocation;
use std::path::PathBuf;

/// Where in a volume its file system is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LocationArgs {
    /// The file system is in this partition of the volume, from 1 on
    #[arg(long, env = "MOVER_PARTITION", value_name = "N")]
    pub(crate) partition: Option<usize>,
    /// The file system is in this logical volume of LVM, whose physical volume is the volume, or
    /// the partition that is named too
    #[arg(long, env = "MOVER_LV", value_name = "VG/LV")]
    pub(crate) lv: Option<String>,
}

impl LocationArgs {
    /// What they mean.
    pub(crate) fn location(&self) -> FilesLocation {
        FilesLocation {
            partition: self.partition,
            logical_volume: self.lv.clone().filter(|name| !name.is_empty()),
        }
    }
}

/// Where files are looked for.
#[derive(Debug, clap::Args)]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    pub(crate) location: LocationArgs,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// List files of a backup.
///
/// Of ext2, ext3, ext4, XFS, FAT and NTFS, as the next mount of the volume would show them: a
/// journal of ext3, ext4 or XFS that wants replaying is taken into account, and NTFS that was not
/// unmounted is refused. Nothing else than what is listed is fetched. A file that cannot be read is
/// left out and named, and the exit code is 3.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover ls db@latest
  mover ls db@latest /var/lib --long
  mover ls vm@2026-11-22 --partition 1 /home --recursive
  mover ls vm@latest --partition 2 --lv vg/root /etc")]
pub(crate) struct LsArgs {
    /// VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT, VOLUME@DATE, or an id
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
    /// Files and directories, from the root of the file system on [default: /]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Show permissions, owners, sizes and times too
    #[arg(short, long, env = "MOVER_LONG", value_parser = FalseyValueParser::new())]
    pub(crate) long: bool,
    /// List what is below directories too
    #[arg(short = 'R', long, env = "MOVER_RECURSIVE", value_parser = FalseyValueParser::new())]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) files: FilesArgs,
}

/// Write files of a backup to stdout.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover cat db@latest /etc/fstab
  mover cat db@latest /dump.sql.gz | gunzip | less")]
pub(crate) struct CatArgs {
    /// VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT, VOLUME@DATE, or an id
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
    /// Files, from the root of the file system on; one after the other
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) files: FilesArgs,
}

/// Copy files out of a backup, with all below directories.
///
/// Owners (as root), permissions, times, attributes, hard links and holes are as they were. Nothing
/// that is there is replaced, but with --force. A file that is damaged in the repository is left out
/// and named, and the exit code is 3.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover cp db@latest /var/lib/app/config.yaml .
  mover cp db@latest /home/ann /home/bob /srv/restored
  mover cp vm@latest --partition 1 /etc --tar > etc.tar")]
pub(crate) struct CpArgs {
    /// VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT, VOLUME@DATE, or an id
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: String,
    /// Files and directories of the backup, from the root of its file system on; the last path is
    /// where they go: a directory, or a new name for one of them. With --tar all are of the backup
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Write an archive to stdout instead, for tar
    #[arg(long, env = "MOVER_TAR", value_parser = FalseyValueParser::new())]
    pub(crate) tar: bool,
    /// Replace files that are there; directories stay and are filled
    #[arg(long, env = "MOVER_FORCE", value_parser = FalseyValueParser::new())]
    pub(crate) force: bool,
    /// Copy devices, set-id bits, and attributes named security.* and trusted.* too
    #[arg(long, env = "MOVER_PRIVILEGED", value_parser = FalseyValueParser::new())]
    pub(crate) privileged: bool,
    #[command(flatten)]
    pub(crate) files: FilesArgs,
}
