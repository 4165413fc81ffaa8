//! A DataUpload goes: its stored backup is forgotten, if Velero has forgotten the backup that it is
//! a part of.
//!
//! An object may go from the cluster alone: with its owner, by hand, or with the whole cluster. So
//! the object store is asked. Velero deletes a backup there before it deletes it in the cluster; as
//! long as there is anything of it in the location, the stored backup stays. Where nobody can tell,
//! it stays too.

use super::model::UploadSpec;
use super::{backup_of, repository};
use crate::controller::attempts::Attempted;
use crate::controller::task::{Pause, Task};
use crate::controller::turns::Limited;
use crate::controller::{Context, events, marks};
use crate::engine::{self, Failure, Key, Kind, Meta, OPERATION, Request, exit};
use crate::ops::lookup;
use crate::ops::repository::velero as locations;
use serde_json::Value;

/// Most Jobs at once that forget.
const AT_ONCE: usize = 2;

/// Nothing runs for it. The object may go once nothing is left to be forgotten.
pub(super) async fn gone(
    context: &Context,
    task: &Task,
    meta: &Meta,
    spec: &UploadSpec,
    ended: Option<&Attempted>,
) -> Result<Pause, Failure> {
    if !meta.finalizers.iter().any(|name| name == OPERATION) {
        return Ok(Pause::Changed);
    }
    let made = ended.filter(|ended| ended.outcome.exit_code == 0);
    let made = made.and_then(|ended| match &ended.request {
        Some(Request::Backup(request)) => Some((ended, request)),
        _ => None,
    });
    let has_id = task.object().is_some_and(|object| object["status"]["snapshotID"].is_string());
    match made {
        Some((made, request)) => {
            let origin = request.given.as_ref().and_then(|given| given.origin.as_deref());
            let stored = engine::stored_name(&request.volume, &made.uid);
            match settled(context, task, meta, spec, (&stored, origin)).await? {
                Settled::Forgotten => {}
                Settled::Stays(why) => stays(context, task, &made.uid, &why).await,
            }
        }
        None if has_id => stays(context, task, "of this object", "its record is gone").await,
        None => {}
    }
    marks::take_off(context, task, OPERATION).await?;
    Ok(Pause::Changed)
}

/// What became of a stored backup.
enum Settled {
    Forgotten,
    Stays(String),
}

async fn stays(context: &Context, task: &Task, id: &str, why: &str) {
    let what = format!("stored backup {id} was not forgotten: {why}");
    tracing::info!("{}: {what}", task.key);
    events::tell(context, task, true, "NotForgotten", &what).await;
}

async fn settled(
    context: &Context,
    task: &Task,
    meta: &Meta,
    spec: &UploadSpec,
    (stored, origin): (&str, Option<&str>),
) -> Result<Settled, Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    // No Job begins there any more.
    let found = context.api.get(&Key::wide(Kind::Namespace, namespace)).await?;
    if found.is_none_or(|found| Meta::of(&found).deletion_timestamp.is_some()) {
        return Ok(Settled::Stays(format!("namespace {namespace} goes, and with it its key")));
    }
    let Some(backup) = backup_of(task, meta) else {
        return Ok(Settled::Stays("nobody knows which backup of Velero's it was".into()));
    };
    let name = &spec.backup_storage_location;
    let location = match locations::location(&context.api, namespace, name).await {
        Ok(location) => location,
        Err(why) if why.exit_code == exit::USAGE => return Ok(Settled::Stays(why.to_string())),
        Err(why) => return Err(why),
    };
    let place = match repository(context, task, name).await {
        Ok((place, _)) => place,
        Err(why) if why.exit_code == exit::USAGE => return Ok(Settled::Stays(why.to_string())),
        Err(why) => return Err(why),
    };
    let now = location.place_of(&backup)?;
    if origin != Some(now.as_str()) {
        let then = origin.unwrap_or("a place that nobody noted");
        return Ok(Settled::Stays(format!(
            "Velero kept its backup in {then}, and location {name} is another one now: {now}"
        )));
    }
    if !location.is_reached_by(&place.env) {
        return Ok(Settled::Stays(format!(
            "Repository {} is in another store than location {name}, which its Jobs cannot look into",
            place.name
        )));
    }
    let folder = location.folder_of(&backup)?;
    let of = format!("velero forget {}/{}", place.namespace, place.name);
    let one = Limited { text: of.clone(), name: of, most: AT_ONCE, is_claim: false };
    let _turn = context.turns.take((&task.key, vec![one]), |_| {}).await;
    forget(context, &place, stored, &backup, &folder).await
}

/// An upload that was cancelled, or failed, may have stored its backup all the same, a moment before.
/// Velero has no name of it, so nobody would ever ask for it, nor forget it.
pub(super) async fn unfinished(
    context: &Context,
    task: &Task,
    spec: &UploadSpec,
    ended: &Attempted,
) -> Result<(), Failure> {
    let Some(Request::Backup(request)) = &ended.request else { return Ok(()) };
    if ended.outcome.exit_code == 0 {
        return Ok(());
    }
    let stored = engine::stored_name(&request.volume, &ended.uid);
    let done = match repository(context, task, &spec.backup_storage_location).await {
        Ok((place, _)) => {
            let of = format!("velero forget {}/{}", place.namespace, place.name);
            let one = Limited { text: of.clone(), name: of, most: AT_ONCE, is_claim: false };
            let _turn = context.turns.take((&task.key, vec![one]), |_| {}).await;
            lookup::ask(&context.api, &place, &["forget", &stored], |_| {}).await.map(drop)
        }
        Err(why) => Err(why),
    };
    match done {
        Ok(()) => tracing::info!("{}: backup {} was stored, and is forgotten", task.key, ended.uid),
        Err(why) if why.exit_code == exit::RETRYABLE => return Err(why),
        // There is none of this id, which is as it should be; or nobody can tell.
        Err(why) => tracing::info!("{}: {why}", task.key),
    }
    Ok(())
}

async fn forget(
    context: &Context,
    place: &engine::Repository,
    stored: &str,
    backup: &str,
    folder: &str,
) -> Result<Settled, Failure> {
    let unless = format!("--unless-exists={folder}");
    match lookup::ask(&context.api, place, &["forget", stored, &unless], |_| {}).await {
        Ok(lines) if lines.iter().any(is_kept) => Ok(Settled::Stays(format!(
            "Velero's backup {backup} is still in its location ({folder}); velero backup delete {backup} deletes it there"
        ))),
        Ok(_) => Ok(Settled::Forgotten),
        // There is none of this id, the Repository's image does not know the flag, or its credentials
        // are not for the location. None of it passes.
        Err(why) if matches!(why.exit_code, exit::USAGE | exit::DENIED) => {
            Ok(Settled::Stays(why.to_string()))
        }
        Err(why) => Err(why),
    }
}

fn is_kept(line: &Value) -> bool {
    line["kept"].as_array().is_some_and(|kept| !kept.is_empty()) || line["kept"].is_string()
}
