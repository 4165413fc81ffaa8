//! What can be typed to have a backup locked against deletion.

use clap::ValueEnum;

/// For how long nobody can delete a backup and what it needs: S3 buckets with object lock only.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Object lock")]
pub(crate) struct RetainArgs {
    /// Lock the backup, and all that a restore of it needs, for so long from now: 36h, 14d, 8w, 6m,
    /// 1y6m
    #[arg(long, env = "MOVER_RETAIN_FOR", value_name = "SPAN")]
    pub(crate) retain_for: Option<String>,
    /// Lock it until a date, 2027-01-31 (its first moment, UTC), or a time, 2027-01-31T12:00:00Z
    #[arg(long, env = "MOVER_RETAIN_UNTIL", value_name = "DATE")]
    pub(crate) retain_until: Option<String>,
    /// Who can still delete it before: those with a permission of its own, or nobody at all
    #[arg(long, env = "MOVER_RETAIN_MODE", value_name = "MODE", default_value = "governance")]
    pub(crate) retain_mode: RetainModeArg,
    /// When what is inherited from the parent is locked as long: before the backup is committed,
    /// for which its whole map is read, or by the next `mover gc`
    #[arg(long, env = "MOVER_RETAIN_INHERITED", value_name = "WHEN", default_value = "now")]
    pub(crate) retain_inherited: RetainInheritedArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RetainModeArg {
    Governance,
    Compliance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RetainInheritedArg {
    Now,
    Gc,
}
