//! The exchange of a claim, so that pods wait while its volume is written: by a block volume object
//! of the same volume of the storage, in the Repository's namespace.
//!
//! The claim is deleted and made again as it was. It names its PersistentVolume, whose `claimRef`
//! still has the uid of the one before: so it stays Pending, and pods wait, until that uid is
//! exchanged too. The PersistentVolume itself is retained meanwhile and never deleted. All that is
//! needed to give the claim back stands in an annotation of it, which survives everything else.

use super::bind::detached;
use super::names::{self, CLAIMED, ENDED, HALF_WRITTEN, HELD, RESTORED};
use super::object::{Key, Kind, Query};
use super::observed::{Meta, Object};
use super::parts::Context;
use super::request::{InPlace, Restore};
use super::restore::target_of;
use super::step::{Failure, Next, Planned, Step, Stop, Wait, exit};
use super::users;
use super::views::{Claim, Volume};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// Kubernetes puts it onto each claim; others have a finalizer for a reason that we do not know.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// What was refused is tried again after so long.
const AGAIN: Duration = Duration::from_secs(3);
/// A claim that is deleted again each time is not made more often.
const REMADE_MAX: u32 = 3;
/// Annotations of the binding, which is made anew.
const BINDING: &str = "pv.kubernetes.io/";

/// How a claim was, as an annotation of its volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Record {
    /// Uid of the anchor of the operation that holds the volume.
    pub(super) operation: String,
    /// `NAMESPACE/NAME` of that anchor.
    anchor: String,
    /// Of the claim.
    namespace: String,
    /// Of the claim.
    name: String,
    /// Of the claim that was there first.
    claim_uid: String,
    /// The volume's reclaim policy.
    policy: String,
    /// Labels, annotations and owners of the claim.
    metadata: Value,
    /// The claim's own.
    spec: Value,
    /// Whether the claim was given the restored data: from then on nobody writes the volume for this
    /// record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    restored: bool,
}

impl Record {
    /// The one on a volume, if there is one.
    pub(super) fn of(volume: &Key, meta: &Meta) -> Result<Option<Self>, Failure> {
        let Some(text) = meta.annotations.get(HELD) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|why| {
            Failure::new(exit::USAGE, format!("annotation {HELD} of {volume} is no record: {why}"))
                .hint("it may be of another version of kubectl-mover; the volume is retained")
        })
    }

    fn new(
        context: &Context<'_>,
        claim: &Object<Claim>,
        raw: &Value,
        policy: String,
    ) -> Result<Self, Failure> {
        let others = raw["metadata"]["finalizers"].as_array().into_iter().flatten();
        if let Some(other) = others.filter_map(Value::as_str).find(|name| *name != PROTECTION) {
            return Err(Failure::new(
                exit::RETRYABLE,
                format!("{} has the finalizer {other}: somebody holds it", claim.key),
            )
            .hint("wait until it is gone, or find out whose it is; run the same command again"));
        }
        let mut annotations = claim.meta.annotations.clone();
        annotations.retain(|name, _| !name.starts_with(BINDING) && name != CLAIMED);
        let anchor = context.anchor;
        Ok(Self {
            operation: anchor.uid.clone(),
            anchor: format!("{}/{}", anchor.namespace(), anchor.key.name),
            namespace: claim.key.namespace.clone().unwrap_or_default(),
            name: claim.key.name.clone(),
            claim_uid: claim.meta.uid.clone(),
            policy,
            metadata: json!({
                "labels": claim.meta.labels,
                "annotations": annotations,
                "ownerReferences": raw["metadata"]["ownerReferences"],
            }),
            spec: raw["spec"].clone(),
            restored: false,
        })
    }

    /// Whether the volume has had its proved data since, so that only policy and record remain.
    pub(super) fn is_restored(&self) -> bool {
        self.restored
    }

    /// Whether it is about this claim.
    pub(super) fn is_of(&self, claim: &Key) -> bool {
        Some(&self.namespace) == claim.namespace.as_ref() && self.name == claim.name
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("its maps have texts as keys")
    }

    /// The claim as it was. It names its volume.
    fn claim(&self, key: &Key) -> Value {
        let mut metadata = self.metadata.clone();
        if metadata["ownerReferences"].is_null() {
            metadata.as_object_mut().map(|fields| fields.remove("ownerReferences"));
        }
        metadata["name"] = key.name.clone().into();
        metadata["namespace"] = key.namespace.clone().into();
        names::object(key, metadata, json!({ "spec": self.spec }))
    }
}

fn holder(volume: &Object<Volume>) -> Option<&str> {
    volume.body.spec.claim_ref.as_ref()?.uid.as_deref()
}

/// It names the volume, and cannot be bound to it: the volume is still another claim's.
fn waits(claim: &Object<Claim>, volume: &Object<Volume>) -> bool {
    claim.body.spec.volume_name.as_ref() == Some(&volume.key.name)
        && claim.body.status.phase.as_deref() != Some("Bound")
        && claim.meta.deletion_timestamp.is_none()
        && holder(volume) != Some(&claim.meta.uid)
        && claim.body.spec.volume_mode.as_deref().unwrap_or("Filesystem")
            == volume.body.spec.volume_mode.as_deref().unwrap_or("Filesystem")
}

fn taken<T>(context: &Context<'_>, claim: &Key, volume: &Key) -> Planned<T> {
    context.seen.after(&volume.clone().into(), &claim.clone().into())?;
    Err(Failure::new(
        exit::RETRYABLE,
        format!("{claim} was made by somebody else while {volume} was held for it"),
    )
    .hint(format!(
        "delete that claim if nobody needs its data, and run the same command again: {volume} is \
         retained"
    ))
    .into())
}

/// The volume's object says that it is another claim's.
pub(super) fn not_its<T>(context: &Context<'_>, claim: &Key, volume: &Key) -> Planned<T> {
    context.seen.after(&volume.clone().into(), &claim.clone().into())?;
    Err(Failure::new(exit::DENIED, format!("{volume} is not the volume of {claim}"))
        .hint(format!("look at claimRef of {volume}, and at the claim"))
        .into())
}

/// Up to a claim that waits, and a block claim of the same volume for the Job.
pub(super) fn take(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    volume: &Object<Volume>,
) -> Planned<()> {
    let target = target_of(restore);
    let claim = context.seen.find::<Claim>(&target)?;
    let record = hold(context, place, volume, &target, claim.as_ref())?;
    block(context, restore, volume)?;
    let Some(claim) = claim else { return Err(made_again(context, &record, &target)) };
    if waits(&claim, volume) {
        return Ok(());
    }
    if record.claim_uid != claim.meta.uid || holder(volume) != Some(&claim.meta.uid) {
        return taken(context, &target, &volume.key);
    }
    if claim.meta.deletion_timestamp.is_some() {
        return going(context, &claim);
    }
    unused(context, &target, &volume.key)?;
    if claim.meta.annotations.get(CLAIMED) != Some(&context.anchor.uid) {
        let what = format!("{target} was given back by somebody else");
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again").into());
    }
    // By its version: a driver that was paused here deletes no claim that was given back.
    let Meta { uid, resource_version: version, .. } = claim.meta;
    Err(Step::DeleteVersion { key: target, uid, version }.into())
}

/// The claim as it was. If that is refused, it is tried again for a while: a quota counts a claim
/// that is gone for some seconds more.
fn made_again(context: &Context<'_>, record: &Record, target: &Key) -> Stop {
    let lost = context.seen.lost(target);
    if lost > REMADE_MAX {
        let what = format!("{target} is deleted each time it is made, {lost} times until now");
        return Failure::new(exit::RETRYABLE, what)
            .hint(format!(
                "if an owner of it is gone, take ownerReferences out of the annotation {HELD} of \
                 its volume, and run the same command again"
            ))
            .into();
    }
    let step = Step::Create(record.claim(target));
    let limit = Duration::from_secs(context.limits.removal_seconds);
    let (Some(why), Some((since, told))) =
        (context.seen.refusal(&step), context.seen.unmade(target))
    else {
        return step.into();
    };
    if since >= limit {
        return why.clone().into();
    }
    if told >= AGAIN {
        return Stop::Next(Next::Refresh);
    }
    let why = format!("{target} cannot be made again yet: {}", why.message);
    Wait::new(Vec::new(), why, AGAIN - told).into()
}

/// The record stands on the volume, and the volume is retained.
fn hold(
    context: &Context<'_>,
    place: &InPlace,
    volume: &Object<Volume>,
    target: &Key,
    claim: Option<&Object<Claim>>,
) -> Planned<Record> {
    let before = Record::of(&volume.key, &volume.meta)?;
    if let Some(before) = before.as_ref().filter(|before| !before.is_of(target)) {
        let what = format!(
            "{} is held for pvc/{} in namespace {}, not for {target}",
            volume.key, before.name, before.namespace
        );
        return Err(Failure::new(exit::DENIED, what).into());
    }
    let is_mine = |record: &&Record| record.operation == context.anchor.uid;
    if let Some(record) = before.as_ref().filter(is_mine) {
        return Ok(record.clone());
    }
    let owned = claim.filter(|claim| holder(volume) == Some(&claim.meta.uid));
    let record = match (before, owned) {
        // Its operation has ended, as its Lease is ours.
        (Some(mut before), None) => {
            gone_before(context, &before)?;
            before.operation = context.anchor.uid.clone();
            before.anchor = format!("{}/{}", context.anchor.namespace(), context.anchor.key.name);
            before
        }
        (before, Some(claim)) => {
            if let Some(before) = &before {
                gone_before(context, before)?;
            }
            bound(claim, place)?;
            unused(context, target, &volume.key)?;
            // Before the volume is held: whoever gives the claim back takes it off, and changes the
            // claim's version by that.
            if claim.meta.annotations.get(CLAIMED) != Some(&context.anchor.uid) {
                let notes = json!({ "annotations": { CLAIMED: context.anchor.uid } });
                let patch = json!({ "metadata": notes });
                return Err(Step::change(target, &claim.meta, patch).into());
            }
            let raw = context.seen.raw(target)?.unwrap_or_default();
            let now = volume.body.spec.persistent_volume_reclaim_policy.clone();
            let policy = before.map_or(now.unwrap_or_else(|| "Delete".into()), |at| at.policy);
            Record::new(context, claim, &raw, policy)?
        }
        (None, None) => return not_its(context, target, &volume.key),
    };
    let patch = json!({
        "metadata": { "annotations": { HELD: record.text() } },
        "spec": { "persistentVolumeReclaimPolicy": "Retain" },
    });
    Err(Step::change(&volume.key, &volume.meta, patch).into())
}

/// What an operation before this one made of the same volume is gone.
fn gone_before(context: &Context<'_>, before: &Record) -> Planned<()> {
    let key = names::handed_volume(&before.operation);
    match context.seen.find::<Volume>(&key)? {
        None => Ok(()),
        Some(_) => Err(Failure::new(
            exit::RETRYABLE,
            format!("{key} of an earlier restore of this volume is still there"),
        )
        .hint("remove it: kubectl mover sweep --all-namespaces; run the same command again")
        .into()),
    }
}

fn bound(claim: &Object<Claim>, place: &InPlace) -> Result<(), Failure> {
    let wrong = |what: &str| {
        Err(Failure::new(exit::USAGE, format!("{} {what}", claim.key))
            .hint(format!("look at it and at pv/{}, and run the same command again", place.volume)))
    };
    if claim.meta.deletion_timestamp.is_some() {
        return wrong("is being deleted");
    }
    let is_bound = claim.body.status.phase.as_deref() == Some("Bound")
        && claim.body.spec.volume_name.as_ref() == Some(&place.volume);
    if is_bound { Ok(()) } else { wrong(&format!("is not bound to pv/{}", place.volume)) }
}

/// No pod names the claim and its volume is attached nowhere, as was read just now.
pub(super) fn unused(context: &Context<'_>, claim: &Key, volume: &Key) -> Planned<()> {
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    context.seen.confirm(&users::pods(namespace).into())?;
    users::without_pods(context.seen, claim, Some(&context.anchor.uid))?;
    let attachments = super::object::Selection::all(Kind::VolumeAttachment);
    context.seen.confirm(&attachments.clone().into())?;
    let Some(attached) = users::attachment(context.seen, volume)? else { return Ok(()) };
    let why = format!("{volume} is attached to node {}", attached.body.spec.node_name);
    context.wait(vec![attachments.into()], &attached.meta.uid, context.limits.removal_seconds, why)
}

/// A claim that is deleted goes once no pod uses it.
fn going<T>(context: &Context<'_>, claim: &Object<Claim>) -> Planned<T> {
    match context.gone(&claim.key, &claim.meta) {
        Err(Stop::Failure(why)) => {
            // The pod says it better than the claim.
            users::without_pods(context.seen, &claim.key, Some(&context.anchor.uid))?;
            Err(why.into())
        }
        other => other,
    }
}

/// The same volume of the storage as a block volume, and a claim of it, bound. Both have nothing by
/// which a provisioner would ever delete that volume.
fn block(context: &Context<'_>, restore: &Restore, volume: &Object<Volume>) -> Planned<()> {
    let anchor = context.anchor;
    let (volume_key, claim_key) =
        (anchor.handed_volume(), anchor.volume(&restore.repository.namespace));
    let raw = context.seen.raw(&volume.key)?.unwrap_or_default();
    let _: Object<Volume> = context.ensure(&volume_key, || {
        let mut spec = raw["spec"].clone();
        for name in ["mountOptions", "volumeAttributesClassName"] {
            spec.as_object_mut().map(|fields| fields.remove(name));
        }
        spec["volumeMode"] = "Block".into();
        spec["persistentVolumeReclaimPolicy"] = "Retain".into();
        spec["claimRef"] = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim_key.namespace,
            "name": claim_key.name,
        });
        names::object(&volume_key, anchor.meta(&volume_key, "in-place"), json!({ "spec": spec }))
    })?;
    let claim: Object<Claim> = context.ensure(&claim_key, || {
        let spec = json!({
            "volumeMode": "Block",
            "volumeName": volume_key.name,
            "accessModes": restore.access_modes,
            "storageClassName": restore.storage_class,
            "resources": { "requests": { "storage": restore.capacity } },
        });
        names::object(&claim_key, anchor.meta(&claim_key, "in-place"), json!({ "spec": spec }))
    })?;
    if claim.body.status.phase.as_deref() == Some("Bound") {
        return Ok(());
    }
    let why = format!("{claim_key} is not bound to {volume_key}");
    let on: Vec<Query> = vec![claim_key.into(), volume_key.into()];
    context.wait(on, &claim.meta.uid, context.limits.volume_seconds, why)
}

/// The Job's claim and volume object go, once the volume is attached nowhere.
pub(super) fn remove_block(context: &Context<'_>, restore: &Restore) -> Planned<()> {
    let volume = context.anchor.handed_volume();
    let claim = context.anchor.volume(&restore.repository.namespace);
    let is_there = context.seen.find::<Volume>(&volume)?.is_some();
    if is_there {
        users::own_pods_gone(context, &restore.repository.namespace)?;
        detached(context, &volume)?;
    }
    context.remove(&claim)?;
    context.remove(&volume)
}

/// From the claim that waits to the bound one, and the volume as it was: with the restored data, or
/// with the old.
pub(super) fn give(
    context: &Context<'_>,
    restore: &Restore,
    volume: &Object<Volume>,
    record: &Record,
    is_restored: bool,
) -> Planned<()> {
    remove_block(context, restore)?;
    let target = target_of(restore);
    let Some(claim) = context.seen.find::<Claim>(&target)? else {
        return Err(made_again(context, record, &target));
    };
    if claim.meta.deletion_timestamp.is_some() {
        return going(context, &claim);
    }
    if waits(&claim, volume) {
        let mut patch = json!({ "spec": { "claimRef": {
            "namespace": target.namespace,
            "name": target.name,
            "uid": claim.meta.uid,
            "resourceVersion": null,
        } } });
        // With a record of one before, the data is that one's, and the volume says so.
        if is_restored && !record.restored {
            let restored = Record { restored: true, ..record.clone() };
            patch["metadata"]["annotations"] = proved(restore);
            patch["metadata"]["annotations"][HELD] = restored.text().into();
        }
        return Err(Step::change(&volume.key, &volume.meta, patch).into());
    }
    if holder(volume) != Some(&claim.meta.uid) {
        return taken(context, &target, &volume.key);
    }
    unclaim(context, &target)?;
    if claim.body.status.phase.as_deref() != Some("Bound") {
        let why = format!("{target} is being bound to {}", volume.key);
        let on: Vec<Query> = vec![target.into(), volume.key.clone().into()];
        return context.wait(on, &claim.meta.uid, context.limits.volume_seconds, why);
    }
    // A claim that is about to go would take the volume with it.
    context.seen.confirm(&target.into())?;
    let patch = json!({
        "metadata": { "annotations": { HELD: null, ENDED: context.anchor.uid } },
        "spec": { "persistentVolumeReclaimPolicy": record.policy },
    });
    Err(Step::change(&volume.key, &volume.meta, patch).into())
}

/// The claim is nobody's but its user's. Its version changes: whoever was about to delete it does
/// not.
pub(super) fn unclaim(context: &Context<'_>, target: &Key) -> Planned<()> {
    let Some(claim) = context.seen.find::<Claim>(target)? else { return Ok(()) };
    if claim.meta.annotations.get(CLAIMED) != Some(&context.anchor.uid) {
        return Ok(());
    }
    let patch = json!({ "metadata": { "annotations": { CLAIMED: null } } });
    Err(Step::change(target, &claim.meta, patch).into())
}

/// Annotations of a volume that was proved.
pub(super) fn proved(restore: &Restore) -> Value {
    json!({
        HALF_WRITTEN: null,
        RESTORED: format!("{}@{}", restore.volume, restore.backup),
    })
}
