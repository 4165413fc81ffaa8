//! For the controller's own account, where it moves data for Velero: what it may do with others'
//! objects there.
//!
//! Of a DataUpload or a DataDownload it says how far it is, and holds it by a finalizer. A
//! VolumeSnapshot that Velero made for an upload is the mover's from then on: the controller takes
//! it over, with its uid in an annotation, and removes it in the end. Which content belongs to a
//! snapshot that was taken cannot be asked in an expression. So the name that Velero gives to its
//! snapshots stands for it, and of such contents nothing but the deletion policy may change.

use super::super::Settings;
use super::{Policy, bound, has, lines, validation};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
/// On the snapshots of a backup.
const BACKUP: &str = "'velero.io/backup-name'";
/// The uid of a snapshot that was taken over.
const GIVEN: &str = "'mover.dev/given'";
const FINALIZER: &str = "'mover.dev/operation'";
/// Begins the names of Velero's snapshots.
const NAMED: &str = "startsWith('velero-')";

pub(super) fn policies() -> Vec<Policy> {
    vec![movements(), marks()]
}

/// These lines, and one more where data is moved for Velero.
pub(super) fn with(settings: &Settings, one: fn() -> String, all: &[&str]) -> String {
    let Settings { velero, velero_mark, .. } = settings;
    let more = velero.is_some().then(|| format!("{velero_mark}|| {}", one()));
    lines(&all.iter().copied().chain(more.as_deref()).collect::<Vec<_>>())
}

/// Where the policy of snapshots lets one become ours.
pub(super) fn snapshot() -> String {
    format!(
        "(request.kind.kind == 'VolumeSnapshot' && oldObject.metadata.name.{NAMED} && {} && {} && \
         object.metadata.annotations[{GIVEN}] == oldObject.metadata.uid)",
        has("oldObject", "labels", BACKUP),
        has("object", "annotations", GIVEN),
    )
}

/// Where the policy of contents lets one change.
pub(super) fn content() -> String {
    format!("oldObject.spec.volumeSnapshotRef.name.{NAMED}")
}

/// A member is what it was, also where it is not there.
fn same(member: &str, empty: &str) -> String {
    let of = |object: &str| format!("(has({object}.{member}) ? {object}.{member} : {empty})");
    format!("{} == {}", of("object"), of("oldObject"))
}

fn movements() -> Policy {
    let others = |object: &str| {
        format!(
            "(has({object}.metadata.finalizers) ? {object}.metadata.finalizers : [])\
             .filter(f, f != {FINALIZER})"
        )
    };
    let all = vec!["CREATE", "UPDATE", "DELETE"];
    bound(
        "mover-controller-velero",
        vec![("velero.io", vec!["datauploads", "datadownloads"], all)],
        Vec::new(),
        vec![
            validation(
                "request.operation == 'UPDATE'",
                "the controller makes and deletes no DataUpload and no DataDownload",
            ),
            validation(
                lines(&[
                    "request.operation != 'UPDATE'",
                    "|| (has(oldObject.spec.datamover) && oldObject.spec.datamover == 'mover')",
                ]),
                "the controller leaves data of other movers to them",
            ),
            validation(
                lines(&[
                    "request.operation != 'UPDATE'",
                    &format!("|| ({}", same("spec", "{}")),
                    &format!("  && {}", same("metadata.labels", "{}")),
                    &format!("  && {}", same("metadata.annotations", "{}")),
                    &format!("  && {})", same("metadata.ownerReferences", "[]")),
                ]),
                "the controller changes the status of Velero's objects, and nothing that others say",
            ),
            validation(
                lines(&[
                    "request.operation != 'UPDATE'",
                    &format!("|| {} == {}", others("object"), others("oldObject")),
                ]),
                "the controller puts on and takes off no finalizer but mover.dev/operation",
            ),
        ],
    )
}

fn marks() -> Policy {
    bound(
        "mover-controller-taken",
        vec![(SNAPSHOTS, vec!["volumesnapshots", "volumesnapshotcontents"], vec!["UPDATE"])],
        Vec::new(),
        vec![
            validation(
                lines(&[
                    &format!(
                        "request.kind.kind != 'VolumeSnapshot' || {}",
                        has("oldObject", "labels", BACKUP)
                    ),
                    &format!("|| !{}", has("object", "labels", BACKUP)),
                ]),
                "the controller says of no snapshot that it is of a backup of Velero",
            ),
            validation(
                lines(&[
                    "request.kind.kind != 'VolumeSnapshotContent'",
                    &format!("|| !({})", content()),
                    &format!("|| ({}", same("spec.volumeSnapshotRef", "{}")),
                    &format!("  && {}", same("spec.source", "{}")),
                    &format!("  && {}", same("spec.driver", "''")),
                    &format!("  && {}", same("spec.sourceVolumeMode", "''")),
                    &format!("  && {}", same("spec.volumeSnapshotClassName", "''")),
                    &format!("  && {})", same("metadata.labels", "{}")),
                ]),
                "the controller changes nothing of a content of Velero but its deletion policy",
            ),
        ],
    )
}
