//! A Repository: its Jobs and their results, and objects for the backups that it has.
//!
//! The plan of the work is a pure function ([`plan`]); this task reads what it asks for, does the one
//! step that it names, and writes the status. Keys and credentials are named in Jobs, never read.

mod accounts;
mod calendar;
mod jobs;
mod lanes;
mod plan;
mod record;
mod rules;
mod status;
mod sync;

pub use calendar::Calendar;
pub use jobs::{GC_ACCOUNT, anchor};
pub use lanes::{CHECK, COPY, FORGET, GC, INIT, SYNC};
pub use plan::{Act, Facts, NEWEST, plan};
pub use record::{Done, Ended, Record, Sealer, failed};
pub use rules::{ScheduleOf, may_copy};
pub use status::transitions;
pub use sync::{Changes, List, OBJECTS_MAX, Present, changes, ended, name, read, refused};

use super::task::{Pause, Task};
use super::{Context, events};
use crate::api::{Api, ApiError};
use crate::drive::Driver;
use crate::engine::{
    Failure, Finished, Key, Kind, Meta, Observed, ROLE, Repository, Selection, Step,
};
use crate::kinds;
use chrono::{DateTime, Utc};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// A status that somebody else changed is written no sooner again.
const STATUS_AGAIN: Duration = Duration::from_secs(1);

/// Looks after a Repository until it is gone.
pub(super) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let mut driver = Driver::new(&context.api, Observed::default());
    let calendar = Calendar::default();
    let mut listed = None;
    let seal = |key: &Key, text: &str| context.seal.of(key, &task.uid, text);
    loop {
        let own = task.change();
        let mut of_schedules = context.objects.changes(Kind::BackupSchedule);
        let mut of_repositories = context.objects.changes(Kind::Repository);
        let Some((meta, repository)) = task.read::<kinds::Repository>()? else {
            return Ok(Pause::Changed);
        };
        if meta.deletion_timestamp.is_some() {
            return Ok(Pause::Changed);
        }
        let status = repository.status.clone().unwrap_or_default();
        let schedules = schedules(context);
        let created = meta.creation_timestamp.as_deref();
        let facts = |now| Facts {
            meta: &meta,
            generation: repository.metadata.generation.unwrap_or_default(),
            created: created.and_then(time).unwrap_or(now),
            spec: &repository.spec,
            status: &status,
            schedules: &schedules,
            calendar: &calendar,
            image: &context.settings.image,
            restricted: context.settings.restricted,
            now,
            seal: &seal,
            listed: listed.as_ref(),
        };
        let clock = context.clock;
        let driven = driver.run(|seen| plan(&facts(clock()), seen), None, |_| ());
        let act = tokio::select! {
            act = driven => act?,
            () = own => continue,
            _ = of_schedules.changed() => continue,
            _ = of_repositories.changed() => continue,
        };
        match act {
            Act::Status(new) => {
                super::status::write(context, task, &new).await?;
                for (warns, reason, message) in transitions(&status, &new) {
                    events::tell(context, task, warns, &reason, &message).await;
                }
                let written = task.read::<kinds::Repository>()?.and_then(|(_, at)| at.status);
                if written.as_ref() != Some(&*new) {
                    tokio::time::sleep(STATUS_AGAIN).await;
                }
            }
            Act::List { due, finished, place } => {
                let generation = repository.metadata.generation.unwrap_or_default();
                let done = follow(context, &meta, &place, &finished, (due, generation)).await;
                listed =
                    Some(done.unwrap_or_else(|why| failed(refused(why), due, clock(), generation)));
            }
        }
    }
}

fn time(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

/// All BackupSchedules, as they were last told. One that this program cannot read asks for nothing.
fn schedules(context: &Context) -> Vec<ScheduleOf> {
    let one = |raw: &Value| {
        let meta = Meta::of(raw);
        let spec = serde_json::from_value(raw["spec"].clone()).ok()?;
        Some(ScheduleOf { namespace: meta.namespace?, name: meta.name, spec })
    };
    context.objects.all(Kind::BackupSchedule).iter().filter_map(|raw| one(raw)).collect()
}

/// Has the objects follow the list in the log of a pod.
async fn follow(
    context: &Context,
    meta: &Meta,
    place: &Repository,
    finished: &Finished,
    (due, generation): (DateTime<Utc>, i64),
) -> Result<Ended, Failure> {
    let api = &context.api;
    let log = api.log(&finished.pod).await?;
    let list = read(&log.text, log.cut.is_some(), &finished.summary);
    let of = |kind, labels: &str| Selection::labelled(kind, &place.namespace, labels);
    let (objects, _) = api.list(&of(Kind::VolumeBackup, "")).await?;
    // The id of a backup is the uid of its record, that of a group with the number of a member.
    let (records, _) = api.list(&of(Kind::ConfigMap, &format!("{ROLE}=backup"))).await?;
    let made: BTreeSet<String> = records.iter().map(|record| Meta::of(record).uid).collect();
    let namespaces = match api.list(&Selection::all(Kind::Namespace)).await {
        Ok((all, _)) => Some(all.iter().map(Meta::of).map(|meta| (meta.name, meta.uid)).collect()),
        Err(ApiError::Refused(_)) => None,
        Err(why) => return Err(why.into()),
    };
    let present = Present { objects, made, namespaces };
    let changes = changes(meta, place, &list, &present);
    make(api, &changes.steps).await?;
    Ok(ended(&list, &changes, (due, (context.clock)()), generation))
}

/// Does what makes the objects follow the list.
///
/// # Errors
///
/// The API's, but for conflicts: another controller was quicker, the name is somebody's, or the object
/// is another one now. All of it stays as it is.
async fn make(api: &Api, steps: &[Step]) -> Result<(), Failure> {
    let mut changed = BTreeSet::new();
    for step in steps {
        let done = match step {
            Step::Create(object) => api.create(object).await.map(drop),
            Step::Patch { key, uid, version, patch } => {
                let done = api.patch(key, (uid, Some(version)), patch).await;
                if matches!(done, Err(ApiError::Conflict(_))) {
                    changed.insert(key);
                }
                match done {
                    Err(ApiError::Absent(_)) => Ok(()),
                    done => done.map(drop),
                }
            }
            Step::Delete { key, .. } if changed.contains(key) => Ok(()),
            Step::Delete { key, uid } => api.delete(key, uid).await.map(drop),
            Step::Fill(..) | Step::DeleteVersion { .. } => Ok(()),
        };
        match done {
            Ok(()) | Err(ApiError::Conflict(_)) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}
