//! What can be typed. What is meant by it is decided in `settings`; nothing here has an effect.
//!
//! Every flag has an environment twin: `MOVER_` and its long name in capitals. A test walks all of
//! them.

mod changes;
mod checking;
pub(crate) use checking::CheckArgs;

mod collecting;
pub(crate) use changes::{AllocatedFromArg, ChangesArgs, ChangesAskingArgs};
pub(crate) use collecting::{ForgetArgs, GcArgs, KeepArgs};

mod copying;
mod filing;
mod locking;
pub(crate) use copying::{CopyArgs, TargetArgs};
pub(crate) use filing::{CatArgs, CpArgs, FilesArgs, LocationArgs, LsArgs};
pub(crate) use locking::{RetainArgs, RetainInheritedArg, RetainModeArg};
mod inspecting;
pub(crate) use inspecting::{FormArg, InspectArgs};
mod keyring;
pub(crate) use keyring::{KeyAddArgs, KeyArgs, KeyCommand, KeyRemoveArgs};
mod quota;
pub(crate) use quota::{PlanArgs, PriceArgs, QuotaArgs};
mod live;
pub(crate) use live::LiveArgs;
mod reading;
pub(crate) use reading::{
    BackupArg, DiffArgs, ListArgs, ReadingArgs, RestoreArgs, ShowArgs, StatsArgs, VerifyArgs,
};
mod reporting;
pub(crate) use reporting::{LogLevel, ReportArgs};

mod mounting;
mod resources;
mod serving;
pub(crate) use mounting::MountArgs;
pub(crate) use serving::{DiskCacheArgs, ServeArgs, ServeTlsArgs, TraceArgs};
mod storing;
mod upgrading;
pub(crate) use storing::StoringArgs;
pub(crate) use upgrading::UpgradeArgs;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use resources::ReadLimitArgs;
pub(crate) use resources::ResourceArgs;
use std::path::PathBuf;

const ABOUT: &str = "\
mover backs up block devices and raw images to a repository in a directory or an object store, again and again by \
their changed blocks, and writes any of these states back, bit for bit.";

const EXAMPLES_SHORT: &str = "\
Examples:
  mover restore db@latest /dev/vg0/db-new --verify";

const EXAMPLES: &str = "\
Examples:
  Back up a device into the embedded repository (made on first use), then see what there is:
      mover backup /dev/vg0/db --volume db
      mover list

  The same in a bucket, with a key file:
      export MOVER_REPO=s3://backups/prod MOVER_KEY_FILE=/etc/mover/key
      mover init --new-key-file /etc/mover/key
      mover backup /dev/vg0/db --volume db

  Write the newest backup back onto a device:
      mover restore db@latest /dev/vg0/db-new --verify

Exit codes:
  0 ok, 1 may work when tried again, 2 usage, 3 stored data damaged, 4 key or permission missing,
  5 degraded (with --fail-on-degraded), 6 stopped at a bound (--max-upload and its like),
  70 a bug of mover, 143 stopped by a signal";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "mover",
    version,
    about = "Backs up block devices to an encrypted repository and writes them back",
    long_about = ABOUT,
    after_help = EXAMPLES_SHORT,
    after_long_help = EXAMPLES,
    max_term_width = 100,
    disable_help_subcommand = false
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct GlobalArgs {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Which repository, and what opens it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Repository")]
pub(crate) struct RepositoryArgs {
    /// Where the repository is, such as s3://bucket/prefix
    ///
    /// file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. Without it the embedded repository is used, $XDG_DATA_HOME/mover/repository or
    /// ~/.local/share/mover/repository; the first backup makes it, with a key file beside it.
    #[arg(long, env = "MOVER_REPO", global = true, value_name = "URL")]
    pub(crate) repo: Option<String>,
    /// File with a key of the repository. May be repeated
    ///
    /// It holds 32 bytes, or 64 hex digits. A directory stands for all files in it.
    #[arg(long, env = "MOVER_KEY_FILE", global = true, value_name = "FILE", action = ArgAction::Append)]
    pub(crate) key_file: Vec<PathBuf>,
    /// File whose first line is a passphrase of the repository
    #[arg(long, env = "MOVER_PASSWORD_FILE", global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Shell command that prints a passphrase of the repository.
    ///
    /// The passphrase itself can stand in MOVER_PASSWORD; on a terminal it is asked for when
    /// nothing else was given.
    #[arg(long, env = "MOVER_PASSWORD_COMMAND", global = true, value_name = "COMMAND")]
    pub(crate) password_command: Option<String>,
}

/// What is shown, and how.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct OutputArgs {
    /// Print one JSON object a line instead of text
    ///
    /// Progress and summary go to stdout, warnings and errors to stderr.
    #[arg(long, env = "MOVER_JSON", global = true, value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
    /// Print nothing but what was asked for, warnings and errors
    #[arg(short, long, env = "MOVER_QUIET", global = true, value_parser = FalseyValueParser::new())]
    pub(crate) quiet: bool,
    /// Show no progress
    #[arg(long, env = "MOVER_NO_PROGRESS", global = true, value_parser = FalseyValueParser::new())]
    pub(crate) no_progress: bool,
    /// When to use colours
    #[arg(long, env = "MOVER_COLOR", global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorWhen,
    /// Say on stderr what is done; twice or three times for more
    #[arg(short, long, env = "MOVER_VERBOSE", global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EngineArg {
    Auto,
    #[value(alias = "uring")]
    IoUring,
    #[value(name = "io_uring-plain", alias = "uring-plain")]
    IoUringPlain,
    Blocking,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectArg {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// What is not listed equals the base snapshot
    Delta,
    /// What is not listed is zero
    Allocated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EncryptionArg {
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    None,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(InitArgs),
    Backup(Box<BackupArgs>),
    Restore(RestoreArgs),
    Serve(Box<ServeArgs>),
    Mount(MountArgs),
    Ls(LsArgs),
    Cat(CatArgs),
    Cp(CpArgs),
    List(ListArgs),
    Show(ShowArgs),
    Stats(StatsArgs),
    Verify(VerifyArgs),
    Check(CheckArgs),
    Diff(DiffArgs),
    Changes(Box<InspectArgs>),
    Forget(ForgetArgs),
    Gc(GcArgs),
    Copy(Box<CopyArgs>),
    Key(KeyArgs),
    Upgrade(UpgradeArgs),
    Completions(CompletionsArgs),
    #[command(name = "__complete", hide = true)]
    Complete(CompleteArgs),
    #[command(name = "__manual", hide = true)]
    Manual(ManualArgs),
}

/// Make a new repository.
///
/// Refuses a place that holds a repository or packs already, and deletes nothing; with --if-absent it
/// opens the repository that is there instead. Without --repo it makes the embedded repository with a
/// key file beside it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover init
  mover init --if-absent
  mover init --repo file:///srv/backups --new-key-file /etc/mover/key
  mover init --repo s3://bucket/prefix --password-file /run/secrets/passphrase")]
pub(crate) struct InitArgs {
    /// Do nothing where there is a repository that the key opens and that is as the other flags say
    #[arg(long, env = "MOVER_IF_ABSENT", value_parser = FalseyValueParser::new())]
    pub(crate) if_absent: bool,
    /// Key file of the new repository: made with a random key (mode 0600) where there is none
    #[arg(long, env = "MOVER_NEW_KEY_FILE", value_name = "FILE")]
    pub(crate) new_key_file: Option<PathBuf>,
    /// How stored data is sealed; `none` is for those who encrypt below [default: aes-256-gcm]
    #[arg(long, env = "MOVER_ENCRYPTION", value_name = "NAME")]
    pub(crate) encryption: Option<EncryptionArg>,
    /// Size of a chunk, 4KiB to 4MiB, a power of two: smaller ones make increments smaller and maps
    /// larger [default: 64KiB]
    #[arg(long, env = "MOVER_CHUNK_SIZE", value_name = "SIZE")]
    pub(crate) chunk_size: Option<String>,
    /// Most chunks that are sealed together, 16 MiB at most [default: 16, or fewer large ones]
    #[arg(long, env = "MOVER_ENTRY_CHUNKS", value_name = "N")]
    pub(crate) entry_chunks: Option<u16>,
    /// Children of a map page, a power of two [default: 128]
    #[arg(long, env = "MOVER_PAGE_FANOUT", value_name = "N")]
    pub(crate) page_fanout: Option<u16>,
    /// Label of the first key, shown by `mover key list`
    #[arg(long, env = "MOVER_KEY_LABEL", value_name = "TEXT")]
    pub(crate) key_label: Option<String>,
}

/// Back up a block device or a raw image.
///
/// Looks for the newest backup of the same volume and stores only what differs from it. With a list
/// of changed blocks only these are read at all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover backup /dev/vg0/db --volume db
  mover backup /dev/vg0/db --volume db --snapshot s1 --plan")]
#[command(after_long_help = "\
Examples:
  mover backup /dev/vg0/db --volume db
  mover backup /dev/vg0/db --volume db --plan --price-file prices.json
  mover backup /dev/vg0/db --volume db --snapshot s1 --deadline 2h --max-upload 100GiB
  mover backup /dev/vg0/db --volume db --repo s3://locked-bucket/db --retain-for 30d
  mover backup /dev/vg0/db --volume db --attach manifest.json=/tmp/manifest.json
  mover backup disk.img --volume db --changed-blocks changed.json --base-snapshot s1 --snapshot s2
  mover backup /dev/sdb --volume db --changes-url https://tracker:8443/prod/db-s2 --base-snapshot s1 --snapshot s2
  mover backup 'nbd+unix:///vda?socket=/run/vm.sock' --volume db --nbd-bitmap b1 --base-snapshot s1 \\
      --snapshot s2
  rbd diff --format json pool/db@s2 --from-snap s1 | mover backup /dev/rbd0 --volume db --changed-blocks - \\
      --changed-blocks-kind delta --base-snapshot s1 --snapshot s2")]
pub(crate) struct BackupArgs {
    /// Block device, raw image, or NBD export (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH)
    /// to read
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// Name that joins the backups of one volume [default: UUID of its filesystem, or the file's
    /// name]
    #[arg(long, env = "MOVER_VOLUME", value_name = "NAME")]
    pub(crate) volume: Option<String>,
    /// Backup to compare with: found by itself, `none`, or a backup of the same volume
    #[arg(long, env = "MOVER_PARENT", value_name = "auto|none|BACKUP", default_value = "auto")]
    pub(crate) parent: String,
    /// Id of this backup; running it again with the same id changes nothing [default: random]
    #[arg(long, env = "MOVER_BACKUP_ID", value_name = "ID")]
    pub(crate) backup_id: Option<String>,
    /// Note on the backup, NAME=VALUE. May be repeated
    #[arg(long, env = "MOVER_LABEL", value_name = "NAME=VALUE", action = ArgAction::Append)]
    pub(crate) label: Vec<String>,
    /// Keep this file with the backup under a name, as `manifest.json=/tmp/m.json`. May be repeated
    ///
    /// Of a directory the files are one attachment, in the order of their names. Those whose names
    /// begin with a dot are left out.
    #[arg(long, env = "MOVER_ATTACH", value_name = "NAME=FILE", action = ArgAction::Append)]
    pub(crate) attach: Vec<String>,
    /// Refuse an attachment of other bytes, before the volume is read. May be repeated
    #[arg(long, env = "MOVER_ATTACH_DIGEST", value_name = "NAME=blake3:HEX", hide_short_help = true,
        action = ArgAction::Append)]
    pub(crate) attach_digest: Vec<String>,
    /// How much of what a list does not name is read and compared: a number of chunks, a share such
    /// as 1%, all, or off. Both ends of the volume are always looked at [default: 32]
    #[arg(long, env = "MOVER_AUDIT", value_name = "AMOUNT")]
    pub(crate) audit: Option<String>,
    /// The source is another disk than before on purpose, or the snapshot was made anew under its
    /// name: formatted anew, made smaller
    #[arg(long, env = "MOVER_VOLUME_CHANGED", value_parser = FalseyValueParser::new())]
    pub(crate) volume_changed: bool,
    /// Exit with code 5 when the backup is good, but was not made as asked
    #[arg(long, env = "MOVER_FAIL_ON_DEGRADED", value_parser = FalseyValueParser::new())]
    pub(crate) fail_on_degraded: bool,
    #[command(flatten)]
    pub(crate) storing: StoringArgs,
    #[command(flatten)]
    pub(crate) limits: ReadLimitArgs,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    #[command(flatten)]
    pub(crate) changes: ChangesArgs,
    #[command(flatten)]
    pub(crate) snapshot: SnapshotArgs,
}

/// What the source is a snapshot of; recorded in the backup.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Snapshot")]
pub(crate) struct SnapshotArgs {
    /// Snapshot that is read; a later delta names it as its base
    #[arg(long, env = "MOVER_SNAPSHOT", value_name = "ID")]
    pub(crate) snapshot: Option<String>,
    /// The CSI driver's handle of the snapshot
    #[arg(long, env = "MOVER_SNAPSHOT_HANDLE", value_name = "HANDLE")]
    pub(crate) snapshot_handle: Option<String>,
    /// Name of the CSI driver
    #[arg(long, env = "MOVER_CSI_DRIVER", value_name = "NAME")]
    pub(crate) csi_driver: Option<String>,
    /// The CSI driver's handle of the volume
    #[arg(long, env = "MOVER_VOLUME_HANDLE", value_name = "HANDLE")]
    pub(crate) volume_handle: Option<String>,
    /// The storage system's id of the state that is read; where a driver wants it, a later delta
    /// names it with --changes-base-id
    #[arg(long, env = "MOVER_CHANGE_ID", value_name = "ID")]
    pub(crate) change_id: Option<String>,
}

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover completions bash > /etc/bash_completion.d/mover
  mover completions zsh > ~/.zfunc/_mover
  mover completions fish > ~/.config/fish/completions/mover.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Print what may stand at the end of a command line. Scripts of `mover completions` ask for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover __complete -- restore db@")]
pub(crate) struct CompleteArgs {
    /// All words behind `mover`, the last one as far as it is typed
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// Write the manual pages into a directory, one for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover __manual /usr/local/share/man/man1")]
pub(crate) struct ManualArgs {
    /// Where to; it is made where it is missing
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

/// The command tree, with what holds for all flags.
pub(crate) fn command() -> clap::Command {
    short_help(hide_env_values(<Args as clap::CommandFactory>::command()))
}

/// The same for `-h`, which has no room for variables.
pub(crate) fn command_without_twins() -> clap::Command {
    fn hide_env(command: clap::Command) -> clap::Command {
        command.mut_args(|a| a.hide_env(true)).mut_subcommands(hide_env)
    }
    hide_env(command())
}

/// Flags that `-h` shows of commands that have more than fit on a screen: those of most days.
const SHORT: [(&str, &[&str]); 6] = [
    ("mover", &["repo", "json"]),
    (
        "backup",
        &["source", "volume", "snapshot", "base_snapshot", "changed_blocks", "label", "plan"],
    ),
    ("restore", &["backup", "target", "before", "force", "verify", "range"]),
    ("serve", &["backups", "socket", "listen", "insecure", "changed_since", "run"]),
    ("copy", &["backups", "to", "to_key_file", "volume", "dry_run"]),
    ("changes", &["source", "changed_blocks", "changes_url", "volume_size", "form", "stats"]),
];

/// `-h` fits on a screen, and `--help` has everything.
fn short_help(command: clap::Command) -> clap::Command {
    let shown = SHORT.iter().find(|(name, _)| *name == command.get_name());
    let command = match shown {
        Some((_, shown)) => command.mut_args(|a| {
            let hidden = !shown.contains(&a.get_id().as_str());
            a.hide_short_help(hidden)
        }),
        None => command,
    };
    command.mut_subcommands(short_help)
}

/// The help names the variables, never their values: some of them say where keys are.
fn hide_env_values(command: clap::Command) -> clap::Command {
    command.mut_args(|a| a.hide_env_values(true)).mut_subcommands(hide_env_values)
}

#[cfg(test)]
mod tests;
