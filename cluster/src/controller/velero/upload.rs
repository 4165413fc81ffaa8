//! A DataUpload: a backup of the snapshot that Velero gives away with it.

use super::model::{Moved, SnapshotId, Stands, Upload, UploadSpec};
use super::{backup_of, ended, forget, repository, subject, told, worked_in};
use crate::controller::attempts::{self, Attempted, News, Subject};
use crate::controller::backups::{is_free, limits_of};
use crate::controller::status::{self, Live};
use crate::controller::task::{Pause, Task};
use crate::controller::{Context, events, marks};
use crate::drive::show_bytes;
use crate::engine::{Failure, Given, Key, Kind, Meta, OPERATION, Request, exit};
use crate::ops::repository::velero as locations;
use crate::ops::{backup as ops, given};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;

const BACKUP_UID: &str = "velero.io/backup-uid";

/// The next thing that a DataUpload asks for.
pub(crate) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let Some((meta, upload)) = task.read::<Box<Upload>>()? else { return Ok(Pause::Changed) };
    let subject = subject(task, "backup", &upload.spec.operation_timeout);
    let is_going = meta.deletion_timestamp.is_some();
    if is_going && !attempts::is_running(context, &subject) {
        let of = attempts::ended(context, &subject);
        return Box::pin(gone(context, task, &meta, &upload.spec, of.as_ref())).await;
    }
    if let Some(of) = attempts::ended(context, &subject) {
        return Box::pin(close(context, task, &of)).await;
    }
    let has_record = attempts::has_record(context, &subject);
    if !has_record && upload.status.phase.is_some_and(Stands::is_final) {
        return Ok(Pause::Changed);
    }
    if !is_going {
        marks::put(context, task, OPERATION).await?;
    }
    let of = Box::pin(operate(context, &subject, &meta, &upload)).await?;
    if !is_going {
        return Box::pin(close(context, task, &of)).await;
    }
    // Also where its record cannot be read, and `sweep` has to remove what it made.
    Box::pin(gone(context, task, &meta, &upload.spec, Some(&of))).await
}

/// It is being deleted, and nothing more is done for it.
async fn gone(
    context: &Context,
    task: &Task,
    meta: &Meta,
    spec: &UploadSpec,
    of: Option<&Attempted>,
) -> Result<Pause, Failure> {
    if of.is_none_or(|of| of.outcome.exit_code != 0) {
        match discard(context, task, spec).await {
            Ok(()) => {}
            Err(why) if why.exit_code == exit::RETRYABLE => return Err(why),
            // Whoever refuses that holds up no deletion.
            Err(why) => {
                let what = format!("its snapshot stays: {why}");
                events::tell(context, task, true, "SnapshotLeft", &what).await;
            }
        }
    }
    forget::gone(context, task, meta, spec, of).await
}

async fn operate(
    context: &Context,
    subject: &Subject<'_>,
    meta: &Meta,
    upload: &Upload,
) -> Result<Attempted, Failure> {
    let (task, spec) = (subject.task, &upload.spec);
    let concurrency = RefCell::new(None);
    let live = Live::new();
    let current = RefCell::new(upload.status.clone());
    let report = |report: News<'_>| {
        let mut status = current.borrow_mut();
        told(context, task, &mut status, &report);
        live.set(status.clone());
    };
    let make = async || {
        worked_in(context, &spec.source_namespace)?;
        let (place, found) = repository(context, task, &spec.backup_storage_location).await?;
        let given = given_by(context, task, meta, spec).await?;
        let immutable_for = found.spec.immutable_for.as_deref();
        let options = options(task, meta, spec, given, immutable_for);
        let claim = (spec.source_namespace.as_str(), spec.source_pvc.as_str());
        let request = ops::request(&context.api, claim.0, claim.1, &place, &options).await?;
        is_free(context, &request).await?;
        *concurrency.borrow_mut() = found.spec.concurrency;
        Ok(Request::Backup(Box::new(request)))
    };
    let limits = |request: &Request| limits_of(concurrency.borrow().as_ref(), request);
    tokio::select! {
        ended = attempts::operate(context, subject, make, limits, &report) => ended,
        () = live.write(context, task) => unreachable!("it writes for ever"),
    }
}

/// The snapshot that the upload is of, and where Velero keeps its backup.
async fn given_by(
    context: &Context,
    task: &Task,
    meta: &Meta,
    spec: &UploadSpec,
) -> Result<Given, Failure> {
    let name = &spec.csi_snapshot.volume_snapshot;
    if name.is_empty() || spec.source_pvc.is_empty() || spec.source_namespace.is_empty() {
        let what = "the DataUpload names no claim, or no VolumeSnapshot of it";
        return Err(Failure::new(exit::INTEGRITY, what)
            .hint("Velero has to run with --features=EnableCSI; kubectl mover doctor --velero"));
    }
    let key = Key::new(Kind::VolumeSnapshot, &spec.source_namespace, name);
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let of_location = &spec.backup_storage_location;
    let location = locations::location(&context.api, namespace, of_location).await;
    // Where nobody knows it, the stored backup stays for good.
    let origin = match (location, backup_of(task, meta)) {
        (Ok(location), Some(backup)) => location.place_of(&backup).ok(),
        (Err(why), _) if why.exit_code == exit::RETRYABLE => return Err(why),
        _ => None,
    };
    match context.api.get(&key).await? {
        Some(found) => Ok(Given { name: name.clone(), uid: Meta::of(&found).uid, origin }),
        None => Err(Failure::new(exit::USAGE, format!("there is no {key}, which Velero gave"))
            .hint("take another backup")),
    }
}

fn options(
    task: &Task,
    meta: &Meta,
    spec: &UploadSpec,
    given: Given,
    immutable_for: Option<&str>,
) -> ops::BackupOptions {
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let uid = meta.labels.get(BACKUP_UID).filter(|text| !text.is_empty()).cloned();
    let notes = [("velero/backup-name", backup_of(task, meta)), ("velero/backup-uid", uid)];
    let notes = notes.into_iter().filter_map(|(note, text)| Some((note.to_owned(), text?)));
    ops::BackupOptions {
        snapshot_class: named(&spec.csi_snapshot.snapshot_class),
        storage_class: named(&spec.csi_snapshot.storage_class),
        whole: spec.parent_snapshot == "none",
        given: Some(given),
        labels: notes.collect(),
        arguments: immutable_for.map(|time| format!("--retain-for={time}")).into_iter().collect(),
        ..ops::BackupOptions::default()
    }
}

/// Writes how it ended. What Velero has read stays as it is.
async fn close(context: &Context, task: &Task, of: &Attempted) -> Result<Pause, Failure> {
    let Some((_, upload)) = task.read::<Box<Upload>>()? else { return Ok(Pause::Changed) };
    let mut status = upload.status.clone();
    if !status.phase.is_some_and(Stands::is_final) {
        ended(context, &mut status, of);
        if let (Some(Request::Backup(request)), 0) = (&of.request, of.outcome.exit_code) {
            let id = SnapshotId { backup: of.uid.clone(), volume: request.volume.clone() };
            status.snapshot_id = Some(id.text());
            status.node_os = Some("linux".into());
            let summary = &of.outcome.summary;
            let number = |name: &str| summary[name].as_i64().unwrap_or_default();
            let size = number("size_bytes");
            status.progress = Some(Moved { total_bytes: size, bytes_done: size });
            status.incremental_bytes = Some(number("read_bytes"));
            status.message = Some(said(summary));
            status.data_mover_result = result(summary, &request.repository.name);
        } else if of.outcome.exit_code == 0 {
            // Without our seal nobody knows of what.
            status.phase = Some(Stands::Failed);
            status.message = Some(format!("the record {} is not of this controller", of.record));
        }
        status::write(context, task, &status).await?;
    }
    if status.phase != Some(Stands::Completed) {
        discard(context, task, &upload.spec).await?;
        Box::pin(forget::unfinished(context, task, &upload.spec, of)).await?;
        marks::take_off(context, task, OPERATION).await?;
    }
    Ok(Pause::Changed)
}

/// What was done, for people.
fn said(summary: &Value) -> String {
    let bytes = |name: &str| show_bytes(summary[name].as_u64().unwrap_or_default());
    let kind = summary["kind"].as_str().unwrap_or("whole");
    let lists = ["warnings", "degraded"].into_iter().filter_map(|name| summary[name].as_array());
    let more = lists.flatten().filter_map(Value::as_str).map(|text| format!("; {text}"));
    let (read, stored) = (bytes("read_bytes"), bytes("stored_bytes"));
    format!("{kind}: {read} read, {stored} stored{}", more.collect::<String>())
}

fn result(summary: &Value, repository: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("repository".to_owned(), repository.to_owned())]);
    let kind = summary["kind"].as_str().map(|kind| ("changedBlocks".to_owned(), kind.to_owned()));
    let stored = summary["stored_bytes"].as_u64();
    all.extend(kind);
    all.extend(stored.map(|bytes| ("storedBytes".to_owned(), bytes.to_string())));
    all
}

/// A snapshot that was given for an operation which never had it: nobody else removes it.
async fn discard(context: &Context, task: &Task, spec: &UploadSpec) -> Result<(), Failure> {
    let (namespace, name) = (&spec.source_namespace, &spec.csi_snapshot.volume_snapshot);
    if namespace.is_empty() || name.is_empty() || worked_in(context, namespace).is_err() {
        return Ok(());
    }
    given::discard(&context.api, (&task.key, &task.uid), namespace, name).await
}
