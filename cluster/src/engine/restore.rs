//! A restore to a new claim: a block volume, the Job that writes and proves it, and the hand-over
//! of that volume to the claim.
//!
//! The claim appears last. So nobody ever sees one that is bound to an empty or half-written
//! volume.

use super::fence;
use super::in_place;
use super::job::{Access, JobSpec, job};
use super::names::{self, RESTORED};
use super::object::{Key, Kind, Query, Selection};
use super::observed::Object;
use super::parts::{Context, SummaryFor};
use super::plan::remove_jobs;
use super::request::Restore;
use super::step::{Failure, Planned, Step, Wait, exit};
use super::users;
use super::views::{Claim, ConfigMap, Job, Volume};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

const DEVICE: &str = "/dev/target";
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

/// Up to the proof, and the beginning of the hand-over.
pub(super) fn plan(
    context: &Context<'_>,
    restore: &Restore,
    anchor: &Object<ConfigMap>,
) -> Planned<Value> {
    if let Some(place) = &restore.in_place {
        return in_place::plan(context, restore, place, anchor);
    }
    let target = target_of(restore);
    context.hold(&names::target_lease(&restore.namespace, &restore.claim), &target.to_string())?;
    let namespace = &restore.repository.namespace;
    let volume = context.anchor.volume(namespace);
    let started = context.find_ours::<Job>(&context.anchor.job(namespace, 1))?.is_some();
    if !started {
        if context.seen.find::<Claim>(&target)?.is_some() {
            return Err(taken(&target).into());
        }
        let _: Object<Claim> =
            context.ensure(&volume, || block_claim(context, restore, &volume))?;
    }
    let make = |key: &Key| fence::closed(job(context.anchor, key, "job", &spec(restore, &volume)));
    let open = |job: &Object<Job>| fence::open(anchor, job, || Ok(()));
    let finished = context.run_job(namespace, Some(&volume), SummaryFor::Plan, open, make)?;
    let summary = proved(restore, finished.summary)?;
    let Some(claim) = context.find_ours::<Claim>(&volume)? else {
        return Err(Failure::new(
            exit::RETRYABLE,
            format!("{volume} was deleted by somebody else after it was written"),
        )
        .hint("run the same command again")
        .into());
    };
    begin(context, restore, anchor, &claim, summary)
}

/// The summary, if it is a proof of this backup.
pub(super) fn proved(restore: &Restore, summary: Value) -> Result<Value, Failure> {
    if !summary["verified"].is_null() && summary["backup_id"] == restore.backup.as_str() {
        return Ok(summary);
    }
    Err(Failure::new(
        exit::BUG,
        format!("the Job ended well and did not prove backup {}: {summary}", restore.backup),
    ))
}

pub(super) fn target_of(restore: &Restore) -> Key {
    Key::new(Kind::PersistentVolumeClaim, &restore.namespace, &restore.claim)
}

fn taken(target: &Key) -> Failure {
    Failure::new(exit::USAGE, format!("{target} exists already"))
        .hint("name another claim, or restore onto that one by --in-place")
}

fn block_claim(context: &Context<'_>, restore: &Restore, key: &Key) -> Value {
    let spec = json!({
        "volumeMode": "Block",
        "accessModes": restore.access_modes,
        "storageClassName": restore.storage_class,
        "resources": { "requests": { "storage": restore.capacity } },
    });
    names::object(key, context.anchor.meta(key, "volume"), json!({ "spec": spec }))
}

pub(super) fn spec<'a>(restore: &'a Restore, volume: &'a Key) -> JobSpec<'a> {
    JobSpec {
        repository: &restore.repository,
        arguments: vec![
            "restore".to_owned(),
            format!("{}@id:{}", restore.volume, restore.backup),
            DEVICE.to_owned(),
            "--verify".to_owned(),
            // It holds a part of this backup if it runs again, and what is restored in place.
            "--force".to_owned(),
        ],
        device: Some((&volume.name, DEVICE, Access::Write)),
        changes: None,
    }
}

fn begin(
    context: &Context<'_>,
    restore: &Restore,
    anchor: &Object<ConfigMap>,
    claim: &Object<Claim>,
    summary: Value,
) -> Planned<Value> {
    let unbound = || Failure::new(exit::RETRYABLE, format!("{} has lost its volume", claim.key));
    let name = claim.body.spec.volume_name.clone().ok_or_else(unbound)?;
    let key = Key::wide(Kind::PersistentVolume, &name);
    let volume = context.seen.find::<Volume>(&key)?.ok_or_else(unbound)?;
    let holds = volume.body.spec.claim_ref.as_ref().and_then(|holder| holder.uid.as_ref());
    if holds != Some(&claim.meta.uid) || volume.body.spec.csi.is_none() {
        return Err(Failure::new(
            exit::DENIED,
            format!("{} names {key}, which is not bound to it or has no CSI driver", claim.key),
        )
        .into());
    }
    let target = target_of(restore);
    if context.seen.find::<Claim>(&target)?.is_some() {
        return Err(taken(&target).into());
    }
    Err(record(anchor, &volume, summary).into())
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
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": restore.namespace,
        "name": restore.claim,
    })
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
        Err(super::step::Stop::Failure(why)) => {
            let new = context.seen.find::<Volume>(&context.anchor.handed_volume());
            let old = Key::wide(Kind::PersistentVolume, &hand_over.old);
            let kept = match (new, context.seen.find::<Volume>(&old)) {
                (Ok(Some(kept)), _) | (_, Ok(Some(kept))) => Some(kept),
                _ => None,
            };
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

fn is_retained(volume: &Object<Volume>) -> bool {
    volume.body.spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain")
}

fn steps(context: &Context<'_>, restore: &Restore, hand_over: &HandOver) -> Planned<Value> {
    let old_key = Key::wide(Kind::PersistentVolume, &hand_over.old);
    let old = context.seen.find::<Volume>(&old_key)?;
    let old = old.filter(|old| old.meta.uid == hand_over.old_uid);
    if let Some(old) = &old
        && !is_bound_to(old, restore)
    {
        is_the_written_one(context, restore, old)?;
        free(context, restore, old)?;
    }
    let volume = match &restore.filesystem {
        Some(fs_type) => as_filesystem(context, restore, old.as_ref(), fs_type)?,
        None => as_block(restore, old.ok_or_else(|| deleted(&old_key))?)?,
    };
    let target = target_of(restore);
    let Some(claim) = context.seen.find::<Claim>(&target)? else {
        still_handing_over(context)?;
        return Err(Step::Create(claim_of(context, restore, &target, &volume.key)).into());
    };
    if !context.is_ours(&claim.meta) {
        return Err(taken(&target).into());
    }
    if claim.body.status.phase.as_deref() != Some("Bound") {
        let why = format!("{target} is being bound to {}", volume.key);
        let on: Vec<Query> = vec![target.into(), volume.key.into()];
        return context.wait(on, &claim.meta.uid, context.limits.volume_seconds, why);
    }
    let policy = volume.body.spec.persistent_volume_reclaim_policy.as_deref();
    if policy != Some(&hand_over.policy) {
        let patch = json!({ "spec": { "persistentVolumeReclaimPolicy": hand_over.policy } });
        return Err(Step::change(&volume.key, &volume.meta, patch).into());
    }
    Ok(hand_over.summary.clone())
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
        let raw = context.seen.raw(&old.key)?.cloned().unwrap_or_default();
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

fn as_block(restore: &Restore, old: Object<Volume>) -> Planned<Object<Volume>> {
    if is_bound_to(&old, restore) {
        return Ok(old);
    }
    let patch = json!({
        "metadata": { "annotations": { RESTORED: format!("{}@{}", restore.volume, restore.backup) } },
        "spec": { "claimRef": {
            "namespace": restore.namespace,
            "name": restore.claim,
            "uid": null,
            "resourceVersion": null,
        } },
    });
    Err(Step::change(&old.key, &old.meta, patch).into())
}

fn is_bound_to(volume: &Object<Volume>, restore: &Restore) -> bool {
    let holder = volume.body.spec.claim_ref.as_ref();
    holder.is_some_and(|holder| {
        holder.namespace.as_deref() == Some(&restore.namespace)
            && holder.name.as_deref() == Some(&restore.claim)
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
    Err(Wait { on: vec![attachments.into()], why, time, pod: None }.into())
}

fn claim_of(context: &Context<'_>, restore: &Restore, key: &Key, volume: &Key) -> Value {
    let mut meta = context.anchor.meta(key, "target");
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
