//! What can be typed for `schedule`.

use super::Making;
use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Make a BackupSchedule of a claim, or of all claims with some labels
    Add(Box<NewSchedule>),
    /// List BackupSchedules
    List {
        /// Of all namespaces
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },
    /// Make a backup now, as the schedule would
    Run {
        /// Name of the schedule
        name: String,
        /// Wait for its end
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
            default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
        wait: bool,
    },
    /// Have a schedule rest. What it misses meanwhile is not caught up on
    Suspend {
        /// Name of the schedule
        name: String,
    },
    /// Have a schedule go on
    Resume {
        /// Name of the schedule
        name: String,
    },
    /// Remove a schedule from the cluster. Its backups stay
    Remove {
        /// Name of the schedule
        name: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct NewSchedule {
    /// Its name
    pub(crate) name: String,
    /// pvc/NAME
    #[arg(
        id = "words",
        value_name = "CLAIM",
        required_unless_present = "selector",
        conflicts_with = "selector"
    )]
    pub(crate) claim: Option<String>,
    /// All claims of the namespace with these labels, such as app=db, later ones too
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// Times of backups: five fields of cron, such as '0 * * * *', or @hourly
    #[arg(long, value_name = "CRON")]
    pub(crate) cron: String,
    /// Time zone of all times, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(crate) time_zone: Option<String>,
    /// Begin each backup so many seconds later at most, always the same for one claim
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) jitter: Option<u32>,
    /// Repository, as [NAMESPACE/]NAME; looked for in the namespace, then in mover-system
    /// [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) repository: Option<String>,
    /// Copy each good backup to this Repository, too, as [NAMESPACE/]NAME
    #[arg(long, value_name = "NAME")]
    pub(crate) copy_to: Option<String>,
    /// Ended VolumeBackups of each claim that stay in the cluster; the backups stay in any case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) history: Option<u32>,
    /// Make it and wait for nothing [default: until the controller has read it]
    #[arg(long)]
    pub(crate) no_wait: bool,
    #[command(flatten)]
    pub(crate) keep: KeepFlags,
    #[command(flatten)]
    pub(crate) drill: DrillFlags,
    #[command(flatten)]
    pub(crate) making: Making,
}

/// The backups that stay. Without any, the Repository's rule is the schedule's.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Backups that stay")]
pub(crate) struct KeepFlags {
    /// The newest N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keep_last: Option<u32>,
    /// The last one of each of N hours
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keep_hourly: Option<u32>,
    /// The last one of each of N days
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keep_daily: Option<u32>,
    /// The last one of each of N weeks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keep_weekly: Option<u32>,
    /// The last one of each of N months
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keep_monthly: Option<u32>,
    /// The last one of each of N years
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keep_yearly: Option<u32>,
    /// All of this time before the newest one, such as 30d
    #[arg(long, value_name = "TIME")]
    pub(crate) keep_within: Option<String>,
}

/// Restores that prove a backup.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Drills")]
pub(crate) struct DrillFlags {
    /// Times of drills: restore the newest backup for a while, and prove it
    #[arg(long, value_name = "CRON")]
    pub(crate) drill: Option<String>,
    /// Image that looks at the restored volume, with a command behind `--`; the volume is at
    /// /restored
    #[arg(long, value_name = "IMAGE", requires_all = ["drill", "command"])]
    pub(crate) drill_image: Option<String>,
    /// Seconds that the command may take [default: 3600]
    #[arg(long, value_name = "SECONDS", requires = "drill_image",
        value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub(crate) drill_timeout: Option<u32>,
    /// Class of the volume of a drill [default: the source's]
    #[arg(long, value_name = "NAME", requires = "drill")]
    pub(crate) drill_storage_class: Option<String>,
    /// Command of the drill: it is good if this ends with 0
    #[arg(last = true, value_name = "COMMAND", requires = "drill_image")]
    pub(crate) command: Vec<String>,
}
