//! Snapshots that are taken while their applications hold still.
//!
//! The lock lives in one process: the driver that holds a session with the application's pod. So an
//! attempt belongs to one driver, which the Lease names. Its snapshots count only once that driver
//! has written that the lock lived until the `creationTime` of all of them was observed. Any other
//! driver waits for that; if it does not come within the lock's own time, the snapshot is deleted
//! and the next attempt is its own. So no snapshot of an attempt that was cut off is ever adopted.

use super::backup::{self, await_snapshot};
use super::group;
use super::names::{self, ATTEMPT, Anchor, DRIVER, QUIESCED};
use super::object::{Key, Query};
use super::observed::{Meta, Object};
use super::parts::Context;
use super::request::{Backup, Group, Hook, OnTimeout};
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

/// What is taken in one attempt: under one lock, if there is one.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// The Lease that says whose attempt it is.
    lease: Key,
    hooks: &'a [Hook],
    of: CutOf<'a>,
}

#[derive(Debug)]
enum CutOf<'a> {
    /// A snapshot of each claim.
    Claims(Vec<(Anchor, &'a Backup)>),
    /// One of all of them.
    Group(&'a Anchor, &'a Group, &'a str),
}

impl<'a> Cut<'a> {
    /// The snapshot of one claim.
    pub(super) fn of_one(anchor: &Anchor, backup: &'a Backup) -> Self {
        Self {
            lease: names::source_lease(&backup.source.namespace, &backup.source.uid),
            hooks: backup.hook.as_slice(),
            of: CutOf::Claims(vec![(anchor.clone(), backup)]),
        }
    }

    /// Snapshots of the claims of a group: one of all of them, or one of each.
    pub(super) fn of_group(anchor: &'a Anchor, group: &'a Group) -> Self {
        let first = group.members.first().map_or("", |member| &member.source.uid);
        let of = match &group.class {
            Some(class) => CutOf::Group(anchor, group, class),
            None => CutOf::Claims(group::members(anchor, group).collect()),
        };
        Self { lease: names::source_lease(&group.namespace, first), hooks: &group.hooks, of }
    }

    /// What an attempt makes.
    pub(super) fn keys(&self, attempt: u32) -> Vec<Key> {
        match &self.of {
            CutOf::Claims(all) => all
                .iter()
                .map(|(anchor, backup)| backup::snapshot_key(anchor, backup, attempt))
                .collect(),
            CutOf::Group(anchor, ..) => vec![anchor.group(attempt)],
        }
    }

    /// Makes the one of this number.
    fn make(&self, number: usize, attempt: u32) -> Step {
        match &self.of {
            CutOf::Claims(all) => {
                let (anchor, backup) = &all[number];
                backup::make(anchor, backup, &anchor.snapshot(attempt))
            }
            CutOf::Group(anchor, group, class) => {
                group::make(anchor, group, class, &anchor.group(attempt))
            }
        }
    }

    /// The claim that the one of this number is of, if it is of one.
    fn backup(&self, number: usize) -> Option<&'a Backup> {
        match &self.of {
            CutOf::Claims(all) => all.get(number).map(|(_, backup)| *backup),
            CutOf::Group(..) => None,
        }
    }

    /// Removes what an attempt made, with that of the storage.
    pub(super) fn remove(&self, context: &Context<'_>, attempt: u32) -> Planned<()> {
        for key in self.keys(attempt) {
            match &self.of {
                CutOf::Claims(_) => backup::remove_snapshot(context, &key)?,
                CutOf::Group(..) => group::remove_own(context, &key)?,
            }
        }
        Ok(())
    }

    /// The most attempts that there can be.
    pub(super) fn attempts(&self) -> u32 {
        if self.hooks.is_empty() { 1 } else { ATTEMPTS_MAX }
    }

    fn limit(&self) -> Duration {
        let seconds = self.hooks.iter().map(|hook| hook.timeout_seconds).max();
        Duration::from_secs(seconds.unwrap_or_default())
    }

    /// Those who hold still, for people.
    fn pods(&self) -> String {
        let names = self.hooks.iter().map(|hook| format!("pod/{}", hook.pod));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn is_marked(meta: &Meta) -> bool {
    meta.annotations.contains_key(QUIESCED)
}

/// The number of the attempt whose snapshots are meant.
pub(super) fn attempt(context: &Context<'_>, cut: &Cut<'_>) -> Planned<u32> {
    for attempt in (2..=cut.attempts()).rev() {
        let mut all = true;
        for key in cut.keys(attempt) {
            let found = context.seen.find::<Snapshot>(&key)?;
            all &=
                found.is_some_and(|found| context.is_ours(&found.meta) && is_marked(&found.meta));
        }
        if all {
            return Ok(attempt);
        }
    }
    Ok(1)
}

/// The snapshots, with nothing locked any more.
pub(super) fn snapshots(context: &Context<'_>, cut: &Cut<'_>) -> Planned<Vec<Object<Snapshot>>> {
    if !cut.hooks.is_empty() {
        return under_locks(context, cut);
    }
    let mut all = Vec::new();
    for (number, key) in cut.keys(1).iter().enumerate() {
        let Some(found) = context.find_ours(key)? else {
            let step = cut.make(number, 1);
            if let Some(why) = context.seen.refusal(&step)
                && let Some(backup) = cut.backup(number)
            {
                room::and_again(context, backup, key, why)?;
            }
            return Err(step.into());
        };
        all.push(found);
    }
    Ok(all)
}

fn under_locks(context: &Context<'_>, cut: &Cut<'_>) -> Planned<Vec<Object<Snapshot>>> {
    let Some(lease) = context.seen.find::<Lease>(&cut.lease)? else {
        return Err(Stop::Next(Next::Read(cut.lease.clone().into())));
    };
    let number = lease.meta.annotations.get(ATTEMPT).and_then(|text| text.parse().ok());
    let number: u32 = number.unwrap_or(0);
    let driver = lease.meta.annotations.get(DRIVER).map(String::as_str);
    let ours = driver == Some(context.seen.driver());
    if number == 0 {
        return begin(context, cut, &lease, 1);
    }
    let keys = cut.keys(number);
    let mut found: Vec<Option<Object<Snapshot>>> = Vec::new();
    for key in &keys {
        found.push(match ours {
            true => context.find_ours::<Snapshot>(key)?,
            // It may be going away already.
            false => context.seen.find(key)?.filter(|found| context.is_ours(&found.meta)),
        });
    }
    let all: Option<Vec<Object<Snapshot>>> = found.iter().cloned().collect();
    let is_good =
        |at: &Object<Snapshot>| is_marked(&at.meta) && at.meta.deletion_timestamp.is_none();
    if let Some(all) = all.as_ref().filter(|all| all.iter().all(is_good)) {
        return Ok(all.clone());
    }
    let lock = context.seen.lock().filter(|lock| ours && lock.attempt == number);
    if lock.is_some_and(|lock| lock.state != LockState::Held) {
        room_for(context, cut, &lease, number, &found)?;
    }
    match lock.map(|lock| &lock.state) {
        Some(LockState::Held) => under_lock(context, cut, number, found),
        Some(LockState::Released(taken)) => match &all {
            // Their moment was seen while the lock held, not after.
            Some(all) if taken.as_ref() == Some(&uids(all)) => mark(all, "true"),
            _ => Err(too_late(cut, &keys, "the lock's time was over").into()),
        },
        Some(LockState::Broken(why)) => match (&all, cut.hooks[0].on_timeout) {
            (Some(all), OnTimeout::Continue) => {
                let untaken = all.iter().find(|at| at.body.status.creation_time.is_none());
                match untaken {
                    None => mark(all, why),
                    Some(found) => await_snapshot(context, found, "taken", Vec::new()),
                }
            }
            _ => Err(too_late(cut, &keys, why).into()),
        },
        None if ours && context.seen.unchanged(&lease.key.clone().into()) > BEGIN_WITHIN => {
            next_attempt(context, cut, &lease, number)
        }
        None if ours => {
            Err(Stop::Next(Next::Quiesce(cut.hooks.to_vec(), number, lease.key.clone())))
        }
        None => of_another(context, cut, &lease, number),
    }
}

/// One of an attempt whose lock is let go of was refused: the next attempt has room for it, or there
/// is none.
fn room_for(
    context: &Context<'_>,
    cut: &Cut<'_>,
    lease: &Object<Lease>,
    number: u32,
    found: &[Option<Object<Snapshot>>],
) -> Planned<()> {
    for (at, found) in found.iter().enumerate() {
        let refusal = context.seen.refusal(&cut.make(at, number));
        let Some(why) = refusal.filter(|_| found.is_none()) else { continue };
        let room = match cut.backup(at) {
            Some(backup) => room::for_attempt(context, backup, lease, why)?,
            None => Room::None,
        };
        return match room {
            Room::Made => next_attempt(context, cut, lease, number),
            Room::None => Err(why.clone().into()),
        };
    }
    Ok(())
}

fn uids(all: &[Object<Snapshot>]) -> String {
    all.iter().map(|at| at.meta.uid.as_str()).collect::<Vec<_>>().join(" ")
}

/// From the lock to the observed moment of the snapshots.
fn under_lock<T>(
    context: &Context<'_>,
    cut: &Cut<'_>,
    number: u32,
    found: Vec<Option<Object<Snapshot>>>,
) -> Planned<T> {
    let mut all = Vec::new();
    for (at, found) in found.into_iter().enumerate() {
        match found {
            Some(found) => all.push(found),
            None => {
                let step = cut.make(at, number);
                // It looks like a failure, and the lock is let go of for that.
                if context.seen.refusal(&step).is_some() && !context.seen.is_fresh() {
                    return Err(Stop::Next(Next::Refresh));
                }
                return Err(step.into());
            }
        }
    }
    for (at, snapshot) in all.iter().enumerate() {
        if let Some(backup) = cut.backup(at) {
            let room = room::in_the_storage(context, backup, snapshot);
            also_on(room, snapshot.key.clone().into())?;
        }
    }
    let limit = cut.limit();
    let waited = all.iter().map(|at| context.seen.age(&at.meta.uid)).max().unwrap_or_default();
    let untaken: Vec<&Object<Snapshot>> =
        all.iter().filter(|at| at.body.status.creation_time.is_none()).collect();
    let Some(first) = untaken.first().filter(|_| waited < limit) else {
        return Err(Stop::Next(Next::Resume(untaken.is_empty().then(|| uids(&all)))));
    };
    let why = format!("{} is not taken yet, and {} holds still", first.key, cut.pods());
    let on = untaken.iter().map(|at| at.key.clone().into()).collect();
    Err(Wait::new(on, why, limit - waited).into())
}

/// Writes how it was, on each.
fn mark<T>(all: &[Object<Snapshot>], text: &str) -> Planned<T> {
    let patch = json!({ "metadata": { "annotations": { QUIESCED: text } } });
    // Of those that count already nothing is asked.
    let next = all.iter().find(|at| !is_marked(&at.meta)).unwrap_or(&all[0]);
    Err(Step::change(&next.key, &next.meta, patch).into())
}

fn too_late(cut: &Cut<'_>, snapshots: &[Key], why: &str) -> Failure {
    let namespace = cut.hooks.first().map_or("", |hook| &hook.namespace);
    let what = match snapshots {
        [one] => one.to_string(),
        many => format!("{} snapshots, the first of them {},", many.len(), many[0]),
    };
    Failure::new(
        exit::RETRYABLE,
        format!(
            "{} in namespace {namespace} did not hold still until {what} was taken: {why}",
            cut.pods()
        ),
    )
    .hint(
        "mend the hook, give it longer by --hook-timeout, or take what there is by --hook-on-timeout continue",
    )
}

/// Another driver's attempt: its end is waited for, as long as its lock can live.
fn of_another<T>(
    context: &Context<'_>,
    cut: &Cut<'_>,
    lease: &Object<Lease>,
    number: u32,
) -> Planned<T> {
    let limit = cut.limit() + MARGIN;
    let query = Query::One(lease.key.clone());
    let waited = context.seen.unchanged(&query);
    let keys = cut.keys(number);
    if waited < limit {
        let why = format!("another command takes {} meanwhile", keys[0]);
        let time = limit - waited;
        let on = std::iter::once(query).chain(keys.into_iter().map(Query::One)).collect();
        return Err(Wait::new(on, why, time).into());
    }
    context.seen.confirm(&query)?;
    keys.into_iter().try_for_each(|key| context.seen.confirm(&key.into()))?;
    next_attempt(context, cut, lease, number)
}

fn next_attempt<T>(
    context: &Context<'_>,
    cut: &Cut<'_>,
    lease: &Object<Lease>,
    number: u32,
) -> Planned<T> {
    if number >= ATTEMPTS_MAX {
        return Err(Failure::new(
            exit::RETRYABLE,
            format!("{ATTEMPTS_MAX} attempts to take a snapshot under a lock were cut off"),
        )
        .hint("run the same command again")
        .into());
    }
    cut.remove(context, number)?;
    begin(context, cut, lease, number + 1)
}

fn begin<T>(
    context: &Context<'_>,
    cut: &Cut<'_>,
    lease: &Object<Lease>,
    number: u32,
) -> Planned<T> {
    // One of that number without a Lease that says so was not taken under a lock of ours.
    cut.remove(context, number)?;
    let patch = json!({ "metadata": { "annotations": {
        ATTEMPT: number.to_string(),
        DRIVER: context.seen.driver(),
    } } });
    Err(Step::change(&lease.key, &lease.meta, patch).into())
}
