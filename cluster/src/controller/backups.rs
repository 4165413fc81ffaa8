//! A VolumeBackup: one operation of one claim, or one VolumeBackup for each claim of a selector.

use super::attempts::{self, Attempted, News, Subject};
use super::places::place;
use super::status::{self, Is, Live};
use super::task::{Pause, Task, Why};
use super::turns::Limited;
use super::{Context, marks};
use crate::drive::show_bytes;
use crate::engine::{
    self, FOUND, Failure, Limits, Meta, OPERATION, OnTimeout, Request, SCHEDULED, exit,
};
use crate::hooks;
use crate::kinds::{
    self, Base, Deadlines, DeletionPolicy, Figures, Phase, RetainSnapshot, SnapshotPolicy,
    VolumeBackup, VolumeBackupSpec, VolumeBackupStatus,
};
use crate::ops::look::look;
use crate::ops::{backup as ops, hook};
use serde_json::Value;
use std::time::Duration;

mod forgotten;
mod group;
mod many;
#[cfg(test)]
mod tests;
mod told;

use forgotten::gone;
pub(super) use many::PART_OF;
use told::told;

/// Most operations at once of a Repository that says nothing else.
const AT_ONCE: u32 = 10;

/// The next thing that a VolumeBackup asks for.
pub(super) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let Some((meta, backup)) = task.read::<Box<VolumeBackup>>()? else { return Ok(Pause::Changed) };
    let subject = subject(task, &backup.spec);
    let is_going = meta.deletion_timestamp.is_some();
    if let Some(recorded) = &backup.spec.source.recorded {
        if is_going {
            let stored = [(recorded.volume.clone(), recorded.backup_id.clone())];
            return Box::pin(gone(context, task, &backup, &stored)).await;
        }
        return Box::pin(recorded_already(context, task, &meta, &backup)).await;
    }
    if meta.labels.contains_key(many::GROUPED) {
        return Box::pin(group::part(context, task, &meta, &backup)).await;
    }
    if backup.spec.source.selector.is_some() && backup.spec.source.group != Some(true) {
        return Box::pin(many::work(context, task, &meta, &backup)).await;
    }
    if is_going && !attempts::is_running(context, &subject) {
        let ended = attempts::ended(context, &subject);
        let of_members = ended.iter().flat_map(group::ends).map(|(_, end)| end);
        let members: Vec<_> = of_members.filter_map(|end| stored(&end)).collect();
        let all: Vec<_> = ended.as_ref().and_then(stored).into_iter().chain(members).collect();
        return Box::pin(gone(context, task, &backup, &all)).await;
    }
    if let Some(ended) = attempts::ended(context, &subject) {
        return Box::pin(close(context, task, &meta, &backup, &ended)).await;
    }
    if !is_going {
        Box::pin(marks::put(context, task, OPERATION)).await?;
    }
    let ended = Box::pin(operate(context, &subject, &meta, &backup)).await?;
    if !is_going {
        return Box::pin(close(context, task, &meta, &backup, &ended)).await;
    }
    // It is looked at once more, as its deletion goes on.
    if attempts::is_running(context, &subject) {
        // Its record cannot be read: `sweep` removes what it made, and it holds up no deletion.
        Box::pin(marks::take_off(context, task, OPERATION)).await?;
        return Ok(Pause::Changed);
    }
    Ok(Pause::Within(Duration::ZERO))
}

pub(super) fn subject<'a>(task: &'a Task, spec: &VolumeBackupSpec) -> Subject<'a> {
    let total = spec.deadlines.as_ref().and_then(|at| at.total_seconds);
    Subject {
        task,
        word: "backup",
        retries: spec.retries.unwrap_or(attempts::RETRIES),
        total: total.map(|seconds| Duration::from_secs(seconds.into())),
        patience: attempts::PREFLIGHT,
        patience_retryable: attempts::PREFLIGHT,
    }
}

/// Volume and id of the stored backup that an operation made. What the record says of its end is not
/// sealed: others may write it, and it must not lead to a backup that is not theirs.
fn stored(ended: &Attempted) -> Option<(String, String)> {
    let Some(Request::Backup(backup)) = &ended.request else { return None };
    let is_good = ended.outcome.exit_code == 0;
    is_good.then(|| (backup.volume.clone(), ended.uid.clone()))
}

/// The backup that a VolumeBackup stands for, if there is one: its volume and id. Of a group it is that
/// of the claim which is asked for.
pub(super) fn found(
    context: &Context,
    task: &Task,
    backup: &VolumeBackup,
    claim: &str,
) -> Option<(String, String)> {
    if let Some(recorded) = &backup.spec.source.recorded {
        return Some((recorded.volume.clone(), recorded.backup_id.clone()));
    }
    let object = task.object()?;
    let meta = Meta::of(&object);
    let ended = match meta.labels.contains_key(many::GROUPED) {
        true => group::ended(context, task, &meta, backup)?,
        false => attempts::ended(context, &subject(task, &backup.spec))?,
    };
    let of_group = group::ends(&ended).into_iter().find(|(of, _)| of.source.name == claim);
    match of_group {
        Some((_, end)) => stored(&end),
        None => stored(&ended),
    }
}

async fn operate(
    context: &Context,
    subject: &Subject<'_>,
    meta: &Meta,
    backup: &VolumeBackup,
) -> Result<Attempted, Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let claim = backup.spec.source.pvc.as_deref().unwrap_or_default();
    let make = async || {
        let (place, repository) = place(context, &backup.spec.repository_ref, namespace)?;
        let immutable_for = repository.spec.immutable_for.as_deref();
        if backup.spec.source.group == Some(true) {
            let at = (&place, immutable_for);
            return Box::pin(group::request(context, subject.task, meta, backup, at)).await;
        }
        let options = options(&backup.spec, immutable_for);
        let request = ops::request(&context.api, namespace, claim, &place, &options).await?;
        is_free(context, &request).await?;
        Ok(Request::Backup(Box::new(request)))
    };
    let live = Live::new();
    let current = std::cell::RefCell::new(begun(context, meta, backup));
    let report = |report: News<'_>| {
        let mut status = current.borrow_mut();
        told(context, subject.task, &mut status, &report);
        live.set(status.clone());
    };
    let limits = |request: &Request| limits(context, &backup.spec, namespace, request);
    tokio::select! {
        ended = attempts::operate(context, subject, make, limits, &report) => ended,
        () = live.write(context, subject.task) => unreachable!("it writes for ever"),
    }
}

/// Whether no command of somebody works on the claim: this backup waits for it.
pub(super) async fn is_free(context: &Context, request: &engine::Backup) -> Result<(), Failure> {
    let engine::ClaimRef { namespace, name, uid } = &request.source;
    let key = engine::source_lease(namespace, uid);
    let holder = look(&context.api, |seen| {
        let Some(lease) = seen.find::<engine::Lease>(&key)? else { return Ok(None) };
        engine::choice::holder(seen, &lease)
    });
    match holder.await? {
        None => Ok(()),
        Some((of, holder)) => {
            let claim = format!("pvc/{name} in namespace {namespace}");
            Err(engine::choice::busy((&of, &holder), &claim))
        }
    }
}

/// Most operations at once, of all that a request has a part in.
pub(super) fn limits(
    context: &Context,
    spec: &VolumeBackupSpec,
    namespace: &str,
    request: &Request,
) -> Vec<Limited> {
    let found = place(context, &spec.repository_ref, namespace).ok();
    let concurrency = found.and_then(|(_, repository)| repository.spec.concurrency);
    limits_of(concurrency.as_ref(), request)
}

/// The same by what a Repository says.
pub(super) fn limits_of(
    concurrency: Option<&kinds::Concurrency>,
    request: &Request,
) -> Vec<Limited> {
    let of = |backup: &engine::Backup| {
        let engine::ClaimRef { namespace, name, uid } = &backup.source;
        (format!("uid {uid}"), format!("pvc/{name} in namespace {namespace}"))
    };
    let (repository, class, claims) = match request {
        Request::Backup(backup) => (&backup.repository, &backup.storage_class, vec![of(backup)]),
        Request::Group(group) => match group.members.first() {
            // It counts once, however many claims it has.
            Some(first) => {
                (&first.repository, &first.storage_class, group.members.iter().map(of).collect())
            }
            None => return Vec::new(),
        },
        Request::Restore(restore) => (
            &restore.repository,
            &restore.storage_class,
            vec![(
                format!("to {}/{}", restore.namespace, restore.claim),
                format!("pvc/{} in namespace {}", restore.claim, restore.namespace),
            )],
        ),
    };
    let of = format!("{}/{}", repository.namespace, repository.name);
    let place = format!("Repository {} in namespace {}", repository.name, repository.namespace);
    let most = concurrency.and_then(|at| at.repository).unwrap_or(AT_ONCE);
    let claim =
        |(claim, text)| Limited { name: format!("claim {claim}"), text, most: 1, is_claim: true };
    let mut limits: Vec<Limited> = claims.into_iter().map(claim).collect();
    let text = format!("each of the {most} turns of {place}");
    let shared =
        |name, text, most: u32| Limited { name, text, most: most as usize, is_claim: false };
    limits.push(shared(format!("repository {of}"), text, most));
    if let Some(most) = concurrency.and_then(|at| at.storage_class) {
        let text = format!("each of the {most} turns of storage class {class} in {place}");
        limits.push(shared(format!("class {of} {class}"), text, most));
    }
    limits
}

fn options(spec: &VolumeBackupSpec, immutable_for: Option<&str>) -> ops::BackupOptions {
    let mut arguments = Vec::new();
    arguments.extend(immutable_for.map(|time| format!("--retain-for={time}")));
    arguments.extend(spec.max_upload.iter().map(|most| format!("--max-upload={most}")));
    arguments.extend(spec.max_requests.map(|most| format!("--max-requests={most}")));
    arguments.extend(spec.fail_on_degraded.then(|| "--fail-on-degraded".to_owned()));
    let RetainSnapshot { policy, count, days } = &spec.retain_snapshot;
    ops::BackupOptions {
        given: None,
        snapshot_class: spec.snapshot_class_name.clone(),
        storage_class: spec.volume.as_ref().and_then(|at| at.storage_class_name.clone()),
        read_only: spec.volume.as_ref().is_some_and(|at| at.read_only),
        keep_base: (*policy == SnapshotPolicy::Never).then_some(false),
        retain: (*policy == SnapshotPolicy::Keep)
            .then_some(engine::Retain { count: *count, days: *days }),
        whole: spec.base == Base::None,
        hook: spec.hooks.as_ref().map(hook_of),
        labels: spec.notes.clone(),
        arguments,
        limits: deadlines(spec.deadlines.as_ref()),
    }
}

/// Bounds on each step.
pub(super) fn deadlines(given: Option<&Deadlines>) -> Limits {
    let usual = Limits::default();
    let Some(given) = given else { return usual };
    Limits {
        snapshot_seconds: given.snapshot_seconds.map_or(usual.snapshot_seconds, u64::from),
        volume_seconds: given.volume_seconds.map_or(usual.volume_seconds, u64::from),
        start_seconds: given.start_seconds.map_or(usual.start_seconds, u64::from),
        removal_seconds: usual.removal_seconds,
    }
}

fn hook_of(hooks: &kinds::Hooks) -> hook::HookOptions {
    let commands = match (&hooks.session, &hooks.pair, &hooks.fsfreeze) {
        (Some(command), ..) => hooks::session(command),
        (None, Some(pair), _) => hooks::pair(&pair.before, &pair.after),
        (None, None, path) => hooks::fsfreeze(path.as_deref().unwrap_or_default()),
    };
    hook::HookOptions {
        pod: hooks.pod.clone(),
        container: hooks.container.clone(),
        commands,
        timeout_seconds: hooks.timeout_seconds.unwrap_or(60).into(),
        on_timeout: match hooks.on_timeout {
            kinds::AfterTimeout::Fail => OnTimeout::Fail,
            kinds::AfterTimeout::Continue => OnTimeout::Continue,
        },
    }
}

/// The status of a backup that has just been taken up, or was before.
fn begun(context: &Context, meta: &Meta, backup: &VolumeBackup) -> VolumeBackupStatus {
    let mut status = backup.status.clone().unwrap_or_default();
    status.phase = Phase::Pending;
    status.claim = backup.spec.source.pvc.clone().unwrap_or_default();
    status.scheduled_time = meta.annotations.get(SCHEDULED).cloned();
    let now = status::now(context);
    let at = (generation(backup), now.as_str());
    status::set(&mut status.conditions, "Complete", (Is::Unknown, "Waits"), "", at);
    status
}

fn generation(backup: &VolumeBackup) -> i64 {
    backup.metadata.generation.unwrap_or_default()
}

/// Writes how it ended, and takes our mark off where nothing is left to do.
async fn close(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
    ended: &Attempted,
) -> Result<Pause, Failure> {
    // What was written meanwhile.
    let written = task.read::<Box<VolumeBackup>>()?.and_then(|(_, backup)| backup.status);
    let mut status = written.unwrap_or_else(|| begun(context, meta, backup));
    over(context, backup, meta, ended, &mut status);
    status::write(context, task, &status).await?;
    if backup.spec.deletion_policy == DeletionPolicy::Retain {
        marks::take_off(context, task, OPERATION).await?;
    } else {
        marks::put(context, task, OPERATION).await?;
    }
    Ok(Pause::Changed)
}

fn over(
    context: &Context,
    backup: &VolumeBackup,
    meta: &Meta,
    ended: &Attempted,
    status: &mut VolumeBackupStatus,
) {
    let Attempted { outcome, attempt, record, request, why, .. } = ended;
    let now = status::now(context);
    let at = (generation(backup), now.as_str());
    let is_good = outcome.exit_code == 0;
    status.phase = if is_good { Phase::Completed } else { Phase::Failed };
    status.attempts = *attempt;
    status.record = Some(record.clone());
    status.claim = backup.spec.source.pvc.clone().unwrap_or_default();
    status.scheduled_time = meta.annotations.get(SCHEDULED).cloned();
    status.message = match &outcome.hint {
        Some(hint) => format!("{}; {hint}", outcome.message),
        None => outcome.message.clone(),
    };
    if *why == Some(Why::Deadline) {
        status.message = "all its time (deadlines.totalSeconds) was over before it was done".into();
    }
    let reason = reason(outcome.exit_code, *why);
    let is = if is_good { Is::True } else { Is::False };
    status::set(&mut status.conditions, "Complete", (is, reason), &status.message.clone(), at);
    let (is, reason) = match outcome.left.is_empty() {
        true => (Is::True, "NothingLeft"),
        false => (Is::False, "Left"),
    };
    status::set(&mut status.conditions, "CleanedUp", (is, reason), &outcome.left.join("; "), at);
    match request {
        Some(Request::Backup(request)) => {
            status.volume = Some(request.volume.clone());
            if is_good {
                figures(&outcome.summary, status);
            }
        }
        _ => group::summed(ended, status),
    }
    if is_good {
        status::set(&mut status.conditions, "Moved", (Is::True, "JobEnded"), "", at);
        // The first time that anybody saw it.
        status.completion_time.get_or_insert_with(|| now.clone());
    }
}

/// The word for an exit code.
pub(super) const fn reason(exit_code: u8, why: Option<Why>) -> &'static str {
    match (why, exit_code) {
        (Some(Why::Deadline), _) => "DeadlineExceeded",
        (Some(Why::Deleted), _) => "Deleted",
        (Some(Why::Cancelled), _) => "Cancelled",
        (None, 0) => "Complete",
        (None, exit::USAGE) => "Unusable",
        (None, exit::INTEGRITY) => "Damaged",
        (None, exit::DENIED) => "Denied",
        (None, exit::CANCELLED) => "Cancelled",
        (None, exit::BUG) => "Bug",
        (None, 5) => "Degraded",
        (None, 6) => "BoundReached",
        (None, _) => "Failed",
    }
}

fn figures(summary: &Value, status: &mut VolumeBackupStatus) {
    let number = |name: &str| summary[name].as_i64().unwrap_or_default();
    let bytes = |name: &str| show_bytes(summary[name].as_u64().unwrap_or_default());
    status.backup_id = summary["backup_id"].as_str().map(str::to_owned);
    status.changed_blocks = summary["kind"].as_str().map(str::to_owned);
    status.figures = Some(Figures {
        size_bytes: number("size_bytes"),
        read_bytes: number("read_bytes"),
        stored_bytes: number("stored_bytes"),
    });
    status.read = Some(bytes("read_bytes"));
    status.stored = Some(bytes("stored_bytes"));
    let lists = ["warnings", "degraded"].into_iter().filter_map(|name| summary[name].as_array());
    status.warnings = lists.flatten().filter_map(Value::as_str).map(str::to_owned).collect();
}

/// How a backup is that the repository had: as it said when its object was made.
fn found_so(meta: &Meta, status: &mut VolumeBackupStatus) {
    let found = meta.annotations.get(FOUND).map_or("", String::as_str);
    let Ok(found) = serde_json::from_str::<Value>(found) else { return };
    let number = |name: &str| found[name].as_i64().unwrap_or_default();
    let bytes = |name: &str| found[name].as_u64().map(show_bytes);
    status.changed_blocks = found["kind"].as_str().map(str::to_owned);
    status.completion_time = found["finished"].as_str().map(str::to_owned);
    status.figures = Some(Figures {
        size_bytes: number("sizeBytes"),
        read_bytes: number("readBytes"),
        stored_bytes: number("storedBytes"),
    });
    status.read = bytes("readBytes");
    status.stored = bytes("storedBytes");
    let degraded = found["degraded"].as_array().into_iter().flatten();
    status.warnings = degraded.filter_map(Value::as_str).map(str::to_owned).collect();
}

/// A backup that the repository had before its object.
async fn recorded_already(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
) -> Result<Pause, Failure> {
    let Some(recorded) = &backup.spec.source.recorded else { return Ok(Pause::Changed) };
    let mut status = backup.status.clone().unwrap_or_default();
    let now = status::now(context);
    status.phase = Phase::Completed;
    status.volume = Some(recorded.volume.clone());
    status.backup_id = Some(recorded.backup_id.clone());
    status.claim = recorded.volume.rsplit('/').next().unwrap_or_default().to_owned();
    status.message = "the repository had this backup already".into();
    found_so(meta, &mut status);
    let at = (generation(backup), now.as_str());
    status::set(&mut status.conditions, "Complete", (Is::True, "Recorded"), "", at);
    status::write(context, task, &status).await?;
    if backup.spec.deletion_policy == DeletionPolicy::Forget && meta.deletion_timestamp.is_none() {
        marks::put(context, task, OPERATION).await?;
    }
    Ok(Pause::Changed)
}
