//! What can be typed for `install` and `uninstall`.

use crate::install;
use crate::ops::repository::velero;
use clap::{Args as ClapArgs, ValueEnum};

#[derive(Debug, ClapArgs)]
pub(crate) struct Install {
    /// Apply it to the cluster, instead of printing it
    #[arg(long)]
    pub(crate) apply: bool,
    /// Have the API server say whether it would take each object, and change nothing
    #[arg(long, requires = "apply")]
    pub(crate) dry_run: bool,
    /// Wait until the controller is ready
    #[arg(long, requires = "apply", conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    /// Seconds that --wait waits
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) timeout: u64,
    /// Print only these files of manifests; may be repeated
    #[arg(long, value_name = "WHAT", value_enum, conflicts_with = "apply")]
    pub(crate) print: Vec<Print>,
    /// Image of the controller, and of Jobs whose Repository names none; by its digest, best
    #[arg(long, value_name = "IMAGE", default_value_t = install::default_image())]
    pub(crate) image: String,
    /// When the controller's image is pulled
    #[arg(long, value_name = "WHEN", default_value = "IfNotPresent")]
    pub(crate) image_pull_policy: String,
    /// One more image that a Repository may name for its Jobs; may be repeated
    #[arg(long, value_name = "IMAGE")]
    pub(crate) job_image: Vec<String>,
    /// Pod Security of Jobs: restricted where the nodes' container runtime gives devices to the
    /// pod's user (device_ownership_from_security_context)
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = PodSecurity::Baseline)]
    pub(crate) job_security: PodSecurity,
    /// Namespace that the controller works in, instead of all; may be repeated
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) watch_namespace: Vec<String>,
    /// Let the controller run hooks in pods
    #[arg(long)]
    pub(crate) hooks: bool,
    /// Let the controller restore in place: it then deletes and remakes claims of users
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) restore_in_place: bool,
    /// Serve lists of changed blocks (DifferentialSnapshot), by the certificate in this Secret of
    /// type kubernetes.io/tls
    #[arg(long, value_name = "SECRET")]
    pub(crate) differential_snapshots: Option<String>,
    /// Move data for Velero (`velero backup create --snapshot-move-data --data-mover mover`), which
    /// runs in this namespace [default with --velero: velero]
    #[arg(long, value_name = "NAMESPACE", num_args = 0..=1,
        default_missing_value = velero::DEFAULT_NAMESPACE)]
    pub(crate) velero: Option<String>,
    /// Part that is left away; may be repeated
    #[arg(long, value_name = "PART", value_enum)]
    pub(crate) without: Vec<Without>,
}

/// Files of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Print {
    Crds,
    Policies,
    Rights,
    NetworkPolicies,
    Controller,
    Monitoring,
}

/// Levels of Pod Security.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PodSecurity {
    Baseline,
    Restricted,
}

/// Parts of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Without {
    Crds,
    Policies,
    NetworkPolicies,
    Monitoring,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Uninstall {
    /// Remove the definitions of the kinds too, and with them all Repositories, VolumeBackups,
    /// VolumeRestores, BackupSchedules and DifferentialSnapshots. Backups stay in their repositories
    #[arg(long)]
    pub(crate) crds: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}
