//! Backups that come again and again, and the drills that prove them.

use super::backup::VolumeBackupSpec;
use super::common::{CRON_RULE, Condition, CronTimes, Keep, RepositoryRef};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Backups by a clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "mover.dev",
    version = "v1alpha1",
    kind = "BackupSchedule",
    namespaced,
    category = "mover",
    shortname = "bs",
    status = "BackupScheduleStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Backups by a clock, the ones that stay, and the drills that prove that they restore.",
    printcolumn(name = "Cron", type_ = "string", json_path = ".spec.cron"),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Newest-Good", type_ = "date", json_path = ".status.newestGoodTime"),
    printcolumn(name = "Last", type_ = "date", json_path = ".status.lastTime"),
    printcolumn(name = "Next", type_ = "string", json_path = ".status.nextTime"),
    printcolumn(name = "Drill", type_ = "string", json_path = ".status.drill.result"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(self.template.spec.source.recorded)").message("a schedule makes backups: name pvc or selector"))]
pub struct BackupScheduleSpec {
    /// Five fields of cron, or `@daily` and the like.
    #[x_kube(validation = Rule::new(CRON_RULE).message("write five fields of cron, such as `0 * * * *`, or @hourly"))]
    #[schemars(length(max = 100))]
    pub cron: String,
    /// Time zone by its name in the IANA database; UTC without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// Each backup begins so much later at most, always the same for one claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub jitter_seconds: Option<u32>,
    /// Whether it rests. What it misses meanwhile is not caught up on.
    #[serde(default)]
    pub suspend: bool,
    /// A run that could not begin within so much time is left to the next one; an hour without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 2_592_000))]
    pub starting_deadline_seconds: Option<u32>,
    /// The backups that it makes.
    pub template: BackupTemplate,
    /// Backups of its claims that stay in the repository; the Repository's own rule without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// Ended VolumeBackups that stay in the cluster for each claim; 3 without it. The backups
    /// themselves stay in the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub history: Option<u32>,
    /// A second Repository that each good backup is copied to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_to: Option<RepositoryRef>,
    /// Restores that prove a backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<Drill>,
}

/// What a schedule makes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupTemplate {
    /// Labels of each VolumeBackup.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub labels: BTreeMap<String, String>,
    /// Its spec.
    pub spec: VolumeBackupSpec,
}

/// A restore into a volume for a while, and a command that looks at it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.image) == has(self.command)").message("name both image and command, or neither"))]
pub struct Drill {
    /// When.
    #[serde(flatten)]
    pub at: CronTimes,
    /// Image that looks at the restored volume; without it, the proof of the restore is the drill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1_024))]
    pub image: Option<String>,
    /// Command in it: the drill is good if it ends with 0. The volume is at `/restored`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub command: Option<Vec<String>>,
    /// Seconds that the command may take; an hour without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: Option<u32>,
    /// Class of the volume: the source's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

/// How a schedule is. Nothing is decided by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupScheduleStatus {
    /// `Ready`, `UpToDate`, `Drilled`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// When the last run was due (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_time: Option<String>,
    /// When the next one is (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_time: Option<String>,
    /// The moment that the oldest of its claims' newest good backups holds (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_good_time: Option<String>,
    /// Claims that it backs up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<i64>,
    /// Runs that were missed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<i64>,
    /// The last drill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<DrillStatus>,
}

/// How the last drill was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrillStatus {
    /// `Passed`, `Failed`, `Running` or `Never`.
    #[serde(default)]
    pub result: String,
    /// When it ended (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// When the next one is due (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_time: Option<String>,
    /// Volume and backup that were restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// For people: what the restore and the command said.
    #[serde(default)]
    pub message: String,
}
