//! A snapshot that is taken while the application holds still.
//!
//! The lock lives in one process: the driver that holds a session with the application's pod. So an
//! attempt belongs to one driver, which the Lease names. Its snapshot counts only once that driver
//! has written that the lock lived until the snapshot's `creationTime` was observed. Any other
//! driver waits for that; if it does not come within the lock's own time, the snapshot is deleted
//! and the next attempt is its own. So no snapshot of an attempt that was cut off is ever adopted.

use super::backup::{await_snapshot, refused, remove_snapshot, take};
use super::names::{self, ATTEMPT, DRIVER, QUIESCED};
use super::object::{Key, Query};
use super::observed::Object;
use super::parts::Context;
use super::request::{Backup, Hook, OnTimeout};
use super::room::{self, Room};
use super::step::{Failure, LockState, Next, Planned, Step, Stop, Wait, also_on, exit};
use super::views::{Lease, Snapshot};
use serde_json::json;
use std::time::Duration;

/// Attempts of one operation, each with its own lock.
pub(super) const ATTEMPTS_MAX: u32 = 3;
/// An attempt whose lock is not asked for so soon after the Lease names it is not made: others count
/// the lock's time from then.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);
/// A lock that was asked for in time has begun by then, and the driver that is gone has let go of
/// it when its own time is over.
const MARGIN: Duration = Duration::from_secs(60);

/// The number of the attempt whose snapshot is meant.
pub(super) fn attempt(context: &Context<'_>, backup: &Backup) -> Planned<u32> {
    if backup.hook.is_none() {
        return Ok(1);
    }
    for attempt in (1..=ATTEMPTS_MAX).rev() {
        let found = context.seen.find::<Snapshot>(&context.anchor.snapshot(attempt))?;
        if found.is_some_and(|found| {
            context.is_ours(&found.meta) && found.meta.annotations.contains_key(QUIESCED)
        }) {
            return Ok(attempt);
        }
    }
    Ok(1)
}

/// The snapshot, with nothing locked any more.
pub(super) fn snapshot(
    context: &Context<'_>,
    backup: &Backup,
    hook: &Hook,
) -> Planned<Object<Snapshot>> {
    let lease_key = names::source_lease(&backup.source.namespace, &backup.source.uid);
    let Some(lease) = context.seen.find::<Lease>(&lease_key)? else {
        return Err(Stop::Next(Next::Read(lease_key.into())));
    };
    let number = lease.meta.annotations.get(ATTEMPT).and_then(|text| text.parse().ok());
    let number: u32 = number.unwrap_or(0);
    let driver = lease.meta.annotations.get(DRIVER).map(String::as_str);
    let ours = driver == Some(context.seen.driver());
    if number == 0 {
        return begin(context, &lease, 1);
    }
    let key = context.anchor.snapshot(number);
    let found = match ours {
        true => context.find_ours::<Snapshot>(&key)?,
        // It may be going away already.
        false => context.seen.find(&key)?.filter(|found| context.is_ours(&found.meta)),
    };
    if let Some(found) = &found
        && found.meta.annotations.contains_key(QUIESCED)
        && found.meta.deletion_timestamp.is_none()
    {
        return Ok(found.clone());
    }
    let lock = context.seen.lock().filter(|lock| ours && lock.attempt == number);
    let is_free = lock.is_some_and(|lock| lock.state != LockState::Held);
    if is_free
        && found.is_none()
        && let Some(why) = refused(context, backup, number)
    {
        return match room::for_attempt(context, backup, &lease, why)? {
            Room::Made => next_attempt(context, &lease, number),
            Room::None => Err(why.clone().into()),
        };
    }
    match lock.map(|lock| &lock.state) {
        Some(LockState::Held) => under_lock(context, backup, hook, number, found),
        Some(LockState::Released(taken)) => match &found {
            // Its moment was seen while the lock held, not after.
            Some(found) if taken.as_ref() == Some(&found.meta.uid) => mark(found, "true"),
            _ => Err(too_late(hook, &key, "the lock's time was over").into()),
        },
        Some(LockState::Broken(why)) => match (&found, hook.on_timeout) {
            (Some(found), OnTimeout::Continue) => match found.body.status.creation_time {
                Some(_) => mark(found, why),
                None => await_snapshot(context, found, "taken", Vec::new()),
            },
            _ => Err(too_late(hook, &key, why).into()),
        },
        None if ours && context.seen.unchanged(&lease.key.clone().into()) > BEGIN_WITHIN => {
            next_attempt(context, &lease, number)
        }
        None if ours => {
            let hook = Box::new(hook.clone());
            Err(Stop::Next(Next::Quiesce(hook, number, lease.key.clone())))
        }
        None => of_another(context, hook, &lease, &key, number),
    }
}

/// From the lock to the observed moment of the snapshot.
fn under_lock(
    context: &Context<'_>,
    backup: &Backup,
    hook: &Hook,
    number: u32,
    found: Option<Object<Snapshot>>,
) -> Planned<Object<Snapshot>> {
    let snapshot = match found {
        Some(found) => found,
        // It looks like a failure, and the lock is let go of for that.
        None if refused(context, backup, number).is_some() && !context.seen.is_fresh() => {
            return Err(Stop::Next(Next::Refresh));
        }
        None => take(context, backup, number, false)?,
    };
    also_on(room::in_the_storage(context, backup, &snapshot), snapshot.key.clone().into())?;
    let limit = Duration::from_secs(hook.timeout_seconds);
    let waited = context.seen.age(&snapshot.meta.uid);
    let taken = snapshot.body.status.creation_time.is_some();
    if taken || waited >= limit {
        return Err(Stop::Next(Next::Resume(taken.then(|| snapshot.meta.uid.clone()))));
    }
    let why = format!("{} is not taken yet, and {} holds still", snapshot.key, hook.pod);
    Err(Wait { on: vec![snapshot.key.into()], why, time: limit - waited, pod: None }.into())
}

fn mark<T>(snapshot: &Object<Snapshot>, text: &str) -> Planned<T> {
    let patch = json!({ "metadata": { "annotations": { QUIESCED: text } } });
    Err(Step::change(&snapshot.key, &snapshot.meta, patch).into())
}

fn too_late(hook: &Hook, snapshot: &Key, why: &str) -> Failure {
    Failure::new(
        exit::RETRYABLE,
        format!(
            "pod/{} in namespace {} did not hold still until {snapshot} was taken: {why}",
            hook.pod, hook.namespace
        ),
    )
    .hint(
        "mend the hook, give it longer by --hook-timeout, or take what there is by --hook-on-timeout continue",
    )
}

/// Another driver's attempt: its end is waited for, as long as its lock can live.
fn of_another<T>(
    context: &Context<'_>,
    hook: &Hook,
    lease: &Object<Lease>,
    key: &Key,
    number: u32,
) -> Planned<T> {
    let limit = Duration::from_secs(hook.timeout_seconds) + MARGIN;
    let query = Query::One(lease.key.clone());
    let waited = context.seen.unchanged(&query);
    if waited < limit {
        let why = format!("another command takes {key} meanwhile");
        let time = limit - waited;
        return Err(Wait { on: vec![query, key.clone().into()], why, time, pod: None }.into());
    }
    context.seen.confirm(&query)?;
    context.seen.confirm(&key.clone().into())?;
    next_attempt(context, lease, number)
}

fn next_attempt<T>(context: &Context<'_>, lease: &Object<Lease>, number: u32) -> Planned<T> {
    if number >= ATTEMPTS_MAX {
        return Err(Failure::new(
            exit::RETRYABLE,
            format!("{ATTEMPTS_MAX} attempts to take a snapshot under a lock were cut off"),
        )
        .hint("run the same command again")
        .into());
    }
    remove_snapshot(context, number)?;
    begin(context, lease, number + 1)
}

fn begin<T>(context: &Context<'_>, lease: &Object<Lease>, number: u32) -> Planned<T> {
    // One of that number without a Lease that says so was not taken under a lock of ours.
    remove_snapshot(context, number)?;
    let patch = json!({ "metadata": { "annotations": {
        ATTEMPT: number.to_string(),
        DRIVER: context.seen.driver(),
    } } });
    Err(Step::change(&lease.key, &lease.meta, patch).into())
}
