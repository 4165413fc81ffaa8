//! What can be typed after `changes`.

use super::ChangesArgs;
use clap::ValueEnum;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Get a list of changed blocks, check it, and show or convert it.
///
/// The list comes from wherever `backup` takes one: a file, standard input, a server. Nothing is
/// backed up and no repository is needed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover changes --volume-size 100GiB --changes-url https://tracker:8443/prod/db-s2 --base-snapshot s1
  mover changes /dev/sdb --changed-blocks list.json --stats
  rbd diff --format json pool/db | mover changes --volume-size 100GiB --changed-blocks - \\
      --changed-blocks-kind allocated --form mover > list.json")]
pub(crate) struct InspectArgs {
    /// Device or image that the list is of: for its size, and for --stats a sample of its data
    #[arg(value_name = "DEVICE")]
    pub(crate) device: Option<PathBuf>,
    /// Size of the volume, where no device is named
    #[arg(long, env = "MOVER_VOLUME_SIZE", value_name = "SIZE")]
    pub(crate) volume_size: Option<String>,
    /// How to show the list [default: table, and mover with --json]
    #[arg(long, env = "MOVER_FORM", value_name = "FORM")]
    pub(crate) form: Option<FormArg>,
    /// Show what a backup of the list would read and store, at each chunk size, instead of the list
    #[arg(long, env = "MOVER_STATS", value_parser = FalseyValueParser::new())]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) changes: ChangesArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormArg {
    /// For people
    Table,
    /// JSON of `mover diff`, which `backup --changed-blocks` accepts
    Mover,
    /// JSON array of ranges
    Extents,
    /// JSON of the CSI snapshot-metadata lister
    Csi,
    /// JSON of `rbd diff`
    Rbd,
    /// JSON of `qemu-img map`; not for a delta
    Qemu,
    /// A page of the REST draft
    Rest,
}
