//! A DataDownload: a restore for a claim that Velero makes, and that waits for its volume.

use super::model::{Download, Moved, SnapshotId, Stands};
use super::{ended, repository, subject, told, worked_in};
use crate::controller::attempts::{self, Attempted, News, Subject};
use crate::controller::backups::limits_of;
use crate::controller::status::{self, Live};
use crate::controller::task::{Pause, Task};
use crate::controller::{Context, marks};
use crate::drive::show_bytes;
use crate::engine::{self, Failure, Key, Kind, Meta, OPERATION, Request, exit};
use crate::ops::populate::{self as ops, Waiting};
use crate::ops::restore::RestoreOptions;
use serde_json::Value;
use std::cell::RefCell;

/// By this label of volumes Velero keeps a claim waiting: no provisioner makes a volume for a claim
/// that selects one.
const WAITS_BY: &str = "velero.io/dynamic-pv-restore";

/// The next thing that a DataDownload asks for.
pub(crate) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let Some((meta, download)) = task.read::<Box<Download>>()? else { return Ok(Pause::Changed) };
    let subject = subject(task, "restore", &download.spec.operation_timeout);
    let is_going = meta.deletion_timestamp.is_some();
    if is_going && !attempts::is_running(context, &subject) {
        marks::take_off(context, task, OPERATION).await?;
        return Ok(Pause::Changed);
    }
    if let Some(of) = attempts::ended(context, &subject) {
        return Box::pin(close(context, task, &of)).await;
    }
    let has_record = attempts::has_record(context, &subject);
    if !has_record && download.status.phase.is_some_and(Stands::is_final) {
        return Ok(Pause::Changed);
    }
    if !is_going {
        marks::put(context, task, OPERATION).await?;
    }
    let of = Box::pin(operate(context, &subject, &download)).await?;
    if !is_going {
        return Box::pin(close(context, task, &of)).await;
    }
    marks::take_off(context, task, OPERATION).await?;
    Ok(Pause::Changed)
}

async fn operate(
    context: &Context,
    subject: &Subject<'_>,
    download: &Download,
) -> Result<Attempted, Failure> {
    let (task, spec) = (subject.task, &download.spec);
    let concurrency = RefCell::new(None);
    let make = async || {
        let id = SnapshotId::parse(&spec.snapshot_id).ok_or_else(|| {
            let what = format!("snapshotID {:?} is none of mover's", spec.snapshot_id);
            Failure::new(exit::INTEGRITY, what)
                .hint("the backup was made by another data mover, which has to restore it")
        })?;
        let (namespace, name) = (&spec.target_volume.namespace, &spec.target_volume.pvc);
        worked_in(context, namespace)?;
        let (place, found) = repository(context, task, &spec.backup_storage_location).await?;
        let object = claim(context, namespace, name).await?;
        let uid = Meta::of(&object).uid;
        let claim = Waiting {
            namespace,
            name,
            uid: &uid,
            object: &object,
            for_consumer: true,
            may_be_larger: true,
        };
        let backup = engine::stored_name(&id.volume, &id.backup);
        let options = RestoreOptions::default();
        let request = ops::request(&context.api, &backup, &place, &claim, &options).await?;
        *concurrency.borrow_mut() = found.spec.concurrency;
        Ok(Request::Restore(Box::new(request)))
    };
    let live = Live::new();
    let current = RefCell::new(download.status.clone());
    let report = |report: News<'_>| {
        let mut status = current.borrow_mut();
        told(context, task, &mut status, &report);
        live.set(status.clone());
    };
    let limits = |request: &Request| limits_of(concurrency.borrow().as_ref(), request);
    tokio::select! {
        ended = attempts::operate(context, subject, make, limits, &report) => ended,
        () = live.write(context, task) => unreachable!("it writes for ever"),
    }
}

/// The claim that Velero makes, while it waits.
async fn claim(context: &Context, namespace: &str, name: &str) -> Result<Value, Failure> {
    if namespace.is_empty() || name.is_empty() {
        return Err(Failure::new(exit::INTEGRITY, "the DataDownload names no claim"));
    }
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, name);
    let Some(found) = context.api.get(&key).await? else {
        return Err(Failure::new(exit::RETRYABLE, format!("there is no {key} yet"))
            .hint("Velero makes it; velero restore logs says why it did not"));
    };
    let selects = found["spec"]["selector"]["matchLabels"][WAITS_BY].is_string();
    let has_volume = found["spec"]["volumeName"].as_str().is_some_and(|name| !name.is_empty());
    if !selects || has_volume {
        let what = format!("{key} does not wait for a volume of Velero's: it is not written to");
        return Err(Failure::new(exit::USAGE, what)
            .hint(format!("delete the claim, or restore it elsewhere: velero restore create --namespace-mappings FROM:TO; a waiting claim selects volumes by the label {WAITS_BY}")));
    }
    Ok(found)
}

/// Writes how it ended. What Velero has read stays as it is.
async fn close(context: &Context, task: &Task, of: &Attempted) -> Result<Pause, Failure> {
    let Some((_, download)) = task.read::<Box<Download>>()? else { return Ok(Pause::Changed) };
    let mut status = download.status.clone();
    if !status.phase.is_some_and(Stands::is_final) {
        ended(context, &mut status, of);
        if let (Some(Request::Restore(restore)), 0) = (&of.request, of.outcome.exit_code) {
            let summary = &of.outcome.summary;
            let data = show_bytes(summary["data_bytes"].as_u64().unwrap_or_default());
            let root = summary["root"].as_str().unwrap_or("unknown");
            let total = super::signed(restore.size_bytes);
            status.progress = Some(Moved { total_bytes: total, bytes_done: total });
            status.message = Some(format!("{data} written and read back; proof: root {root}"));
        } else if of.outcome.exit_code == 0 {
            // Without our seal nobody knows of what.
            status.phase = Some(Stands::Failed);
            status.message = Some(format!("the record {} is not of this controller", of.record));
        }
        status::write(context, task, &status).await?;
    }
    marks::take_off(context, task, OPERATION).await?;
    Ok(Pause::Changed)
}
