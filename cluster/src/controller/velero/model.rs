//! DataUpload and DataDownload of `velero.io/v2alpha1`, as far as they are read and written here:
//! the fields of Velero 1.18 and of its main branch
//! (<https://github.com/vmware-tanzu/velero/tree/main/pkg/apis/velero/v2alpha1>). The rest is
//! Velero's, and nobody here writes it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What `spec.datamover` says where the data is ours to move.
pub(crate) const DATA_MOVER: &str = "mover";
/// Begins each `snapshotID` of ours.
const ID_BEGINS: &str = "mover1:";

/// A DataUpload: one volume of a backup.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Upload {
    pub(super) spec: UploadSpec,
    pub(super) status: MoveStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct UploadSpec {
    pub(super) csi_snapshot: CsiSnapshot,
    #[serde(rename = "sourcePVC")]
    pub(super) source_pvc: String,
    pub(super) source_namespace: String,
    pub(super) backup_storage_location: String,
    /// Only on Velero's main branch: `none` asks for a backup without a base.
    pub(super) parent_snapshot: String,
    pub(super) operation_timeout: String,
}

/// The snapshot that Velero took, and gives away.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CsiSnapshot {
    pub(super) volume_snapshot: String,
    pub(super) storage_class: String,
    pub(super) snapshot_class: String,
}

/// A DataDownload: one volume of a restore.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Download {
    pub(super) spec: DownloadSpec,
    pub(super) status: MoveStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct DownloadSpec {
    pub(super) target_volume: TargetVolume,
    pub(super) backup_storage_location: String,
    #[serde(rename = "snapshotID")]
    pub(super) snapshot_id: String,
    pub(super) operation_timeout: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct TargetVolume {
    pub(super) pvc: String,
    pub(super) namespace: String,
}

/// How far it is. Members that are not here are left as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MoveStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<Stands>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    /// Of a DataUpload: all that a restore has to know.
    #[serde(rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    pub(super) snapshot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) accepted_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<Moved>,
    /// Of a DataUpload: bytes that were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) incremental_bytes: Option<i64>,
    #[serde(rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    pub(super) node_os: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) data_mover_result: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Moved {
    pub(super) total_bytes: i64,
    pub(super) bytes_done: i64,
}

/// Velero's phases. `Canceling` and `Canceled` are written so there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stands {
    New,
    Accepted,
    Prepared,
    InProgress,
    Canceling,
    Canceled,
    Completed,
    Failed,
    /// One that was not known when this was written.
    #[serde(other)]
    Other,
}

impl Stands {
    /// Whether nothing follows: Velero has read it.
    pub(super) const fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::Completed | Self::Failed)
    }
}

/// A backup as a `snapshotID` names it: enough for a restore in another cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SnapshotId {
    /// The id of the backup.
    pub(super) backup: String,
    /// Its volume, `CLUSTER/NAMESPACE/CLAIM`.
    pub(super) volume: String,
}

impl SnapshotId {
    pub(super) fn text(&self) -> String {
        format!("{ID_BEGINS}{}:{}", self.backup, self.volume)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (backup, volume) = text.strip_prefix(ID_BEGINS)?.split_once(':')?;
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let parts: Vec<&str> = volume.split('/').collect();
        let is_whole = parts.len() == 3 && parts.iter().all(|part| !part.is_empty());
        (!backup.is_empty() && backup.chars().all(is_id) && is_whole && !volume.contains('@'))
            .then(|| Self { backup: backup.to_owned(), volume: volume.to_owned() })
    }
}

/// A time as Go writes it, such as `10m0s`; none where it says nothing, or no time.
pub(super) fn time(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_id_is_read_as_it_was_written() {
        let id = SnapshotId { backup: "3f-a".into(), volume: "c1/shop/db".into() };
        assert_eq!(id.text(), "mover1:3f-a:c1/shop/db");
        assert_eq!(SnapshotId::parse(&id.text()), Some(id));
        for wrong in [
            "",
            "k3f9a1",
            "mover1:",
            "mover1:3f",
            "mover2:3f:c1/shop/db",
            "mover1::c1/shop/db",
            "mover1:3f:shop/db",
            "mover1:3f:c1//db",
            "mover1:3f@x:c1/shop/db",
            "mover1:3f:c1/shop/db@latest",
        ] {
            assert_eq!(SnapshotId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_those_of_go() {
        assert_eq!(time("10m0s"), Some(Duration::from_secs(600)));
        assert_eq!(time("1h2m3.5s"), Some(Duration::from_millis(3_723_500)));
        assert_eq!(time("4h0m0s"), Some(Duration::from_secs(4 * 3600)));
        assert_eq!((time(""), time("0s"), time("soon")), (None, None, None));
    }

    #[test]
    fn a_phase_that_is_new_is_no_end() {
        let status: MoveStatus =
            serde_json::from_value(serde_json::json!({ "phase": "Pausing" })).expect("a status");
        assert_eq!(status.phase, Some(Stands::Other));
        assert!(!Stands::Other.is_final());
    }
}
