//! What can be typed after `forget` and `gc`.

use super::PriceArgs;
use clap::ArgAction;
use clap::builder::FalseyValueParser;

/// Forget a backup, or all that a policy does not keep.
///
/// A forgotten backup no longer exists for any command. Nothing is deleted now; what only such
/// backups need is what a later `mover gc` removes. With --keep-… rules each volume is
/// decided about by itself, and what no rule keeps is forgotten.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover forget db@3f2a9c01
  mover forget --keep-daily 7 --keep-weekly 5 --keep-monthly 12 --dry-run
  mover forget --volume db --keep-within 14d --keep-tag pinned
  mover forget db@3f2a9c01 --unless-exists s3://bucket/velero/backups/nightly/")]
pub(crate) struct ForgetArgs {
    /// An id, or the beginning of one (at least 4 characters), also as VOLUME@ID; without it a policy
    /// decides
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: Option<String>,
    /// Forget nothing as long as there is any object below this place
    ///
    /// It is a URL of the same kind of store as the repository, reached with the same credentials. A
    /// place that cannot be listed, such as one in a bucket that is not there, is an error.
    #[arg(
        long,
        env = "MOVER_UNLESS_EXISTS",
        value_name = "URL",
        requires = "backup",
        hide_short_help = true
    )]
    pub(crate) unless_exists: Option<String>,
    /// Only show what would be forgotten, and why the rest stays
    #[arg(long, env = "MOVER_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub(crate) dry_run: bool,
    /// Rules for one volume, such as last=3,daily=7:db
    ///
    /// RULES:VOLUME, such as last=3,daily=7,within=14d:db. May be repeated. The other --keep-… rules are then for the rest; without any, nothing else is forgotten. Of
    /// several for one volume each keeps what it keeps. With only=NAME[=VALUE] it is about backups
    /// with that label.
    #[arg(long, env = "MOVER_KEEP_OF", value_name = "RULES:VOLUME", action = ArgAction::Append,
        help_heading = "Policy")]
    pub(crate) keep_of: Vec<String>,
    /// The other rules are for volumes below PREFIX alone, such as prod/
    ///
    /// The --keep-… rules without a volume then decide only about volumes whose names begin with
    /// PREFIX, which ends with a /. All other volumes stay whole, but for those that --keep-of names.
    #[arg(
        long,
        env = "MOVER_BELOW",
        value_name = "PREFIX",
        hide_short_help = true,
        help_heading = "Policy"
    )]
    pub(crate) below: Option<String>,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
}

/// What stays.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct KeepArgs {
    /// Only this volume, else all. May be repeated
    ///
    /// The rules are applied to each volume by itself.
    #[arg(long, env = "MOVER_VOLUME", value_name = "NAME", action = ArgAction::Append)]
    pub(crate) volume: Vec<String>,
    /// Keep the newest N
    #[arg(long, env = "MOVER_KEEP_LAST", value_name = "N")]
    pub(crate) keep_last: Option<u32>,
    /// Keep the newest of each of the N latest hours
    ///
    /// Hours without a backup do not count. All times are UTC, here and below.
    #[arg(long, env = "MOVER_KEEP_HOURLY", value_name = "N")]
    pub(crate) keep_hourly: Option<u32>,
    /// Keep the newest of each of the N latest days
    #[arg(long, env = "MOVER_KEEP_DAILY", value_name = "N")]
    pub(crate) keep_daily: Option<u32>,
    /// Keep the newest of each of the N latest weeks (from Monday)
    #[arg(long, env = "MOVER_KEEP_WEEKLY", value_name = "N")]
    pub(crate) keep_weekly: Option<u32>,
    /// Keep the newest of each of the N latest months
    #[arg(long, env = "MOVER_KEEP_MONTHLY", value_name = "N")]
    pub(crate) keep_monthly: Option<u32>,
    /// Keep the newest of each of the N latest years
    #[arg(long, env = "MOVER_KEEP_YEARLY", value_name = "N")]
    pub(crate) keep_yearly: Option<u32>,
    /// Keep all from so long before the newest: 36h, 14d, 8w, 6m, 1y6m
    #[arg(long, env = "MOVER_KEEP_WITHIN", value_name = "SPAN")]
    pub(crate) keep_within: Option<String>,
    /// Keep all with this label, NAME or NAME=VALUE. May be repeated
    #[arg(long, env = "MOVER_KEEP_TAG", value_name = "LABEL", action = ArgAction::Append)]
    pub(crate) keep_tag: Vec<String>,
    /// Let a volume lose its last backup when no rule keeps any
    ///
    /// Otherwise its newest one stays.
    #[arg(long, env = "MOVER_ALLOW_NONE", value_parser = FalseyValueParser::new())]
    pub(crate) allow_none: bool,
}

/// Collect garbage: delete data that no backup refers to.
///
/// Only forgotten backups, and runs that never ended, have stored that. Safe at any time beside backups, restores and other collections, and none of them waits for it.
/// What somebody at work may still use is condemned now and deleted by a later run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover gc --dry-run
  mover gc --dry-run --price-file prices.json
  mover forget --keep-daily 7 --keep-weekly 5 && mover gc")]
pub(crate) struct GcArgs {
    /// Only show what would be condemned, and what that would cost; writes nothing
    #[arg(long, env = "MOVER_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub(crate) dry_run: bool,
    /// Nothing else uses the repository, and nothing will until this has ended: needed on stores
    /// that cannot create an object only if it is absent
    #[arg(long, env = "MOVER_EXCLUSIVE", value_parser = FalseyValueParser::new())]
    pub(crate) exclusive: bool,
    #[command(flatten)]
    pub(crate) price: PriceArgs,
}
