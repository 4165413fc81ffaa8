//! Who uses a claim: pods that name it, and nodes that its volume is attached to.

use super::names::OWNER;
use super::object::{Key, Kind, Query, Selection};
use super::observed::{Meta, Object, Observed};
use super::parts::Context;
use super::step::{Failure, Planned, Wait, exit};
use super::views::{Attachment, Pod, PodVolume};
use serde_json::Value;
use std::time::Duration;

/// Pods of a namespace.
pub(super) fn pods(namespace: &str) -> Selection {
    Selection::labelled(Kind::Pod, namespace, "")
}

/// No pod that has not ended names the claim, but for those of an operation: `ours` is its uid, and
/// without one those of all operations are meant.
///
/// # Errors
///
/// The read, which comes first; or a pod, with its owner and the next step.
pub fn without_pods(seen: &Observed, claim: &Key, ours: Option<&str>) -> Planned<()> {
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    let all: Vec<Object<Pod>> = seen.list(&pods(namespace))?;
    let is_ours = |pod: &Object<Pod>| match (pod.meta.labels.get(OWNER), ours) {
        (Some(of), Some(ours)) => of == ours,
        (of, None) => of.is_some(),
        (None, Some(_)) => false,
    };
    let using = all.iter().find(|pod| names(pod, claim) && !is_ours(pod));
    using.map_or(Ok(()), |pod| Err(used(claim, pod).into()))
}

/// Whether a pod of an operation that names the claim has not ended.
pub(super) fn has_own_pods(seen: &Observed, claim: &Key, ours: &str) -> Planned<bool> {
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    let all: Vec<Object<Pod>> = seen.list(&pods(namespace))?;
    Ok(all
        .iter()
        .any(|pod| names(pod, claim) && pod.meta.labels.get(OWNER).is_some_and(|of| of == ours)))
}

/// Waits until no pod of the operation is left in a namespace, ended or not: a pod stays until its
/// node has unmounted its volumes. Not every driver has attachments that tell the same.
pub(super) fn own_pods_gone(context: &Context<'_>, namespace: &str) -> Planned<()> {
    let labels = format!("{OWNER}={}", context.anchor.uid);
    let pods = Selection::labelled(Kind::Pod, namespace, labels);
    let query: Query = pods.clone().into();
    context.seen.confirm(&query)?;
    let all: Vec<Object<Pod>> = context.seen.list(&pods)?;
    let Some(pod) = all.first() else { return Ok(()) };
    let why = format!("{} goes away", pod.key);
    let waited = context.seen.unchanged(&query);
    let limit = Duration::from_secs(context.limits.removal_seconds);
    if waited >= limit {
        return Err(Failure::new(exit::RETRYABLE, format!("{why}, and is still there"))
            .hint("look at its node; delete it, but not by force, and run the same command again")
            .into());
    }
    Err(Wait::new(vec![query], why, limit - waited).into())
}

/// An attachment of a volume to a node, if there is one.
pub(super) fn attachment(seen: &Observed, volume: &Key) -> Planned<Option<Object<Attachment>>> {
    let all: Vec<Object<Attachment>> = seen.list(&Selection::all(Kind::VolumeAttachment))?;
    let is_of = |at: &Object<Attachment>| {
        at.body.spec.source.persistent_volume_name.as_deref() == Some(&volume.name)
    };
    Ok(all.into_iter().find(is_of))
}

/// Whether a pod, as the API gives it, names the claim and has not ended.
pub fn uses(pod: &Value, claim: &Key) -> bool {
    let meta = Meta::of(pod);
    let key = Key { kind: Kind::Pod, namespace: meta.namespace.clone(), name: meta.name.clone() };
    let body = serde_json::from_value(pod.clone()).unwrap_or_default();
    names(&Object { key, meta, body }, claim)
}

/// It names the claim, or has it as a volume of its own, and has not ended.
fn names(pod: &Object<Pod>, claim: &Key) -> bool {
    let has_ended = matches!(pod.body.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let is_it = |volume: &PodVolume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(at), _) => at.claim_name == claim.name,
        // Kubernetes names the claim of an ephemeral volume so.
        (None, Some(_)) => format!("{}-{}", pod.key.name, volume.name) == claim.name,
        (None, None) => false,
    };
    !has_ended && pod.body.spec.volumes.iter().any(is_it)
}

fn used(claim: &Key, pod: &Object<Pod>) -> Failure {
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    let name = &pod.key.name;
    let owner = pod.body.metadata.owner_references.first();
    let (of, hint) = match owner.map(|owner| (owner.kind.as_str(), owner.name.as_str())) {
        Some(("StatefulSet", owner)) => (
            format!(" of statefulset/{owner}"),
            format!(
                "kubectl -n {namespace} scale statefulset/{owner} --replicas 0, unless its \
                 persistentVolumeClaimRetentionPolicy deletes claims then; run the same command \
                 after that"
            ),
        ),
        Some(("ReplicaSet", owner)) => {
            // A Deployment names its sets by itself and this hash.
            let hash = pod.meta.labels.get("pod-template-hash").map(|hash| format!("-{hash}"));
            let deployment = hash.and_then(|hash| owner.strip_suffix(&hash));
            let of = match deployment {
                Some(deployment) => format!("deployment/{deployment}"),
                None => format!("replicaset/{owner}"),
            };
            let hint = format!(
                "kubectl -n {namespace} scale {of} --replicas 0; run the same command after that"
            );
            (format!(" of {of}"), hint)
        }
        Some((kind, owner)) => {
            let of = format!("{}/{owner}", kind.to_lowercase());
            let hint = format!("have {of} end its pods, and run the same command after that");
            (format!(" of {of}"), hint)
        }
        None => (
            String::new(),
            format!(
                "kubectl -n {namespace} delete pod {name}, if nobody needs it; run the same \
                 command after that"
            ),
        ),
    };
    let does = match pod.meta.deletion_timestamp {
        Some(_) => "is going away and still uses",
        None => "uses",
    };
    Failure::new(exit::USAGE, format!("pod/{name}{of} {does} {claim}")).hint(hint)
}
