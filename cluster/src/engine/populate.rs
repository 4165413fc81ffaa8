//! The claim of a user that a restore populates. It was there before the restore: it names its source
//! in `dataSourceRef`, and no provisioner makes a volume for it.
//!
//! The restored volume is reserved for it by `claimRef` with its uid, after the proof. Kubernetes then
//! binds the claim by itself: a volume that is reserved for a claim comes before any other, also
//! where its class waits for a consumer (`FindMatchingVolume` in `k8s.io/component-helpers`). A claim
//! that was made anew under the name has another uid, and is never bound to that volume.
//!
//! Nothing here makes, changes or deletes the user's claim. One that does not wait any more ends the
//! restore.

use super::object::{Key, Query};
use super::observed::Object;
use super::parts::{Context, with_reason};
use super::request::{Populate, Restore};
use super::restore::target_of;
use super::step::{Failure, Planned, Step, exit};
use super::views::{Claim, Volume};
use serde_json::{Value, json};

/// On a claim: the node where its volume has to be.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The claim, which waits for its volume. It may have the volume that is given to it already.
///
/// # Errors
///
/// The read, which comes first; or the claim is another one, or has another volume.
pub(super) fn claim(
    context: &Context<'_>,
    restore: &Restore,
    populate: &Populate,
    given: Option<&Key>,
) -> Planned<Object<Claim>> {
    let key = target_of(restore);
    let wrong = |what: String, hint: &str| -> Planned<Object<Claim>> {
        Err(Failure::new(exit::USAGE, what).hint(hint).into())
    };
    let Some(claim) = context.seen.find::<Claim>(&key)? else {
        return wrong(format!("{key} was deleted before it had its volume"), "make it again");
    };
    if claim.meta.uid != populate.uid {
        let what = format!("{key} was deleted before it had its volume, and made anew");
        return wrong(what, "the new one is populated by an operation of its own");
    }
    if claim.meta.deletion_timestamp.is_some() {
        let what = format!("{key} is being deleted, and does not have its volume yet");
        return wrong(what, "make it again once it is gone");
    }
    if let Some(name) = &claim.body.spec.volume_name
        && given.is_none_or(|given| given.name != *name)
    {
        return wrong(
            format!("{key} has another volume: pv/{name}"),
            "somebody reserved that for it: delete the claim, and make it again",
        );
    }
    if claim.body.status.phase.as_deref() == Some("Lost") {
        return wrong(format!("{key} is Lost: its volume is gone"), "delete it, and make it again");
    }
    let is_filesystem = claim.body.spec.volume_mode.as_deref() != Some("Block");
    if is_filesystem != restore.filesystem.is_some() {
        let mode = if is_filesystem { "Filesystem" } else { "Block" };
        return wrong(
            format!("{key} is of mode {mode}, and the restore is not"),
            "make the claim of the other mode",
        );
    }
    Ok(claim)
}

/// Kubernetes has seen that the block claim is gone. From then on the volume's phase changes before the
/// user's claim does, so a change by the volume's version never takes a volume away that the claim has.
pub(super) fn released(context: &Context<'_>, volume: &Object<Volume>) -> Planned<()> {
    if volume.body.status.phase.as_deref() == Some("Released") {
        return Ok(());
    }
    let query: Query = volume.key.clone().into();
    let waited = context.seen.unchanged(&query);
    let why = format!("{} is not released yet", volume.key);
    context.wait_since(vec![query], waited, context.limits.volume_seconds, why)
}

/// The claim as it was read just now: nothing is reserved for one that is gone.
pub(super) fn still_waits(context: &Context<'_>, restore: &Restore) -> Planned<()> {
    context.seen.confirm(&target_of(restore).into())
}

/// The block claim, by what has to be the same for the user's claim to be bound to its volume.
pub(super) fn like_its(populate: &Populate, meta: &mut Value, spec: &mut Value) {
    if let Some(node) = &populate.selected_node {
        meta["annotations"][SELECTED_NODE] = node.clone().into();
    }
    if let Some(class) = &populate.attributes_class {
        spec["volumeAttributesClassName"] = class.clone().into();
    }
}

/// After a failure the volume is reserved for nobody. Kubernetes takes the uid out of `claimRef` where
/// the claim has another volume, and would then bind whatever claim is made anew under the name. A
/// binding that has begun is let be: without it the claim would be lost.
pub(super) fn park(
    context: &Context<'_>,
    restore: &Restore,
    populate: &Populate,
    volume: &Key,
) -> Planned<()> {
    let Some(found) = context.seen.find::<Volume>(volume)? else { return Ok(()) };
    let target = target_of(restore);
    let is_for_it = found.body.spec.claim_ref.as_ref().is_some_and(|holder| {
        holder.namespace == target.namespace && holder.name.as_ref() == Some(&target.name)
    });
    if !is_for_it || found.meta.deletion_timestamp.is_some() {
        return Ok(());
    }
    context.seen.confirm(&target.clone().into())?;
    let claim = context.seen.find::<Claim>(&target)?;
    let binds = |claim: Object<Claim>| match claim.body.spec.volume_name {
        Some(name) => name == volume.name,
        // Its phase comes before the claim's own fields.
        None => found.body.status.phase.as_deref() == Some("Bound"),
    };
    if claim.filter(|claim| claim.meta.uid == populate.uid).is_some_and(binds) {
        return Ok(());
    }
    let block = context.anchor.volume(&restore.repository.namespace);
    let nobody = json!({
        "namespace": block.namespace,
        "name": block.name,
        "uid": context.anchor.uid,
        "resourceVersion": null,
    });
    Err(Step::change(volume, &found.meta, json!({ "spec": { "claimRef": nobody } })).into())
}

/// Waits until the claim is bound to the volume.
pub(super) fn bound(
    context: &Context<'_>,
    restore: &Restore,
    populate: &Populate,
    volume: &Object<Volume>,
) -> Planned<()> {
    let claim = claim(context, restore, populate, Some(&volume.key))?;
    let has = claim.body.spec.volume_name.as_ref() == Some(&volume.key.name);
    if has && claim.body.status.phase.as_deref() == Some("Bound") {
        return Ok(());
    }
    let query: Query = volume.key.clone().into();
    let said = context.warning(&claim.key, &claim.meta.uid)?;
    let why = with_reason(format!("{} is being bound to {}", claim.key, volume.key), said);
    // The claim has waited for as long as the restore took.
    let waited = context.seen.unchanged(&query);
    let on = vec![claim.key.into(), query];
    context.wait_since(on, waited, context.limits.volume_seconds, why)
}
