//! Snapshots that stay in the storage after their backup: one as the base of the next, and others by
//! count and age, for restores without the repository.
//!
//! A snapshot may be both, and goes only when neither needs it. Each step is decided by labels of the
//! snapshots alone. Only whoever holds the Lease of the claim removes older ones: a driver that is late
//! does not know the newest.

use super::backup::{remove_snapshot, snapshot_key};
use super::given::{self, is_given};
use super::names::{self, BASE_OF, OWNER, RETAINED, ROLE, SOURCE};
use super::object::{Key, Kind, Selection};
use super::observed::{Meta, Object};
use super::parts::Context;
use super::request::{Backup, Retain};
use super::step::{Planned, Step};
use super::views::{Content, Lease, Snapshot};
use chrono::{DateTime, Days, FixedOffset};
use serde_json::json;

pub(super) const BASE: &str = "base";
pub(super) const STAYS: &str = "retained";

fn role(meta: &Meta) -> &str {
    meta.labels.get(ROLE).map_or("", String::as_str)
}

/// Whether a snapshot has outlived its backup.
pub(super) fn has_stayed(meta: &Meta) -> bool {
    [BASE, STAYS].contains(&role(meta))
}

pub(super) fn is_base(meta: &Meta) -> bool {
    role(meta) == BASE
}

/// Snapshots that stayed as bases of this claim.
pub(super) fn bases(backup: &Backup) -> Selection {
    of_claim(backup, &format!("{ROLE}={BASE}"))
}

/// Snapshots of this claim that stay by count and age.
pub(super) fn retained(backup: &Backup) -> Selection {
    of_claim(backup, &format!("{RETAINED}=true"))
}

fn of_claim(backup: &Backup, labels: &str) -> Selection {
    let source = &backup.source;
    let labels = format!("{labels},{SOURCE}={}", source.uid);
    Selection::labelled(Kind::VolumeSnapshot, &source.namespace, labels)
}

/// Where the backup of a snapshot is.
pub(super) fn base_of(backup: &Backup) -> String {
    stored_in(&backup.volume, &backup.repository.url)
}

/// The same, of a volume and a repository.
pub(super) fn stored_in(volume: &str, url: &str) -> String {
    format!("{volume} in {url}")
}

/// Whether an operation of ours made the snapshot, or has it of somebody who gave it away: a label
/// alone can be anybody's.
pub(super) fn made_here(snapshot: &Object<Snapshot>) -> bool {
    let owner = snapshot.meta.labels.get(OWNER);
    owner.is_some_and(|owner| {
        snapshot.key.name.starts_with(&format!("mover-{owner}-")) || is_given(&snapshot.meta)
    })
}

/// After a good backup: its snapshot stays, and older ones go.
pub(super) fn keep(context: &Context<'_>, backup: &Backup, attempt: u32) -> Planned<()> {
    let key = snapshot_key(context.anchor, backup, attempt);
    let Some(snapshot) = context.seen.find::<Snapshot>(&key)? else { return Ok(()) };
    if context.is_ours(&snapshot.meta) && !has_stayed(&snapshot.meta) {
        if backup.given.is_some() && has_newer(context, backup, &snapshot)? {
            return remove_snapshot(context, &key);
        }
        let role = if backup.keep_base { BASE } else { STAYS };
        let mut labels = json!({ ROLE: role });
        if backup.retain.is_some() {
            labels[RETAINED] = "true".into();
        }
        // It outlives the anchor.
        let patch = json!({ "metadata": {
            "labels": labels,
            "annotations": { BASE_OF: base_of(backup) },
            "ownerReferences": null,
        } });
        return Err(Step::change(&key, &snapshot.meta, patch).into());
    }
    if !is_turn(context, backup)? {
        return Ok(());
    }
    if backup.keep_base {
        replace(context, backup, &key)?;
    }
    match &backup.retain {
        Some(retain) => {
            // One that was read before may lack the newest.
            context.seen.after(&retained(backup).into(), &key.into())?;
            prune(context, backup, retain)
        }
        None => Ok(()),
    }
}

/// Whether there is a base of the same repository that was not taken before this one. It is that of the
/// next backup, and this one is none.
fn has_newer(context: &Context<'_>, backup: &Backup, snapshot: &Object<Snapshot>) -> Planned<bool> {
    let all = context.seen.list::<Snapshot>(&bases(backup))?;
    Ok(all.iter().any(|base| {
        base.key != snapshot.key
            && is_base(&base.meta)
            && base.meta.deletion_timestamp.is_none()
            && base.meta.annotations.get(BASE_OF) == Some(&base_of(backup))
            && given::is_after(base, snapshot)
    }))
}

/// Whether the Lease of the claim is this operation's, by a look just now.
pub(super) fn is_turn(context: &Context<'_>, backup: &Backup) -> Planned<bool> {
    let key = names::source_lease(&backup.source.namespace, &backup.source.uid);
    context.seen.confirm(&key.clone().into())?;
    let lease = context.seen.find::<Lease>(&key)?;
    let holder = lease.and_then(|lease| lease.body.spec.holder_identity);
    Ok(holder.as_ref() == Some(&context.anchor.uid))
}

/// The snapshot is the base instead of older ones of the same repository: one of another is the base of
/// what is backed up there.
pub(super) fn replace(context: &Context<'_>, backup: &Backup, base: &Key) -> Planned<()> {
    for older in context.seen.list::<Snapshot>(&bases(backup))? {
        let same = older.meta.annotations.get(BASE_OF) == Some(&base_of(backup));
        // A list may still have one that has lost the label since.
        if !same
            || !is_base(&older.meta)
            || !made_here(&older)
            || older.key == *base
            || older.meta.deletion_timestamp.is_some()
        {
            continue;
        }
        if older.meta.labels.contains_key(RETAINED) {
            let patch = json!({ "metadata": { "labels": { ROLE: STAYS } } });
            return Err(Step::change(&older.key, &older.meta, patch).into());
        }
        return remove(context, &older);
    }
    Ok(())
}

/// Those beyond the count go, and those that are too old. Their ages are told by the newest of them:
/// all these times are of the API server.
fn prune(context: &Context<'_>, backup: &Backup, retain: &Retain) -> Planned<()> {
    let mut all = context.seen.list::<Snapshot>(&retained(backup))?;
    all.retain(|at| {
        made_here(at)
            && at.meta.labels.contains_key(RETAINED)
            && at.meta.deletion_timestamp.is_none()
            && at.meta.annotations.get(BASE_OF) == Some(&base_of(backup))
    });
    in_order(&mut all);
    let Some(snapshot) = surplus(&all, retain) else { return Ok(()) };
    if is_base(&snapshot.meta) {
        let patch = json!({ "metadata": { "labels": { RETAINED: null } } });
        return Err(Step::change(&snapshot.key, &snapshot.meta, patch).into());
    }
    remove(context, snapshot)
}

/// The first of those in order that is beyond the count, or too old.
pub(super) fn surplus<'a>(
    all: &'a [Object<Snapshot>],
    retain: &Retain,
) -> Option<&'a Object<Snapshot>> {
    let surplus = retain
        .count
        .map_or(0, |most| all.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX)));
    let newest = all.iter().filter_map(made).max();
    let oldest = newest
        .zip(retain.days)
        .and_then(|(newest, days)| newest.checked_sub_days(Days::new(days.into())));
    let is_old = |at| made(at).zip(oldest).is_some_and(|(made, oldest)| made < oldest);
    all.iter().enumerate().find(|(number, at)| *number < surplus || is_old(at)).map(|(_, at)| at)
}

/// The oldest first.
pub(super) fn in_order(all: &mut [Object<Snapshot>]) {
    all.sort_by_key(|at| (made(at), at.key.name.clone()));
}

fn made(snapshot: &Object<Snapshot>) -> Option<DateTime<FixedOffset>> {
    DateTime::parse_from_rfc3339(snapshot.meta.creation_timestamp.as_deref()?).ok()
}

/// Removes a snapshot that stayed, with that of the storage.
pub(super) fn remove(context: &Context<'_>, snapshot: &Object<Snapshot>) -> Planned<()> {
    release(context, snapshot)?;
    Err(Step::Delete { key: snapshot.key.clone(), uid: snapshot.meta.uid.clone() }.into())
}

/// With a class that retains, the storage would keep a deleted snapshot for good.
pub(super) fn release(context: &Context<'_>, snapshot: &Object<Snapshot>) -> Planned<()> {
    let Some(name) = &snapshot.body.status.bound_volume_snapshot_content_name else {
        return Ok(());
    };
    let key = Key::wide(Kind::VolumeSnapshotContent, name);
    let Some(content) = context.seen.find::<Content>(&key)? else { return Ok(()) };
    let spec = &content.body.spec;
    let ours = spec.volume_snapshot_ref.uid.as_deref() == Some(&snapshot.meta.uid);
    if !ours || spec.deletion_policy.as_deref() == Some("Delete") {
        return Ok(());
    }
    let patch = json!({ "spec": { "deletionPolicy": "Delete" } });
    Err(Step::change(&key, &content.meta, patch).into())
}
