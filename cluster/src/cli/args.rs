//! What can be typed.

mod install;
mod making;
mod objects;
mod schedule;
mod snapshots;

pub(super) use install::{Install, PodSecurity, Print, Uninstall, Without};
pub(super) use making::Making;
pub(super) use objects::{
    BackupObjects, Existing, ListObjects, ObjectsCommand, ObjectsOf, RestoreObjects, SaveObjects,
    StoredObjects,
};
pub(super) use schedule::{KeepFlags, NewSchedule, ScheduleCommand};
pub(super) use snapshots::{DeleteSnapshot, ImportSnapshot, SnapshotsCommand};

use crate::ops::repository::velero;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Back up and restore volumes of a cluster.
///
/// Nothing has to be installed in the cluster: a ConfigMap holds the state of each operation, and a
/// command that was interrupted goes on when it is run again.
#[derive(Debug, Parser)]
#[command(name = "kubectl mover", bin_name = "kubectl mover", version, max_term_width = 100)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) cluster: Cluster,
    /// How results are printed
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,
    /// Print nothing but results, warnings and errors
    #[arg(long, short, global = true)]
    pub(super) quiet: bool,
    /// Say on stderr what is done; twice for more
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// How the cluster is found, as kubectl has it.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub(super) struct Cluster {
    /// Configuration file instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the configuration
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Cluster of the configuration
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) cluster: Option<String>,
    /// User of the configuration
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) user: Option<String>,
    /// Namespace [default: that of the context]
    #[arg(long, short, global = true, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// Act as this user
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(super) impersonate: Option<String>,
    /// Act as this group; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "impersonate")]
    pub(super) impersonate_groups: Vec<String>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Back up PersistentVolumeClaims
    Backup(Box<Backup>),
    /// Restore a backup to a new PersistentVolumeClaim, and prove it
    Restore(Restore),
    /// List backups
    List(List),
    /// List operations: backups and restores that run, and the last ones that ended
    Operations(Operations),
    /// Show all that is known about one operation
    Describe(Named),
    /// Print the log of an operation's pod
    Logs(Named),
    /// End an operation, and remove what it made
    Cancel(Named),
    /// Remove what operations left that nobody goes on with
    Sweep(Sweep),
    /// Make, list and remove Repositories
    Repository {
        #[command(subcommand)]
        command: Repository,
    },
    /// Make, list, run and remove BackupSchedules, which a controller looks after
    Schedule {
        #[command(subcommand)]
        command: ScheduleCommand,
    },
    /// List, import and delete the snapshots in the storage that backups were made of
    Snapshots {
        #[command(subcommand)]
        command: SnapshotsCommand,
    },
    /// List, save and restore the objects of an application
    Objects {
        #[command(subcommand)]
        command: ObjectsCommand,
    },
    /// Find the reasons why a backup would not work, before it is tried
    Doctor(Doctor),
    /// Run the controller, which looks after the objects of mover's kinds in a cluster
    Controller(Controller),
    /// Print what the controller takes in a cluster, or apply it
    Install(Box<Install>),
    /// Remove the controller from a cluster, and the finalizers of ours from all objects
    Uninstall(Uninstall),
    /// Write manifests and chart into a folder
    #[command(name = "__deploy", hide = true)]
    Deploy { folder: PathBuf },
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, ClapArgs)]
pub(super) struct Backup {
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Repository, as [NAMESPACE/]NAME; looked for in the claim's namespace, then in mover-system
    /// [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(super) repository: Option<String>,
    #[command(flatten)]
    pub(super) making: Making,
    #[command(flatten)]
    pub(super) objects: BackupObjects,
    /// Wait for the end; always so as long as nothing in the cluster goes on with it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) wait: bool,
    #[command(flatten)]
    pub(super) make: Settings,
    /// More arguments for `mover backup`
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(super) arguments: Vec<String>,
}

/// Claims, by themselves or by what uses them.
#[derive(Debug, ClapArgs)]
pub(super) struct Sources {
    /// pvc/NAME, or all claims of statefulset/NAME, deployment/NAME, pod/NAME or ns/NAME
    #[arg(value_name = "SOURCE")]
    pub(super) words: Vec<String>,
    /// All claims of the namespace with these labels, such as app=db
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub(super) selector: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Doctor {
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Repository, as [NAMESPACE/]NAME; looked for in the claim's namespace, then in mover-system
    /// [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(super) repository: Option<String>,
    /// Class of the snapshot, as for `backup`
    #[arg(long, value_name = "NAME")]
    pub(super) snapshot_class: Option<String>,
    /// Class of the volume that is made of the snapshot, as for `backup`
    #[arg(long, value_name = "NAME")]
    pub(super) storage_class: Option<String>,
    /// All claims with the labels of --selector are to be snapshotted at one moment, as one group
    #[arg(long, requires = "selector", conflicts_with = "words")]
    pub(super) group: bool,
    /// Whole volumes are to be read: do not look for a service of changed blocks
    #[arg(long)]
    pub(super) whole: bool,
    /// Look at Velero, whose namespace this is, and at what it takes to have mover move its data; without
    /// claims, at nothing else [default with --velero: velero]
    #[arg(long, value_name = "NAMESPACE", num_args = 0..=1, require_equals = true,
        default_missing_value = velero::DEFAULT_NAMESPACE, conflicts_with = "connect")]
    pub(super) velero: Option<String>,
    /// Run a Job that lists the repository, where nothing else is wrong: bucket, credentials, key
    #[arg(long)]
    pub(super) connect: bool,
    #[command(flatten)]
    pub(super) hook: Hook,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Restore {
    /// PVC@latest, PVC@2026-11-22 or PVC@ID; CLUSTER/NAMESPACE/PVC@… for a volume of another place
    pub(super) backup: String,
    /// The new claim, or with --in-place one that exists: pvc/NAME
    #[arg(long, value_name = "CLAIM")]
    pub(super) to: String,
    /// Repository, as [NAMESPACE/]NAME; looked for in the namespace, then in mover-system
    /// [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(super) repository: Option<String>,
    /// Write onto the volume of a claim that exists and that nobody uses
    #[arg(long, conflicts_with_all = ["storage_class", "size"])]
    pub(super) in_place: bool,
    /// No node has its volume, of a driver that does not tell
    #[arg(long, requires = "in_place")]
    pub(super) assume_detached: bool,
    /// Read that volume first, and fetch and write only what differs from the backup
    #[arg(long, requires = "in_place")]
    pub(super) differential: bool,
    /// Begin as the backup's snapshot, where the storage still has it, and fetch only what differs
    #[arg(long, conflicts_with = "in_place")]
    pub(super) prefer_snapshot: bool,
    /// Class of the new claim [default: the source's, or the cluster's default]
    #[arg(long, value_name = "NAME")]
    pub(super) storage_class: Option<String>,
    /// Size of the new claim, such as 20Gi [default: the source's]
    #[arg(long, value_name = "SIZE")]
    pub(super) size: Option<String>,
    /// As a block volume, whatever the source was
    #[arg(long, conflicts_with = "filesystem")]
    pub(super) block: bool,
    /// As a filesystem volume of this type, whatever the source was
    #[arg(long, value_name = "TYPE")]
    pub(super) filesystem: Option<String>,
    /// Wait for the end; always so as long as nothing in the cluster goes on with it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) wait: bool,
    #[command(flatten)]
    pub(super) limits: Limits,
}

/// How the application holds still while the snapshot is taken.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Application")]
pub(super) struct Hook {
    /// Pod that the hook runs in [default: the only running one that uses the claim]
    #[arg(long, value_name = "POD")]
    pub(super) hook_pod: Option<String>,
    /// Its container [default: its only one]
    #[arg(long, value_name = "NAME")]
    pub(super) hook_container: Option<String>,
    /// Shell command that holds a lock from its first line of output until its input ends
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["hook_before", "fsfreeze"])]
    pub(super) hook_session: Option<String>,
    /// Shell command that has the application hold still
    #[arg(long, value_name = "COMMAND", requires = "hook_after", conflicts_with = "fsfreeze")]
    pub(super) hook_before: Option<String>,
    /// Shell command that lets it go on; it may run twice, and after a first one that failed
    #[arg(long, value_name = "COMMAND", requires = "hook_before")]
    pub(super) hook_after: Option<String>,
    /// Freeze the filesystem at this path of the container, which needs CAP_SYS_ADMIN
    #[arg(long, value_name = "PATH")]
    pub(super) fsfreeze: Option<String>,
    /// Seconds after which the application goes on, whatever happens
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) hook_timeout: u64,
    /// When it went on before the snapshot was taken: fail, or take the snapshot as it is
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnTimeout::Fail)]
    pub(super) hook_on_timeout: OnTimeout,
}

/// What follows where the application went on too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OnTimeout {
    Fail,
    Continue,
}

/// How long each step may take.
#[derive(Debug, Clone, Copy, ClapArgs)]
#[command(next_help_heading = "Deadlines")]
pub(super) struct Limits {
    /// Seconds until a snapshot is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub(super) snapshot_timeout: u64,
    /// Seconds until a volume is bound
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(super) volume_timeout: u64,
    /// Seconds until a pod runs
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub(super) start_timeout: u64,
    /// Seconds until an object that is removed is gone
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(super) removal_timeout: u64,
    /// Seconds until another operation of the same claim has ended; 0 waits for none. Where a controller makes the
    /// operation, that waits in its own way
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(super) turn_timeout: u64,
}

#[derive(Debug, ClapArgs)]
pub(super) struct List {
    /// Only backups of this claim, pvc/NAME, or of a volume CLUSTER/NAMESPACE/PVC
    pub(super) source: Option<String>,
    /// Repository, as [NAMESPACE/]NAME [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(super) repository: Option<String>,
    /// Backups of all volumes in the repository, not only of this cluster's namespace
    #[arg(long, short = 'A')]
    pub(super) all_namespaces: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Operations {
    /// Of all namespaces
    #[arg(long, short = 'A')]
    pub(super) all_namespaces: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Named {
    /// Name of the operation, as `kubectl mover operations` prints it
    pub(super) operation: String,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Sweep {
    /// Of all namespaces
    #[arg(long, short = 'A')]
    pub(super) all_namespaces: bool,
    /// Remove bases, too, whose claim is gone: snapshots that no backup will ask for again
    #[arg(long)]
    pub(super) bases: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Controller {
    /// Look after objects of this namespace alone; may be repeated [default: all namespaces]
    #[arg(long, value_name = "NAMESPACE")]
    pub(super) watch_namespace: Vec<String>,
    /// Image of the Jobs of Repositories that name none
    #[arg(long, value_name = "IMAGE", default_value = concat!("mover:", env!("CARGO_PKG_VERSION")))]
    pub(super) image: String,
    /// Pod Security of Jobs
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = PodSecurity::Baseline)]
    pub(super) job_security: PodSecurity,
    /// Where the status page is shown: it asks nobody for a name
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(super) listen_page: SocketAddr,
    /// Name by which the page may be asked for, besides those of loopback; may be repeated
    #[arg(long, value_name = "HOST")]
    pub(super) page_host: Vec<String>,
    /// Where metrics and probes are
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8081")]
    pub(super) listen_metrics: SocketAddr,
    /// Secret of the controller's namespace with the key of its seals, made if there is none
    #[arg(long, value_name = "SECRET", default_value = "mover-controller-seal")]
    pub(super) seal_secret: String,
    /// Where lists of changed blocks are served to whoever may get a DifferentialSnapshot
    /// [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) differential_snapshots: Option<SocketAddr>,
    /// Folder with tls.crt and tls.key of that server; without it, it listens on loopback alone
    #[arg(long, value_name = "FOLDER", requires = "differential_snapshots")]
    pub(super) differential_tls: Option<PathBuf>,
    /// How its clients reach it, such as https://HOST:PORT [default: its address]
    #[arg(long, value_name = "URL", requires = "differential_snapshots")]
    pub(super) differential_url: Option<String>,
    /// Account of the controller's namespace that drivers are asked by what changed
    #[arg(long, value_name = "ACCOUNT", default_value = crate::install::DIFFERENTIAL)]
    pub(super) differential_account: String,
    /// Namespace of Velero, whose data movement with `--data-mover mover` is done [default: none]
    #[arg(long, value_name = "NAMESPACE")]
    pub(super) velero_namespace: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Repository {
    /// Make a Repository: its key, the repository itself, and what leads to it
    Add {
        /// Its name [default: default, or that of --velero-location]
        name: Option<String>,
        #[command(flatten)]
        velero: OfVelero,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// List Repositories
    List {
        /// Of all namespaces
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },
    /// Show what the repository is made of, or add a feature to it
    Upgrade {
        /// Its name, as [NAMESPACE/]NAME [default: default]
        name: Option<String>,
        /// Add this feature, for good; `attachments` lets backups keep objects
        #[arg(long, value_name = "FEATURE")]
        add: Option<String>,
    },
    /// Remove a Repository from the cluster. Its key and its backups stay
    Remove {
        /// Its name
        name: String,
    },
}

/// Which location of Velero a Repository is for.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Velero")]
pub(super) struct OfVelero {
    /// BackupStorageLocation whose store, credentials and settings are taken over; the Repository is
    /// beside its prefix, in s3://BUCKET/PREFIX-mover, and for what Velero backs up to it
    #[arg(long, value_name = "NAME")]
    pub(super) velero_location: Option<String>,
    /// Namespace of Velero, and of that Repository [default: that of -n, or velero]
    #[arg(long, value_name = "NAMESPACE", requires = "velero_location")]
    pub(super) velero_namespace: Option<String>,
}

/// How a Repository is made.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "New Repository")]
pub(super) struct Settings {
    /// Where it is, such as s3://BUCKET/PREFIX. With `backup`, a Repository is made if there is none
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// Secret with the store's credentials as environment variables, such as AWS_ACCESS_KEY_ID
    #[arg(long, value_name = "SECRET")]
    pub(super) credentials: Option<String>,
    /// Secret with the repository's key [default: mover-key-NAME, made with a random key if there is
    /// none]
    #[arg(long, value_name = "SECRET")]
    pub(super) key_secret: Option<String>,
    /// File with the key of a repository that exists: it becomes the Secret
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// ConfigMap with an authority of your own, in ca.crt
    #[arg(long, value_name = "CONFIGMAP")]
    pub(super) ca: Option<String>,
    /// Environment variable of the Jobs, such as AWS_ENDPOINT_URL=https://minio:9000; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) env: Vec<String>,
    /// How volumes of this cluster begin in it [default: part of the uid of kube-system]
    #[arg(long, value_name = "NAME")]
    pub(super) cluster_name: Option<String>,
    /// Namespace that may use it, or *; may be repeated
    #[arg(long, value_name = "NAMESPACE")]
    pub(super) allow_namespace: Vec<String>,
    /// Whether a restored volume may become a filesystem volume
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(super) allow_mode_change: bool,
    /// Image of the Jobs
    #[arg(long, value_name = "IMAGE", default_value = concat!("mover:", env!("CARGO_PKG_VERSION")))]
    pub(super) image: String,
    /// When the image is pulled
    #[arg(long, value_name = "WHEN", default_value = "IfNotPresent")]
    pub(super) image_pull_policy: String,
    /// Service account of the Jobs, made if there is none
    #[arg(long, value_name = "NAME", default_value = "mover")]
    pub(super) service_account: String,
    /// Pod Security of the Jobs, as for `install`
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = PodSecurity::Baseline)]
    pub(super) job_security: PodSecurity,
    /// Memory of a Job
    #[arg(long, value_name = "SIZE", default_value = "320Mi")]
    pub(super) memory: String,
    /// Processor of a Job
    #[arg(long, value_name = "CPU", default_value = "1")]
    pub(super) cpu: String,
}
