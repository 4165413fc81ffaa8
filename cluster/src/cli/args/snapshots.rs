//! `kubectl mover snapshots`.

use super::List;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum SnapshotsCommand {
    /// List the snapshots that backups were made of, and which of them this cluster has
    List(List),
    /// Bring a snapshot that the storage still has into this cluster, without moving data
    Import(ImportSnapshot),
    /// Delete a snapshot that was kept, or imported: from the cluster, and from the storage
    Delete(DeleteSnapshot),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ImportSnapshot {
    /// The backup that was made of it: PVC@latest, PVC@2026-11-22, PVC@ID, or CLUSTER/NAMESPACE/PVC@…
    #[arg(value_name = "BACKUP")]
    pub(in crate::cli) backup: String,
    /// Repository, as [NAMESPACE/]NAME [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(in crate::cli) repository: Option<String>,
    /// Name of the VolumeSnapshot [default: the claim's, and the beginning of the backup's id]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) name: Option<String>,
    /// Class of the snapshot [default: the driver's default class, or its only one]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) snapshot_class: Option<String>,
    /// Name of the driver, for a backup that does not note it
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) driver: Option<String>,
    /// How long the driver may take to find it, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(in crate::cli) timeout: u64,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DeleteSnapshot {
    /// Name of the VolumeSnapshot
    #[arg(value_name = "NAME")]
    pub(in crate::cli) name: String,
    /// Only from this cluster: the storage keeps it, for another cluster
    #[arg(long, conflicts_with = "in_storage")]
    pub(in crate::cli) leave: bool,
    /// From the storage too, though it was imported: another cluster may have it still
    #[arg(long)]
    pub(in crate::cli) in_storage: bool,
}
