//! How backups are made: by `backup`, and by the schedule that `schedule create` makes.

use super::{Hook, Limits};
use clap::Args;

/// How a backup is made.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct Making {
    /// Class of the snapshot [default: the driver's default class, or its only one]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) snapshot_class: Option<String>,
    /// Class of the volume that is made of the snapshot [default: the claim's]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) storage_class: Option<String>,
    /// Make that volume read-only, ReadOnlyMany: some drivers need not copy the snapshot for it
    #[arg(long)]
    pub(in crate::cli) read_only_volume: bool,
    /// Keep the snapshot as the base of the next backup [default: where the driver can tell what
    /// changed]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(in crate::cli) keep_base: Option<bool>,
    /// Snapshot all claims with the labels of --selector at one moment, as one group
    #[arg(long, requires = "selector", conflicts_with = "words")]
    pub(in crate::cli) group: bool,
    /// Read the whole volume: ask nobody what changed
    #[arg(long)]
    pub(in crate::cli) whole: bool,
    /// Note on the backup, NAME=VALUE; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(in crate::cli) label: Vec<String>,
    #[command(flatten)]
    pub(in crate::cli) hook: Hook,
    #[command(flatten)]
    pub(in crate::cli) limits: Limits,
}
