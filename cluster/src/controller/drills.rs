//! A drill: a restore into a claim for a while, a command that looks at it, and its proof.
//!
//! ```text
//! VolumeRestore NAME ──▶ claim NAME ──▶ Job NAME ──▶ result on the VolumeRestore ──▶ removal
//! ```
//!
//! The VolumeRestore is the drill's record. It is made once, by a name that follows from the time,
//! and its schedule owns it. A finalizer keeps it until claim and Job are gone, so a drill that is
//! cut off anywhere leaves nothing: whoever takes the object up next goes on. One that is deleted,
//! by itself or with its schedule, is cleared first.
//!
//! **Image and command come from the schedule alone**, never from the VolumeRestore: whoever may
//! make restores must not get a pod by them. A claim is removed only if a restore of this object
//! made it.

mod job;

use super::metrics::Tally;
use super::schedules::{self, task_of};
use super::task::{Pause, Task};
use super::{Context, attempts, events, marks, restores};
use crate::api::ApiError;
use crate::engine::{
    self, DRILL, Failure, Key, Kind, MANAGER, Meta, OWNER, SCHEDULE, SCHEDULED, Selection,
};
use crate::kinds::{
    BackupSchedule, Deadlines, Drill, ObjectRef, RestoreSource, RestoreTarget, VolumeRestore,
    VolumeRestoreSpec,
};
use crate::schedule::{CLAIM, DrillRecord, DrillState, NewDrill};
use job::Found;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// On the record: uid of the claim that is backed up.
const CLAIM_UID: &str = "mover.dev/claim-uid";
/// On the record: how it ended.
const RESULT: &str = "mover.dev/drill-result";
/// A restore that takes longer has failed.
const RESTORE_SECONDS: u32 = 86_400;
/// Ended drills that stay as objects.
const KEEP: usize = 3;
/// How often the Job is looked at.
const LOOK: Duration = Duration::from_secs(3);

/// How a drill ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Ended {
    passed: bool,
    message: String,
    time: String,
}

/// Begins a drill, or finds that it has begun. `task` is the schedule's.
pub(super) async fn begin(
    context: &Context,
    task: &Task,
    drill: &Drill,
    new: &NewDrill,
) -> Result<(), Failure> {
    let namespace = task.key.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::VolumeRestore, namespace, &new.name);
    let spec = VolumeRestoreSpec {
        source: RestoreSource {
            backup_ref: Some(ObjectRef { name: new.of.backup.clone() }),
            ..RestoreSource::default()
        },
        target: Some(RestoreTarget { pvc: new.name.clone(), ..RestoreTarget::default() }),
        storage_class_name: drill.storage_class_name.clone(),
        deadlines: Some(Deadlines { total_seconds: Some(RESTORE_SECONDS), ..Deadlines::default() }),
        ..VolumeRestoreSpec::default()
    };
    let metadata = json!({
        "name": key.name,
        "namespace": namespace,
        "labels": { SCHEDULE: task.uid, "app.kubernetes.io/managed-by": MANAGER },
        "annotations": {
            SCHEDULED: schedules::written(new.due),
            CLAIM: new.of.claim,
            CLAIM_UID: new.of.uid,
        },
        "ownerReferences": [task.reference()],
        "finalizers": [DRILL],
    });
    let object = engine::object(&key, metadata, json!({ "spec": spec }));
    schedules::create(context, task, &key, &object).await
}

/// The drills of a schedule.
pub(super) fn records(context: &Context, namespace: &str, schedule: &str) -> Vec<DrillRecord> {
    let of = |object: std::rc::Rc<Value>| {
        let metadata = &object["metadata"];
        if metadata["namespace"] != namespace || metadata["labels"][SCHEDULE] != schedule {
            return None;
        }
        let meta = Meta::of(&object);
        let note = |name: &str| meta.annotations.get(name).cloned().unwrap_or_default();
        let result = result_of(&meta);
        let said = object["status"]["message"].as_str().unwrap_or("it has begun");
        Some(DrillRecord {
            scheduled: meta.annotations.get(SCHEDULED).cloned(),
            claim: (note(CLAIM), note(CLAIM_UID)),
            backup: object["spec"]["source"]["backupRef"]["name"].as_str()?.to_owned(),
            state: match &result {
                None => DrillState::UnderWay,
                Some(result) if result.passed => DrillState::Passed,
                Some(_) => DrillState::Failed,
            },
            ended: result.as_ref().and_then(|result| schedules::time(Some(&result.time))),
            message: result.map_or_else(|| said.to_owned(), |result| result.message),
            name: meta.name,
        })
    };
    context.objects.all(Kind::VolumeRestore).into_iter().filter_map(of).collect()
}

/// Whether a claim is, or will be, that of a drill.
pub(super) fn is_claim_of_one(context: &Context, namespace: &str, claim: &str) -> bool {
    let key = Key::new(Kind::VolumeRestore, namespace, claim);
    context.objects.get(&key).is_some_and(|object| {
        Meta::of(&object).labels.contains_key(SCHEDULE) && object["spec"]["target"]["pvc"] == claim
    })
}

/// Removes records of ended drills that are more than stay.
pub(super) async fn clear(
    context: &Context,
    namespace: &str,
    records: &[DrillRecord],
) -> Result<(), Failure> {
    let of = |record: &DrillRecord| {
        let key = Key::new(Kind::VolumeRestore, namespace, &record.name);
        let meta = Meta::of(&*context.objects.get(&key)?);
        // By the API's clock: ours may have been wrong when it ended.
        Some((schedules::time(meta.creation_timestamp.as_deref()), key, meta))
    };
    let mut ended: Vec<_> =
        records.iter().filter(|record| record.ended.is_some()).filter_map(of).collect();
    ended.sort_by_key(|(created, ..)| std::cmp::Reverse(*created));
    for (_, key, meta) in ended.into_iter().skip(KEEP) {
        if meta.deletion_timestamp.is_none() {
            context.api.delete(&key, &meta.uid).await?;
        }
    }
    Ok(())
}

fn result_of(meta: &Meta) -> Option<Ended> {
    serde_json::from_str(meta.annotations.get(RESULT)?).ok()
}

/// Whether a VolumeRestore has parts of a drill that are to be removed some day.
pub(super) fn is_drill(object: &Value) -> bool {
    Meta::of(object).finalizers.iter().any(|name| name == DRILL)
}

/// The next thing that the record of a drill asks for.
pub(super) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let Some((meta, restore)) = task.read::<Box<VolumeRestore>>()? else {
        return Ok(Pause::Changed);
    };
    let subject = restores::subject(task, &restore.spec);
    let is_going = meta.deletion_timestamp.is_some();
    if is_going || result_of(&meta).is_some() {
        if attempts::is_running(context, &subject) {
            return Box::pin(restores::work(context, task)).await;
        }
        let is_left = Box::pin(remove(context, task, &meta, &restore)).await?;
        if is_left {
            return Ok(Pause::Within(LOOK));
        }
        marks::take_off(context, task, DRILL).await?;
        return Ok(Pause::Within(Duration::ZERO));
    }
    let pause = Box::pin(restores::work(context, task)).await?;
    let Some(ended) = attempts::ended(context, &subject) else { return Ok(pause) };
    let found = match ended.outcome.exit_code {
        0 => Box::pin(prove(context, task, &meta, &restore)).await?,
        _ => Some(Found { passed: false, message: restores::message(&ended) }),
    };
    let Some(found) = found else { return Ok(Pause::Within(LOOK)) };
    note(context, task, &meta, &found).await?;
    Ok(Pause::Within(Duration::ZERO))
}

/// The schedule that a record is of, as it is now.
fn schedule_of(context: &Context, meta: &Meta) -> Option<BackupSchedule> {
    let uid = meta.labels.get(SCHEDULE)?;
    let all = context.objects.all(Kind::BackupSchedule).into_iter();
    let mut own = all.filter(|at| {
        at["metadata"]["uid"] == *uid
            && at["metadata"]["namespace"].as_str() == meta.namespace.as_deref()
    });
    serde_json::from_value((*own.next()?).clone()).ok()
}

/// Has the command look at the restored claim; nothing while it does.
async fn prove(
    context: &Context,
    task: &Task,
    meta: &Meta,
    restore: &VolumeRestore,
) -> Result<Option<Found>, Failure> {
    let failed = |message: String| Ok(Some(Found { passed: false, message }));
    let schedule = schedule_of(context, meta);
    let Some(drill) = schedule.and_then(|schedule| schedule.spec.drill) else {
        return failed("its schedule has no drill any more".into());
    };
    let Some(claim) = claim(context, task, meta, restore).await? else {
        return failed(format!("the restored claim {} is gone", meta.name));
    };
    adopt(context, task, &claim).await?;
    if drill.image.is_none() {
        let message = "all data was restored, read back and found to be that of the backup".into();
        return Ok(Some(Found { passed: true, message }));
    }
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::Job, namespace, &meta.name);
    let mut waits = None;
    loop {
        let changed = task.change();
        let Some(found) = context.api.get(&key).await? else {
            let is_restricted =
                context.settings.restricted || job::is_restricted(context, namespace).await;
            let made = job::of(task, meta, &drill, &claim, is_restricted);
            match context.api.create(&made).await {
                // Another controller made it: it is looked at next.
                Ok(_) | Err(ApiError::Conflict(_)) => continue,
                Err(ApiError::Refused(why)) => return failed(why.to_string()),
                Err(why) => return Err(why.into()),
            }
        };
        if !job::is_of(&found, &task.uid) {
            return failed(format!("{key} exists and is not of this drill: delete it"));
        }
        let pods = Selection::labelled(Kind::Pod, namespace, format!("job-name={}", meta.name));
        let pods = context.api.list(&pods).await?.0;
        if let Some(found) = job::verdict(&found, &pods, waits.as_deref()) {
            return Ok(Some(found));
        }
        waits = job::waits(&pods).or(waits);
        let _ = tokio::time::timeout(LOOK, changed).await;
        let is_gone = task.object().is_none_or(|at| Meta::of(&at).deletion_timestamp.is_some());
        if is_gone {
            return Ok(None);
        }
    }
}

/// The claim, if a restore of this object made it.
async fn claim(
    context: &Context,
    task: &Task,
    meta: &Meta,
    restore: &VolumeRestore,
) -> Result<Option<Value>, Failure> {
    let target = restore.spec.target.as_ref();
    if target.is_none_or(|target| target.in_place || target.pvc != meta.name) {
        return Ok(None);
    }
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, &meta.name);
    let found = context.api.get(&key).await?;
    let records = context.objects.records(&task.uid);
    let made: Vec<String> = records.iter().map(|record| Meta::of(record).uid).collect();
    Ok(found.filter(|claim| {
        Meta::of(claim).labels.get(OWNER).is_some_and(|owner| made.contains(owner))
    }))
}

/// The claim goes with the record, also where nobody is there to clear it.
async fn adopt(context: &Context, task: &Task, claim: &Value) -> Result<(), Failure> {
    let owners = claim["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    if owners.iter().any(|owner| owner["uid"] == task.uid) {
        return Ok(());
    }
    let meta = Meta::of(claim);
    let owners: Vec<Value> = owners.into_iter().chain([task.reference()]).collect();
    let patch = json!({ "metadata": { "ownerReferences": owners } });
    let key = engine::key_of(claim);
    match context.api.patch(&key, (&meta.uid, Some(&meta.resource_version)), &patch).await {
        // Somebody else changed it: the next look does it, and the finalizer is there until then.
        Ok(_) | Err(ApiError::Conflict(_) | ApiError::Absent(_)) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

/// Writes how the drill ended onto its record, and tells it.
async fn note(context: &Context, task: &Task, meta: &Meta, found: &Found) -> Result<(), Failure> {
    let result = Ended {
        passed: found.passed,
        message: found.message.clone(),
        time: super::status::now(context),
    };
    let text = serde_json::to_string(&result).unwrap_or_default();
    let patch = json!({ "metadata": { "annotations": { RESULT: text } } });
    // Of this version alone: another controller may have written what it found, and removed the
    // claim since.
    match context.api.patch(&task.key, (&task.uid, Some(&meta.resource_version)), &patch).await {
        Ok(written) => context.objects.wrote(written),
        Err(ApiError::Conflict(_)) => {
            if let Some(newest) = context.api.get(&task.key).await? {
                context.objects.wrote(newest);
            }
            return Ok(());
        }
        Err(ApiError::Absent(_)) => return Ok(()),
        Err(why) => return Err(why.into()),
    }
    context.metrics.drill_ended(if found.passed { Tally::Good } else { Tally::Failed });
    let reason = if found.passed { "DrillPassed" } else { "DrillFailed" };
    let message = format!("{}: {}", meta.name, found.message);
    events::tell(context, task, !found.passed, reason, &message).await;
    let all = context.objects.all(Kind::BackupSchedule).into_iter();
    let mut own = all.filter(|at| Some(&Meta::of(at).uid) == meta.labels.get(SCHEDULE));
    if let Some(schedule) = own.next() {
        let schedule = task_of(context, &schedule);
        events::tell(context, &schedule, !found.passed, reason, &message).await;
    }
    Ok(())
}

/// Removes Job and claim of a drill; whether something of them is still there.
async fn remove(
    context: &Context,
    task: &Task,
    meta: &Meta,
    restore: &VolumeRestore,
) -> Result<bool, Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::Job, namespace, &meta.name);
    if let Some(found) = context.api.get(&key).await?.filter(|job| job::is_of(job, &task.uid)) {
        delete(context, &key, &found).await?;
        return Ok(true);
    }
    let Some(found) = claim(context, task, meta, restore).await? else { return Ok(false) };
    let volume = found["spec"]["volumeName"].as_str().unwrap_or_default();
    let volume = Key::wide(Kind::PersistentVolume, volume);
    if let Some(of) = context.api.get(&volume).await? {
        let is_its = of["spec"]["claimRef"]["uid"] == found["metadata"]["uid"];
        // A class that retains volumes would keep each drill's for good.
        if is_its && of["spec"]["persistentVolumeReclaimPolicy"] != "Delete" {
            let patch = json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
            context.api.patch(&volume, (&Meta::of(&of).uid, None), &patch).await?;
        }
    }
    delete(context, &engine::key_of(&found), &found).await?;
    Ok(true)
}

async fn delete(context: &Context, key: &Key, object: &Value) -> Result<(), Failure> {
    let meta = Meta::of(object);
    if meta.deletion_timestamp.is_none() {
        context.api.delete(key, &meta.uid).await?;
    }
    Ok(())
}
