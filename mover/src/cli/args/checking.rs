//! What can be typed after `check`.

use super::ReadingArgs;
use clap::builder::FalseyValueParser;

/// Check the repository: whether every backup in it can be restored.
///
/// Without --read-data the structure is checked: every reference of every backup leads to an
/// entry in a pack that is there and lists it, and every record opens. Safe beside all other
/// commands. Ends with exit code 3 if anything is damaged, and names what, and which bytes of
/// which backups are lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover check
  mover check --read-data=5%
  mover check --read-data --repair
  mover check --json | jq 'select(.type == \"lost\")'")]
pub(crate) struct CheckArgs {
    /// Also read the packs: hash, tags and ids of all of them, or of a random share such as 5%
    #[arg(
        long,
        env = "MOVER_READ_DATA",
        value_name = "all|N%",
        num_args = 0..=1,
        default_missing_value = "all",
        require_equals = true
    )]
    pub(crate) read_data: Option<String>,
    /// Rebuild what can be (dedup segments, forwarding stubs), and record what is lost, so that the
    /// next backups store it again
    #[arg(long, env = "MOVER_REPAIR", value_parser = FalseyValueParser::new())]
    pub(crate) repair: bool,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}
