//! What can be typed about the features of a repository.

/// Show what a repository is made of, and add to that.
///
/// Shows the format's version, the features that were added, and those that this version could add.
/// Programs that do not know a feature refuse the repository, in words, for as much as it is needed:
/// to read, or only to write. A feature is added for good.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover upgrade
  mover upgrade --add NAME")]
pub(crate) struct UpgradeArgs {
    /// Add this feature, for good: older programs can then only do what does not need it
    #[arg(long, env = "MOVER_ADD", value_name = "NAME")]
    pub(crate) add: Option<String>,
}
