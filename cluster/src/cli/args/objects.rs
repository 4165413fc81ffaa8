//! `kubectl mover objects`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ObjectsCommand {
    /// List the objects of namespaces, and which of them would be restored; nothing is moved
    List(ListObjects),
    /// Save objects to a file: those of the cluster, or those that a backup has
    Save(SaveObjects),
    /// Make the objects of a file, or of a backup, again, owners first
    Restore(RestoreObjects),
}

/// Which objects are meant.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ObjectsOf {
    /// Only objects with these labels, what they own, and what they need
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub(in crate::cli) selector: Option<String>,
    /// Owners by a field or a label, KIND.GROUP:PATH=KIND.GROUP, as in
    /// Backup.example.com:spec.clusterRef=Cluster.example.com; may be repeated
    #[arg(long, value_name = "RULE")]
    pub(in crate::cli) owner_rule: Vec<String>,
    /// Go without what cannot be read, and name it
    #[arg(long)]
    pub(in crate::cli) skip_unreadable: bool,
    /// Fail if the objects are not those of this list, which `list --save` wrote
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) accept: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ListObjects {
    /// Namespaces [default: that of the context]
    #[arg(value_name = "NAMESPACE")]
    pub(in crate::cli) namespaces: Vec<String>,
    #[command(flatten)]
    pub(in crate::cli) of: ObjectsOf,
    /// Write the list to a new file
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) save: Option<PathBuf>,
    /// Name the objects that another list has, too
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) shared_with: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SaveObjects {
    /// The new file, which only its owner may read: it may hold Secrets
    #[arg(value_name = "FILE")]
    pub(in crate::cli) file: PathBuf,
    /// Namespaces [default: that of the context]
    #[arg(value_name = "NAMESPACE")]
    pub(in crate::cli) namespaces: Vec<String>,
    #[command(flatten)]
    pub(in crate::cli) of: ObjectsOf,
    #[command(flatten)]
    pub(in crate::cli) stored: StoredObjects,
}

/// Objects that were kept with a backup.
#[derive(Debug, Args)]
pub(in crate::cli) struct StoredObjects {
    /// Those of a backup that was made with --objects: PVC@latest, PVC@2026-11-22 or PVC@ID;
    /// CLUSTER/NAMESPACE/PVC@… for a volume of another place
    #[arg(long, value_name = "BACKUP")]
    pub(in crate::cli) from: Option<String>,
    /// Repository of the backup, as [NAMESPACE/]NAME; looked for in the namespace, then in
    /// mover-system [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(in crate::cli) repository: Option<String>,
}

/// Objects that a backup brings along.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Objects")]
pub(in crate::cli) struct BackupObjects {
    /// Keep the objects of the claim's namespace with the backup, its Secrets too, as `objects save`
    /// writes them
    #[arg(long)]
    pub(in crate::cli) objects: bool,
    /// Only objects with these labels, what they own, and what they need
    #[arg(long, value_name = "LABELS", requires = "objects")]
    pub(in crate::cli) objects_selector: Option<String>,
    /// Owners by a field or a label, as for `objects save`; may be repeated
    #[arg(long, value_name = "RULE", requires = "objects")]
    pub(in crate::cli) owner_rule: Vec<String>,
    /// Go without objects that cannot be read, and name them
    #[arg(long, requires = "objects")]
    pub(in crate::cli) skip_unreadable: bool,
    /// Fail if the objects are not those of this list, which `objects list --save` wrote
    #[arg(long, value_name = "FILE", requires = "objects")]
    pub(in crate::cli) accept: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreObjects {
    /// A file that `save` wrote, compressed with zstd or not
    #[arg(value_name = "FILE", required_unless_present = "from", conflicts_with = "from")]
    pub(in crate::cli) file: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) stored: StoredObjects,
    /// Another namespace for those of one, OLD=NEW; may be repeated
    #[arg(long, value_name = "OLD=NEW")]
    pub(in crate::cli) namespace_map: Vec<String>,
    /// Write nothing: say what is there, and what would be made
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// Write what --dry-run says to a new file
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    pub(in crate::cli) save: Option<PathBuf>,
    /// Fail if a dry run no longer says what this file says; make nothing then
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(in crate::cli) accept: Option<PathBuf>,
    /// Where another object has the name
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Existing::Skip)]
    pub(in crate::cli) existing: Existing,
    /// Make the objects whatever claims there are: whoever finds none begins with an empty volume
    #[arg(long)]
    pub(in crate::cli) ignore_claims: bool,
}

/// What follows where another object has the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Existing {
    /// Leave it as it is, and go on
    Skip,
    /// Make it what was saved; objects of the cluster, which others need too, stay as they are
    Update,
    /// Make nothing at all
    Fail,
}
