//! A restore whose volume begins as a snapshot that the storage still has, of the backup's own state.
//!
//! The snapshot saves the transfer and nothing else: the Job reads the volume, and fetches and writes
//! whatever differs from the backup, so the proof is the same. Where the snapshot is gone, or cannot be
//! handed over, the volume begins empty, and all comes from the bucket.
//!
//! What a claim is made of is told by the claim itself, so it stays so however often this begins anew.

use super::handover::{self, Hand};
use super::object::{Key, Kind};
use super::observed::{Object, Observed};
use super::parts::Context;
use super::request::{Kept, Restore};
use super::step::{Failure, Planned, Stop, exit};
use super::views::{Claim, Content, Snapshot};
use serde_json::{Value, json};

/// The snapshot in the Repository's namespace that the volume is made of; none where it cannot be.
pub(super) fn handed(context: &Context<'_>, restore: &Restore) -> Planned<Option<String>> {
    let Some(kept) = &restore.kept else { return Ok(None) };
    match context.seen.settle(hand_over(context, restore, kept)) {
        // It was for speed alone.
        Err(Stop::Failure(_)) => Ok(None),
        other => other,
    }
}

fn hand_over(context: &Context<'_>, restore: &Restore, kept: &Kept) -> Planned<Option<String>> {
    let key = Key::new(Kind::VolumeSnapshot, &restore.namespace, &kept.name);
    let Some(content) = usable_content(context.seen, &key, &kept.driver, &kept.handle)? else {
        return Ok(None);
    };
    let hand = Hand {
        namespace: &restore.repository.namespace,
        driver: &kept.driver,
        handle: &kept.handle,
        class: kept.class.as_deref(),
        filesystem: kept.filesystem,
    };
    handover::handed(context, &hand, &content).map(Some)
}

/// The content of a snapshot that can be used, if it is this one of the storage: each of both names the
/// other, as whoever may write a snapshot's status must not lead to another one.
///
/// # Errors
///
/// A read, which comes first.
pub fn usable_content(
    seen: &Observed,
    snapshot: &Key,
    driver: &str,
    handle: &str,
) -> Planned<Option<Key>> {
    let Some(found) = seen.find::<Snapshot>(snapshot)? else { return Ok(None) };
    let status = &found.body.status;
    if found.meta.deletion_timestamp.is_some() || status.ready_to_use != Some(true) {
        return Ok(None);
    }
    let Some(name) = &status.bound_volume_snapshot_content_name else { return Ok(None) };
    let key = Key::wide(Kind::VolumeSnapshotContent, name);
    let Some(content) = seen.find::<Content>(&key)? else { return Ok(None) };
    let back = &content.body.spec.volume_snapshot_ref;
    let is_its = back.uid.as_deref() == Some(&found.meta.uid)
        && back.namespace == found.key.namespace
        && back.name.as_deref() == Some(&found.key.name)
        && content.meta.deletion_timestamp.is_none()
        && content.body.spec.driver == driver
        && content.body.status.snapshot_handle.as_deref() == Some(handle)
        && content.body.status.ready_to_use == Some(true);
    Ok(is_its.then_some(key))
}

/// A claim as one that is made of a snapshot.
pub(super) fn made_of(spec: &mut Value, snapshot: &str) {
    spec["dataSource"] = json!({
        "apiGroup": "snapshot.storage.k8s.io",
        "kind": "VolumeSnapshot",
        "name": snapshot,
    });
}

/// Whether our claim was made of a snapshot.
pub(super) fn is_made_of_one(claim: &Object<Claim>) -> bool {
    claim.body.spec.data_source.is_some()
}

/// A failure, with the way around the snapshot where the storage made no volume of it.
pub(super) fn explain(context: &Context<'_>, volume: &Key, failure: Failure) -> Planned<Failure> {
    let claim = context.seen.find::<Claim>(volume)?;
    let unbound = claim.is_some_and(|claim| {
        is_made_of_one(&claim) && claim.body.status.phase.as_deref() != Some("Bound")
    });
    Ok(match unbound && failure.exit_code == exit::RETRYABLE {
        true => failure
            .hint("run the same command without --prefer-snapshot: all then comes from the bucket"),
        false => failure,
    })
}

/// Removes what was handed over; the storage keeps the snapshot.
pub(super) fn remove(context: &Context<'_>, restore: &Restore) -> Planned<()> {
    if restore.kept.is_none() {
        return Ok(());
    }
    context.remove(&context.anchor.handed_snapshot(&restore.repository.namespace))?;
    context.remove(&context.anchor.handed_content())
}
