//! What several kinds share.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of all our kinds.
pub const VERSION: &str = "v1alpha1";
/// Five fields of cron, or one of its short forms; the program reads it in full.
pub const CRON_RULE: &str =
    r"self.matches('^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\\S+( \\S+){4})$')";

/// Names a Secret of the object's own namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Names a ConfigMap of the object's own namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Names an object of the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Names a Repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryRef {
    /// Name of the Repository.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Repository: the object's own without it, then `mover-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// Chooses objects by their labels: all of them have to be there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels with their values. Without any, all claims of the namespace are chosen.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 50))]
    pub match_labels: BTreeMap<String, String>,
}

/// A time that comes again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronTimes {
    /// Five fields of cron, or `@daily` and the like.
    #[x_kube(validation = Rule::new(CRON_RULE).message("write five fields of cron, such as `0 3 * * *`, or @daily"))]
    #[schemars(length(max = 100))]
    pub cron: String,
    /// Time zone by its name in the IANA database; UTC without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
}

/// Backups that stay, as `mover forget` has it. A backup stays if any rule keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.last) || has(self.hourly) || has(self.daily) || has(self.weekly) || has(self.monthly) || has(self.yearly) || has(self.within)").message("name at least one rule: without any, every backup would go"))]
pub struct Keep {
    /// The newest so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub last: Option<u32>,
    /// The last one of each of so many hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub hourly: Option<u32>,
    /// The last one of each of so many days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub daily: Option<u32>,
    /// The last one of each of so many weeks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub weekly: Option<u32>,
    /// The last one of each of so many months.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub monthly: Option<u32>,
    /// The last one of each of so many years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub yearly: Option<u32>,
    /// All of this time before the newest one, such as `30d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,4}[hdwmy]$')").message("write a number and one of h, d, w, m, y, such as 30d"))]
    #[schemars(length(max = 20))]
    pub within: Option<String>,
}

/// Seconds that the steps of an operation may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Until a snapshot is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub snapshot_seconds: Option<u32>,
    /// Until a volume is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub volume_seconds: Option<u32>,
    /// Until a pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub start_seconds: Option<u32>,
    /// For all attempts together, from when a controller takes it up; after a restart, from the begin
    /// of the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 2_592_000))]
    pub total_seconds: Option<u32>,
}

/// How far an operation is, derived from its conditions.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// It waits for its turn, or for an object that is not there yet.
    #[default]
    Pending,
    /// It is under way.
    Running,
    /// It ended well.
    Completed,
    /// It ended, and not well.
    Failed,
}

/// A condition, as Kubernetes has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which one, in CamelCase.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one word in CamelCase.
    #[serde(default)]
    pub reason: String,
    /// For people: names the object and the next step.
    #[serde(default)]
    pub message: String,
    /// The generation of the spec that it is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When `status` changed last (RFC 3339).
    #[serde(default)]
    pub last_transition_time: String,
}
