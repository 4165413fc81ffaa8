//! Flags that say how a run tells others what it does and how it ended: a pod's kubelet, a log
//! collector, Prometheus.

use super::Command;
use clap::ValueEnum;
use std::path::PathBuf;

/// How a run is watched from outside.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Watching")]
pub(crate) struct ReportArgs {
    /// Least severe log lines to show on stderr [default: warn, or what -v says]
    #[arg(long, env = "MOVER_LOG_LEVEL", global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// File that is to say in one JSON object how the run ended, `none` for no such file [default:
    /// /dev/termination-log where it exists]
    #[arg(long, env = "MOVER_TERMINATION_LOG", global = true, value_name = "FILE")]
    pub(crate) termination_log: Option<PathBuf>,
    /// End with code 1 when nothing has moved for so long, such as 90s, 30m or 2h; 0 never does
    #[arg(
        long,
        env = "MOVER_STALL_TIMEOUT",
        global = true,
        value_name = "TIME",
        default_value = "30m"
    )]
    pub(crate) stall_timeout: String,
    /// Address to answer Prometheus on while running, such as 0.0.0.0:9090 (path /metrics)
    #[arg(long, env = "MOVER_METRICS_ADDR", global = true, value_name = "ADDRESS:PORT")]
    pub(crate) metrics_addr: Option<String>,
    /// Wait so long at the end for one more scrape with the final numbers
    #[arg(
        long,
        env = "MOVER_METRICS_LINGER",
        global = true,
        value_name = "TIME",
        default_value = "0"
    )]
    pub(crate) metrics_linger: String,
    /// Pushgateway that gets the final numbers, such as http://pushgateway:9091
    #[arg(long, env = "MOVER_PUSH_GATEWAY", global = true, value_name = "URL")]
    pub(crate) push_gateway: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Command {
    /// As it is typed.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Init(_) => "init",
            Self::Backup(_) => "backup",
            Self::Restore(_) => "restore",
            Self::Serve(_) => "serve",
            Self::Mount(_) => "mount",
            Self::Ls(_) => "ls",
            Self::Cat(_) => "cat",
            Self::Cp(_) => "cp",
            Self::List(_) => "list",
            Self::Show(_) => "show",
            Self::Stats(_) => "stats",
            Self::Verify(_) => "verify",
            Self::Check(_) => "check",
            Self::Diff(_) => "diff",
            Self::Changes(_) => "changes",
            Self::Copy(_) => "copy",
            Self::Forget(_) => "forget",
            Self::Gc(_) => "gc",
            Self::Key(_) => "key",
            Self::Upgrade(_) => "upgrade",
            Self::Completions(_) => "completions",
            Self::Complete(_) => "__complete",
            Self::Manual(_) => "__manual",
        }
    }

    /// Whether it is what a Job runs, and not somebody who looks into its pod.
    pub(crate) fn is_job(&self) -> bool {
        match self {
            // a plan makes no backup: it must not look like one to whoever watches for the last
            // success
            Self::Backup(args) => !args.plan.plan,
            Self::Init(_)
            | Self::Restore(_)
            | Self::Serve(_)
            | Self::Mount(_)
            | Self::Cp(_)
            | Self::Verify(_)
            | Self::Check(_)
            | Self::Forget(_)
            | Self::Gc(_)
            | Self::Copy(_) => true,
            _ => false,
        }
    }
}
