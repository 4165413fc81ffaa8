//! The kinds of our own: Repository, VolumeBackup, VolumeRestore, BackupSchedule and
//! DifferentialSnapshot.
//!
//! A spec says all that decides, and its rules are part of its definition: the API server refuses
//! an object that breaks one. Status is output: nothing of ours reads a decision from it.

#![allow(
    clippy::duplicated_attributes,
    unreachable_pub,
    reason = "the derived schemas repeat columns, and are public beside private modules"
)]

mod backup;
mod common;
mod differential;
mod repository;
mod restore;
mod schedule;

pub use backup::{
    AfterTimeout, BackupSource, Base, DeletionPolicy, Figures, HookPair, Hooks, RecordedBackup,
    RetainSnapshot, SnapshotPolicy, SnapshotStatus, VolumeBackup, VolumeBackupSpec,
    VolumeBackupStatus, VolumeTemplate,
};
pub use common::{
    CRON_RULE, Condition, ConfigMapRef, CronTimes, Deadlines, Keep, LabelSelector, ObjectRef,
    Phase, RepositoryRef, SecretRef, VERSION,
};
pub use differential::{
    DifferentialMode, DifferentialSnapshot, DifferentialSnapshotSpec, DifferentialSnapshotStatus,
};
pub use repository::{
    Concurrency, Credentials, Grant, ImagePullPolicy, JobTemplate, Repository, RepositorySpec,
    RepositoryStatus, Toleration,
};
pub use restore::{
    ConsumerStatus, Proof, RestoreSource, RestoreTarget, VolumeMode, VolumeRestore,
    VolumeRestoreSpec, VolumeRestoreStatus,
};
pub use schedule::{
    BackupSchedule, BackupScheduleSpec, BackupScheduleStatus, BackupTemplate, Drill, DrillStatus,
};

use kube::CustomResourceExt as _;
use kube::core::crd::merge_crds;

/// The definitions of all our kinds, as they are applied to a cluster.
#[must_use]
pub fn definitions() -> Vec<serde_json::Value> {
    let all = [
        Repository::crd(),
        VolumeBackup::crd(),
        VolumeRestore::crd(),
        BackupSchedule::crd(),
        DifferentialSnapshot::crd(),
    ];
    all.into_iter()
        .map(|definition| {
            let one = merge_crds(vec![definition], VERSION).expect("there is one version");
            let mut value = serde_json::to_value(one).expect("its maps have texts as keys");
            without_formats(&mut value);
            value
        })
        .collect()
}

/// Takes formats away that the API server does not know, and warns of: bounds say it already.
fn without_formats(value: &mut serde_json::Value) {
    if value["format"].as_str().is_some_and(|format| format.starts_with("uint")) {
        value.as_object_mut().map(|members| members.remove("format"));
    }
    match value {
        serde_json::Value::Object(members) => members.values_mut().for_each(without_formats),
        serde_json::Value::Array(items) => items.iter_mut().for_each(without_formats),
        _ => {}
    }
}
