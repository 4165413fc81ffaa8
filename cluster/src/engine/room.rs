//! Room for a new snapshot, where a quota or the storage has none: the oldest one that stayed for this
//! claim, and that is no base, goes first.
//!
//! One goes for each refusal. Which one, and for which refusal, is written down before: for a quota on
//! the Lease, for the storage on the new snapshot. So a driver that begins anew, or a second one,
//! removes no other.

use super::names::{self, ATTEMPT, ROOM};
use super::object::{Key, Kind};
use super::observed::{Meta, Object};
use super::parts::Context;
use super::request::Backup;
use super::retained::{self, in_order, is_base, made_here};
use super::step::{Failure, Next, Planned, Step, Stop, Wait};
use super::views::{Lease, Snapshot};
use serde_json::json;
use std::time::Duration;

/// The API server has no other sign of a quota that is at its end
/// (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).
const OVER_QUOTA: &str = "exceeded quota";
/// As the sidecar of a driver quotes the code that CSI has for a storage without room.
const NO_ROOM: &str = "code = ResourceExhausted";
/// A quota counts a snapshot that is gone for some seconds more.
const QUOTA_LAG: Duration = Duration::from_secs(20);
/// What was refused is tried again after so long.
const AGAIN: Duration = Duration::from_secs(3);

/// Whether there is room now that was not there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// An older snapshot went for it.
    Made,
    /// There is none that could go, or it is not about that.
    None,
}

/// A snapshot without a lock was refused: it is asked for again once there is room.
pub(super) fn and_again(
    context: &Context<'_>,
    backup: &Backup,
    key: &Key,
    why: &Failure,
) -> Planned<()> {
    if !why.message.contains(OVER_QUOTA) {
        return Ok(());
    }
    let Some(lease) = lease(context, backup)? else { return Ok(()) };
    let lag = context.seen.unchanged(&lease.key.clone().into());
    // For each round another one goes, once the quota has had its time.
    let before = noted(&lease.meta).filter(|before| before.refusal == names::FIRST);
    let is_over = match before {
        Some(before) => going(context, backup, &before)? && lag >= QUOTA_LAG,
        None => true,
    };
    if is_over && another(context, backup, names::FIRST, &lease.key, &lease.meta)? == Room::None {
        return Ok(());
    }
    let told = context.seen.unmade(key).map_or(AGAIN, |(_, told)| told);
    if told >= AGAIN {
        return Err(Stop::Next(Next::Refresh));
    }
    let why = format!("{key} cannot be made yet: {}", why.message);
    Err(Wait::new(Vec::new(), why, AGAIN - told).into())
}

/// A snapshot of an attempt under a lock was refused. The lock is let go of by now, and the next
/// attempt is for another name.
pub(super) fn for_attempt(
    context: &Context<'_>,
    backup: &Backup,
    lease: &Object<Lease>,
    why: &Failure,
) -> Planned<Room> {
    if !why.message.contains(OVER_QUOTA) {
        return Ok(Room::None);
    }
    let attempt = lease.meta.annotations.get(ATTEMPT).map_or("", String::as_str);
    match noted(&lease.meta).filter(|before| before.refusal == attempt) {
        Some(before) => {
            going(context, backup, &before)?;
            let lag = context.seen.unchanged(&lease.key.clone().into());
            if lag < QUOTA_LAG {
                let why = format!("room is made: {}", why.message);
                let time = QUOTA_LAG - lag;
                return Err(Wait::new(Vec::new(), why, time).into());
            }
            Ok(Room::Made)
        }
        None => another(context, backup, attempt, &lease.key, &lease.meta),
    }
}

/// The driver says that the storage has no room, and will try again by itself.
pub(super) fn in_the_storage(
    context: &Context<'_>,
    backup: &Backup,
    snapshot: &Object<Snapshot>,
) -> Planned<()> {
    let Some(error) = &snapshot.body.status.error else { return Ok(()) };
    if snapshot.body.status.creation_time.is_some()
        || !error.message.as_ref().is_some_and(|text| text.contains(NO_ROOM))
    {
        return Ok(());
    }
    // The moment of the last try names it.
    let refusal = error.time.as_deref().filter(|time| !time.is_empty() && !time.contains(' '));
    let refusal = refusal.unwrap_or("once");
    match noted(&snapshot.meta) {
        Some(before) if before.refusal == refusal => going(context, backup, &before).map(drop),
        Some(before) => {
            going(context, backup, &before)?;
            another(context, backup, refusal, &snapshot.key, &snapshot.meta).map(drop)
        }
        None => another(context, backup, refusal, &snapshot.key, &snapshot.meta).map(drop),
    }
}

fn lease(context: &Context<'_>, backup: &Backup) -> Planned<Option<Object<Lease>>> {
    let key = names::source_lease(&backup.source.namespace, &backup.source.uid);
    let found = context.seen.find::<Lease>(&key)?;
    Ok(found
        .filter(|lease| lease.body.spec.holder_identity.as_deref() == Some(&context.anchor.uid)))
}

/// Which snapshot goes for which refusal.
#[derive(Debug)]
struct Noted {
    refusal: String,
    name: String,
    uid: String,
}

fn noted(meta: &Meta) -> Option<Noted> {
    let words: Vec<&str> = meta.annotations.get(ROOM)?.split(' ').collect();
    match words.as_slice() {
        [refusal, name, uid] => Some(Noted {
            refusal: (*refusal).to_owned(),
            name: (*name).to_owned(),
            uid: (*uid).to_owned(),
        }),
        _ => None,
    }
}

/// Writes down that the oldest goes for this refusal, if there is one.
fn another(
    context: &Context<'_>,
    backup: &Backup,
    refusal: &str,
    on: &Key,
    meta: &Meta,
) -> Planned<Room> {
    let mut all = context.seen.list::<Snapshot>(&retained::retained(backup))?;
    // A list may still have one that has lost the label since.
    all.retain(|at| {
        made_here(at)
            && at.meta.labels.contains_key(names::RETAINED)
            && !is_base(&at.meta)
            && at.meta.deletion_timestamp.is_none()
    });
    in_order(&mut all);
    let Some(oldest) = all.first() else { return Ok(Room::None) };
    let text = format!("{refusal} {} {}", oldest.key.name, oldest.meta.uid);
    let patch = json!({ "metadata": { "annotations": { ROOM: text } } });
    Err(Step::change(on, meta, patch).into())
}

/// Has the snapshot go that was written down, and waits until it is gone. What was written by somebody
/// else leads to nothing that did not stay for this claim.
fn going(context: &Context<'_>, backup: &Backup, noted: &Noted) -> Planned<bool> {
    let key = Key::new(Kind::VolumeSnapshot, &backup.source.namespace, &noted.name);
    let found = context.seen.find::<Snapshot>(&key)?.filter(|found| found.meta.uid == noted.uid);
    let Some(found) = found else { return Ok(true) };
    if found.meta.deletion_timestamp.is_some() {
        return context.gone(&key, &found.meta);
    }
    let labels = &found.meta.labels;
    let is_of_claim = labels.get(names::SOURCE) == Some(&backup.source.uid)
        && labels.contains_key(names::RETAINED)
        && made_here(&found)
        && !is_base(&found.meta);
    match is_of_claim {
        true => retained::remove(context, &found).map(|()| true),
        false => Ok(true),
    }
}
