//! Groups that stay in the storage after their backup. The snapshot controller refuses to delete one
//! member, so a group stays as a whole and goes as a whole.
//!
//! The members are marked first, which are bases of the next backups, and the group last: only then it
//! has stayed. A later group replaces it once it covers its claims, as far as these are still there.

use super::super::names::{ANCHOR, BASE_OF, MANAGER, MEMBERS, OWNER, RETAINED, ROLE, SOURCE};
use super::super::object::{Key, Kind, Query, Selection};
use super::super::observed::{Meta, Object};
use super::super::parts::Context;
use super::super::quiesce::{self, Cut};
use super::super::request::{Backup, Group, Retain};
use super::super::retained::{
    self, BASE, STAYS, base_of, has_stayed, in_order, is_base, made_here,
};
use super::super::step::{Planned, Step, Wait};
use super::super::views::{Claim, Content, GroupContent, Snapshot};
use super::{all_snapshots, content_of_group, is_bound, member_of, members};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// What has just been asked for may be bound in a moment: its content is found by its group then.
const BIND_LAG: Duration = Duration::from_secs(10);

/// A member of a group that stayed, as the group itself tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The uid of its claim.
    claim: String,
    /// Where its backup is.
    of: String,
}

fn entries(group: &Group) -> Vec<Entry> {
    let entry = |member: &Backup| Entry { claim: member.source.uid.clone(), of: base_of(member) };
    group.members.iter().map(entry).collect()
}

fn entries_of(meta: &Meta) -> Vec<Entry> {
    let text = meta.annotations.get(MEMBERS);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The uids of the claims that the annotation of a group names.
pub fn claims_of(members: &str) -> Vec<String> {
    let all: Vec<Entry> = serde_json::from_str(members).unwrap_or_default();
    all.into_iter().map(|entry| entry.claim).collect()
}

/// After a good backup: its snapshots stay, and older ones go.
pub(crate) fn keep(context: &Context<'_>, group: &Group) -> Planned<()> {
    let attempt = quiesce::attempt(context, &Cut::of_group(context.anchor, group))?;
    if group.class.is_none() {
        for (anchor, member) in members(context.anchor, group) {
            retained::keep(&Context { anchor: &anchor, ..*context }, member, attempt)?;
        }
        return Ok(());
    }
    let key = context.anchor.group(attempt);
    let Some(snapshot) = context.seen.find::<Snapshot>(&key)? else { return Ok(()) };
    let is_kept_base = group.members.iter().any(|member| member.keep_base);
    let retain = group.members.iter().find_map(|member| member.retain.as_ref());
    if snapshot.meta.deletion_timestamp.is_some() {
        return Ok(());
    }
    if context.is_ours(&snapshot.meta) && !has_stayed(&snapshot.meta) {
        let role = if is_kept_base { BASE } else { STAYS };
        let content = content_of_group(context, group, &snapshot)?;
        for backup in &group.members {
            // One that somebody deletes goes with its group, and is no base.
            let member = member_of(context, &snapshot, &content, backup, &mut Vec::new())?;
            if let Some((member, _)) = member {
                mark(context, backup, &member, role)?;
            }
        }
        let mut labels = json!({ ROLE: role });
        if retain.is_some() {
            labels[RETAINED] = "true".into();
        }
        let entries = serde_json::to_string(&entries(group)).expect("its keys are texts");
        // It outlives the anchor.
        let patch = json!({ "metadata": {
            "labels": labels,
            "annotations": { MEMBERS: entries },
            "ownerReferences": null,
        } });
        return Err(Step::change(&key, &snapshot.meta, patch).into());
    }
    for (anchor, member) in members(context.anchor, group) {
        let context = &Context { anchor: &anchor, ..*context };
        if !retained::is_turn(context, member)? {
            return Ok(());
        }
        if is_kept_base {
            // Those of backups of this claim alone.
            retained::replace(context, member, &key)?;
        }
    }
    if is_kept_base {
        replace(context, group, &key)?;
    }
    match retain {
        Some(retain) => {
            // A list that was read before may lack the newest.
            context.seen.after(&stayed(group, RETAINED, "true").into(), &key.into())?;
            prune(context, group, retain)
        }
        None => Ok(()),
    }
}

/// One that a list told of, by itself: a list may be old, and a change of what it tells comes too late.
fn as_it_is(context: &Context<'_>, told: &Object<Snapshot>) -> Planned<Option<Object<Snapshot>>> {
    let found = context.seen.find::<Snapshot>(&told.key)?;
    Ok(found.filter(|found| found.meta.uid == told.meta.uid))
}

/// Names a member by what it is a base of.
fn mark(
    context: &Context<'_>,
    backup: &Backup,
    member: &Object<Snapshot>,
    role: &str,
) -> Planned<()> {
    let Some(member) = as_it_is(context, member)? else { return Ok(()) };
    if has_stayed(&member.meta) && context.is_ours(&member.meta) {
        return Ok(());
    }
    let anchor = format!("{}/{}", context.anchor.namespace(), context.anchor.key.name);
    let patch = json!({ "metadata": {
        "labels": {
            "app.kubernetes.io/managed-by": MANAGER,
            OWNER: context.anchor.uid,
            ROLE: role,
            SOURCE: backup.source.uid,
        },
        "annotations": { ANCHOR: anchor, BASE_OF: base_of(backup) },
    } });
    Err(Step::change(&member.key, &member.meta, patch).into())
}

fn stayed(group: &Group, label: &str, value: &str) -> Selection {
    let labels = format!("{label}={value}");
    Selection::labelled(Kind::VolumeGroupSnapshot, &group.namespace, labels)
}

/// The group is the base instead of older ones of its claims.
fn replace(context: &Context<'_>, group: &Group, base: &Key) -> Planned<()> {
    let new = entries(group);
    for older in context.seen.list::<Snapshot>(&stayed(group, ROLE, BASE))? {
        // A list may still have one that has lost the label since.
        if !is_base(&older.meta)
            || !made_here(&older)
            || older.key == *base
            || older.meta.deletion_timestamp.is_some()
        {
            continue;
        }
        let old = entries_of(&older.meta);
        let (covered, rest): (Vec<&Entry>, Vec<&Entry>) =
            old.iter().partition(|entry| new.contains(entry));
        if covered.is_empty() || !rest.is_empty() && anybody_needs(context, group, &rest)? {
            continue;
        }
        if older.meta.labels.contains_key(RETAINED) {
            return demote(context, &older);
        }
        return remove(context, &older);
    }
    Ok(())
}

/// Whether a claim of these is still there: the group has the base of its next backup.
fn anybody_needs(context: &Context<'_>, group: &Group, rest: &[&Entry]) -> Planned<bool> {
    let all = Selection::labelled(Kind::PersistentVolumeClaim, &group.namespace, "");
    let claims = context.seen.list::<Claim>(&all)?;
    Ok(rest.iter().any(|entry| claims.iter().any(|claim| claim.meta.uid == entry.claim)))
}

/// It is no base any more, and stays all the same.
fn demote(context: &Context<'_>, older: &Object<Snapshot>) -> Planned<()> {
    let patch = json!({ "metadata": { "labels": { ROLE: STAYS } } });
    for member in members_of(context, older)? {
        let member = as_it_is(context, &member)?.filter(|member| is_base(&member.meta));
        if let Some(member) = member {
            return Err(Step::change(&member.key, &member.meta, patch).into());
        }
    }
    change(context, older, patch)
}

fn change(context: &Context<'_>, group: &Object<Snapshot>, patch: Value) -> Planned<()> {
    match as_it_is(context, group)? {
        Some(group) => Err(Step::change(&group.key, &group.meta, patch).into()),
        None => Ok(()),
    }
}

/// Those beyond the count go, and those that are too old, as the newest tells the time.
fn prune(context: &Context<'_>, group: &Group, retain: &Retain) -> Planned<()> {
    let new = entries(group);
    let mut all = context.seen.list::<Snapshot>(&stayed(group, RETAINED, "true"))?;
    all.retain(|at| {
        made_here(at)
            && at.meta.labels.contains_key(RETAINED)
            && at.meta.deletion_timestamp.is_none()
            && entries_of(&at.meta).iter().any(|entry| new.contains(entry))
    });
    in_order(&mut all);
    let Some(surplus) = retained::surplus(&all, retain) else { return Ok(()) };
    if is_base(&surplus.meta) {
        return change(context, surplus, json!({ "metadata": { "labels": { RETAINED: null } } }));
    }
    remove(context, surplus)
}

/// What the snapshot controller says are members of a group.
fn members_of(context: &Context<'_>, group: &Object<Snapshot>) -> Planned<Vec<Object<Snapshot>>> {
    let namespace = group.key.namespace.as_deref().unwrap_or_default();
    let mut all = context.seen.list::<Snapshot>(&all_snapshots(namespace))?;
    all.retain(|at| at.body.status.volume_group_snapshot_name.as_ref() == Some(&group.key.name));
    Ok(all)
}

/// Removes a group, with the snapshots of the storage, as it was seen: one that is bound since has a
/// content.
fn remove(context: &Context<'_>, group: &Object<Snapshot>) -> Planned<()> {
    let Some(group) = as_it_is(context, group)? else { return Ok(()) };
    if group.meta.deletion_timestamp.is_some() {
        return Ok(());
    }
    release(context, &group)?;
    Err(Step::delete_seen(&group.key, &group.meta).into())
}

/// Removes the group of an attempt, and waits until its members are gone as well.
pub(crate) fn remove_own(context: &Context<'_>, key: &Key) -> Planned<()> {
    if let Some(group) = context.seen.find::<Snapshot>(key)?
        && context.is_ours(&group.meta)
    {
        // Whoever looks at an operation that has ended well removes nothing that stays.
        if has_stayed(&group.meta) {
            return Ok(());
        }
        if group.meta.deletion_timestamp.is_none() {
            return remove(context, &group);
        }
    }
    context.remove(key)?;
    let namespace = key.namespace.as_deref().unwrap_or_default();
    let everything = all_snapshots(namespace);
    // What was listed before it went says nothing of its members.
    context.seen.after(&everything.clone().into(), &key.clone().into())?;
    for member in context.seen.list::<Snapshot>(&everything)? {
        let of = &member.body.status.volume_group_snapshot_name;
        let is_its = of.as_ref() == Some(&key.name);
        // Nothing holds those that are being deleted: the group is gone.
        if is_its
            && member.meta.deletion_timestamp.is_some()
            && let Some(member) = as_it_is(context, &member)?
        {
            return context.gone(&member.key, &member.meta);
        }
    }
    Ok(())
}

/// With a class that retains, the storage would keep the snapshots for good, and the cluster the
/// contents.
fn release(context: &Context<'_>, group: &Object<Snapshot>) -> Planned<()> {
    let patch = json!({ "spec": { "deletionPolicy": "Delete" } });
    let name = match &group.body.status.bound_volume_group_snapshot_content_name {
        Some(name) => name.clone(),
        None => return await_binding(context, group),
    };
    let key = Key::wide(Kind::VolumeGroupSnapshotContent, &name);
    let content = context.seen.find::<GroupContent>(&key)?.filter(|at| is_bound(at, group));
    if let Some(content) = &content
        && content.body.spec.deletion_policy.as_deref() != Some("Delete")
    {
        return Err(Step::change(&key, &content.meta, patch).into());
    }
    // Members that are made from now on have the policy of the group's content.
    let namespace = group.key.namespace.as_deref().unwrap_or_default();
    let everything = Query::from(all_snapshots(namespace));
    context.seen.after(&everything, &key.clone().into())?;
    let mut bound = 0;
    for member in members_of(context, group)? {
        let Some(name) = &member.body.status.bound_volume_snapshot_content_name else { continue };
        bound += 1;
        let key = Key::wide(Kind::VolumeSnapshotContent, name);
        let Some(content) = context.seen.find::<Content>(&key)? else { continue };
        let spec = &content.body.spec;
        let is_its = spec.volume_snapshot_ref.uid.as_deref() == Some(&member.meta.uid);
        if is_its && spec.deletion_policy.as_deref() != Some("Delete") {
            return Err(Step::change(&key, &content.meta, patch).into());
        }
    }
    // One that was made before, and is not told of yet, would leave its content behind.
    let infos = content.map_or(0, |at| at.body.status.volume_snapshot_info_list.len());
    let waited = context.seen.unchanged(&key.clone().into());
    if bound < infos && waited < BIND_LAG {
        let on = vec![everything, key.into()];
        let why = format!("{} has members that are not bound yet", group.key);
        return Err(Wait::new(on, why, BIND_LAG.saturating_sub(waited)).into());
    }
    Ok(())
}

/// A content that was made and that its group does not name yet would stay for good.
fn await_binding(context: &Context<'_>, group: &Object<Snapshot>) -> Planned<()> {
    // As the snapshot controller names it (`GetDynamicSnapshotContentNameForGroupSnapshot`).
    let name = format!("groupsnapcontent-{}", group.meta.uid);
    let key = Key::wide(Kind::VolumeGroupSnapshotContent, &name);
    let waited = context.seen.age(&group.meta.uid);
    if context.seen.find::<GroupContent>(&key)?.is_none() || waited >= BIND_LAG {
        return Ok(());
    }
    let on = vec![group.key.clone().into()];
    let why = format!("{} is not bound, and would leave {key} behind", group.key);
    Err(Wait::new(on, why, BIND_LAG.saturating_sub(waited)).into())
}
