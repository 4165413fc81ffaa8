//! From the proof of a restore to the bound claim: the written volume is taken from the block claim,
//! and given to the one that it was restored for.
//!
//! Each step looks at the objects alone, so it may begin anew anywhere. The volume is retained from the
//! first step to the last: nothing that fails takes the restored data along.

use super::in_place;
use super::names::{self, RESTORED};
use super::object::{Key, Kind, Query, Selection};
use super::observed::Object;
use super::parts::Context;
use super::plan::remove_jobs;
use super::populate;
use super::request::Restore;
use super::restore::{taken, target_of};
use super::step::{Failure, Planned, Step, Stop, Wait, exit};
use super::users;
use super::views::{Claim, ConfigMap, Volume};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// On a volume that Kubernetes chose for a claim: it would become anybody's if that claim had another
/// volume by then.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// A volume of a node that is gone stays attached for six minutes.
const DETACH: Duration = Duration::from_secs(900);

/// The hand-over, written into the anchor before it begins. It only names what there is: the volume
/// object that takes the old one's place is made from the old one, and before that goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HandOver {
    /// What the Job said.
    summary: Value,
    /// The volume object of the block claim.
    old: String,
    /// Its uid.
    old_uid: String,
    /// Its reclaim policy, which the new one has in the end.
    policy: String,
}

/// Whether the data is proved, and only its hand-over is left.
pub fn is_handing_over(anchor: &Object<ConfigMap>) -> bool {
    anchor.body.data.contains_key("handover")
}

/// Writes the hand-over into the anchor: from here on nothing writes to the volume.
pub(super) fn record(anchor: &Object<ConfigMap>, volume: &Object<Volume>, summary: Value) -> Step {
    let policy = volume.body.spec.persistent_volume_reclaim_policy.clone();
    let hand_over = HandOver {
        summary,
        old: volume.key.name.clone(),
        old_uid: volume.meta.uid.clone(),
        policy: policy.unwrap_or_else(|| "Delete".to_owned()),
    };
    let text = serde_json::to_string(&hand_over).expect("its maps have texts as keys");
    let patch = json!({ "data": { "handover": text } });
    Step::change(&anchor.key, &anchor.meta, patch)
}

/// The same volume of the storage as a filesystem. Annotations of the provisioner come along: they
/// name the driver and the Secrets of its deletion.
fn filesystem(context: &Context<'_>, restore: &Restore, old: &Value, fs_type: &str) -> Value {
    let key = context.anchor.handed_volume();
    let mut metadata = context.anchor.meta(&key, "volume");
    let notes = old["metadata"]["annotations"].as_object();
    for (name, value) in notes.into_iter().flatten() {
        if name.starts_with("volume.kubernetes.io/") || name == "pv.kubernetes.io/provisioned-by" {
            metadata["annotations"][name] = value.clone();
        }
    }
    metadata["annotations"][RESTORED] = format!("{}@{}", restore.volume, restore.backup).into();
    if let Some(labels) = old["metadata"]["labels"].as_object() {
        for (name, value) in labels {
            metadata["labels"][name] = value.clone();
        }
    }
    let mut spec = old["spec"].clone();
    spec["volumeMode"] = "Filesystem".into();
    if !fs_type.is_empty() {
        spec["csi"]["fsType"] = fs_type.into();
    }
    spec["persistentVolumeReclaimPolicy"] = "Retain".into();
    spec["claimRef"] = claim_ref(restore);
    names::object(&key, metadata, json!({ "spec": spec }))
}

fn claim_ref(restore: &Restore) -> Value {
    let mut to = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": restore.namespace,
        "name": restore.claim,
    });
    if let Some(populate) = &restore.populate {
        to["uid"] = populate.uid.clone().into();
    }
    to
}

/// From the proof to the bound claim. Each step looks at the objects alone, so it may begin anew
/// anywhere.
pub(super) fn hand_over(
    context: &Context<'_>,
    restore: &Restore,
    anchor: &Object<ConfigMap>,
) -> Planned<Value> {
    let hand_over = read(anchor)?;
    if let Some(place) = &restore.in_place {
        return in_place::hand_over(context, restore, place, &hand_over.summary);
    }
    match context.seen.settle(steps(context, restore, &hand_over)) {
        Err(Stop::Failure(why)) => {
            let old = Key::wide(Kind::PersistentVolume, &hand_over.old);
            let mut kept = None;
            for key in [context.anchor.handed_volume(), old] {
                match context.seen.find::<Volume>(&key) {
                    Err(Stop::Next(next)) => return Err(Stop::Next(next)),
                    Ok(Some(found)) if kept.is_none() => kept = Some(found),
                    _ => {}
                }
            }
            let said = kept.filter(is_retained).map_or(String::new(), |kept| {
                let policy = kept.body.spec.persistent_volume_reclaim_policy.unwrap_or_default();
                format!("; the restored volume is {}, of reclaim policy {policy}", kept.key)
            });
            Err(Failure { message: format!("{}{said}", why.message), ..why }.into())
        }
        other => other,
    }
}

fn read(anchor: &Object<ConfigMap>) -> Result<HandOver, Failure> {
    let text = anchor.body.data.get("handover").map_or("", String::as_str);
    serde_json::from_str(text).map_err(|why| {
        Failure::new(exit::USAGE, format!("{} holds no hand-over: {why}", anchor.key))
    })
}

/// Whether our block claim is the one whose volume is handed over. One that a driver made anew,
/// because it did not know better, is not.
pub(super) fn holds_restored_data(
    context: &Context<'_>,
    namespace: &str,
    anchor: &Object<ConfigMap>,
) -> Planned<bool> {
    if !is_handing_over(anchor) {
        return Ok(false);
    }
    let claim = context.seen.find::<Claim>(&context.anchor.volume(namespace))?;
    let old = read(anchor)?.old;
    if claim.is_none_or(|claim| claim.body.spec.volume_name.as_ref() != Some(&old)) {
        return Ok(false);
    }
    // Until it is retained it is a volume like any other that a failed restore leaves.
    let volume = context.seen.find::<Volume>(&Key::wide(Kind::PersistentVolume, &old))?;
    Ok(volume.as_ref().is_some_and(is_retained))
}

/// The end of a hand-over to a claim that was populated, and that failed.
pub(super) fn park(
    context: &Context<'_>,
    restore: &Restore,
    anchor: &Object<ConfigMap>,
) -> Planned<()> {
    let Some(populate) = restore.populate.as_ref().filter(|_| is_handing_over(anchor)) else {
        return Ok(());
    };
    let hand_over = read(anchor)?;
    let old = Key::wide(Kind::PersistentVolume, &hand_over.old);
    let new = context.anchor.handed_volume();
    let given = if restore.filesystem.is_some() { &new } else { &old };
    populate::park(context, restore, populate, given)?;
    // Two objects of one volume would confuse whoever finds them.
    let is_doubled = restore.filesystem.is_some() && context.seen.find::<Volume>(&new)?.is_some();
    match context.seen.find::<Volume>(&old)? {
        Some(found)
            if is_doubled
                && found.meta.uid == hand_over.old_uid
                && found.meta.deletion_timestamp.is_none()
                && is_retained(&found)
                && is_the_written_one(context, restore, &found).is_ok() =>
        {
            Err(Step::Delete { key: old, uid: hand_over.old_uid }.into())
        }
        _ => Ok(()),
    }
}

fn is_retained(volume: &Object<Volume>) -> bool {
    volume.body.spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain")
}

fn steps(context: &Context<'_>, restore: &Restore, hand_over: &HandOver) -> Planned<Value> {
    let old_key = Key::wide(Kind::PersistentVolume, &hand_over.old);
    let old = context.seen.find::<Volume>(&old_key)?;
    let old = old.filter(|old| old.meta.uid == hand_over.old_uid);
    let given = match &restore.filesystem {
        Some(_) => context.anchor.handed_volume(),
        None => old_key.clone(),
    };
    if let Some(populate) = &restore.populate {
        populate::claim(context, restore, populate, Some(&given))?;
    }
    if let Some(old) = &old
        && !is_bound_to(old, restore)
    {
        is_the_written_one(context, restore, old)?;
        free(context, restore, old)?;
    }
    let volume = match &restore.filesystem {
        Some(fs_type) => as_filesystem(context, restore, old.as_ref(), fs_type)?,
        None => as_block(context, restore, old.ok_or_else(|| deleted(&old_key))?)?,
    };
    match &restore.populate {
        Some(populate) => populate::bound(context, restore, populate, &volume)?,
        None => bound(context, restore, &volume)?,
    }
    let policy = volume.body.spec.persistent_volume_reclaim_policy.as_deref();
    if policy != Some(&hand_over.policy) {
        let patch = json!({ "spec": { "persistentVolumeReclaimPolicy": hand_over.policy } });
        return Err(Step::change(&volume.key, &volume.meta, patch).into());
    }
    Ok(hand_over.summary.clone())
}

/// The new claim is there, and bound.
fn bound(context: &Context<'_>, restore: &Restore, volume: &Object<Volume>) -> Planned<()> {
    let target = target_of(restore);
    let Some(claim) = context.seen.find::<Claim>(&target)? else {
        still_handing_over(context)?;
        return Err(Step::Create(claim_of(context, restore, &target, &volume.key)).into());
    };
    if !context.is_ours(&claim.meta) {
        return Err(taken(&target).into());
    }
    if claim.body.status.phase.as_deref() == Some("Bound") {
        return Ok(());
    }
    let why = format!("{target} is being bound to {}", volume.key);
    let on: Vec<Query> = vec![target.into(), volume.key.clone().into()];
    context.wait(on, &claim.meta.uid, context.limits.volume_seconds, why)
}

/// The anchor is as it was, by a look just now: a driver that was paused until the claim was in use,
/// and deleted by its user, makes nothing anew.
fn still_handing_over(context: &Context<'_>) -> Planned<()> {
    context.seen.confirm(&context.anchor.key.clone().into())
}

fn deleted(volume: &Key) -> Failure {
    Failure::new(exit::RETRYABLE, format!("{volume} was deleted by somebody else"))
        .hint("run the same command again")
}

/// The anchor's word is not enough: the volume itself says that it was our block claim's, and only
/// an administrator could have written that.
fn is_the_written_one(
    context: &Context<'_>,
    restore: &Restore,
    old: &Object<Volume>,
) -> Result<(), Failure> {
    let block = context.anchor.volume(&restore.repository.namespace);
    let holder = old.body.spec.claim_ref.as_ref();
    let same = holder.is_some_and(|holder| {
        holder.namespace == block.namespace && holder.name.as_deref() == Some(&block.name)
    });
    match same {
        true => Ok(()),
        false => Err(Failure::new(
            exit::DENIED,
            format!("{} is not the volume that was written: it was not bound to {block}", old.key),
        )
        .hint("somebody changed the operation's record: find out who may")),
    }
}

/// The same volume of the storage under another object, of mode Filesystem. That one is made while
/// the old one is still there, so nothing that is refused leaves the data without any; nothing
/// attaches either of them meanwhile.
fn as_filesystem(
    context: &Context<'_>,
    restore: &Restore,
    old: Option<&Object<Volume>>,
    fs_type: &str,
) -> Planned<Object<Volume>> {
    let key = context.anchor.handed_volume();
    let Some(new) = context.find_ours::<Volume>(&key)? else {
        let old = old.ok_or_else(|| deleted(&key))?;
        still_handing_over(context)?;
        if restore.populate.is_some() {
            populate::still_waits(context, restore)?;
        }
        let raw = context.seen.raw(&old.key)?.unwrap_or_default();
        return Err(Step::Create(filesystem(context, restore, &raw, fs_type)).into());
    };
    if let Some(old) = old
        && old.meta.deletion_timestamp.is_none()
    {
        let uid = old.meta.uid.clone();
        return Err(Step::Delete { key: old.key.clone(), uid }.into());
    }
    Ok(new)
}

fn as_block(
    context: &Context<'_>,
    restore: &Restore,
    old: Object<Volume>,
) -> Planned<Object<Volume>> {
    if is_bound_to(&old, restore) {
        return Ok(old);
    }
    if restore.populate.is_some() {
        populate::released(context, &old)?;
        populate::still_waits(context, restore)?;
    }
    let mut to = claim_ref(restore);
    to["resourceVersion"] = Value::Null;
    if restore.populate.is_none() {
        to["uid"] = Value::Null;
    }
    let restored = format!("{}@{}", restore.volume, restore.backup);
    let notes = json!({ RESTORED: restored, BOUND_BY_CONTROLLER: null });
    let patch = json!({ "metadata": { "annotations": notes }, "spec": { "claimRef": to } });
    Err(Step::change(&old.key, &old.meta, patch).into())
}

fn is_bound_to(volume: &Object<Volume>, restore: &Restore) -> bool {
    let holder = volume.body.spec.claim_ref.as_ref();
    holder.is_some_and(|holder| {
        holder.namespace.as_deref() == Some(&restore.namespace)
            && holder.name.as_deref() == Some(&restore.claim)
            // Kubernetes takes the uid away where the claim has another volume.
            && restore.populate.as_ref().is_none_or(|at| {
                holder.uid.as_ref().is_none_or(|uid| *uid == at.uid)
            })
    })
}

/// Retained, without a pod, detached, without its claim: two objects of one volume that are
/// attached at once would confuse its driver.
fn free(context: &Context<'_>, restore: &Restore, old: &Object<Volume>) -> Planned<()> {
    if !is_retained(old) {
        let patch = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
        return Err(Step::change(&old.key, &old.meta, patch).into());
    }
    let namespace = &restore.repository.namespace;
    remove_jobs(context, namespace)?;
    users::own_pods_gone(context, namespace)?;
    detached(context, &old.key)?;
    context.remove(&context.anchor.volume(namespace))
}

/// Waits until no node has the volume.
pub(super) fn detached(context: &Context<'_>, volume: &Key) -> Planned<()> {
    let Some(attached) = users::attachment(context.seen, volume)? else { return Ok(()) };
    let attachments = Selection::all(Kind::VolumeAttachment);
    let why = format!("{volume} is still attached to node {}", attached.body.spec.node_name);
    let waited = context.seen.age(&attached.meta.uid);
    if waited >= DETACH {
        context.seen.confirm(&attachments.into())?;
        return Err(Failure::new(exit::RETRYABLE, why)
            .hint(format!(
                "look at {} and at the driver's log, and run the same command again",
                attached.key
            ))
            .into());
    }
    let time = DETACH - waited;
    Err(Wait::new(vec![attachments.into()], why, time).into())
}

fn claim_of(context: &Context<'_>, restore: &Restore, key: &Key, volume: &Key) -> Value {
    let mut meta = context.anchor.meta(key, names::TARGET);
    // It is the user's from now on: it outlives its anchor.
    let fields = meta.as_object_mut().expect("metadata is an object");
    fields.remove("ownerReferences");
    meta["annotations"][RESTORED] = format!("{}@{}", restore.volume, restore.backup).into();
    let mode = if restore.filesystem.is_some() { "Filesystem" } else { "Block" };
    let spec = json!({
        "volumeMode": mode,
        "volumeName": volume.name,
        "accessModes": restore.access_modes,
        "storageClassName": restore.storage_class,
        "resources": { "requests": { "storage": restore.capacity } },
    });
    names::object(key, meta, json!({ "spec": spec }))
}
