//! What can be typed after `key`.

use clap::Subcommand;
use std::path::PathBuf;

/// Add, remove and list the keys that open the repository.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover key list
  mover key add --new-key-file /etc/mover/key --key-label node-7
  mover key remove 3f2a")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    Add(KeyAddArgs),
    Remove(KeyRemoveArgs),
    List(KeyListArgs),
}

/// Add a key file or a passphrase.
///
/// The repository is opened with the keys given by --key-file or --password-…; the new one is named
/// by --new-…. Without a --new- flag a passphrase is asked for on the terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover key add --key-file old.key --new-key-file new.key --key-label node-7
  mover key add --key-file old.key --new-password-file passphrase.txt")]
pub(crate) struct KeyAddArgs {
    /// Key file to add: made with a random key (mode 0600) where there is none
    #[arg(long, env = "MOVER_NEW_KEY_FILE", value_name = "FILE")]
    pub(crate) new_key_file: Option<PathBuf>,
    /// File whose first line is the passphrase to add
    #[arg(long, env = "MOVER_NEW_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) new_password_file: Option<PathBuf>,
    /// Label of the new key, shown by `mover key list`
    #[arg(long, env = "MOVER_KEY_LABEL", value_name = "TEXT")]
    pub(crate) key_label: Option<String>,
}

/// Remove a key; the last one stays.
///
/// Whoever had it and read the repository may have learnt the master key: removing it takes nothing
/// back.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover key remove 3f2a")]
pub(crate) struct KeyRemoveArgs {
    /// Id of the key, or a unique prefix
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

/// List the keys of the repository.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover key list --json")]
pub(crate) struct KeyListArgs {}
