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
/// What is tried, once: the snapshot of an upload goes with a failure, and Velero makes the claim of a
/// download after the object, and its first consumer after that.
fn subject<'a>(task: &'a Task, word: &'static str, timeout: &str) -> Subject<'a> {
    let patience = time(timeout).unwrap_or(PREFLIGHT);
    Subject { task, word, retries: 0, total: None, patience, patience_retryable: PATIENCE }
}

#[cfg(test)]
mod tests;
mod upload;

use super::Context;
use super::attempts::{Attempted, News, PREFLIGHT, Subject};
use super::places::place;
use super::restores::message;
use super::status;
use super::task::{Task, Why};
use crate::engine::{self, Failure, Meta, Progress, Stage, exit};
use crate::kinds::{Repository, RepositoryRef};
use crate::ops::repository::velero as locations;
pub(super) use download::work as download;
pub(crate) use model::DATA_MOVER;
use model::{MoveStatus, Moved, Stands, time};
use serde_json::Value;
use std::time::Duration;
pub(super) use upload::work as upload;

/// Whether Velero has read an end of it.
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

/// Velero's name of the backup that an object belongs to.
const BACKUP_NAME: &str = "velero.io/backup-name";
/// A label of Kubernetes has no more characters; Velero shortens what is longer.
const LABEL_CHARS: usize = 63;
/// What may pass is waited for so long. Velero cancels after four hours, unless it is told otherwise.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The name of the backup that an object belongs to: its owner has it in full, a label only where it
/// is short.
fn backup_of(task: &Task, meta: &Meta) -> Option<String> {
    let object = task.object()?;
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut owners = owners.filter(|owner| owner["kind"] == "Backup");
    let owner = owners.find_map(|owner| owner["name"].as_str()).map(str::to_owned);
    let label = meta.labels.get(BACKUP_NAME);
    let label = label.filter(|name| !name.is_empty() && name.chars().count() < LABEL_CHARS);
    owner.or_else(|| label.cloned())
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
    if status.phase.is_some_and(Stands::is_final) {
        return;
    }
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
