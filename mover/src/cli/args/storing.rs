//! What can be typed for every command that stores a backup: `backup` and `copy`.

use super::{QuotaArgs, RetainArgs};

/// How a backup is stored, what that may use up, and for how long it is locked.
#[derive(Debug, clap::Args)]
pub(crate) struct StoringArgs {
    /// auto (as strong as the slowest other stage allows), zstd:LEVEL (-7 to 19) or none
    #[arg(long, env = "MOVER_COMPRESSION", value_name = "NAME", default_value = "auto")]
    pub(crate) compression: String,
    /// About the most that is done again when a run is killed and started again, a backup with the
    /// same --backup-id or --snapshot; not less than a map page covers [default: by bytes and time]
    #[arg(long, env = "MOVER_CHECKPOINT_INTERVAL", value_name = "SIZE")]
    pub(crate) checkpoint_interval: Option<String>,
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) retain: RetainArgs,
}
