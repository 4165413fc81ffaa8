//! What can be typed after `restore --live`.

use super::TraceArgs;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// A live restore.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Live restore")]
pub(crate) struct LiveArgs {
    /// Serve the volume over NBD, to be read and written, while it is written to TARGET
    ///
    /// What clients read is fetched first. A journal says which bytes are on TARGET. Killed and
    /// begun again by the same command, it goes on: TARGET is the backup and what clients have
    /// written and flushed. Until all is there the backup is held: it is not forgotten. Without
    /// --socket and --run nobody is served, and it ends when all is there.
    #[arg(long, env = "MOVER_LIVE", value_parser = FalseyValueParser::new())]
    pub(crate) live: bool,
    /// UNIX socket to make and serve on, for this user alone (mode 0600)
    #[arg(long, env = "MOVER_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Shell command to run while it serves, with the address in $uri; what is absent when that
    /// ends is fetched all the same
    #[arg(long, env = "MOVER_RUN", value_name = "COMMAND")]
    pub(crate) run: Option<String>,
    /// File for the number of this process, there as long as it serves
    #[arg(long, env = "MOVER_PID_FILE", value_name = "FILE", hide_short_help = true)]
    pub(crate) pid_file: Option<PathBuf>,
    /// File with what is on TARGET, made if it is missing; TARGET.journal where TARGET is a file
    ///
    /// It belongs to one backup and one target, and stays when all is there: the same command then
    /// serves TARGET as it is. Without it nobody knows what clients have written. Keep it where it
    /// stays as long as TARGET does.
    #[arg(long, env = "MOVER_JOURNAL", value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Serve a volume as large as TARGET, with zeros behind the end of the backup's
    #[arg(long, env = "MOVER_WHOLE_TARGET", value_parser = FalseyValueParser::new())]
    pub(crate) whole_target: bool,
    /// TARGET is that of the journal, although it has no name by which this is known
    #[arg(long, env = "MOVER_SAME_TARGET", value_parser = FalseyValueParser::new(), hide_short_help = true)]
    pub(crate) same_target: bool,
    /// How long a client's read waits for a store that is away, such as 5m; else without end
    #[arg(long, env = "MOVER_STORE_TIMEOUT", value_name = "DURATION", hide_short_help = true)]
    pub(crate) store_timeout: Option<String>,
    /// File with the ranges to fetch before the rest, in any form of a list of changed blocks
    #[arg(long, env = "MOVER_FETCH_FIRST", value_name = "FILE", hide_short_help = true)]
    pub(crate) fetch_first: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Give live restores up: of BACKUP, or the one whose journal is at TARGET.journal or --journal
    ///
    /// Their holds on the backup are released, and the journal is removed. What is on the target
    /// stays, and is not whole.
    #[arg(long, env = "MOVER_ABANDON", value_parser = FalseyValueParser::new(), conflicts_with = "live")]
    pub(crate) abandon: bool,
}
