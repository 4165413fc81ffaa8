//! Flags that ask what a run would take, and those that say what it may.

use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// A forecast instead of a run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Plan")]
pub(crate) struct PlanArgs {
    /// Only say what the backup would read, store, ask for and take, and write nothing: no lease,
    /// no repository, no scratch file
    #[arg(long, env = "MOVER_PLAN", value_parser = FalseyValueParser::new())]
    pub(crate) plan: bool,
    #[command(flatten)]
    pub(crate) price: PriceArgs,
}

/// What a store asks for.
#[derive(Debug, clap::Args)]
pub(crate) struct PriceArgs {
    /// JSON file with prices of stores: what is planned is said in money too
    #[arg(long, env = "MOVER_PRICE_FILE", value_name = "FILE")]
    pub(crate) price_file: Option<PathBuf>,
}

/// What one run may use up.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Bounds")]
pub(crate) struct QuotaArgs {
    /// Stop with a checkpoint and exit code 6 before more than this is sent to the store, such as
    /// 50GiB; the same command goes on from there
    #[arg(long, env = "MOVER_MAX_UPLOAD", value_name = "SIZE")]
    pub(crate) max_upload: Option<String>,
    /// The same by requests to the store
    #[arg(long, env = "MOVER_MAX_REQUESTS", value_name = "N")]
    pub(crate) max_requests: Option<u64>,
    /// The same by time since the start, such as 90s, 30m or 2h; stopping takes 10 seconds at most
    #[arg(long, env = "MOVER_DEADLINE", value_name = "TIME")]
    pub(crate) deadline: Option<String>,
}
