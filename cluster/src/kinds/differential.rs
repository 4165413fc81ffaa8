//! What changed between two snapshots, as the differential-snapshot proposal asks for it.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Blocks that differ between two snapshots of one volume, or that one snapshot has in use.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "mover.dev",
    version = "v1alpha1",
    kind = "DifferentialSnapshot",
    namespaced,
    category = "mover",
    shortname = "dsnap",
    status = "DifferentialSnapshotStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Blocks that differ between two snapshots of one volume, or that one snapshot has in use.",
    printcolumn(name = "Base", type_ = "string", json_path = ".spec.baseVolumeSnapshotName"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetVolumeSnapshotName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("the spec stays as it is: make another DifferentialSnapshot"),
    validation = Rule::new("!has(self.baseVolumeSnapshotName) || self.baseVolumeSnapshotName != self.targetVolumeSnapshotName").message("base and target are two snapshots")
)]
pub struct DifferentialSnapshotSpec {
    /// VolumeSnapshot of this namespace that the changes begin at; without it, all blocks that the
    /// target has in use are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub base_volume_snapshot_name: Option<String>,
    /// VolumeSnapshot of this namespace whose blocks are listed.
    #[schemars(length(min = 1, max = 253))]
    pub target_volume_snapshot_name: String,
    /// The driver's handle of the volume; if it is given, both snapshots must be of that volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1_024))]
    pub volume_id: Option<String>,
    /// What is listed.
    #[serde(default)]
    pub mode: DifferentialMode,
    /// Where the list begins: a number of bytes, or a `nextOffset` of an earlier list of the same
    /// snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub start_offset: Option<String>,
    /// `deletedBase`: what a base that is gone comes to, `error` (without it) or `all-changed`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = Rule::new("self.all(name, name == 'deletedBase' && self[name] in ['error', 'all-changed'])").message("the one parameter is deletedBase: error or all-changed"))]
    #[schemars(extend("maxProperties" = 8))]
    pub parameters: BTreeMap<String, String>,
}

impl DifferentialSnapshotSpec {
    /// Whether all blocks count as changed where the base is gone.
    #[must_use]
    pub fn all_changed_without_base(&self) -> bool {
        self.parameters.get("deletedBase").is_some_and(|value| value == "all-changed")
    }
}

/// What is listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DifferentialMode {
    /// Blocks of the volume.
    #[default]
    Block,
}

/// Whether the list can be had, and where. The server looks anew at each request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DifferentialSnapshotStatus {
    /// `Success` or `Failure`; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Why there is no list, or none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where the first page of the list is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}
