//! A snapshot for the Repository's namespace, where that is another than the claim's, or where a restore
//! makes its volume of one that stayed.
//!
//! A second content names the same snapshot of the storage. One content owns it at any time, and it
//! alone is ever set to `Delete`: the claim's own. Ours is `Retain` from its first moment, so its
//! end never reaches the storage.

use super::backup::mark;
use super::names;
use super::object::{Key, Query};
use super::observed::Object;
use super::parts::{Context, with_reason};
use super::request::Backup;
use super::step::{Failure, Planned, Stop, exit};
use super::views::{Content, Snapshot};
use serde_json::json;

/// The snapshot's name in the Repository's namespace, ready for a volume to be made of it.
pub(super) fn snapshot(
    context: &Context<'_>,
    backup: &Backup,
    original: &Object<Snapshot>,
    content: &Object<Content>,
) -> Planned<String> {
    let namespace = &backup.repository.namespace;
    if *namespace == backup.source.namespace {
        if backup.filesystem {
            mark(context, &content.key)?;
        }
        return Ok(original.key.name.clone());
    }
    let hand = Hand {
        namespace,
        driver: &backup.driver,
        handle: content.body.status.snapshot_handle.as_deref().unwrap_or_default(),
        class: Some(&backup.snapshot_class),
        filesystem: backup.filesystem,
        seconds: context.limits.snapshot_seconds,
    };
    handed(context, &hand, &content.key)
}

/// A snapshot of the storage that is handed over.
pub(super) struct Hand<'a> {
    /// To this namespace.
    pub namespace: &'a str,
    /// Its driver.
    pub driver: &'a str,
    /// The storage's name of it.
    pub handle: &'a str,
    /// Class of the snapshot, if one is known.
    pub class: Option<&'a str>,
    /// Whether it is one of a filesystem, of which a block volume is made.
    pub filesystem: bool,
    /// How long the driver is waited for.
    pub seconds: u64,
}

/// The name of the snapshot that stands for it there, ready for a volume to be made of it; `content` is
/// its owner.
pub(super) fn handed(context: &Context<'_>, hand: &Hand<'_>, content: &Key) -> Planned<String> {
    let anchor = context.anchor;
    let key = anchor.handed_snapshot(hand.namespace);
    let content_key = anchor.handed_content();
    let ours: Object<Content> = context.ensure(&content_key, || {
        let mut meta = anchor.meta(&content_key, "handed");
        if hand.filesystem {
            meta["annotations"][names::MODE_CHANGE] = "true".into();
        }
        // Secrets of the class, which the driver needs to find the snapshot.
        let raw = context.seen.raw(content).ok().flatten();
        let notes = raw.as_ref().and_then(|raw| raw["metadata"]["annotations"].as_object());
        for (name, value) in notes.into_iter().flatten() {
            if name.starts_with("snapshot.storage.kubernetes.io/deletion-secret") {
                meta["annotations"][name] = value.clone();
            }
        }
        let mode = if hand.filesystem { "Filesystem" } else { "Block" };
        let body = json!({ "spec": {
            "driver": hand.driver,
            "deletionPolicy": "Retain",
            "source": { "snapshotHandle": hand.handle },
            "sourceVolumeMode": mode,
            "volumeSnapshotClassName": hand.class,
            "volumeSnapshotRef": { "namespace": hand.namespace, "name": key.name },
        } });
        names::object(&content_key, meta, body)
    })?;
    if ours.body.spec.source.snapshot_handle.as_deref() != Some(hand.handle) {
        let what =
            format!("{content_key} is of another snapshot of the storage than {}", hand.handle);
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again").into());
    }
    let handed: Object<Snapshot> = context.ensure(&key, || {
        let body = json!({ "spec": {
            "source": { "volumeSnapshotContentName": content_key.name },
            "volumeSnapshotClassName": hand.class,
        } });
        names::object(&key, anchor.meta(&key, "handed"), body)
    })?;
    if handed.body.status.ready_to_use == Some(true) {
        return Ok(key.name);
    }
    let error = handed.body.status.error.as_ref().and_then(|error| error.message.clone());
    let why = with_reason(format!("{key} is not ready"), error);
    let on = vec![Query::One(key)];
    match context.wait::<String>(on, &handed.meta.uid, hand.seconds, why) {
        Ok(name) => Ok(name),
        Err(Stop::Failure(why)) => Err(why
            .hint("the snapshot controller's log says more; run the same command again")
            .into()),
        Err(next) => Err(next),
    }
}
