//! Velero's data movement as a front end of the engine: `velero backup create --snapshot-move-data
//! --data-mover mover`.
//!
//! ```text
//! Velero ──▶ VolumeSnapshot, DataUpload ──▶ record ──▶ engine: the snapshot is ours, Job, base kept
//!        ◀── phase, progress, snapshotID ◀──┘
//! Velero ──▶ claim that waits, DataDownload ──▶ record ──▶ engine: volume, proof, reserved for it
//! ```
//!
//! Only objects of Velero's namespace count, and of them those whose `datamover` is ours. Whoever may
//! write there is Velero to us: it says which claims of which namespaces are read and made. Records
//! and Jobs are in that namespace too, where the Repository of the backup storage location is.
//!
//! Velero reads `status`, and asks for an end by `spec.cancel`. An end that it has read stays: nothing
//! is begun for an object that has one, also where its records are gone.

mod download;
mod forget;
mod model;
#[cfg(test)]
mod tests;
mod upload;

use super::Context;
use super::attempts::{Attempted, News};
use super::places::place;
use super::restores::message;
use super::status;
use super::task::{Task, Why};
use crate::engine::{self, Failure, Progress, Stage, exit};
use crate::kinds::{Repository, RepositoryRef};
use crate::ops::repository::velero as locations;
pub(super) use download::work as download;
pub(crate) use model::DATA_MOVER;
use model::{MoveStatus, Moved, Stands};
use serde_json::Value;
pub(super) use upload::work as upload;

/// Whether Velero has read an end of it.
pub(super) fn has_ended(task: &Task) -> bool {
    task.object().is_some_and(|object| is_over(&object))
}

/// The same of an object.
pub(super) fn is_over(object: &Value) -> bool {
    serde_json::from_value(object["status"]["phase"].clone()).is_ok_and(Stands::is_final)
}

/// The Repository of a backup storage location.
async fn repository(
    context: &Context,
    task: &Task,
    location: &str,
) -> Result<(engine::Repository, Repository), Failure> {
    let namespace = task.key.namespace.as_deref().unwrap_or_default();
    let name = locations::repository_of(&context.api, namespace, location).await?;
    let reference = RepositoryRef { name, namespace: Some(namespace.to_owned()) };
    place(context, &reference, namespace).map_err(|why| {
        let hint = format!("kubectl mover repository add --velero-location {location} makes one");
        Failure::new(why.exit_code, format!("location {location}: {}", why.message)).hint(hint)
    })
}

/// The namespace of a claim, which this controller has to work in.
fn worked_in(context: &Context, namespace: &str) -> Result<(), Failure> {
    match super::worked_in(&context.settings) {
        Some(all) if !all.contains(namespace) => {
            let what = format!("this controller does not work in namespace {namespace}");
            Err(Failure::new(exit::INTEGRITY, what)
                .hint("install it for that one too (--watch-namespace), or for all"))
        }
        _ => Ok(()),
    }
}

/// What a report says, in the status. Phases go one way, whatever is told in which order.
fn told(context: &Context, task: &Task, status: &mut MoveStatus, report: &News<'_>) {
    let now = status::now(context);
    match report {
        News::Waits(why) => status.message = Some((*why).to_owned()),
        News::Runs { progress, .. } => progressed(status, progress, &now),
    }
    if task.is_cancelled() || task.is_going() {
        status.phase = Some(Stands::Canceling);
    } else if matches!(status.phase, None | Some(Stands::New)) {
        status.phase = Some(Stands::Accepted);
        status.accepted_timestamp.get_or_insert(now);
    }
}

fn progressed(status: &mut MoveStatus, progress: &Progress, now: &str) {
    let has_begun = matches!(status.phase, Some(Stands::InProgress));
    status.accepted_timestamp.get_or_insert_with(|| now.to_owned());
    status.phase = Some(match (&progress.job, &progress.volume) {
        _ if has_begun => Stands::InProgress,
        (Some(_), Stage::Done) => Stands::InProgress,
        (_, Stage::Done | Stage::Open) => Stands::Prepared,
        _ => Stands::Accepted,
    });
    if status.phase == Some(Stands::InProgress) {
        status.start_timestamp.get_or_insert_with(|| now.to_owned());
    }
    if let Some((done, total)) = progress.bytes {
        status.progress = Some(Moved { total_bytes: signed(total), bytes_done: signed(done) });
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The status of an operation that has ended.
fn ended(context: &Context, status: &mut MoveStatus, ended: &Attempted) {
    let is_good = ended.outcome.exit_code == 0;
    let asked = matches!(ended.why, Some(Why::Cancelled | Why::Deleted));
    status.phase = Some(match (is_good, asked) {
        (true, _) => Stands::Completed,
        (false, true) => Stands::Canceled,
        (false, false) => Stands::Failed,
    });
    let left = match ended.outcome.left.as_slice() {
        [] => String::new(),
        left => format!("; left behind: {} (kubectl mover sweep removes it)", left.join("; ")),
    };
    status.message = Some(format!("{}{left}", message(ended)));
    let now = status::now(context);
    status.completion_timestamp.get_or_insert(now);
}
