//! A VolumeRestore with a target: one operation. Without one, claims name it, and each of them has
//! an operation of its own.

use super::attempts::{self, Attempted, News, Subject};
use super::backups::{deadlines, found, limits_of, reason};
use super::places::place;
use super::status::{self, Is, Live};
use super::task::{Pause, Task, Why};
use super::{Context, marks};
use crate::engine::{
    self, Detached, Failure, Key, Kind, Meta, OPERATION, Repository, Request, Stage, exit,
};
use crate::kinds::{
    self, ConsumerStatus, Phase, Proof, RestoreSource, RestoreTarget, VolumeBackup, VolumeMode,
    VolumeRestore, VolumeRestoreSpec, VolumeRestoreStatus,
};
use crate::ops::{in_place, restore as ops};
use serde_json::Value;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// The next thing that a VolumeRestore asks for.
pub(super) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let Some((meta, restore)) = task.read::<Box<VolumeRestore>>()? else {
        return Ok(Pause::Changed);
    };
    let Some(target) = &restore.spec.target else {
        return Box::pin(consumed(context, task, &meta, &restore)).await;
    };
    let subject = subject(task, &restore.spec);
    let is_going = meta.deletion_timestamp.is_some();
    if is_going && !attempts::is_running(context, &subject) {
        marks::take_off(context, task, OPERATION).await?;
        return Ok(Pause::Changed);
    }
    if let Some(ended) = attempts::ended(context, &subject) {
        return Box::pin(close(context, task, &restore, &ended)).await;
    }
    if !is_going {
        marks::put(context, task, OPERATION).await?;
    }
    let ended = Box::pin(operate(context, &subject, &meta, &restore, target)).await?;
    if !is_going {
        return Box::pin(close(context, task, &restore, &ended)).await;
    }
    if attempts::is_running(context, &subject) {
        // Its record cannot be read: `sweep` removes what it made, and it holds up no deletion.
        marks::take_off(context, task, OPERATION).await?;
        return Ok(Pause::Changed);
    }
    Ok(Pause::Within(Duration::ZERO))
}

/// The status of a restore that claims name, which have operations of their own.
async fn consumed(
    context: &Context,
    task: &Task,
    meta: &Meta,
    restore: &VolumeRestore,
) -> Result<Pause, Failure> {
    let mut changes = context.objects.changes(Kind::PersistentVolumeClaim);
    changes.mark_unchanged();
    let names = |claim: &Value| {
        let source = &claim["spec"]["dataSourceRef"];
        source["kind"] == "VolumeRestore" && source["name"] == meta.name.as_str()
    };
    let now = status::now(context);
    let all = context.objects.all(Kind::PersistentVolumeClaim);
    let consumers: Vec<ConsumerStatus> = all
        .iter()
        .filter(|claim| Meta::of(claim).namespace == meta.namespace && names(claim))
        .map(|claim| consumer(context, &restore.spec, claim, &now))
        .collect();
    let mut status = restore.status.clone().unwrap_or_default();
    let count = |phase: Phase| consumers.iter().filter(|of| of.phase == phase).count();
    let (good, bad, runs) = (count(Phase::Completed), count(Phase::Failed), count(Phase::Running));
    status.phase = match (runs, bad, good) {
        (0, 0, 0) => Phase::Pending,
        (0, 0, good) if good == consumers.len() => Phase::Completed,
        (0, bad, _) if bad > 0 => Phase::Failed,
        _ => Phase::Running,
    };
    status.message = match consumers.len() {
        0 => "no claim names it in dataSourceRef".to_owned(),
        all => format!("{good} of {all} claims have their data"),
    };
    // What was proved stays proved: the time of it is when it was seen first.
    for consumer in &consumers {
        let known = status.consumers.iter().find(|known| known.pvc == consumer.pvc);
        if let Some(Some(proof)) = known.map(|known| known.proof.clone())
            && consumer.proof.as_ref().is_some_and(|at| at.verified_by == proof.verified_by)
        {
            continue;
        }
        status.consumers.retain(|known| known.pvc != consumer.pvc);
        status.consumers.push(consumer.clone());
    }
    status.consumers.retain(|known| consumers.iter().any(|consumer| consumer.pvc == known.pvc));
    status.consumers.sort_by(|one, other| one.pvc.cmp(&other.pvc));
    status::write(context, task, &status).await?;
    tokio::select! {
        _ = changes.changed() => {}
        () = task.change() => {}
    }
    Ok(Pause::Within(Duration::ZERO))
}

fn consumer(
    context: &Context,
    spec: &VolumeRestoreSpec,
    claim: &Value,
    now: &str,
) -> ConsumerStatus {
    let meta = Meta::of(claim);
    let key = Key {
        kind: Kind::PersistentVolumeClaim,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
    };
    let task = Task::new(key, meta.uid, Rc::clone(&context.objects), watch::channel(0).1);
    let subject = subject(&task, spec);
    let ended = attempts::ended(context, &subject);
    let (phase, message) = match &ended {
        Some(ended) if ended.outcome.exit_code == 0 => (Phase::Completed, message(ended)),
        Some(ended) => (Phase::Failed, message(ended)),
        None if attempts::is_running(context, &subject) => (Phase::Running, String::new()),
        None => (Phase::Pending, "its events say what it waits for".to_owned()),
    };
    let good = ended.as_ref().filter(|ended| ended.outcome.exit_code == 0);
    let proof = good.map(|ended| proof(ended, &ended.record, now));
    ConsumerStatus { pvc: meta.name, phase, message, proof }
}

pub(super) fn subject<'a>(task: &'a Task, spec: &VolumeRestoreSpec) -> Subject<'a> {
    let total = spec.deadlines.as_ref().and_then(|at| at.total_seconds);
    Subject {
        task,
        word: "restore",
        retries: spec.retries.unwrap_or(attempts::RETRIES),
        total: total.map(|seconds| Duration::from_secs(seconds.into())),
        patience: attempts::PREFLIGHT,
        patience_retryable: attempts::PREFLIGHT,
    }
}

/// What is restored: its Repository, and the name of the backup in it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) place: Repository,
    pub(super) repository: kinds::Repository,
    /// As `mover` takes it.
    pub(super) backup: String,
    /// Of its volume the newest that has no data younger than this.
    pub(super) before: Option<String>,
}

/// What a restore in a namespace asks for. Of the backup of a group, `claim` is the member that is
/// meant.
///
/// # Errors
///
/// Something that it names is not there, or not yet.
pub(super) fn asked(
    context: &Context,
    source: &RestoreSource,
    namespace: &str,
    claim: &str,
) -> Result<Asked, Failure> {
    let RestoreSource { backup_ref, repository_ref, volume, backup, before } = source;
    if let Some(reference) = backup_ref {
        let key = Key::new(Kind::VolumeBackup, namespace, &reference.name);
        let object = context.objects.get(&key).ok_or_else(|| {
            Failure::new(exit::USAGE, format!("there is no {key}")).hint(format!(
                "kubectl -n {namespace} get volumebackups lists those that are there"
            ))
        })?;
        let of: VolumeBackup = serde_json::from_value((*object).clone())
            .map_err(|why| Failure::new(exit::USAGE, format!("{key}: {why}")))?;
        let task = Task::new(
            key.clone(),
            Meta::of(&object).uid,
            Rc::clone(&context.objects),
            watch::channel(0).1,
        );
        let Some((volume, id)) = found(context, &task, &of, claim) else {
            let what = match of.spec.source.group {
                Some(true) => format!("{key} has no backup of pvc/{claim} (yet)"),
                _ => format!("{key} has no backup (yet)"),
            };
            return Err(Failure::new(exit::RETRYABLE, what)
                .hint(format!("kubectl -n {namespace} describe volumebackup {}", reference.name)));
        };
        let (place, repository) = place(context, &of.spec.repository_ref, namespace)?;
        let backup = engine::stored_name(&volume, &id);
        return Ok(Asked { place, repository, backup, before: None });
    }
    let reference = repository_ref.clone().unwrap_or_default();
    let (place, repository) = place(context, &reference, namespace)?;
    let volume = volume.as_deref().unwrap_or_default();
    let which = backup.as_deref().unwrap_or("latest");
    Ok(Asked { place, repository, backup: format!("{volume}@{which}"), before: before.clone() })
}

/// What the namespace may have: the controller may do more than whoever made the object.
pub(super) async fn guard(
    context: &Context,
    asked: &Asked,
    namespace: &str,
) -> Result<ops::Guard, Failure> {
    let found = context.api.get(&Key::wide(Kind::Namespace, namespace)).await?;
    let uid = found.map(|found| Meta::of(&found).uid).unwrap_or_default();
    Ok(ops::Guard { grants: asked.repository.spec.grants.clone(), uid })
}

async fn operate(
    context: &Context,
    subject: &Subject<'_>,
    meta: &Meta,
    restore: &VolumeRestore,
    target: &RestoreTarget,
) -> Result<Attempted, Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let spec = &restore.spec;
    let make = async || {
        let asked = asked(context, &spec.source, namespace, &target.pvc)?;
        let options = ops::RestoreOptions {
            guard: Some(guard(context, &asked, namespace).await?),
            ..options(spec, target, asked.before.clone())
        };
        let to = (namespace, target.pvc.as_str());
        let api = &context.api;
        let request = ops::request(api, &asked.backup, &asked.place, to, &options, |_| {}).await?;
        if target.in_place {
            in_place::allowed(api, &request).await?;
        }
        Ok(Request::Restore(Box::new(request)))
    };
    let live = Live::new();
    let current = std::cell::RefCell::new(begun(context, restore));
    let report = |report: News<'_>| {
        let mut status = current.borrow_mut();
        told(context, subject.task, &mut status, &report);
        live.set(status.clone());
    };
    let limits = |request: &Request| {
        let of = asked(context, &spec.source, namespace, &target.pvc).ok();
        limits_of(of.and_then(|of| of.repository.spec.concurrency).as_ref(), request)
    };
    tokio::select! {
        ended = attempts::operate(context, subject, make, limits, &report) => ended,
        () = live.write(context, subject.task) => unreachable!("it writes for ever"),
    }
}

fn options(
    spec: &VolumeRestoreSpec,
    target: &RestoreTarget,
    before: Option<String>,
) -> ops::RestoreOptions {
    ops::RestoreOptions {
        storage_class: spec.storage_class_name.clone(),
        size: spec.size.clone(),
        block: spec.mode == Some(VolumeMode::Block),
        filesystem: match spec.mode {
            Some(VolumeMode::Block) => None,
            // Without a type, that which the driver makes by itself.
            Some(VolumeMode::Filesystem) => Some(spec.filesystem.clone().unwrap_or_default()),
            None => spec.filesystem.clone(),
        },
        in_place: target.in_place,
        differential: target.differential,
        prefer_snapshot: spec.prefer_snapshot,
        before,
        guard: None,
        detached: match target.assume_detached {
            true => Detached::Assumed,
            false => Detached::Seen,
        },
        limits: deadlines(spec.deadlines.as_ref()),
    }
}

fn begun(context: &Context, restore: &VolumeRestore) -> VolumeRestoreStatus {
    let mut status = restore.status.clone().unwrap_or_default();
    status.phase = Phase::Pending;
    let now = status::now(context);
    let at = (restore.metadata.generation.unwrap_or_default(), now.as_str());
    status::set(&mut status.conditions, "Complete", (Is::Unknown, "Waits"), "", at);
    status
}

fn told(context: &Context, task: &Task, status: &mut VolumeRestoreStatus, report: &News<'_>) {
    let now = status::now(context);
    let generation = task.object().map_or(0, |object| status::generation(&object));
    let at = (generation, now.as_str());
    match report {
        News::Waits(why) => {
            status.message = (*why).to_owned();
            let reason = if status.phase == Phase::Running { "Runs" } else { "Waits" };
            status::set(&mut status.conditions, "Complete", (Is::Unknown, reason), why, at);
        }
        News::Runs { attempt, request, progress, .. } => {
            status.phase = Phase::Running;
            status.attempts = *attempt;
            if let Request::Restore(request) = request {
                status.volume = Some(request.volume.clone());
                status.backup_id = Some(request.backup.clone());
            }
            let moved = match progress.moved {
                Stage::Unknown => return,
                Stage::Open => (Is::False, "JobRuns"),
                Stage::Done => (Is::True, "JobEnded"),
            };
            status::set(&mut status.conditions, "Moved", moved, "", at);
        }
    }
}

async fn close(
    context: &Context,
    task: &Task,
    restore: &VolumeRestore,
    ended: &Attempted,
) -> Result<Pause, Failure> {
    let written = task.read::<Box<VolumeRestore>>()?.and_then(|(_, restore)| restore.status);
    let mut status = written.unwrap_or_else(|| begun(context, restore));
    let Attempted { outcome, attempt, record, request, why, .. } = ended;
    let now = status::now(context);
    let at = (restore.metadata.generation.unwrap_or_default(), now.as_str());
    let is_good = outcome.exit_code == 0;
    status.phase = if is_good { Phase::Completed } else { Phase::Failed };
    status.attempts = *attempt;
    status.message = message(ended);
    let is = if is_good { Is::True } else { Is::False };
    let reason = reason(outcome.exit_code, *why);
    status::set(&mut status.conditions, "Complete", (is, reason), &status.message.clone(), at);
    let cleaned = match outcome.left.is_empty() {
        true => (Is::True, "NothingLeft"),
        false => (Is::False, "Left"),
    };
    status::set(&mut status.conditions, "CleanedUp", cleaned, &outcome.left.join("; "), at);
    if let Some(Request::Restore(request)) = request {
        status.volume = Some(request.volume.clone());
        status.backup_id = Some(request.backup.clone());
    }
    if is_good {
        status::set(&mut status.conditions, "Moved", (Is::True, "JobEnded"), "", at);
        status::set(&mut status.conditions, "Proved", (Is::True, "AllReadBack"), "", at);
        status::set(&mut status.conditions, "Bound", (Is::True, "Bound"), "", at);
        if status.proof.is_none() {
            status.proof = Some(proof(ended, record, &now));
        }
    }
    status::write(context, task, &status).await?;
    marks::take_off(context, task, OPERATION).await?;
    Ok(Pause::Changed)
}

/// How it ended, with the next step.
pub(super) fn message(ended: &Attempted) -> String {
    if ended.why == Some(Why::Deadline) {
        return "all its time (deadlines.totalSeconds) was over before it was done".into();
    }
    match &ended.outcome.hint {
        Some(hint) => format!("{}; {hint}", ended.outcome.message),
        None => ended.outcome.message.clone(),
    }
}

/// That all data was read back.
pub(super) fn proof(ended: &Attempted, record: &str, now: &str) -> Proof {
    let summary = &ended.outcome.summary;
    Proof {
        root: summary["root"].as_str().map(str::to_owned),
        verified_by: record.to_owned(),
        time: now.to_owned(),
        data_bytes: ["data_bytes", "same_data_bytes"]
            .iter()
            .filter_map(|name| summary[*name].as_i64())
            .sum(),
        same_bytes: summary["same_data_bytes"].as_i64(),
        from_bucket: summary["from_bucket"].as_str().map(str::to_owned),
    }
}
