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
  mover check --find-roots
  mover check --find-roots --adopt 1f3a --as db
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
    /// Rebuild what can be (dedup segments, forwarding stubs, backups whose damaged data stands
    /// elsewhere too), and record what is lost, so that the next backups store it again
    #[arg(long, env = "MOVER_REPAIR", value_parser = FalseyValueParser::new())]
    pub(crate) repair: bool,
    /// Find what is left of backups whose manifests are lost: trees of pages that no manifest leads
    /// to. Nothing else is checked
    #[arg(long, env = "MOVER_FIND_ROOTS", value_parser = FalseyValueParser::new())]
    pub(crate) find_roots: bool,
    /// Make a backup of a root that was found, by the beginning of its id
    #[arg(
        long,
        hide_short_help = true,
        env = "MOVER_ADOPT",
        value_name = "ROOT",
        requires = "find_roots"
    )]
    pub(crate) adopt: Option<String>,
    /// Of which volume, and under which id; by default a volume named after the root, and a random
    /// id. A volume that has backups gets it at the place of its time
    #[arg(
        long = "as",
        hide_short_help = true,
        env = "MOVER_AS",
        value_name = "VOLUME[@ID]",
        requires = "adopt"
    )]
    pub(crate) adopt_as: Option<String>,
    /// Size of the volume, where its pages leave it open; by default that of the volume that shares
    /// most with it
    #[arg(
        long,
        hide_short_help = true,
        env = "MOVER_SIZE",
        value_name = "BYTES",
        requires = "adopt"
    )]
    pub(crate) size: Option<String>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}
