//! Flags that say how much of the machine and of the line is used.

use super::{DirectArg, EngineArg};
use std::path::PathBuf;

/// How much of the machine is used.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Resources")]
pub(crate) struct ResourceArgs {
    /// Memory to work in; every buffer, queue and cache is cut from it. auto is 256MiB, or less
    /// where the limit of this pod or control group is
    #[arg(long, env = "MOVER_MEMORY", global = true, value_name = "SIZE", default_value = "auto")]
    pub(crate) memory: String,
    /// How devices are read and written: probed, or one engine without fallback
    #[arg(
        long,
        env = "MOVER_ENGINE",
        global = true,
        value_name = "ENGINE",
        default_value = "auto"
    )]
    pub(crate) engine: EngineArg,
    /// Whether to bypass the page cache (O_DIRECT); auto does where the device allows it
    #[arg(
        long,
        env = "MOVER_DIRECT_IO",
        global = true,
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub(crate) direct_io: DirectArg,
    /// Directory for cached dedup segments, `none` for no cache [default: $XDG_CACHE_HOME/mover or
    /// ~/.cache/mover]
    #[arg(long, env = "MOVER_SCRATCH", global = true, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Threads that hash, compress and encrypt [default: one for each core that this pod
    /// or control group may use]
    #[arg(long, env = "MOVER_THREADS", global = true, value_name = "N")]
    pub(crate) threads: Option<usize>,
    #[command(flatten)]
    pub(crate) limits: TransferLimitArgs,
}

/// Rates that are not to be exceeded, of any command.
#[derive(Debug, clap::Args)]
pub(crate) struct TransferLimitArgs {
    /// Most bytes per second to the store, such as 100MiB
    #[arg(long, env = "MOVER_LIMIT_UPLOAD", global = true, value_name = "SIZE")]
    pub(crate) limit_upload: Option<String>,
    /// Most bytes per second from the store, such as 100MiB
    #[arg(long, env = "MOVER_LIMIT_DOWNLOAD", global = true, value_name = "SIZE")]
    pub(crate) limit_download: Option<String>,
}

/// The rate of the source's device.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadLimitArgs {
    /// Most bytes per second to read from the source, such as 100MiB
    #[arg(long, env = "MOVER_LIMIT_READ", value_name = "SIZE")]
    pub(crate) limit_read: Option<String>,
}
