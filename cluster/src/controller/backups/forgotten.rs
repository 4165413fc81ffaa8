//! A VolumeBackup goes: the stored backup is forgotten first, if that was asked for.
//!
//! What cannot be forgotten any more holds up no deletion: where the Repository is gone, or is going
//! with its namespace, an event says that the stored backup stays.

use super::super::places::place;
use super::super::task::{Pause, Task};
use super::super::{Context, events, marks};
use crate::api::ApiError;
use crate::engine::{self, Failure, Key, Kind, Meta, OPERATION, Repository, exit};
use crate::kinds::{DeletionPolicy, VolumeBackup};
use crate::ops::lookup;

/// The object is being deleted and nothing runs for it: the stored backup is forgotten if that was
/// asked for, and the object may go.
pub(super) async fn gone(
    context: &Context,
    task: &Task,
    backup: &VolumeBackup,
    stored: &[(String, String)],
) -> Result<Pause, Failure> {
    let has_mark = task
        .object()
        .is_some_and(|at| Meta::of(&at).finalizers.iter().any(|name| name == OPERATION));
    if !has_mark {
        return Ok(Pause::Changed);
    }
    if backup.spec.deletion_policy == DeletionPolicy::Forget && !stored.is_empty() {
        let found = reached(context, task, backup).await?;
        for (volume, id) in stored {
            match &found {
                Ok(place) => forget(context, task, place, &engine::stored_name(volume, id)).await?,
                Err(why) => {
                    let what = format!("backup {id} of {volume} stays: {why}");
                    tracing::info!("{}: {what}", task.key);
                    events::tell(context, task, true, "NotForgotten", &what).await;
                }
            }
        }
    }
    marks::take_off(context, task, OPERATION).await?;
    Ok(Pause::Changed)
}

/// The Repository that forgets, or why none does.
async fn reached(
    context: &Context,
    task: &Task,
    backup: &VolumeBackup,
) -> Result<Result<Repository, String>, Failure> {
    let namespace = task.key.namespace.as_deref().unwrap_or_default();
    let place = match place(context, &backup.spec.repository_ref, namespace) {
        Ok((place, _)) => place,
        Err(why) if matches!(why.exit_code, exit::USAGE | exit::DENIED) => {
            return Ok(Err(why.to_string()));
        }
        Err(why) => return Err(why),
    };
    // Whoever names a backup of somebody else in a Repository that is elsewhere forgets nothing.
    if backup.spec.source.recorded.is_some() && place.namespace != namespace {
        let why = "only the namespace of its Repository forgets what others made";
        return Ok(Err(why.into()));
    }
    let goes = match context.api.get(&Key::wide(Kind::Namespace, &place.namespace)).await {
        Ok(found) => found.is_none_or(|found| Meta::of(&found).deletion_timestamp.is_some()),
        // Who may not ask finds out by the Job.
        Err(ApiError::Refused(_)) => false,
        Err(why) => return Err(why.into()),
    };
    if goes {
        // No Job begins there any more.
        return Ok(Err(format!("namespace {} goes, and with it its key", place.namespace)));
    }
    Ok(Ok(place))
}

/// Has the repository forget a backup, by its full name.
async fn forget(
    context: &Context,
    task: &Task,
    place: &Repository,
    backup: &str,
) -> Result<(), Failure> {
    match lookup::ask(&context.api, place, &["forget", backup], |_| {}).await {
        Ok(_) => Ok(()),
        // This very backup is not there, so it is forgotten.
        Err(why) if why.exit_code == exit::USAGE => {
            tracing::info!("{}: {why}", task.key);
            Ok(())
        }
        Err(why) => Err(why),
    }
}
