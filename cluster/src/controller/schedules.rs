//! A BackupSchedule: the VolumeBackups that are due, the ended ones that go, and drills.
//!
//! `schedule` decides; here the objects are read and the requests made. One loop looks after one
//! schedule, at its next time and at least every 30 seconds, so a clock that was put forward or
//! back is noticed. Runs are made first and the mark is written after them: a crash in between
//! makes nothing twice, as their names are taken.

mod seen;

use super::status::{self, Is};
use super::task::{Pause, Task};
use super::{Context, drills, events};
use crate::api::ApiError;
use crate::engine::{self, Failure, GROUP, Key, Kind, MANAGER, Meta, SCHEDULE, SCHEDULED, exit};
use crate::kinds::{
    BackupSchedule, BackupScheduleSpec, BackupScheduleStatus, BackupSource, Condition, DrillStatus,
};
use crate::schedule::{
    BadCron, CLAIM, ClaimOf, DrillPlan, DrillRecord, DrillState, MARK, Mark, NewRun, Plan, Run,
    Schedule, Since, Verdict, surplus,
};
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

use seen::Memory;
pub(super) use seen::{task_of, time};

/// It is looked at that often, whatever was planned.
const LOOK: Duration = Duration::from_secs(30);
/// And no more often than that.
const LOOK_LEAST: Duration = Duration::from_millis(200);
/// Removals that may fail in one look.
const FAULTS_MAX: usize = 3;

/// Looks after a schedule until it goes.
pub(super) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let mut memory = Memory::default();
    loop {
        let changed = task.change();
        let Some((meta, object)) = task.read::<BackupSchedule>()? else {
            return Ok(Pause::Changed);
        };
        if meta.deletion_timestamp.is_some() {
            // Its runs have it as their owner.
            return Ok(Pause::Changed);
        }
        let pause = told_turn(context, task, &meta, &object, &mut memory).await;
        let _ = tokio::time::timeout(pause, changed).await;
    }
}

/// One look at a schedule; one that fails is told in its status and tried again.
async fn told_turn(
    context: &Context,
    task: &Task,
    meta: &Meta,
    object: &BackupSchedule,
    memory: &mut Memory,
) -> Duration {
    let why = match turn(context, task, meta, object, memory).await {
        Ok(pause) => return pause,
        Err(why) => why,
    };
    tracing::warn!("{}: {why}; it is tried again", task.key);
    let mut status = object.status.clone().unwrap_or_default();
    let ready = Verdict { status: "False", reason: "CannotBegin", message: why.to_string() };
    put(context, object, &mut status.conditions, "Ready", &ready);
    let message = "its claims and runs could not be looked at: Ready says why".to_owned();
    let unknown = Verdict { status: "Unknown", reason: "NotSeen", message };
    put(context, object, &mut status.conditions, "UpToDate", &unknown);
    if let Err(why) = write(context, task, object, &status).await {
        tracing::debug!("{}: {why}", task.key);
    }
    LOOK
}

/// One look at a schedule: how long until the next one.
async fn turn(
    context: &Context,
    task: &Task,
    meta: &Meta,
    object: &BackupSchedule,
    memory: &mut Memory,
) -> Result<Duration, Failure> {
    let now = (context.clock)();
    let mark = meta.annotations.get(MARK).and_then(|text| Mark::parse(text));
    let created = seen::time(meta.creation_timestamp.as_deref()).unwrap_or(now);
    let mut schedule = Schedule {
        name: &meta.name,
        uid: &task.uid,
        since: Since { created, changed: None },
        spec: &object.spec,
        mark: mark.as_ref(),
    };
    if schedule.was_changed() {
        schedule.since.changed = seen::changed(context, task).await?;
    }
    let look = match looked(context, task, &schedule, memory, now).await? {
        Ok(look) => look,
        Err((part, why)) => {
            let message = format!("{part}{why}");
            let mut status = object.status.clone().unwrap_or_default();
            let ready = Verdict { status: "False", reason: "Unusable", message };
            put(context, object, &mut status.conditions, "Ready", &ready);
            status.next_time = None;
            write(context, task, object, &status).await?;
            return Ok(LOOK);
        }
    };
    let mut faults = Vec::new();
    for run in &look.plan.create {
        match make(context, task, meta, &object.spec, run).await {
            Ok(()) => drop(memory.known.insert(run.clone())),
            Err(why) => faults.push(format!("{}: {why}", run.name)),
        }
    }
    if let (Some(new), Some(drill)) = (&look.drills.begin, &object.spec.drill) {
        match drills::begin(context, task, drill, new).await {
            Ok(()) => drop(memory.known_drills.insert(new.due)),
            Err(why) => faults.push(format!("{}: {why}", new.name)),
        }
    }
    // What could not be made is not settled.
    if faults.is_empty()
        && let Some(mark) = schedule.mark(&look.plan, &look.drills)
    {
        match settle(context, task, meta, &mark).await {
            Ok(true) => {}
            Ok(false) => return Ok(LOOK_LEAST),
            Err(why) => faults.push(format!("its mark: {why}")),
        }
    }
    if faults.is_empty() {
        memory.forget(look.plan.settled.until, look.drills.settled.until);
    }
    let left = clear(context, object, &look, memory).await;
    let status = status_of(context, object, &schedule, &look, (&faults, &left), now)?;
    write(context, task, object, &status).await?;
    let next = [look.plan.look, look.drills.look].into_iter().flatten().min();
    let pause = next.and_then(|next| (next - (context.clock)()).to_std().ok());
    Ok(match faults.is_empty() && left.is_empty() {
        true => pause.unwrap_or(LOOK).clamp(LOOK_LEAST, LOOK),
        false => LOOK,
    })
}

/// All that was read of a schedule, and what follows.
struct Look {
    claims: Vec<ClaimOf>,
    runs: Vec<Run>,
    plan: Plan,
    records: Vec<DrillRecord>,
    drills: DrillPlan,
}

/// Reads and plans; or the field that is wrong, with the part of the spec that it is of.
async fn looked(
    context: &Context,
    task: &Task,
    schedule: &Schedule<'_>,
    memory: &mut Memory,
    now: DateTime<Utc>,
) -> Result<Result<Look, (&'static str, BadCron)>, Failure> {
    let namespace = task.key.namespace.as_deref().unwrap_or_default();
    let timing = match schedule.timing() {
        Ok(timing) => timing,
        Err(why) => return Ok(Err(("spec.", why))),
    };
    let source = &schedule.spec.template.spec.source;
    let due = timing.cron.last_until(now);
    let claims = memory.claims(context, namespace, source, due, now).await?;
    let runs = memory.runs(context, namespace, schedule);
    let plan = match schedule.plan(&claims, &runs, &memory.known, now) {
        Ok(plan) => plan,
        Err(why) => return Ok(Err(("spec.", why))),
    };
    let records = drills::records(context, namespace, &task.uid);
    let candidates = seen::candidates(context, namespace, &claims, &runs);
    Ok(match schedule.plan_drills(&records, &candidates, &memory.known_drills, now) {
        Ok(drills) => Ok(Look { claims, runs, plan, records, drills }),
        Err(why) => Err(("spec.drill.", why)),
    })
}

/// Makes a run, or finds that it is there.
async fn make(
    context: &Context,
    task: &Task,
    meta: &Meta,
    spec: &BackupScheduleSpec,
    run: &NewRun,
) -> Result<(), Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::VolumeBackup, namespace, &run.name);
    let own = format!("{GROUP}/");
    let mut labels = spec.template.labels.clone();
    labels.retain(|name, _| !name.starts_with(&own));
    labels.insert(SCHEDULE.into(), task.uid.clone());
    labels.insert("app.kubernetes.io/managed-by".into(), MANAGER.into());
    let mut annotations = json!({ SCHEDULED: written(run.due) });
    let mut backup = spec.template.spec.clone();
    if let Some(claim) = &run.claim {
        annotations[CLAIM] = claim.clone().into();
        backup.source = BackupSource { pvc: Some(claim.clone()), ..BackupSource::default() };
    }
    let metadata = json!({
        "name": key.name,
        "namespace": namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [task.reference()],
    });
    create(context, task, &key, &engine::object(&key, metadata, json!({ "spec": backup }))).await
}

/// Makes an object of the schedule; one of its name that the schedule made is as good.
///
/// # Errors
///
/// The API's, or the name is somebody else's.
pub(super) async fn create(
    context: &Context,
    task: &Task,
    key: &Key,
    object: &Value,
) -> Result<(), Failure> {
    match context.api.create(object).await {
        Ok(made) => context.objects.wrote(made),
        Err(ApiError::Conflict(why)) => {
            let found = context.api.get(key).await?.ok_or(why)?;
            if Meta::of(&found).labels.get(SCHEDULE) != Some(&task.uid) {
                let what = format!("{key} exists and is not of {}", task.key);
                return Err(Failure::new(exit::USAGE, what)
                    .hint("delete it, or give the schedule another name"));
            }
            context.objects.wrote(found);
        }
        Err(why) => return Err(why.into()),
    }
    Ok(())
}

/// Writes the mark, if nothing changed since it was read.
async fn settle(context: &Context, task: &Task, meta: &Meta, mark: &Mark) -> Result<bool, Failure> {
    let patch = json!({ "metadata": { "annotations": { MARK: mark.text() } } });
    match context.api.patch(&task.key, (&task.uid, Some(&meta.resource_version)), &patch).await {
        Ok(written) => {
            context.objects.wrote(written);
            Ok(true)
        }
        Err(ApiError::Conflict(_)) => {
            // The watch may be behind: the next look has to see the newest one.
            if let Some(found) = context.api.get(&task.key).await? {
                context.objects.wrote(found);
            }
            Ok(false)
        }
        Err(ApiError::Absent(_)) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// Removes ended runs and drills that are more than the history keeps; the faults of those that
/// stay, of which a few are enough.
async fn clear(
    context: &Context,
    object: &BackupSchedule,
    look: &Look,
    memory: &mut Memory,
) -> Vec<String> {
    let mut faults = Vec::new();
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    if !surplus(&look.runs, object.spec.history, &BTreeSet::new()).is_empty() {
        let held = seen::held(context, namespace);
        for run in surplus(&look.runs, object.spec.history, &held) {
            let key = Key::new(Kind::VolumeBackup, namespace, &run.name);
            let Some(found) = context.objects.get(&key) else { continue };
            match seen::remove(context, &key, &found).await {
                Ok(()) => memory.forget_end(&Meta::of(&found).uid),
                Err(why) => faults.push(format!("{}: {why}", run.name)),
            }
            if faults.len() == FAULTS_MAX {
                break;
            }
        }
    }
    if let Err(why) = drills::clear(context, namespace, &look.records).await {
        faults.push(why.to_string());
    }
    faults
}

fn status_of(
    context: &Context,
    object: &BackupSchedule,
    schedule: &Schedule<'_>,
    look: &Look,
    (faults, left): (&[String], &[String]),
    now: DateTime<Utc>,
) -> Result<BackupScheduleStatus, Failure> {
    let wrong = |why: BadCron| Failure::new(exit::USAGE, why.to_string());
    let health = schedule.health(&look.claims, &look.runs, now).map_err(wrong)?;
    let mut status = object.status.clone().unwrap_or_default();
    let made = look.plan.create.iter().map(|run| run.due);
    status.last_time = made.chain(look.plan.last).max().map(written);
    status.next_time = look.plan.next.map(written);
    status.newest_good_time = health.newest_good.map(written);
    status.claims = i64::try_from(health.claims).ok();
    status.missed = i64::try_from(look.plan.missed).ok();
    let message = [faults, left].concat().join("; ");
    let ready = match (faults, left) {
        ([], []) => Verdict { status: "True", reason: "Scheduled", message },
        ([], _) => Verdict { status: "False", reason: "CannotRemove", message },
        _ => Verdict { status: "False", reason: "CannotBegin", message },
    };
    put(context, object, &mut status.conditions, "Ready", &ready);
    put(context, object, &mut status.conditions, "UpToDate", &health.up_to_date);
    match schedule.drilled(&look.drills, &look.records, now) {
        Some(drilled) => put(context, object, &mut status.conditions, "Drilled", &drilled),
        None => status.conditions.retain(|at| at.kind != "Drilled"),
    }
    status.drill = object.spec.drill.as_ref().map(|_| {
        let next_time = look.drills.next.map(written);
        match schedule.last_drill(&look.records, now) {
            None => DrillStatus { result: "Never".into(), next_time, ..DrillStatus::default() },
            Some(last) => DrillStatus {
                result: match last.state {
                    DrillState::UnderWay => "Running".into(),
                    DrillState::Passed => "Passed".into(),
                    DrillState::Failed => "Failed".into(),
                },
                time: last.ended.map(written),
                next_time,
                backup: Some(last.backup.clone()),
                message: last.message.clone(),
            },
        }
    });
    Ok(status)
}

fn put(
    context: &Context,
    object: &BackupSchedule,
    conditions: &mut Vec<Condition>,
    kind: &str,
    verdict: &Verdict,
) {
    let is = match verdict.status {
        "True" => Is::True,
        "False" => Is::False,
        _ => Is::Unknown,
    };
    let now = status::now(context);
    let at = (object.metadata.generation.unwrap_or_default(), now.as_str());
    status::set(conditions, kind, (is, verdict.reason), &verdict.message, at);
}

/// Writes the status, and an event for each condition that has turned bad, or good again.
async fn write(
    context: &Context,
    task: &Task,
    object: &BackupSchedule,
    status: &BackupScheduleStatus,
) -> Result<(), Failure> {
    status::write(context, task, status).await?;
    let before = object.status.as_ref().map(|status| status.conditions.as_slice());
    for new in &status.conditions {
        let old = before.unwrap_or_default().iter().find(|old| old.kind == new.kind);
        let was = old.map_or("", |old| old.status.as_str());
        let is_bad = new.status == "False";
        if was != new.status && (is_bad || was == "False") {
            let message = format!("{} {}: {}", new.kind, new.status, new.message);
            events::tell(context, task, is_bad, &new.reason, &message).await;
        }
    }
    Ok(())
}

/// A time as the API writes it.
pub(super) fn written(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests;
