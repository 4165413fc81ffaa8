//! What is read for a schedule, and what its loop remembers of it. All of it can be read again.

use super::super::backups::{self, PART_OF};
use super::super::task::Task;
use super::super::{Context, attempts, drills, restores};
use crate::engine::{
    Failure, Key, Kind, Meta, OWNER, ROLE, SCHEDULE, SCHEDULED, Selection, TARGET,
};
use crate::kinds::{BackupSource, DeletionPolicy, VolumeBackup, VolumeRestore};
use crate::schedule::{Candidate, ClaimOf, NewRun, Run, Schedule, State, newest_good};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Claims are listed again after so long, though nothing is due.
const CLAIMS: Duration = Duration::from_secs(300);

/// What the loop of one schedule remembers.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Runs that it has made or seen: one that its user deletes does not come back.
    pub(super) known: BTreeSet<NewRun>,
    /// The same of drills.
    pub(super) known_drills: BTreeSet<DateTime<Utc>>,
    /// How VolumeBackups ended, by their uids: an end is for good.
    ended: BTreeMap<String, State>,
    claims: Option<Claims>,
}

#[derive(Debug)]
struct Claims {
    source: BackupSource,
    all: Vec<ClaimOf>,
    /// By the clock, for times that are due; and by a clock that only grows.
    read: DateTime<Utc>,
    since: Instant,
}

impl Memory {
    /// The claims of a source. They are read anew for each time that is due.
    pub(super) async fn claims(
        &mut self,
        context: &Context,
        namespace: &str,
        source: &BackupSource,
        due: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<Vec<ClaimOf>, Failure> {
        let is_fresh = |known: &&Claims| {
            known.source == *source
                && known.since.elapsed() < CLAIMS
                && due.is_none_or(|due| known.read >= due)
                && known.read <= now
        };
        if let Some(known) = self.claims.as_ref().filter(is_fresh) {
            return Ok(known.all.clone());
        }
        let since = Instant::now();
        let all = claims(context, namespace, source).await?;
        let source = source.clone();
        self.claims = Some(Claims { source, all: all.clone(), read: now, since });
        Ok(all)
    }

    /// The VolumeBackups of a schedule. Those that it sees are known from then on.
    pub(super) fn runs(
        &mut self,
        context: &Context,
        namespace: &str,
        schedule: &Schedule<'_>,
    ) -> Vec<Run> {
        let mut runs = Vec::new();
        for object in context.objects.all(Kind::VolumeBackup) {
            let metadata = &object["metadata"];
            let is_its = metadata["namespace"] == namespace
                && metadata["labels"][SCHEDULE] == schedule.uid
                && metadata["labels"][PART_OF].is_null();
            if !is_its {
                continue;
            }
            let meta = Meta::of(&object);
            let state = match self.ended.get(&meta.uid) {
                Some(state) => *state,
                None => state(context, &object),
            };
            if state != State::UnderWay {
                self.ended.insert(meta.uid, state);
            }
            let run = Run {
                claim: object["spec"]["source"]["pvc"].as_str().map(str::to_owned),
                scheduled: meta.annotations.get(SCHEDULED).cloned(),
                created: time(meta.creation_timestamp.as_deref()).unwrap_or_default(),
                state,
                name: meta.name,
            };
            if let Some(due) = schedule.time(&run) {
                let (name, claim) = (run.name.clone(), run.claim.clone());
                self.known.insert(NewRun { name, claim, due });
            }
            runs.push(run);
        }
        runs
    }

    /// Forgets runs that are settled: the mark tells as much.
    pub(super) fn forget(&mut self, runs: DateTime<Utc>, drills: DateTime<Utc>) {
        self.known.retain(|run| run.due > runs);
        self.known_drills.retain(|due| *due > drills);
    }

    /// Forgets how a VolumeBackup ended that is gone.
    pub(super) fn forget_end(&mut self, uid: &str) {
        self.ended.remove(uid);
    }
}

/// A time as the API writes it.
pub(in crate::controller) fn time(text: Option<&str>) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text?).ok().map(|time| time.to_utc())
}

/// When the spec of an object changed last, by the API's notes of its writers. It is a bound: the
/// last change was no later.
pub(super) async fn changed(
    context: &Context,
    task: &Task,
) -> Result<Option<DateTime<Utc>>, Failure> {
    Ok(context.api.get(&task.key).await?.as_ref().and_then(changed_at))
}

fn changed_at(object: &Value) -> Option<DateTime<Utc>> {
    let entries = object["metadata"]["managedFields"].as_array()?;
    let of_specs = entries.iter().filter(|entry| {
        let part = entry["subresource"].as_str().unwrap_or_default();
        part.is_empty() && entry["fieldsV1"]["f:spec"].is_object()
    });
    of_specs.filter_map(|entry| time(entry["time"].as_str())).max()
}

/// The claims that a source means, which have a volume, in the order of their names.
async fn claims(
    context: &Context,
    namespace: &str,
    source: &BackupSource,
) -> Result<Vec<ClaimOf>, Failure> {
    let found = match &source.pvc {
        Some(claim) => {
            let key = Key::new(Kind::PersistentVolumeClaim, namespace, claim);
            context.api.get(&key).await?.into_iter().collect()
        }
        None => {
            let labels = source.selector.as_ref().map(|at| &at.match_labels);
            let pairs = labels.into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
            let labels = pairs.collect::<Vec<_>>().join(",");
            let claims = Selection::labelled(Kind::PersistentVolumeClaim, namespace, labels);
            context.api.list(&claims).await?.0
        }
    };
    let of = |object: &Value| {
        let meta = Meta::of(object);
        let is_made = meta.labels.contains_key(OWNER)
            && meta.labels.get(ROLE).map(String::as_str) != Some(TARGET);
        let is_left_out = source.pvc.is_none()
            && (is_made
                || meta.deletion_timestamp.is_some()
                || object["spec"]["volumeName"].as_str().is_none_or(str::is_empty)
                || drills::is_claim_of_one(context, namespace, &meta.name));
        (!is_left_out).then(|| ClaimOf {
            name: meta.name,
            uid: meta.uid,
            created: time(meta.creation_timestamp.as_deref()).unwrap_or_default(),
        })
    };
    let mut all: Vec<ClaimOf> = found.iter().filter_map(of).collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// The parts of a VolumeBackup of several claims.
fn parts(context: &Context, uid: &str) -> Vec<Rc<Value>> {
    let all = context.objects.all(Kind::VolumeBackup).into_iter();
    all.filter(|part| part["metadata"]["labels"][PART_OF] == uid).collect()
}

/// How a VolumeBackup is, by the records of what was done for it.
fn state(context: &Context, object: &Value) -> State {
    let Ok(backup) = serde_json::from_value::<VolumeBackup>(object.clone()) else {
        return State::Failed;
    };
    let meta = Meta::of(object);
    let created = time(meta.creation_timestamp.as_deref()).unwrap_or_default();
    if backup.spec.source.selector.is_some() && backup.spec.source.group != Some(true) {
        let parts = parts(context, &meta.uid);
        let states: Vec<State> = parts.iter().map(|part| state(context, part)).collect();
        let is_open = states.is_empty() || states.contains(&State::UnderWay);
        let cuts = states.iter().map(|state| match state {
            State::Good { cut } => Some(*cut),
            _ => None,
        });
        return match (is_open, cuts.collect::<Option<Vec<_>>>()) {
            (true, _) => State::UnderWay,
            (false, Some(cuts)) => State::Good { cut: cuts.into_iter().min().unwrap_or(created) },
            (false, None) => State::Failed,
        };
    }
    let task = task_of(context, object);
    let Some(ended) = attempts::ended(context, &backups::subject(&task, &backup.spec)) else {
        return State::UnderWay;
    };
    if ended.outcome.exit_code != 0 {
        return State::Failed;
    }
    // The moment is shown and no more.
    let cut = backup.status.and_then(|status| time(status.cut_time.as_deref()));
    State::Good { cut: cut.unwrap_or(created).max(created) }
}

/// To ask what was done for an object; nothing is told to it.
pub(in crate::controller) fn task_of(context: &Context, object: &Value) -> Task {
    let key = crate::engine::key_of(object);
    Task::new(key, Meta::of(object).uid, Rc::clone(&context.objects), watch::channel(0).1)
}

/// The newest good backup of each claim: of its own run and of its part of a group's, the one that
/// the API made later.
pub(super) fn candidates(
    context: &Context,
    namespace: &str,
    claims: &[ClaimOf],
    runs: &[Run],
) -> Vec<Candidate> {
    let mut found: BTreeMap<String, (DateTime<Utc>, String)> = BTreeMap::new();
    let mut offer = |claim: &str, created: DateTime<Utc>, backup: &str| {
        if found.get(claim).is_none_or(|(at, _)| created > *at) {
            found.insert(claim.to_owned(), (created, backup.to_owned()));
        }
    };
    for (claim, (run, _)) in newest_good(runs) {
        match claim {
            Some(claim) => offer(claim, run.created, &run.name),
            None => {
                let key = Key::new(Kind::VolumeBackup, namespace, &run.name);
                let Some(of) = context.objects.get(&key) else { continue };
                for part in parts(context, &Meta::of(&of).uid) {
                    if let Some(claim) = part["spec"]["source"]["pvc"].as_str() {
                        offer(claim, run.created, &Meta::of(&part).name);
                    }
                }
            }
        }
    }
    let of = |claim: &ClaimOf| {
        let backup = found.get(&claim.name)?.1.clone();
        Some(Candidate { claim: claim.name.clone(), uid: claim.uid.clone(), backup })
    };
    claims.iter().filter_map(of).collect()
}

/// VolumeBackups that a restore names which has not ended.
pub(super) fn held(context: &Context, namespace: &str) -> BTreeSet<String> {
    let name = |object: Rc<Value>| {
        if object["metadata"]["namespace"] != namespace {
            return None;
        }
        let name = object["spec"]["source"]["backupRef"]["name"].as_str()?.to_owned();
        let restore: VolumeRestore = serde_json::from_value((*object).clone()).ok()?;
        let task = task_of(context, &object);
        let is_over = restore.spec.target.is_some()
            && attempts::ended(context, &restores::subject(&task, &restore.spec)).is_some();
        (!is_over).then_some(name)
    };
    context.objects.all(Kind::VolumeRestore).into_iter().filter_map(name).collect()
}

/// Removes a VolumeBackup, and keeps the backup that it stands for.
pub(super) async fn remove(context: &Context, key: &Key, object: &Value) -> Result<(), Failure> {
    let meta = Meta::of(object);
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let mut all: Vec<(Key, Rc<Value>)> = vec![(key.clone(), Rc::new(object.clone()))];
    for part in parts(context, &meta.uid) {
        all.push((Key::new(Kind::VolumeBackup, namespace, &Meta::of(&part).name), part));
    }
    for (key, object) in &all {
        let policy = serde_json::from_value(object["spec"]["deletionPolicy"].clone());
        if policy.is_ok_and(|policy: DeletionPolicy| policy == DeletionPolicy::Forget) {
            let patch = json!({ "spec": { "deletionPolicy": DeletionPolicy::Retain } });
            match context.api.patch(key, (&Meta::of(object).uid, None), &patch).await {
                Ok(written) => context.objects.wrote(written),
                Err(crate::api::ApiError::Absent(_)) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }
    context.api.delete(key, &meta.uid).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_changed_when_its_last_writer_wrote() {
        let entry = |time: &str, part: &str, fields: Value| json!({ "manager": "x", "time": time, "subresource": part, "fieldsV1": fields });
        let of =
            |entries: Vec<Value>| changed_at(&json!({ "metadata": { "managedFields": entries } }));
        let spec = json!({ "f:spec": { "f:cron": {} } });
        let mark = json!({ "f:metadata": { "f:annotations": {} } });
        let found = of(vec![
            entry("2026-05-01T10:00:00Z", "", spec.clone()),
            entry("2026-05-01T11:00:00Z", "", spec),
            entry("2026-05-01T12:00:00Z", "", mark),
            entry("2026-05-01T13:00:00Z", "status", json!({ "f:spec": {} })),
        ]);
        assert_eq!(found, time(Some("2026-05-01T11:00:00Z")));
        assert_eq!(of(Vec::new()), None);
        assert_eq!(changed_at(&json!({})), None);
    }
}
