//! Where backups are, how a pod gets at them, and how they are looked after.

use super::common::{Condition, ConfigMapRef, CronTimes, Keep, SecretRef};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A place for backups. Keys and credentials lie in its namespace, and its Jobs run there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "mover.dev",
    version = "v1alpha1",
    kind = "Repository",
    namespaced,
    category = "mover",
    status = "RepositoryStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A place for backups. Keys and credentials lie in its namespace, and its Jobs run there.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url"),
    printcolumn(name = "Backups", type_ = "integer", json_path = ".status.backups"),
    printcolumn(name = "Stored", type_ = "string", json_path = ".status.stored"),
    printcolumn(name = "Last-Check", type_ = "date", json_path = ".status.lastCheck"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(oldSelf.clusterName) || (has(self.clusterName) && self.clusterName == oldSelf.clusterName)").message("volumes are recorded under clusterName: make another Repository"))]
pub struct RepositorySpec {
    /// Such as `s3://BUCKET/PREFIX`.
    #[x_kube(
        validation = Rule::new("self.matches('^[a-z0-9+]+://.+')").message("write a URL such as s3://BUCKET/PREFIX"),
        validation = Rule::new("self == oldSelf").message("backups lie there: make another Repository"),
    )]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Secret whose files are the repository's keys.
    pub key_secret_ref: SecretRef,
    /// How the Jobs get at the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// The same for gc alone: with it, no other Job needs the right to delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_credentials: Option<Credentials>,
    /// ConfigMap with an authority of your own in `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_config_map_ref: Option<ConfigMapRef>,
    /// Environment variables of the Jobs, such as `AWS_ENDPOINT_URL`. Secrets do not belong here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub env: BTreeMap<String, String>,
    /// The beginning of this cluster's volumes in it; without it, part of the uid of `kube-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')").message("letters, digits, dots, hyphens and underscores"))]
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: Option<String>,
    /// Namespaces whose claims may use it besides its own; `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 500))]
    pub allowed_namespaces: Vec<String>,
    /// Volumes that other namespaces may restore besides their own ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 500))]
    pub grants: Vec<Grant>,
    /// Whether a restored block volume may become a filesystem volume. Whoever holds bucket and key
    /// can forge a filesystem that the kernel will parse.
    #[serde(default)]
    pub allow_mode_change: bool,
    /// Backups that stay, for each volume; all of them without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// How long each new backup cannot be deleted, such as `30d`: object lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+[hdw]$')").message("write a number and one of h, d, w"))]
    #[schemars(length(max = 20))]
    pub immutable_for: Option<String>,
    /// Most operations at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// When unreferenced data is collected, and backups are forgotten by `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc: Option<CronTimes>,
    /// When every reference is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CronTimes>,
    /// When backups that others made become objects, besides once at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<CronTimes>,
    /// How the Jobs run.
    pub job_template: JobTemplate,
}

/// How Jobs get at a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.secretRef) || has(self.serviceAccountName)").message("name a Secret or a service account"))]
pub struct Credentials {
    /// Secret whose members become environment variables, such as `AWS_ACCESS_KEY_ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// Service account of the Jobs, to which a cloud gives its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
}

/// Volumes that a namespace may restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// The namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Volumes as `CLUSTER/NAMESPACE/PVC`; a part `*` means any.
    #[schemars(length(min = 1, max = 500))]
    pub volumes: Vec<String>,
}

/// Most operations at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Concurrency {
    /// Of the repository; 10 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub repository: Option<u32>,
    /// Of each storage class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub storage_class: Option<u32>,
    /// Pods on each node: later ones wait for another node, or for their turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub node: Option<u32>,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum ImagePullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
}

impl ImagePullPolicy {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn word(self) -> String {
        format!("{self:?}")
    }
}

/// How Jobs run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobTemplate {
    /// Image of `mover`; the controller's own setting without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// When the image is pulled.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,
    /// Secrets with which it is pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub image_pull_secrets: Vec<SecretRef>,
    /// Memory of a Job, such as `320Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub memory: Option<String>,
    /// Processor of a Job, such as `1` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub cpu: Option<String>,
    /// Labels of the nodes that may run it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that it bears.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub tolerations: Vec<Toleration>,
    /// Its priority among pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
}

/// A taint that a pod bears, as in its spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint; all without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `Exists` or `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; all without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// How long a pod stays on a node that gets the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// What is known of a Repository.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryStatus {
    /// `Ready`, `Checked`, `Collected`, `Synced`, `Copied`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Id of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository_id: Option<String>,
    /// The beginning of this cluster's volumes in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// When unreferenced data was last collected (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_gc: Option<String>,
    /// When it was last checked (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_check: Option<String>,
    /// When its backups were last listed (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// Number of backups at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<i64>,
    /// Bytes of its packs at the last check or collection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<i64>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
}
