//! Snapshots that the storage still has and the cluster does not know: a content names one by the
//! driver's handle, and a snapshot names the content. No data moves.
//!
//! Such a content is `Retain` from its first moment, so nothing that becomes of these objects reaches
//! the storage. Only [`discard_snapshot`] sets `Delete`, and first.

use super::names::{self, Anchor, IMPORTED, MANAGER};
use super::object::{Key, Kind, Query, Selection};
use super::observed::{Meta, Object, Observed};
use super::parts::{Context, with_reason};
use super::request::Limits;
use super::retained::{has_stayed, made_here};
use super::step::{Failure, Planned, Step, Stop, exit};
use super::views::{Content, Snapshot};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is to be imported.
#[derive(Debug, Clone, PartialEq)]
pub struct Import {
    /// Where the snapshot is to be.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// Name of the driver.
    pub driver: String,
    /// The driver's name for the snapshot.
    pub handle: String,
    /// Whether the volume was one of a filesystem.
    pub filesystem: bool,
    /// Class of snapshots, if one is meant.
    pub snapshot_class: Option<String>,
    /// More annotations of the content, such as those that name secrets of the driver.
    pub annotations: BTreeMap<String, String>,
    /// The backup that was made of it, as `VOLUME@ID`.
    pub of: String,
    /// How long the driver is waited for.
    pub wait_seconds: u64,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The snapshot.
    pub snapshot: Key,
    /// Its content.
    pub content: Key,
    /// Size of a volume of it, where the driver says that.
    ///
    /// Without one nobody may have looked: of a driver that lists no snapshots the sidecar takes each
    /// name as one that is there, ready, made just now, and of no size.
    pub size: Option<String>,
}

impl Import {
    fn snapshot(&self) -> Key {
        Key::new(Kind::VolumeSnapshot, &self.namespace, &self.name)
    }

    /// One of each snapshot of the storage: two imports at once make one.
    fn content(&self) -> Key {
        let text = format!("{}\n{}", self.driver, self.handle);
        let name = format!("mover-import-{:016x}", names::hash(&text));
        Key::wide(Kind::VolumeSnapshotContent, &name)
    }

    fn meta(&self, key: &Key) -> Value {
        let mut annotations = json!({ IMPORTED: self.of });
        if key.kind == Kind::VolumeSnapshotContent {
            for (name, text) in &self.annotations {
                annotations[name] = json!(text);
            }
        }
        json!({
            "name": key.name,
            "namespace": key.namespace,
            "labels": { "app.kubernetes.io/managed-by": MANAGER },
            "annotations": annotations,
        })
    }

    fn is_mine(&self, meta: &Meta) -> bool {
        meta.annotations.get(IMPORTED) == Some(&self.of)
    }

    fn is_of(&self, content: &Content) -> bool {
        content.spec.driver == self.driver && handle_of(content) == Some(&self.handle)
    }
}

/// The storage's name for the snapshot of a content.
pub fn handle_of(content: &Content) -> Option<&String> {
    content.status.snapshot_handle.as_ref().or(content.spec.source.snapshot_handle.as_ref())
}

/// Brings it into the cluster.
///
/// # Errors
///
/// What comes first; or the cluster has it already, the names are taken, or the driver does not find it.
pub fn import(request: &Import, seen: &Observed) -> Planned<Imported> {
    let (key, content_key) = (request.snapshot(), request.content());
    let taken = seen.find::<Snapshot>(&key)?;
    if let Some(found) = &taken
        && !request.is_mine(&found.meta)
    {
        let what = format!("{key} exists, and is not of {}", request.of);
        return Err(Failure::new(exit::USAGE, what)
            .hint("import it under another name, by --name")
            .into());
    }
    for other in seen.list::<Content>(&Selection::all(Kind::VolumeSnapshotContent))? {
        let back = &other.body.spec.volume_snapshot_ref;
        let is_back = back.namespace == key.namespace && back.name.as_ref() == Some(&key.name);
        if request.is_of(&other.body) && !(other.key == content_key && is_back) {
            let of = |text: &Option<String>| text.clone().unwrap_or_default();
            let what = format!(
                "the cluster has this snapshot of the storage already: volumesnapshot/{} in namespace {}",
                of(&back.name),
                of(&back.namespace)
            );
            let hint = "make a volume of that one; two that own one snapshot would delete it for each other";
            return Err(Failure::new(exit::USAGE, what).hint(hint).into());
        }
    }
    let Some(content) = seen.find::<Content>(&content_key)? else {
        return Err(Step::Create(new_content(request, &content_key)).into());
    };
    if !request.is_mine(&content.meta) || !request.is_of(&content.body) {
        let what = format!("{content_key} exists, and is not of {}", request.of);
        let hint = format!("{} shows where it comes from", content_key.shown_by());
        return Err(Failure::new(exit::USAGE, what).hint(hint).into());
    }
    let Some(snapshot) = taken else {
        let mut body =
            json!({ "spec": { "source": { "volumeSnapshotContentName": content_key.name } } });
        if let Some(class) = &request.snapshot_class {
            body["spec"]["volumeSnapshotClassName"] = json!(class);
        }
        return Err(Step::Create(names::object(&key, request.meta(&key), body)).into());
    };
    await_driver(request, seen, &snapshot, &content)?;
    let size = snapshot.body.status.restore_size.clone().filter(|size| size != "0");
    Ok(Imported { snapshot: key, content: content_key, size })
}

fn new_content(request: &Import, key: &Key) -> Value {
    let mode = if request.filesystem { "Filesystem" } else { "Block" };
    let mut body = json!({ "spec": {
        "driver": request.driver,
        "deletionPolicy": "Retain",
        "source": { "snapshotHandle": request.handle },
        "sourceVolumeMode": mode,
        "volumeSnapshotRef": { "namespace": request.namespace, "name": request.name },
    } });
    if let Some(class) = &request.snapshot_class {
        body["spec"]["volumeSnapshotClassName"] = json!(class);
    }
    names::object(key, request.meta(key), body)
}

/// Until each of both names the other, and the driver has said that it is there.
fn await_driver(
    request: &Import,
    seen: &Observed,
    snapshot: &Object<Snapshot>,
    content: &Object<Content>,
) -> Planned<()> {
    let status = &snapshot.body.status;
    let back = content.body.spec.volume_snapshot_ref.uid.as_ref();
    let is_bound = status.bound_volume_snapshot_content_name.as_ref() == Some(&content.key.name)
        && back == Some(&snapshot.meta.uid);
    if is_bound && status.ready_to_use == Some(true) {
        return Ok(());
    }
    for (key, meta) in [(&snapshot.key, &snapshot.meta), (&content.key, &content.meta)] {
        if meta.deletion_timestamp.is_some() {
            let what = format!("{key} was deleted by somebody else while it was imported");
            return Err(Failure::new(exit::RETRYABLE, what)
                .hint("run the same command again")
                .into());
        }
    }
    let errors = [&content.body.status.error, &status.error];
    let said = errors.into_iter().flatten().find_map(|error| error.message.clone());
    let why = with_reason(format!("{} is not ready", snapshot.key), said);
    let on = vec![Query::One(snapshot.key.clone()), Query::One(content.key.clone())];
    let owner = owner(&snapshot.key);
    let context = Context { seen, anchor: &owner, limits: Limits::default() };
    match context.wait(on, &snapshot.meta.uid, request.wait_seconds, why) {
        Err(Stop::Failure(why)) => Err(why
            .hint(format!(
                "the storage may have snapshot {} no more: kubectl mover restore {} reads the backup instead",
                request.handle, request.of
            ))
            .into()),
        other => other,
    }
}

/// These Steps belong to no operation.
fn owner(key: &Key) -> Anchor {
    Anchor::new(key.clone(), String::new())
}

/// Takes an import back that did not come to its end. The storage keeps the snapshot.
///
/// # Errors
///
/// What comes first.
pub fn withdraw(request: &Import, seen: &Observed) -> Planned<()> {
    for key in [request.snapshot(), request.content()] {
        let Some(found) = seen.find::<Value>(&key)? else { continue };
        let spec = &found.body["spec"];
        // That of another import of the same backup stays, and so does one that somebody took over.
        let is_others = key.kind == Kind::VolumeSnapshotContent
            && (spec["volumeSnapshotRef"]["name"] != request.name.as_str()
                || spec["volumeSnapshotRef"]["namespace"] != request.namespace.as_str()
                || spec["deletionPolicy"] != "Retain");
        if is_others || !request.is_mine(&found.meta) {
            continue;
        }
        remove(seen, &key, &found.meta)?;
    }
    Ok(())
}

/// Deletes an object, and waits until it is gone.
fn remove(seen: &Observed, key: &Key, meta: &Meta) -> Planned<()> {
    if meta.deletion_timestamp.is_none() {
        return Err(Step::Delete { key: key.clone(), uid: meta.uid.clone() }.into());
    }
    let owner = owner(key);
    Context { seen, anchor: &owner, limits: Limits::default() }.gone(key, meta)
}

/// A snapshot that is to go, as it was when that was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Discard {
    /// It.
    pub snapshot: Key,
    /// Its uid.
    pub uid: String,
    /// Its content, and the uid of that.
    pub content: Option<(Key, String)>,
    /// The storage's name of it.
    pub handle: Option<String>,
    /// The storage keeps it.
    pub leaves: bool,
}

/// A snapshot of ours that may go: one that was imported, or that outlived its backup.
///
/// # Errors
///
/// The reads, which come first; or there is none, or it is not ours.
pub fn discardable(seen: &Observed, key: &Key, leaves: bool) -> Planned<Discard> {
    let Some(snapshot) = seen.find::<Snapshot>(key)? else {
        return Err(Failure::new(exit::USAGE, format!("{key} does not exist"))
            .hint("kubectl mover snapshots list")
            .into());
    };
    let imported = snapshot.meta.annotations.get(IMPORTED);
    if imported.is_none() && !(made_here(&snapshot) && has_stayed(&snapshot.meta)) {
        let what = format!("{key} is neither imported nor kept by mover: it stays");
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let hint =
            format!("if it is yours: kubectl -n {namespace} delete volumesnapshot {}", key.name);
        return Err(Failure::new(exit::DENIED, what).hint(hint).into());
    }
    let mut discard = Discard {
        snapshot: key.clone(),
        uid: snapshot.meta.uid.clone(),
        content: None,
        handle: None,
        leaves,
    };
    let Some(name) = &snapshot.body.status.bound_volume_snapshot_content_name else {
        return Ok(discard);
    };
    let content_key = Key::wide(Kind::VolumeSnapshotContent, name);
    let Some(content) = seen.find::<Content>(&content_key)? else { return Ok(discard) };
    let back = &content.body.spec.volume_snapshot_ref;
    if back.uid.as_ref() != Some(&snapshot.meta.uid) {
        let what = format!("{key} names {content_key}, which is the content of another snapshot");
        return Err(Failure::new(exit::DENIED, what)
            .hint("somebody wrote its status; kubectl delete removes the snapshot alone")
            .into());
    }
    discard.handle = handle_of(&content.body).cloned();
    discard.content = Some((content_key, content.meta.uid));
    Ok(discard)
}

/// Removes it: from the storage too, or from the cluster alone. The policy comes first, so that nothing
/// stays that nobody knows of, and nothing goes that is to stay.
///
/// # Errors
///
/// What comes first.
pub fn discard_snapshot(of: &Discard, seen: &Observed) -> Planned<()> {
    let content = match &of.content {
        Some((key, uid)) => seen.find::<Content>(key)?.filter(|found| found.meta.uid == *uid),
        None => None,
    };
    let policy = if of.leaves { "Retain" } else { "Delete" };
    if let Some(found) = &content
        && found.meta.deletion_timestamp.is_none()
        && found.body.spec.deletion_policy.as_deref() != Some(policy)
    {
        let patch = json!({ "spec": { "deletionPolicy": policy } });
        return Err(Step::change(&found.key, &found.meta, patch).into());
    }
    let snapshot = seen.find::<Snapshot>(&of.snapshot)?.filter(|found| found.meta.uid == of.uid);
    if let Some(found) = snapshot {
        return remove(seen, &of.snapshot, &found.meta);
    }
    let Some(found) = content else { return Ok(()) };
    if of.leaves {
        return remove(seen, &found.key, &found.meta);
    }
    // The snapshot controller deletes it, and the driver the snapshot before it goes.
    let owner = owner(&found.key);
    Context { seen, anchor: &owner, limits: Limits::default() }.gone(&found.key, &found.meta)
}
