//! Objects of the API, as far as a plan reads them. Nothing here is ever written back.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

macro_rules! views {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),* }
    )*};
}

views! {
    /// ConfigMap.
    ConfigMap { data: BTreeMap<String, String>, immutable: bool }

    /// Lease: its annotations name the anchor.
    Lease { spec: LeaseSpec }
    /// What a Lease says.
    LeaseSpec { holder_identity: Option<String> }

    /// PersistentVolumeClaim.
    Claim { spec: ClaimSpec, status: ClaimStatus }
    /// What a claim asks for.
    ClaimSpec {
        volume_name: Option<String>,
        volume_mode: Option<String>,
        storage_class_name: Option<String>,
        access_modes: Vec<String>,
        data_source: Option<Reference>,
        resources: Resources,
    }
    /// Requests for resources.
    Resources { requests: BTreeMap<String, String> }
    /// What a claim has.
    ClaimStatus { phase: Option<String>, capacity: BTreeMap<String, String> }

    /// PersistentVolume.
    Volume { spec: VolumeSpec, status: Phase }
    /// What a volume is.
    VolumeSpec {
        csi: Option<CsiSource>,
        claim_ref: Option<Reference>,
        volume_mode: Option<String>,
        storage_class_name: Option<String>,
        persistent_volume_reclaim_policy: Option<String>,
        access_modes: Vec<String>,
        capacity: BTreeMap<String, String>,
    }
    /// A volume of a CSI driver.
    CsiSource { driver: String, volume_handle: String, fs_type: Option<String> }
    /// Names another object.
    Reference { namespace: Option<String>, name: Option<String>, uid: Option<String> }
    /// A status that is a phase.
    Phase { phase: Option<String> }

    /// StorageClass.
    StorageClass { provisioner: String, volume_binding_mode: Option<String> }

    /// VolumeSnapshotClass, and VolumeGroupSnapshotClass.
    SnapshotClass { driver: String, deletion_policy: String }

    /// VolumeSnapshot, and VolumeGroupSnapshot.
    Snapshot { spec: SnapshotSpec, status: SnapshotStatus }
    /// What it is of.
    SnapshotSpec { source: SnapshotSource }
    /// A claim by its name, where it is of one.
    SnapshotSource {
        persistent_volume_claim_name: Option<String>,
        volume_snapshot_content_name: Option<String>,
    }
    /// How far a snapshot is.
    SnapshotStatus {
        bound_volume_snapshot_content_name: Option<String>,
        bound_volume_group_snapshot_content_name: Option<String>,
        volume_group_snapshot_name: Option<String>,
        creation_time: Option<String>,
        ready_to_use: Option<bool>,
        restore_size: Option<String>,
        error: Option<SnapshotError>,
    }
    /// What the driver said last.
    SnapshotError { message: Option<String>, time: Option<String> }

    /// VolumeSnapshotContent.
    Content { spec: ContentSpec, status: ContentStatus }
    /// Which snapshot it is the content of.
    ContentSpec {
        source: ContentSource,
        driver: String,
        deletion_policy: Option<String>,
        source_volume_mode: Option<String>,
        volume_snapshot_ref: Reference,
    }
    /// Of which volume, or of which snapshot, in the storage's names.
    ContentSource { volume_handle: Option<String>, snapshot_handle: Option<String> }
    /// What the storage calls it, and says of it.
    ContentStatus {
        snapshot_handle: Option<String>,
        volume_group_snapshot_handle: Option<String>,
        ready_to_use: Option<bool>,
        restore_size: Option<i64>,
        error: Option<SnapshotError>,
    }

    /// VolumeGroupSnapshotContent.
    GroupContent { spec: GroupContentSpec, status: GroupContentStatus }
    /// Which group it is the content of.
    GroupContentSpec {
        source: GroupContentSource,
        driver: String,
        deletion_policy: Option<String>,
        volume_group_snapshot_ref: Reference,
    }
    /// Of which volumes, in the storage's names.
    GroupContentSource { volume_handles: Vec<String> }
    /// What the storage calls their snapshots.
    GroupContentStatus { volume_snapshot_info_list: Vec<MemberInfo> }
    /// A volume, and its snapshot in the group.
    MemberInfo { volume_handle: String, snapshot_handle: String }

    /// SnapshotMetadataService.
    MetadataService { spec: MetadataServiceSpec }
    /// Where it is.
    MetadataServiceSpec { address: String, audience: String, ca_cert: String }

    /// CSIDriver.
    CsiDriver { spec: CsiDriverSpec }
    /// Whether volumes are attached to nodes by VolumeAttachments; it is so where nothing is said.
    CsiDriverSpec { attach_required: Option<bool> }

    /// VolumeAttachment.
    Attachment { spec: AttachmentSpec }
    /// Which volume is attached.
    AttachmentSpec { attacher: String, node_name: String, source: AttachmentSource }
    /// It, by name.
    AttachmentSource { persistent_volume_name: Option<String> }

    /// Job.
    Job { spec: JobSettings, status: JobStatus }
    /// Whether it may have pods.
    JobSettings { suspend: Option<bool> }
    /// How far a Job is.
    JobStatus { conditions: Vec<Condition> }
    /// A condition of any object.
    Condition {
        r#type: String,
        status: String,
        reason: Option<String>,
        message: Option<String>,
    }

    /// Pod.
    Pod { metadata: PodMeta, spec: PodSpec, status: PodStatus }
    /// Who made a pod.
    PodMeta { owner_references: Vec<PodOwner> }
    /// Such as a StatefulSet.
    PodOwner { kind: String, name: String }
    /// What a pod is.
    PodSpec { node_name: Option<String>, volumes: Vec<PodVolume> }
    /// A volume of a pod.
    PodVolume {
        name: String,
        persistent_volume_claim: Option<PodClaim>,
        ephemeral: Option<Value>,
    }
    /// It, by its claim.
    PodClaim { claim_name: String }
    /// How far a pod is.
    PodStatus {
        phase: Option<String>,
        reason: Option<String>,
        message: Option<String>,
        conditions: Vec<Condition>,
        container_statuses: Vec<ContainerStatus>,
    }
    /// How far a container is.
    ContainerStatus { state: ContainerState }
    /// One of the three.
    ContainerState {
        waiting: Option<Waiting>,
        running: Option<Value>,
        terminated: Option<Terminated>,
    }
    /// It has not begun.
    Waiting { reason: Option<String>, message: Option<String> }
    /// It has ended.
    Terminated {
        exit_code: i64,
        reason: Option<String>,
        message: Option<String>,
        finished_at: Option<String>,
    }

    /// Event.
    Event { reason: Option<String>, message: Option<String>, r#type: Option<String>, last_timestamp: Option<String> }
}

impl Job {
    /// Whether a condition of this name is true, and what it says.
    pub fn condition(&self, name: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|at| at.r#type == name && at.status == "True")
    }
}

impl Terminated {
    /// Whether the kernel has killed it for its memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.reason.as_deref() == Some("OOMKilled")
    }
}

impl Pod {
    /// The container's end, if it has ended.
    pub fn terminated(&self) -> Option<&Terminated> {
        self.status.container_statuses.iter().find_map(|at| at.state.terminated.as_ref())
    }

    /// Whether the container runs.
    pub fn is_running(&self) -> bool {
        self.status.container_statuses.iter().any(|at| at.state.running.is_some())
    }

    /// How it ended, where that is more than an exit code: killed for its memory, evicted.
    pub fn how_ended(&self) -> Option<String> {
        let PodStatus { reason, message, .. } = &self.status;
        let of_pod: Vec<&str> =
            [reason, message].into_iter().flatten().map(|t| t.as_str()).collect();
        if !of_pod.is_empty() {
            return Some(of_pod.join(": "));
        }
        self.terminated().filter(|end| end.is_out_of_memory()).and_then(|end| end.reason.clone())
    }

    /// Why the container has not begun, as far as the pod says.
    pub fn why_not_begun(&self) -> Option<String> {
        let waiting =
            self.status.container_statuses.iter().find_map(|at| at.state.waiting.as_ref());
        let said = |reason: &Option<String>, message: &Option<String>| {
            let parts: Vec<&str> =
                [reason, message].into_iter().flatten().map(|t| t.as_str()).collect();
            (!parts.is_empty()).then(|| parts.join(": "))
        };
        let of_container = waiting
            .filter(|at| at.reason.as_deref() != Some("ContainerCreating"))
            .and_then(|at| said(&at.reason, &at.message));
        of_container.or_else(|| {
            let not = |at: &&Condition| at.r#type == "PodScheduled" && at.status == "False";
            let at = self.status.conditions.iter().find(not)?;
            said(&at.reason, &at.message)
        })
    }
}
